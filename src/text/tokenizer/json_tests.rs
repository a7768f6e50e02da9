//! `tokenizer.json`: cases that golden files cannot show.

use super::*;
use crate::base::Status;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A small Llama vocabulary: specials 0 to 2, bytes, pieces, `<|im_end|>` (special) and `<tag>` (not special).
pub(super) fn file() -> Value {
    let mut vocab = serde_json::Map::new();
    let pieces = ["▁", "a", "b", "▁a", "ab", "▁▁", "▁▁▁▁", "x"];
    let tokens = ["<unk>", "<s>", "</s>"].map(String::from).into_iter();
    let tokens = tokens.chain((0..256).map(|b| format!("<0x{b:02X}>"))).chain(pieces.map(String::from));
    for (id, token) in tokens.enumerate() {
        vocab.insert(token, json!(id));
    }
    let n = vocab.len();
    let added = |id: usize, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": special})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true),
            added(n, "<|im_end|>", true), added(n + 1, "<tag>", false)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": [["▁", "a"], ["a", "b"], ["▁", "▁"], ["▁▁", "▁▁"]]}
    })
}

pub(super) const IM_END: u32 = 3 + 256 + 8;

fn load_with(file: &Value, config: Option<Value>, generation: Option<Value>) -> Result<Tokenizer> {
    let bytes = |value: &Value| serde_json::to_vec(value).unwrap();
    let (config, generation) = (config.as_ref().map(bytes), generation.as_ref().map(bytes));
    let tokenizer = bytes(file);
    let files =
        JsonFiles { tokenizer: &tokenizer, config: config.as_deref(), generation: generation.as_deref() };
    Tokenizer::from_json(&files, "m/tokenizer.json", &|_| {})
}

pub(super) fn load(file: &Value) -> Result<Tokenizer> {
    load_with(file, None, None)
}

#[test]
fn encodes_and_decodes() {
    let t = load(&file()).unwrap();
    let ids = t.encode("ab€</s>x", true, true).unwrap();
    let (bytes, pieces) = (3, 3 + 256);
    let euro = [0xe2, 0x82, 0xac].map(|b| bytes + b);
    assert_eq!(ids, [&[1, pieces + 3, pieces + 2][..], &euro, &[2, pieces, pieces + 7]].concat());
    assert_eq!(t.decode(&ids).unwrap(), "ab€ x");
    let plain = t.encode("ab</s><tag>", false, false).unwrap();
    assert!(!plain.contains(&2) && plain.ends_with(&[IM_END + 1]));
    assert_eq!(t.decode(&plain).unwrap(), "ab</s><tag>");
    assert_eq!((t.bos(), t.vocab_size()), (Some(1), IM_END as usize + 2));
    assert_eq!(t.end_tokens(), [IM_END]);
    assert_eq!(t.token_bytes(pieces + 3), Some(&b" a"[..]));
    assert_eq!((t.token_bytes(2), t.token_bytes(9999)), (Some(&b""[..]), None));
    assert_eq!(t.longest_token(), 10);
    assert!(t.encode("", false, true).unwrap().is_empty());
}

#[test]
fn side_files_name_bos_and_ends() {
    let config = json!({"bos_token": {"content": "<unk>"}, "eos_token": "</s>", "add_bos_token": true});
    let t = load_with(&file(), Some(config), Some(json!({"eos_token_id": [5, 2]}))).unwrap();
    assert_eq!((t.bos(), t.end_tokens()), (Some(0), &[2, 5, IM_END][..]));
    assert_eq!(t.encode("", true, false).unwrap(), [0, 1]);
    let t = load_with(&file(), Some(json!({"bos_token": "<s>", "add_bos_token": false})), None).unwrap();
    assert!(t.encode("", true, false).unwrap().is_empty());
    let mut plain = file();
    plain["post_processor"] = Value::Null;
    let t =
        load_with(&plain, Some(json!({"add_bos_token": true})), Some(json!({"bos_token_id": 1}))).unwrap();
    assert_eq!(t.encode("", true, false).unwrap(), [1]);
    for (config, generation, part) in [
        (json!({"add_bos_token": true}), json!({}), "add_bos_token"),
        (json!({"eos_token": "<none>"}), json!({}), "eos_token"),
        (json!({"eos_token": 7}), json!({}), "eos_token"),
        (json!({}), json!({"eos_token_id": 4000}), "eos_token_id"),
        (json!({}), json!({"eos_token_id": [2, "x"]}), "eos_token_id"),
    ] {
        let e = load_with(&plain, Some(config), Some(generation)).err().unwrap();
        assert!(e.status == Status::BadModel && e.message.contains(part), "{}", e.message);
    }
}

