//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) in its absorbed form.
//!
//! A position's K and V of all heads are products of one vector, the latent. So a head's score with a position is that
//! of its query, multiplied by the head's K weights, with the latent itself; and a head's output is the head's V
//! weights times the weighted sum of latents. Attention then has one KV head, whose key is the rotated part, which all
//! heads share, and the latent. It is also the value, of which the rotated part is not used.

use super::linear::{Linear, Scratch};
use super::prepare::Source;
use super::rows::On;
use super::{AttentionShape, Norm, Projections};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::pool::buffer::grown;
use std::cell::RefCell;

/// Rows up to which a head's product is the work of one thread, whatever the number of heads.
const FEW: usize = 32;

/// Sizes in elements. Sums and products of those of a file stop at the largest number, until they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentShape {
    pub heads: usize,
    /// The latent.
    pub rank: usize,
    /// The rotated part of a head's query, and of a key.
    pub rope: usize,
    /// The part of a head's query that is not rotated.
    pub nope: usize,
    /// A head's value.
    pub value: usize,
}

impl LatentShape {
    /// The shape of attention, with these factors on the scores.
    pub fn attention(&self, scale: f32) -> AttentionShape {
        let shape = AttentionShape::new(self.heads, 1, self.head_dim());
        AttentionShape { scale, joint: true, ..shape }
    }

    /// Elements of a head's query.
    pub fn query(&self) -> usize {
        self.nope.saturating_add(self.rope)
    }

    /// Elements of a row of queries.
    pub fn queries(&self) -> usize {
        self.heads.saturating_mul(self.query())
    }

    /// Elements of a head as attention sees it.
    pub fn head_dim(&self) -> usize {
        self.rope.saturating_add(self.rank)
    }

    /// Elements of a row of values.
    pub fn values(&self) -> usize {
        self.heads.saturating_mul(self.value)
    }

    /// Elements of a row besides its queries: the latent, then the rotated part.
    pub fn compressed(&self) -> usize {
        self.rank.saturating_add(self.rope)
    }

    /// Bytes that each thread keeps for steps of `rows` rows: a head's input and its product, each once more as a
    /// product prepares it.
    pub fn scratch_bytes(&self, rows: usize) -> usize {
        let row = self.rank.max(self.nope) * 2 + self.rank.max(self.value);
        rows.saturating_mul(4 * row)
    }
}

/// The weights of a layer's latent attention that are no products of whole rows.
pub struct Latent {
    pub shape: LatentShape,
    /// The norm of the latent.
    pub norm: Norm,
    /// One product for each head: `[rank, nope]`.
    pub keys: Vec<Projections>,
    /// One product for each head: `[value, rank]`.
    pub values: Vec<Projections>,
}

impl Latent {
    pub fn products(&self) -> impl Iterator<Item = &Projections> {
        self.keys.iter().chain(&self.values)
    }
}

thread_local! {
    /// A head's input, its product, and the product's scratch memory.
    static OWN: RefCell<(Vec<f32>, Vec<f32>, Mutex<Scratch>)> = RefCell::default();
}

/// Columns of rows.
struct Columns<'a> {
    rows: &'a [f32],
    width: usize,
}

impl Columns<'_> {
    fn of(&self, row: usize, from: usize, count: usize) -> &[f32] {
        &self.rows[row * self.width + from..][..count]
    }
}

/// The products of single heads.
pub(super) struct Heads<'a> {
    pub on: On<'a>,
    /// Memory of the products that all threads work on.
    pub scratch: &'a Mutex<Scratch>,
    pub latent: &'a Latent,
}

