//! Passes on plain candle: slow, obvious, and without any kernel of `CpuOps`.
#![allow(dead_code)]

use bn_engine::base::{Error, Result};
use bn_engine::kernels::gemm::lora::Pair;
use bn_engine::kernels::{Arithmetic, DType as Kind, Matrix};
use bn_engine::ops::{
    Activation, Adapted, Attention, Expert, Experts, Gate, HostMemory, KvLayout, Memory, Norm, Projections,
    RaggedBatch, Rope, RopeStyle, Site,
};
use candle_core::{D, DType, Device, IndexOp, Tensor};
use half::{bf16, f16};
use std::ops::Range;

mod fold;
mod latent;
mod recurrent;
mod run;
mod towers;

use fold::{rotated, rotated_int8, unrotated_int8};

pub struct PlainOps;

fn ours<T>(result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|error| Error::internal(error.to_string()))
}

/// `[rows, cols]` f32: an independent decoder of each format, one element at a time.
pub fn dequantize(m: &Matrix) -> candle_core::Result<Tensor> {
    let values = stored(m)?;
    if m.dtype == Kind::Int8 { unrotated_int8(&values) } else { Ok(values) }
}

/// As `dequantize`, of int8 weights the rows as they are stored: rotated.
fn stored(m: &Matrix) -> candle_core::Result<Tensor> {
    let values: Vec<f32> = (0..m.rows * m.cols).map(|i| element(m, i)).collect();
    Tensor::from_vec(values, (m.rows, m.cols), &Device::Cpu)
}

/// Element `i` of the flattened matrix.
fn element(m: &Matrix, i: usize) -> f32 {
    let bytes: &[u8] = &m.data;
    let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
    let code = |byte: u8, quarter: usize| ((byte >> (2 * quarter)) & 3) as f32 - 1.0;
    match m.dtype {
        Kind::F32 => f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()),
        Kind::F16 => half(2 * i),
        Kind::BF16 => bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        Kind::Q8_0 => half(i / 32 * 34) * (bytes[i / 32 * 34 + 2 + i % 32] as i8) as f32,
        Kind::Q6_K => {
            // 256 elements: 128 bytes of low bits, 64 of high ones, 16 scales, an f16; runs of 32 in each half.
            let (block, half_block, within) = (i / 256 * 210, i % 256 / 128, i % 128);
            let (run, j) = (within / 32, within % 32);
            let low = bytes[block + 64 * half_block + run % 2 * 32 + j] >> (run / 2 * 4) & 15;
            let high = bytes[block + 128 + 32 * half_block + j] >> (2 * run) & 3;
            let scale = bytes[block + 192 + i % 256 / 16] as i8 as f32;
            half(block + 208) * scale * ((low | high << 4) as f32 - 32.0)
        }
        Kind::TQ2_0 => {
            // 256 elements: two runs of 32 bytes, in each the quarter is the slow index.
            let (block, within) = (i / 256 * 66, i % 256);
            let byte = bytes[block + within / 128 * 32 + within % 32];
            half(block + 64) * code(byte, within % 128 / 32)
        }
        Kind::I2S => {
            // 128 elements: 32 bytes, element 32 g + p in bits 6 - 2 g of byte p; the scale follows all
            // codes.
            let (block, within) = (i / 128 * 32, i % 128);
            let end = m.rows * m.cols / 4;
            let scale = f32::from_le_bytes(bytes[end..end + 4].try_into().unwrap());
            scale * code(bytes[block + within % 32], 3 - within / 32)
        }
        Kind::Ternary => {
            // As I2_S, but each row in blocks of its own, with one scale per row after all codes.
            let (row, column, blocks) = (i / m.cols, i % m.cols, m.cols.div_ceil(128));
            let byte = bytes[(row * blocks + column / 128) * 32 + column % 32];
            let end = m.rows * blocks * 32 + 4 * row;
            let scale = f32::from_le_bytes(bytes[end..end + 4].try_into().unwrap());
            scale * code(byte, 3 - column % 128 / 32)
        }
        Kind::Int8 => {
            // Panels of sixteen rows: four columns of each, one after the other, then their scales.
            let (row, column, bytes_each) = (i / m.cols, i % m.cols, m.cols.div_ceil(128) * 128 * 16 + 64);
            let panel = &bytes[row / 16 * bytes_each..][..bytes_each];
            let at = bytes_each - 64 + row % 16 * 4;
            let scale = f32::from_le_bytes(panel[at..at + 4].try_into().unwrap());
            scale * (panel[column / 4 * 64 + row % 16 * 4 + column % 4] as i8) as f32
        }
        other => panic!("no test has {other:?} weights here"),
    }
}

