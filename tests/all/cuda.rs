//! Passes and engines on a device compared with the CPU: bit by bit, or nearly if tensor cores compute. The
//! device is a real one, or the driver that emulates one (cuda/README.md).

use crate::common::{Golden, Running, Session, argmax, bits, json, load_file, relative_error, root};
use crate::engine_support::{Answer, ask, collect, demo, text, with_logprobs};
use crate::folder_support::large_residuals;
use bn_engine::base::{Result, Status};
use bn_engine::engine::api::*;
use bn_engine::engine::{Engine, open_model};
use bn_engine::kernels::attention::KvType;
use bn_engine::kernels::{DType, Matrix, Pool};
use bn_engine::model::{AdapterFile, Outputs};
use bn_engine::ops::pass::Program;
use bn_engine::ops::{CudaOps, RaggedBatch, Weight};
use bn_engine::sample::SamplingParams;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::Arc;

#[path = "../../src/device/tests/emulated.rs"]
mod emulated;
mod emulation;
mod experts;
mod hybrids;
mod logprobs;
mod several;
mod states;
mod tiers;
use emulated::Emulated;

impl Emulated {
    /// Opens any driver.
    fn new() -> Self {
        let driver = Self::open(c"libcuda.so.1");
        if driver.is_emulated() {
            // Resets state that an earlier test may have left when it failed.
            driver.reset();
            driver.memory(-1, 1 << 30);
        }
        driver
    }

    /// Opens the emulated driver, for tests that control it.
    fn required() -> Self {
        let driver = Self::new();
        assert!(driver.is_emulated(), "this needs the emulated driver, and there is another one");
        driver
    }

    /// Returns true for the emulated driver.
    fn is_emulated(&self) -> bool {
        !self.find(c"bn_emulated_reset").is_null()
    }

    /// Numbers of launches by the host, and in graphs.
    fn launches(&self) -> [u64; 2] {
        let counts = self.counts();
        [counts.launches, counts.graph_launches]
    }
}

fn on_device(cpu: &Running) -> Running {
    let ops = CudaOps::new(0, Pool::new(2).unwrap()).unwrap();
    Running { ops: Arc::new(ops), ..cpu.clone() }
}

/// Copies the weights to the device.
fn hold(device: &Running) -> Result<()> {
    let programs = device.model.programs();
    programs.iter().try_for_each(|program| device.ops.supports(program))?;
    programs.into_iter().flat_map(Program::weights).try_for_each(|weight| device.ops.hold(weight))
}

/// Logits and hidden states of all sequences, in steps of ragged batches.
fn run(model: &Running, sequences: &[Vec<u32>], kind: KvType, chunk: usize) -> [Vec<Vec<u32>>; 2] {
    let mut session = Session::with_kv(model, sequences, kind, 16, 7);
    session.interleave(chunk);
    [bits(&session.logits), bits(&session.hidden)]
}

/// The number of different values and their largest difference; None if all bits are the same.
fn difference(got: &[Vec<Vec<u32>>; 2], want: &[Vec<Vec<u32>>; 2]) -> Option<String> {
    let all = |bits: &[Vec<Vec<u32>>; 2]| bits.iter().flatten().flatten().copied().collect::<Vec<u32>>();
    let (got, want) = (all(got), all(want));
    let differ: Vec<_> = got.iter().zip(&want).filter(|(got, want)| got != want).collect();
    let apart = |(got, want): &(&u32, &u32)| (f32::from_bits(**got) - f32::from_bits(**want)).abs();
    let most = differ.iter().map(apart).max_by(f32::total_cmp)?;
    Some(format!("{} of {} values differ, by {most:e} at most", differ.len(), want.len()))
}

/// Whether a model's layers have products with F16 or BF16 weights, which use a different arithmetic on a
/// device, and whether its head does.
fn halves(model: &Running) -> [bool; 2] {
    let mut products = Vec::new();
    for weight in model.model.programs().into_iter().flat_map(Program::weights) {
        if let Weight::Product(_) | Weight::Experts(_) = weight {
            let mut half = false;
            weight.matrices(&mut |matrix: &Matrix| half |= matches!(matrix.dtype, DType::F16 | DType::BF16));
            products.push(half);
        }
    }
    // The head is the last product.
    let head = products.pop().unwrap_or(false);
    [products.contains(&true), head]
}

