//! The tokens that remain of a row of logits.

use crate::base::{Result, reserve};
use crate::kernels::Isa;
use crate::kernels::rows::logits::{PART, TOP, tops};
use crate::kernels::rows::places::OrderKey;

#[derive(Clone, Copy)]
pub struct Candidate {
    pub logit: f32,
    pub token: u32,
}

/// Memory for tokens of a vocabulary.
pub struct Room {
    packed: Packed,
    pub(super) scratch: Scratch,
}

/// The remaining logits, their tokens in ascending order, and the greatest of each `TOP` logits.
struct Packed {
    logits: Vec<f32>,
    tokens: Vec<u32>,
    tops: Vec<f32>,
}

pub(super) struct Scratch {
    /// Keys by which tokens are ordered, if not by their logits.
    pub keys: Vec<f32>,
    pub key_tops: Vec<f32>,
    /// The weight of each `PART` logits.
    pub masses: Vec<f64>,
    pub lists: Lists,
}

pub(super) struct Lists {
    /// Places that are sorted.
    pub sorted: Vec<OrderKey>,
    /// Indices of the tokens that are kept.
    pub kept: Vec<u32>,
}

impl Room {
    pub fn new(vocab_size: usize) -> Result<Self> {
        let top_count = vocab_size.div_ceil(TOP);
        let mut sorted = Vec::new();
        reserve(&mut sorted, vocab_size, "the sampler")?;
        let packed =
            Packed { logits: filled(vocab_size)?, tokens: filled(vocab_size)?, tops: filled(top_count)? };
        let scratch = Scratch {
            keys: filled(vocab_size)?,
            key_tops: filled(top_count)?,
            masses: filled(vocab_size.div_ceil(PART))?,
            lists: Lists { sorted, kept: filled(vocab_size)? },
        };
        Ok(Self { packed, scratch })
    }

    /// Bytes that a `Room` takes.
    pub fn bytes(vocab_size: usize) -> usize {
        let each = 2 * size_of::<f32>() + 2 * size_of::<u32>() + size_of::<OrderKey>();
        let tops = vocab_size.div_ceil(TOP) * 2 * size_of::<f32>();
        vocab_size.saturating_mul(each) + tops + vocab_size.div_ceil(PART) * size_of::<f64>()
    }
}

/// A vector of `count` zeros.
pub(super) fn filled<T: Clone + Default>(count: usize) -> Result<Vec<T>> {
    let mut made = Vec::new();
    reserve(&mut made, count, "the sampler")?;
    made.resize(count, T::default());
    Ok(made)
}

/// A row, or the tokens that remain of it.
pub(super) struct Left<'a> {
    row: &'a [f32],
    row_tops: &'a [f32],
    packed: &'a mut Packed,
    /// Number of tokens in `packed`. `None`: the whole row remains.
    count: Option<usize>,
}

impl<'a> Left<'a> {
    /// All of `row`. `row_tops` has the greatest of each `TOP` logits.
    pub(super) fn all(row: &'a [f32], row_tops: &'a [f32], room: &'a mut Room) -> (Self, &'a mut Scratch) {
        (Self { row, row_tops, packed: &mut room.packed, count: None }, &mut room.scratch)
    }

    pub(super) fn logits(&self) -> &[f32] {
        self.count.map_or(self.row, |count| &self.packed.logits[..count])
    }

    pub(super) fn tops(&self) -> &[f32] {
        self.count.map_or(self.row_tops, |count| &self.packed.tops[..count.div_ceil(TOP)])
    }

    /// The greatest remaining logit.
    pub(super) fn max(&self) -> f32 {
        self.tops().iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    pub(super) fn candidate(&self, at: usize) -> Candidate {
        let token = if self.count.is_some() { self.packed.tokens[at] } else { at as u32 };
        Candidate { logit: self.logits()[at], token }
    }

    /// The logit of `token`, if it is among the remaining ones.
    pub(super) fn find(&self, token: u32) -> Option<f32> {
        let Some(count) = self.count else { return self.row.get(token as usize).copied() };
        let at = self.packed.tokens[..count].binary_search(&token).ok()?;
        Some(self.packed.logits[at])
    }

    /// Keeps the tokens at these indices, which must be in ascending order.
    pub(super) fn keep(&mut self, isa: Isa, places: &[u32]) {
        let Packed { logits, tokens, tops: packed_tops } = &mut *self.packed;
        match self.count {
            Some(_) => {
                for (to, at) in places.iter().enumerate() {
                    (logits[to], tokens[to]) = (logits[*at as usize], tokens[*at as usize]);
                }
            }
            None => {
                tokens[..places.len()].copy_from_slice(places);
                logits.iter_mut().zip(places).for_each(|(logit, at)| *logit = self.row[*at as usize]);
            }
        }
        tops(isa, &logits[..places.len()], packed_tops);
        self.count = Some(places.len());
    }
}
