use super::*;
use crate::base::Bytes;
use crate::formats::Gguf;
use crate::formats::gguf::writer::{self, Meta};
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

/// Named tokens stand for no text: a text that is written like one is not one.
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
    let vocabulary = lazy.get(Some(&tokenizer), 300, tokenizer.end_tokens()).unwrap();
    let text = "start: /[a-z<|>]*/ <|call|> %json {\"const\": 7} <[4]>";
    let constraint = Constraint { kind: ConstraintKind::Lark, text: Cow::Borrowed(text) };
    let mut guide = Grammars::new(1).guide(vocabulary, &constraint).unwrap();
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
        let error = lazy.get(tokenizer, BYTES.vocab_size(), &[]).err().unwrap();
        assert!(error.status == crate::base::Status::Unsupported && error.message.contains(what), "{error}");
    }
}

#[test]
fn a_request_that_needs_too_many_steps_fails_alone() {
    let text = "start: \"p\" A{0,1000} | \"q\" /[a-z]/ start\nA: B{0,1000}\nB: C{0,1000}\nC: \"x\" | \"y\"";
    let constraint = Constraint { kind: ConstraintKind::Lark, text: Cow::Borrowed(text) };
    let grammars = Grammars::new(1);
    let guide = || grammars.guide(vocabulary(), &constraint).unwrap();
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
    // Those that come get a lexer that has not failed.
    push(&mut guide(), b'q').unwrap();
    assert_eq!(grammars.totals().compiled.load(std::sync::atomic::Ordering::Relaxed), 2);
}