/// Maximum of `‖a - b‖ / ‖b‖` for a model's logits on a device and on the CPU. With weights of BF16 an
/// activation keeps 16 bits. Later roundings to 8 or 11 bits, there or after attention with KV in F16, may
/// then differ. A head alone differs less.
fn tolerance(layers: bool, kind: KvType) -> f64 {
    match kind {
        KvType::F16 => 1e-2,
        _ if !layers => 1e-5,
        KvType::F32 => 6e-5,
        KvType::Int8 | KvType::Int4 => 8e-3,
    }
}

/// The same limit for the nearest sequence, if only attention is on tensor cores.
const NEAREST: f64 = 2e-5;

/// Reports faults in a device's answers if tensor cores compute: greedy tokens must be the same, and the bits
/// those of each sequence alone.
fn compare_nearly(cpu: &Running, device: &Running, sequences: &[Vec<u32>], kind: KvType) -> Option<String> {
    let floats = |bits: &Vec<u32>| bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
    let vocab = cpu.model.facts().vocab_size;
    let tokens = |logits: &[f32]| logits.chunks_exact(vocab).map(argmax).collect::<Vec<_>>();
    let [layers, head] = halves(cpu);
    let ([got, got_hidden], [want, want_hidden]) =
        (run(device, sequences, kind, 11), run(cpu, sequences, kind, 11));
    let mut nearest = f64::INFINITY;
    for n in 0..sequences.len() {
        let [one, one_hidden] = run(device, &sequences[n..=n], kind, 200);
        if (&one[0], &one_hidden[0]) != (&got[n], &got_hidden[n]) {
            return Some(format!("sequence {n} alone has other bits"));
        }
        let (got, want) = (floats(&got[n]), floats(&want[n]));
        let error = relative_error(&got, &want);
        nearest = nearest.min(error);
        if error > tolerance(layers, kind) || tokens(&got) != tokens(&want) {
            return Some(format!("sequence {n} is {error:e} of its logits apart, or has other tokens"));
        }
    }
    if !layers && !head && nearest > NEAREST {
        return Some(format!("the nearest sequence is {nearest:e} apart"));
    }
    (!layers && kind != KvType::F16 && got_hidden != want_hidden)
        .then(|| "layers without such weights have other bits".to_owned())
}

/// Every model of the goldens: all families, and all types of weights that a device supports. Recurrent layers, latent
/// attention and others are refused.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn models_have_the_same_answers_on_a_device() {
    let _driver = Emulated::new();
    let (mut seen, mut refused, mut wrong) = (BTreeSet::new(), Vec::new(), Vec::new());
    for golden in Golden::models(|_| true) {
        if seen.contains(&golden.model) {
            continue;
        }
        let cpu = load_file(&golden.model, 2).unwrap();
        let device = on_device(&cpu);
        // Chosen by the name, so that no model's type changes when models are added.
        let kind = KvType::ALL[golden.model.bytes().map(usize::from).sum::<usize>() % 3];
        match hold(&device) {
            Ok(()) => {
                let sequences = &golden.sequences;
                let how = match halves(&cpu) {
                    [false, false] if kind != KvType::F16 => {
                        difference(&run(&device, sequences, kind, 11), &run(&cpu, sequences, kind, 11))
                    }
                    _ => compare_nearly(&cpu, &device, sequences, kind),
                };
                // Collect all differences, not only the first: if a device is remote, one run must show all.
                wrong.extend(how.map(|how| format!("{} {kind:?}: {how}", golden.model)));
                seen.insert(golden.model);
            }
            Err(error) => {
                assert_eq!(error.status, Status::Unsupported, "{}: {error}", golden.model);
                refused.push((golden.model, error.message));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen.len() > 50, "{seen:#?}");
    let parts = [
        "glm4-moe-lite",
        // Rows of 40 columns in F32.
        "falcon-h1-plain.gguf",
        "ministral3",
        "hunyuan",
        "gemma2",
        "gemma4",
        "starcoder2",
        "gpt-oss",
        "deepseek",
        "type-iq2",
        "type-iq3",
    ];
    let of_cpu = |model: &String| parts.iter().any(|part| model.contains(part));
    let says = ["run on the CPU only", "no device kernel for"];
    let on_cpu =
        |(model, why): &(String, String)| of_cpu(model) && says.iter().any(|words| why.contains(words));
    let first = "layer 0: latent attention run on the CPU only";
    assert!(refused.iter().any(|(_, why)| why == first), "{refused:#?}");
    assert!(refused.iter().all(on_cpu) && !seen.iter().any(of_cpu), "{refused:#?}");
}

#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn residuals_that_f16_could_not_hold_have_the_same_answers() {
    let _driver = Emulated::new();
    for (golden, copy) in large_residuals() {
        let cpu = copy.load().unwrap();
        let device = on_device(&cpu);
        for kind in [KvType::F32, KvType::F16] {
            let wrong = compare_nearly(&cpu, &device, &golden.sequences, kind);
            assert!(wrong.is_none(), "{}, {kind:?}: {wrong:?}", golden.case);
        }
    }
}

