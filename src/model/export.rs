//! Writes a checkpoint as a GGUF file, which `gguf.rs` reads, and llama.cpp too if it knows the parts.

mod limits;
mod metadata;
mod readback;

use super::checkpoint::Checkpoint;
use super::config::{Block, DecoderConfig, RopeConfig, RopeScaling};
use super::family::Family;
use super::fused;
use super::layers::heads::{Heads, Part};
use super::layers::layer;
use super::layers::tensors::{Divisors, Kind};
use crate::base::{Bytes, Error, Result, Status};
use crate::formats::gguf::writer::{Meta, write_file};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::pack::requantize;
use crate::kernels::{DType, Matrix, Pool, isa};
use crate::ops::{ConvShape, RopeStyle};
use metadata::metadata;
use std::io::Write;
use std::path::Path;

/// Types of the tensors to write.
#[derive(Clone, Copy, Debug)]
pub struct ExportTypes {
    /// Type of ternary weights: I2_S (`None`; exact) or TQ2_0 (its scale is rounded to f16).
    pub ternary: Option<DType>,
    /// Type of projections that are not ternary: Q8_0 or Q4_0. `None` keeps the checkpoint's type.
    pub weights: Option<DType>,
    /// Type of the embedding and the head, as for `weights`.
    pub embedding: Option<DType>,
}

/// Writes `files` to `path`. `extra` has further metadata pairs (tokenizer, chat template). `progress` is called with
/// the completed fraction and each tensor's name. `Unsupported` for anything that a GGUF file cannot express, also if
/// that shows only when the file is read back: then there is no file.
pub fn export(
    files: &dyn Checkpoint,
    types: ExportTypes,
    extra: Vec<(String, Meta)>,
    pool: &Pool,
    path: &Path,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<()> {
    let config = files.config(&|_| ())?;
    limits::check(&config, files.what())?;
    let states = config.blocks.iter().any(Block::has_state);
    let family = config.family.stateless.filter(|_| !states).unwrap_or(config.family);
    let family = family.in_gguf(config.activation).ok_or_else(|| {
        let (what, name, activation) = (files.what(), &config.architecture, config.activation);
        Error::unsupported(format!("{what}: GGUF has no architecture for '{name}' with {activation:?}"))
    })?;
    let turn = family.gguf_rope != config.rope_style;
    if turn
        && (family.gguf_rope != RopeStyle::Interleaved
            || config.described().dims != config.attention.head_dim)
    {
        return Err(Error::unsupported(format!(
            "{}: q and k rows of this layout cannot be reordered",
            files.what()
        )));
    }
    if config.parts.projection_norms && config.projection_eps != config.rms_eps {
        return Err(Error::unsupported(format!(
            "{}: the eps of the projections' own norms, {:e}, has no key in GGUF",
            files.what(),
            config.projection_eps
        )));
    }
    let mut pairs = metadata(&config, family)?;
    pairs.extend(extra);
    let items = items(&config, family, turn, &|name| files.has(name));
    let tensors: Vec<_> = items.iter().map(|(name, kind)| (name.clone(), kind.dims(&config))).collect();
    let source = Source { files, types, pool, config: &config };
    let data = |index: usize, out: &mut dyn Write| {
        let (name, kind) = &items[index];
        progress(index as f32 / items.len() as f32, name);
        source.write(name, *kind, out)
    };
    write_file(path, &pairs, &tensors, data, |written| readback::check(written, &config, files.what()))
}

/// All tensors that `c` asks for, by name. `turn`: the rows of q and k are reordered.
fn items(c: &DecoderConfig, family: &Family, turn: bool, has: &dyn Fn(&str) -> bool) -> Vec<(String, Kind)> {
    let (hidden, vocab) = (c.hidden, c.vocab_size);
    let norm = |len| Kind::Norm { len, offset: c.norm_offset };
    let mut items = vec![
        ("token_embd.weight".to_owned(), Kind::Table { rows: vocab, cols: hidden }),
        (format!("{}.weight", family.final_norm.1), norm(hidden)),
    ];
    if has("output.weight") {
        items.push(("output.weight".into(), Kind::Table { rows: vocab, cols: hidden }));
    }
    let divisors: &[_] = match c.described().scaling {
        RopeScaling::Llama3 { .. } => &[("rope_freqs", Divisors::Any)],
        RopeScaling::Long { .. } => {
            &[("rope_factors_short", Divisors::Short), ("rope_factors_long", Divisors::Long)]
        }
        _ => &[],
    };
    items.extend(divisors.iter().map(|(name, of)| (format!("{name}.weight"), Kind::RopeFactors(*of))));
    if family.layer_norms {
        items.push((format!("{}.bias", family.final_norm.1), Kind::Bias { len: hidden, heads: None }));
    }
    for layer in 0..c.layers {
        let mut add = |part, kind| items.push((format!("blk.{layer}.{part}"), kind));
        layer::tensors(c, layer, family, turn, &mut add);
    }
    items
}

struct Source<'a> {
    files: &'a dyn Checkpoint,
    types: ExportTypes,
    pool: &'a Pool,
    config: &'a DecoderConfig,
}

