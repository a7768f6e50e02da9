//! SentencePiece vocabularies from GGUF metadata: cases that golden files cannot show.

use super::*;
use crate::base::Status;
use crate::formats::gguf::writer::{Meta, Writer};
use proptest::prelude::*;

/// 0 `<unk>`, 1 `<s>`, 2 `</s>`, 3.. bytes, then `pieces` with falling scores, then `<tag>` (user-defined).
pub(super) struct Toy {
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    extra: Vec<(&'static str, Meta)>,
}

impl Toy {
    fn new(pieces: &[&str]) -> Self {
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
        let mut types = vec![2, 3, 3];
        tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
        types.resize(tokens.len(), 6);
        tokens.extend(pieces.iter().map(|p| p.to_string()));
        types.resize(tokens.len(), 1);
        tokens.push("<tag>".into());
        types.push(4);
        let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
        Self { tokens, scores, types, extra: Vec::new() }
    }

    pub(super) fn usual() -> Self {
        Self::new(&["▁a", "aa", "aaaa", "▁▁", "▁▁▁▁", "ab", "abc", "▁", "a", "b", "c", "é"])
    }

    fn with(mut self, key: &'static str, value: Meta) -> Self {
        self.extra.push((key, value));
        self
    }

    fn writer(&self) -> Writer {
        let mut w = Writer::new()
            .meta("tokenizer.ggml.model", "llama")
            .meta("tokenizer.ggml.tokens", Meta::Strs(self.tokens.clone()))
            .meta("tokenizer.ggml.scores", Meta::F32s(self.scores.clone()))
            .meta("tokenizer.ggml.token_type", Meta::I32s(self.types.clone()));
        for (key, value) in &self.extra {
            w.pairs.retain(|(k, _)| k != key);
            w = w.meta(key, value.clone());
        }
        w
    }

    fn try_load(&self) -> Result<Tokenizer> {
        Tokenizer::from_gguf(&Gguf::from_bytes(self.writer().bytes(), "test.gguf")?, &|_| {})
            .map(Option::unwrap)
    }

    pub(super) fn load(&self) -> Tokenizer {
        self.try_load().unwrap()
    }