/// A prompt at once, in pieces and token by token: all kernels of products with F16 and BF16 weights, and of experts.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn pieces_of_a_prompt_have_the_bits_of_the_whole() {
    let _driver = Emulated::new();
    let mixtures = ["qwen3moe", "granitemoeshared", "int4-moe", "experts-mxfp4.gguf", "experts-iq4_xs.gguf"];
    for name in ["llama-bf16", "llama-f16"].into_iter().chain(mixtures) {
        let device = on_device(&load_file(&format!("tests/golden/models/{name}"), 1).unwrap());
        let sequences = [(0..120).map(|i| (11 * i + i / 7) % 31).collect()];
        let whole = run(&device, &sequences, KvType::F16, 120);
        for piece in [1, 5, 30, 64, 70] {
            assert!(run(&device, &sequences, KvType::F16, piece) == whole, "{name}: {piece} at a time");
        }
    }
}

#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn inputs_besides_tokens_are_refused() {
    let _driver = Emulated::new();
    let device = on_device(&load_file("tests/golden/llama-tiny-f32.gguf", 1).unwrap());
    let (mut memory, width) = (device.memory(KvType::F32, 1, 16, 1), device.model.facts().hidden_size);
    let mut run = |change: &dyn Fn(&mut RaggedBatch)| {
        let mut batch = RaggedBatch { logits_rows: vec![3], ..RaggedBatch::default() };
        batch.push_seq(&[0], 0, 4).unwrap();
        batch.tokens.extend([1; 4]);
        change(&mut batch);
        device.forward(&batch, &mut *memory, &mut Outputs::default())
    };
    run(&|_| ()).unwrap();
    type Change<'a> = &'a dyn Fn(&mut RaggedBatch);
    let changes: [(Change, &str); 3] = [
        (&|b| (b.vector_rows, b.vectors) = (vec![0], vec![0.5; width]), "given vectors"),
        (&|b| b.rotations = vec![[0; 3]; 4], "rotations"),
        (&|b| b.mutual.push(0..2), "rows that see each other"),
    ];
    for (change, words) in changes {
        let error = run(change).expect_err(words);
        assert_eq!(error.status, Status::Unsupported, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    run(&|_| ()).unwrap();
}

/// Two sequences with an adapter at different scales beside others without one.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn adapters_have_the_same_answers_on_a_device() {
    let _driver = Emulated::new();
    let mut compared = 0;
    for case in json(&root().join("tests/golden/adapters/index.json")).as_array().unwrap() {
        let path = |field: &str| case[field][0].as_str().unwrap().to_owned();
        let cpu = load_file(&path("models"), 2).unwrap();
        let device = on_device(&cpu);
        let file = AdapterFile::open(&root().join(path("adapters")).to_string_lossy()).unwrap();
        let lora = Arc::new(cpu.model.adapter(&file).unwrap().lora);
        // Hybrids and other models with layers that devices do not support.
        if let Err(refused) = hold(&device) {
            let words = ["on the CPU only", "there is no device kernel"];
            assert!(words.iter().any(|words| refused.message.contains(words)), "{refused}");
            continue;
        }
        compared += 1;
        device.ops.hold(Weight::Adapter(&lora)).unwrap();
        let sequences: Vec<Vec<u32>> =
            (0..4).map(|s| (0..20).map(|i| (7 * i + 3 * s) % 60).collect()).collect();
        let run = |model: &Running, own: &[usize]| {
            let sequences: Vec<_> = own.iter().map(|n| sequences[*n].clone()).collect();
            let mut session = Session::new(model, &sequences, 16, 3);
            for (adapter, n) in session.adapters.iter_mut().zip(own) {
                *adapter = [(0, 1.0), (2, -0.5)]
                    .iter()
                    .find(|(of, _)| of == n)
                    .map(|(_, scale)| (lora.clone(), *scale));
            }
            session.interleave(9);
            session.logits
        };
        let (got, want) = (run(&device, &[0, 1, 2, 3]), run(&cpu, &[0, 1, 2, 3]));
        for n in 0..sequences.len() {
            let error = relative_error(&got[n], &want[n]);
            assert!(
                error < tolerance(true, KvType::F32),
                "{}: sequence {n} is {error:e} apart",
                path("adapters")
            );
            assert!(
                bits(&run(&device, &[n])) == bits(&got[n..=n]),
                "{}: sequence {n} alone",
                path("adapters")
            );
        }
    }
    assert!(compared > 1, "{compared} models with adapters");
}

