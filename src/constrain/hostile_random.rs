//! Random grammars of hostile size: any keyword and operator may be inflated, alone or nested.

use super::ConstraintKind;
use crate::rng::draw;
use serde_json::{Map, Value, json};

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn next(&mut self) -> u64 {
        draw(&mut self.0)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn any<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A size up to `most`, mostly small: each power of two is equally likely.
    fn size(&mut self, most: usize) -> usize {
        let bits = self.below(usize::BITS as usize - most.leading_zeros() as usize + 1);
        self.below(1 << bits).min(most)
    }
}

/// A random constraint, determined by the seed.
pub fn grammar(seed: u64) -> (ConstraintKind, String) {
    let mut random = Random::new(seed);
    match random.below(10) {
        0 => (ConstraintKind::Regex, regex(&mut random, 4, 200_000)),
        1 => (ConstraintKind::Lark, lark(&mut random)),
        2 => (ConstraintKind::Gbnf, gbnf(&mut random)),
        _ => (ConstraintKind::JsonSchema, root(&mut random).to_string()),
    }
}

fn root(random: &mut Random) -> Value {
    let defs = random.size(60);
    let mut left = 30_000;
    let mut root = schema(random, 4, defs, &mut left);
    let named: Map<_, _> = (0..defs).map(|n| (format!("d{n}"), schema(random, 2, defs, &mut left))).collect();
    if let Value::Object(fields) = &mut root {
        fields.insert("$defs".into(), Value::Object(named));
    }
    root
}

fn many(
    random: &mut Random,
    most: usize,
    left: &mut usize,
    mut one: impl FnMut(&mut Random, usize, &mut usize) -> Value,
) -> Vec<Value> {
    let count = random.size(most).min(*left);
    *left -= count;
    (0..count).map(|n| one(random, n, left)).collect()
}

fn schema(random: &mut Random, depth: usize, defs: usize, left: &mut usize) -> Value {
    let mut all = Map::new();
    for _ in 0..=random.below(3) {
        keyword(random, depth, defs, left, &mut all);
    }
    Value::Object(all)
}

fn keyword(random: &mut Random, depth: usize, defs: usize, left: &mut usize, all: &mut Map<String, Value>) {
    let inner = |random: &mut Random, left: &mut usize| match depth {
        0 => json!({"type": random.any(&["null", "boolean", "string", "integer"])}),
        _ => schema(random, depth - 1, defs, left),
    };
    let mut put = |name: &str, of: Value| drop(all.insert(name.into(), of));
    match random.below(18) {
        0 | 1 => {
            put("type", json!("object"));
            let names = many(random, 6000, left, |random, _, left| inner(random, left));
            let count = random.size(names.len() + 50);
            put("required", (0..count).map(|n| json!(format!("p{n}"))).collect());
            let names = names.into_iter().enumerate().map(|(n, of)| (format!("p{n}"), of));
            put("properties", Value::Object(names.collect()));
            if random.below(2) == 0 {
                put("additionalProperties", inner(random, left));
            }
        }
        2 => {
            let values = many(random, 1000, left, |random, _, left| inner(random, left));
            let all = values.into_iter().enumerate();
            let stem = random.any(&["^x", "^(a|b)*x", "y", "^[a-z]{1,9}", "(a?){20}"]);
            put("patternProperties", Value::Object(all.map(|(n, of)| (format!("{stem}{n}$"), of)).collect()));
        }
        3 => put("enum", many(random, 30_000, left, |_, n, _| json!(format!("v{n}"))).into()),
        4 => put("enum", many(random, 6000, left, |random, n, _| random_value(random, n)).into()),
        5 => put("const", random_value(random, 1)),
        6 | 7 => put("anyOf", many(random, 3000, left, |random, _, left| inner(random, left)).into()),
        8 => put("oneOf", many(random, 1000, left, |random, _, left| inner(random, left)).into()),
        9 => put("allOf", many(random, 300, left, |random, _, left| inner(random, left)).into()),
        10 | 11 => {
            put("type", json!("string"));
            put("pattern", json!(regex(random, 3, 5_000)));
            if random.below(2) == 0 {
                put("maxLength", json!(random.size(1 << 30)));
            }
        }
        12 => {
            put("type", json!("string"));
            put("minLength", json!(random.size(1 << 30)));
            put("format", json!(random.any(&["email", "date-time", "uri", "hostname", "ipv6", "uuid"])));
        }
        13 => {
            put("type", json!(random.any(&["integer", "number"])));
            put("minimum", json!(-(random.size(1 << 40) as i64)));
            put("maximum", json!(random.size(1 << 40) as f64 + 0.123_456));
            if random.below(2) == 0 {
                put("multipleOf", json!(1 + random.size(99_999)));
            }
        }
        14 | 15 => {
            put("type", json!("array"));
            put("items", inner(random, left));
            put("minItems", json!(random.size(1 << 20)));
            put("prefixItems", many(random, 3000, left, |random, _, left| inner(random, left)).into());
        }
        16 => put("minProperties", json!(random.below(3))),
        _ => put("$ref", json!(format!("#/$defs/d{}", random.below(defs.max(1))))),
    }
}

