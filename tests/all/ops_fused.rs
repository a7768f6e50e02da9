//! Fused passes have the bits of their parts run one after the other.

use crate::common::{Running, load_file, load_on};
use crate::ops_support::{Eager, Random, parts, values};
use bn_engine::base::Result;
use bn_engine::kernels::attention::KvType;
use bn_engine::kernels::{DType, Pool, available};
use bn_engine::model::Outputs;
use bn_engine::ops::pass::{Program, Step};
use bn_engine::ops::{Activation, AttentionShape, CpuOps, Memory, OpSet, Projections, RaggedBatch, SeqRows};
use candle_core::{Device, Tensor};
use std::sync::Arc;

/// `CpuOps` without fusion.
struct InParts(CpuOps);

impl OpSet for InParts {
    fn run(
        &self,
        program: &Program,
        step: &Step,
        memory: Option<&mut dyn Memory>,
        given: &[&[f32]],
        out: &mut Outputs,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.0.run(&parts(program), step, memory, given, out, check)
    }

    fn attention_bytes(&self, shape: &AttentionShape, rows: usize, context: usize) -> usize {
        self.0.attention_bytes(shape, rows, context)
    }

    fn encode_bytes(&self, shape: &AttentionShape, rows: usize) -> usize {
        self.0.encode_bytes(shape, rows)
    }
}