fn engine(device: &str, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    demo(|config| {
        (config.device, config.threads, config.max_batch_size) = (device.into(), 2, 8);
        // An emulated device is slow in its first pass, which is the largest.
        config.max_batch_tokens = 24;
        change(config);
    })
}

const PROMPTS: [&str; 6] =
    ["12+7=", "The lazy dog", "1, 2, 3,", "a", "Say it again: again, again,", "99-98="];

/// Greedy and drawn, of several lengths, together.
fn answers(engine: &Engine) -> Vec<Answer> {
    let request = |(n, prompt): (usize, &&'static str)| {
        let mut request = with_logprobs(text(prompt, 3 + n as u32));
        (request.sampling.temperature, request.sampling.seed) =
            (if n % 2 == 0 { 0.0 } else { 0.9 }, n as u64);
        request
    };
    let ids = engine.submit(PROMPTS.iter().enumerate().map(request).collect()).unwrap();
    let mut answers = collect(engine, ids.len());
    ids.iter().map(|id| answers.remove(id).unwrap()).collect()
}

fn same(got: &Answer, want: &Answer) {
    assert_eq!((&got.text, &got.tokens, got.finish), (&want.text, &want.tokens, want.finish));
    assert_eq!(got.logprob_bits, want.logprob_bits, "{}", want.text);
}

/// On a device and on the CPU, with weights or KV in F16 or BF16.
fn near(got: &Answer, want: &Answer) {
    assert_eq!((&got.text, &got.tokens, got.finish), (&want.text, &want.tokens, want.finish));
    assert_eq!(got.logprob_bits.len(), want.logprob_bits.len());
    for ((token, got), (wanted, want)) in got.logprob_bits.iter().zip(&want.logprob_bits) {
        let apart = (f32::from_bits(*got) - f32::from_bits(*want)).abs();
        assert!(token == wanted && apart < 1e-3, "token {token} for {wanted}, {apart:e} apart");
    }
}

#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn engines_give_the_same_answers_on_a_device() {
    let driver = Emulated::new();
    let live = || if driver.is_emulated() { driver.live() } else { 0 };
    let device = engine("cuda:0", |_| ());
    let (made, first) = (live(), answers(&device));
    first.iter().zip(&answers(&engine("cpu", |_| ()))).for_each(|(got, want)| near(got, want));
    answers(&device).iter().zip(&first).for_each(|(got, want)| same(got, want));
    assert!(device.stats().cached_tokens > 0, "prefixes are found on the device");
    // A second engine shares the weights. On it, an answer alone has the same bits as in a batch.
    let before = live();
    let second = engine("cuda:0", |config| config.context_length = 64);
    let once = !driver.is_emulated() || live() - before + 20 <= made;
    assert!(once, "weights are there once: {made}, {before}, {}", live());
    same(&ask(&second, with_logprobs(text(PROMPTS[0], 3))), &first[0]);
    drop((device, second));
    assert_eq!(live(), 0, "all is given back");
    let [device, cpu] = ["cuda:0", "cpu"].map(|name| engine(name, |config| config.kv_type = KvType::F32));
    answers(&device).iter().zip(&answers(&cpu)).for_each(|(got, want)| near(got, want));
}

