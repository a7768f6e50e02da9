//! Compares the bytes of compiled grammars by a counting allocator with the engine's estimate. One test: it
//! counts the whole process.

mod counting;

use bn_engine::constrain::{
    Constraint, ConstraintKind, Grammars, JsonOptions, LazyVocabulary, Vocabulary, uncounted,
};
use bn_engine::text::Tokenizer;
use counting::LIVE;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn list(n: usize, one: impl Fn(usize) -> String) -> String {
    (0..n).map(one).collect::<Vec<_>>().join(",")
}

fn grammars() -> Vec<(ConstraintKind, String)> {
    use ConstraintKind::{JsonObject, JsonSchema, Lark, Regex};
    let object = |n, of: &dyn Fn(usize) -> String| {
        let names = list(n, |n| format!("\"p{n}\":{}", of(n)));
        (
            JsonSchema,
            format!("{{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{{{names}}}}}"),
        )
    };
    // Rings of 200 rules: deeper ones are refused where errors capture backtraces.
    let starts: Vec<String> = (0..10).map(|ring| format!("r{}", ring * 200)).collect();
    let rules = (0..2000).fold(format!("start: {}\n", starts.join(" | ")), |mut text, n| {
        let next = n / 200 * 200 + (n + 1) % 200;
        let _ = writeln!(text, "r{n}: r{next} \"x{n}\" | \"y\"");
        text
    });
    vec![
        (JsonObject, String::new()),
        object(3, &|_| "{\"type\":\"integer\",\"minimum\":-7,\"maximum\":150}".into()),
        object(1500, &|_| "{\"type\":\"null\"}".into()),
        object(300, &|n| format!("{{\"type\":\"string\",\"maxLength\":{n},\"pattern\":\"^(a|b)*x{n}$\"}}")),
        object(300, &|n| format!("{{\"type\":\"string\",\"maxLength\":{n},\"format\":\"email\"}}")),
        object(200, &|n| format!("{{\"type\":\"number\",\"minimum\":-0.{n}123456,\"maximum\":{n}.987654}}")),
        (JsonSchema, format!("{{\"enum\":[{}]}}", list(10_000, |n| format!("\"v{n}\"")))),
        (Regex, list(20_000, |n| format!("w{n}")).replace(',', "|")),
        (Lark, rules),
        (Lark, format!("start: {}", "a ".repeat(50_000) + "\na: \"x\"")),
    ]
}

fn constraint((kind, text): &(ConstraintKind, String)) -> Constraint<'_> {
    Constraint { kind: *kind, text: text.as_str().into(), json: JsonOptions::default() }
}

/// For each grammar alone, the estimate is at least its size, and less than five times that.
fn each_is_weighed(vocabulary: &Arc<Vocabulary>) {
    for one in &grammars() {
        let grammars = Grammars::new(1, u64::MAX, || None);
        let before = LIVE.load(SeqCst);
        drop(grammars.guide(vocabulary, &constraint(one), u64::MAX, &uncounted).unwrap());
        // Wait until its thread has ended.
        let held = grammars.totals().held.bytes();
        let mut taken = 0;
        for _ in 0..1000 {
            taken = LIVE.load(SeqCst).saturating_sub(before) as u64;
            if taken <= held {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let shown: String = one.1.chars().take(80).collect();
        assert!(taken <= held && held <= 5 * taken + (1 << 20), "{held} said, {taken} taken: {shown}");
        grammars.stop();
        assert_eq!(grammars.totals().held.bytes(), held, "kept");
        drop(grammars);
        let left = LIVE.load(SeqCst).saturating_sub(before);
        assert!(left < 64 << 10, "{left} bytes stay behind: {shown}");
    }
}

/// In an engine with a limit of 64 MiB, grammars hold at most an eighth, and one more that a request uses.
fn all_stay_within_their_part(vocabulary: &Arc<Vocabulary>) {
    let grammars = Grammars::new(1, 64 << 20, || None);
    let before = LIVE.load(SeqCst);
    for n in 0..40 {
        let names = list(400, |name| format!("\"p{n}x{name}\":{{\"type\":\"null\"}}"));
        let schema = format!("{{\"type\":\"object\",\"properties\":{{{names}}}}}");
        let one = (ConstraintKind::JsonSchema, schema);
        let guide = grammars.guide(vocabulary, &constraint(&one), u64::MAX, &uncounted).unwrap();
        drop(guide);
        let held = grammars.totals().held.bytes();
        assert!(held <= 8 << 20, "{held} bytes are kept");
    }
    assert!(grammars.totals().held.bytes() > 4 << 20, "some are kept");
    let taken = LIVE.load(SeqCst).saturating_sub(before);
    assert!(taken <= 9 << 20, "{taken} bytes");
    grammars.stop();
}

#[test]
fn what_grammars_hold_is_said_and_bounded() {
    let tokenizer = Tokenizer::bytes().unwrap();
    let lazy = LazyVocabulary::new();
    let vocabulary =
        lazy.get(Some(&tokenizer), tokenizer.vocab_size(), tokenizer.end_tokens(), || None).unwrap();
    // Objects made once per process.
    let warm = Grammars::new(1, u64::MAX, || None);
    drop(warm.guide(vocabulary, &constraint(&grammars()[0]), u64::MAX, &uncounted).unwrap());
    warm.stop();
    each_is_weighed(vocabulary);
    all_stay_within_their_part(vocabulary);
}
