//! Measures the gain of speculation: tokens per second with drafts relative to those without, and the share of accepted
//! drafts.
//!
//! `cargo dev speculation -- [--quick] [--threads N] [--isa NAME] [--only WORD]... [--json FILE] [MODEL.gguf
//! [DRAFT.gguf | mtp | drafter=BLOCK.gguf]]`
//!
//! Loads: `loop`, the repetition that the model has fallen into at temperature 0; `free`, a temperature at which almost
//! no draft is accepted; `json` and `quote`: outputs match a JSON schema, as they come and as a hook makes the model
//! quote one from its prompt; without a model also `copy`: a hook makes the demo model quote a story from its prompt.
//! Drafts are looked up. With a draft model, whose head is rounded to 4 bits, they come from it; the loads are then
//! `draft`, the beginnings of eight outputs at temperature 0, and `free`. With `mtp` they come from the model's own
//! block, or that of a file beside it, which the engine without drafts does not load. A block of random weights predicts
//! nothing, so a bias leaves outputs one token (`one`: every draft stands) or two (`two`: about half of them do). With a
//! model that people trained there are tasks on real text: `summary`, `edit` and `code` repeat their prompts, `chat`,
//! `chat_warm` and `prose` do not.
//! `trap` and `turn` mislead look-ups, always or after a while. Two engines run the same model's requests in turns,
//! 1, 4, 8 and 32 at a time; on real text and of the demo model the next one begins when one ends. A ratio is the median
//! of rounds. "depth" limits the number of drafts.

use bn_dev::{Options, cpu_seconds, machine, median, seconds};
use bn_engine::base::Result;
use bn_engine::constrain::{Constraint, ConstraintKind, JsonOptions};
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Loaded, Source, load};
use bn_engine::text::chat::Message;
use serde_json::json;
use std::sync::Arc;

const BATCHES: [usize; 4] = [1, 4, 8, 32];
const DEPTHS: [u32; 5] = [0, 1, 3, 7, 15];

/// Beginnings of stories.
const BEGINNINGS: [&str; 4] =
    ["Once upon a time", "One morning, Nina", "Long ago, by the sea", "One cloudy day, Sam"];

/// Questions for chat models.
const QUESTIONS: [&str; 8] = [
    "Why is the sky blue? Explain it to a child.",
    "Write a short letter to a landlord about a broken heater.",
    "List ten things to pack for a week at the sea.",
    "How do I make pancakes for four people?",
    "Write a Python function that counts the words of a file.",
    "What is the difference between a virus and a bacterium?",
    "Give me a plan for learning to swim in two months.",
    "Tell me about the history of the bicycle.",
];

/// Does not end within a load's tokens.
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
    /// Requests for each one that runs at a time: the next one begins when one ends.
    each: usize,
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
    let n = load.each * batch;
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

    Engine::create(EngineConfig {
        model: Some(loaded.clone()),
        threads: options.threads as u32,
        instructions: Some(options.isa),
        max_batch_size: batch as u32,
        context_length: 1024.min(loaded.model.facts().context_length as u32),
        speculation: if speculates { None } else { Some(Speculation::Off) },
        draft_model,
        draft_tokens,
        ..EngineConfig::default()
    })
}