/// With sampling that a device does itself, beside sampling that only the host does.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn tokens_are_drawn_on_a_device() {
    let driver = Emulated::new();
    let requests = || -> Vec<RequestParams<'static>> {
        let filters = [(0.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (1.3, 20, 1.0, 0.0), (1.0, 0, 0.8, 0.0)];
        let more = [(2.0, 0, 1.0, 0.1), (1.5, 40, 0.95, 0.05), (0.9, 3, 1.0, 0.0)];
        let request = |(n, (temperature, top_k, top_p, min_p)): (usize, (f32, u32, f32, f32))| {
            let mut request = text(PROMPTS[n % PROMPTS.len()], 4 + 4 * n as u32);
            let own =
                SamplingParams { temperature, top_k, top_p, min_p, seed: 77 + n as u64, ..request.sampling };
            // The host draws one in three of these.
            let typical_p = if n % 3 == 2 { 0.95 } else { 1.0 };
            request.sampling = SamplingParams { typical_p, ..own };
            if n % 2 == 1 {
                let bias = [(97, -2.0), (32, 1.5), (101, f32::NEG_INFINITY)];
                request.sampling.logit_bias = bias[..n.min(3)].to_vec();
                (request.sampling.repetition_penalty, request.sampling.frequency_penalty) = (1.2, 0.3);
                request.sampling.presence_penalty = 0.5 - 0.2 * n as f32;
                request.sampling.min_new_tokens = 3;
            }
            request.ignore_eos = true;
            request
        };
        filters.into_iter().chain(more).enumerate().map(request).collect()
    };
    let all = |engine: &Engine| {
        let ids = engine.submit(requests()).unwrap();
        let answers = collect(engine, ids.len());
        ids.iter().map(|id| answers[id].tokens.clone()).collect::<Vec<_>>()
    };
    let want = all(&engine("cpu", |_| ()));
    let launches = || if driver.is_emulated() { Some(driver.launches()[1]) } else { None };
    let (before, device) = (launches(), engine("cuda:0", |_| ()));
    assert_eq!(all(&device), want);
    assert!(before.is_none() || launches() > before.map(|n| n + 5), "steps that repeat are graphs");
    // With drafts, several rows of a sequence are drawn from.
    let drafts = |config: &mut EngineConfig| {
        (config.speculation, config.draft_always) = (Some(Speculation::Lookup), true);
    };
    assert_eq!(all(&engine("cuda:0", drafts)), want);
}

/// Lists of penalties grow with the output, in memory allocated earlier, while steps are graphs.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn penalties_outgrow_their_memory_in_the_midst_of_graphs() {
    let _driver = Emulated::new();
    let all = |name: &str| {
        let engine = engine(name, |config| config.kv_type = KvType::F32);
        let request = |n: u32| {
            let prompt: Vec<u32> = (0..30).map(|i| (1 + n * 31 + i * 17) % 250).collect();
            let mut request = RequestParams { prompt: Prompt::Tokens(prompt.into()), ..text("", 40) };
            (request.sampling.temperature, request.sampling.seed) = (1.5, n.into());
            (request.sampling.repetition_penalty, request.ignore_eos) = (1.1, true);
            request
        };
        let ids = engine.submit((0..8).map(request).collect()).unwrap();
        let answers = collect(&engine, ids.len());
        ids.iter().map(|id| answers[id].tokens.clone()).collect::<Vec<_>>()
    };
    assert_eq!(all("cuda:0"), all("cpu"));
}

/// Thirteen requests that end one by one.
fn fewer_and_fewer(engine: &Engine) -> Vec<Answer> {
    let request = |n: usize| {
        let mut request = with_logprobs(text(PROMPTS[n % PROMPTS.len()], 24 + n as u32));
        (request.sampling.temperature, request.sampling.seed) = (0.3 * (n % 3) as f32, n as u64);
        request.ignore_eos = true;
        request
    };
    let ids = engine.submit((0..13).map(request).collect()).unwrap();
    let mut answers = collect(engine, ids.len());
    ids.iter().map(|id| answers.remove(id).unwrap()).collect()
}

/// Steps of 9 to 13 rows are a graph of 16 (`ops::cuda::graphs::bucket`), whose other rows have no effect.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn decode_steps_are_padded_and_give_the_same_answers() {
    let driver = Emulated::new();
    let f32_kv = |config: &mut EngineConfig| (config.kv_type, config.max_batch_size) = (KvType::F32, 16);
    let (device, cpu) = (engine("cuda:0", f32_kv), engine("cpu", f32_kv));
    let graphs = || if driver.is_emulated() { driver.launches()[1] } else { 0 };
    let before = graphs();
    fewer_and_fewer(&device).iter().zip(&fewer_and_fewer(&cpu)).for_each(|(got, want)| near(got, want));
    assert!(!driver.is_emulated() || graphs() > before + 4, "{before}, {}", graphs());
    // If the largest batch is not such a size, the graph is as large as the batch.
    let twelve = |config: &mut EngineConfig| (config.kv_type, config.max_batch_size) = (KvType::F32, 11);
    fewer_and_fewer(&engine("cuda:0", twelve)).iter().zip(&fewer_and_fewer(&cpu)).for_each(|(got, want)| {
        near(got, want);
    });
}