fn normed(x: &Tensor, norm: &Norm) -> candle_core::Result<Tensor> {
    let weight = Tensor::from_slice(&norm.weight, norm.weight.len(), &Device::Cpu)?;
    let x = match norm.bias {
        Some(_) => x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?,
        None => x.clone(),
    };
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    let y = x.broadcast_div(&(mean + norm.eps as f64)?.sqrt()?)?.broadcast_mul(&weight)?;
    match &norm.bias {
        Some(bias) => y.broadcast_add(&Tensor::from_slice(bias, bias.len(), &Device::Cpu)?),
        None => Ok(y),
    }
}

/// Half to even: candle's `round` rounds half away from zero.
fn round_half_even(x: &Tensor) -> candle_core::Result<Tensor> {
    let (floor, one) = (x.floor()?, x.ones_like()?);
    let fraction = (x - &floor)?;
    let odd = (&floor - ((&floor * 0.5)?.floor()? * 2.0)?)?;
    let up = fraction.gt(0.5)?.to_dtype(DType::F32)?;
    let tie = (fraction.eq(0.5)?.to_dtype(DType::F32)? * odd)?;
    &floor + (up + tie)?.minimum(&one)?
}

/// int8 values as f32, and the scale of each row.
fn quantize(x: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
    let largest = x.abs()?.max_keepdim(D::Minus1)?.maximum(1e-5)?;
    let scale = (largest.ones_like()? * 127.0)?.div(&largest)?;
    let values = round_half_even(&x.broadcast_mul(&scale)?)?.clamp(-128.0, 127.0)?;
    Ok((values, scale))
}

/// The values of int8 numbers with a scale for each `block` columns.
fn rounded(x: &Tensor, block: usize) -> candle_core::Result<Tensor> {
    let blocks = x.reshape(((), block))?;
    let largest = blocks.abs()?.max_keepdim(1)?;
    // A block of zeros stays zero, whatever it is divided by.
    let divisor = largest.eq(0.0)?.where_cond(&largest.ones_like()?, &largest)?;
    let inverse = (divisor.ones_like()? * 127.0)?.div(&divisor)?;
    let values = round_half_even(&blocks.broadcast_mul(&inverse)?)?;
    values.broadcast_mul(&(largest / 127.0)?)?.reshape(x.shape())
}

fn linear(x: &Tensor, norm: Option<&Norm>, weights: &Projections) -> candle_core::Result<Tensor> {
    let x = norm.map_or_else(|| Ok(x.clone()), |norm| normed(x, norm))?;
    let products = weights.matrices.iter().enumerate().map(|(i, m)| {
        let x = weights.norms.get(i).map_or_else(|| Ok(x.clone()), |norm| normed(&x, norm))?;
        let x = weights.fold.as_deref().map_or_else(|| Ok(x.clone()), |fold| rotated(&x, fold))?;
        let w = stored(m)?.to_dtype(DType::F64)?.t()?;
        let y = match m.dtype.arithmetic() {
            Arithmetic::Ternary | Arithmetic::Int8 => {
                let x = if m.dtype == Kind::Int8 { rotated_int8(&x)? } else { x };
                let (values, scale) = quantize(&x)?;
                values.to_dtype(DType::F64)?.matmul(&w)?.broadcast_div(&scale.to_dtype(DType::F64)?)?
            }
            Arithmetic::Blocks32 => rounded(&x, 32)?.to_dtype(DType::F64)?.matmul(&w)?,
            Arithmetic::Blocks256 => rounded(&x, 256)?.to_dtype(DType::F64)?.matmul(&w)?,
            Arithmetic::Float => x.to_dtype(DType::F64)?.matmul(&w)?,
        };
        y.to_dtype(DType::F32)
    });
    let product = Tensor::cat(&products.collect::<candle_core::Result<Vec<_>>>()?, 1)?;
    match &weights.bias {
        Some(bias) => product.broadcast_add(&Tensor::from_slice(bias, bias.len(), &Device::Cpu)?),
        None => Ok(product),
    }
}