/// Random token ids, which are no text.
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
        each: if demo { 4 } else { 1 },
    };
    let mut loads = vec![of("free", 1.5)];
    loads.push(trap("trap", false, of("", 0.0)));
    loads.push(trap("turn", true, of("", 0.0)));
    match (&models.draft, &models.mtp) {
        (Some(_), _) => loads.push(Load { tokens: 48, each: 8, ..of("draft", 0.0) }),
        (None, Some(_)) => {
            loads.push(Load { words: &[300], ..of("one", 0.0) });
            loads.push(Load { words: &[300, 301], ..of("two", 0.0) });
        }
        (None, None) => {
            loads.push(going_on(options, models, of("loop", 0.0))?);
            let json = Load { schema: PEOPLE, ..of("json", 0.7) };
            let outputs = run(
                &engine(options, models, false, 0, 8)?,
                &Load { each: 1, ..json.clone() },
                json.prompts.len(),
            )?;
            let again =
                |(prompt, output): (&Vec<u32>, &Vec<u32>)| [&prompt[..], &output[..], &prompt[..]].concat();
            let prompts = json.prompts.iter().zip(&outputs).map(again).collect();
            loads.push(json);
            loads.push(Load { prompts, outputs, schema: PEOPLE, ..of("quote", 0.0) });
        }
    }
    if let (false, None, None) = (demo, &models.draft, &models.mtp) {
        loads.extend(texts(models, tokens)?);
    }
    if let (true, Some(tokenizer)) = (demo, &loaded.tokenizer) {
        let mut prompts = Vec::new();
        for begin in BEGINNINGS {
            prompts.push(tokenizer.encode(begin, true, false)?);
        }
        let story = Load { prompts, tokens: 100, each: 1, ..of("", 0.0) };
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

/// Tasks on real text, for published models.
fn texts(models: &Models, tokens: u32) -> Result<Vec<Load>> {
    let Loaded { tokenizer: Some(tokenizer), chat, .. } = &models.loaded else {
        return Ok(Vec::new());
    };
    let encode = |text: String| match chat {
        Some(template) => {
            let asked = Message { role: "user", content: &text };
            tokenizer.encode_chat(&template.render(&[asked], true)?)
        }
        None => tokenizer.encode(&text, true, false),
    };
    let of = |name, temperature, texts: Vec<String>| -> Result<Load> {
        let prompts = texts.into_iter().map(encode).collect::<Result<_>>()?;
        Ok(Load { name, prompts, outputs: Vec::new(), temperature, words: &[], schema: "", tokens, each: 3 })
    };
    let asked = |task: &str, parts: Vec<&str>| {
        parts.into_iter().map(|part| format!("{task}\n\n{part}\n\n{task}\n\n")).collect()
    };
    let prose = || parts(include_str!("../../../ARCHITECTURE.md"), "\n\n", 700);
    let code = parts(include_str!("../../../src/schedule/drafts.rs"), "\n}\n", 700);
    let questions = QUESTIONS.map(String::from).to_vec();
    Ok(vec![
        of("summary", 0.0, asked("Summarize this text in its own words:", prose()))?,
        of("edit", 0.0, asked("Correct the spelling of this text, and repeat it:", prose()))?,
        of("code", 0.0, asked("Rename `entry` to `item` in this Rust code:", code))?,
        of("chat", 0.0, questions.clone())?,
        of("chat_warm", 0.7, questions)?,
        of("prose", 0.8, BEGINNINGS.map(String::from).to_vec())?,
    ])
}

/// The first eight parts of `text` of one to three times `bytes` bytes, which begin and end at `between`.
fn parts<'a>(text: &'a str, between: &str, bytes: usize) -> Vec<&'a str> {
    let (mut parts, mut from) = (Vec::new(), 0);
    for (end, _) in text.match_indices(between) {
        if end - from < bytes {
            continue;
        }
        if end - from < 3 * bytes {
            parts.push(text[from..end + 2].trim());
        }
        from = end + between.len();
    }
    parts.truncate(8);
    parts
}

/// A hook makes the model repeat a pair of tokens, each time followed by a different one: every lookup finds a
/// draft, and the draft is wrong. `turns`: after a loop in which drafts are right.
fn trap(name: &'static str, turns: bool, load: Load) -> Load {
    let output = |n: u32| -> Vec<u32> {
        let loops = if turns { load.tokens / 2 } else { 0 };
        let looped = (0..loops).map(|at| 400 + at % 8);
        let pairs = (0..load.tokens).flat_map(|at| [300 + n % 8, 310 + n % 8, 500 + at]);
        looped.chain(pairs).take(load.tokens as usize).collect()
    };
    let outputs = (0..load.prompts.len() as u32).map(output).collect();
    Load { name, outputs, temperature: 0.0, ..load }
}