impl Heads<'_> {
    /// The rows of attention: for each head the rotated part of its query and the query as the latent sees it, then the
    /// key. A head's query has the part that is not rotated first.
    pub(super) fn absorb(&self, q: &[f32], kv: &[f32], dims: [[usize; 2]; 2], out: &mut [f32]) -> Result<()> {
        let (s, [[rows, width], kv_dims]) = (self.latent.shape, dims);
        if width != s.queries()
            || kv_dims != [rows, s.compressed()]
            || self.latent.norm.weight.len() != s.rank
            || out.len() != rows * (s.heads + 1) * s.head_dim()
        {
            return Err(Error::internal(format!("latent attention of {width} and {kv_dims:?}")));
        }
        let (q, kv) = (Columns { rows: q, width }, Columns { rows: kv, width: s.compressed() });
        let (dim, each) = (s.head_dim(), s.query());
        let out_width = (s.heads + 1) * dim;
        let to = SharedOut::new(out);
        self.on.pool.run_if_worth(2 * rows * dim, rows, &|row| {
            // SAFETY: each task has the key of a row of its own.
            let key = unsafe { to.slice(row * out_width + s.heads * dim..(row + 1) * out_width) };
            let (rope, latent) = key.split_at_mut(s.rope);
            rope.copy_from_slice(kv.of(row, s.rank, s.rope));
            self.latent.norm.apply(self.on.isa, kv.of(row, 0, s.rank), latent);
        });
        self.each(
            &self.latent.keys,
            rows,
            &|head, row| q.of(row, head * each, s.nope),
            &|head, row, product| {
                // SAFETY: each task has the columns of a head of its own.
                let to =
                    unsafe { to.slice(row * out_width + head * dim..row * out_width + (head + 1) * dim) };
                let (rope, latent) = to.split_at_mut(s.rope);
                rope.copy_from_slice(q.of(row, head * each + s.nope, s.rope));
                latent.copy_from_slice(product);
            },
        )
    }

    /// The values of all heads of attention's output `x`.
    pub(super) fn expand(&self, x: &[f32], [rows, width]: [usize; 2], out: &mut [f32]) -> Result<()> {
        let s = self.latent.shape;
        let dim = s.head_dim();
        if width != s.heads * dim || out.len() != rows * s.values() {
            return Err(Error::internal(format!("{width} elements of latent attention's output")));
        }
        let x = Columns { rows: x, width };
        let to = SharedOut::new(out);
        let latent = |head: usize, row: usize| x.of(row, head * dim + s.rope, s.rank);
        self.each(&self.latent.values, rows, &latent, &|head, row, product| {
            let at = row * s.values() + head * s.value;
            // SAFETY: each task has the columns of a head of its own.
            unsafe { to.slice(at..at + s.value) }.copy_from_slice(product);
        })
    }

    /// Multiplies the rows `input` of each head by its `weights`, and calls `done` with the head, the row and the
    /// product. A head is the work of one thread if there are few rows, or heads enough for all threads.
    fn each<'x>(
        &self,
        weights: &[Projections],
        rows: usize,
        input: &(dyn Fn(usize, usize) -> &'x [f32] + Sync),
        done: &(dyn Fn(usize, usize, &[f32]) + Sync),
    ) -> Result<()> {
        let pool = self.on.pool;
        let one = |head: usize, own: Option<&Mutex<Scratch>>, x: &mut Vec<f32>, out: &mut Vec<f32>| {
            let On { pool, isa } = self.on;
            let (scratch, weights) = (own.unwrap_or(self.scratch), &weights[head]);
            let product = Linear { pool, isa, scratch, norm: None, weights, gates: None };
            let cols = weights.matrices.first().map_or(0, |matrix| matrix.cols);
            let x = grown(x, rows * cols);
            for (row, to) in x.chunks_exact_mut(cols.max(1)).enumerate() {
                to.copy_from_slice(input(head, row));
            }
            let out = grown(out, rows * weights.width());
            product.run(Source::Rows(x), [rows, cols], out)?;
            out.chunks_exact(weights.width()).enumerate().for_each(|(row, product)| done(head, row, product));
            Ok(())
        };
        let alone = rows <= FEW || weights.len() >= 2 * pool.threads();
        if !alone {
            return OWN.with_borrow_mut(|(x, out, _)| {
                (0..weights.len()).try_for_each(|head| one(head, None, x, out))
            });
        }
        let failed = Mutex::new(None);
        pool.run(weights.len(), &|head| {
            OWN.with_borrow_mut(|(x, out, scratch)| {
                if let Err(error) = one(head, Some(scratch), x, out) {
                    failed.lock().get_or_insert(error);
                }
            });
        });
        failed.into_inner().map_or(Ok(()), Err)
    }
}
