//! Our logits against ones that PyTorch computed, and against themselves in every batch (invariant 3).

mod common;

use bn_engine::model::Model;
use common::{Golden, Session, alone, argmax, bits, load_file, relative_error};

const TOLERANCE: f64 = 1e-3;

fn agrees(case: &str, how: &str, golden: &Golden, logits: &[Vec<f32>]) {
    let ours = logits.concat();
    let error = relative_error(&ours, &golden.logits);
    assert!(error <= TOLERANCE, "{case}, {how}: relative error {error:.2e}");
    let rows = ours.chunks_exact(golden.vocab).zip(golden.logits.chunks_exact(golden.vocab));
    for (row, (ours, theirs)) in rows.enumerate() {
        assert_eq!(argmax(ours), argmax(theirs), "{case}, {how}: row {row} has another best token");
    }
}

fn ragged(model: &mut dyn Model, sequences: &[Vec<u32>], block_size: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut session = Session::new(model, sequences, block_size, seed);
    let all: Vec<_> = sequences.iter().enumerate().map(|(i, s)| (i, s.len())).collect();
    session.step(&all);
    session.logits
}

fn check(case: &str) {
    let golden = Golden::read(case);
    let mut expected = None;
    for threads in [1, 2] {
        let mut loaded = load_file(&golden.model, threads).expect(case);
        let model = &mut *loaded.model;
        assert_eq!(model.facts().vocab_size, golden.vocab, "{case}");
        let single = alone(model, &golden.sequences, 16);
        agrees(case, &format!("alone, {threads} threads"), &golden, &single);
        let expected = expected.get_or_insert_with(|| bits(&single));
        assert!(bits(&single) == *expected, "{case}: {threads} threads differ from one");
        for (block_size, seed) in [(16, 2), (32, 3), (64, 4)] {
            let batched = ragged(model, &golden.sequences, block_size, seed);
            assert!(
                bits(&batched) == *expected,
                "{case}: one batch differs from alone, blocks of {block_size}"
            );
        }
        for chunk in [1, 3, 7] {
            let mut session = Session::new(model, &golden.sequences, 16, 10 + chunk as u64);
            session.interleave(chunk);
            assert!(bits(&session.logits) == *expected, "{case}: chunks of {chunk} differ from alone");
        }
    }
}

macro_rules! cases {
    ($($name:ident => $case:literal),* $(,)?) => {
        $(#[test]
        fn $name() {
            check($case);
        })*

        /// A reference that no test reads proves nothing.
        #[test]
        fn every_reference_is_read() {
            let listed = [$($case),*];
            let files = std::fs::read_dir(common::root().join("tests/golden")).expect("tests/golden");
            let names = files.map(|f| f.expect("a file").file_name().into_string().expect("a name"));
            let mut cases: Vec<_> = names.filter_map(|n| n.strip_suffix(".f32").map(String::from)).collect();
            cases.sort();
            let mut listed = listed.to_vec();
            listed.sort_unstable();
            assert_eq!(cases, listed);
        }
    };
}

cases! {
    llama_f32 => "llama-tiny-f32",
    llama_f16 => "llama-tiny-f16",
    llama_bf16 => "llama-tiny-bf16",
    llama_q8_0 => "llama-tiny-q8_0",
    llama_tied => "llama-tiny-tied",
    llama_mha => "llama-tiny-mha",
    bitnet_i2_s => "bitnet-tiny-i2_s",
    bitnet_tq2_0 => "bitnet-tiny-tq2_0",
    demo => "demo",
}
