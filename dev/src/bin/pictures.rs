//! Answers beside pictures: the time between two tokens of some streams, alone and while other requests with pictures
//! come and go, and the time to the first token of two turns about a picture.
//!
//!   cargo dev pictures -- MODEL.gguf MMPROJ.gguf [--quick] [--threads N] [--only WORD]... [--json FILE]
//!
//! `synth` writes both files: a text model and a tower (its head says how). Pictures are PNGs of noise, each another one:
//! 500 of 160 to 320 pixels a side beside the streams, or 60 with --quick, and for the turns 5 of 1024x1024, or 3.
//! Parts are called "target 0", "target 50", "target 100" and "turns".

use bn_dev::{Options, SplitMix, machine, median};
use bn_engine::base::{Error, Result, Status};
use bn_engine::engine::api::*;
use bn_engine::engine::{Engine, open_model};
use bn_engine::model::{LoadOptions, Source};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, mpsc};
use std::time::Instant;

/// Streams that are measured, and requests with pictures beside them.
const STREAMS: usize = 4;
const BESIDE: usize = 8;
/// Milliseconds between two tokens to aim at; 0: none.
const TARGETS: [u32; 3] = [0, 50, 100];
const PICTURE: &str = "<|image_pad|>";

fn main() {
    let (options, files) = Options::with_files("pictures");
    let [model, tower] = &files[..] else {
        eprintln!(
            "cargo dev pictures -- MODEL.gguf MMPROJ.gguf [--quick] [--threads N] [--only WORD]... [--json FILE]"
        );
        std::process::exit(2)
    };
    match measure(&options, model, tower) {
        Ok(value) => options.write(&value),
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ! {
    eprintln!("pictures: {error}");
    std::process::exit(1)
}

fn measure(options: &Options, model: &str, tower: &str) -> Result<Value> {
    let loaded = open_model(ModelConfig {
        source: Source::File(model.into()),
        options: LoadOptions { pictures: Some(tower.into()), ..LoadOptions::default() },
        threads: options.threads as u32,
        ..ModelConfig::default()
    })?;
    let create = |target| {
        Engine::create(EngineConfig {
            model: Some(loaded.clone()),
            threads: options.threads as u32,
            max_batch_size: (STREAMS + BESIDE) as u32,
            context_length: 2048,
            target_itl_ms: target,
            picture_tokens: 1024,
            ..EngineConfig::default()
        })
    };
    println!("{}, {} threads", machine(), options.threads);
    let count = if options.quick { 60 } else { 500 };
    let mut rows = Vec::new();
    println!(
        "target    tokens apart, alone      beside {count} pictures            pictures/s  their first token"
    );
    println!("    ms    p50 ms  p99 ms     p50 ms  p99 ms  most ms                   p50 s");
    for target in TARGETS.into_iter().filter(|target| options.wants(&format!("target {target}"))) {
        let engine = create(target)?;
        let [a50, a99, _] = spread(World::new(&engine).run(&[])?.gaps);
        print!("{target:>6} {a50:>9.1} {a99:>7.1}");
        let _ = std::io::stdout().flush();
        let beside = World::new(&engine).run(&(0..count).map(small).collect::<Vec<_>>())?;
        engine.destroy()?;
        let rate = count as f64 / beside.seconds;
        let [b50, b99, most] = spread(beside.gaps);
        let first = median(beside.first);
        println!("{b50:>11.1} {b99:>7.1} {most:>8.1} {rate:>12.2} {first:>12.2}");
        rows.push(json!({"target_itl_ms": target, "alone_ms": [a50, a99], "beside_ms": [b50, b99, most],
            "pictures_per_second": rate, "first_token_seconds": first}));
    }
    if options.wants("turns") {
        let engine = create(0)?;
        rows.push(turns(&engine, if options.quick { 3 } else { 5 })?);
        engine.destroy()?;
    }
    Ok(rows.into())
}

/// The median, the 99th of 100, and the largest, in milliseconds.
fn spread(mut gaps: Vec<f64>) -> [f64; 3] {
    gaps.sort_by(f64::total_cmp);
    [0.5, 0.99, 1.0].map(|part| {
        let at = (gaps.len() as f64 * part) as usize;
        gaps.get(at.min(gaps.len().saturating_sub(1))).map_or(0.0, |seconds| seconds * 1e3)
    })
}

/// A picture that no other number has.
fn small(n: u64) -> Vec<u8> {
    let mut rng = SplitMix(n);
    let size = [0; 2].map(|_| 160 + (rng.draw() % 11) as usize * 16);
    png(size, &mut rng)
}

/// A PNG of noise with stored pixels, so that it takes no encoder.
fn png([width, height]: [usize; 2], rng: &mut SplitMix) -> Vec<u8> {
    let mut raw = Vec::new();
    for _ in 0..height {
        raw.push(0);
        raw.extend((0..width * 3).map(|_| rng.draw() as u8));
    }
    let mut zlib = vec![0x78, 1];
    let blocks = raw.chunks(u16::MAX.into()).count();
    for (at, block) in raw.chunks(u16::MAX.into()).enumerate() {
        let len = block.len() as u16;
        zlib.push(u8::from(at + 1 == blocks));
        zlib.extend([len.to_le_bytes(), (!len).to_le_bytes()].concat());
        zlib.extend_from_slice(block);
    }
    let [mut low, mut high] = [1u32, 0];
    for byte in &raw {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    zlib.extend((high << 16 | low).to_be_bytes());
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let size = [width as u32, height as u32].map(u32::to_be_bytes).concat();
    for (kind, data) in
        [(b"IHDR", [&size[..], &[8, 2, 0, 0, 0]].concat()), (b"IDAT", zlib), (b"IEND", Vec::new())]
    {
        file.extend((data.len() as u32).to_be_bytes());
        let chunk = [&kind[..], &data].concat();
        file.extend_from_slice(&chunk);
        file.extend(checksum(&chunk).to_be_bytes());
    }
    file
}

/// PNG's CRC.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn request(text: String, picture: Option<&[u8]>, new: u32) -> RequestParams<'_> {
    RequestParams {
        prompt: Prompt::Text(text.into()),
        parse_special: true,
        pictures: picture.map(|file| Picture::Encoded(file.into())).into_iter().collect(),
        max_new_tokens: new,
        ignore_eos: true,
        ..RequestParams::default()
    }
}

struct World<'a> {
    engine: &'a Engine,
    /// When each stream had its last token.
    last: HashMap<RequestId, Option<Instant>>,
    streams: u64,
    outcome: Outcome,
}

#[derive(Default)]
struct Outcome {
    gaps: Vec<f64>,
    first: Vec<f64>,
    seconds: f64,
}

impl<'a> World<'a> {
    fn new(engine: &'a Engine) -> Self {
        Self { engine, last: HashMap::new(), streams: 0, outcome: Outcome::default() }
    }

    fn stream(&mut self) -> Result<()> {
        self.streams += 1;
        let id = self.engine.submit(vec![request(format!("Stream {}: ", self.streams), None, 200)])?[0];
        self.last.insert(id, None);
        Ok(())
    }

    /// Streams go on while there are pictures; without any, each ends once. Another thread submits pictures, as that takes
    /// the time of their decoding.
    fn run(mut self, pictures: &[Vec<u8>]) -> Result<Outcome> {
        let began: Vec<Mutex<Option<Instant>>> = pictures.iter().map(|_| Mutex::default()).collect();
        let (ended, wait) = mpsc::channel();
        (0..BESIDE).for_each(|_| ended.send(()).expect("the receiver lives"));
        std::thread::scope(|scope| {
            // If listening fails, the thread hears of it: the sender ends here, before the thread is waited for.
            let (engine, began, ended) = (self.engine, &began, ended);
            scope.spawn(move || {
                for (n, file) in pictures.iter().enumerate() {
                    if wait.recv().is_err() {
                        return;
                    }
                    *began[n].lock().expect("no panics") = Some(Instant::now());
                    let params = request(format!("Look {n}: {PICTURE} what is it?"), Some(file), 4);
                    let params = RequestParams { user_data: n as u64 + 1, ..params };
                    engine.submit(vec![params]).unwrap_or_else(|error| fail(&error));
                }
            });
            self.listen(began, &ended)
        })?;
        Ok(self.outcome)
    }

    fn listen(&mut self, began: &[Mutex<Option<Instant>>], ended: &mpsc::Sender<()>) -> Result<()> {
        let (start, mut left) = (Instant::now(), began.len());
        (0..STREAMS).try_for_each(|_| self.stream())?;
        while !self.last.is_empty() || left > 0 {
            let mut got = Vec::new();
            self.engine.poll(Which::Any, 64, None, &mut |lease, event| {
                let ids = (event.request, lease, event.user_data);
                got.push((ids, event.tokens.len(), event.finish, event.message.clone()));
            })?;
            let now = Instant::now();
            self.engine.give_back(&mut got.iter().map(|((id, lease, _), ..)| (*id, *lease)));
            for ((id, _, number), tokens, finish, message) in got {
                if finish == FinishReason::Failed {
                    return Err(Error::internal(message));
                }
                let picture = (number as usize).checked_sub(1);
                match picture {
                    _ if tokens == 0 => {}
                    Some(n) => {
                        let first = began[n].lock().expect("no panics").take();
                        self.outcome.first.extend(first.map(|began| (now - began).as_secs_f64()));
                    }
                    None => self.hear(id, tokens, now, left > 0 || began.is_empty()),
                }
                if finish == FinishReason::None {
                    continue;
                }
                self.engine.release(id)?;
                if picture.is_some() {
                    left -= 1;
                    self.outcome.seconds = start.elapsed().as_secs_f64();
                    // After the last one nobody waits.
                    let _ = ended.send(());
                } else {
                    self.last.remove(&id);
                    (left > 0).then(|| self.stream()).transpose()?;
                }
            }
        }
        Ok(())
    }

    /// `counts`: after the last picture the streams are alone.
    fn hear(&mut self, id: RequestId, tokens: usize, now: Instant, counts: bool) {
        if let Some(last) = self.last.get_mut(&id) {
            let before = last.replace(now);
            let gap = before.filter(|_| counts).map(|before| (now - before).as_secs_f64() / tokens as f64);
            self.outcome.gaps.extend(gap);
        }
    }
}

/// Times to the first token: of a large picture, of a second turn that sends it again, and of another prompt with a picture
/// while the request lives that had it first.
fn turns(engine: &Engine, rounds: u64) -> Result<Value> {
    let [mut first, mut second, mut shared] = [const { Vec::new() }; 3];
    for n in 0..rounds {
        let [file, other] = [0, 1].map(|which| png([1024; 2], &mut SplitMix(1_000_000 + 2 * n + which)));
        let text = format!("{n} {PICTURE} What is it?");
        let (id, ms) = first_token(engine, &text, &file, 1)?;
        engine.release(id)?;
        first.push(ms);
        let (id, ms) = first_token(engine, &format!("{text} A picture. And its colour?"), &file, 1)?;
        engine.release(id)?;
        second.push(ms);
        let (lives, _) = first_token(engine, &format!("Again {text}"), &other, 900)?;
        let (id, ms) = first_token(engine, &format!("Another question: {text}"), &other, 1)?;
        shared.push(ms);
        [lives, id].into_iter().try_for_each(|id| engine.release(id))?;
    }
    let [first, second, shared] = [first, second, shared].map(median);
    println!(
        "first token, ms: of a picture {first:.0}, of a second turn {second:.0}, of another prompt beside one that has \
         the picture {shared:.0}"
    );
    Ok(json!({"first_ms": first, "second_turn_ms": second, "shared_ms": shared}))
}

/// A request, and the milliseconds to its first token.
fn first_token(engine: &Engine, text: &str, picture: &[u8], new: u32) -> Result<(RequestId, f64)> {
    let began = Instant::now();
    let id = engine.submit(vec![request(text.into(), Some(picture), new)])?[0];
    loop {
        let (mut got, mut tokens, mut ended) = (Vec::new(), 0, FinishReason::None);
        engine.poll(Which::Any, 64, None, &mut |lease, event| {
            got.push((event.request, lease));
            if event.request == id {
                (tokens, ended) = (event.tokens.len(), event.finish);
            }
        })?;
        engine.give_back(&mut got.iter().copied());
        match ended {
            _ if tokens > 0 => return Ok((id, began.elapsed().as_secs_f64() * 1e3)),
            FinishReason::None => {}
            other => return Err(Error::new(Status::Internal, format!("{other:?}"))),
        }
    }
}
