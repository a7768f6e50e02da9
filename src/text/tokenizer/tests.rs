use super::*;
use crate::base::Status;
use crate::formats::gguf::writer::{Meta, Writer};
use crate::text::{ChatTemplate, Message};
use bytes::ByteMap;
use proptest::prelude::*;
use std::cell::RefCell;
use unicode_normalization_alignments::UnicodeNormalization;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER: i32 = 4;

fn _is_shared_by_threads(t: Tokenizer) -> impl Send + Sync {
    t
}

/// A vocabulary with all bytes, a few merges and the specials: 0 `<|bos|>`, 1 `<|eos|>`, 2.. bytes in order, then
/// the results of merges, then `<|eot_id|>`, `<tag>` (user-defined) and the control token `hello`.
pub(super) struct Toy {
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<i32>,
    merges: Vec<String>,
    pre: Option<&'static str>,
    extra: Vec<(&'static str, Meta)>,
}

impl Toy {
    pub(super) fn new() -> Self {
        let map = ByteMap::new();
        let mut tokens: Vec<String> = vec!["<|bos|>".into(), "<|eos|>".into()];
        let mut types = vec![CONTROL, CONTROL];
        tokens.extend((0..=255).map(|b| map.char(b).to_string()));
        types.resize(tokens.len(), NORMAL);
        let merges = ["h e", "l l", "he ll", "Ġ Ġ", "ĠĠ ĠĠ", "x x", "xx xx", "1 2"];
        tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
        types.resize(tokens.len(), NORMAL);
        tokens.extend(["<|eot_id|>", "<tag>", "hello"].map(String::from));
        types.extend([CONTROL, USER, CONTROL]);
        let merges = merges.map(String::from).to_vec();
        Self { tokens, types, merges, pre: Some("qwen2"), extra: Vec::new() }
    }

    fn writer(&self) -> Writer {
        let mut w = Writer::new()
            .meta("general.architecture", "llama")
            .meta("tokenizer.ggml.model", "gpt2")
            .meta("tokenizer.ggml.tokens", Meta::Strs(self.tokens.clone()))
            .meta("tokenizer.ggml.token_type", Meta::I32s(self.types.clone()))
            .meta("tokenizer.ggml.merges", Meta::Strs(self.merges.clone()))
            .meta("tokenizer.ggml.bos_token_id", Meta::U32(0))
            .meta("tokenizer.ggml.eos_token_id", Meta::U32(1));
        if let Some(pre) = self.pre {
            w = w.meta("tokenizer.ggml.pre", pre);
        }
        for (key, value) in &self.extra {
            w.pairs.retain(|(k, _)| k != key);
            w = w.meta(key, value.clone());
        }
        w
    }

    fn with(mut self, key: &'static str, value: impl Into<Meta>) -> Self {
        self.extra.push((key, value.into()));
        self
    }

    pub(super) fn id(&self, token: &str) -> u32 {
        self.tokens.iter().position(|t| t == token).unwrap() as u32
    }