impl Source<'_> {
    /// Writes a tensor's data and returns the number of its type.
    fn write(&self, name: &str, kind: Kind, out: &mut dyn Write) -> Result<u32> {
        match kind {
            Kind::Norm { len, offset } => {
                let values = self.files.vector(name, len)?;
                floats(out, values.iter().map(|w| w + offset))
            }
            Kind::Bias { len, heads } => {
                let values = self.files.vector(name, len)?;
                floats(out, (0..len).map(|row| values[source_row(row, len, heads)]))
            }
            Kind::RopeFactors(of) => floats(out, divisors(self.config.described(), of).into_iter()),
            Kind::Router { rows, cols } => self.exact(&self.files.matrix(self.pool, name, rows, cols)?, out),
            Kind::Gate { cols } => self.exact(&self.files.matrix(self.pool, name, 1, cols)?, out),
            Kind::Experts { count, rows, cols } => self.experts(name, [count, rows, cols], out),
            Kind::Delta(heads, part) => {
                let at = |e: Error| {
                    Error::new(e.status, format!("{}: tensor '{name}': {}", self.files.what(), e.message))
                };
                self.delta(name, heads, part, out).map_err(at)
            }
            Kind::Convolution(ConvShape { channels, kernel }) => {
                in_f32(&self.files.matrix(self.pool, name, channels, kernel)?, out)
            }
            Kind::Table { rows, cols } => {
                let m = self.files.matrix(self.pool, name, rows, cols)?;
                self.matrix(&retyped(self.pool, name, m, self.types.embedding)?, out)
            }
            Kind::Projection { rows, cols, heads } => {
                let m = self.files.matrix(self.pool, name, rows, cols)?;
                let m = if heads.is_some() { reordered(&m, heads)? } else { m };
                let to = self.projection_type(name, m.dtype.is_ternary())?;
                self.matrix(&retyped(self.pool, name, m, to)?, out)
            }
        }
    }

    fn experts(&self, name: &str, [count, rows, cols]: [usize; 3], out: &mut dyn Write) -> Result<u32> {
        let stacked = name.strip_suffix(".weight").unwrap_or(name);
        let mut of = 0;
        for n in 0..count {
            let name = format!("{stacked}.{n}.weight");
            let m = self.files.matrix(self.pool, &name, rows, cols)?;
            if m.dtype.is_ternary() {
                return Err(Error::unsupported(format!(
                    "{}: tensor '{name}' is ternary, and experts of this type are not written",
                    self.files.what()
                )));
            }
            let id = self.matrix(&retyped(self.pool, &name, m, self.types.weights)?, out)?;
            if n > 0 && id != of {
                return Err(Error::unsupported(format!(
                    "{}: tensor '{name}' has another type than the experts before it",
                    self.files.what()
                )));
            }
            of = id;
        }
        Ok(of)
    }

    fn delta(&self, name: &str, heads: Heads, part: Part, out: &mut dyn Write) -> Result<u32> {
        let dims = heads.dims(part, self.config.hidden);
        let read = |name: &str, rows: u64, cols: u64| {
            self.files.matrix(self.pool, name, rows as usize, cols as usize)
        };
        match (part, &dims[..]) {
            (Part::Vector, [len]) => floats(out, heads.vector(&self.files.vector(name, *len as usize)?)),
            (Part::Convolution, [cols, rows]) => {
                in_f32(&heads.reordered(part, read(name, *rows, *cols)?)?, out)
            }
            (Part::Gates, [cols, both]) => {
                let [rates, decays] = fused::parts_of(name).unwrap_or_default();
                let gates = heads.gates(&read(&rates, both / 2, *cols)?, &read(&decays, both / 2, *cols)?)?;
                self.matrix(&gates, out)
            }
            (Part::Gate, [cols, rows]) => {
                self.matrix(&heads.reordered(part, read(name, *rows, *cols)?)?, out)
            }
            (_, [cols, rows]) => {
                let m = heads.reordered(part, read(name, *rows, *cols)?)?;
                let to = self.projection_type(name, m.dtype.is_ternary())?;
                self.matrix(&retyped(self.pool, name, m, to)?, out)
            }
            _ => Err(Error::internal("a part of a recurrent layer without dimensions")),
        }
    }

    /// The type of a projection in the file. `Unsupported` if a type is requested that weights of this kind cannot
    /// have.
    fn projection_type(&self, name: &str, ternary: bool) -> Result<Option<DType>> {
        let (asked, other) = match ternary {
            true => (self.types.ternary.or(Some(DType::I2S)), self.types.weights),
            false => (self.types.weights, self.types.ternary),
        };
        match other {
            None => Ok(asked),
            Some(other) => Err(Error::unsupported(format!(
                "{}: tensor '{name}' is {}ternary, so it does not become {other:?}",
                self.files.what(),
                if ternary { "" } else { "not " }
            ))),
        }
    }

    /// F16 and BF16 in F32: llama.cpp rounds activations to the type of the weights, so its routers would choose other
    /// experts.
    fn exact(&self, m: &Matrix, out: &mut dyn Write) -> Result<u32> {
        if matches!(m.dtype, DType::F16 | DType::BF16) { in_f32(m, out) } else { self.matrix(m, out) }
    }

    fn matrix(&self, m: &Matrix, out: &mut dyn Write) -> Result<u32> {
        out.write_all(&m.data).map_err(cannot_write)?;
        Ok(m.dtype.file_id())
    }
}

