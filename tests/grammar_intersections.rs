//! Random intersections: each is compiled or refused within its bytes, and so are its masks. One test: it counts the
//! bytes of the whole process.

#[path = "common/rng.rs"]
#[allow(dead_code)]
mod rng;

mod counting;

use bn_engine::base::Status;
use bn_engine::constrain::{
    Constraint, ConstraintKind, Grammars, JsonOptions, LazyVocabulary, Vocabulary, uncounted,
};
use bn_engine::text::Tokenizer;
use counting::{LIVE, PEAK};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const MOST_BYTES: usize = 256 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        (rng::draw(&mut self.0) % n as u64) as usize
    }

    fn any(&mut self, all: &[&'static str]) -> &'static str {
        all[self.below(all.len())]
    }

    fn pattern(&mut self, parts: usize) -> String {
        let mut text = String::from(self.any(&["", "", "^", ".*", "^(x|y)*"]));
        for _ in 0..=self.below(parts) {
            text +=
                self.any(&["a", "aa", "[a-f]", "[^b]", "\\w", "\\d", "(a|b)", "(ab|c)", ".", "\\p{L}", "é"]);
            text += self.any(&["", "", "*", "+", "?", "{3}", "{2,40}", "{0,900}"]);
        }
        text + self.any(&["", "", "$", ".*"])
    }

    /// Keywords of a string, one of them or some.
    fn string(&mut self) -> Value {
        let mut all = Map::new();
        let parts = 1 + self.below(6);
        match self.below(8) {
            0 => drop(all.insert("minLength".into(), json!(self.below(300)))),
            1 => drop(all.insert("maxLength".into(), json!(300 + self.below(3000)))),
            2 => {
                drop(all.insert("format".into(), json!(self.any(&["email", "uri", "hostname", "date-time"]))))
            }
            _ => drop(all.insert("pattern".into(), json!(self.pattern(parts)))),
        }
        Value::Object(all)
    }

    fn schema(&mut self) -> Value {
        let most = [4, 12, 30, 200][self.below(4)];
        let count = 2 + self.below(most);
        let same = self.below(4) == 0;
        let parts: Vec<Value> = (1..=count)
            .map(|n| if same { json!({"pattern": "a".repeat(n)}) } else { self.string() })
            .collect();
        let defs: Map<_, _> = parts.iter().enumerate().map(|(n, of)| (format!("d{n}"), of.clone())).collect();
        let refs: Vec<Value> = (0..count).map(|n| json!({"$ref": format!("#/$defs/d{n}")})).collect();
        match self.below(5) {
            0 => json!({"type": "string", "allOf": refs, "$defs": defs}),
            1 => json!({"type": "array", "items": {"type": "string", "allOf": parts}}),
            2 => json!({"anyOf": [{"type": "string", "allOf": parts}, {"type": "null"}]}),
            3 => {
                let names = (0..20).map(|n| {
                    let all =
                        [refs[n % count].clone(), refs[(n + 1) % count].clone(), json!({"maxLength": n + 9})];
                    (format!("p{n}"), json!({"type": "string", "allOf": all}))
                });
                json!({"type": "object", "properties": names.collect::<Map<_, _>>(), "$defs": defs})
            }
            _ => json!({"type": "string", "allOf": parts}),
        }
    }

    fn lark(&mut self) -> String {
        let count = 2 + self.below(25);
        let parts: Vec<String> = (0..count)
            .map(|n| {
                let not = self.any(&["", "", "", "~"]);
                match self.below(3) {
                    0 => format!("{not}(/(?s:.*){}(?s:.*)/)", "a".repeat(n + 1)),
                    _ => format!("{not}(/{}/)", self.pattern(5).replace(['^', '$'], "")),
                }
            })
            .collect();
        let (first, second) = parts.split_at(count / 2);
        let join = self.any(&[" & ", " & ", " | ", " "]);
        format!("start: A\nA: ({}){join}({})\n", first.join(" & "), second.join(" & "))
    }

    fn grammar(&mut self) -> (ConstraintKind, String) {
        match self.below(3) {
            0 => (ConstraintKind::Lark, self.lark()),
            _ => (ConstraintKind::JsonSchema, self.schema().to_string()),
        }
    }
}

/// Returns false if the grammar is refused.
fn serve(grammars: &Grammars, vocabulary: &Arc<Vocabulary>, kind: ConstraintKind, text: &str) -> bool {
    let constraint = Constraint { kind, text: text.into(), json: JsonOptions::default() };
    let mut guide = match grammars.guide(vocabulary, &constraint, u64::MAX, &uncounted) {
        Ok(guide) => guide,
        Err(error) => {
            assert_eq!(error.status, Status::InvalidArgument, "{error}: {text}");
            return false;
        }
    };
    for n in 0..40 {
        // An error ends only that request.
        let Ok(mask) = guide.mask() else { break };
        let allowed: Vec<u32> =
            (0..256).filter(|token| mask.bits()[*token as usize / 32] >> (token % 32) & 1 == 1).collect();
        let Some(&token) = allowed.get(n * 7 % allowed.len().max(1)) else { break };
        guide.push(token).unwrap();
    }
    true
}

/// CPU time of the process in milliseconds.
fn cpu_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a whole struct.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// `BN_INTERSECTIONS=1000 cargo test --release --test grammar_intersections -- --nocapture` for more of them.
#[test]
fn each_is_compiled_or_refused_within_its_bytes() {
    let tokenizer = Tokenizer::bytes().unwrap();
    let lazy = LazyVocabulary::new();
    let vocabulary =
        lazy.get(Some(&tokenizer), tokenizer.vocab_size(), tokenizer.end_tokens(), || None).unwrap();
    let count = std::env::var("BN_INTERSECTIONS").map_or(200, |count| count.parse().unwrap());
    let (mut served, mut largest, mut slowest) = (0, (0, 0), (0, 0));
    for seed in 0..count {
        let (kind, text) = Random(seed).grammar();
        let grammars = Grammars::new(1, u64::MAX, || None);
        let (before, begun) = (LIVE.load(SeqCst), cpu_ms());
        PEAK.store(before, SeqCst);
        served += u64::from(serve(&grammars, vocabulary, kind, &text));
        grammars.stop();
        let taken = PEAK.load(SeqCst) - before;
        assert!(taken <= MOST_BYTES, "seed {seed}: {taken} bytes");
        largest = largest.max((taken, seed));
        slowest = slowest.max((cpu_ms() - begun, seed));
    }
    println!("{served} of {count} served; most bytes {largest:?}, most ms of a core {slowest:?}");
    assert!(served > count / 10 && served < count);
}