    pub(super) fn load(&self) -> Tokenizer {
        load(&self.writer(), &|_| {}).unwrap().unwrap()
    }
}

fn load(w: &Writer, log: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
    Tokenizer::from_gguf(&Gguf::from_bytes(w.bytes(), "test.gguf").unwrap(), log)
}

fn refused(toy: &Toy, status: Status, parts: &[&str]) {
    let e = load(&toy.writer(), &|_| {}).err().expect("must be refused");
    assert_eq!(e.status, status, "{}", e.message);
    for part in parts.iter().chain(&["test.gguf"]) {
        assert!(e.message.contains(part), "{} lacks {part}", e.message);
    }
}

#[test]
fn merges_and_decodes() {
    let toy = Toy::new();
    let t = toy.load();
    let ids = |tokens: &[&str]| tokens.iter().map(|s| toy.id(s)).collect::<Vec<_>>();
    assert_eq!(t.encode("hello", false, false).unwrap(), ids(&["hell", "o"]));
    assert_eq!(t.encode("    xxx", false, false).unwrap(), ids(&["ĠĠ", "Ġ", "Ġ", "xx", "x"]));
    // qwen2 cuts digits apart before the merge `1 2` can apply.
    assert_eq!(t.encode("12", false, false).unwrap(), ids(&["1", "2"]));
    assert_eq!(t.decode(&t.encode("hello 12é\n", false, false).unwrap()).unwrap(), "hello 12é\n");
    assert!(t.encode("", false, true).unwrap().is_empty());
    assert_eq!((t.bos(), t.vocab_size()), (Some(0), toy.tokens.len()));
    assert_eq!(t.end_tokens(), [1, toy.id("<|eot_id|>")]);
    assert_eq!(t.token_bytes(toy.id("<tag>")), Some(&b"<tag>"[..]));
    assert_eq!(t.token_bytes(toy.id("ĠĠĠĠ")), Some(&b"    "[..]));
    assert_eq!((t.token_bytes(0), t.token_bytes(9999)), (Some(&b""[..]), None));
    let e = t.decode(&[2, 9999]).unwrap_err();
    assert!(e.status == Status::InvalidArgument && e.message.contains("9999"));
    // Longer than any text token: `<|eot_id|>`.
    assert_eq!(t.longest_token(), 10);
    // Two halves of "é" with a control token between them, and half of one.
    assert_eq!(t.decode(&[2 + 0xc3, 0, 2 + 0xa9, 2 + 0xc3]).unwrap(), "é\u{fffd}");
}

#[test]
fn split_rules_differ() {
    let tokens = |pre: &'static str, text: &str| {
        let toy = Toy { pre: Some(pre), ..Toy::new() };
        let t = toy.load();
        t.encode(text, false, false)
            .unwrap()
            .iter()
            .map(|&id| toy.tokens[id as usize].clone())
            .collect::<Vec<_>>()
    };
    for pre in ["gpt-2", "llama-bpe", "llama3"] {
        assert_eq!(tokens(pre, "12"), ["12"]);
    }
    // Groups of three digits: 341 | 2.
    assert_eq!(tokens("llama-bpe", "3412"), ["3", "4", "1", "2"]);
    assert_eq!(tokens("gpt-2", "3412"), ["3", "4", "12"]);
    assert_eq!(tokens("qwen2", "12"), ["1", "2"]);
    // Only llama-bpe takes a word that is a token as that token; no merge leads to this one.
    let mut toy = Toy { pre: Some("llama-bpe"), ..Toy::new() };
    toy.tokens.push("abc".into());
    toy.types.push(NORMAL);
    assert_eq!(toy.load().encode("abc", false, false).unwrap(), [toy.id("abc")]);
    toy.pre = Some("qwen2");
    assert_eq!(toy.load().encode("abc", false, false).unwrap().len(), 3);
}

#[test]
fn special_tokens_only_when_asked() {
    let toy = Toy::new();
    let t = toy.load();
    let text = "he<|eos|><tag>ll<|eot_id|><|eot_id|";
    let plain = t.encode(text, false, false).unwrap();
    // User-defined tokens stand for their text and are found with and without `parse_special`.
    assert!(plain.iter().all(|id| *id == toy.id("<tag>") || (2..toy.id("<|eot_id|>")).contains(id)));
    assert_eq!(plain.iter().filter(|id| **id == toy.id("<tag>")).count(), 1);
    assert_eq!(t.decode(&plain).unwrap(), text);
    let parsed = t.encode(text, false, true).unwrap();
    assert_eq!(parsed[..5], [toy.id("he"), 1, toy.id("<tag>"), toy.id("ll"), toy.id("<|eot_id|>")]);
    assert_eq!(t.decode(&parsed).unwrap(), "he<tag>ll<|eot_id|");
    // A control token whose name is a word: text produces it neither by merges nor as a whole word.
    for pre in ["llama-bpe", "qwen2", "gpt-2"] {
        let t = Toy { pre: Some(pre), ..Toy::new() }.load();
        assert_eq!(t.encode("hello", false, false).unwrap(), [toy.id("hell"), toy.id("o")]);
        assert_eq!(t.encode("hello", false, true).unwrap(), [toy.id("hello")]);
    }
}