/// Writes a matrix in F32. It is the only type of convolutions in llama.cpp.
fn in_f32(m: &Matrix, out: &mut dyn Write) -> Result<u32> {
    let mut row = vec![0.0; m.cols];
    for at in 0..m.rows {
        dequantize_row(isa(), m, at, &mut row);
        floats(out, row.iter().copied())?;
    }
    Ok(DType::F32 as u32)
}

fn cannot_write(e: std::io::Error) -> Error {
    Error::new(Status::Io, format!("cannot write: {e}"))
}

fn floats(out: &mut dyn Write, values: impl Iterator<Item = f32>) -> Result<u32> {
    for value in values {
        out.write_all(&value.to_le_bytes()).map_err(cannot_write)?;
    }
    Ok(DType::F32 as u32)
}

fn retyped(pool: &Pool, name: &str, m: Matrix, to: Option<DType>) -> Result<Matrix> {
    let Some(to) = to.filter(|to| *to != m.dtype) else { return Ok(m) };
    // No kernel reads rows that end within a block if they are this short (`pack::prepare`).
    if to == DType::I2S && m.cols < 64 {
        return Err(Error::unsupported(format!("tensor '{name}' has {} columns, too few for I2_S", m.cols)));
    }
    requantize::quantize(pool, &m, to)
        .map_err(|e| Error::new(e.status, format!("tensor '{name}' as {to:?}: {}", e.message)))
}

/// The row of a NEOX layout that is row `row` of an interleaved one. Pair i of a head is in rows 2i and 2i + 1 of the
/// interleaved layout, and in rows i and i + head_dim / 2 of NEOX.
pub(super) fn source_row(row: usize, rows: usize, heads: Option<usize>) -> usize {
    let Some(heads) = heads else { return row };
    let dim = rows / heads;
    let (head, at) = (row / dim, row % dim);
    head * dim + at % 2 * (dim / 2) + at / 2
}

/// `m` with the rows of each head in interleaved order.
fn reordered(m: &Matrix, heads: Option<usize>) -> Result<Matrix> {
    // Ternary matrices have one scale per row, after all rows.
    let tail = if m.dtype == DType::Ternary { 4 } else { 0 };
    let stride = m.data.len() / m.rows - tail;
    if matches!(m.dtype, DType::I2S) {
        return Err(Error::unsupported("I2_S rows cannot be reordered"));
    }
    let (rows, scales) = m.data.split_at(stride * m.rows);
    let mut data = Vec::new();
    data.try_reserve_exact(m.data.len()).map_err(|_| Error::out_of_memory("a matrix", m.data.len()))?;
    for row in 0..m.rows {
        data.extend_from_slice(&rows[source_row(row, m.rows, heads) * stride..][..stride]);
    }
    for row in 0..m.rows {
        data.extend_from_slice(&scales[source_row(row, m.rows, heads) * tail..][..tail]);
    }
    Matrix::new(Bytes::new(data), m.dtype, m.rows, m.cols)
}

fn divisors(rope: &RopeConfig, of: Divisors) -> Vec<f32> {
    match (&rope.scaling, of) {
        (RopeScaling::Long { short, .. }, Divisors::Short) => short.clone(),
        (RopeScaling::Long { long, .. }, Divisors::Long) => long.clone(),
        _ => {
            let plain = RopeConfig { scaling: RopeScaling::None, ..*rope };
            plain.inv_freq().iter().zip(rope.inv_freq()).map(|(plain, scaled)| plain / scaled).collect()
        }
    }
}