/// The angles of a row's pairs: `position * inv_freq`, or those of its rotation.
fn angles(batch: &RaggedBatch, row: usize, rope: &Rope) -> Vec<f64> {
    let position = |pair: usize| match batch.rotations.get(row) {
        Some(own) => own[rope.axes.as_ref().map_or(0, |axes| axes.of(pair))],
        None => batch.positions[row],
    };
    rope.inv_freq.iter().enumerate().map(|(pair, f)| position(pair) as f64 * *f as f64).collect()
}

/// `x` `[T, heads, head_dim]`, turned.
fn rotate(x: &Tensor, batch: &RaggedBatch, rope: &Rope) -> candle_core::Result<Tensor> {
    let (rows, heads, dim) = x.dims3()?;
    let pairs = rope.inv_freq.len();
    if pairs == 0 {
        return Ok(x.clone());
    }
    let angles = (0..rows).flat_map(|row| angles(batch, row, rope));
    let angles = Tensor::from_vec(angles.collect::<Vec<f64>>(), (rows, 1, pairs, 1), &Device::Cpu)?;
    let factor = rope.factor as f64;
    let (cos, sin) = ((angles.cos()? * factor)?, (angles.sin()? * factor)?);
    let (cos, sin) = (cos.to_dtype(DType::F32)?, sin.to_dtype(DType::F32)?);
    let (turning, rest) = (x.narrow(2, 0, 2 * pairs)?, x.narrow(2, 2 * pairs, dim - 2 * pairs)?);
    // [T, heads, pairs, 2] in both styles.
    let paired = match rope.style {
        RopeStyle::Interleaved => turning.reshape((rows, heads, pairs, 2))?,
        RopeStyle::Neox => turning.reshape((rows, heads, 2, pairs))?.transpose(2, 3)?.contiguous()?,
    };
    let (a, b) = (paired.narrow(3, 0, 1)?, paired.narrow(3, 1, 1)?);
    let c = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let d = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    let turned = match rope.style {
        RopeStyle::Interleaved => Tensor::cat(&[c, d], 3)?,
        RopeStyle::Neox => Tensor::cat(&[c.squeeze(3)?, d.squeeze(3)?], 2)?,
    };
    let turned = turned.reshape((rows, heads, 2 * pairs))?;
    if rest.elem_count() == 0 { Ok(turned) } else { Tensor::cat(&[turned, rest], 2) }
}

