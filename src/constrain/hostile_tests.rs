//! Expensive grammars: each is refused, or served within the step limits.

use super::tests::guide;
use super::{ConstraintKind, MAX_BYTES};
use serde_json::{Map, Value, json};
use std::backtrace::{Backtrace, BacktraceStatus};

/// Generates up to `tokens` tokens, each an arbitrary allowed one.
fn run(kind: ConstraintKind, text: &str, tokens: usize) -> Result<usize, String> {
    let mut guide = guide(kind, text).map_err(|e| e.message)?;
    for n in 0..tokens {
        let mask = guide.mask().map_err(|e| e.message)?;
        let allowed: Vec<u32> =
            (0..256).filter(|token| mask.bits()[*token as usize / 32] >> (token % 32) & 1 == 1).collect();
        let Some(&token) = allowed.get(n * 7 % allowed.len().max(1)) else { return Ok(n) };
        guide.push(token).map_err(|e| e.message)?;
    }
    Ok(tokens)
}

fn nested(open: &str, inner: &str, close: &str, levels: usize) -> String {
    format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
}

/// Each grammar with a part of its refusal's message, or several parts separated by `|`; empty if the grammar
/// is served.
fn grammars() -> Vec<(ConstraintKind, String, &'static str)> {
    use ConstraintKind::*;
    let mut all = vec![
        // Deep.
        (JsonSchema, nested("[", "", "]", 10_000), "recursion limit"),
        (JsonSchema, nested(r#"{"items":"#, "true", "}", 10_000), "recursion limit"),
        (JsonSchema, nested(r#"{"items":"#, "true", "}", 120), ""),
        (JsonSchema, nested(r#"{"not":"#, "true", "}", 120), ""),
        (JsonSchema, nested(r#"{"anyOf":["#, "true", "]}", 60), ""),
        (JsonSchema, nested(r#"{"allOf":["#, r#"{"type":"object"}"#, "]}", 60), ""),
        (Regex, nested("(", "a", ")", 10_000), "brackets"),
        (Regex, nested("(", "a", ")", 240), ""),
        (Regex, nested("(", "a", ")*", 240), "invalid regex"),
        (Regex, nested("(a|", "a", ")+", 240), "invalid regex"),
        (Lark, format!("start: {}", nested("(", "\"a\"", ")", 10_000)), "brackets"),
        (Lark, format!("start: {}", nested("(", "\"a\"", ")", 240)), "too deeply nested"),
        (Lark, format!("start: {}", nested("[", "\"a\"", "]", 240)), "too deeply nested"),
        (Lark, format!("start: {}\"a\"", "~".repeat(200_000)), "Expected value"),
        (Lark, format!("start: A\nA: {}\"a\"", "~".repeat(200_000)), "Expected value"),
        (Gbnf, format!("root ::= {}", nested("(", "\"a\"", ")", 10_000)), "brackets"),
        (Gbnf, format!("root ::= {}", nested("(", "\"a\"", ")*", 240)), "too deeply nested"),
        (Regex, format!("a{}", "*".repeat(100_000)), "invalid regex"),
        (Regex, format!("a{}", "{2}".repeat(20)), ""),
        (Regex, "a|".repeat(100_000), ""),
        (Regex, "(a|b)".repeat(50_000), "too large"),
        (Regex, "a?".repeat(50_000), "too many optional"),
        (Regex, "a?".repeat(12_000), "too many optional"),
        (Regex, format!("x{}", "(ab|c)?".repeat(2_500)), "too many optional"),
        (Lark, "start: A\nA: \"x\" | (\"y\" (B & C))\nB: (\"a\"|\"b\")* \"a\" (\"a\"|\"b\"){40} \"c\"\nC: (\"a\"|\"b\")* \"b\" (\"a\"|\"b\"){40} \"c\"".into(), ""),
        (Lark, "start: A\nA: \"x\" | (\"y\" (B & C))\nB: (\"a\"|\"b\")* \"a\" (\"a\"|\"b\"){40}\nC: (\"a\"|\"b\")* \"b\" (\"a\"|\"b\"){40}".into(), ""),
        (JsonSchema, r#"{"anyOf":[{"const":"x"},{"type":"string","pattern":"^y(a|b)*a(a|b){30}$","allOf":[{"pattern":"^y(a|b)*b(a|b){30}$"}]}]}"#.into(), ""),
        (JsonSchema, r#"{"type":"integer","allOf":[{"multipleOf":9973},{"multipleOf":9967},{"multipleOf":997}]}"#.into(), "multipleOf"),
        (JsonSchema, r#"{"type":"number","multipleOf":4294967295}"#.into(), "multipleOf"),
        (Regex, "a".repeat(MAX_BYTES), "too large"),
        (Regex, format!("{}{}", "(".repeat(MAX_BYTES / 2), ")".repeat(MAX_BYTES / 2)), "brackets"),
        // Large.
        (JsonSchema, format!(r#"{{"enum":["{}"]}}"#, "a".repeat(400_000)), "too large"),
        (JsonSchema, format!(r#"{{"enum":[{}0]}}"#, "\"abc\",".repeat(50_000)), ""),
        (JsonSchema, " ".repeat(MAX_BYTES + 1), "524289 bytes"),
        (JsonSchema, r#"{"type":"string","minLength":1000000000}"#.into(), ""),
        (JsonSchema, r#"{"type":"string","maxLength":1000000000}"#.into(), ""),
        (JsonSchema, r#"{"type":"array","minItems":1000000000}"#.into(), ""),
        (JsonSchema, r#"{"type":"array","maxItems":1000000}"#.into(), ""),
        (JsonSchema, r#"{"type":"array","items":{"type":"array","items":{"type":"array","minItems":1000},"minItems":1000},"minItems":1000}"#.into(), ""),
        (JsonSchema, r#"{"type":"object","minProperties":100000}"#.into(), "minProperties"),
        (JsonSchema, r#"{"type":"integer","minimum":-1e308,"maximum":1e308}"#.into(), "minimum is -1e+308"),
        (JsonSchema, r#"{"type":"integer","multipleOf":123456789}"#.into(), "too complex"),
        (JsonSchema, r#"{"type":"number","multipleOf":1e-300}"#.into(), "multipleOf"),
        (JsonSchema, r#"{"x-guidance":{"whitespace_pattern":"(((a{1000}){1000}){1000})"}}"#.into(), ""),
        // Exponential.
        (Regex, "(a{1000}){1000}".into(), ""),
        (Regex, "((a{100}){100}){100}".into(), ""),
        (Regex, "(a|b)*a(a|b){60}".into(), ""),
        (Regex, "(.*a){30}".into(), ""),
        (Regex, "(a*)*(a*)*b".into(), ""),
        (Regex, "(x+x+)+y".into(), ""),
        (Regex, "(([a-z]+)+)+$".into(), ""),
        (Regex, r"\w{1,5000}\d{1,5000}".into(), ""),
        (Regex, r"(?i)(\p{L}|\p{N}){500}".into(), ""),
        (Lark, "start: a a a a\na: b b b b\nb: c c c c\nc: d d d d\nd: e*\ne: \"x\"?".into(), "max is 2000|too long"),
        (Lark, "start: start start | \"a\" |".into(), ""),
        (Lark, "start: \"a\"{1000000000}".into(), ""),
        (Lark, "start: (\"a\"{0,100000}){0,100000}".into(), "max is 2000|too long"),
        (Lark, "start: A{0,1000}\nA: B{0,1000}\nB: C{0,1000}\nC: \"x\" | \"y\"".into(), "too many expressions"),
        (Lark, "start: /(?s:.*)/ & ~/(?s:.*)ab(?s:.*)/".into(), "only supported for tokens"),
        (Lark, "start: A\nA: A2 A2\nA2: A".into(), "circular"),
        (Lark, "%llguidance {\"no_forcing\": true}\nstart: %json {\"$ref\":\"#\"}".into(), "no token matches"),
        // Recursive references.
        (JsonSchema, r##"{"$ref":"#"}"##.into(), "no token matches"),
        (JsonSchema, r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##.into(), "no token matches"),
        (JsonSchema, r##"{"allOf":[{"$ref":"#"},{"$ref":"#"}]}"##.into(), "multiplied out"),
        (JsonSchema, r##"{"anyOf":[{"$ref":"#"},{"type":"null"}]}"##.into(), ""),
        (JsonSchema, r##"{"type":"array","items":{"$ref":"#"},"minItems":1}"##.into(), ""),
        (JsonSchema, r#"{"$ref":"file:///etc/passwd"}"#.into(), "file:///etc/passwd"),
        (JsonSchema, r#"{"pattern":"(a|a)*b","type":"string"}"#.into(), ""),
        (JsonSchema, r#"{"format":"unheard of","type":"string"}"#.into(), ""),
    ];
    let rules = |n: usize, is: &str| {
        let rule = |i: usize| format!("a{i} {is} a{} \"x\"\n", i + 1);
        (0..n).map(rule).collect::<String>() + &format!("a{n} {is} \"y\"")
    };
    // Errors that capture backtraces make deep rules cost too much (`depth`).
    let captures = Backtrace::capture().status() == BacktraceStatus::Captured;
    let deep = if captures { "levels deep" } else { "" };
    all.push((Lark, format!("start: a0\n{}", rules(9_000, ":")), deep));
    all.push((Lark, format!("start: a0\n{}", rules(11_000, ":")), "colons"));
    all.push((Gbnf, format!("root ::= a0\n{}", rules(4_000, "::=")), deep));
    let chain = |part: fn(String) -> Value| {
        let refs = (0..4000).map(|i| (format!("d{i}"), part(format!("#/$defs/d{}", i + 1))));
        let defs: serde_json::Map<_, _> = refs.chain([("d4000".into(), json!({"type": "null"}))]).collect();
        json!({"$ref": "#/$defs/d0", "$defs": defs}).to_string()
    };
    all.push((JsonSchema, chain(|of| json!({"$ref": of})), ""));
    all.push((JsonSchema, chain(|of| json!({"allOf": [{"$ref": of}]})), ""));
    let wide: serde_json::Map<_, _> =
        (0..2000).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    all.push((JsonSchema, json!({"properties": wide}).to_string(), ""));
    all.extend(slow_to_read());
    all.extend(intersections());
    all
}

/// A schema whose names are each looked up in many other schemas.
pub fn many_lookups() -> String {
    let names: serde_json::Map<_, _> = (0..2900).map(|n| (format!("p{n}"), json!(true))).collect();
    let all = [json!({"properties": names})].into_iter().chain(vec![json!({"maxItems": 0}); 20_000]);
    json!({"anyOf": vec![json!({"items": true}); 9], "allOf": all.collect::<Value>()}).to_string()
}

/// Grammars that are refused before llguidance sees them, or that took it minutes.
fn slow_to_read() -> Vec<(ConstraintKind, String, &'static str)> {
    use ConstraintKind::*;
    let proofs = json!({
        "type": "string",
        "allOf": vec![json!({"minLength": 0, "maxLength": 9}); 5000],
        "anyOf": vec![json!({"type": "integer"}); 2500],
        "oneOf": vec![json!({"minLength": 1}); 26],
    });
    let runs: Vec<String> = (0..30_000).map(|n| format!("\"{n}\" root")).collect();
    vec![
        (JsonSchema, proofs.to_string(), "provably|too large|too long"),
        (JsonSchema, many_lookups(), "too long|multiplied out"),
        (Lark, format!("start: %json {}", many_lookups()), "colons"),
        (JsonSchema, json!({"type": "string", "pattern": "}".repeat(400_000)}).to_string(), "too large"),
        (Gbnf, format!("root ::= \"x\" | {}", runs.join("|")), "max is 2000|too long"),
    ]
}

/// Derivatives of intersections are products of those of their parts.
fn intersections() -> Vec<(ConstraintKind, String, &'static str)> {
    use ConstraintKind::*;
    let patterns = |n: usize| (1..=n).map(|n| json!({"pattern": "a".repeat(n)})).collect::<Vec<_>>();
    let named = patterns(30).into_iter().enumerate().map(|(n, of)| (format!("d{n}"), of));
    let refs: Vec<_> = (0..30).map(|n| json!({"$ref": format!("#/$defs/d{n}")})).collect();
    let terminals: Vec<_> = (1..30).map(|n| format!("/(?s:.*){}(?s:.*)/", "a".repeat(n))).collect();
    let letters: Vec<char> = ('b'..='z').chain('A'..='Z').collect();
    let class = |n: usize| format!("[a{}{}]{n}", letters[n % 50], letters[(n / 50 + n % 50 + 1) % 51]);
    let classes: Vec<_> = (0..400).map(class).collect();
    let classes = classes.join("|");
    let together = "too complex together";
    vec![
        (JsonSchema, json!({"type": "string", "allOf": patterns(3)}).to_string(), ""),
        (JsonSchema, json!({"type": "string", "allOf": patterns(21)}).to_string(), together),
        (JsonSchema, json!({"type": "string", "allOf": patterns(60)}).to_string(), together),
        (JsonSchema, json!({"type": "string", "allOf": patterns(120)}).to_string(), "more than 100"),
        (JsonSchema, json!({"items": {"type": "string", "allOf": patterns(21)}}).to_string(), together),
        (JsonSchema, json!({"type": "string", "anyOf": [{"allOf": patterns(12)}, {"minLength": 3}], "allOf": patterns(12)}).to_string(), together),
        (JsonSchema, json!({"type": "string", "allOf": refs, "$defs": named.collect::<Map<_, _>>()}).to_string(), together),
        (JsonSchema, json!({"type": "string", "pattern": format!("^.*({classes})"), "allOf": [{"pattern": format!("({classes}).*$")}]}).to_string(), together),
        (Lark, format!("start: A\nA: {}", terminals.join(" & ")), together),
        (Lark, format!("start: %json {}", json!({"type": "string", "allOf": patterns(21)})), together),
    ]
}

#[test]
fn grammars_that_are_made_to_cost_are_refused_or_served() {
    for (kind, text, why) in grammars() {
        let shown: String = text.chars().take(100).collect();
        match run(kind, &text, 200) {
            Ok(_) => assert_eq!(why, "", "{kind:?} {shown} is served"),
            Err(message) => {
                let known = why.split('|').any(|why| !why.is_empty() && message.contains(why));
                assert!(known, "{kind:?} {shown}: {message}");
                assert!(!message.contains(".rs:"), "{message}");
            }
        }
    }
}
