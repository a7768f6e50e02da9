//! A checkpoint whose weights are converted to another type as they are read.

use super::checkpoint::Checkpoint;
use super::config::DecoderConfig;
use super::family::Family;
use super::options::{LoadOptions, WeightType};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::pack::requantize;
use crate::kernels::{DType, Matrix, Pool, isa, pack};
use crate::text::{ChatTemplate, Tokenizer};
use std::sync::Arc;

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
/// Small matrices that keep their type, beside those of recurrent layers (`Recurrent::small`). A router of another type
/// would choose other experts; gates weigh whole heads and rows, over all later tokens; a convolution is no product.
const KEPT: [&str; 6] = [
    "cls.output.weight",
    "per_layer_token_embd.weight",
    ".ffn_gate_inp.weight",
    ".ffn_gate_inp_shexp.weight",
    "_exps.bias",
    // Taken apart by heads, which panels of rows are not.
    ".attn_kv_b.weight",
];

pub(super) struct Requantized<'a> {
    files: &'a dyn Checkpoint,
    weights: WeightType,
    embedding: WeightType,
    head: WeightType,
    bitnet: bool,
    small: &'static [&'static str],
}

impl<'a> Requantized<'a> {
    /// `InvalidArgument` if the options contradict each other for this model.
    pub(super) fn new(files: &'a dyn Checkpoint, family: &Family, options: &LoadOptions) -> Result<Self> {
        let LoadOptions { weights, mut embedding, head, .. } = *options;
        if files.has(EMBEDDING) && !files.has(HEAD) {
            embedding = match (embedding, head) {
                (WeightType::Keep, ty) | (ty, WeightType::Keep) => ty,
                (a, b) if a == b => a,
                (a, b) => {
                    return Err(Error::invalid(format!(
                        "{}: embedding_type is {a:?} and head_type {b:?}, and the model's head is its embedding: \
                         give one of them, or both the same",
                        files.what()
                    )));
                }
            };
        }
        let bitnet = weights == WeightType::Ternary && family.ternary;
        let small = family.recurrent.map_or(&[] as &[_], |kind| kind.small());
        Ok(Self { files, weights, embedding, head, bitnet, small })
    }

    fn wanted(&self, tensor: &str) -> WeightType {
        match tensor {
            EMBEDDING => self.embedding,
            HEAD => self.head,
            _ if KEPT.iter().chain(self.small).any(|end| tensor.ends_with(end)) => WeightType::Keep,
            // All other matrices are projections of layers and of experts.
            _ => self.weights,
        }
    }

    fn at(&self, tensor: &str, e: Error) -> Error {
        Error::new(e.status, format!("{}: tensor '{tensor}': {}", self.files.what(), e.message))
    }
}

impl Checkpoint for Requantized<'_> {
    fn what(&self) -> &str {
        self.files.what()
    }

    fn config(&self, warn: &dyn Fn(&str)) -> Result<DecoderConfig> {
        self.files.config(warn)
    }

    fn tokenizer(&self, warn: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
        self.files.tokenizer(warn)
    }

    fn end_tokens(&self, n: usize) -> Result<Vec<u32>> {
        self.files.end_tokens(n)
    }

    fn chat(&self, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
        self.files.chat(warn)
    }

    fn pair(&self) -> Result<Option<ChatTemplate>> {
        self.files.pair()
    }

    fn has(&self, tensor: &str) -> bool {
        self.files.has(tensor)
    }

    fn matrix(&self, pool: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.files.matrix(pool, tensor, rows, cols)?;
        let to = match self.wanted(tensor) {
            WeightType::Keep => return Ok(matrix),
            WeightType::Ternary if matrix.dtype.is_ternary() => return Ok(matrix),
            WeightType::Q8_0 => DType::Q8_0,
            WeightType::Q4_0 => DType::Q4_0,
            WeightType::Ternary => DType::Ternary,
            WeightType::Int8 => DType::Int8,
        };
        if matrix.dtype == to {
            return Ok(matrix);
        }
        if !may_become(to, matrix.dtype) {
            let blocks = if to == DType::Int8 { ", and those in blocks of 4 bits or more," } else { "" };
            return Err(Error::unsupported(format!(
                "{}: tensor '{tensor}' is {:?}; only F32, F16 and BF16 weights{blocks} become {to:?} at load",
                self.what(),
                matrix.dtype
            )));
        }
        if to == DType::Ternary && !self.bitnet {
            return Err(Error::unsupported(format!(
                "{}: weight_type is ternary, and tensor '{tensor}' is {:?} and of no BitNet model: other models \
                 were not trained for ternary weights",
                self.what(),
                matrix.dtype
            )));
        }
        let made = match to {
            DType::Ternary => ternary(pool, &matrix),
            _ => requantize::quantize(pool, &matrix, to),
        };
        let made = made.map_err(|e| self.at(tensor, e))?;
        matrix.data.release_pages();
        Ok(made)
    }

    fn vector(&self, tensor: &str, len: usize) -> Result<Arc<[f32]>> {
        self.files.vector(tensor, len)
    }

    fn names(&self) -> Result<Vec<String>> {
        self.files.names()
    }

    fn tensor_bytes(&self) -> u64 {
        self.files.tensor_bytes()
    }

    fn bytes_of(&self, tensor: &str) -> u64 {
        self.files.bytes_of(tensor)
    }

    fn other_bytes(&self) -> u64 {
        self.files.other_bytes()
    }
}

