//! Experts as gpt-oss's folders have them. All of a layer are in one tensor, gate and up in turns: floats with rows and
//! columns exchanged, or blocks of MXFP4, in which they are not. A block has 32 codes of 4 bits, two neighbors to a
//! byte, and its scale, an exponent, in another tensor.

use super::folder::HfFolder;
use super::names::SCALES;
use super::place::Place;
use crate::base::{Bytes, Result, reserve};
use crate::formats::gguf::expert;
use crate::formats::safetensors::{ElementType, TensorInfo};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::{DType, Matrix, Pool, pack};
use std::ops::Range;

/// Codes of a block, and their bytes.
const BLOCK: usize = 32;
const CODES: usize = 16;

/// The tensor of the scales that belong to blocks.
pub(super) fn scales_of(blocks: &str) -> Option<String> {
    blocks.strip_suffix(SCALES.1).map(|name| format!("{name}{}", SCALES.0))
}

/// Rows `part`, `part + turns`, ... of one expert.
#[derive(Clone, Copy)]
struct Taken {
    part: usize,
    turns: usize,
    rows: usize,
    cols: usize,
}

impl HfFolder {
    /// One expert's matrix, or the biases of all experts; `None` if it is neither, or of another family.
    pub(super) fn interleaved(
        &self,
        pool: &Pool,
        tensor: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Matrix>> {
        let decoder = &self.config.decoder;
        let Some(experts) = decoder.experts.filter(|_| decoder.family.experts.is_some_and(|e| e.interleaved))
        else {
            return Ok(None);
        };
        let of = expert(tensor);
        if of.is_none() && !tensor.ends_with("_exps.bias") {
            return Ok(None);
        }
        let (data, info, at) = self.find(tensor)?;
        let name = of.as_ref().map_or(tensor, |(all, _)| all);
        let parts = self.parts_of(&info.name);
        let part = parts.iter().position(|part| part == name).unwrap_or(0);
        let taken = Taken { part, turns: parts.len(), rows, cols };
        let made = match of {
            None => biases(&data, info, &at, taken),
            Some((_, n)) if info.name.ends_with(SCALES.1) => self.blocks(pool, (&data, info, &at), n, taken),
            Some((_, n)) => turned(pool, (&data, info, &at), [experts.count, n], taken),
        };
        made.map(Some)
    }

    /// Expert `n` as blocks of GGUF's MXFP4: the scale, then bytes with the codes of columns `i` and `i + 16`.
    fn blocks(&self, pool: &Pool, (codes, info, at): Tensor, n: usize, taken: Taken) -> Result<Matrix> {
        let Taken { part, turns, rows, cols } = taken;
        let count = self.config.decoder.experts.map_or(0, |experts| experts.count);
        if !cols.is_multiple_of(BLOCK) {
            return Err(
                at.unsupported(&format!("has rows of {cols} columns, which are no blocks of {BLOCK}"))
            );
        }
        let blocks = cols / BLOCK;
        let name = scales_of(&info.name).unwrap_or_default();
        let Some((file, scales)) = self.tensors.find(&name) else {
            return Err(at.bad(&format!("needs the scales of '{name}', which is missing")));
        };
        let scales_at = Place { file: file.what(), tensor: &name };
        for (tensor, at) in [(info, at), (scales, &scales_at)] {
            if tensor.ty != ElementType::U8 {
                return Err(at.unsupported(&format!("is {} where blocks of MXFP4 are U8", tensor.type_name)));
            }
        }
        at.shape(info, &[count, turns * rows, blocks, CODES])?;
        scales_at.shape(scales, &[count, turns * rows, blocks])?;
        let (codes, exponents) =
            (of_expert(codes, [count, n], at)?, of_expert(&file.data(scales)?, [count, n], &scales_at)?);
        let made = rows_of(pool, rows, blocks * (CODES + 1), &|range, out| {
            for (row, out) in range.zip(out.chunks_exact_mut(blocks * (CODES + 1))) {
                let from = (row * turns + part) * blocks;
                for (block, out) in (from..from + blocks).zip(out.chunks_exact_mut(CODES + 1)) {
                    let source = &codes[block * CODES..][..CODES];
                    let code = |i: usize| source[i / 2] >> (i % 2 * 4) & 15;
                    out[0] = exponents[block];
                    (0..CODES).for_each(|i| out[1 + i] = code(i) | code(i + CODES) << 4);
                }
            }
        })?;
        codes.release_pages();
        exponents.release_pages();
        Matrix::new(Bytes::new(made), DType::MXFP4, rows, cols).map_err(|e| at.of(e))
    }
}

/// A tensor's bytes, its description and its name in errors.
type Tensor<'a> = (&'a Bytes, &'a TensorInfo, &'a Place<'a>);

/// The part of expert `n` of `count` in a tensor.
fn of_expert(data: &Bytes, [count, n]: [usize; 2], at: &Place) -> Result<Bytes> {
    let bytes = data.len() / count.max(1);
    let found = data.slice(n * bytes..(n + 1) * bytes);
    found.ok_or_else(|| at.bad(&format!("has {count} experts, and number {n} is asked for")))
}

/// Expert `n` of `count` of a tensor `[count, cols, turns * rows]`.
fn turned(pool: &Pool, (data, info, at): Tensor, [count, n]: [usize; 2], taken: Taken) -> Result<Matrix> {
    let Taken { part, turns, rows, cols } = taken;
    at.shape(info, &[count, cols, turns * rows])?;
    let dtype = at.dtype(info)?;
    let data = of_expert(data, [count, n], at)?;
    let size = data.len() / (cols * turns * rows).max(1);
    let made = rows_of(pool, rows, cols * size, &|range, out| {
        for col in 0..cols {
            for (i, row) in range.clone().enumerate() {
                let from = (col * turns * rows + row * turns + part) * size;
                out[(i * cols + col) * size..][..size].copy_from_slice(&data[from..from + size]);
            }
        }
    })?;
    data.release_pages();
    Matrix::new(Bytes::new(made), dtype, rows, cols).map_err(|e| at.of(e))
}

/// The biases of all experts, of a tensor `[experts, turns * width]`.
fn biases(data: &[u8], info: &TensorInfo, at: &Place, taken: Taken) -> Result<Matrix> {
    let Taken { part, turns, rows: count, cols: width } = taken;
    at.shape(info, &[count, turns * width])?;
    let dtype = at.dtype(info)?;
    let size = data.len() / (count * turns * width).max(1);
    let made: Vec<u8> = data.chunks_exact(size).skip(part).step_by(turns).flatten().copied().collect();
    Matrix::new(Bytes::new(made), dtype, count, width).map_err(|e| at.of(e))
}

/// `rows` rows of `bytes` bytes, which `fill` writes in ranges.
fn rows_of(
    pool: &Pool,
    rows: usize,
    bytes: usize,
    fill: &(dyn Fn(Range<usize>, &mut [u8]) + Sync),
) -> Result<Vec<u8>> {
    let mut made: Vec<u8> = Vec::new();
    reserve(&mut made, rows * bytes, "an expert")?;
    made.resize(rows * bytes, 0);
    let shared = SharedOut::new(&mut made);
    pack::by_tasks(pool, rows * bytes, rows, &|range| {
        // SAFETY: each task has rows of its own.
        fill(range.clone(), unsafe { shared.slice(range.start * bytes..range.end * bytes) });
        Ok(())
    })?;
    Ok(made)
}
