//! Answers beside pictures: the time between two tokens of some streams, alone and while other requests with pictures
//! come and go, and the time to the first token of a second turn about a picture.
//!
//!   cargo dev pictures -- MODEL.gguf MMPROJ.gguf [--quick] [--threads N] [--json FILE]
//!
//! `synth` writes both files: a text model and a tower (its head says how). Pictures are PNGs of 160 to 320 pixels a
//! side, each another one; 500 of them, or 60 with --quick.

use bn_dev::{Options, SplitMix, machine, median};
use bn_engine::base::{Error, Result, Status};
use bn_engine::engine::api::*;
use bn_engine::engine::{Engine, open_model};
use bn_engine::model::{LoadOptions, Source};
use serde_json::{Value, json};
use std::collections::HashMap;
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
        eprintln!("cargo dev pictures -- MODEL.gguf MMPROJ.gguf [--quick] [--threads N] [--json FILE]");
        std::process::exit(2)
    };
    match measure(&options, model, tower) {
        Ok(value) => options.write(&value),
        Err(error) => {
            eprintln!("pictures: {error}");
            std::process::exit(1);
        }
    }
}

fn measure(options: &Options, model: &str, tower: &str) -> Result<Value> {
    let loaded = open_model(ModelConfig {
        source: Source::File(model.into()),
        options: LoadOptions { pictures: Some(tower.into()), ..LoadOptions::default() },
        threads: options.threads as u32,
        ..ModelConfig::default()
    })?;
    println!("{}, {} threads", machine(), options.threads);
    let pictures = if options.quick { 60 } else { 500 };
    let mut rows = Vec::new();
    println!("target    tokens apart, alone      beside {pictures} pictures   pictures/s  their first token");
    println!("    ms    p50 ms  p99 ms     p50 ms  p99 ms  most ms                   p50 s");
    for target in TARGETS {
        let engine = Engine::create(EngineConfig {
            model: Some(loaded.clone()),
            threads: options.threads as u32,
            max_batch_size: (STREAMS + BESIDE) as u32,
            context_length: 1024,
            target_itl_ms: target,
            picture_tokens: 1024,
            ..EngineConfig::default()
        })?;
        let alone = World::new(&engine, 0).run()?;
        let beside = World::new(&engine, pictures).run()?;
        let rate = pictures as f64 / beside.seconds;
        let ([a50, a99, _], [b50, b99, most]) = (spread(alone.gaps), spread(beside.gaps));
        let first = median(beside.first);
        println!(
            "{target:>6} {a50:>9.1} {a99:>7.1} {b50:>10.1} {b99:>7.1} {most:>8.1} {rate:>12.2} {first:>12.2}"
        );
        rows.push(json!({"target_itl_ms": target, "alone_ms": [a50, a99], "beside_ms": [b50, b99, most],
            "pictures_per_second": rate, "first_token_seconds": first}));
        if target == 0 {
            rows.push(turns(&engine)?);
        }
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

/// A PNG that no other number has: stored pixels, so that it takes no encoder.
fn png(n: u64) -> Vec<u8> {
    let mut rng = SplitMix(n);
    let [width, height] = [0; 2].map(|_| 160 + (rng.draw() % 11) as usize * 16);
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

fn request(text: String, pictures: &[u64], new: u32) -> RequestParams<'static> {
    RequestParams {
        prompt: Prompt::Text(text.into()),
        parse_special: true,
        pictures: pictures.iter().map(|n| Picture::Encoded(png(*n).into())).collect(),
        max_new_tokens: new,
        ignore_eos: true,
        ..RequestParams::default()
    }
}

struct World<'a> {
    engine: &'a Engine,
    /// Requests with pictures that are still to come.
    left: u64,
    beside: usize,
    /// When each stream had its last token; those with pictures have none.
    last: HashMap<RequestId, Option<Instant>>,
    began: HashMap<RequestId, Instant>,
    outcome: Outcome,
}

#[derive(Default)]
struct Outcome {
    gaps: Vec<f64>,
    first: Vec<f64>,
    seconds: f64,
}

impl<'a> World<'a> {
    fn new(engine: &'a Engine, left: u64) -> Self {
        let (last, began) = (HashMap::new(), HashMap::new());
        Self { engine, left, beside: 0, last, began, outcome: Outcome::default() }
    }

    fn stream(&mut self) -> Result<()> {
        let text = format!("Stream {}: ", self.last.len());
        let id = self.engine.submit(vec![request(text, &[], 200)])?[0];
        self.last.insert(id, None);
        Ok(())
    }

    fn picture(&mut self) -> Result<()> {
        let text = format!("Look {}: {PICTURE} what is it?", self.left);
        let began = Instant::now();
        let id = self.engine.submit(vec![request(text, &[1000 + self.left], 4)])?[0];
        self.began.insert(id, began);
        (self.left, self.beside) = (self.left - 1, self.beside + 1);
        Ok(())
    }

    /// Streams go on while there are pictures; without any, each ends once.
    fn run(mut self) -> Result<Outcome> {
        let (start, pictures) = (Instant::now(), self.left > 0);
        (0..STREAMS).try_for_each(|_| self.stream())?;
        let mut running = STREAMS;
        while running > 0 {
            while self.left > 0 && self.beside < BESIDE {
                self.picture()?;
            }
            let mut got = Vec::new();
            self.engine.poll(Which::Any, 64, None, &mut |lease, event| {
                got.push((event.request, lease, event.tokens.len(), event.finish, event.message.clone()));
            })?;
            let now = Instant::now();
            self.engine.give_back(&mut got.iter().map(|(id, lease, ..)| (*id, *lease)));
            for (id, _, tokens, finish, message) in got {
                if finish == FinishReason::Failed {
                    return Err(Error::internal(message));
                }
                self.hear(id, tokens, now);
                if finish != FinishReason::None {
                    self.engine.release(id)?;
                    if self.last.remove(&id).is_none() {
                        self.beside -= 1;
                    } else if pictures && self.left + self.beside as u64 > 0 {
                        self.stream()?;
                    } else {
                        running -= 1;
                    }
                }
            }
            if pictures && self.left == 0 && self.beside == 0 && self.outcome.seconds == 0.0 {
                self.outcome.seconds = start.elapsed().as_secs_f64();
            }
        }
        Ok(self.outcome)
    }

    fn hear(&mut self, id: RequestId, tokens: usize, now: Instant) {
        if tokens == 0 {
            return;
        }
        if let Some(began) = self.began.remove(&id) {
            self.outcome.first.push((now - began).as_secs_f64());
        }
        // After the last picture the streams are alone.
        let counts = self.outcome.seconds == 0.0;
        if let Some(last) = self.last.get_mut(&id) {
            let before = last.replace(now);
            let gap = before.filter(|_| counts).map(|before| (now - before).as_secs_f64() / tokens as f64);
            self.outcome.gaps.extend(gap);
        }
    }
}

/// Times to the first token: of a picture, of a second turn about it, and of another prompt with it while a request
/// that has it lives.
fn turns(engine: &Engine) -> Result<Value> {
    let first_token = |text: &str, pictures: &[u64]| {
        let began = Instant::now();
        let request = RequestParams { stream: true, ..request(text.into(), pictures, 1) };
        let id = engine.submit(vec![request])?[0];
        let mut ended = FinishReason::None;
        while ended == FinishReason::None {
            engine.poll(Which::Any, 1, None, &mut |_, event| {
                if event.request == id {
                    ended = event.finish;
                }
            })?;
        }
        engine.release(id)?;
        match ended {
            FinishReason::Length => Ok(began.elapsed().as_secs_f64() * 1e3),
            other => Err(Error::new(Status::Internal, format!("{other:?}"))),
        }
    };
    let [mut first, mut second, mut shared] = [const { Vec::new() }; 3];
    for n in 0..9 {
        let text = format!("{n} {PICTURE} What is it?");
        first.push(first_token(&text, &[n])?);
        second.push(first_token(&format!("{text} A picture. And its colour?"), &[n])?);
        let holds = engine.submit(vec![request(text.clone(), &[n], 900 - 200)])?[0];
        shared.push(first_token(&format!("Another question: {text}"), &[n])?);
        engine.release(holds)?;
    }
    let [first, second, shared] = [first, second, shared].map(median);
    println!(
        "first token, ms: of a picture {first:.0}, of a second turn {second:.0}, of another prompt beside one that has \
         the picture {shared:.0}"
    );
    Ok(json!({"first_ms": first, "second_turn_ms": second, "shared_ms": shared}))
}
