//! Reads tensors from a checkpoint, and checks that it has no others.

mod encoder;
mod score;
mod tower;

use super::checkpoint::Checkpoint;
use super::config::DecoderConfig;
use super::layers::delta_net::DeltaConfig;
use crate::base::{Error, Result, Status, reserve};
use crate::formats::gguf::expert;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::gemm::ternary;
use crate::kernels::{DType, Matrix, Pool, isa};
use crate::ops::{Norm, Projections};
use std::collections::HashSet;
use std::sync::Arc;

/// Whether most of a matrix is not used soon, and may never be: experts, and rows of single tokens.
fn seldom(name: &str) -> bool {
    name.contains("_exps.") || name.starts_with("per_layer_token_embd.")
}

/// The message of a load that the progress callback cancelled.
pub(super) const CANCELLED: &str = "the progress callback gave the load up";

/// The name of the product at the beginning of a block of multi-token prediction.
pub(super) fn join_of(c: &DecoderConfig) -> String {
    format!("blk.{}.nextn.eh_proj.weight", c.layers)
}

/// Takes tensors out of a checkpoint, and remembers which.
pub(super) struct Reader<'a> {
    files: &'a dyn Checkpoint,
    pool: &'a Pool,
    used: HashSet<String>,
    /// Bytes read so far, and bytes in total.
    done: u64,
    all: u64,
    /// Bytes of the matrices so far, mapped or packed, and their maximum (0: any).
    held: u64,
    limit: u64,
    progress: &'a mut dyn FnMut(f32, &str) -> bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        files: &'a dyn Checkpoint,
        limit: u64,
        pool: &'a Pool,
        progress: &'a mut dyn FnMut(f32, &str) -> bool,
    ) -> Self {
        let all = files.tensor_bytes().max(1);
        Self { files, pool, used: HashSet::new(), done: 0, all, held: 0, limit, progress }
    }

    /// Counts `bytes` of other files among those that are read.
    pub(super) fn expect(&mut self, bytes: u64) {
        self.all = self.all.saturating_add(bytes);
    }

    /// Reads other files, within the same limit and progress.
    pub(super) fn beside<T>(
        &mut self,
        files: &dyn Checkpoint,
        read: impl FnOnce(&mut Reader) -> Result<T>,
    ) -> Result<T> {
        let Self { pool, done, all, held, limit, .. } = *self;
        let progress = &mut *self.progress;
        let mut other = Reader { files, pool, used: HashSet::new(), done, all, held, limit, progress };
        let made = read(&mut other);
        (self.done, self.held) = (other.done, other.held);
        made
    }

    pub(super) fn what(&self) -> &str {
        self.files.what()
    }

    pub(super) fn other_bytes(&self) -> u64 {
        self.files.other_bytes()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.files.has(name)
    }

    pub(super) fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// The error of a tensor with wrong contents.
    pub(super) fn bad(&self, name: &str, why: &str) -> Error {
        Error::bad_model(format!("{}: tensor '{name}' {why}", self.files.what()))
    }

    /// A small matrix as f32.
    pub(super) fn rows(&mut self, name: &str, count: usize, cols: usize) -> Result<Vec<f32>> {
        let matrix = self.files.matrix(self.pool, name, count, cols)?;
        if !matches!(matrix.dtype, DType::F32 | DType::F16 | DType::BF16) {
            let why = format!("is {:?}; F32, F16 and BF16 are read here", matrix.dtype);
            return Err(Error::unsupported(format!("{}: tensor '{name}' {why}", self.files.what())));
        }
        self.hold(matrix.data.len())?;
        let mut rows: Vec<f32> = Vec::new();
        reserve(&mut rows, count * cols, "a small matrix")?;
        rows.resize(count * cols, 0.0);
        for (n, row) in rows.chunks_exact_mut(cols).enumerate() {
            dequantize_row(isa(), &matrix, n, row);
        }
        if let Some(value) = rows.iter().find(|value| !value.is_finite()) {
            return Err(self.bad(name, &format!("holds {value}")));
        }
        self.took(name, self.files.bytes_of(name))?;
        Ok(rows)
    }

    /// Reads matrices (name, rows) of `cols` columns that are multiplied with the same activations, with their biases
    /// and norms. `Unsupported` if some are ternary and others are not.
    pub(super) fn projections(
        &mut self,
        wanted: &[(String, usize)],
        cols: usize,
        bias: bool,
        c: &DecoderConfig,
    ) -> Result<Projections> {
        let (mut matrices, mut norms, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        for (name, rows) in wanted {
            matrices.push(self.matrix(&format!("{name}.weight"), *rows, cols)?);
            if c.parts.projection_norms {
                // LlamaRMSNorm for any body, so without the body's offset.
                let weight = self.vector(&format!("{name}_norm_in.weight"), cols)?;
                norms.push(Norm { weight, bias: None, eps: c.projection_eps });
            }
            if bias {
                biases.extend_from_slice(&self.vector(&format!("{name}.bias"), *rows)?);
            }
        }
        let odd = |m: &Matrix| m.dtype.is_ternary() != matrices[0].dtype.is_ternary();
        if let Some(odd) = matrices.iter().position(odd) {
            return Err(Error::unsupported(format!(
                "{}: '{}.weight' is {:?} and '{}.weight' is {:?}; they have to be both ternary or both not",
                self.files.what(),
                wanted[0].0,
                matrices[0].dtype,
                wanted[odd].0,
                matrices[odd].dtype
            )));
        }
        let fold = match &c.rotations {
            Some(rotations) => {
                let delta = c.recurrent_as::<DeltaConfig>();
                let names: Vec<_> = wanted.iter().map(|(name, _)| format!("{name}.weight")).collect();
                rotations.of(
                    names.iter().map(String::as_str),
                    cols,
                    delta.map(|delta| &delta.shape),
                    self.files.what(),
                )?
            }
            None => None,
        };
        Ok(Projections {
            matrices,
            norms,
            bias: bias.then(|| biases.into()),
            fold: fold.map(Arc::new),
            columns: None,
            whole: false,
        })
    }

    pub(super) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.files.matrix(self.pool, name, rows, cols)?;
        self.hold(matrix.data.len())?;
        if matrix.dtype.is_ternary() {
            ternary::validate(self.pool, &matrix)
                .map_err(|e| Error::new(e.status, format!("{}: tensor '{name}': {e}", self.files.what())))?;
        } else if matrix.data.len() as u64 == self.files.bytes_of(name) && !seldom(name) {
            self.prefault(name, &matrix.data)?;
            return Ok(matrix);
        }
        self.took(name, self.files.bytes_of(name))?;
        Ok(matrix)
    }

    /// Refuses weights that exceed the limit before more of them are packed.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<()> {
        self.held += bytes as u64;
        if self.limit == 0 || self.held <= self.limit {
            return Ok(());
        }
        Err(Error::new(
            Status::MemoryLimit,
            format!(
                "{}: memory_limit_bytes = {} is too small for its weights",
                self.files.what(),
                self.limit
            ),
        ))
    }

    /// Reads the embedding or the head. It may not be ternary: no model that we know was trained with such a one.
    pub(super) fn dense(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.matrix(name, rows, cols)?;
        match matrix.dtype.is_ternary() {
            false => Ok(matrix),
            true => Err(Error::unsupported(format!(
                "{}: tensor '{name}' is {:?}; an embedding or output head must not be ternary",
                self.files.what(),
                matrix.dtype
            ))),
        }
    }

    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<Arc<[f32]>> {
        let vector = self.files.vector(name, len)?;
        if let Some(value) = vector.iter().find(|value| !value.is_finite()) {
            return Err(self.bad(name, &format!("holds {value}")));
        }
        self.took(name, self.files.bytes_of(name))?;
        Ok(vector)
    }

    /// Numbers of tokens of a vocabulary of `vocab`, in ascending order.
    pub(super) fn ids(&mut self, name: &str, vocab: usize) -> Result<Arc<[u32]>> {
        let all = self.files.integers(name)?;
        if all.is_empty() {
            return Err(self.bad(name, "is empty"));
        }
        if let Some(id) = all.iter().find(|id| !(0..vocab as i64).contains(*id)) {
            return Err(self.bad(name, &format!("holds {id}, and the model has {vocab} tokens")));
        }
        if let Some(pair) = all.windows(2).find(|pair| pair[0] >= pair[1]) {
            let why = format!("holds {} after {}: its tokens must ascend", pair[1], pair[0]);
            return Err(self.bad(name, &why));
        }
        self.took(name, self.files.bytes_of(name))?;
        Ok(all.iter().map(|id| *id as u32).collect())
    }

    /// The weights of a norm, to which `offset` is added.
    fn norm_weight(&mut self, name: &str, len: usize, offset: f32) -> Result<Arc<[f32]>> {
        let weight = self.vector(&format!("{name}.weight"), len)?;
        Ok(if offset == 0.0 { weight } else { weight.iter().map(|w| w + offset).collect() })
    }

    /// The norm whose weights are the tensor `name` with `.weight`.
    pub(super) fn norm(&mut self, name: &str, len: usize, c: &DecoderConfig) -> Result<Norm> {
        let weight = self.norm_weight(name, len, c.norm_offset)?;
        let part = name.rsplit('.').next().unwrap_or(name);
        let bias = match c.family.layer_norms {
            true => Some(self.vector(&format!("{name}.bias"), len)?),
            false => None,
        };
        Ok(Norm { weight, bias, eps: c.norm_eps(part) })
    }

    fn took(&mut self, name: &str, bytes: u64) -> Result<()> {
        // A GGUF file has the experts of a layer in one tensor.
        let stacked = expert(name).map(|(all, _)| all).filter(|all| self.files.has(all));
        let used = stacked.as_deref().unwrap_or(name);
        if !self.used.contains(used) {
            let made = self.used.try_reserve(1);
            made.map_err(|_| Error::out_of_memory("tensor names", 24 * self.used.len()))?;
            self.used.insert(used.into());
        }
        self.done += bytes;
        let fraction = (self.done as f64 / self.all as f64).min(1.0);
        match (self.progress)(fraction as f32, name) {
            true => Err(Error::new(Status::Cancelled, CANCELLED)),
            false => Ok(()),
        }
    }

    /// Refuses tensors that are not used: they belong to a model that we do not know, so its answers would be wrong.
    /// Blocks that predict further tokens may be left, unless one is read.
    pub(super) fn nothing_left(&self, c: &DecoderConfig, reads_block: bool) -> Result<()> {
        let unread = c.further > 0 && !reads_block;
        let block = |name: &str| name.strip_prefix("blk.")?.split_once('.')?.0.parse::<usize>().ok();
        let further = |name: &str| unread && block(name).is_some_and(|block| block >= c.layers);
        // Files may have the products that shared K and V replace.
        let replaced = |name: &str| {
            let part = name.splitn(3, '.').nth(2).unwrap_or_default();
            block(name).is_some_and(|block| c.blocks.get(block).is_some_and(|block| block.shares.is_some()))
                && ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"].contains(&part)
        };
        self.all_used(&|name| further(name) || replaced(name))
    }

    /// Refuses tensors that are not used, but for those that may be left.
    fn all_used(&self, may_be_left: &dyn Fn(&str) -> bool) -> Result<()> {
        let left = |name: &&String| !self.used.contains(*name) && !may_be_left(name);
        match self.files.names()?.iter().find(left) {
            None => Ok(()),
            Some(name) => Err(Error::unsupported(format!(
                "{}: tensor '{name}' belongs to no part of the model that this build knows",
                self.files.what()
            ))),
        }
    }

    /// Reads a byte of every page, so that the first step does not wait for the disk.
    fn prefault(&mut self, name: &str, data: &[u8]) -> Result<()> {
        const PAGE: usize = 4096;
        // Often enough for a quick cancel even on a slow disk.
        for part in data.chunks(16 << 20) {
            let sum = part.iter().step_by(PAGE).fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            std::hint::black_box(sum);
            self.took(name, part.len() as u64)?;
        }
        Ok(())
    }
}
