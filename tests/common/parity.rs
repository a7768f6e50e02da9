//! A model's logits against a reference's, and against themselves in every batch (invariant 3).

use super::{Embeddings, Golden, Running, Session, alone, argmax, bits, load_file, relative_error};
use bn_engine::model::Pooling;

/// The relative error, the number of rows with the same best token, and the number of all rows.
pub fn agreement(golden: &Golden, logits: &[Vec<f32>]) -> (f64, usize, usize) {
    let ours = logits.concat();
    let rows = ours.chunks_exact(golden.vocab).zip(golden.logits.chunks_exact(golden.vocab));
    let same = rows.clone().filter(|(ours, theirs)| argmax(ours) == argmax(theirs)).count();
    (relative_error(&ours, &golden.logits), same, rows.len())
}

fn agrees(how: &str, golden: &Golden, logits: &[Vec<f32>]) {
    let (case, (error, same, rows)) = (&golden.case, agreement(golden, logits));
    assert!(error <= golden.tolerance, "{case}, {how}: relative error {error:.2e}");
    let share = same as f64 / rows as f64;
    assert!(share >= golden.argmax, "{case}, {how}: {same} rows of {rows} have the same best token");
}

fn ragged(model: &Running, sequences: &[Vec<u32>], block_size: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut session = Session::new(model, sequences, block_size, seed);
    let all: Vec<_> = sequences.iter().enumerate().map(|(i, s)| (i, s.len())).collect();
    session.step(&all);
    session.logits
}

/// Alone, together, in blocks and chunks of several sizes, on one thread and two: the bits are the same, and
/// the numbers are the reference's.
pub fn check(golden: &Golden) {
    let case = &golden.case;
    let mut expected = None;
    for threads in [1, 2] {
        let model = &load_file(&golden.model, threads).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(model.model.facts().vocab_size, golden.vocab, "{case}");
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

/// One sequence's hidden states `[tokens, width]` as its embedding, in f64.
fn pooled(states: &[f32], width: usize, pooling: Pooling) -> Vec<f32> {
    let rows: Vec<&[f32]> = states.chunks_exact(width).collect();
    let part = match pooling {
        Pooling::First => &rows[..1],
        Pooling::Last => &rows[rows.len() - 1..],
        Pooling::Mean => &rows[..],
    };
    let sums: Vec<f64> = (0..width).map(|i| part.iter().map(|row| row[i] as f64).sum()).collect();
    let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
    sums.iter().map(|x| (x / length) as f32).collect()
}

/// Hidden states of every sequence, all in one batch, and the relative error of their pooled vectors, pooled
/// as the model's files specify.
fn embed(golden: &Embeddings, model: &Running) -> (Vec<Vec<f32>>, f64) {
    let (width, pooling) = (model.model.facts().hidden_size, model.model.facts().pooling);
    assert_eq!(golden.rows.len(), golden.sequences.len() * width, "{}: a row for each sequence", golden.case);
    let mut session = Session::new(model, &golden.sequences, 16, 3);
    match model.model.facts().encodes {
        true => session.step(&golden.sequences.iter().map(Vec::len).enumerate().collect::<Vec<_>>()),
        false => session.interleave(5),
    }
    let states = session.hidden;
    let ours: Vec<f32> = states.iter().flat_map(|states| pooled(states, width, pooling)).collect();
    (states, relative_error(&ours, &golden.rows))
}

pub fn embedding_error(golden: &Embeddings) -> f64 {
    let model = load_file(&golden.model, 2).unwrap_or_else(|e| panic!("{}: {e}", golden.case));
    embed(golden, &model).1
}

/// Checks that results are within the reference's limit, and that a batch has the bits of each sequence
/// alone.
pub fn check_embeddings(golden: &Embeddings) {
    let case = &golden.case;
    let model = &load_file(&golden.model, 2).unwrap_or_else(|e| panic!("{case}: {e}"));
    let (states, error) = embed(golden, model);
    assert!(error <= golden.tolerance, "{case}: relative error {error:.2e}");
    for (sequence, states) in golden.sequences.iter().zip(&states) {
        let one = [sequence.clone()];
        let mut session = Session::new(model, &one, 32, 4);
        session.step(&[(0, sequence.len())]);
        assert!(bits(&session.hidden) == bits(std::slice::from_ref(states)), "{case}: alone it differs");
    }
}