/// The same loads with the beginnings of their outputs added to the prompts.
fn going_on(options: &Options, models: &Models, load: Load) -> Result<Load> {
    let first = Load { tokens: 192, each: 1, ..load };
    let outputs = run(&engine(options, models, false, 0, 8)?, &first, first.prompts.len())?;
    let prompts =
        first.prompts.iter().zip(&outputs).map(|(prompt, output)| [&prompt[..], &output[..]].concat());
    Ok(Load { prompts: prompts.collect(), tokens: load.tokens, each: load.each, ..first })
}

fn measure(
    options: &Options,
    models: &Models,
    load: &Load,
    batch: usize,
    depth: u32,
) -> Result<serde_json::Value> {
    let (mut ratios, mut cpus, mut counts) = (Vec::new(), Vec::new(), [0; 4]);
    // The addresses of an engine's memory change its speed by some percent, so each pair of rounds has new engines.
    for pair in 0..options.rounds().div_ceil(2) {
        let engine = |drafts: bool| engine(options, models, drafts, if drafts { depth } else { 0 }, batch);
        let first = engine(pair % 2 == 1)?;
        let second = engine(pair % 2 == 0)?;
        let (plain, drafts) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        assert!(
            run(&plain, load, batch)? == run(&drafts, load, batch)?,
            "speculation changes what is generated"
        );
        let before = drafts.stats();
        for _ in 0..2 {
            let time = |engine: &Engine| -> Result<(f64, f64)> {
                let mut result = Ok(Vec::new());
                let cpu = cpu_seconds();
                let time = seconds(|| result = run(engine, load, batch));
                result.map(|_| (time, cpu_seconds() - cpu))
            };
            let ((plain, plain_cpu), (drafts, drafts_cpu)) = (time(&plain)?, time(&drafts)?);
            ratios.push(plain / drafts);
            cpus.push(plain_cpu / drafts_cpu);
        }
        let of = |s: &Stats| [s.drafted_tokens, s.accepted_tokens, s.generated_tokens, s.batched_requests];
        for ((count, after), before) in counts.iter_mut().zip(of(&drafts.stats())).zip(of(&before)) {
            *count += after - before;
        }
    }
    let [drafted, accepted, generated, rows] = counts.map(|count| count as f64);
    let (cpu, each) = (median(cpus), generated / rows);
    let (ratio, stood) = (median(ratios), if drafted > 0.0 { accepted / drafted } else { 0.0 });
    let most = if depth == 0 { "any".into() } else { depth.to_string() };
    println!(
        "{:>9} {batch:>2} at a time, depth {most:>3}: {ratio:>5.2} times as fast, {cpu:>5.2} by CPU time; {each:>5.2} tokens a step, {:>3.0}% of drafts stood",
        load.name,
        100.0 * stood
    );
    Ok(
        json!({ "load": load.name, "batch": batch, "depth": depth, "ratio": ratio, "cpu": cpu, "stood": stood, "tokens_a_step": each }),
    )
}

fn all(options: &Options, paths: &[String]) -> Result<Vec<serde_json::Value>> {
    let pool = Pool::new(options.threads)?;
    let open = |path: Option<&String>, head, mtp, drafter: Option<&str>| {
        let drafter = drafter.map(str::to_owned);
        let options = LoadOptions { embedding: head, head, mtp, drafter, ..LoadOptions::default() };
        let source = Source::parse(path.map(String::as_str))?;
        load(&source, &options, &pool, &|_, _| (), &mut |_, _| false)
    };
    let own = paths.get(1).is_some_and(|path| path == "mtp");
    let beside = paths.get(1).and_then(|path| path.strip_prefix("drafter="));
    let block = own || beside.is_some();
    let draft = paths.get(1).filter(|_| !block);
    let draft = draft.map(|path| open(Some(path), WeightType::Q4_0, false, None)).transpose()?;
    let mtp = if block { Some(open(paths.first(), WeightType::Keep, own, beside)?) } else { None };
    let models = Models { loaded: open(paths.first(), WeightType::Keep, false, None)?, draft, mtp };
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
