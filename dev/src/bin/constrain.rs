//! Measures the cost of constraints: the trie of a model's tokens, compiling grammars, masks, and decoding.
//!
//!   constrain [model.gguf [SEQUENCES [TOKENS]]]
//!
//! Without a file it runs the embedded model. Masks are computed along outputs of random allowed tokens. Decoding with
//! and without constraints, or with a hook in logits, alternates; a ratio is the median of the rounds' ratios.

use bn_dev::decode::finish;
use bn_dev::{SplitMix, machine, median, seconds};
use bn_engine::base::Result;
use bn_engine::constrain::{
    Constraint, ConstraintKind, Grammars, JsonOptions, LazyVocabulary, Vocabulary, uncounted,
};
use bn_engine::engine::Engine;
use bn_engine::engine::api::{EngineConfig, LogitsHook, Prompt, RequestParams};
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Loaded, Source, load};
use bn_engine::sample::SamplingParams;
use std::sync::Arc;

const ROUNDS: usize = 7;

const PERSON: &str = r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,
"maximum":150},"mail":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"}}},
"required":["name","age"],"additionalProperties":false}"#;

const CASES: [(&str, ConstraintKind, &str); 6] = [
    ("schema of a person", ConstraintKind::JsonSchema, PERSON),
    ("any JSON object", ConstraintKind::JsonObject, ""),
    (
        "recursive schema",
        ConstraintKind::JsonSchema,
        r##"{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":
{"value":{"type":"number"},"left":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["value","left"],
"additionalProperties":false}}}"##,
    ),
    ("regular expression", ConstraintKind::Regex, r"(\d{4}-\d{2}-\d{2}: [A-Z][a-z ]+\. )*"),
    (
        "Lark, arithmetic",
        ConstraintKind::Lark,
        "start: sum\nsum: term ((\"+\" | \"-\") term)*\nterm: /[0-9]+/ | \"(\" sum \")\"",
    ),
    (
        "GBNF, JSON",
        ConstraintKind::Gbnf,
        r#"root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}"#,
    ),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: usize| args.get(at).and_then(|n| n.parse().ok()).unwrap_or(or);
    if let Err(error) = run(args.first().map(String::as_str), number(1, 16), number(2, 48)) {
        eprintln!("constrain: {error}");
        std::process::exit(1);
    }
}

fn run(path: Option<&str>, sequences: usize, tokens: usize) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let pool = Pool::new(threads)?;
    let loaded = load(&Source::parse(path)?, &LoadOptions::default(), &pool, &|_, _| (), &mut |_, _| false)?;
    let vocab = loaded.model.facts().vocab_size;
    println!("{}; {} with {vocab} tokens, {threads} threads", machine(), loaded.model.facts().name);
    let before = resident();
    let took = seconds(|| {
        LazyVocabulary::new()
            .get(loaded.tokenizer.as_deref(), vocab, &loaded.end_tokens, || None)
            .map(drop)
            .expect("it")
    });
    let vocabulary = loaded.vocabulary(|| None)?;
    println!("trie: {:.0} ms, {} MiB", took * 1e3, (resident() - before) >> 20);
    println!(
        "\n{:<22} {:>11} {:>11} {:>11} {:>11}",
        "grammar", "compile ms", "mask us", "median us", "max us"
    );
    for (name, kind, text) in CASES {
        masks(vocabulary, name, &Constraint { kind, text: text.into(), json: JsonOptions::default() })?;
    }
    println!("a request that has come to its 200th token holds {} KiB", held(vocabulary)? >> 10);
    decode(&loaded, sequences, tokens)
}