#[test]
fn bos_as_the_file_asks() {
    let first = |toy: Toy| toy.load().encode("x", true, false).unwrap()[0];
    let x = Toy::new().id("x");
    assert_eq!(first(Toy::new()), x);
    assert_eq!(first(Toy::new().with("tokenizer.ggml.add_bos_token", Meta::Bool(true))), 0);
    let llama = || Toy { pre: Some("llama-bpe"), ..Toy::new() };
    assert_eq!(first(llama()), 0);
    assert_eq!(first(llama().with("tokenizer.ggml.add_bos_token", Meta::Bool(false))), x);
    let toy = Toy::new().with("tokenizer.ggml.add_bos_token", Meta::Bool(true));
    assert_eq!(toy.load().encode("x", false, false).unwrap(), [x]);
    let mut w = toy.writer();
    w.pairs.retain(|(key, _)| key != "tokenizer.ggml.bos_token_id");
    assert!(load(&w, &|_| {}).err().unwrap().message.contains("tokenizer.ggml.add_bos_token"));
}

#[test]
fn a_written_bos_is_not_doubled() {
    let toy = Toy::new().with("tokenizer.ggml.add_bos_token", Meta::Bool(true));
    let (t, x) = (toy.load(), toy.id("x"));
    assert_eq!(t.encode("<|bos|>x", true, true).unwrap(), [0, x]);
    assert_eq!(t.encode("<|bos|><|bos|>x", true, true).unwrap(), [0, 0, x]);
    assert_eq!(t.encode("x<|bos|>", true, true).unwrap(), [0, x, 0]);
    assert_eq!(t.encode("<|eos|>", true, true).unwrap(), [0, 1]);
    assert_eq!(t.encode("<|bos|>x", false, true).unwrap(), [0, x]);
    // As text it is not a BOS.
    let as_text = t.encode("<|bos|>x", true, false).unwrap();
    assert_eq!((as_text[0], as_text.len() > 3), (0, true));
}

#[test]
fn eos_behind_whole_texts_as_the_file_asks() {
    const ADD: &str = "tokenizer.ggml.add_eos_token";
    let x = Toy::new().id("x");
    let t = Toy::new().load();
    assert_eq!(t.encode_whole("x", true).unwrap(), [x]);
    let toy = Toy::new().with(ADD, Meta::Bool(true)).with("tokenizer.ggml.add_bos_token", Meta::Bool(true));
    let t = toy.load();
    assert_eq!(t.encode_whole("x", true).unwrap(), [0, x, 1]);
    assert_eq!(t.encode("x", true, true).unwrap(), [0, x]);
    assert_eq!(t.encode_whole("x<|eos|>", true).unwrap(), [0, x, 1]);
    assert_eq!(t.encode_whole("<|eos|>x", true).unwrap(), [0, 1, x, 1]);
    let as_text = t.encode("x<|eos|>", true, false).unwrap();
    assert_eq!(t.encode_whole("x<|eos|>", false).unwrap(), [&as_text[..], &[1]].concat());
    let mut w = toy.writer();
    w.pairs.retain(|(key, _)| key != "tokenizer.ggml.eos_token_id");
    assert!(load(&w, &|_| {}).err().unwrap().message.contains(ADD));
}

#[test]
fn chat_template_of_a_file() {
    let of = |pairs: &[(&'static str, Meta)]| {
        let toy = pairs.iter().fold(Toy::new(), |toy, (key, value)| toy.with(key, value.clone()));
        let gguf = Gguf::from_bytes(toy.writer().bytes(), "toy").unwrap();
        let said = RefCell::new(String::new());
        let chat = ChatTemplate::from_gguf(&gguf, &|message| said.borrow_mut().push_str(message));
        (chat, said.into_inner())
    };
    let messages = [Message { role: "user", content: "hi" }];
    let source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}";
    let (chat, _) = of(&[("tokenizer.chat_template", source.into())]);
    assert_eq!(chat.unwrap().unwrap().render(&messages, true).unwrap().text, "<|bos|>hi<|eos|>");
    let (chat, _) = of(&[("tokenizer.chat_template.default", "named".into())]);
    assert_eq!(chat.unwrap().unwrap().render(&messages, true).unwrap().text, "named");
    assert!(of(&[]).0.unwrap().is_none());
    // An unreadable template is logged, and the model works without it.
    let (chat, said) = of(&[("tokenizer.chat_template", "{% nonsense %}".into())]);
    assert!(said.contains("toy") && said.contains("nonsense"), "{said}");
    assert_eq!(chat.unwrap().unwrap().render(&messages, true).unwrap_err().status, Status::Unsupported);
    let error = of(&[("tokenizer.chat_template", Meta::U32(7))]).0.err().unwrap();
    assert!(error.message.contains("tokenizer.chat_template"), "{error}");
}

