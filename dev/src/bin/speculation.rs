//! Measures the gain of speculation: tokens per second with drafts relative to those without, and the share of accepted
//! drafts.
//!
//! `cargo dev speculation -- [--quick] [--threads N] [--isa NAME] [--only WORD]... [--json FILE] [MODEL.gguf
//! [DRAFT.gguf | mtp]]`
//!
//! Loads: `loop`, the repetition that the model has fallen into at temperature 0; `free`, a temperature at which almost
//! no draft is accepted; `json` and `quote`: outputs match a JSON schema, as they come and as a hook makes the model
//! quote one from its prompt; without a model also `copy`: a hook makes the demo model quote a story from its prompt.
//! Drafts are looked up. With a draft model, whose head is rounded to 4 bits, they come from it; the loads are then
//! `draft`, the beginnings of eight outputs at temperature 0, and `free`. With `mtp` they come from the model's own
//! block, which the engine without drafts does not load. A block of random weights predicts nothing, so a bias leaves
//! outputs one token (`one`: every draft stands) or two (`two`: about half of them do). Two engines run the same
//! model's requests in turns, 1, 4 and 8 at a time; of the demo model there are 32 requests, and the next one begins
//! when one ends. A ratio is the median of rounds. "depth" limits the number of drafts.

use bn_dev::{Options, machine, median, seconds};
use bn_engine::base::Result;
use bn_engine::constrain::{Constraint, ConstraintKind, JsonOptions};
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Loaded, Source, load};
use serde_json::json;
use std::sync::Arc;

const BATCHES: [usize; 3] = [1, 4, 8];
const DEPTHS: [u32; 5] = [0, 1, 3, 7, 15];

/// Beginnings of stories.
const BEGINNINGS: [&str; 4] =
    ["Once upon a time", "One morning, Nina", "Long ago, by the sea", "One cloudy day, Sam"];

/// Has no end within a load's tokens.
const PEOPLE: &str = r#"{"type":"array","minItems":10000,"items":{"type":"object","properties":{
"name":{"type":"string","maxLength":20},"age":{"type":"integer","minimum":0,"maximum":150},
"mail":{"type":"string","format":"email","maxLength":20},"married":{"type":"boolean"}},
"required":["name","age","mail","married"],"additionalProperties":false}}"#;

struct Models {
    loaded: Loaded,
    draft: Option<Loaded>,
    /// The model with its block of multi-token prediction.
    mtp: Option<Loaded>,
}

/// A load: its prompts and parameters.
#[derive(Clone)]
struct Load {
    name: &'static str,
    prompts: Vec<Vec<u32>>,
    /// Outputs that a hook makes the model repeat, one per prompt, if there are any.
    outputs: Vec<Vec<u32>>,
    temperature: f32,
    /// Outputs have these tokens only; empty: any.
    words: &'static [u32],
    /// A JSON schema that outputs match; empty: none.
    schema: &'static str,
    tokens: u32,
    /// Requests in all, at least: the next one begins when one ends. 0: as many as run at a time.
    requests: usize,
}

impl Load {
    fn request(&self, n: usize) -> RequestParams<'_> {
        let mut request = RequestParams {
            prompt: Prompt::Tokens(self.prompts[n % self.prompts.len()][..].into()),
            max_new_tokens: self.tokens,
            ignore_eos: true,
            cache: true,
            stream: false,
            ..RequestParams::default()
        };
        (request.sampling.temperature, request.sampling.seed) = (self.temperature, n as u64);
        request.sampling.logit_bias = self.words.iter().map(|token| (*token, 100.0)).collect();
        let text = self.schema.into();
        request.constraint = (!self.schema.is_empty()).then_some(Constraint {
            kind: ConstraintKind::JsonSchema,
            text,
            json: JsonOptions::default(),
        });
        let output = self.outputs.get(n % self.prompts.len()).cloned();
        request.on_logits = output.map(|output| {
            LogitsHook(Arc::new(move |row| {
                let next = output.get(row.output.len()).map(|token| &mut row.logits[*token as usize]);
                next.into_iter().for_each(|logit| *logit = 1e4);
                0
            }))
        });
        request
    }
}

