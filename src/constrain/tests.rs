use super::*;
use crate::base::Bytes;
use crate::formats::Gguf;
use crate::formats::gguf::writer::{self, Meta};
use crate::text::Tokenizer;
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

pub static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::bytes().unwrap());
static VOCABULARY: LazyVocabulary = LazyVocabulary::new();

pub fn vocabulary() -> &'static Arc<Vocabulary> {
    VOCABULARY.get(Some(&BYTES), BYTES.vocab_size(), BYTES.end_tokens(), || None).unwrap()
}

pub fn grammars() -> Grammars {
    Grammars::new(1, u64::MAX, || None)
}

pub fn guide(kind: ConstraintKind, text: &str) -> crate::base::Result<Guide> {
    grammars().guide(vocabulary(), &plain(kind, text), u64::MAX, &uncounted)
}

/// A constraint with the default options.
pub fn plain(kind: ConstraintKind, text: &str) -> Constraint<'_> {
    Constraint { kind, text: Cow::Borrowed(text), json: JsonOptions::default() }
}

/// Makes guides of a grammar that is compiled once.
pub fn guides_of<'a>(
    grammars: &'a Grammars,
    kind: ConstraintKind,
    text: &'a str,
) -> crate::base::Result<impl Fn() -> Guide + use<'a>> {
    let guide = move || grammars.guide(vocabulary(), &plain(kind, text), u64::MAX, &uncounted);
    guide().map(|_| move || guide().unwrap())
}

/// Returns true if `text` is allowed byte by byte, and an end after it.
pub fn matches(guide: &mut Guide, text: &str) -> crate::base::Result<bool> {
    let allows = |guide: &mut Guide, token: u32| {
        guide.mask().map(|mask| mask.bits()[token as usize / 32] >> (token % 32) & 1 == 1)
    };
    for byte in text.bytes() {
        if !allows(guide, byte.into())? {
            return Ok(false);
        }
        guide.push(byte.into())?;
    }
    allows(guide, 256)
}

fn accepts(kind: ConstraintKind, grammar: &str, text: &str) -> bool {
    matches(&mut guide(kind, grammar).unwrap(), text).unwrap()
}

