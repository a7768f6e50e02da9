//! Reads the tensors of one layer, by their names in it.

use super::source::Source;
use crate::base::{Error, Result};
use crate::kernels::Matrix;
use crate::model::config::DecoderConfig;
use crate::model::keys::LAYER_SCALE;
use crate::model::options::LoadOptions;
use crate::model::reader::Reader;
use crate::ops::pass::Product;
use crate::ops::{Norm, Projections, Site, Slot};
use std::sync::Arc;

pub(crate) struct LayerReader<'r, 'f> {
    pub(super) reader: &'r mut Reader<'f>,
    pub c: &'r DecoderConfig,
    pub index: usize,
    pub options: &'r LoadOptions,
}

impl LayerReader<'_, '_> {
    pub(crate) fn name(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.index)
    }

    pub(crate) fn has(&self, part: &str) -> bool {
        self.reader.has(&self.name(part))
    }

    /// Matrices (name, rows) of `cols` columns, as `Reader::projections` reads them.
    pub(crate) fn projections(
        &mut self,
        wanted: &[(&str, usize)],
        cols: usize,
        bias: bool,
    ) -> Result<Projections> {
        let wanted: Vec<_> = wanted.iter().map(|(part, rows)| (self.name(part), *rows)).collect();
        self.reader.projections(&wanted, cols, bias, self.c)
    }

    /// A norm, if the layer has it.
    pub(crate) fn norm(&mut self, part: &str) -> Result<Option<Norm>> {
        let width = self.c.norm_width_of(self.index, part);
        width.map(|width| self.norm_of(part, width)).transpose()
    }

    /// A norm that the layer has.
    pub(crate) fn norm_of(&mut self, part: &str, width: usize) -> Result<Norm> {
        self.reader.norm(&self.name(part), width, self.c)
    }

    pub(crate) fn matrix(&mut self, part: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.reader.matrix(&self.name(part), rows, cols)
    }

    /// A small matrix as f32.
    pub(crate) fn rows(&mut self, part: &str, count: usize, cols: usize) -> Result<Vec<f32>> {
        self.reader.rows(&self.name(part), count, cols)
    }

    /// An error of a tensor, with its name.
    pub(crate) fn at(&self, part: &str, e: Error) -> Error {
        Error::new(e.status, format!("{}: tensor '{}': {}", self.reader.what(), self.name(part), e.message))
    }

    /// The error of a model that `LoadOptions::skip_zeros` is not for.
    pub(crate) fn no_zeros(&self, why: &str) -> Error {
        let what = self.reader.what();
        Error::unsupported(format!(
            "{what}: skip_zeros is set, which is for ternary BitNet models with ReLU²: {why}"
        ))
    }

    /// The same error of a feed-forward whose activation leaves few zeros.
    pub(crate) fn no_relu2(&self) -> Error {
        self.no_zeros("its feed-forward has no ReLU²")
    }

    /// The factor on the layer's residual.
    pub(crate) fn scale(&mut self) -> Result<Option<f32>> {
        let part = format!("{LAYER_SCALE}.weight");
        let has = self.c.family.layer_scales && self.has(&part);
        has.then(|| self.vector(&part, 1).map(|factor| factor[0])).transpose()
    }
}

impl Source for LayerReader<'_, '_> {
    fn hidden(&self) -> usize {
        self.c.hidden
    }

    fn rms_eps(&self) -> f32 {
        self.c.rms_eps
    }

    fn state_place(&self) -> usize {
        self.c.blocks[..self.index].iter().filter(|block| block.has_state()).count()
    }

    fn product(&mut self, slot: Slot, wanted: &[(&str, usize)], cols: usize, bias: bool) -> Result<Product> {
        let names = wanted.iter().map(|(part, _)| self.name(part)).collect();
        let weights = self.projections(wanted, cols, bias)?;
        Ok(Product { weights, site: Some(Site::Layer(self.index, slot)), names })
    }

    fn vector(&mut self, part: &str, len: usize) -> Result<Arc<[f32]>> {
        self.reader.vector(&self.name(part), len)
    }

    fn convolution(&mut self, part: &str, channels: usize, kernel: usize) -> Result<Arc<[f32]>> {
        let rows = self.reader.rows(&self.name(part), channels, kernel)?;
        Ok((0..channels * kernel).map(|at| rows[at % channels * kernel + at / channels]).collect())
    }

    fn decays(&mut self, part: &str, heads: usize) -> Result<Arc<[f32]>> {
        let a = self.vector(part, heads)?;
        match a.iter().any(|a| *a > 0.0) {
            true => Err(self.reader.bad(&self.name(part), "makes a state grow")),
            false => Ok(a),
        }
    }
}