#[test]
fn what_stands_behind_a_text_ends_whole_ones_only() {
    let mut file = file();
    let eos = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    file["post_processor"]["single"].as_array_mut().unwrap().push(eos);
    file["post_processor"]["special_tokens"]["</s>"] = json!({"id": "</s>", "ids": [2], "tokens": ["</s>"]});
    let t = load(&file).unwrap();
    assert_eq!(t.encode("", true, false).unwrap(), [1]);
    assert_eq!(t.encode_whole("", false).unwrap(), [1, 2]);
    assert_eq!(t.encode_whole("</s>", true).unwrap(), [1, 2]);
    assert_eq!(t.encode_whole("</s></s>", true).unwrap(), [1, 2, 2]);
    let as_text = t.encode("</s>", true, false).unwrap();
    assert_eq!(t.encode_whole("</s>", false).unwrap(), [&as_text[..], &[2]].concat());
    // tokenizer_config.json takes precedence, as for BOS.
    let whole = |file: &Value, config: Value| load_with(file, Some(config), None)?.encode_whole("", false);
    let plain = self::file();
    assert_eq!(whole(&plain, json!({"eos_token": "</s>"})).unwrap(), [1]);
    assert_eq!(whole(&plain, json!({"eos_token": "</s>", "add_eos_token": true})).unwrap(), [1, 2]);
    assert_eq!(whole(&file, json!({"eos_token": "</s>", "add_eos_token": true})).unwrap(), [1, 2]);
    assert_eq!(whole(&file, json!({"eos_token": "</s>", "add_eos_token": false})).unwrap(), [1]);
    let e = whole(&plain, json!({"add_eos_token": true})).unwrap_err();
    assert!(e.status == Status::BadModel && e.message.contains("add_eos_token"), "{}", e.message);
    file["post_processor"]["special_tokens"]["</s>"]["ids"] = json!(vec![2; 17]);
    file["post_processor"]["special_tokens"]["</s>"]["tokens"] = json!(vec!["</s>"; 17]);
    let e = load(&file).err().unwrap();
    assert!(e.status == Status::BadModel && e.message.contains("around"), "{}", e.message);
}

#[test]
fn what_is_not_read_is_named() {
    let refused = |bend: &dyn Fn(&mut Value), status: Status, part: &str| {
        let mut file = file();
        bend(&mut file);
        let e = load(&file).err().unwrap_or_else(|| panic!("{part}: must be refused"));
        assert_eq!(e.status, status, "{}", e.message);
        assert!(e.message.contains(part) && e.message.contains("m/tokenizer.json"), "{}", e.message);
    };
    let (bad, unsupported) = (Status::BadModel, Status::Unsupported);
    refused(&|f| f["model"]["type"] = json!("WordLevel"), unsupported, "'WordLevel'");
    refused(&|f| f["model"]["end_of_word_suffix"] = json!("</w>"), unsupported, "end_of_word_suffix");
    refused(
        &|f| f["model"]["continuing_subword_prefix"] = json!("é"),
        unsupported,
        "continuing_subword_prefix",
    );
    let doubled = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let parts = vec![doubled; 7];
    refused(
        &|f| f["normalizer"] = json!({"type": "Sequence", "normalizers": parts}),
        unsupported,
        "64 times as long",
    );
    refused(&|f| f["model"]["vocab"]["a"] = json!(70_000), bad, "model.vocab");
    refused(&|f| f["decoder"] = json!({"type": "CTC"}), unsupported, "CTC");
    refused(&|f| f["normalizer"] = json!({"type": "Nonsense"}), bad, "normalizer");
    refused(
        &|f| f["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("}}),
        bad,
        "pre_tokenizer",
    );
    let split =
        |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
    for large in ["(?:\\w{1,200}){1,20}", &r"\d{1,2}".repeat(33), &"a|".repeat(5000)] {
        refused(&|f| f["pre_tokenizer"] = split(large), unsupported, "the pattern '");
    }
    // A few hundred KB of these would make gigabytes of tokens and of values.
    let piece = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    refused(
        &|f| f["post_processor"]["single"] = vec![piece.clone(); 300].into(),
        bad,
        "more than 1000 values",
    );
    refused(&|f| f["normalizer"] = vec![0; 10_000].into(), bad, "more than 1000 values");
    let added = json!({"id": 8, "content": "x".repeat(600_000), "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    refused(&|f| f["added_tokens"] = json!([added]), bad, "at most 524288");
    refused(&|f| f["model"]["vocab"]["a"] = json!(5_000_000), bad, "model.vocab");
    refused(&|f| f["model"]["vocab"]["a"] = json!(7), bad, "both have id 7");
    refused(&|f| f["model"]["merges"] = json!(["a b c"]), bad, "entry 0");
    refused(&|f| f["model"]["merges"] = json!([["a", "x"]]), bad, "'ax'");
    refused(&|f| f["model"]["merges"] = json!([["a", "zz"]]), bad, "'zz'");
    refused(&|f| f["model"]["unk_token"] = json!(3), bad, "tokenizer.json");
    refused(&|f| f["added_tokens"][3]["id"] = json!(300), bad, "says id 300");
    refused(&|f| f["post_processor"]["special_tokens"]["<s>"]["ids"] = json!([9999]), bad, "9999");
    refused(&|f| f["model"] = json!([]), bad, "tokenizer.json");
    let files = JsonFiles { tokenizer: b"{\"model\":", config: None, generation: None };
    assert_eq!(Tokenizer::from_json(&files, "x", &|_| {}).err().unwrap().status, bad);
}

/// Quadratic time in any of these would take hours.
#[test]
fn a_mebibyte_of_anything_takes_a_moment_or_is_refused() {
    let mut gpt2 = file();
    gpt2["normalizer"] = json!({"type": "NFC"});
    gpt2["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
    gpt2["decoder"] = json!({"type": "ByteLevel"});
    let (t, gpt2) = (load(&file()).unwrap(), load(&gpt2).unwrap());
    for unit in ["a", " ", "ab", "€", " a", "\n", "<tag>", "<", "e\u{301}"] {
        let text = unit.repeat((1 << 20) / unit.len());
        assert_eq!(t.decode(&t.encode(&text, false, true).unwrap()).unwrap(), text);
        match gpt2.encode(&text, false, false) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.status, Status::TooLong, "{}", e.message),
        }
    }
    assert_eq!(t.encode(&"a".repeat(3 << 20), false, false).unwrap_err().status, Status::TooLong);
    assert_eq!(gpt2.encode(&" ".repeat(1 << 20), false, false).unwrap_err().status, Status::TooLong);
    assert_eq!(gpt2.encode(&"a ".repeat(3 << 20), false, false).unwrap_err().status, Status::TooLong);
}