fn bits(x: &Tensor) -> Vec<Vec<u32>> {
    values(x).into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

/// Rows of which some have values that quantization treats specially.
fn rows(random: &mut Random, count: usize, width: usize) -> Tensor {
    let mut x = random.floats(count * width);
    x.iter_mut().for_each(|x| *x *= 30.0);
    let mut set = |row: usize, values: [f32; 2]| {
        for value in values {
            x[row * width + random.below(width)] = value;
        }
    };
    if count > 6 {
        set(1, [f32::NAN, 1e30]);
        set(3, [f32::INFINITY, -3.0]);
        set(5, [f32::NEG_INFINITY, f32::NAN]);
        x[6 * width..7 * width].fill(0.0);
    }
    Tensor::from_vec(x, (count, width), &Device::Cpu).unwrap()
}

/// Two matrices of these types; `own`: with a bias and norms of their own.
fn weights(random: &mut Random, types: [DType; 2], cols: usize, own: bool) -> Projections {
    let heights = [random.below(70) + 1, 9];
    let matrices = [0, 1].map(|i| random.matrix(types[i], heights[i], cols)).to_vec();
    let bias = own.then(|| random.floats(matrices.iter().map(|m| m.rows).sum()).into());
    let norms = if own { vec![random.norm(cols), random.norm(cols)] } else { Vec::new() };
    Projections { matrices, bias, norms, fold: None, columns: None, whole: false }
}

#[test]
fn one_pass_has_the_bits_of_its_parts() {
    let mut random = Random(11);
    use DType::*;
    let types = [
        [F32; 2],
        [F16; 2],
        [BF16; 2],
        [Q8_0; 2],
        [Q6_K; 2],
        [TQ2_0; 2],
        [I2S; 2],
        [Ternary; 2],
        // Rows are made once, even if they are wanted in two forms.
        [Q8_0, Q6_K],
        [Q6_K, F16],
    ];
    let activations = [Activation::SwiGlu, Activation::Relu2, Activation::GeGlu];
    for case in 0..120 {
        let (dtypes, isas) = (types[case % 10], available());
        let isa = isas[case % isas.len()];
        let ops = CpuOps::with_isa(Pool::new(1 + case % 3).unwrap(), isa).unwrap();
        let cols = match dtypes {
            [Ternary, _] => 1 + random.below(900),
            _ => 256 * (1 + random.below(4)),
        };
        let count = [1, 2, 7, 16, 70][random.below(5)];
        let weights = weights(&mut random, dtypes, cols, case % 7 == 4);
        let norm = (case % 4 != 3).then(|| random.norm(cols));
        let y_norm = (case % 3 == 1).then(|| random.norm(cols));
        let (norm, y_norm) = (norm.as_ref(), y_norm.as_ref());
        let what = format!("case {case}: {dtypes:?}, {isa:?}, {count} rows of {cols}");

        let x = rows(&mut random, count, cols);
        let [got, want] = [true, false].map(|fuse| ops.linear_as(&x, norm, &weights, fuse).unwrap());
        assert!(bits(&got) == bits(&want), "{what}: a norm");

        let y = random.tensor(count, cols);
        let sum = |fuse| ops.add_linear([&x, &y], [y_norm, norm], &weights, fuse).unwrap();
        let ([x1, got], [x2, want]) = (sum(true), sum(false));
        assert!(bits(&x1) == bits(&x2) && bits(&got) == bits(&want), "{what}: a sum");

        let (wide, how) = (rows(&mut random, count, 2 * cols), activations[random.below(3)]);
        let [got, want] =
            [true, false].map(|fuse| ops.gated_linear(&wide, how, norm, &weights, fuse).unwrap());
        assert!(bits(&got) == bits(&want), "{what}: {how:?}");
    }
}

#[test]
fn mistakes_are_errors() {
    let (mut random, ops) = (Random(12), CpuOps::new(Pool::new(2).unwrap()));
    let weights = weights(&mut random, [DType::F32; 2], 64, false);
    let sum = |x: &Tensor, y: &Tensor, norm| ops.add_linear([x, y], [norm, None], &weights, true);
    let (x, narrow) = (random.tensor(4, 64), random.norm(32));
    assert!(sum(&x, &random.tensor(4, 64), None).is_ok());
    assert!(sum(&x, &random.tensor(3, 64), None).is_err(), "fewer rows");
    assert!(sum(&x, &random.tensor(4, 32), None).is_err(), "narrower rows");
    assert!(sum(&x, &random.tensor(4, 64), Some(&narrow)).is_err(), "a narrower norm");
    assert!(sum(&random.tensor(4, 32), &random.tensor(4, 32), None).is_err(), "other weights");
    let gated = |x: &Tensor| ops.gated_linear(x, Activation::Relu2, None, &weights, true);
    assert!(gated(&random.tensor(2, 128)).is_ok());
    assert!(gated(&x).is_err(), "no up");
}

const MODELS: [&str; 7] = [
    "models/bn-demo.gguf",
    "tests/golden/llama-tiny-f32.gguf",
    "tests/golden/models/qwen2.gguf",
    "tests/golden/models/gemma3.gguf",
    "tests/golden/models/bitnet-embedding-qwen3-i2_s.gguf",
    "tests/golden/models/olmo2",
    "tests/golden/models/qwen3moe-mixed",
];

/// Rows `from..from + rows` of `sequences` sequences, a block of 64 for each.
fn batch(sequences: u32, from: u32, rows: u32) -> RaggedBatch {
    let mut batch = RaggedBatch::default();
    for s in 0..sequences {
        batch.seqs.push(SeqRows { row: s * rows, rows, table: s, table_len: 1 });
        batch.block_tables.push(s);
        batch.tokens.extend((0..rows).map(|i| (7 * i + 3 * s + from) % 60));
        batch.positions.extend(from..from + rows);
    }
    batch
}

/// Bits of (logits, hidden states) of two steps: prompts with some rows wanted, then a row of each.
fn two_steps(loaded: &Running, logits: &[u32], hidden: &[u32]) -> Vec<[Vec<u32>; 2]> {
    let mut memory = loaded.memory(KvType::F32, 3, 64, 3);
    let mut first = batch(3, 0, 20);
    (first.logits_rows, first.hidden_rows) = (logits.to_vec(), hidden.to_vec());
    let mut second = batch(3, 20, 1);
    second.logits_rows = vec![0, 1, 2];
    let mut out = Outputs::default();
    let mut step = |batch: RaggedBatch| {
        loaded.forward(&batch, &mut *memory, &mut out).unwrap();
        [&out.logits, &out.hidden].map(|values| values.iter().map(|v| v.to_bits()).collect())
    };
    vec![step(first), step(second)]
}

#[test]
fn models_have_the_same_bits_in_parts_and_whatever_rows_are_wanted() {
    for path in MODELS {
        let fused = load_file(path, 2).unwrap();
        let parts = load_on(path, Arc::new(InParts(CpuOps::new(Pool::new(2).unwrap())))).unwrap();
        let all: Vec<u32> = (0..60).collect();
        let whole = two_steps(&parts, &all, &all);
        assert!(two_steps(&fused, &all, &all) == whole, "{path}: in parts");
        let (vocab, hidden) = (fused.model.facts().vocab_size, fused.model.facts().hidden_size);
        let choose = |of: &[u32], width: usize, rows: &[u32]| -> Vec<u32> {
            rows.iter().flat_map(|row| &of[*row as usize * width..][..width]).copied().collect()
        };
        for (logits, states) in [
            (&[19, 39, 59][..], &[][..]),
            (&[], &[4]),
            (&[], &[]),
            (&[0, 19, 33], &[0, 20, 58, 59]),
            (&[7], &all),
        ] {
            let got = two_steps(&fused, logits, states);
            let want = [choose(&whole[0][0], vocab, logits), choose(&whole[0][1], hidden, states)];
            assert!(got[0] == want, "{path}: {logits:?} and {states:?}");
            assert!(got[1] == whole[1], "{path}: the step behind {logits:?} and {states:?}");
        }
    }
}

/// A region costs a wake-up and a wait for the slowest thread; a decode step of one row has hardly more
/// regions than products. Each expert has products of its own.
#[test]
fn a_layer_has_few_parallel_regions() {
    for path in MODELS.into_iter().filter(|path| !path.contains("moe")) {
        let pool = Pool::new(2).unwrap();
        let loaded = load_on(path, Arc::new(CpuOps::new(pool.clone()))).unwrap();
        let layers = loaded.model.facts().layers as u64;
        let (mut memory, mut out) = (loaded.memory(KvType::F32, 8, 64, 8), Outputs::default());
        let mut regions = |mut batch: RaggedBatch| {
            let rows = batch.tokens.len() as u32;
            batch.logits_rows = (0..rows).collect();
            let before = pool.regions();
            loaded.forward(&batch, &mut *memory, &mut out).unwrap();
            pool.regions() - before
        };
        let (prompts, decode) = (regions(batch(8, 0, 60)), regions(batch(8, 60, 1)));
        println!("{path}: {layers} layers, {prompts} regions for 480 rows, {decode} for 8");
        // Besides: the embedding, the last sum, the head's norm and the head; of a prompt its angles.
        assert!(decode <= 8 * layers + 4, "{path}: {decode} regions in a decode step of {layers} layers");
        // Four products and the operation before each, which AVX-512 arranges in one more region; attention's
        // K and V, and attention itself. Norms of their own split three of the products; norms of whole rows of q and k
        // are two more.
        let most = match path {
            _ if path.contains("embedding") => 18,
            _ if path.contains("olmo2") => 14,
            _ => 12,
        };
        assert!(prompts > layers, "{path}: the prompt is not shared out");
        assert!(prompts <= most * layers + 5, "{path}: {prompts} regions in a prompt of {layers} layers");
    }
}
