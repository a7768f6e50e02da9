//! The decoder on plain candle operations agrees with the same decoder on our kernels.

use crate::common::{Golden, Session, argmax, load_file, load_on, relative_error};
use crate::folder_support::large_residuals;
use crate::plain_ops::PlainOps;
use bn_engine::kernels::attention::KvType;
use std::sync::Arc;

fn check(golden: &Golden, chunk: usize) {
    let case = &golden.case;
    let run = |loaded: crate::common::Running| {
        let mut session = Session::new(&loaded, &golden.sequences, 16, 7);
        session.interleave(chunk);
        (session.logits, session.hidden)
    };
    let (fused, states) = run(load_file(&golden.model, 2).expect(case));
    let (plain, plain_states) = run(load_on(&golden.model, Arc::new(PlainOps)).expect(case));
    for (s, (fused, plain)) in states.iter().zip(&plain_states).enumerate() {
        let error = relative_error(fused, plain);
        assert!(error <= 1e-3, "{case}, hidden states of sequence {s}: relative error {error:.2e}");
    }
    for (s, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
        let error = relative_error(fused, plain);
        assert!(error <= 1e-3, "{case}, sequence {s}: relative error {error:.2e}");
        let rows = fused.chunks_exact(golden.vocab).zip(plain.chunks_exact(golden.vocab));
        for (row, (fused, plain)) in rows.enumerate() {
            assert_eq!(argmax(fused), argmax(plain), "{case}, sequence {s}: another best token in row {row}");
        }
    }
}

/// Biases, windows, stretched ropes, norms of heads: features of only some architectures.
#[test]
fn every_dense_architecture() {
    let cases = Golden::models(|format| matches!(format, "gguf-f32" | "gguf-f16" | "gguf-bf16"));
    assert!(cases.len() >= 6, "{} cases", cases.len());
    cases.iter().for_each(|golden| check(golden, 9));
}

/// Recurrent layers beside attention with a gate on its output, and latent attention.
#[test]
fn hybrids() {
    let mut cases = Golden::models(|format| format == "hf-bf16");
    let names = ["qwen35", "qwen3next", "lfm", "falcon-h1", "granitemoe", "deepseek", "glm4-moe"];
    let hybrid = |golden: &Golden| names.iter().any(|name| golden.case.starts_with(name));
    cases.retain(hybrid);
    assert!(cases.len() >= 5, "{} cases", cases.len());
    cases.iter().for_each(|golden| check(golden, 9));
}

#[test]
fn residuals_that_f16_could_not_hold() {
    for (golden, copy) in large_residuals() {
        check(&golden, 9);
        // K and V in F16 hold values computed from the normed residual.
        let loaded = copy.load().unwrap();
        let logits = |kind| {
            let mut session = Session::with_kv(&loaded, &golden.sequences, kind, 16, 7);
            session.interleave(9);
            session.logits.concat()
        };
        let error = relative_error(&logits(KvType::F16), &logits(KvType::F32));
        assert!(error < 1e-3, "{}: {error:e}", golden.case);
    }
}

#[test]
fn llama() {
    check(&Golden::read("llama-tiny-f32"), 5);
}

#[test]
fn llama_with_wide_heads() {
    check(&Golden::read("llama-tiny-mha"), 40);
}

#[test]
fn bitnet() {
    check(&Golden::read("bitnet-tiny-tq2_0"), 16);
}

#[test]
fn demo() {
    check(&Golden::read("demo"), 256);
}