#[test]
fn files_without_a_tokenizer() {
    assert!(load(&Writer::new().meta("general.architecture", "llama"), &|_| {}).unwrap().is_none());
    assert!(load(&Toy::new().with("tokenizer.ggml.model", "none").writer(), &|_| {}).unwrap().is_none());
    refused(
        &Toy::new().with("tokenizer.ggml.model", "rwkv"),
        Status::Unsupported,
        &["tokenizer.ggml.model", "'rwkv'"],
    );
    let w = Writer::new().meta("tokenizer.ggml.pre", "qwen2");
    assert!(load(&w, &|_| {}).err().unwrap().message.contains("tokenizer.ggml.model"));
}

#[test]
fn missing_split_rule_is_guessed_aloud_or_refused() {
    let said = RefCell::new(String::new());
    let log = |line: &str| *said.borrow_mut() += line;
    for (architecture, name) in [("qwen2", "qwen2"), ("gpt2", "gpt-2"), ("gptneox", "mpt")] {
        for pre in [None, Some("default")] {
            let toy = Toy { pre, ..Toy::new() }.with("general.architecture", architecture);
            assert!(load(&toy.writer(), &log).unwrap().is_some());
            assert!(said.take().contains(&format!("taking {name} from architecture '{architecture}'")));
        }
    }
    let grow = |toy: &mut Toy, size: usize| {
        toy.tokens.extend((toy.tokens.len()..size).map(|i| format!("[{i}]")));
        toy.types.resize(size, NORMAL);
    };
    // Aquila's files are Llama's except for their vocabulary, which is of GPT-2's kind and of a unique size.
    let mut toy = Toy { pre: None, ..Toy::new() }.with("general.architecture", "llama");
    grow(&mut toy, 100_007);
    refused(&toy, Status::Unsupported, &["tokenizer.ggml.pre", "'llama'", "100007"]);
    grow(&mut toy, 100_008);
    assert!(load(&toy.writer(), &log).unwrap().is_some());
    assert!(said.take().contains("taking gpt-2 from architecture 'llama' and a vocabulary of 100008"));
    // BitNet 2B's converters leave the rule out; its vocabulary is Llama 3's.
    let mut toy = Toy { pre: None, ..Toy::new() }.with("general.architecture", "bitnet-b1.58");
    refused(&toy, Status::Unsupported, &["tokenizer.ggml.pre", "'bitnet-b1.58'"]);
    grow(&mut toy, 128_256);
    let t = load(&toy.writer(), &log).unwrap().unwrap();
    assert!(said.take().contains("taking llama-bpe"));
    assert_eq!(t.encode("12", true, false).unwrap(), [0, toy.id("12")]);
    refused(
        &Toy { pre: Some("kimi-k2"), ..Toy::new() },
        Status::Unsupported,
        &["tokenizer.ggml.pre", "'kimi-k2'", "tekken"],
    );
}

