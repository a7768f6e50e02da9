//! Inputs of a pass besides tokens: given vectors, rotations apart from positions, and rows that see each other in both
//! directions. `ops_invariance` has them in batches and chunks.

use crate::common::gguf::{File, HIDDEN, gemma3, granite, llama, qwen2};
use crate::common::{Running, load_file, load_source, relative_error, root};
use crate::model_bad_files::open;
use crate::ops_support::{Chunk, Eager, Random, batch, error, rope, tables, values};
use crate::plain_ops::{PlainOps, dequantize};
use bn_engine::base::Status;
use bn_engine::kernels::Pool;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Outputs, Source};
use bn_engine::ops::pass::Program;
use bn_engine::ops::{
    Attention, AttentionShape, Axes, CpuOps, HostMemory, KvLayout, Memory, MemoryLayout, Paging, RaggedBatch,
    Rope, RopeStyle, Weight,
};
use candle_core::Tensor;

const TOLERANCE: f32 = 1e-5;
const TOKENS: [u32; 40] = {
    let mut tokens = [0; 40];
    let mut n = 0;
    while n < 40 {
        tokens[n] = (n as u32 * 7 + 3) % 37;
        n += 1;
    }
    tokens
};

/// Rows `from..to` of the text, with logits of each.
fn rows(from: u32, to: u32) -> RaggedBatch {
    let mut batch = RaggedBatch::default();
    batch.push_seq(&[2, 0, 1], from, to - from).unwrap();
    batch.tokens.extend(&TOKENS[from as usize..to as usize]);
    batch.logits_rows = (0..to - from).collect();
    batch
}