/// Softmax attention of `q` `[rows, heads, dim]` at `positions` over `k` and `v` `[context, kv_heads, dim]`. Positions
/// in one of the ranges `mutual` see each other, as far back as a window lets them.
fn softmax_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    positions: &[u32],
    mutual: &[Range<usize>],
    how: &Attention,
) -> candle_core::Result<Tensor> {
    let (rows, heads, dim) = q.dims3()?;
    let (context, kv_heads, _) = k.dims3()?;
    // Each KV head repeated for the query heads that share it: [heads, context, dim].
    let spread = |x: &Tensor| {
        let x = x.transpose(0, 1)?.unsqueeze(1)?;
        x.broadcast_as((kv_heads, heads / kv_heads, context, dim))?
            .contiguous()?
            .reshape((heads, context, dim))
    };
    let (k, v) = (spread(k)?, spread(v)?);
    let scores = (q.transpose(0, 1)?.contiguous()?.matmul(&k.transpose(1, 2)?.contiguous()?)?
        * how.shape.scale as f64)?;
    let window = how.window.unwrap_or(usize::MAX);
    let from = how.from;
    let both = |row, c| mutual.iter().any(|range| range.contains(&row) && range.contains(&c));
    let near = |row: usize, c: usize| row.saturating_sub(c) < window && c >= from.min(row);
    let sees = |row: usize, c: usize| near(row, c) && (c <= row || how.mutual && both(row, c));
    let hide = |p: u32, c: usize| if sees(p as usize, c) { 0.0f32 } else { f32::NEG_INFINITY };
    let hidden = |p: u32| (0..context).map(move |c| hide(p, c));
    let mask = positions.iter().flat_map(|p| hidden(*p)).collect::<Vec<_>>();
    let mask = Tensor::from_vec(mask, (1, rows, context), &Device::Cpu)?;
    let scores = match how.shape.cap {
        Some(cap) => ((scores / cap as f64)?.tanh()? * cap as f64)?,
        None => scores,
    };
    let scores = scores.broadcast_add(&mask)?;
    let scores = match how.sinks {
        Some(sinks) => {
            let sinks =
                Tensor::from_slice(sinks, (heads, 1, 1), &Device::Cpu)?.broadcast_as((heads, rows, 1))?;
            Tensor::cat(&[&scores, &sinks.contiguous()?], 2)?
        }
        None => scores,
    };
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    // The sink has no value.
    let weights = weights.narrow(2, 0, context)?.contiguous()?;
    weights.matmul(&v)?.transpose(0, 1)?.contiguous()?.reshape((rows, heads * dim))
}

/// A layer's K or V as `[blocks * block_size, kv_heads, dim]`, one row per slot.
fn slots(half: &Tensor) -> candle_core::Result<Tensor> {
    let (blocks, kv_heads, block_size, dim) = half.dims4()?;
    half.transpose(1, 2)?.contiguous()?.reshape((blocks * block_size, kv_heads, dim))
}

/// The v heads, normed if the model does.
fn values(heads: &Tensor, how: &Attention) -> candle_core::Result<Tensor> {
    let s = how.shape;
    let from = if s.keys_are_values || s.joint { s.heads } else { s.heads + s.kv_heads };
    let v = heads.narrow(1, from, s.kv_heads)?.contiguous()?;
    how.value_norm.map_or_else(|| Ok(v.clone()), |norm| normed(&v, norm))
}

