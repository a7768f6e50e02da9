//! Token ids against the Python package's (tools/golden/tokenizer.py).

use super::*;
use crate::formats::gguf::writer::{Meta, Writer};
use serde_json::Value;

fn read(path: &str) -> Value {
    let root = env!("CARGO_MANIFEST_DIR");
    let path = std::path::Path::new(root).join(path);
    serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        .unwrap()
}

fn strings(v: &Value) -> Vec<String> {
    v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned()).collect()
}

fn numbers<T: TryFrom<i64, Error: std::fmt::Debug>>(v: &Value) -> Vec<T> {
    v.as_array().unwrap().iter().map(|n| n.as_i64().unwrap().try_into().unwrap()).collect()
}

fn load(case: &Value) -> Tokenizer {
    let w = Writer::new()
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.pre", case["pre"].as_str().unwrap())
        .meta("tokenizer.ggml.tokens", Meta::Strs(strings(&case["tokens"])))
        .meta("tokenizer.ggml.token_type", Meta::I32s(numbers(&case["types"])))
        .meta("tokenizer.ggml.merges", Meta::Strs(strings(&case["merges"])));
    let gguf = Gguf::from_bytes(w.bytes(), "golden").unwrap();
    Tokenizer::from_gguf(&gguf, &|_| {}).unwrap().unwrap()
}

#[test]
fn ids_are_those_of_the_python_package() {
    let path = std::env::var("BN_TOKENIZER_GOLDEN").unwrap_or("tests/golden/tokenizer.json".into());
    let golden = read(&path);
    let texts = strings(&golden["texts"]);
    assert!(texts.len() >= 200);
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 3);
    let mut differences = Vec::new();
    for case in cases {
        let t = load(case);
        let with_special = case["ids_with_special"].as_array().unwrap();
        assert!(with_special.iter().filter(|ids| !ids.is_null()).count() > 10);
        for ((text, ids), special) in texts.iter().zip(case["ids"].as_array().unwrap()).zip(with_special) {
            let special = if special.is_null() { ids } else { special };
            for (want, parse_special) in [(ids, false), (special, true)] {
                let got = t.encode(text, false, parse_special).unwrap();
                if got != numbers::<u32>(want) {
                    differences
                        .push(format!("{} {parse_special} {text:?}: {got:?}, not {want}", case["pre"]));
                }
            }
            assert_eq!(t.decode(&t.encode(text, false, false).unwrap()).unwrap(), *text);
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

/// The embedded model's vocabulary is the one that its training used.
#[test]
fn the_demo_model_has_its_training_vocabulary() {
    let trained = &read("tools/train_demo/tokenizer.json")["model"];
    let gguf = Gguf::open(concat!(env!("CARGO_MANIFEST_DIR"), "/models/bn-demo.gguf")).unwrap();
    let tokens: Vec<&str> = gguf.get("tokenizer.ggml.tokens").unwrap();
    let vocab = trained["vocab"].as_object().unwrap();
    assert_eq!(tokens.len(), vocab.len());
    for (id, token) in tokens.iter().enumerate() {
        assert_eq!(vocab[*token], id);
    }
    let merges: Vec<&str> = gguf.get("tokenizer.ggml.merges").unwrap();
    let trained_merges = trained["merges"].as_array().unwrap().iter().map(|m| match m {
        Value::String(line) => line.clone(),
        pair => strings(pair).join(" "),
    });
    assert!(merges.iter().map(|m| m.to_string()).eq(trained_merges));
    let t = Tokenizer::from_gguf(&gguf, &|line| panic!("nothing is to be guessed: {line}")).unwrap().unwrap();
    let text = "Once upon a time, 17+25=42. Tom? é\n";
    let ids = t.encode(text, true, false).unwrap();
    assert_eq!((ids[0], t.decode(&ids).unwrap().as_str()), (t.bos().unwrap(), text));
    // Sums need each digit to be a token.
    assert_eq!(t.encode("17+25=42", false, false).unwrap().len(), 8);
}