/// Logits of all rows, in chunks that end at `ends`. `change` changes each batch, which begins at a position.
fn logits(model: &Running, ends: &[u32], change: impl Fn(&mut RaggedBatch, u32)) -> Vec<f32> {
    let (mut memory, mut all, mut from) = (model.memory(KvType::F32, 3, 16, 1), Vec::new(), 0);
    for &to in ends {
        let (mut batch, mut out) = (rows(from, to), Outputs::default());
        change(&mut batch, from);
        model.forward(&batch, &mut *memory, &mut out).unwrap();
        all.extend(out.logits);
        from = to;
    }
    all
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The first table of a model: its embeddings.
fn embeddings(model: &Running) -> Vec<Vec<f32>> {
    let weights = model.model.programs().into_iter().flat_map(Program::weights);
    let mut tables = weights.filter_map(|weight| match weight {
        Weight::Table(matrix) => Some(matrix),
        _ => None,
    });
    values(&dequantize(tables.next().unwrap()).unwrap())
}

/// Gives rows 5 to 20 of the text as vectors: their embeddings times `scale`. Their tokens become `token`, if given.
fn as_vectors(batch: &mut RaggedBatch, from: u32, table: &[Vec<f32>], scale: f32, token: Option<u32>) {
    for row in 0..batch.tokens.len() {
        if (5..20).contains(&(from + row as u32)) {
            batch.vector_rows.push(row as u32);
            batch.vectors.extend(table[batch.tokens[row] as usize].iter().map(|x| x * scale));
            batch.tokens[row] = token.unwrap_or(batch.tokens[row]);
        }
    }
}

#[test]
fn vectors_that_are_the_embeddings_of_tokens_have_their_bits() {
    let scaled = granite().f32("granite.embedding_scale", 12.0).f32("granite.residual_scale", 0.5);
    let cases: [(File, f32); 4] =
        [(llama(), 1.0), (qwen2(), 1.0), (gemma3(), (HIDDEN as f32).sqrt()), (scaled, 12.0)];
    for (n, (file, scale)) in cases.into_iter().enumerate() {
        let model = open(file.bytes()).unwrap();
        let table = embeddings(&model);
        let want = logits(&model, &[40], |_, _| ());
        for ends in [&[40][..], &[7, 8, 30, 40]] {
            let given = |batch: &mut RaggedBatch, from| as_vectors(batch, from, &table, scale, Some(1));
            assert!(bits(&logits(&model, ends, given)) == bits(&want), "case {n}, chunks to {ends:?}");
        }
        let half = |batch: &mut RaggedBatch, from| as_vectors(batch, from, &table, scale / 2.0, Some(1));
        assert!(relative_error(&logits(&model, &[40], half), &want) > 1e-3, "case {n}: other vectors");
    }
}

/// A row of a given vector still has the inputs of its token for single layers.
#[test]
fn inputs_of_single_layers_are_those_of_tokens() {
    let model = load_file("tests/golden/models/gemma4-inputs.gguf", 1).unwrap();
    let (table, scale) = (embeddings(&model), (model.model.facts().hidden_size as f32).sqrt());
    let want = logits(&model, &[40], |_, _| ());
    let given = |token| logits(&model, &[40], |batch, from| as_vectors(batch, from, &table, scale, token));
    assert!(bits(&given(None)) == bits(&want));
    assert!(relative_error(&given(Some(1)), &want) > 1e-4);
}

#[test]
fn rotations_by_positions_have_the_bits_of_none() {
    for file in [llama(), gemma3(), qwen2()] {
        let model = open(file.bytes()).unwrap();
        let want = logits(&model, &[40], |_, _| ());
        let by = |more: u32| {
            logits(&model, &[7, 25, 40], |batch, _| {
                batch.rotations = batch.positions.iter().map(|at| [at + more; 3]).collect();
            })
        };
        assert!(bits(&by(0)) == bits(&want));
        // Scores depend on distances alone, but for rounding.
        let moved = by(500);
        assert!(bits(&moved) != bits(&want) && relative_error(&moved, &want) < 1e-4);
        let stretched = logits(&model, &[40], |batch, _| {
            batch.rotations = batch.positions.iter().map(|at| [at * 2; 3]).collect();
        });
        assert!(relative_error(&stretched, &want) > 1e-3);
    }
}

fn cache(kind: KvType, shape: &AttentionShape, blocks: usize, block_size: usize) -> HostMemory {
    let AttentionShape { kv_heads, head_dim, .. } = *shape;
    let (layers, others, joint) = (1, None, false);
    let kv = KvLayout { kind, layers, kv_heads, head_dim, others, joint, blocks, block_size };
    HostMemory::new(MemoryLayout::of(kv)).unwrap()
}

fn fused() -> CpuOps {
    CpuOps::new(Pool::new(2).unwrap())
}

/// Positions of a text of 4, a picture of 3 by 4 patches, and a text of 5, as in Qwen2-VL.
fn in_two_dimensions() -> Vec<[u32; 3]> {
    let picture = (0..12).map(|n| [4, 4 + n / 4, 4 + n % 4]);
    (0..4).map(|at| [at; 3]).chain(picture).chain((8..13).map(|at| [at; 3])).collect()
}

/// cos and sin of a row for all elements of a head, as transformers' Qwen2-VL makes them: of each of the three numbers
/// for all elements, from which sections are taken in turn, twice.
fn in_sections(numbers: [u32; 3], inv_freq: &[f32], sections: [usize; 3]) -> Vec<f64> {
    let twice =
        |number: u32| [inv_freq, inv_freq].concat().into_iter().map(move |f| number as f64 * f as f64);
    let all = numbers.map(|number| twice(number).collect::<Vec<f64>>());
    let (mut angles, mut from) = (Vec::new(), 0);
    for (n, len) in [sections, sections].concat().into_iter().enumerate() {
        angles.extend(&all[n % 3][from..from + len]);
        from += len;
    }
    angles
}

/// The same as in Qwen3-VL: elements of height and width are put over those of time.
fn interleaved(numbers: [u32; 3], inv_freq: &[f32], sections: [usize; 3]) -> Vec<f64> {
    let all = numbers.map(|number| inv_freq.iter().map(|f| number as f64 * *f as f64).collect::<Vec<f64>>());
    let mut angles = all[0].clone();
    for axis in [1, 2] {
        for at in (axis..3 * sections[axis]).step_by(3) {
            angles[at] = all[axis][at];
        }
    }
    [&angles[..], &angles[..]].concat()
}

/// `x cos + rotate_half(x) sin`, behind which elements do not turn.
fn turned(x: &[f32], angles: &[f64]) -> Vec<f64> {
    let half = angles.len() / 2;
    let other = |at: usize| if at < half { -f64::from(x[at + half]) } else { f64::from(x[at - half]) };
    let turn = |at: usize| f64::from(x[at]) * angles[at].cos() + other(at) * angles[at].sin();
    (0..x.len()).map(|at| if at < angles.len() { turn(at) } else { x[at].into() }).collect()
}

/// Causal attention of one head over q, k and v, which follow each other in a row.
fn scalar(rows: &[Vec<f32>], dim: usize, angles: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let part = |row: usize, n: usize| &rows[row][n * dim..(n + 1) * dim];
    let [q, k] = [0, 1]
        .map(|n| (0..rows.len()).map(|row| turned(part(row, n), &angles[row])).collect::<Vec<Vec<f64>>>());
    let one = |row: usize| {
        let dot = |at: usize| q[row].iter().zip(&k[at]).map(|(q, k)| q * k).sum::<f64>();
        let weights: Vec<f64> = (0..=row).map(|at| (dot(at) / (dim as f64).sqrt()).exp()).collect();
        let total: f64 = weights.iter().sum();
        let value =
            |d: usize| (0..=row).map(|at| weights[at] * f64::from(part(at, 2)[d])).sum::<f64>() / total;
        (0..dim).map(value).collect()
    };
    (0..rows.len()).map(one).collect()
}

#[test]
fn rotations_in_three_axes_are_those_of_the_formula() {
    let (mut random, dim) = (Random(3), 32);
    type Formula = fn([u32; 3], &[f32], [usize; 3]) -> Vec<f64>;
    let cases: [([usize; 3], bool, Formula); 5] = [
        ([6, 5, 5], false, in_sections),
        ([2, 3, 3], false, in_sections),
        ([6, 5, 5], true, interleaved),
        ([11, 3, 2], true, interleaved),
        ([4, 3, 3], true, interleaved),
    ];
    for (sections, takes_turns, formula) in cases {
        let pairs = sections.iter().sum();
        let axes = Some(Axes::new(sections, takes_turns));
        let rope = Rope { axes, ..rope(pairs, RopeStyle::Neox) };
        let shape = AttentionShape::new(1, 1, dim);
        let numbers = in_two_dimensions();
        let mut batch = RaggedBatch::default();
        batch.push_seq(&[1, 0], 0, numbers.len() as u32).unwrap();
        batch.tokens.resize(numbers.len(), 0);
        batch.rotations = numbers.clone();
        let qkv = random.tensor(numbers.len(), 3 * dim);
        let run = |ops: &dyn Fn(&Paging, &mut HostMemory) -> Tensor| {
            let mut memory = cache(KvType::F32, &shape, 2, 16);
            let layout = memory.layout().kv;
            ops(&Paging::new(&batch, &layout, &shape).unwrap(), &mut memory)
        };
        let how = Attention::plain(&shape, &rope);
        let got = run(&|paging, memory| fused().attention(&qkv, paging, memory, 0, &how).unwrap());
        let plain = run(&|paging, memory| PlainOps.attention(&qkv, paging, memory, 0, &how).unwrap());
        assert!(error(&got, &plain) <= TOLERANCE, "{sections:?}: {}", error(&got, &plain));
        let narrow = Rope { axes: Some(Axes::new([1, 0, 0], takes_turns)), ..rope.clone() };
        let how = Attention::plain(&shape, &narrow);
        run(&|paging, memory| {
            assert!(fused().attention(&qkv, paging, memory, 0, &how).is_err(), "axes of one pair");
            qkv.clone()
        });
        let angles: Vec<_> = numbers.iter().map(|row| formula(*row, &rope.inv_freq, sections)).collect();
        let want = scalar(&values(&qkv), dim, &angles);
        for (row, (got, want)) in values(&got).iter().zip(&want).enumerate() {
            let apart = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(apart < 1e-5, "{sections:?}, {takes_turns}, row {row}: {apart:e}");
        }
        // The first of the numbers is that of a rope without axes.
        let time = Rope { axes: None, ..rope.clone() };
        let how = Attention::plain(&shape, &time);
        let first = run(&|paging, memory| fused().attention(&qkv, paging, memory, 0, &how).unwrap());
        let want = scalar(
            &values(&qkv),
            dim,
            &numbers.iter().map(|row| formula([row[0]; 3], &rope.inv_freq, sections)).collect::<Vec<_>>(),
        );
        let pairs = values(&first).concat().into_iter().zip(want.concat());
        assert!(pairs.into_iter().all(|(a, b)| (f64::from(a) - b).abs() < 1e-5), "{sections:?}");
        assert_ne!(values(&first), values(&got));
    }
}

#[test]
fn pairs_take_turns_as_long_as_a_section_lasts() {
    let axes = |sections: [usize; 3], takes_turns| {
        let (axes, pairs) = (Axes::new(sections, takes_turns), sections.iter().sum());
        (0..pairs).map(|pair| axes.of(pair)).collect::<Vec<_>>()
    };
    assert_eq!(axes([2, 1, 3], false), [0, 0, 1, 2, 2, 2]);
    assert_eq!(axes([5, 2, 1], true), [0, 1, 2, 0, 1, 0, 0, 0]);
    // Qwen3.5.
    let last = [&[0, 1, 2].repeat(10)[..], &[0, 1]].concat();
    assert_eq!(axes([11, 11, 10], true), last);
}

/// Rows that see each other, of two sequences with others between and behind them, against a mask. With windows, sinks,
/// contexts of several pieces and a first position without a key.
#[test]
fn rows_that_see_each_other_are_those_of_a_mask() {
    for (case, (heads, kv_heads, dim)) in [(4, 2, 16), (3, 3, 8), (20, 1, 24)].into_iter().enumerate() {
        let (mut random, lengths) = (Random(case as u32), [340, 40]);
        let shape = AttentionShape::new(heads, kv_heads, dim);
        let (rope, sinks) = (rope(dim / 2, RopeStyle::Neox), random.floats(heads));
        let tables = tables(&mut random, &lengths, 16, 30);
        for (window, from, sinks) in
            [(None, 0, None), (Some(12), 0, None), (Some(300), 0, Some(&sinks[..])), (None, 1, None)]
        {
            let how = Attention { window, from, sinks, ..Attention::plain(&shape, &rope) };
            let [mut plain, mut fast] = [0, 1].map(|_| cache(KvType::F32, &shape, 30, 16));
            let layout = plain.layout().kv;
            for (chunks, mutual) in [
                (vec![(1, 0, 20), (0, 0, 100)], vec![0..7, 7..15, 30..95]),
                (vec![(0, 100, 190), (1, 20, 1)], vec![10..186, 190..191]),
                (vec![(0, 290, 50), (1, 21, 19)], vec![1..2, 49..50, 50..69]),
            ] {
                let chunks: Vec<_> =
                    chunks.into_iter().map(|(seq, start, rows)| Chunk { seq, start, rows }).collect();
                let batch = RaggedBatch { mutual, ..(*batch(&chunks, &tables, |_, _| 0)).clone() };
                let paging = Paging::new(&batch, &layout, &shape).unwrap();
                let qkv = random.tensor(batch.tokens.len(), shape.qkv());
                let want = PlainOps.attention(&qkv, &paging, &mut plain, 0, &how).unwrap();
                let got = fused().attention(&qkv, &paging, &mut fast, 0, &how).unwrap();
                let apart = error(&got, &want);
                assert!(apart <= TOLERANCE, "case {case}, window {window:?}, from {from}: {apart}");
                let causal = RaggedBatch { mutual: Vec::new(), ..batch.clone() };
                let paging = Paging::new(&causal, &layout, &shape).unwrap();
                let causal = fused().attention(&qkv, &paging, &mut fast, 0, &how).unwrap();
                let paging = Paging::new(&batch, &layout, &shape).unwrap();
                let how = Attention { mutual: false, ..how };
                let same = fused().attention(&qkv, &paging, &mut fast, 0, &how).unwrap();
                assert_eq!(error(&same, &causal), 0.0);
                assert!(error(&got, &causal) > 1e-2, "case {case}: the mask makes no difference");
            }
        }
    }
}

#[test]
fn mistaken_inputs_are_refused() {
    let model = open(llama().bytes()).unwrap();
    let mut memory = model.memory(KvType::F32, 6, 16, 1);
    let mut run = |change: &dyn Fn(&mut RaggedBatch)| {
        let mut batch = rows(0, 20);
        batch.push_seq(&[3], 0, 10).unwrap();
        batch.tokens.extend([1; 10]);
        change(&mut batch);
        model.forward(&batch, &mut *memory, &mut Outputs::default())
    };
    let width = HIDDEN as usize;
    run(&|b| (b.vector_rows, b.vectors) = (vec![0, 29], vec![0.5; 2 * width])).unwrap();
    run(&|b| b.rotations = vec![[u32::MAX; 3]; 30]).unwrap();
    run(&|b| b.mutual = vec![0..20, 20..30]).unwrap();
    type Change<'a> = &'a dyn Fn(&mut RaggedBatch);
    let wrong: [(Change, &str); 16] = [
        (&|b| b.vectors = vec![0.5; width], "elements for 0 given vectors"),
        (&|b| b.vector_rows = vec![0], "0 elements for 1 given vectors"),
        (&|b| (b.vector_rows, b.vectors) = (vec![0], vec![0.5; width - 1]), "elements for 1 given vectors"),
        (&|b| (b.vector_rows, b.vectors) = (vec![1, 0], vec![0.5; 2 * width]), "vector rows [1, 0]"),
        (&|b| (b.vector_rows, b.vectors) = (vec![1, 1], vec![0.5; 2 * width]), "vector rows [1, 1]"),
        (&|b| (b.vector_rows, b.vectors) = (vec![30], vec![0.5; width]), "vector rows [30]"),
        (&|b| (b.vector_rows, b.vectors) = (vec![3], vec![f32::NAN; width]), "an element that is NaN"),
        (&|b| (b.vector_rows, b.vectors) = (vec![3], vec![f32::INFINITY; width]), "that is inf"),
        (&|b| b.rotations = vec![[0; 3]; 29], "rotations of 29 rows"),
        (&|b| b.rotations = vec![[0; 3]; 31], "rotations of 31 rows"),
        (&|b| b.mutual.push(15..21), "rows 15..21"),
        (&|b| b.mutual.push(25..31), "rows 25..31"),
        (&|b| b.mutual.push(40..41), "rows 40..41"),
        (&|b| b.mutual.push(5..5), "rows 5..5"),
        (&|b| b.mutual = vec![5..9, 8..10], "rows 8..10"),
        (&|b| b.mutual = vec![22..24, 5..9], "rows 5..9"),
    ];
    for (change, words) in wrong {
        let error = run(change).expect_err(words);
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
        assert!(error.message.contains(words), "'{words}' is not in: {error}");
    }
}

#[test]
fn models_of_tokens_alone_refuse_other_inputs() {
    let encoder = root().join("tests/golden/models/bert-embedding.gguf").to_string_lossy().into_owned();
    for path in [&*encoder, "builtin:echo"] {
        let model = load_source(&Source::parse(Some(path)).unwrap(), &LoadOptions::default(), 1).unwrap();
        let (mut memory, width) = (model.memory(KvType::F32, 3, 16, 1), model.model.facts().hidden_size);
        let mut run = |change: &dyn Fn(&mut RaggedBatch)| {
            let mut batch = rows(0, 20);
            batch.hidden_rows = std::mem::take(&mut batch.logits_rows);
            change(&mut batch);
            model.forward(&batch, &mut *memory, &mut Outputs::default())
        };
        run(&|_| ()).unwrap();
        let mut refused = |change: &dyn Fn(&mut RaggedBatch), words: &str| {
            let error = run(change).unwrap_err();
            assert!(error.message.contains(words) && error.message.contains("tokens alone"), "{error}");
        };
        refused(&|b| (b.vector_rows, b.vectors) = (vec![0], vec![0.5; width]), "given vectors");
        refused(&|b| b.rotations = vec![[0; 3]; 20], "rotations");
        refused(&|b| b.mutual.push(2..4), "rows that see each other");
    }
}