/// Bytes of a guide.
fn held(vocabulary: &Arc<Vocabulary>) -> Result<usize> {
    const GUIDES: usize = 256;
    let (grammars, mut guides, mut random) = (Grammars::new(1, u64::MAX, || None), Vec::new(), SplitMix(1));
    let text = format!(r#"{{"type":"array","minItems":10000,"items":{PERSON}}}"#);
    let constraint =
        Constraint { kind: ConstraintKind::JsonSchema, text: text.into(), json: JsonOptions::default() };
    let mut before = 0;
    // The first guide computes lexer states that all share.
    for n in 0..=GUIDES {
        let mut guide = grammars.guide(vocabulary, &constraint, u64::MAX, &uncounted)?;
        for _ in 0..200 {
            let mask = guide.mask()?.bits();
            let first = random.draw() as usize % mask.len();
            let order = (first..mask.len()).chain(0..first);
            let word = order.into_iter().find(|&at| mask[at] != 0).unwrap_or(0);
            let token = 32 * word as u32 + mask[word].trailing_zeros();
            guide.push(token)?;
        }
        guides.push(guide);
        before = if n == 0 { resident() } else { before };
    }
    Ok(resident().saturating_sub(before) / GUIDES)
}

fn masks(vocabulary: &Arc<Vocabulary>, name: &str, constraint: &Constraint) -> Result<()> {
    let compile = || {
        seconds(|| {
            drop(Grammars::new(1, u64::MAX, || None).guide(vocabulary, constraint, u64::MAX, &uncounted))
        })
    };
    let compile = median((0..ROUNDS).map(|_| compile()).collect());
    let (mut random, mut times) = (SplitMix(1), Vec::new());
    let grammars = Grammars::new(1, u64::MAX, || None);
    for _ in 0..20 {
        let mut guide = grammars.guide(vocabulary, constraint, u64::MAX, &uncounted)?;
        times.push(seconds(|| drop(guide.mask().map(drop))) * 1e6);
        for _ in 0..60 {
            let mut allowed = Vec::new();
            for (at, word) in (0u32..).zip(guide.mask()?.bits()) {
                allowed.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| 32 * at + bit));
            }
            if guide.mask()?.complete() || allowed.is_empty() {
                break;
            }
            let token = allowed[random.draw() as usize % allowed.len()];
            times.push(seconds(|| drop(guide.push(token).and_then(|()| guide.mask().map(drop)))) * 1e6);
        }
    }
    let (mean, max) =
        (times.iter().sum::<f64>() / times.len() as f64, times.iter().copied().fold(0.0, f64::max));
    println!("{name:<22} {:>11.2} {mean:>11.0} {:>11.0} {max:>11.0}", compile * 1e3, median(times));
    grammars.stop();
    Ok(())
}

fn decode(loaded: &Loaded, sequences: usize, tokens: usize) -> Result<()> {
    let config = EngineConfig { model: Some(loaded.clone()), context_length: 512, ..Default::default() };
    let engine = Engine::create(config)?;
    // An output that cannot end before all tokens are generated.
    let people = format!(r#"{{"type":"array","minItems":10000,"items":{PERSON}}}"#);
    let hook = LogitsHook(Arc::new(|row| {
        row.logits[0] = f32::NEG_INFINITY;
        0
    }));
    let request = |constrained: bool, hooked: bool, seed: u64| RequestParams {
        prompt: Prompt::Text("A list of people: ".into()),
        max_new_tokens: tokens as u32,
        sampling: SamplingParams { temperature: 1.0, seed, ..Default::default() },
        constraint: constrained.then(|| Constraint {
            kind: ConstraintKind::JsonSchema,
            text: people.as_str().into(),
            json: JsonOptions::default(),
        }),
        on_logits: hooked.then(|| hook.clone()),
        ignore_eos: true,
        ..Default::default()
    };
    let time = |constrained, hooked| -> Result<f64> {
        let mut done = Ok(());
        let requests = (0..sequences as u64).map(|seed| request(constrained, hooked, seed)).collect();
        let took = seconds(|| done = engine.submit(requests).and_then(|_| finish(&engine, sequences)));
        done.map(|()| took)
    };
    time(true, true)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((time(false, false)?, time(true, false)?, time(false, true)?));
    }
    let of = |value: fn(&(f64, f64, f64)) -> f64| median(rounds.iter().map(value).collect());
    let (plain, stats) = (of(|r| r.0), engine.stats());
    println!(
        "\n{sequences} sequences, {tokens} tokens each: {:.1} tokens/s",
        (sequences * tokens) as f64 / plain
    );
    println!(
        "with a constraint: {:+.1}% time; with a hook: {:+.1}%",
        of(|r| r.1 / r.0 - 1.0) * 100.0,
        of(|r| r.2 / r.0 - 1.0) * 100.0
    );
    let each = |ns: u64| ns as f64 / 1e3 / stats.masks as f64;
    println!(
        "a mask took {:.0} us, sampling waited {:.0} us for it",
        each(stats.mask_ns),
        each(stats.mask_wait_ns)
    );
    engine.destroy()
}

/// The process's resident memory in bytes.
fn resident() -> usize {
    // SAFETY: it only gives free memory back.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
