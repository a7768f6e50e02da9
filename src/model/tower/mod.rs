//! Vision towers, one for all families: pictures' patches become vectors that stand in the place of tokens' embeddings.
//! A picture's patches see each other in both directions, and nothing is kept after a run.
//!
//! A tower is a list of programs: the embedding of patches, three for each layer (the products for attention,
//! attention, the rest), and the projector. All but attention run on any part of the rows, and attention makes the
//! results of any part, so a run may stop after each, and go on after other passes.

mod config;
pub(super) mod family;
mod grids;
mod run;

pub(super) use config::{Embedding, TowerConfig};
use run::MOST_ROWS;
pub use run::TowerRun;

use super::Facts;
use crate::base::Result;
use crate::ops::pass::{Program, Ropes};
use crate::ops::{Distinct, Extent, OpSet, step_bytes};
use crate::picture::{Grid, Processor};
use xxhash_rust::xxh64::Xxh64;

/// A loaded tower.
pub struct Tower {
    config: TowerConfig,
    /// That of patches first, then the layers', then that of soft tokens.
    programs: Vec<Program>,
    /// Multiplications for each row of a program; of attention, for each pair of rows.
    costs: Vec<u64>,
    ropes: Vec<Ropes>,
    processor: Processor,
    facts: Facts,
}

/// Which part of a tower a program computes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The embedding of patches.
    Patches,
    /// A layer's products for attention.
    Products,
    Attention,
    /// The rest of a layer.
    FeedForward,
    /// The projector.
    SoftTokens,
}

impl Tower {
    /// `programs` run what `config` says. `other_bytes` is the number of other bytes in its files.
    pub(super) fn new(
        config: TowerConfig,
        programs: Vec<Program>,
        processor: Processor,
        other_bytes: u64,
    ) -> Self {
        let ropes = vec![Ropes { rope: config.rope(), long: None }];
        let costs = programs.iter().map(|program| cost(program, &config)).collect();
        let mut tower = Self { config, programs, costs, ropes, processor, facts: Facts::default() };
        tower.facts = facts(&tower, other_bytes);
        tower
    }

    /// Facts about it. `context_length` and `vocab_size` are 0.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Elements of a soft token: the hidden size of the language model.
    pub fn width(&self) -> usize {
        self.config.width
    }

    /// Elements of a patch: three colors of each frame's pixels.
    pub fn patch_len(&self) -> usize {
        self.config.patch_len()
    }

    /// The number of soft tokens that patches of a grid become.
    pub fn soft_tokens(&self, grid: Grid) -> usize {
        grid.rows as usize * grid.cols as usize / self.config.group()
    }

    /// How its pictures are prepared. Its rows are as long as this tower's patches.
    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    /// The token that prompts of the model's own processor have for a soft token. `None`: the files do not say it.
    pub fn token(&self) -> Option<u32> {
        self.config.token
    }

    fn stage(&self, at: usize) -> Stage {
        match at {
            0 => Stage::Patches,
            _ if at + 1 >= self.programs.len() => Stage::SoftTokens,
            _ => [Stage::FeedForward, Stage::Products, Stage::Attention][at % 3],
        }
    }

    /// The programs that together have all operations and weights.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.programs.iter()
    }

    /// A number that other towers do not have: a hash of the beginnings of all weights.
    pub fn fingerprint(&self) -> u64 {
        const PART: usize = 4096;
        let mut hash = Xxh64::new(0);
        let weights: Distinct = self.programs().flat_map(Program::weights).collect();
        for matrix in weights.matrices {
            let sizes = [matrix.rows as u64, matrix.cols as u64, matrix.dtype as u64];
            hash.update(&sizes.map(u64::to_le_bytes).concat());
            hash.update(&matrix.data[..matrix.data.len().min(PART)]);
        }
        for vector in weights.vectors {
            vector.iter().take(PART / 4).for_each(|x| hash.update(&x.to_le_bytes()));
        }
        hash.digest()
    }

    /// Upper bound of the bytes that a run of `patches` patches takes, with those that it keeps between two steps.
    pub fn workspace_bytes(&self, ops: &dyn OpSet, patches: usize) -> usize {
        let c = &self.config;
        let heads = c.attention.heads * c.attention.head_dim;
        let widest = c.attention.qkv().max(c.hidden).max(c.width);
        let pass = |(at, program)| {
            let rows = match self.stage(at) {
                Stage::Attention => patches,
                Stage::SoftTokens => patches.div_ceil(c.group()).min(MOST_ROWS),
                _ => patches.min(MOST_ROWS),
            };
            (program, Extent { rows, logits: 0, context: patches })
        };
        let passes = self.programs.iter().enumerate().map(pass);
        let out = patches.saturating_mul(heads).max(patches.min(MOST_ROWS) * widest);
        let out = out.saturating_mul(size_of::<f32>());
        let most = step_bytes(passes, ops, &self.ropes, 0).saturating_add(out);
        // In a layer: its input, what attention takes and makes, and its output, which is there after what attention
        // took.
        let layer = c.hidden + heads + c.attention.qkv().max(c.hidden);
        let ends = (c.patch_len() + c.hidden).max(c.hidden + c.width.div_ceil(c.group()));
        let kept = size_of::<f32>() * layer.max(ends) + self.row_bytes();
        let part = patches.min(MOST_ROWS) * self.row_bytes();
        patches.saturating_mul(kept).saturating_add(most).saturating_add(part)
    }

    /// Runs pictures: patches `[sum of the grids' patches, patch_len]`, as `processor` makes them, and a grid for each
    /// part that is seen by itself. Appends the soft tokens of all, `[soft tokens, width]`, to `out`. A picture's
    /// have the same bits in any company. Calls `stop` between layers; true ends it with `Status::Cancelled`.
    /// `InvalidArgument` for patches that do not fit their grids, `OutOfMemory`.
    pub fn forward(
        &self,
        ops: &dyn OpSet,
        pictures: &[(&[f32], &[Grid])],
        stop: &mut dyn FnMut() -> bool,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut run = self.begin(pictures)?;
        while self.advance(&mut run, ops, u64::MAX, stop)? > 0 {}
        self.append(run, out)
    }
}

/// See `Tower::costs`.
fn cost(program: &Program, c: &TowerConfig) -> u64 {
    let weights: Distinct = program.weights().into_iter().collect();
    match weights.matrices.iter().map(|matrix| (matrix.rows * matrix.cols) as u64).sum() {
        0 => 2 * (c.attention.heads * c.attention.head_dim) as u64,
        products => products,
    }
}

fn facts(tower: &Tower, other_bytes: u64) -> Facts {
    let c = &tower.config;
    let Distinct { matrices, vectors, .. } = tower.programs().flat_map(Program::weights).collect();
    Facts {
        architecture: c.family.gguf.to_owned(),
        name: c.name.clone(),
        layers: c.layers,
        hidden_size: c.hidden,
        heads: c.attention.heads,
        kv_heads: c.attention.kv_heads,
        head_dim: c.attention.head_dim,
        ffn_size: c.ffn,
        encodes: true,
        ..Facts::of_weights(matrices.into_iter(), vectors.into_iter(), other_bytes)
    }
}
