//! The source of drafts that a model makes: a draft model, a block of the model itself, or a drafter in a file beside
//! it.

mod draft_model;
mod mtp;
mod states;

use crate::base::{Error, Result};
use crate::engine::api::{EngineConfig, Speculation};
use crate::engine::memory::plan::MemoryPlan;
use crate::engine::request::speculation::no_drafter;
use crate::model::Loaded;
use crate::ops::{Memory, OpSet};
use crate::schedule::Work;
pub(crate) use draft_model::DraftModel;
use mtp::Mtp;

pub(crate) enum Drafter {
    Model(Box<DraftModel>),
    Mtp(Box<Mtp>),
}

/// A sequence whose next draft is wanted.
pub(crate) struct Wanted<'a> {
    pub table: &'a [u32],
    /// Position of its last token or draft.
    pub last: u32,
    /// Number of its drafts in this step so far.
    pub pass: u32,
    /// The slot of its state, if it has one.
    pub state: Option<u32>,
    /// Rotation of its row, in a model that rotates pictures by their lines and columns.
    pub rotation: Option<[u32; 3]>,
    pub token: &'a dyn Fn(u32) -> u32,
}

impl Drafter {
    /// Creates the drafter with the memory that `plan` counts; None if nothing drafts.
    pub(crate) fn new(
        config: &EngineConfig,
        target: &Loaded,
        ops: &dyn OpSet,
        plan: &MemoryPlan,
    ) -> Result<Option<Self>> {
        match &config.draft_model {
            Some(draft) => Ok(Some(Self::Model(Box::new(DraftModel::new(config, draft, ops, plan)?)))),
            None if target.model.drafts() => Ok(Some(Self::Mtp(Box::new(Mtp::new(config, target)?)))),
            None => Ok(None),
        }
    }

    /// Number of positions that it can draft at.
    pub(crate) fn context(&self) -> u32 {
        let model = match self {
            Self::Model(draft) => draft.model(),
            Self::Mtp(mtp) => mtp.model(),
        };
        model.facts().context_length.min(u32::MAX as usize) as u32
    }

    /// The draft model, which has a cache of its own to keep up with the target's.
    pub(crate) fn own_cache(&mut self) -> Option<&mut DraftModel> {
        match self {
            Self::Model(draft) => Some(draft),
            Self::Mtp(_) => None,
        }
    }

    /// Number of positions before the token at `last` that are not computed yet.
    pub(crate) fn lacks(&self, table: &[u32], last: u32) -> u32 {
        match self {
            Self::Model(draft) => draft.lacks(table, last),
            Self::Mtp(_) => 0,
        }
    }

    /// Begins a pass of at most `rows` rows.
    pub(crate) fn begin(&mut self, rows: usize) {
        match self {
            Self::Model(draft) => draft.begin(rows),
            Self::Mtp(mtp) => mtp.begin(),
        }
    }

    /// Adds a sequence's rows to the pass. Returns false if it cannot have all of them in this pass.
    pub(crate) fn add(&mut self, wanted: &Wanted, memory: &dyn Memory) -> Result<bool> {
        match self {
            Self::Model(draft) => draft.add(wanted),
            Self::Mtp(mtp) => mtp.add(wanted, memory),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Model(draft) => draft.is_empty(),
            Self::Mtp(mtp) => mtp.is_empty(),
        }
    }

    /// Runs the pass. Returns its work, and whether it was a decode pass: about all of its rows gave logits. `memory`
    /// is the target's.
    pub(crate) fn run(
        &mut self,
        ops: &dyn OpSet,
        memory: &mut dyn Memory,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<(Work, bool)> {
        match self {
            Self::Model(draft) => draft.run(ops, stop),
            Self::Mtp(mtp) => mtp.run(ops, memory).map(|work| (work, true)),
        }
    }

    /// One row for each `add` that returned true, in order: `[rows, vocab]`.
    pub(crate) fn logits(&mut self) -> &mut [f32] {
        match self {
            Self::Model(draft) => draft.logits(),
            Self::Mtp(mtp) => mtp.logits(),
        }
    }
}

/// Checks that something drafts if drafts are asked for, at most one thing does, and a draft model has the vocabulary
/// of the `target`.
pub(crate) fn check(config: &EngineConfig, target: &Loaded) -> Result<()> {
    if config.speculates(&*target.model) == Speculation::Model && !config.drafts(&*target.model) {
        return Err(no_drafter());
    }
    let Some(draft) = &config.draft_model else { return Ok(()) };
    if target.model.drafts() {
        return Err(Error::invalid(
            "draft_model is set, and the model has a drafter (mtp, drafter_path): choose one",
        ));
    }
    if draft.model.facts().encodes || target.model.facts().encodes {
        return Err(Error::unsupported("draft_model is set, and an encoder neither drafts nor generates"));
    }
    if draft.model.drafts() {
        return Err(Error::unsupported(
            "draft_model was opened with mtp or drafter_path, and drafts without them: open it without",
        ));
    }
    same_vocabulary(target, draft)
}

fn same_vocabulary(target: &Loaded, draft: &Loaded) -> Result<()> {
    let sizes = [target, draft].map(|loaded| loaded.model.facts().vocab_size);
    if sizes[0] != sizes[1] {
        return Err(Error::invalid(format!(
            "draft_model has a vocabulary of {} tokens, and the model one of {}",
            sizes[1], sizes[0]
        )));
    }
    let (Some(target), Some(draft)) = (&target.tokenizer, &draft.tokenizer) else { return Ok(()) };
    let text = |of: &Option<&[u8]>| {
        of.map_or("nothing".into(), |bytes| format!("{:?}", String::from_utf8_lossy(bytes)))
    };
    for id in 0..sizes[0] as u32 {
        let pieces = (target.token_piece(id), draft.token_piece(id));
        if pieces.0 != pieces.1 {
            return Err(Error::invalid(format!(
                "draft_model has another vocabulary: token {id} is {} there, and {} in the model",
                text(&pieces.1),
                text(&pieces.0)
            )));
        }
    }
    Ok(())
}
