//! Every architecture compared with transformers (and llama.cpp, if the index has it).

use crate::common;
use crate::common::parity::{check, check_embeddings};
use crate::common::{Embeddings, Golden};

/// Cases of the wanted formats; having none at all would prove nothing.
fn all(wanted: impl Fn(&str) -> bool, least: usize) {
    let cases = Golden::models(wanted);
    assert!(cases.len() >= least, "{} cases", cases.len());
    cases.iter().for_each(check);
}

#[test]
fn gguf() {
    all(|format| format.starts_with("gguf-"), 30);
}

#[test]
fn folders() {
    all(|format| format.starts_with("hf-"), 20);
}

#[test]
fn gguf_embeddings() {
    let cases = Embeddings::models(|format| format.starts_with("gguf-"));
    assert!(cases.len() >= 2, "{} cases", cases.len());
    cases.iter().for_each(check_embeddings);
}

#[test]
fn embeddings_of_folders() {
    let cases = Embeddings::models(|format| format.starts_with("hf-"));
    assert!(cases.len() >= 4, "{} cases", cases.len());
    cases.iter().for_each(check_embeddings);
}

/// `make parity`: writes docs/parity.md, up to the section that `make test-real` writes.
#[test]
#[ignore = "writes docs/parity.md"]
fn document() {
    let mut logits: Vec<Golden> = common::GOLDEN.iter().map(|case| Golden::read(case)).collect();
    logits.extend(Golden::models(|_| true));
    let text = common::parity_document::write(&logits, &Embeddings::models(|_| true));
    let path = common::root().join("docs/parity.md");
    let old = std::fs::read_to_string(&path).expect("docs/parity.md");
    let real = old.find("\n## Real models\n").map_or("", |at| &old[at..]);
    std::fs::write(&path, text + real).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