/// All requests of a load; their tokens. The engine runs `batch` at a time.
fn run(engine: &Engine, load: &Load, batch: usize) -> Result<Vec<Vec<u32>>> {
    let n = load.requests.max(batch);
    let ids = engine.submit((0..n).map(|n| load.request(n)).collect())?;
    let mut tokens = vec![Vec::new(); n];
    for _ in 0..n {
        engine.poll(Which::Any, 1, None, &mut |_, event| {
            let at = ids.iter().position(|id| *id == event.request);
            tokens[at.expect("a request of this run")].clone_from(&event.tokens);
        })?;
    }
    ids.into_iter().try_for_each(|id| engine.release(id))?;
    Ok(tokens)
}

/// An engine that runs `batch` requests at a time.
fn engine(
    options: &Options,
    models: &Models,
    speculates: bool,
    draft_tokens: u32,
    batch: usize,
) -> Result<Engine> {
    let (draft_model, mtp) =
        (models.draft.clone().filter(|_| speculates), models.mtp.as_ref().filter(|_| speculates));
    let loaded = mtp.unwrap_or(&models.loaded);
    let lookup = if speculates { Speculation::Lookup } else { Speculation::Off };

    Engine::create(EngineConfig {
        model: Some(loaded.clone()),
        threads: options.threads as u32,
        instructions: Some(options.isa),
        max_batch_size: batch as u32,
        context_length: 512.min(loaded.model.facts().context_length as u32),
        speculation: if draft_model.is_some() || mtp.is_some() { None } else { Some(lookup) },
        draft_model,
        draft_tokens,
        ..EngineConfig::default()
    })
}

/// Token ids that are no text.
fn ids(n: usize, vocab: usize) -> Vec<u32> {
    (0..16)
        .map(|at| ((at * 7919 + n * 104_729 + 17) % (vocab - 300)) as u32 + 200.min(vocab as u32 - 300))
        .collect()
}

fn loads(options: &Options, models: &Models, demo: bool) -> Result<Vec<Load>> {
    let loaded = &models.loaded;
    let vocab = loaded.model.facts().vocab_size;
    let tokens = if options.quick { 64 } else { 128 };
    let random: Vec<_> = (0..8).map(|n| ids(n, vocab)).collect();
    let of = |name, temperature| Load {
        name,
        prompts: random.clone(),
        outputs: Vec::new(),
        temperature,
        words: &[],
        schema: "",
        tokens,
        requests: if demo { 32 } else { 0 },
    };
    let mut loads = vec![of("free", 1.5)];
    match (&models.draft, &models.mtp) {
        (Some(_), _) => loads.push(Load { tokens: 48, requests: 8, ..of("draft", 0.0) }),
        (None, Some(_)) => {
            loads.push(Load { words: &[300], ..of("one", 0.0) });
            loads.push(Load { words: &[300, 301], ..of("two", 0.0) });
        }
        (None, None) => {
            loads.push(going_on(options, models, of("loop", 0.0))?);
            let json = Load { schema: PEOPLE, ..of("json", 0.7) };
            let outputs = run(
                &engine(options, models, false, 0, 8)?,
                &Load { requests: 0, ..json.clone() },
                json.prompts.len(),
            )?;
            let again =
                |(prompt, output): (&Vec<u32>, &Vec<u32>)| [&prompt[..], &output[..], &prompt[..]].concat();
            let prompts = json.prompts.iter().zip(&outputs).map(again).collect();
            loads.push(json);
            loads.push(Load { prompts, outputs, schema: PEOPLE, ..of("quote", 0.0) });
        }
    }
    if let (true, Some(tokenizer)) = (demo, &loaded.tokenizer) {
        let mut prompts = Vec::new();
        for begin in BEGINNINGS {
            prompts.push(tokenizer.encode(begin, true, false)?);
        }
        let story = Load { prompts, tokens: 100, requests: 0, ..of("", 0.0) };
        let stories = run(&engine(options, models, false, 0, 8)?, &story, story.prompts.len())?;
        let mut copy = Load { prompts: Vec::new(), tokens: 96, ..of("copy", 0.0) };
        for (begin, story) in story.prompts.iter().zip(stories) {
            copy.prompts.push([&begin[..], &story[..], &begin[1..]].concat());
            copy.outputs.push(story);
        }
        loads.push(copy);
    }
    Ok(loads)
}

