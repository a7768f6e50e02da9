//! Seeded worlds of requests with pictures: many or few of them, the same ones in several requests and in later turns
//! of a chat, beside everything that changes how an engine runs. Each request has the bits that it has alone, each
//! ends, and nothing is left.
//!
//! `BN_SIM_SEED=7 cargo test --test all engine_pictures_random::replay` runs a world again, and with
//! `BN_SIM_WORLDS=100` also the worlds after it. Requests and settings are those of the seed; when things happen,
//! threads decide.

use crate::common::load_file;
use crate::common::rng::Rng;
use crate::engine_disk::Temporary;
use crate::engine_everything::random_adapter;
use crate::engine_pictures::{Case, all, picture, png, talking};
use crate::engine_support::*;
use crate::folder_support::Copy;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::Loaded;
use bn_engine::sample::SamplingParams;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

const CONTEXT: usize = 128;
const REQUESTS: usize = 40;
const NAMES: [&str; 2] = ["a", "b"];

/// A model that sees.
struct Seeing {
    loaded: Loaded,
    /// The files of `loaded`.
    _folder: Copy,
}

fn models() -> Vec<Seeing> {
    let open = |case: Case| {
        let folder = talking(&case);
        Seeing { loaded: load_file(&folder.path(), 1).unwrap().loaded, _folder: folder }
    };
    // Gemma's pictures need steps that hold them; see `engine_mutual`.
    let small = |case: &Case| !case.model.contains("gemma");
    all().cases.into_iter().filter(small).map(open).collect()
}

/// How often things happened.
type Tally = BTreeMap<&'static str, u64>;

/// A request in its world, and what it is alone.
struct Asked {
    alone: Answer,
    got: Answer,
    /// It may end before its end.
    early: bool,
}

struct World<'a> {
    rng: Rng,
    model: &'a Seeing,
    engine: Engine,
    /// Each request runs here first, with nothing beside it.
    alone: Engine,
    adapters: [Vec<Adapted>; 2],
    pictures: Vec<Picture<'static>>,
    /// Prompts of earlier requests and their answers.
    turns: Vec<(Vec<u32>, Vec<Picture<'static>>)>,
    asked: HashMap<RequestId, Asked>,
    leases: Vec<(RequestId, u64)>,
    saved: Vec<Vec<u8>>,
    sessions: bool,
    tally: Tally,
    /// Its folder goes after the engine.
    _disk: Option<Temporary>,
}

/// Settings of a world, where a block of KV has `block` bytes.
fn draw<'a>(rng: &mut Rng, disk: Option<&'a Temporary>, block: u64) -> impl Fn(&mut EngineConfig) + use<'a> {
    let batch = 1 + rng.below(6) as u32;
    let rows = batch + *rng.pick(&[0, 3, 20, 60]);
    let blocks = 8 + rng.below(12);
    let (unread, target) = (*rng.pick(&[4 << 20, 4 << 20, 2000]), *rng.pick(&[0, 0, 1, 20]));
    let (always, threads) = (rng.one_in(2), 1 + rng.below(2) as u32);
    move |config| {
        (config.max_batch_size, config.max_batch_tokens, config.threads) = (batch, rows, threads);
        config.kv_cache_bytes = blocks * block;
        (config.max_unread_bytes, config.target_itl_ms) = (unread, target);
        (config.draft_always, config.queue_capacity) = (always, 16);
        (config.cache_path, config.snapshot_interval) = (disk.and_then(Temporary::text), 16);
    }
}

fn open(model: &Seeing, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig {
        model: Some(model.loaded.clone()),
        threads: 1,
        context_length: CONTEXT as u32,
        kv_block_size: 16,
        kv_type: KvType::F32,
        ..Default::default()
    };
    change(&mut config);
    Engine::create(config).unwrap()
}

fn adapters(engine: &Engine) -> Vec<Adapted> {
    let facts = engine.facts();
    let products = [("ffn_down", facts.hidden_size, facts.ffn_size)];
    let named = [("qwen3_5_text", "qwen35"), ("ministral3", "mistral3")];
    let own = facts.architecture.as_str();
    let gguf = named.iter().find(|(hf, _)| *hf == own).map_or(own, |(_, gguf)| gguf);
    [1, 2].map(|seed| random_adapter(engine, gguf, seed, &products)).into()
}

