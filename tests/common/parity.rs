//! A model's logits against a reference's, and against themselves in every batch (invariant 3).

use super::{Golden, Session, alone, argmax, bits, load_file, relative_error};
use bn_engine::model::Model;

fn agrees(how: &str, golden: &Golden, logits: &[Vec<f32>]) {
    let (case, ours) = (&golden.case, logits.concat());
    let error = relative_error(&ours, &golden.logits);
    assert!(error <= golden.tolerance, "{case}, {how}: relative error {error:.2e}");
    let rows = ours.chunks_exact(golden.vocab).zip(golden.logits.chunks_exact(golden.vocab));
    let same: Vec<bool> = rows.map(|(ours, theirs)| argmax(ours) == argmax(theirs)).collect();
    let share = same.iter().filter(|same| **same).count() as f64 / same.len() as f64;
    let odd = same.iter().position(|same| !same);
    assert!(share >= golden.argmax, "{case}, {how}: row {odd:?} is the first with another best token");
}

fn ragged(model: &mut dyn Model, sequences: &[Vec<u32>], block_size: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut session = Session::new(model, sequences, block_size, seed);
    let all: Vec<_> = sequences.iter().enumerate().map(|(i, s)| (i, s.len())).collect();
    session.step(&all);
    session.logits
}

/// Alone, together, in blocks and chunks of several sizes, on one thread and two: one set of bits, the reference's
/// numbers.
pub fn check(golden: &Golden) {
    let case = &golden.case;
    let mut expected = None;
    for threads in [1, 2] {
        let mut loaded = load_file(&golden.model, threads).unwrap_or_else(|e| panic!("{case}: {e}"));
        let model = &mut *loaded.model;
        assert_eq!(model.facts().vocab_size, golden.vocab, "{case}");
        let single = alone(model, &golden.sequences, 16);
        agrees(&format!("alone, {threads} threads"), golden, &single);
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