fn random_value(random: &mut Random, n: usize) -> Value {
    match random.below(4) {
        0 => json!(n),
        1 => json!({"k": n, "v": [n, "x"]}),
        2 => json!("a".repeat(random.size(3000))),
        _ => json!([null, true, n]),
    }
}

/// A regular expression of about `left` bytes at most.
fn regex(random: &mut Random, depth: usize, left: usize) -> String {
    let atom = |random: &mut Random| -> String {
        let atoms = ["a", "b", "[a-z]", ".", r"\d", r"\w", r"\p{L}", "[^x]", "abc", r"\s", "é"];
        random.any(&atoms).to_owned()
    };
    if depth == 0 || left < 8 {
        return atom(random);
    }
    let inner = |random: &mut Random| {
        let of = regex(random, depth - 1, left / 8);
        let most = (left / (of.len() + 2)).max(1);
        (of, random.size(most).max(1))
    };
    match random.below(7) {
        0 => {
            let (of, count) = inner(random);
            format!("({of})").repeat(count)
        }
        1 => {
            let (of, count) = inner(random);
            (0..count).map(|n| format!("{of}{n}")).collect::<Vec<_>>().join("|")
        }
        2 => format!("({}){{{},{}}}", inner(random).0, random.below(3), 3 + random.size(2000)),
        3 => format!("({})*{}", inner(random).0, inner(random).0),
        4 => {
            let (of, count) = inner(random);
            format!("({of})?").repeat(count)
        }
        5 => format!("(?i:{})", inner(random).0),
        _ => format!("(({})+({})+)", inner(random).0, inner(random).0),
    }
}

fn lark(random: &mut Random) -> String {
    let (rules, terminals) = (1 + random.size(3000), 1 + random.size(300));
    let mut text = String::from("start: r0\n");
    for n in 0..rules {
        let to = [random.below(rules), (n + 1) % rules, random.below(terminals)];
        let repeat = random.any(&["", "?", "*", "+", "{0,1000}", "{3}"]);
        text += &format!("r{n}: r{} T{}{repeat} r{}? | T{}\n", to[0], to[2], to[1], to[2]);
    }
    for n in 0..terminals {
        let next = (n + 1).min(terminals);
        let regex = regex(random, 2, 300).replace('/', "");
        let of = match random.below(5) {
            0 if next < terminals => format!("T{next} T{next}"),
            1 if next < terminals => format!("T{next} & ~(/{regex}/)"),
            2 => format!("/{regex}/{{0,{}}}", random.size(5000)),
            3 => (0..1 + random.size(500)).map(|n| format!("\"w{n}\"")).collect::<Vec<_>>().join(" | "),
            _ => format!("/{regex}/"),
        };
        text += &format!("T{n}: {of}\n");
    }
    if random.below(4) == 0 {
        text += &format!("%ignore /{}/\n", regex(random, 1, 20).replace('/', ""));
    }
    if random.below(4) == 0 {
        text = text.replacen("start: r0", &format!("start: r0 | %json {}", root(random)), 1);
    }
    text
}

fn gbnf(random: &mut Random) -> String {
    let rules = 1 + random.size(3000);
    let mut text = String::from("root ::= r0\n");
    for n in 0..rules {
        let to = if random.below(3) == 0 { random.below(rules) } else { (n + 1) % rules };
        let repeat = random.any(&["", "?", "*", "+", "{0,900}", "{7}"]);
        let last = if n + 1 == rules { "\"z\"".to_owned() } else { format!("r{to}") };
        text += &format!("r{n} ::= [a-f] {last}{repeat} \"x{n}\" | \"y\"{repeat}\n");
    }
    text
}