fn pictures(rng: &mut Rng) -> Vec<Picture<'static>> {
    let mut one = |n: u32| {
        let sides = [0; 2].map(|_| {
            let most = *rng.pick(&[24, 24, 64]);
            1 + rng.below(most) as u32
        });
        match picture(sides, n) {
            Picture::Pixels { width, height, rgb } if rng.one_in(2) => {
                Picture::Encoded(png(width, height, &rgb).into())
            }
            pixels => pixels,
        }
    };
    (0..6).map(&mut one).collect()
}

impl<'a> World<'a> {
    fn new(models: &'a [Seeing], seed: u64) -> Self {
        let mut rng = Rng(seed);
        let model = rng.pick(models);
        let alone = open(model, |config| config.max_batch_size = 1);
        let disk = rng.one_in(2).then(Temporary::new);
        let stats = alone.stats();
        let change = draw(&mut rng, disk.as_ref(), stats.kv_bytes / stats.kv_blocks_total);
        // Little room for requests.
        let room = rng.one_in(3).then(|| (80 << 10) + rng.below(300 << 10));
        let used = open(model, &change).stats().memory_used_bytes;
        let engine = open(model, |config| {
            change(config);
            config.memory_limit_bytes = room.map_or(0, |room| used + room);
        });
        drop(change);
        let adapters = [adapters(&engine), adapters(&alone)];
        Self {
            model,
            adapters,
            pictures: pictures(&mut rng),
            turns: Vec::new(),
            asked: HashMap::new(),
            leases: Vec::new(),
            saved: Vec::new(),
            sessions: rng.one_in(2),
            tally: Tally::new(),
            _disk: disk,
            rng,
            engine,
            alone,
        }
    }

    fn count(&mut self, what: &'static str, n: u64) {
        *self.tally.entry(what).or_default() += n;
    }

    /// The token that stands for a picture.
    fn placeholder(&self) -> u32 {
        self.model.loaded.sight.as_ref().unwrap().tokens.placeholder
    }

    fn letters(&mut self, most: u64) -> Vec<u32> {
        (0..1 + self.rng.below(most)).map(|_| 3 + self.rng.below(26) as u32).collect()
    }

    /// Ids and pictures of a prompt that fits: often a part of an earlier one, and something new.
    fn prompt(&mut self) -> (Vec<u32>, Vec<Picture<'static>>) {
        let mark = self.placeholder();
        loop {
            let (mut ids, mut pictures) = match self.turns.is_empty() || self.rng.one_in(3) {
                true => (Vec::new(), Vec::new()),
                false => self.rng.pick(&self.turns).clone(),
            };
            if self.rng.one_in(3) {
                ids.truncate(self.rng.below(ids.len() as u64 + 1) as usize);
                pictures.truncate(ids.iter().filter(|id| **id == mark).count());
            }
            for _ in 0..self.rng.below(3) {
                ids.extend(self.letters(8));
                if pictures.len() < 3 {
                    // Qwen's prompts have tokens around a picture.
                    ids.extend([58, mark, 59]);
                    pictures.push(self.rng.pick(&self.pictures).clone());
                }
            }
            ids.extend(self.letters(6));
            let own = |picture| self.alone.picture_positions(picture).unwrap();
            if ids.len() + pictures.iter().map(own).sum::<usize>() < CONTEXT - 20 {
                return (ids, pictures);
            }
        }
    }