#[test]
fn contradictions_name_their_key() {
    const BAD: Status = Status::BadModel;
    let bent = |bend: &dyn Fn(&mut Toy)| {
        let mut toy = Toy::new();
        bend(&mut toy);
        toy
    };
    refused(&bent(&|t| t.types.truncate(5)), BAD, &["tokenizer.ggml.token_type", "5 entries"]);
    refused(&bent(&|t| t.types[7] = 7), BAD, &["tokenizer.ggml.token_type", "entry 7"]);
    refused(&bent(&|t| t.tokens[9] = "b".into()), BAD, &["tokenizer.ggml.tokens", "'b'", "twice"]);
    refused(&bent(&|t| t.tokens[9] = "<|eos|>".into()), BAD, &["tokenizer.ggml.tokens", "twice"]);
    refused(
        &bent(&|t| {
            t.tokens.clear();
            t.types.clear()
        }),
        BAD,
        &["tokenizer.ggml.tokens", "0 tokens"],
    );
    for (merge, part) in [
        ("zz top", "'zz' is no token"),
        ("a b", "'ab' is no token"),
        ("ab", "not two tokens"),
        (" a", "not two tokens"),
        ("a ", "not two tokens"),
        ("h e", "twice"),
        ("<|bos|> a", "'<|bos|>' is no token"),
    ] {
        refused(&bent(&|t| t.merges.push(merge.into())), BAD, &["tokenizer.ggml.merges", "entry 8", part]);
    }
    for key in ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        refused(&Toy::new().with(key, Meta::U32(5000)), BAD, &[key, "5000"]);
        refused(&Toy::new().with(key, "zero"), BAD, &[key, "String"]);
    }
    refused(&Toy::new().with("tokenizer.ggml.tokens", Meta::U32(3)), BAD, &["tokenizer.ggml.tokens", "U32"]);
    refused(&Toy::new().with("tokenizer.ggml.merges", Meta::U32(3)), BAD, &["tokenizer.ggml.merges", "U32"]);
    // Unused fillers may repeat. Without types, all tokens but BOS and EOS count as normal.
    let fillers = bent(&|t| {
        (0..2).for_each(|_| {
            t.tokens.push("[PAD]".into());
            t.types.push(5)
        })
    });
    assert_eq!(fillers.load().token_bytes(fillers.tokens.len() as u32 - 1), Some(&b""[..]));
    let mut w = Toy::new().writer();
    w.pairs.retain(|(key, _)| key != "tokenizer.ggml.token_type");
    let t = load(&w, &|_| {}).unwrap().unwrap();
    assert_eq!((t.token_bytes(1), t.encode("<|eos|>", false, true).unwrap()), (Some(&b""[..]), vec![1]));
}

/// gpt-oss ends its messages with one token, and its answers with others.
#[test]
fn answers_of_messages_end_with_the_last() {
    let ends = |names: &[&str]| {
        let mut toy = Toy::new();
        for name in names {
            toy.tokens.push((*name).into());
            toy.types.push(3);
        }
        let all = toy.load().end_tokens().to_vec();
        let is_end = |name: &&&str| all.contains(&toy.id(name));
        names.iter().filter(is_end).map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ends(&["<|end|>", "<|call|>"]), ["<|end|>"]);
    assert_eq!(
        ends(&["<|end|>", "<|call|>", "<|return|>", "<|endoftext|>"]),
        ["<|call|>", "<|return|>", "<|endoftext|>"]
    );
}

/// As in the `tokenizers` package, the text around such a byte may merge.
#[test]
fn bytes_without_a_token_are_left_out() {
    for pre in ["gpt-2", "qwen2"] {
        let mut toy = Toy { pre: Some(pre), ..Toy::new() };
        toy.tokens[2 + 7] = "[gone]".into();
        let t = toy.load();
        let ids = |text: &str| t.encode(text, false, false).unwrap();
        assert_eq!(ids("a bell: \x07"), ids("a bell: "));
        assert!(ids(&"\x07".repeat(1000)).is_empty());
        assert_eq!(t.fewest_tokens(&"\x07".repeat(1000)), 0);
        // Sizes of texts bound their tokens only where each byte that composing may make has a token.
        assert_eq!(t.fewest_tokens(&"x".repeat(1000)) == 0, pre == "qwen2");
    }
    // Signs are one word, in which the package merges over the gap.
    let mut toy = Toy { pre: Some("gpt-2"), ..Toy::new() };
    toy.tokens[2 + 7] = "!!".into();
    toy.merges.push("! !".into());
    let ids = toy.load().encode("!\x07!", false, false).unwrap();
    assert_eq!(ids, [toy.id("!!")]);
}

/// The tokens are in the vocabulary, and one of them is what a merge makes.
#[test]
fn plain_text_is_never_control() {
    let toy = Toy::new();
    let t = toy.load();
    for text in ["<|eos|>", "a <|bos|> b", "hello", " hello <|eot_id|>"] {
        let ids = t.encode(text, false, false).unwrap();
        assert!(ids.iter().all(|&id| !t.token_bytes(id).unwrap().is_empty()), "{text}: {ids:?}");
        assert_eq!(t.decode(&ids).unwrap(), text);
    }
}