proptest! {
    /// Damages a byte of the file. The result is an error that names the file, or a tokenizer that works or
    /// reports an error.
    #[test]
    fn bent_files_are_refused_or_work(at in any::<proptest::sample::Index>(), byte in proptest::sample::select(&b"\"{}[],:0129-eax<> \\\xff"[..]), cut in any::<bool>()) {
        let mut bytes = serde_json::to_vec(&file()).unwrap();
        let at = at.index(bytes.len());
        match cut {
            true => drop(bytes.remove(at)),
            false => bytes[at] = byte,
        }
        let files = JsonFiles { tokenizer: &bytes, config: None, generation: None };
        match Tokenizer::from_json(&files, "bent.json", &|_| {}) {
            Ok(t) => match t.encode("aab é </s> <tag>", true, true) {
                Ok(ids) => drop(t.decode(&ids).unwrap()),
                Err(e) => prop_assert!(!e.message.is_empty()),
            },
            Err(e) => prop_assert!(e.message.contains("bent.json"), "{}", e.message),
        }
    }
}

#[test]
fn an_unknown_token_outside_the_vocabulary_is_refused() {
    let mut file = file();
    file["model"]["unk_token"] = json!("<none>");
    let error = load(&file).err().unwrap();
    assert_eq!(error.status, Status::BadModel);
    assert!(error.message.contains("model.unk_token") && error.message.contains("<none>"), "{error}");
}

#[test]
fn a_character_map_whose_table_would_be_larger_than_the_map_is_refused() {
    // Tables of 0x0cfcffff and of 4 bytes.
    for (map, refused) in [("///8DAAAAAA=", true), ("BAAAAAAAAAA=", false)] {
        let mut file = file();
        let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": map});
        file["normalizer"] = json!({"type": "Sequence", "normalizers": [precompiled]});
        let message = load(&file).err().map(|error| error.message).unwrap_or_default();
        assert_eq!(message.contains("a table of 217907199 bytes in 12"), refused, "{message}");
    }
}

