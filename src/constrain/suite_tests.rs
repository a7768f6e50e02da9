//! Results for schemas from folders named in the environment: JSON-Schema-Test-Suite's groups with their
//! tests, and plain schemas, of which the compilable ones are counted.
//!
//! `BN_SCHEMA_SUITE=.../tests/draft2020-12 cargo test --lib constrain::suite -- --ignored --nocapture`
//! `BN_SCHEMAS=... BN_SCHEMAS_EVERY=10 cargo test --lib constrain::suite -- --ignored --nocapture`

use super::tests::{grammars, guides_of, matches};
use super::{Constraint, ConstraintKind, JsonOptions, uncounted};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => files(&path, found),
            false if path.extension().is_some_and(|ext| ext == "json") => found.push(path),
            false => {}
        }
    }
}

fn named(variable: &str) -> Vec<(String, Value)> {
    let folder = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} names no folder"));
    let mut paths = Vec::new();
    files(Path::new(&folder), &mut paths);
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&folder).unwrap().display().to_string();
        serde_json::from_slice(&std::fs::read(path).unwrap()).ok().map(|value| (name, value))
    };
    paths.iter().filter_map(read).collect()
}

/// The part of a message that is the same for all schemas refused for the same reason.
fn kind_of(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default().trim_start_matches("constraint: ");
    let words: Vec<&str> = line.split(['\'', '"', '/']).step_by(2).collect();
    words.join("…").chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(90).collect()
}

/// A value's spellings: in its own order of keys, then in others, up to `most`.
fn spellings(value: &Value, most: usize) -> Vec<String> {
    let join = |parts: Vec<Vec<String>>, open: &str, close: &str| {
        let mut all = vec![String::new()];
        for part in parts {
            let longer = |head: &String| {
                let comma = if head.is_empty() { "" } else { "," };
                part.iter().map(|tail| format!("{head}{comma}{tail}")).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).take(most).collect();
        }
        all.into_iter().map(|inner| format!("{open}{inner}{close}")).collect::<Vec<_>>()
    };
    match value {
        Value::Array(all) => join(all.iter().map(|one| spellings(one, most)).collect(), "[", "]"),
        Value::Object(fields) => {
            let pairs: Vec<Vec<String>> = fields
                .iter()
                .map(|(key, of)| {
                    let spelled = spellings(of, most);
                    spelled.into_iter().map(|of| format!("{}:{of}", Value::from(key.as_str()))).collect()
                })
                .collect();
            let mut all = Vec::new();
            orders(&mut pairs.clone(), 0, most, &mut |order| all.extend(join(order.to_vec(), "{", "}")));
            all.truncate(most);
            all
        }
        Value::Number(n) if n.as_f64().is_some_and(|n| n.fract() == 0.0 && n.abs() < 1e15) => {
            vec![format!("{}", n.as_f64().unwrap() as i64)]
        }
        other => vec![other.to_string()],
    }
}

fn orders(
    items: &mut [Vec<String>],
    from: usize,
    most: usize,
    use_one: &mut impl FnMut(&[Vec<String>]),
) -> usize {
    if from >= items.len() {
        use_one(items);
        return 1;
    }
    let mut used = 0;
    for other in from..items.len() {
        if used >= most {
            break;
        }
        items.swap(from, other);
        used += orders(items, from + 1, most - used, use_one);
        items.swap(from, other);
    }
    used
}

#[derive(Default)]
struct Table {
    counts: BTreeMap<String, usize>,
    wrong: Vec<String>,
    narrow: Vec<String>,
}

impl Table {
    fn group(&mut self, name: &str, group: &Value) {
        let grammars = grammars();
        let text = group["schema"].to_string();
        let guides = match guides_of(&grammars, ConstraintKind::JsonSchema, &text) {
            Ok(guides) => guides,
            Err(error) => {
                let valid = group["tests"].as_array().unwrap().iter().any(|test| test["valid"] == true);
                let kind = kind_of(&error.message);
                let which = if valid { "refused" } else { "refused, and nothing is valid" };
                return *self.counts.entry(format!("{which}: {kind}")).or_default() += 1;
            }
        };
        let (mut wrong, mut narrow) = (0, 0);
        for test in group["tests"].as_array().unwrap() {
            let valid = test["valid"] == true;
            let spelled = spellings(&test["data"], 120);
            let accepted = spelled.iter().find(|text| matches(&mut guides(), text).unwrap_or(false));
            let at = format!("{name} | {} | {}", group["description"], test["description"]);
            match (valid, accepted) {
                (false, Some(text)) => {
                    wrong += 1;
                    self.wrong.push(format!("{at}: {text}"));
                }
                (true, None) => {
                    narrow += 1;
                    self.narrow.push(at);
                }
                _ => {}
            }
        }
        let outcome = match (wrong, narrow) {
            (0, 0) => "right",
            (0, _) => "narrower",
            _ => "wrong",
        };
        *self.counts.entry(outcome.to_owned()).or_default() += 1;
    }
}

fn print(counts: &BTreeMap<String, usize>) {
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (what, count) in counts {
        println!("{count:6} {what}");
    }
}

#[test]
#[ignore = "needs JSON-Schema-Test-Suite"]
fn groups_are_right_or_refused() {
    let mut table = Table::default();
    for (name, groups) in named("BN_SCHEMA_SUITE") {
        groups.as_array().unwrap().iter().for_each(|group| table.group(&name, group));
    }
    table.narrow.iter().for_each(|at| println!("narrower: {at}"));
    table.wrong.iter().for_each(|at| println!("wrong: {at}"));
    print(&table.counts);
    assert!(table.wrong.is_empty());
}

#[test]
#[ignore = "needs a folder of schemas"]
fn schemas_compile_or_are_refused() {
    let every = std::env::var("BN_SCHEMAS_EVERY").map_or(1, |n| n.parse().unwrap());
    let mut counts = BTreeMap::<String, usize>::new();
    let mut total = 0;
    for (name, schema) in named("BN_SCHEMAS").into_iter().step_by(every) {
        let constraint = Constraint {
            kind: ConstraintKind::JsonSchema,
            text: schema.to_string().into(),
            json: JsonOptions::default(),
        };
        let made = grammars().guide(super::tests::vocabulary(), &constraint, u64::MAX, &uncounted);
        let outcome = match made {
            Ok(_) => "compiled".to_owned(),
            Err(error) => {
                println!("refused: {name}: {}", error.message.lines().next().unwrap_or_default());
                kind_of(&error.message)
            }
        };
        *counts.entry(outcome).or_default() += 1;
        total += 1;
    }
    print(&counts);
    println!("{total:6} schemas");
}
