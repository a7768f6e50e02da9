//! A step, which a pass is run for.

use super::{Attend, Ids, Product};
use crate::base::{Error, Result};
use crate::ops::batch::RaggedBatch;
use crate::ops::lora::Adapted;
use crate::ops::paging::Paging;
use crate::ops::types::{Attention, Rope};
use std::borrow::Cow;
use std::ops::Range;

/// A batch, and where its sequences' past is in memory.
pub struct Step<'a> {
    pub batch: &'a RaggedBatch,
    /// `None`: no layer reads K and V.
    pub paging: Option<Paging<'a>>,
    /// As `paging`, for layers that attend by the model's other shape.
    pub global: Option<Paging<'a>>,
    /// As `MemoryLayout::longest`.
    pub longest: usize,
    pub ropes: &'a [Ropes],
    /// The rows that `Op::Want` leaves, in ascending order. `None`: all.
    pub wanted: Option<Vec<u32>>,
    /// The rows whose results `Op::Encode` makes, which begin and end where its tasks do
    /// (`OpSet::task_rows`). `None`: all.
    pub part: Option<Range<usize>>,
}

/// The rotation of some layers.
pub struct Ropes {
    pub rope: Rope,
    /// Another rotation, if any, for caches whose sequences may be longer than this number of tokens.
    pub long: Option<(usize, Rope)>,
}

impl<'a> Step<'a> {
    /// A step of rows that no sequence has.
    pub fn of_rows(batch: &'a RaggedBatch) -> Self {
        Self { batch, paging: None, global: None, longest: 0, ropes: &[], wanted: None, part: None }
    }

    pub fn paging(&self, how: &Attend) -> Result<&Paging<'a>> {
        let global = self.global.as_ref().filter(|_| how.global);
        global.or(self.paging.as_ref()).ok_or_else(|| Error::internal("attention without pages"))
    }

    /// How a layer attends in this step.
    pub fn attention<'b>(&'b self, how: &'b Attend) -> Result<Attention<'b>> {
        let ropes =
            self.ropes.get(how.rope).ok_or_else(|| Error::internal("attention without a rotation"))?;
        let rope = match &ropes.long {
            Some((above, long)) if self.longest > *above => long,
            _ => &ropes.rope,
        };
        Ok(Attention {
            shape: &how.shape,
            rope,
            window: how.window,
            mutual: how.mutual,
            from: how.from,
            sinks: how.sinks.as_deref(),
            norms: how.norms.as_ref(),
            value_norm: how.value_norm.as_ref(),
            shared: how.shared,
        })
    }

    /// The numbers of a table's rows, one for each row of the batch.
    pub fn ids(&self, ids: Ids) -> Cow<'a, [u32]> {
        let RaggedBatch { tokens, types, positions, .. } = self.batch;
        match ids {
            Ids::Tokens => tokens.into(),
            Ids::Types if types.is_empty() => vec![0; tokens.len()].into(),
            Ids::Types => types.into(),
            Ids::Positions(offset) => positions.iter().map(|at| at + offset).collect(),
        }
    }

    /// Where a row of the batch is among the wanted ones.
    pub fn place(&self, row: u32) -> usize {
        match &self.wanted {
            Some(wanted) => wanted.partition_point(|other| *other < row),
            None => row as usize,
        }
    }

    /// The adapters of the wanted rows.
    pub fn adapted_wanted(&self) -> Cow<'a, [Adapted]> {
        match &self.wanted {
            Some(rows) if !self.batch.adapted.is_empty() => Adapted::among(&self.batch.adapted, rows).into(),
            _ => (&self.batch.adapted).into(),
        }
    }

    /// The adapters of the rows of logits.
    pub fn adapted_logits(&self) -> Cow<'a, [Adapted]> {
        let adapted = &self.batch.adapted;
        match adapted.is_empty() {
            true => Cow::Borrowed(&[]),
            false => Adapted::among(adapted, &self.batch.logits_rows).into(),
        }
    }
}

impl Product {
    /// The adapters, if one of them updates the product.
    pub fn updated_by<'a>(&self, all: &'a [Adapted]) -> Option<&'a [Adapted]> {
        let site = self.site?;
        let any = all.iter().any(|adapted| adapted.lora.pairs(site).iter().any(Option::is_some));
        any.then_some(all)
    }
}