    fn draw_request(&mut self) -> RequestParams<'static> {
        let (ids, pictures) = self.prompt();
        let rng = &mut self.rng;
        let mut request = RequestParams {
            prompt: Prompt::Tokens(ids.into()),
            pictures,
            cache: !rng.one_in(8),
            cache_salt: u64::from(rng.one_in(6)),
            priority: if rng.one_in(3) { rng.next() as u8 } else { 128 },
            ..Default::default()
        };
        match rng.below(12) {
            0 => {
                let pooling = *rng.pick(&[Pooling::Mean, Pooling::First, Pooling::Last]);
                request.embedding = Some(EmbeddingParams { pooling: Some(pooling), ..Default::default() });
                return request;
            }
            1 => {
                let options = ["a", "b", "cd"].map(Into::into).to_vec();
                let question = |text: &'static str| Question {
                    text: text.into(),
                    options: options.clone(),
                    ..Default::default()
                };
                request.questions = Some(["ab", "c", ""].map(question).into());
                return request;
            }
            2 => request.scores = Some(ScoreParams { from: 0, generates: false }),
            _ => (request.echo_prompt, request.ignore_eos) = (rng.one_in(8), !rng.one_in(4)),
        }
        request.stream = !rng.one_in(3);
        request.max_new_tokens = 1 + rng.below(30) as u32;
        request.speculation = *rng.pick(&[None, Some(Speculation::Off), Some(Speculation::Lookup)]);
        request.session =
            (self.sessions && request.cache && rng.one_in(5)).then(|| (*rng.pick(&NAMES)).into());
        request.sampling = SamplingParams {
            temperature: *rng.pick(&[0.0, 0.0, 0.8]),
            seed: rng.next(),
            logprobs: true,
            top_logprobs: rng.below(3) as u32,
            ..Default::default()
        };
        request
    }

    /// Submits a request, or several samples of it.
    fn submit(&mut self) -> usize {
        let request = self.draw_request();
        let adapter = self.rng.one_in(3).then(|| self.rng.below(2) as usize);
        let n = if self.rng.one_in(5) && request.generates() { 2 + self.rng.below(3) } else { 1 };
        let samples = (0..n).map(|n| {
            let mut sample = request.clone();
            sample.sampling.seed = sample.sampling.seed.wrapping_add(n);
            sample
        });
        let mut samples: Vec<_> = samples.collect();
        let alone: Vec<_> = samples.iter().map(|sample| self.ask_alone(sample, adapter)).collect();
        self.remember(&request, &alone[0]);
        let mut early = false;
        for sample in &mut samples {
            sample.adapter = adapter.map(|at| self.adapters[0][at].clone());
            if self.rng.one_in(12) {
                (sample.timeout_ms, early) = (1 + self.rng.below(15) as u32, true);
            }
        }
        match self.engine.submit(samples) {
            Ok(ids) => {
                self.count("requests", n);
                self.count("samples", n - 1);
                self.count("pictures", request.pictures.len() as u64);
                for (id, alone) in ids.iter().zip(alone) {
                    self.asked.insert(*id, Asked { alone, got: Answer::default(), early });
                }
                n as usize
            }
            Err(error) => {
                let known = [Status::QueueFull, Status::MemoryLimit, Status::TimedOut];
                assert!(known.contains(&error.status), "{error}");
                self.count("refused", 1);
                // With nothing beside it, it is refused for good.
                usize::from(self.asked.is_empty())
            }
        }
    }

    fn ask_alone(&mut self, request: &RequestParams<'static>, adapter: Option<usize>) -> Answer {
        let request = RequestParams {
            cache: false,
            session: None,
            speculation: Some(Speculation::Off),
            adapter: adapter.map(|at| self.adapters[1][at].clone()),
            ..request.clone()
        };
        let answer = ask(&self.alone, request);
        assert_eq!(answer.message, "");
        answer
    }

    fn remember(&mut self, request: &RequestParams<'static>, answer: &Answer) {
        let Prompt::Tokens(ids) = &request.prompt else { unreachable!() };
        let mark = self.placeholder();
        // The prompt that is echoed or scored is no answer.
        let said = if request.generates() && !request.echo_prompt { &answer.tokens[..] } else { &[] };
        let said = said.iter().map(|token| if *token == mark { 3 } else { *token });
        self.turns.push((ids.iter().copied().chain(said).collect(), request.pictures.clone()));
        if self.turns.len() > 8 {
            self.turns.swap_remove(self.rng.below(8) as usize);
        }
    }

    /// What a host may do at any time.
    fn act(&mut self) {
        let name = *self.rng.pick(&NAMES);
        match self.rng.below(40) {
            0 => self.engine.pause().unwrap(),
            1..8 => self.engine.resume().unwrap(),
            8..11 => {
                let mut ids: Vec<_> = self.asked.keys().copied().collect();
                ids.sort();
                if !ids.is_empty() {
                    let id = *self.rng.pick(&ids);
                    self.engine.cancel(Which::One(id)).unwrap();
                    self.asked.get_mut(&id).unwrap().early = true;
                }
            }
            11 => self.engine.clear_cache().unwrap(),
            12 => self.engine.set_threads(1).unwrap(),
            13 => self.engine.set_threads(0).unwrap(),
            14..16 if self.sessions => self.saved.extend(self.engine.save_session(name)),
            16..18 if !self.saved.is_empty() => {
                let saved: &Vec<u8> = self.rng.pick(&self.saved);
                let restored = self.engine.restore_session(name, saved);
                self.count("sessions restored", restored.is_ok().into());
            }
            18 => drop(self.engine.drop_session(name)),
            19..25 => std::thread::sleep(Duration::from_micros(self.rng.below(2000))),
            _ => {}
        }
    }

    fn poll(&mut self, wait: Duration) {
        let (asked, leases, mut ended) = (&mut self.asked, &mut self.leases, Vec::new());
        let got = self.engine.poll(Which::Any, 8, Some(wait), &mut |lease, event| {
            leases.push((event.request, lease));
            asked.get_mut(&event.request).unwrap().got.add(event);
            if event.finish != FinishReason::None {
                ended.push(event.request);
            }
        });
        // Without a free byte for an event, the host gives some back.
        let got = got.unwrap_or_else(|error| {
            assert!(error.status == Status::MemoryLimit && !leases.is_empty(), "{error}");
            1
        });
        assert!(got > 0 || wait < Duration::from_secs(60), "nothing for a minute: {:?}", self.engine.stats());
        if got > 0 || self.rng.one_in(3) {
            self.engine.give_back(&mut self.leases.drain(..));
        }
        for id in ended {
            let asked = self.asked.remove(&id).unwrap();
            self.engine.release(id).unwrap();
            self.check(asked);
        }
    }

    fn check(&mut self, Asked { alone, got, early }: Asked) {
        let cut = [FinishReason::Cancelled as i32, FinishReason::TimedOut as i32].contains(&got.finish);
        let (tokens, bits) = (got.tokens.len(), got.logprob_bits.len());
        if cut {
            assert!(early, "{}", got.message);
            self.count("ended early", 1);
            self.count("ended early after tokens", (tokens > 0).into());
            assert_eq!(got.tokens, alone.tokens[..tokens]);
            assert_eq!(got.logprob_bits, alone.logprob_bits[..bits]);
            return;
        }
        assert_eq!((got.finish, &got.message), (alone.finish, &alone.message));
        assert_eq!((&got.tokens, &got.logprob_bits), (&alone.tokens, &alone.logprob_bits));
        assert_eq!((&got.text, got.stop, &got.decisions), (&alone.text, alone.stop, &alone.decisions));
        let bits = |answer: &Answer| answer.vector.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&alone));
        assert_eq!(got.usage.prompt_tokens, alone.usage.prompt_tokens);
        self.count("ended", 1);
    }

    fn run(mut self) -> Tally {
        let before = self.engine.stats().memory_used_bytes;
        let mut asked = 0;
        while asked < REQUESTS {
            if self.rng.one_in(2) {
                asked += self.submit();
            }
            self.act();
            self.poll(Duration::from_micros(100));
        }
        self.engine.resume().unwrap();
        while !self.asked.is_empty() {
            self.poll(Duration::from_secs(60));
        }
        NAMES.iter().for_each(|name| drop(self.engine.drop_session(name)));
        let stats = self.engine.stats();
        assert_eq!((stats.kv_blocks_used, stats.unreleased, stats.paused), (0, 0, 0), "{stats:?}");
        assert_eq!(stats.memory_used_bytes, before, "{stats:?}");
        for (what, n) in [
            ("preemptions", stats.preemptions),
            ("pauses", stats.pauses),
            ("positions from the cache", stats.cached_tokens),
            ("positions from disk", stats.disk_tokens),
            ("drafted tokens", stats.drafted_tokens),
            ("accepted drafts", stats.accepted_tokens),
            ("steps of several", u64::from(stats.batched_requests > stats.steps)),
        ] {
            self.count(what, n);
        }
        self.tally
    }
}

fn worlds(first: u64, count: u64) -> Tally {
    let (models, mut all) = (models(), Tally::new());
    for seed in first..first + count {
        let run = std::panic::AssertUnwindSafe(|| World::new(&models, seed).run());
        let tally = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            eprintln!("replay with BN_SIM_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        tally.into_iter().for_each(|(what, n)| *all.entry(what).or_default() += n);
    }
    println!("{all:#?}");
    all
}

#[test]
fn answers_are_the_same_in_worlds_of_pictures() {
    let tally = worlds(1, 12);
    let wanted = [
        "samples",
        "pictures",
        "ended",
        "ended early after tokens",
        "preemptions",
        "pauses",
        "positions from the cache",
        "positions from disk",
        "accepted drafts",
        "steps of several",
    ];
    let missing: Vec<_> = wanted.iter().filter(|what| tally.get(*what).is_none_or(|n| *n == 0)).collect();
    assert!(missing.is_empty(), "never happened: {missing:?} of {tally:?}");
}

#[test]
fn replay() {
    let number = |name, default| std::env::var(name).map_or(default, |text: String| text.parse().unwrap());
    worlds(number("BN_SIM_SEED", 1000), number("BN_SIM_WORLDS", 1));
}
