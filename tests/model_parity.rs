//! Every architecture, as transformers (and llama.cpp, where the index says so) computes it.

mod common;

use common::parity::{check, check_embeddings};
use common::{Embeddings, Golden};

/// Of these formats; none at all would prove nothing.
fn all(wanted: impl Fn(&str) -> bool, least: usize) {
    let mut cases = Golden::models(wanted);
    // Its reference rounds activations to int8. A Llama's Q2_0 says nothing of that, so ours are f32 there, as in the
    // case against llama.cpp.
    cases.retain(|golden| golden.case != "type-q2_0");
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