fn may_become(to: DType, from: DType) -> bool {
    use DType::*;
    let blocks =
        matches!(from, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K | IQ4_NL | IQ4_XS | MXFP4);
    matches!(from, F32 | F16 | BF16) || to == Int8 && blocks
}

/// Converts floats to ternary weights. Floats that are already -s, 0 and s, as converters write ternary weights, keep
/// their s; the rule by mean |w| would give them a smaller one. All others, weights of a model in training, are
/// rounded by that rule.
fn ternary(pool: &Pool, matrix: &Matrix) -> Result<Matrix> {
    let Some(scale) = ternary_scale(pool, matrix)? else {
        return requantize::quantize(pool, matrix, DType::Ternary);
    };
    let mut scales: Vec<f32> = Vec::new();
    scales.try_reserve_exact(matrix.rows).map_err(|_| Error::out_of_memory("scales", 4 * matrix.rows))?;
    scales.resize(matrix.rows, scale);
    pack::pack_ternary(pool, matrix.rows, matrix.cols, &scales, &|row, codes| {
        let mut weights = row_buffer(matrix)?;
        dequantize_row(isa(), matrix, row, &mut weights);
        // 0.0 == -0.0 holds, as it should.
        let code = |w: f32| if w == 0.0 { 1 } else { 1 + w.signum() as i8 };
        codes.iter_mut().zip(&weights).for_each(|(c, w)| *c = code(*w) as u8);
        Ok(())
    })
}

/// The single magnitude of all weights that are not zero. `None` if there are several, or none.
fn ternary_scale(pool: &Pool, matrix: &Matrix) -> Result<Option<f32>> {
    // The first magnitude found, and whether all others are equal to it.
    let found = Mutex::new((None, true));
    let Matrix { rows, cols, .. } = *matrix;
    pack::by_tasks(pool, rows.saturating_mul(cols), rows, &|task| {
        let mut weights = row_buffer(matrix)?;
        for row in task {
            if !found.lock().1 {
                break;
            }
            dequantize_row(isa(), matrix, row, &mut weights);
            let mut own = weights.iter().map(|w| w.abs()).filter(|w| *w != 0.0);
            let Some(first) = own.next() else { continue };
            let one = first.is_finite() && own.all(|w| w == first);
            let mut found = found.lock();
            found.1 &= one && *found.0.get_or_insert(first) == first;
        }
        Ok(())
    })?;
    let (scale, one) = found.into_inner();
    Ok(scale.filter(|_| one))
}

fn row_buffer(matrix: &Matrix) -> Result<Vec<f32>> {
    let mut row: Vec<f32> = Vec::new();
    row.try_reserve_exact(matrix.cols)
        .map_err(|_| Error::out_of_memory("a row of weights", 4 * matrix.cols))?;
    row.resize(matrix.cols, 0.0);
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Bytes;

    fn matrix(values: &[f32], cols: usize) -> Matrix {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Matrix::new(Bytes::new(bytes), DType::F32, values.len() / cols, cols).unwrap()
    }

    fn values(m: &Matrix) -> Vec<f32> {
        let mut out = vec![0.0; m.rows * m.cols];
        (0..m.rows).for_each(|row| dequantize_row(isa(), m, row, &mut out[row * m.cols..(row + 1) * m.cols]));
        out
    }

    #[test]
    fn weights_that_are_ternary_keep_their_scale() {
        let pool = Pool::new(2).unwrap();
        let source: Vec<f32> = (0..6 * 40).map(|i| [0.75f32, 0.0, -0.75, -0.0][i % 4]).collect();
        let m = ternary(&pool, &matrix(&source, 40)).unwrap();
        assert_eq!(m.dtype, DType::Ternary);
        assert_eq!(values(&m), source);
    }

    #[test]
    fn one_scale_is_told_from_several_by_every_task() {
        let pool = Pool::new(2).unwrap();
        let (rows, cols) = (300, 256);
        let mut source: Vec<f32> = (0..rows * cols).map(|i| [0.5f32, 0.0, -0.5][i % 3]).collect();
        source[..100 * cols].fill(0.0);
        assert_eq!(ternary_scale(&pool, &matrix(&source, cols)).unwrap(), Some(0.5));
        for odd in [0.25, f32::NAN, f32::INFINITY] {
            let mut other = source.clone();
            other[211 * cols + 7] = odd;
            assert_eq!(ternary_scale(&pool, &matrix(&other, cols)).unwrap(), None, "{odd}");
        }
        assert_eq!(ternary_scale(&pool, &matrix(&[0.0; 8], 4)).unwrap(), None);
    }

    #[test]
    fn others_are_rounded_by_their_mean() {
        let pool = Pool::new(1).unwrap();
        // mean |w| is 0.5: 0.2 becomes 0; 0.3 and more become the mean.
        let m = ternary(&pool, &matrix(&[0.2, -0.3, 1.0, -0.5], 2)).unwrap();
        assert_eq!(values(&m), [0.0, -0.5, 0.5, -0.5]);
        assert!(ternary(&pool, &matrix(&[f32::NAN, 1.0], 2)).is_err());
        assert_eq!(values(&ternary(&pool, &matrix(&[0.0; 4], 2)).unwrap()), [0.0; 4]);
    }
}
