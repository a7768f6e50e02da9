//! Outputs match their constraints.
use crate::support::{STORY, demo, generate, wants};
use bn::{Constraint, ErrorKind, JsonFlags, Request, Sampling};
use serde_json::Value;

const SCHEMA: &str = r#"{"type":"object","properties":{"on":{"type":"boolean"},"size":{"enum":["small","large"]}},
    "required":["on","size"],"additionalProperties":false,"x-guidance":{"whitespace_flexible":false}}"#;

fn constrained(constraint: Constraint) -> Request {
    Request { max_new_tokens: 12, constraint: Some(constraint), ..Request::prompt(STORY) }
}

#[test]
fn outputs_match_constraints_of_each_kind() {
    // 11
    let engine = demo();
    let schema = Constraint::json_schema(SCHEMA);
    engine.check_constraint(&schema).unwrap();
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    let request = Request { sampling, max_new_tokens: 128, ..constrained(schema) };
    let lamp: Value = serde_json::from_str(&generate(&engine, &request).text).unwrap();
    assert!(lamp["on"].is_boolean() && (lamp["size"] == "small" || lamp["size"] == "large"), "{lamp}");

    let text = |constraint| generate(&engine, &constrained(constraint)).text;
    assert!(text(Constraint::json_object()).starts_with('{'));
    let word = text(Constraint::regex("[a-f]{4}|[0-9]{3}"));
    assert!(
        word.len() == 4 && word.bytes().all(|b| (b'a'..=b'f').contains(&b)) || word.parse::<u32>().is_ok(),
        "{word}"
    );
    let nested = text(Constraint::lark(r#"start: "<" start ">" | "x""#));
    assert!(nested.trim_start_matches('<').trim_end_matches('>').len() <= 1, "{nested}");
    let gbnf = text(Constraint::gbnf(r#"root ::= [a-c]{2,5} ("!" | "?")"#));
    assert!(gbnf.ends_with(['!', '?']) && (3..=6).contains(&gbnf.len()), "{gbnf}");
    assert_eq!(
        text(Constraint::default()),
        generate(&engine, &Request { max_new_tokens: 12, ..Request::prompt(STORY) }).text
    );

    let compact = Constraint::json_object().with_json(JsonFlags { compact: true, ..JsonFlags::default() });
    engine.check_constraint(&compact).unwrap();
    text(compact);
    let stats = engine.stats().unwrap();
    assert_eq!((stats.grammars_compiled, stats.grammars_reused), (6, 2));
}

#[test]
fn wrong_constraints_are_refused() {
    let engine = demo();
    wants(engine.check_constraint(&Constraint::regex("a(")), ErrorKind::InvalidArgument, "constraint");
    wants(
        engine.generate(&constrained(Constraint::gbnf("root ::= x"))),
        ErrorKind::InvalidArgument,
        "no rule named x",
    );
    let both = JsonFlags { compact: true, flexible: true, ..JsonFlags::default() };
    wants(
        engine.check_constraint(&Constraint::json_object().with_json(both)),
        ErrorKind::InvalidArgument,
        "",
    );
}