fn attention(
    qkv: &Tensor,
    batch: &RaggedBatch,
    memory: &HostMemory,
    layer: usize,
    how: &Attention,
) -> candle_core::Result<Tensor> {
    let s = how.shape;
    let heads = qkv.reshape((batch.tokens.len(), qkv.dim(1)? / s.head_dim, s.head_dim))?;
    let part = |from, count, norm: usize| {
        let part = heads.narrow(1, from, count)?.contiguous()?;
        let normed = |x: &Tensor| how.norms.map_or_else(|| Ok(x.clone()), |norms| normed(x, &norms[norm]));
        match s.norms_last {
            true => normed(&rotate(&part, batch, how.rope)?),
            false => rotate(&normed(&part)?, batch, how.rope),
        }
    };
    let q = part(0, s.heads, 0)?;
    let written = match how.shared {
        true => None,
        false if s.joint => Some(vec![part(s.heads, s.kv_heads, 1)?]),
        false => Some(vec![part(s.heads, s.kv_heads, 1)?, values(&heads, how)?]),
    };
    let growth: Vec<f32> = batch.positions.iter().map(|at| s.scale_at(*at as usize) / s.scale).collect();
    let q = q.broadcast_mul(&Tensor::from_vec(growth, (batch.tokens.len(), 1, 1), &Device::Cpu)?)?;
    let KvLayout { blocks, block_size, .. } = memory.layout().kv;
    let cache = memory.layer(layer).expect("a layer");
    // The cache's own storage, a line for each slot of each head. Not in tiles, since only these operations
    // read it.
    let halves = if s.joint { 1 } else { 2 };
    let lines = cache.reshape((halves * blocks * s.kv_heads * block_size, s.head_dim))?;
    let slot = |table: &[u32], p: usize| table[p / block_size] as usize * block_size + p % block_size;
    for seq in &batch.seqs {
        let table = &batch.block_tables[seq.table as usize..][..seq.table_len as usize];
        for row in seq.row as usize..(seq.row + seq.rows) as usize {
            let position = batch.positions[row] as usize;
            let block = table[position / block_size] as usize;
            for (half, x) in written.iter().flatten().enumerate() {
                for head in 0..s.kv_heads {
                    let at = ((half * blocks + block) * s.kv_heads + head) * block_size;
                    let x = x.i((row, head))?.reshape((1, s.head_dim))?.contiguous()?;
                    lines.slice_set(&x, 0, at + position % block_size)?;
                }
            }
        }
    }
    let (keys, values) = (slots(&cache.i(0)?)?, slots(&cache.i(halves - 1)?)?);
    let mut outputs = Vec::new();
    for seq in batch.seqs.iter().filter(|seq| seq.rows > 0) {
        let table = &batch.block_tables[seq.table as usize..][..seq.table_len as usize];
        let span = seq.row as usize..(seq.row + seq.rows) as usize;
        let positions = &batch.positions[span.clone()];
        let context = *positions.iter().max().unwrap() as usize + 1;
        let index: Vec<u32> = (0..context).map(|p| slot(table, p) as u32).collect();
        let index = Tensor::from_vec(index, context, &Device::Cpu)?;
        let (k, v) = (keys.index_select(&index, 0)?, values.index_select(&index, 0)?);
        let own = |rows: &&Range<u32>| span.contains(&(rows.start as usize));
        let at = |row: u32| batch.positions[row as usize] as usize;
        let mutual: Vec<_> =
            batch.mutual.iter().filter(own).map(|rows| at(rows.start)..at(rows.end - 1) + 1).collect();
        let q = q.narrow(0, span.start, span.len())?;
        outputs.push(softmax_attention(&q, &k, &v, positions, &mutual, how)?);
    }
    Tensor::cat(&outputs, 0)
}

fn gated(x: &Tensor, activation: Activation) -> candle_core::Result<Tensor> {
    if activation == Activation::Gelu {
        return x.contiguous()?.gelu();
    }
    if activation == Activation::GeluErf {
        return x.contiguous()?.gelu_erf();
    }
    let width = x.dim(1)? / 2;
    let (gate, up) = (x.narrow(1, 0, width)?, x.narrow(1, width, width)?);
    match activation {
        Activation::SwiGlu => ((&gate / (gate.neg()?.exp()? + 1.0)?)? * up)?.contiguous(),
        Activation::ClampedSwiGlu { limit } => {
            let (gate, up) = (gate.minimum(limit)?, up.clamp(-limit, limit)?);
            ((&gate / (gate.neg()?.exp()? + 1.0)?)? * up)?.contiguous()
        }
        Activation::ScaledSwiGlu { by, output } => {
            let gate = (gate * f64::from(by))?;
            ((&gate / (gate.neg()?.exp()? + 1.0)?)? * (up * f64::from(output))?)?.contiguous()
        }
        Activation::SteepSwiGlu { alpha, limit } => {
            let (gate, up) = (gate.minimum(limit)?, up.clamp(-limit, limit)?);
            let below = ((&gate * f64::from(-alpha))?.exp()? + 1.0)?;
            ((&gate / below)? * (up + 1.0)?)?.contiguous()
        }
        Activation::Relu2 => (gate.relu()?.sqr()? * up)?.contiguous(),
        Activation::GeGlu => (gate.contiguous()?.gelu()? * up)?.contiguous(),
        Activation::GeGluErf => (gate.contiguous()?.gelu_erf()? * up)?.contiguous(),
        Activation::Gelu | Activation::GeluErf => unreachable!("it has no gate"),
    }
}