#[test]
fn what_a_grammar_says_is_allowed_and_nothing_else() {
    use ConstraintKind::*;
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}"#;
    let sum = "root ::= term (\"+\" term)*\nterm ::= \"(\" root \")\" | [0-9]+";
    for (kind, grammar, good, bad) in [
        (JsonSchema, schema, "{\n  \"a\": 17\n}", r#"{"a":"b"}"#),
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

/// Texts, and whether each is accepted with tight, compact and flexible white space.
#[test]
fn white_space_is_what_printers_write_and_no_more() {
    let schema =
        r#"{"type":"object","properties":{"a":{"type":"array"},"b":{}},"additionalProperties":false}"#;
    let none = r#"{"x-guidance":{"whitespace_flexible":false},"type":"object"}"#;
    let loose = "{ \"a\" : [ ] }";
    for (text, wanted) in [
        (r#"{"a":[1,2],"b":{}}"#, [true, true, true]),
        (r#"{"a": [1, 2], "b": {}}"#, [true, false, true]),
        ("{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}", [true, false, true]),
        ("{\n\t\"a\": []\n}", [true, false, true]),
        (loose, [false, false, true]),
        (r#"{  "a": []}"#, [false, false, true]),
        (r#"{"a":  []}"#, [false, false, true]),
        ("{\n\n\"a\": []}", [false, false, true]),
        ("{\r\n\"a\": []}", [false, false, true]),
        ("{\n \t\"a\": []}", [false, false, true]),
        (&format!("{{\n{}\"a\": []}}", " ".repeat(32)), [true, false, false]),
        (&format!("{{\n{}\"a\": []}}", " ".repeat(33)), [false; 3]),
        (&format!("{{{}\"a\": []}}", " ".repeat(30)), [false, false, true]),
    ] {
        let spaces = [WhiteSpace::Tight, WhiteSpace::Compact, WhiteSpace::Flexible];
        for (white_space, wanted) in spaces.into_iter().zip(wanted) {
            let json = JsonOptions { white_space, ..Default::default() };
            let of = |kind, schema| {
                let constraint = Constraint { kind, text: Cow::Borrowed(schema), json };
                matches(&mut grammars().guide(vocabulary(), &constraint, u64::MAX, &uncounted).unwrap(), text)
                    .unwrap()
            };
            let lark = format!("// %json {{}}\nstart: %json {schema}");
            assert_eq!(of(ConstraintKind::JsonSchema, schema), wanted, "{text} {white_space:?}");
            assert_eq!(of(ConstraintKind::Lark, &lark), wanted, "{text} {white_space:?} in a grammar");
            assert_eq!(of(ConstraintKind::JsonObject, ""), wanted, "{text} {white_space:?} without a schema");
            let compact = !text.contains([' ', '\n']);
            assert_eq!(of(ConstraintKind::JsonSchema, none), compact, "{text}: the schema says");
        }
    }
}

/// White space set by the request's option, or by the schema, which takes precedence.
#[test]
fn formats_that_are_not_known_are_refused_or_ignored() {
    let schema = |guidance: &str| format!(r#"{{"type":"string","format":"of no name"{guidance}}}"#);
    let says = |what: &str| schema(&format!(r#","x-guidance":{{"unknown_formats":"{what}"}}"#));
    for (text, known_formats, wanted) in [
        (schema(""), true, "the format of no name is not known"),
        (schema(""), false, ""),
        (says("ignore"), true, ""),
        (says("refuse"), false, "the format of no name is not known"),
        (says("drop"), true, "not \"ignore\" or \"refuse\""),
    ] {
        let json = JsonOptions { known_formats, ..Default::default() };
        let constraint = Constraint { kind: ConstraintKind::JsonSchema, text: text.as_str().into(), json };
        match grammars().guide(vocabulary(), &constraint, u64::MAX, &uncounted) {
            Ok(mut guide) => assert!(wanted.is_empty() && matches(&mut guide, "\"x\"").unwrap(), "{text}"),
            Err(error) => {
                assert!(!wanted.is_empty() && error.message.contains(wanted), "{text}: {error}");
            }
        }
    }
}

/// Named tokens stand for no text: text spelled like a token's name does not match it.
#[test]
fn grammars_name_control_tokens() {
    let pair = |key: &str, value: Meta| (format!("tokenizer.ggml.{key}"), value);
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into(), "<|call|>".into(), "[END]".into()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let types: Vec<i32> = (0..tokens.len()).map(|id| [2, 3, 3, 3, 3].get(id).copied().unwrap_or(6)).collect();
    let pairs = [
        pair("model", "llama".into()),
        pair("scores", Meta::F32s(vec![0.0; tokens.len()])),
        pair("tokens", Meta::Strs(tokens)),
        pair("token_type", Meta::I32s(types)),
        pair("eos_token_id", Meta::U32(2)),
    ];
    let gguf = Gguf::from_bytes(Bytes::new(writer::metadata_only(&pairs)), "x").unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf, &|_| {}).unwrap().unwrap();
    let lazy = LazyVocabulary::new();
    // The model has more tokens than its tokenizer.
    let vocabulary = lazy.get(Some(&tokenizer), 300, tokenizer.end_tokens(), || None).unwrap();
    let text = "start: /[a-z<|>]*/ <|call|> %json {\"const\": 7} <[4]>";
    let constraint = plain(ConstraintKind::Lark, text);
    let mut guide = grammars().guide(vocabulary, &constraint, u64::MAX, &uncounted).unwrap();
    let byte = |byte: u8| 5 + u32::from(byte);
    let allowed = |guide: &mut Guide, token: u32| {
        guide.mask().unwrap().bits()[token as usize / 32] >> (token % 32) & 1 == 1
    };
    for (n, token) in [byte(b'a'), byte(b'<'), 3, byte(b'7'), 4].into_iter().enumerate() {
        for id in 0..300 {
            let in_text =
                (5..261).contains(&id) && b"abcdefghijklmnopqrstuvwxyz<|>".contains(&((id - 5) as u8));
            let wanted = if n < 3 { in_text || id == 3 } else { id == token };
            assert_eq!(allowed(&mut guide, id), wanted, "{id} at {n}");
        }
        guide.push(token).unwrap();
    }
    assert!(guide.mask().unwrap().complete() && allowed(&mut guide, 2));
    assert_eq!(guide.mask().unwrap().bits().iter().map(|word| word.count_ones()).sum::<u32>(), 1);
}

#[test]
fn a_model_without_ends_or_tokenizer_has_no_constraints() {
    let lazy = LazyVocabulary::new();
    for (tokenizer, what) in [(Some(&*BYTES), "no end token"), (None, "no tokenizer")] {
        let error = lazy.get(tokenizer, BYTES.vocab_size(), &[], || None).err().unwrap();
        assert!(error.status == crate::base::Status::Unsupported && error.message.contains(what), "{error}");
    }
}

#[test]
fn a_request_that_needs_too_many_steps_fails_alone() {
    let text = "start: \"p\" A{0,1000} | \"q\" /[a-z]/ start\nA: B{0,1000}\nB: C{0,1000}\nC: \"x\" | \"y\"";
    let constraint = plain(ConstraintKind::Lark, text);
    let grammars = grammars();
    let guide = || grammars.guide(vocabulary(), &constraint, u64::MAX, &uncounted).unwrap();
    let push = |guide: &mut Guide, byte: u8| guide.push(byte.into());
    let (mut greedy, mut modest) = (guide(), guide());
    push(&mut modest, b'q').unwrap();
    modest.mask().unwrap();
    push(&mut greedy, b'p').unwrap();
    let failed =
        (0..1000).find_map(|n| push(&mut greedy, b"xy"[n % 2]).and_then(|()| greedy.mask().map(drop)).err());
    let message = failed.unwrap().message;
    assert!(message.contains("too many expressions"), "{message}");
    assert_eq!(greedy.mask().err().unwrap().message, message, "it stays so");
    for byte in *b"aqbqcp" {
        push(&mut modest, byte).unwrap();
        modest.mask().unwrap();
    }
    // New requests get a lexer that has not failed.
    push(&mut guide(), b'q').unwrap();
    assert_eq!(grammars.totals().compiled.load(std::sync::atomic::Ordering::Relaxed), 2);
}

/// Drafts that are right, or wrong from some token on. They may contain an end token or be empty.
#[test]
fn masks_ahead_are_those_without() {
    use ConstraintKind::*;
    let schema = r#"{"type":"array","items":{"type":"object","properties":{"a":{"type":"integer"},
        "b":{"type":"string","format":"date"}},"required":["a","b"],"additionalProperties":false}}"#;
    let sum = "root ::= term (\"+\" term)*\nterm ::= \"(\" root \")\" | [0-9]+";
    for (kind, grammar, text) in [
        (JsonSchema, schema, r#"[{"a": 17, "b": "2024-02-29"}, {"a": -5, "b": "1999-12-31"}]"#),
        (JsonObject, "", r#"{"x": [1, null, {"y": "\n\"é"}], "x": 2.5e-7}"#),
        (Regex, "(ab|abc|c)*d", "ababcabccabd"),
        (Lark, "start: \"a\" start \"b\" | \"b\"", "aaabbbb"),
        (Gbnf, sum, "1+(22+3)+((4))"),
        (Lark, "start: x /b+/\nx[max_tokens=9]: /a+/", "aaaaaabb"),
    ] {
        let grammars = grammars();
        let guide = guides_of(&grammars, kind, grammar).unwrap();
        for step in 1..8 {
            let (mut plain, mut ahead) = (guide(), guide());
            for (at, &byte) in text.as_bytes().iter().enumerate() {
                let mut drafts: Vec<u32> = text.as_bytes()[at..].iter().map(|&byte| byte.into()).collect();
                drafts.truncate(step + at % 3);
                if let Some(draft) = drafts.get_mut(at * step % 5) {
                    *draft = [*draft, 256, 32, 1_000_000, 50][(at + step) % 5];
                }
                if at.is_multiple_of(step) {
                    ahead.look_ahead(&drafts).unwrap();
                }
                let (mask, wanted) = (ahead.mask().unwrap(), plain.mask().unwrap());
                assert_eq!(mask.bits(), wanted.bits(), "{grammar} {step} {at}");
                assert_eq!(mask.complete(), wanted.complete());
                ahead.push(byte.into()).unwrap();
                plain.push(byte.into()).unwrap();
            }
            assert_eq!(ahead.mask().unwrap().bits(), plain.mask().unwrap().bits(), "{grammar} {step}");
        }
    }
}

#[test]
fn right_drafts_cost_no_more_masks() {
    let grammars = grammars();
    let mut guide = guides_of(&grammars, ConstraintKind::Regex, "[a-z]{20}").unwrap()();
    let text: Vec<u32> = (0..20).map(|n| u32::from(b'a') + n).collect();
    for n in 0..20 {
        guide.look_ahead(&text[n..text.len().min(n + 5)]).unwrap();
        guide.push(text[n]).unwrap();
    }
    assert!(guide.mask().unwrap().complete());
    grammars.stop();
    assert_eq!(grammars.totals().masks.load(std::sync::atomic::Ordering::Relaxed), 21);
}

/// The third draft takes too many steps.
#[test]
fn a_draft_that_fails_fails_no_request() {
    let text = "start: \"p\" A{0,1000} | \"q\" /[a-z]/ start\nA: B{0,1000}\nB: C{0,1000}\nC: \"x\" | \"y\"";
    let grammars = grammars();
    let guide = guides_of(&grammars, ConstraintKind::Lark, text).unwrap();
    let (mut plain, mut ahead) = (guide(), guide());
    for byte in *b"qaqbqcqd" {
        let drafts: Vec<u32> = (0..1000).map(|n| u32::from(b"pxy"[n.min(1 + n % 2)])).collect();
        ahead.look_ahead(&drafts).unwrap();
        assert_eq!(ahead.mask().unwrap().bits(), plain.mask().unwrap().bits());
        ahead.push(byte.into()).unwrap();
        plain.push(byte.into()).unwrap();
    }
    assert_eq!(grammars.totals().compiled.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn a_wrong_expression_is_refused_in_words() {
    for (text, why) in [
        ("(yes|no", "invalid regex: unclosed group"),
        ("[z-a]", "invalid regex: invalid character class range"),
        ("a{2,1}", "invalid regex: invalid repetition count range"),
    ] {
        let error = guides_of(&grammars(), ConstraintKind::Regex, text).err().unwrap();
        assert!(error.message.contains(why), "{text}: {error}");
    }
}