/// 33 texts of a quarter MiB and 33 of a MiB: quadratic time in any of these would take hours.
#[test]
fn one_long_run_takes_linear_time_or_is_refused() {
    let toy = Toy::new();
    let t = toy.load();
    for unit in ["x", " ", "1", "!", "\n", "é", " \n", "a!", "<", " x", "'s"] {
        for tail in ["", "x", "\n"] {
            let fits = unit.repeat((split::MAX_WORD_BYTES - 8) / unit.len()) + tail;
            assert_eq!(t.decode(&t.encode(&fits, false, true).unwrap()).unwrap(), fits);
            let mib = unit.repeat((1 << 20) / unit.len()) + tail;
            match t.encode(&mib, false, true) {
                Ok(ids) => assert_eq!(t.decode(&ids).unwrap(), mib),
                Err(e) => assert_eq!(e.status, Status::TooLong, "{}", e.message),
            }
        }
    }
    assert_eq!(t.encode(&"x".repeat(1 << 20), false, false).unwrap_err().status, Status::TooLong);
    assert_eq!(t.encode(&" ".repeat(3 << 20), false, false).unwrap_err().status, Status::TooLong);
}

/// Patterns that try a run in several ways, and text that composing holds back as a whole, 13 MiB in all. Quadratic
/// time in any of these would take minutes.
#[test]
fn long_runs_under_every_rule() {
    for pre in
        ["llama-bpe", "qwen2", "falcon", "smollm", "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken"]
    {
        let t = Toy { pre: Some(pre), ..Toy::new() }.load();
        for unit in
            ["x", "A", " ", "1", "'", "\n", " \n", "\u{301}", "e\u{301}", "\u{1100}\u{1161}", "。", "A1", "²"]
        {
            let text = "a".to_owned() + &unit.repeat((1 << 17) / unit.len());
            match t.encode(&text, false, true) {
                Ok(ids) => assert!(ids.len() >= t.fewest_tokens(&text), "{pre} {unit:?}"),
                Err(e) => assert_eq!(e.status, Status::TooLong, "{}", e.message),
            }
        }
    }
}

#[test]
fn byte_tokenizer() {
    let t = Tokenizer::bytes().unwrap();
    assert_eq!(t.encode("aé", true, true).unwrap(), [97, 0xc3, 0xa9, 257]);
    assert_eq!(t.encode("a", false, false).unwrap(), [97]);
    assert_eq!(t.decode(&[97, 0xc3, 256, 0xa9, 257]).unwrap(), "aé");
    assert_eq!((t.vocab_size(), t.bos(), t.end_tokens()), (258, None, &[256][..]));
    assert_eq!(t.longest_token(), 1);
    assert_eq!((t.token_bytes(257), t.token_bytes(258)), (Some(&b""[..]), None));
}

proptest! {
    #[test]
    fn text_survives_the_round_trip(text in "\\PC*|[ -~\\s]*|[<|>a-z_ \r\nx]*") {
        for pre in ["gpt-2", "llama-bpe", "qwen2", "falcon", "deepseek-llm", "deepseek-v3", "gpt-4o"] {
            let t = Toy { pre: Some(pre), ..Toy::new() }.load();
            let ids = t.encode(&text, false, false).unwrap();
            // Qwen's text is composed first, which may also lengthen it.
            let composed: String = match pre {
                "qwen2" => text.nfc().map(|(c, _)| c).collect(),
                _ => text.clone(),
            };
            prop_assert!(ids.len() <= composed.len() && ids.len() >= t.fewest_tokens(&text));
            prop_assert_eq!(t.decode(&ids).unwrap(), composed);
        }
    }

    /// Damages a byte of the metadata: loading returns an error or a tokenizer, but never panics.
    #[test]
    fn bent_metadata_is_refused_or_works(at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = Toy::new().writer().build();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(gguf) = Gguf::from_bytes(crate::base::Bytes::new(bytes), "bent.gguf") {
            match Tokenizer::from_gguf(&gguf, &|_| {}) {
                Ok(Some(t)) => drop(t.encode("hello é <|eos|> <tag>", true, true).map(|ids| t.decode(&ids).unwrap())),
                Ok(None) => {}
                Err(e) => prop_assert!(e.message.contains("bent.gguf"), "{}", e.message),
            }
        }
    }
}
