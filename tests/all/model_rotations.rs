//! Weights that are folded with a rotation compute what they compute without it, with blocks of any size.

use crate::common::gguf::{F32, File, Tensor, Value};
use crate::common::{Rng, alone, relative_error};
use crate::model_bad_files::open;

/// One layer: the hidden size, the width of the feed-forward, and the matrices that are folded.
pub(crate) struct Shape {
    pub hidden: usize,
    pub ffn: usize,
    pub folded: &'static [&'static str],
}

/// All products that may have a rotation here, and the table.
pub(crate) const ALL: &[&str] =
    &["token_embd", "attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down"];

const HEADS: usize = 2;
const HEAD: usize = 32;
const VOCAB: usize = 48;

/// Random values, so small that products have about the size of their inputs.
fn matrix(cols: usize, rows: usize, seed: u64) -> Vec<f32> {
    let (mut rng, by) = (Rng(seed), 1.7 / (cols as f32).sqrt());
    (0..cols * rows).map(|_| (rng.below(2001) as f32 / 1000.0 - 1.0) * by).collect()
}

/// Rows x' = H (s * x), by the definition of H: blocks are halved until they have one element.
fn fold(x: &[f32], signs: &[i32], block: usize) -> Vec<f32> {
    fn transform(x: &mut [f64]) {
        let half = x.len() / 2;
        if half == 0 {
            return;
        }
        for i in 0..half {
            (x[i], x[i + half]) = (x[i] + x[i + half], x[i] - x[i + half]);
        }
        transform(&mut x[..half]);
        transform(&mut x[half..]);
    }
    let signs = signs.iter().cycle();
    let mut x: Vec<f64> = x.iter().zip(signs).map(|(x, sign)| f64::from(*x) * f64::from(*sign)).collect();
    x.chunks_exact_mut(block).for_each(transform);
    x.iter().map(|x| (x / (block as f64).sqrt()) as f32).collect()
}

/// The signs of inputs of this width.
fn signs(width: usize) -> Vec<i32> {
    let mut rng = Rng(width as u64);
    (0..width).map(|_| if rng.one_in(2) { 1 } else { -1 }).collect()
}

/// A model; `block`: of the rotation, if it has one.
pub(crate) fn model(shape: &Shape, block: Option<usize>) -> File {
    let Shape { hidden, ffn, folded } = *shape;
    let table = folded.contains(&"token_embd");
    let key = |k: &str| format!("llama.{k}");
    let mut file = File::default()
        .str("general.architecture", "llama")
        .u32(&key("context_length"), 64)
        .u32(&key("embedding_length"), hidden as u32)
        .u32(&key("block_count"), 1)
        .u32(&key("feed_forward_length"), ffn as u32)
        .u32(&key("attention.head_count"), HEADS as u32)
        .u32(&key("attention.key_length"), HEAD as u32)
        .u32(&key("attention.value_length"), HEAD as u32)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .u32(&key("rope.dimension_count"), HEAD as u32);
    let inner = HEADS * HEAD;
    let parts = [
        ("token_embd", hidden, VOCAB),
        ("output_norm", hidden, 1),
        ("blk.0.attn_norm", hidden, 1),
        ("blk.0.ffn_norm", hidden, 1),
        ("blk.0.attn_q", hidden, inner),
        ("blk.0.attn_k", hidden, inner),
        ("blk.0.attn_v", hidden, inner),
        ("blk.0.attn_output", inner, hidden),
        ("blk.0.ffn_gate", hidden, ffn),
        ("blk.0.ffn_up", hidden, ffn),
        ("blk.0.ffn_down", ffn, hidden),
    ];
    for (seed, (name, cols, rows)) in (1..).zip(parts) {
        let mut values = matrix(cols, rows, seed);
        if rows == 1 {
            values.iter_mut().for_each(|x| *x = 1.0 + x.abs());
        }
        let part = name.rsplit('.').next().unwrap_or(name);
        if let Some(block) = block.filter(|_| folded.contains(&part)) {
            values = fold(&values, &signs(cols), block);
        }
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let dims = [cols as u64, rows as u64][..if rows == 1 { 1 } else { 2 }].to_vec();
        file.tensors.push(Tensor { name: format!("{name}.weight"), dims, type_id: F32, data });
    }
    match block {
        Some(block) => rotated(file, shape, block, table),
        None => file,
    }
}

fn rotated(file: File, shape: &Shape, block: usize, table: bool) -> File {
    let key = |k: &str| format!("prism.hadamard.{k}");
    let mut widths = vec![shape.hidden, shape.ffn];
    widths.dedup();
    let values = widths.iter().flat_map(|width| signs(*width)).collect();
    let names = shape.folded.iter().filter(|part| **part != "token_embd");
    let names = names.map(|part| format!("blk.0.{part}.weight")).collect();
    let file = file
        .u32(&key("version"), if table { 2 } else { 1 })
        .set(&key("tied_output"), Value::Bool(table))
        .u32(&key("block_size"), block as u32)
        .str(&key("transform"), "normalized-sylvester-walsh-hadamard")
        .str(&key("axis"), "input-last-dimension")
        .str(&key("sign_mode"), "explicit")
        .set(&key("sign_widths"), Value::I32s(widths.iter().map(|width| *width as i32).collect()))
        .set(&key("sign_values"), Value::I32s(values))
        .set(&key("weight_names"), Value::Strs(names));
    match table {
        true => file.set(&key("inverse_weight_names"), Value::Strs(vec!["token_embd.weight".into()])),
        false => file,
    }
}

/// Blocks of 512, 1,024 and 4,096 are those of Bonsai 2's sizes; the table is also the head in the small ones.
#[test]
fn rotations_with_blocks_of_any_size_change_only_what_is_rounded() {
    const INPUTS: &[&str] = &["token_embd", "attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"];
    let tokens = [(0..20).map(|n| n * 7 % VOCAB as u32).collect::<Vec<u32>>()];
    for (hidden, ffn, folded, blocks) in [
        (512, 1024, ALL, &[64, 512][..]),
        (1024, 96, INPUTS, &[512, 1024]),
        (4096, 96, INPUTS, &[1024, 4096]),
        (128, 8192, &["ffn_down"], &[512, 4096, 8192]),
    ] {
        let shape = Shape { hidden, ffn, folded };
        let want = alone(&open(model(&shape, None).bytes()).unwrap(), &tokens, 16);
        for block in blocks {
            let file = model(&shape, Some(*block));
            let got = alone(&open(file.bytes()).unwrap(), &tokens, 16);
            let error = relative_error(&got[0], &want[0]);
            println!("{hidden} and {ffn} columns, blocks of {block}: {error:.1e}");
            assert!(error < 2e-5, "{hidden} and {ffn} columns, blocks of {block}: {error:.1e}");
            // The weights themselves are rotated.
            let unread = file.keys.iter().filter(|(key, _)| !key.starts_with("prism.")).cloned().collect();
            let other = alone(&open(File { keys: unread, ..file.clone() }.bytes()).unwrap(), &tokens, 16);
            assert!(relative_error(&other[0], &want[0]) > 0.1);
        }
    }
}