/// All experts of each row, those that the router leaves out times zero.
fn mixture(
    x: &Tensor,
    norm: Option<&Norm>,
    experts: &Experts,
    activation: Activation,
) -> candle_core::Result<Tensor> {
    let seen = experts.router_norm.as_ref().map(|norm| normed(x, norm)).transpose()?;
    let x = norm.map_or_else(|| Ok(x.clone()), |norm| normed(x, norm))?;
    let logits = linear(seen.as_ref().unwrap_or(&x), None, &experts.router)?;
    let weights = match experts.choice.gate {
        Gate::Softmax => {
            let weights = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
            weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?
        }
        Gate::Logistic => ((logits.neg()?.exp()? + 1.0)?).recip()?,
    };
    let mut weights = weights.to_vec2::<f32>()?;
    for row in &mut weights {
        let bias = |e: usize| experts.bias.as_ref().map_or(0.0, |bias| bias[e]);
        let score: Vec<f32> = row.iter().enumerate().map(|(e, weight)| weight + bias(e)).collect();
        let mut order: Vec<usize> = (0..row.len()).collect();
        if let Some(groups) = experts.choice.groups {
            latent::limit(&mut order, &score, groups);
        }
        order.sort_by(|a, b| score[*b].total_cmp(&score[*a]));
        order.truncate(experts.choice.used);
        (0..row.len()).filter(|e| !order.contains(e)).for_each(|e| row[e] = 0.0);
        let sum = experts.choice.renormalize.map_or(1.0, |more| row.iter().sum::<f32>() + more);
        let scale = |e: usize| experts.scales.as_ref().map_or(1.0, |scales| scales[e]);
        row.iter_mut().enumerate().for_each(|(e, weight)| *weight *= experts.choice.scale / sum * scale(e));
    }
    let mut sum = x.zeros_like()?;
    let run = |expert: &Expert| {
        linear(&gated(&linear(&x, None, &expert.gate_up)?, activation)?, None, &expert.down)
    };
    for (e, expert) in experts.experts.iter().enumerate() {
        let own: Vec<f32> = weights.iter().map(|row| row[e]).collect();
        let own = Tensor::from_vec(own, (weights.len(), 1), &Device::Cpu)?;
        sum = (sum + run(expert)?.broadcast_mul(&own)?)?;
    }
    if let Some(shared) = &experts.shared {
        let out = run(&shared.expert)?;
        sum = match &shared.gate {
            Some(gate) => {
                let weight = ((linear(&x, None, gate)?.neg()?.exp()? + 1.0)?).recip()?;
                (sum + out.broadcast_mul(&weight)?)?
            }
            None => (sum + out)?,
        };
    }
    Ok(sum)
}

/// `y + s x Aᵀ Bᵀ` for the rows of `adapted`.
fn adapt(
    y: &Tensor,
    x: &Tensor,
    weights: &Projections,
    adapted: &Adapted,
    site: Site,
) -> candle_core::Result<Tensor> {
    let index = Tensor::from_slice(&adapted.rows, adapted.rows.len(), &Device::Cpu)?;
    let x = x.index_select(&index, 0)?;
    let update = |(pair, matrix): (&Option<_>, &Matrix)| {
        let Some(Pair { a, b, scale }) = pair else {
            return Tensor::zeros((adapted.rows.len(), matrix.rows), DType::F32, &Device::Cpu);
        };
        x.matmul(&dequantize(a)?.t()?)?.matmul(&dequantize(b)?)? * f64::from(scale * adapted.scale)
    };
    let pairs = adapted.lora.pairs(site).iter().zip(&weights.matrices);
    y.index_add(&index, &Tensor::cat(&pairs.map(update).collect::<candle_core::Result<Vec<_>>>()?, 1)?, 0)
}
