//! Embeddings: a prompt's hidden states pooled into one vector, and that vector as an event carries it.

use super::api::EmbeddingParams;
use crate::base::{Error, Result};
use crate::model::Pooling;
use std::fmt;
use std::mem::offset_of;
use std::ops::Range;
use std::ptr::NonNull;

/// One request's vector in the making. Rows are added in the order of their positions, one by one, in f64: so no
/// chunk, batch or thread count changes a bit of the result (invariant 3).
pub struct Pooler {
    pooling: Pooling,
    normalize: bool,
    width: usize,
    rows: u64,
    /// `[width]` once the request is admitted.
    sum: Vec<f64>,
}

impl Pooler {
    /// `model` is what the model says where the request does not; `width` the elements of a hidden state.
    pub fn new(params: &EmbeddingParams, model: Pooling, width: usize) -> Self {
        let pooling = params.pooling.unwrap_or(model);
        Self { pooling, normalize: params.normalize, width, rows: 0, sum: Vec::new() }
    }

    /// Bytes of the sum, and of the vector, which a blocking caller gets a copy of.
    pub fn bytes(width: usize) -> u64 {
        (8 + 2 * 4) * width as u64 + 2 * size_of::<Embedding>() as u64
    }

    /// Takes the memory of the sum.
    pub fn admit(&mut self) -> Result<()> {
        let width = self.width;
        self.sum.try_reserve_exact(width).map_err(|_| Error::out_of_memory("an embedding", 8 * width))?;
        self.sum.resize(width, 0.0);
        Ok(())
    }

    /// Which of a chunk's `rows` rows from position `start` on are wanted; `last` says that the prompt ends there.
    pub fn wanted(&self, start: u32, rows: u32, last: bool) -> Range<u32> {
        match self.pooling {
            Pooling::Last => rows - u32::from(last)..rows,
            Pooling::Mean => 0..rows,
            Pooling::First => 0..u32::from(start == 0),
        }
    }

    /// Adds the hidden states of a chunk's wanted rows, `[_, width]`.
    pub fn add(&mut self, hidden: &[f32]) {
        for row in hidden.chunks_exact(self.width) {
            self.rows += 1;
            self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
    }

    /// The vector: the mean of what was added, over its Euclidean length unless asked for as it is. Zeros stay zeros.
    pub fn finish(&mut self) -> Result<Embedding> {
        let rows = self.rows as f64;
        self.sum.iter_mut().for_each(|x| *x /= rows);
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(Error::bad_model(
                "the model's hidden states hold NaN or infinity: its weights may be damaged",
            ));
        }
        let scale = if self.normalize && length > 0.0 { length } else { 1.0 };
        let mut values = Vec::new();
        let width = self.width;
        values.try_reserve_exact(width).map_err(|_| Error::out_of_memory("an embedding", 4 * width))?;
        values.extend(self.sum.iter().map(|x| (x / scale) as f32));
        Ok(Embedding::new(values, self.pooling))
    }
}

/// A finished vector. It lies as C reads it, so that an event's view can point at it.
#[repr(C)]
pub struct Embedding {
    /// Bytes of what C sees: all of this.
    struct_size: u32,
    pooling: Pooling,
    /// Of a `Box<[f32]>` of `count` elements, owned.
    values: NonNull<f32>,
    count: usize,
}

// SAFETY: it owns its floats as a box does, and gives out shared references only.
unsafe impl Send for Embedding {}
// SAFETY: as above.
unsafe impl Sync for Embedding {}

impl Embedding {
    pub fn new(values: Vec<f32>, pooling: Pooling) -> Self {
        let values = Box::leak(values.into_boxed_slice());
        let count = values.len();
        Self { struct_size: size_of::<Self>() as u32, pooling, values: NonNull::from(values).cast(), count }
    }

    /// Where its fields lie, in their order.
    pub const OFFSETS: [usize; 4] = [
        offset_of!(Self, struct_size),
        offset_of!(Self, pooling),
        offset_of!(Self, values),
        offset_of!(Self, count),
    ];

    pub fn values(&self) -> &[f32] {
        // SAFETY: `new` took them from a box of as many; nobody else has them.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.count) }
    }

    /// How it was made.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }
}

impl Drop for Embedding {
    fn drop(&mut self) {
        let values = std::ptr::slice_from_raw_parts_mut(self.values.as_ptr(), self.count);
        // SAFETY: the box that `new` leaked, once.
        drop(unsafe { Box::from_raw(values) });
    }
}

impl Clone for Embedding {
    fn clone(&self) -> Self {
        Self::new(self.values().to_vec(), self.pooling)
    }
}

impl fmt::Debug for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedding").field("pooling", &self.pooling).field("values", &self.values()).finish()
    }
}

#[cfg(test)]
#[path = "embedding_tests.rs"]
mod tests;