#[test]
fn a_pattern_that_looks_at_all_the_text_for_each_letter_ends() {
    let with = |part: Value| {
        let mut file = file();
        let field = if part["type"] == "Split" { "pre_tokenizer" } else { "normalizer" };
        file[field] = part;
        load(&file)
    };
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    for pattern in ["(?>a*)b|a", r"(?=[\s\S]*)[\s\S]", "a*b|a"] {
        let replace = json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": "a"});
        let sequence = json!({"type": "Sequence", "normalizers": [replace]});
        for part in [split(pattern), sequence] {
            let t = with(part).unwrap();
            assert!(!t.encode("aab", false, true).unwrap().is_empty());
            let error = t.encode(&"a".repeat(64 << 10), true, true).unwrap_err();
            assert_eq!(error.status, Status::TooLong, "{error}");
            assert!(error.message.contains("a pattern of the model's tokenizer"), "{error}");
        }
    }
    let t = with(split(r"x?\p{L}{1,9}|.")).unwrap();
    assert!(t.encode(&"ab x".repeat(1 << 19), true, true).is_ok());
    for pattern in [r"(a)\1", "(a*)*"] {
        let error = with(split(pattern)).err().unwrap();
        assert_eq!(error.status, Status::Unsupported);
        assert!(error.message.contains("is not read"), "{error}");
    }
}

/// Adds "<eos>" to the vocabulary and to the special tokens of a file whose model is `model`, and returns its id and
/// the file's tokenizer.
fn with_eos(mut model: Value, pre_tokenizer: Value, vocab: &[&str]) -> (u32, Tokenizer) {
    let mut file = file();
    let tokens: Vec<&str> = ["<unk>", "<eos>"].iter().chain(vocab).copied().collect();
    model["vocab"] = match model["type"] == "Unigram" {
        true => tokens.iter().map(|text| json!([text, if text.starts_with('<') { 0 } else { -5 }])).collect(),
        false => tokens.iter().enumerate().map(|(id, text)| ((*text).to_owned(), json!(id))).collect(),
    };
    let added = |id: usize| {
        json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    file["added_tokens"] = json!([added(0), added(1)]);
    file["model"] = model;
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] = pre_tokenizer;
    file["post_processor"] = Value::Null;
    file["decoder"] = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"});
    (1, load(&file).unwrap())
}

/// Each of these models would make the control token of its written form.
#[test]
fn plain_text_is_never_control() {
    let chars = ["<", "e", "o", "s", ">", "a", "eos>", "eos"];
    let words = json!({"type": "WhitespaceSplit"});
    let merges = json!([["e", "o"], ["eo", "s"], ["eos", ">"], ["<", "eos>"], ["<eos>", "a"]]);
    let of_merges = [&chars[..], &["eo", "<eos>a"]].concat();
    for (model, vocab) in [
        (json!({"type": "Unigram", "unk_id": 0}), &chars[..]),
        (json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": ""}), &chars),
        (json!({"type": "BPE", "merges": [], "ignore_merges": true}), &chars),
        (json!({"type": "BPE", "merges": merges}), &of_merges),
    ] {
        let (eos, t) = with_eos(model.clone(), words.clone(), vocab);
        assert_eq!(t.encode("a<eos>", false, true).unwrap().last(), Some(&eos), "{model}");
        let plain = ["<eos>", "a <eos> a", "<eos>a", "a<eos>"];
        for text in plain {
            let ids = t.encode(text, false, false).unwrap();
            assert!(!ids.contains(&eos), "{model}: {text}: {ids:?}");
            assert_eq!(t.decode(&ids).unwrap(), text.replace(' ', ""), "{model}");
        }
    }
    // Text that no token spells is unknown, even if it has the characters of a control token.
    let (_, t) = with_eos(json!({"type": "Unigram", "unk_id": 0}), words, &["a"]);
    assert_eq!(t.encode("<eos>", false, false).unwrap(), [0]);
}

#[test]
fn added_tokens_beyond_the_models_are_refused_where_a_text_has_them() {
    // `<|im_end|>` is special, `<tag>` is found in every text.
    let mut t = load(&file()).unwrap();
    assert_eq!(t.cut_to(IM_END as usize).unwrap(), ["<|im_end|>", "<tag>"]);
    assert_eq!((t.vocab_size(), t.end_tokens().len()), (IM_END as usize, 0));
    assert!(t.token_piece(IM_END).is_none() && t.control_token("<|im_end|>").is_none());
    let plain = t.encode("ab <|im_end|>", false, false).unwrap();
    assert_eq!(t.decode(&plain).unwrap(), "ab <|im_end|>");
    for (text, special) in [("<tag>", false), ("a<|im_end|>", true)] {
        let e = t.encode(text, false, special).unwrap_err();
        assert!(
            e.status == Status::Unsupported && e.message.contains(&text[text.find('<').unwrap()..]),
            "{e}"
        );
    }
    // Neither ordinary tokens nor those around texts may be missing.
    for n in [IM_END as usize - 1, 1] {
        let e = load(&file()).unwrap().cut_to(n).unwrap_err();
        assert!(e.status == Status::BadModel && e.message.contains(&format!("the model {n}")), "{e}");
    }
}
