//! Every architecture, as transformers (and llama.cpp, where the index says so) computes it.

mod common;

use common::Golden;
use common::parity::check;

/// Of one format, several at a time; none at all would prove nothing.
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