    fn shown(&self, text: &str, parse_special: bool) -> String {
        let ids = self.load().encode(text, false, parse_special).unwrap();
        ids.iter().map(|&id| self.tokens[id as usize].as_str()).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn the_best_score_wins_and_the_leftmost_of_equals() {
    let mut toy = Toy::usual();
    assert_eq!(toy.shown("aab", false), "▁a ab");
    assert_eq!(toy.shown("aaaaa", false), "▁a aaaa");
    assert_eq!(toy.shown("é€", false), "▁ é <0xE2> <0x82> <0xAC>");
    // With equal scores, merging goes from the left.
    toy.scores.fill(0.0);
    assert_eq!(toy.shown("aab", false), "▁a ab");
    assert_eq!(toy.with("tokenizer.ggml.add_space_prefix", Meta::Bool(false)).shown("aaab", false), "aa ab");
}

/// As llama.cpp gives them for the same vocabulary.
#[test]
fn merges_in_place_of_scores() {
    let merges = ["▁ a", "a a", "aa aa", "▁ ▁", "▁▁ ▁▁", "a b", "ab c"].map(String::from).to_vec();
    let of = |merges: Vec<String>| {
        let mut toy =
            Toy::new(&["▁a", "aa", "aaaa", "▁▁", "▁▁▁▁", "ab", "abc", "▁", "a", "b", "c", "é", "bc"])
                .with("tokenizer.ggml.model", Meta::from("gemma4"))
                .with("tokenizer.ggml.merges", Meta::Strs(merges))
                .with("tokenizer.ggml.add_space_prefix", Meta::Bool(false));
        toy.scores.fill(-1000.0);
        toy
    };
    let toy = of(merges.clone());
    for (text, want) in [
        ("aab", "aa b"),
        ("aaaaa", "aaaa a"),
        (" aab", "▁a ab"),
        ("   a", "▁▁ ▁a"),
        ("é€", "é <0xE2> <0x82> <0xAC>"),
        ("a<tag>b", "a <tag> b"),
        ("abcabc", "abc abc"),
        // No merge makes "bc".
        ("bc", "b c"),
    ] {
        assert_eq!(toy.shown(text, false), want, "{text}");
    }
    for wrong in ["aa", "a ", "a d", "b b"] {
        let with = [merges.clone(), vec![wrong.to_owned()]].concat();
        let error = of(with).try_load().err().unwrap();
        assert!(error.status == Status::BadModel && error.message.contains("merges"), "{wrong}: {error}");
    }
}

#[test]
fn spaces_before_texts_and_behind_specials() {
    let toy = Toy::usual();
    assert_eq!(toy.shown("a</s>a<tag>b", true), "▁a </s> ▁a <tag> ▁ b");
    // The user-defined token is always found, the control token is not.
    assert_eq!(toy.shown("a<tag>b", false), "▁a <tag> ▁ b");
    assert!(!toy.shown("</s>", false).contains("</s>"));
    assert_eq!(toy.shown("   a", false), "▁▁ ▁ ▁a");
    assert_eq!(toy.shown("", true), "");
    let t = toy.load();
    let ids = t.encode("a a", true, false).unwrap();
    assert_eq!((ids[0], t.decode(&ids).unwrap().as_str()), (1, "a a"));
    // A token that continues a prompt keeps its space.
    assert_eq!(t.token_bytes(*ids.last().unwrap()), Some(&b" a"[..]));
    let toy = Toy::usual().with("tokenizer.ggml.add_space_prefix", Meta::Bool(false));
    assert_eq!(toy.shown("a</s>a", true), "a </s> a");
    assert_eq!(toy.load().decode(&toy.load().encode(" a", false, false).unwrap()).unwrap(), " a");
}

#[test]
fn without_byte_tokens_a_run_is_one_unknown() {
    let mut toy = Toy::usual();
    toy.types[3..259].fill(5);
    assert_eq!(toy.shown("a€€xb", false), "▁a <unk> b");
    assert_eq!(toy.load().fewest_tokens(&"a".repeat(1 << 16)), 0);
    toy.types[0] = 5;
    assert_eq!(toy.shown("a€€xb", false), "▁a b");
}

#[test]
fn contradictions_name_their_key() {
    let refused = |toy: &Toy, parts: &[&str]| {
        let e = toy.try_load().err().expect("must be refused");
        assert_eq!(e.status, Status::BadModel, "{}", e.message);
        parts.iter().for_each(|part| assert!(e.message.contains(part), "{} lacks {part}", e.message));
    };
    let bent = |bend: &dyn Fn(&mut Toy)| {
        let mut toy = Toy::usual();
        bend(&mut toy);
        toy
    };
    refused(&bent(&|t| t.scores.truncate(7)), &["tokenizer.ggml.scores", "7 entries"]);
    refused(&bent(&|t| t.scores[9] = f32::NAN), &["tokenizer.ggml.scores", "entry 9"]);
    refused(&bent(&|t| t.tokens[5] = "<0xg0>".into()), &["tokenizer.ggml.tokens", "token 5", "byte"]);
    refused(&bent(&|t| t.tokens[260] = "▁a".into()), &["tokenizer.ggml.tokens", "twice"]);
    refused(
        &Toy::usual().with("tokenizer.ggml.unknown_token_id", Meta::U32(9999)),
        &["unknown_token_id", "9999"],
    );
    let charsmap = Toy::usual().with("tokenizer.ggml.precompiled_charsmap", Meta::U32(0));
    assert_eq!(charsmap.try_load().err().unwrap().status, Status::Unsupported);
    let mut w = Toy::usual().writer();
    w.pairs.retain(|(key, _)| key != "tokenizer.ggml.scores");
    let gguf = Gguf::from_bytes(w.bytes(), "test.gguf").unwrap();
    assert!(Tokenizer::from_gguf(&gguf, &|_| {}).err().unwrap().message.contains("tokenizer.ggml.scores"));
}

/// Quadratic time in any of these would take hours.
#[test]
fn a_mebibyte_of_anything_takes_a_moment() {
    let across = Toy::new(&["▁a", "a▁a", "aa", "▁▁", "▁", "a"]);
    for toy in [Toy::usual(), across] {
        let t = toy.load();
        for unit in ["a", " ", "ab", "é", "€", " a", "\n", "<tag>", "<"] {
            let text = unit.repeat((1 << 20) / unit.len());
            assert_eq!(t.decode(&t.encode(&text, false, true).unwrap()).unwrap(), text);
        }
    }
    let e = Toy::usual().load().encode(&"a".repeat(3 << 20), false, false).unwrap_err();
    assert_eq!(e.status, Status::TooLong);
    // Words end where spaces begin, so any number of words is accepted.
    assert!(Toy::usual().load().encode(&"a ".repeat(2 << 20), false, false).is_ok());
}

proptest! {
    #[test]
    fn any_text_comes_back(text in "\\PC*|[ab c<tag>\n]*") {
        // Text after a user-defined token gets a leading space, as every text does.
        prop_assume!(!text.contains("<tag>"));
        let t = Toy::usual().load();
        let ids = t.encode(&text, false, false).unwrap();
        prop_assert!(ids.len() >= t.fewest_tokens(&text));
        prop_assert_eq!(t.decode(&ids).unwrap(), text.replace('▁', " "));
    }

    /// Damages bytes of the metadata: loading returns an error or a tokenizer, but never panics.
    #[test]
    fn bent_metadata_is_refused_or_works(at in any::<proptest::sample::Index>(), byte in any::<u8>(), more in any::<u8>()) {
        let mut bytes = Toy::usual().writer().build();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let other = (at * 7 + 13) % bytes.len();
        bytes[other] ^= more & 3;
        if let Ok(gguf) = Gguf::from_bytes(crate::base::Bytes::new(bytes), "bent.gguf") {
            match Tokenizer::from_gguf(&gguf, &|_| {}) {
                Ok(Some(t)) => drop(t.encode("aab é </s> <tag>", true, true).map(|ids| t.decode(&ids).unwrap())),
                Ok(None) => {}
                Err(e) => prop_assert!(e.message.contains("bent.gguf"), "{}", e.message),
            }
        }
    }
}
