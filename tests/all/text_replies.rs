//! Answers from the public tests of other parsers, and the expected results here (`tests/golden/replies`).

use bn_engine::text::Chat;
use bn_engine::text::reply::{Known, Reply, ReplyParts, Sink, Thoughts, format_named, thoughts_named};
use serde_json::Value;
use std::cell::Cell;
use std::path::Path;

#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

impl Sink for Parsed {
    fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }
    fn reasoning(&mut self, text: &str) {
        self.reasoning.push_str(text);
    }
    fn call(&mut self, _: u32, _: &str, name: &str) {
        self.calls.push((name.to_owned(), String::new()));
    }
    fn arguments(&mut self, _: u32, text: &str) {
        self.calls.last_mut().unwrap().1.push_str(text);
    }
}

fn parse(parts: &ReplyParts, controls: &[&str], pieces: &[&str]) -> Parsed {
    let mut reply = Reply::new(parts.clone(), &|mark| controls.contains(&mark));
    let mut parsed = Parsed::default();
    for piece in pieces {
        match reply.is_mark(piece.as_bytes()) {
            true => reply.mark(piece.as_bytes(), &mut parsed),
            false => reply.push(piece, &mut parsed),
        }
    }
    reply.finish(false, &mut parsed);
    parsed
}

/// The markers of `parts` that vocabularies have as control tokens.
fn markers(parts: &ReplyParts) -> Vec<&'static str> {
    let format = parts.format.unwrap();
    let blocks = format.blocks.iter().flat_map(|block| [block.open, block.close]);
    let thoughts = parts.thoughts.into_iter().flat_map(Thoughts::markers);
    let frame = format.frame.iter().map(|frame| frame.open);
    let all = blocks.chain(thoughts).chain(frame).chain(format.inner.iter().copied());
    let mut all: Vec<_> =
        all.filter(|mark| mark.ends_with(['>', ']']) && !mark[1..].contains("<|")).collect();
    all.sort_unstable_by_key(|mark| usize::MAX - mark.len());
    all
}

/// `text` cut at `markers`, which are pieces of their own.
fn cut<'a>(mut text: &'a str, markers: &[&str]) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let first = markers.iter().filter_map(|mark| Some((text.find(mark)?, mark.len())));
        let (at, length) = first.min_by_key(|&(at, _)| at).unwrap_or((text.len(), 0));
        let (before, rest) = text.split_at(at);
        let (mark, rest) = rest.split_at(length);
        pieces.extend([before, mark].into_iter().filter(|piece| !piece.is_empty()));
        text = rest;
    }
    pieces
}

/// Returns what is wrong with the parts of a case, if anything.
fn differs(case: &Value, parsed: &Parsed) -> Option<String> {
    let text = |name: &str| case[name].as_str().unwrap_or_default();
    let mut wanted: Vec<(&str, Value)> = Vec::new();
    for call in case["calls"].as_array().into_iter().flatten() {
        wanted.push((call[0].as_str().unwrap(), call[1].clone()));
    }
    let mut calls: Vec<(&str, Value)> = Vec::new();
    for (name, arguments) in &parsed.calls {
        calls.push((name, serde_json::from_str(arguments).unwrap_or_else(|_| arguments.as_str().into())));
    }
    if let Some(cut) = case["cut"].as_array() {
        wanted.push((cut[0].as_str().unwrap(), cut[1].clone()));
    }
    let same = (&*parsed.text, &*parsed.reasoning, calls) == (text("text"), text("reasoning"), wanted);
    (!same).then(|| format!("{}\n  {parsed:?}", serde_json::to_string(case).unwrap()))
}

#[test]
fn answers_come_apart_however_they_arrive() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/replies/cases.json");
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let chat = Chat::parse(&format!("{{\"messages\": [], \"tools\": {}}}", cases["tools"])).unwrap();
    let tools: Vec<Known> = chat.tools().map(|tool| Known::of(&tool, &Cell::new(1 << 20))).collect();
    let (mut count, mut wrong) = (0, Vec::new());
    for (name, format) in cases["formats"].as_object().unwrap() {
        for case in format["cases"].as_array().unwrap() {
            let output = case["output"].as_str().unwrap();
            let parts = ReplyParts {
                format: Some(format_named(name).unwrap()),
                thoughts: Some(thoughts_named(format["reasoning_format"].as_str().unwrap()).unwrap()),
                thinking: case["thinking"].as_bool().unwrap_or_default(),
                tools: tools.clone(),
                ..ReplyParts::default()
            };
            let marks = markers(&parts);
            let (spelled, controls) = (case["controls"] != true, case["controls"] != false);
            let parsed = match spelled {
                true => parse(&parts, &[], &[output]),
                false => parse(&parts, &marks, &cut(output, &marks)),
            };
            wrong.extend(differs(case, &parsed).map(|what| format!("{name}: {what}")));
            for (at, _) in output.char_indices().filter(|_| spelled) {
                let halves = parse(&parts, &[], &[&output[..at], &output[at..]]);
                assert_eq!(halves, parsed, "{name}: {output:?} cut at {at}");
            }
            if spelled && controls {
                let tokens = parse(&parts, &marks, &cut(output, &marks));
                wrong.extend(differs(case, &tokens).map(|what| format!("{name}, by control tokens: {what}")));
            }
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 200, "{count}");
}