/// The same load with its outputs' beginnings added to the prompts.
fn going_on(options: &Options, models: &Models, load: Load) -> Result<Load> {
    let first = Load { tokens: 192, requests: 0, ..load };
    let outputs = run(&engine(options, models, false, 0, 8)?, &first, first.prompts.len())?;
    let prompts =
        first.prompts.iter().zip(&outputs).map(|(prompt, output)| [&prompt[..], &output[..]].concat());
    Ok(Load { prompts: prompts.collect(), tokens: load.tokens, requests: load.requests, ..first })
}

fn measure(
    options: &Options,
    models: &Models,
    load: &Load,
    batch: usize,
    depth: u32,
) -> Result<serde_json::Value> {
    let plain = engine(options, models, false, 0, batch)?;
    let drafts = engine(options, models, true, depth, batch)?;
    assert!(run(&plain, load, batch)? == run(&drafts, load, batch)?, "speculation changes what is generated");
    let (before, mut ratios) = (drafts.stats(), Vec::new());
    for _ in 0..options.rounds() {
        let time = |engine: &Engine| -> Result<f64> {
            let mut result = Ok(Vec::new());
            let time = seconds(|| result = run(engine, load, batch));
            result.map(|_| time)
        };
        ratios.push(time(&plain)? / time(&drafts)?);
    }
    let stats = drafts.stats();
    let of = |count: fn(&Stats) -> u64| (count(&stats) - count(&before)) as f64;
    let (drafted, accepted) = (of(|s| s.drafted_tokens), of(|s| s.accepted_tokens));
    let each = of(|s| s.generated_tokens) / of(|s| s.batched_requests);
    let (ratio, stood) = (median(ratios), if drafted > 0.0 { accepted / drafted } else { 0.0 });
    let most = if depth == 0 { "any".into() } else { depth.to_string() };
    println!(
        "{:>5} {batch:>2} at a time, depth {most:>3}: {ratio:>5.2} times as fast; {each:>5.2} tokens a step, {:>3.0}% of drafts stood",
        load.name,
        100.0 * stood
    );
    Ok(
        json!({ "load": load.name, "batch": batch, "depth": depth, "ratio": ratio, "stood": stood, "tokens_a_step": each }),
    )
}

fn all(options: &Options, paths: &[String]) -> Result<Vec<serde_json::Value>> {
    let pool = Pool::new(options.threads)?;
    let open = |path: Option<&String>, head, mtp| {
        let options = LoadOptions { embedding: head, head, mtp, ..LoadOptions::default() };
        let source = Source::parse(path.map(String::as_str))?;
        load(&source, &options, &pool, &|_, _| (), &mut |_, _| false)
    };
    let own = paths.get(1).is_some_and(|path| path == "mtp");
    let draft =
        paths.get(1).filter(|_| !own).map(|path| open(Some(path), WeightType::Q4_0, false)).transpose()?;
    let mtp = if own { Some(open(paths.first(), WeightType::Keep, true)?) } else { None };
    let models = Models { loaded: open(paths.first(), WeightType::Keep, false)?, draft, mtp };
    let mut results = Vec::new();
    for load in loads(options, &models, paths.is_empty())? {
        for batch in BATCHES {
            for depth in DEPTHS {
                if options.wants(&format!("{} {batch} {depth}", load.name)) {
                    results.push(measure(options, &models, &load, batch, depth)?);
                }
            }
        }
    }
    Ok(results)
}

fn main() {
    let (options, models) = Options::with_files("speculation");
    println!("{}, {} threads, {}", machine(), options.threads, options.isa.name());
    match all(&options, &models) {
        Ok(results) => options.write(&json!({ "machine": machine(), "results": results })),
        Err(error) => {
            eprintln!("speculation: {error}");
            std::process::exit(1);
        }
    }
}
