use super::*;
use crate::text::Tokenizer;
use std::borrow::Cow;
use std::sync::LazyLock;

pub static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::bytes().unwrap());
static VOCABULARY: LazyVocabulary = LazyVocabulary::new();

pub fn vocabulary() -> &'static Vocabulary {
    VOCABULARY.get(Some(&BYTES), BYTES.vocab_size(), BYTES.end_tokens()).unwrap()
}

pub fn guide(kind: ConstraintKind, text: &str) -> crate::base::Result<Guide> {
    Grammars::new(1).guide(vocabulary(), &Constraint { kind, text: Cow::Borrowed(text) })
}

/// Whether `text` is allowed byte by byte, and an end behind it.
fn accepts(kind: ConstraintKind, grammar: &str, text: &str) -> bool {
    let mut guide = guide(kind, grammar).unwrap();
    let allows = |guide: &mut Guide, token: u32| {
        let mask = guide.mask().unwrap();
        mask.bits()[token as usize / 32] >> (token % 32) & 1 == 1
    };
    for byte in text.bytes() {
        if !allows(&mut guide, byte.into()) {
            return false;
        }
        guide.push(byte.into()).unwrap();
    }
    allows(&mut guide, 256)
}

#[test]
fn what_a_grammar_says_is_allowed_and_nothing_else() {
    use ConstraintKind::*;
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}"#;
    let sum = "root ::= term (\"+\" term)*\nterm ::= \"(\" root \")\" | [0-9]+";
    for (kind, grammar, good, bad) in [
        (JsonSchema, schema, r#"{ "a" : 17 }"#, r#"{"a":"b"}"#),
        (JsonSchema, schema, r#"{"a":17}"#, r#"{}"#),
        (JsonObject, "", r#"{"x": [1, null, {"y": 2}]}"#, "[1]"),
        (Regex, "a{2,3}(b|c/)", "aac/", "aaaab"),
        (Lark, "start: \"a\" start | \"b\"", "aaab", "aba"),
        (Gbnf, sum, "1+(22+3)", "1+(22+3"),
        (Gbnf, "root ::= ws \"x\" ws\nws ::= [ \\t]*", " x", "y"),
    ] {
        assert!(accepts(kind, grammar, good), "{grammar}: {good}");
        assert!(!accepts(kind, grammar, bad), "{grammar}: {bad}");
    }
}
