//! The echo model on a machine whose passes take time and fail, as the world's host decides.

use super::host::Host;
use super::pictures;
use super::recurrent::{self, Recurrent};
use crate::base::{Error, Result, Status};
use crate::model::{Facts, KvShape, Model, Outputs};
use crate::ops::{Accepted, Memory, OpSet, RaggedBatch, StateShape};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

thread_local! {
    static HOST: RefCell<Option<Rc<RefCell<Host>>>> = const { RefCell::new(None) };
    static DYING: Cell<bool> = const { Cell::new(false) };
}

/// Sets the host of this thread's world.
pub fn set_host(host: Option<Rc<RefCell<Host>>>) {
    HOST.set(host);
}

/// The host of this thread's world.
pub fn host() -> Rc<RefCell<Host>> {
    HOST.with_borrow(Clone::clone).expect("a world")
}

/// While `dying`, calling `facts` panics: the core calls it outside of its guards.
pub fn set_dying(dying: bool) {
    DYING.set(dying);
}

pub fn is_dying() -> bool {
    DYING.get()
}

/// The fault of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    Error,
    Panic,
    /// A bad value in one row of logits.
    Logits(usize, f32),
    Hidden(usize),
}

/// Returns whether this is a pass for a session's fingerprint: token 0 is in no prompt.
pub fn is_probe(batch: &RaggedBatch) -> bool {
    let at = |position: u32| position * 7 % 258;
    batch.logits_rows.is_empty()
        && batch.tokens.iter().zip(&batch.positions).all(|(token, p)| *token == at(*p))
}

/// Returns whether logits row `row` is the first one of its sequence.
pub fn is_first(batch: &RaggedBatch, row: usize) -> bool {
    let at = batch.logits_rows[row];
    let mut own = batch.seqs.iter().filter(|seq| (seq.row..seq.row + seq.rows).contains(&at));
    own.next().is_none_or(|seq| row == 0 || batch.logits_rows[row - 1] < seq.row)
}

pub struct Machine {
    pub echo: Arc<dyn Model>,
    /// A recurrent layer beside echo's own.
    pub recurrent: Option<Recurrent>,
    /// It has a block that drafts.
    pub drafts: bool,
}

impl Model for Machine {
    fn facts(&self) -> &Facts {
        assert!(!DYING.get(), "the simulation's engine dies");
        self.echo.facts()
    }

    fn kv_shape(&self) -> KvShape {
        self.echo.kv_shape()
    }

    fn state_shape(&self) -> StateShape {
        if self.recurrent.is_some() { recurrent::SHAPE } else { StateShape::default() }
    }

    fn advance(&self, _: &dyn OpSet, memory: &mut dyn Memory, accepted: &[Accepted]) -> Result<()> {
        let host = host();
        if host.borrow_mut().keeps_states(accepted.len()) {
            return Err(Error::new(Status::Internal, "a fault of the simulation"));
        }
        self.recurrent.as_ref().map_or(Ok(()), |recurrent| recurrent.advance(memory, accepted))
    }

    fn drafts(&self) -> bool {
        self.drafts
    }

    fn draft(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        before: &[f32],
        memory: &mut dyn Memory,
        out: &mut Outputs,
    ) -> Result<()> {
        let host = host();
        if host.borrow_mut().fails("draft passes that failed") {
            return Err(Error::new(Status::Internal, "a fault of the simulation"));
        }
        host.borrow_mut().note_rotations(batch, memory);
        self.echo.forward(ops, &pictures::read(batch), memory, &mut || false, out)?;
        if let Some(wrong) = Recurrent::draft(batch, before, memory, &mut out.hidden)? {
            host.borrow_mut().broken.get_or_insert(wrong);
        }
        Ok(())
    }

    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, logits_rows: usize) -> usize {
        self.echo.workspace_bytes(ops, rows, logits_rows)
    }

    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        memory: &mut dyn Memory,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        let host = host();
        host.borrow_mut().check_rotations(batch, memory);
        let fault = host.borrow_mut().pass(batch);
        let read = pictures::read(batch);
        let struck = || host.borrow_mut().struck(fault, batch);
        if matches!(fault, Fault::Error | Fault::Panic) {
            // Such a pass leaves useless contents in its blocks.
            let mut spoilt = read.clone().into_owned();
            spoilt.tokens.iter_mut().for_each(|token| *token = (*token + 1) % 256);
            let _ = self.echo.forward(ops, &spoilt, memory, &mut || false, out);
            self.recurrent.as_ref().map_or(Ok(()), |recurrent| recurrent.spoil(batch, memory))?;
        }
        match fault {
            Fault::Error => {
                struck();
                return Err(Error::new(Status::Internal, "a fault of the simulation"));
            }
            Fault::Panic => {
                struck();
                panic!("a fault of the simulation");
            }
            _ => {
                if let Some(recurrent) = &self.recurrent
                    && let Some(wrong) = recurrent.forward(&read, memory)?
                {
                    host.borrow_mut().broken.get_or_insert(wrong);
                }
                let result = self.echo.forward(ops, &read, memory, stop, out);
                host.borrow_mut().passed(&result, batch);
                result?;
            }
        }
        struck();
        match fault {
            Fault::Logits(row, value) => {
                let vocab = self.facts().vocab_size;
                let row = &mut out.logits[row * vocab..][..vocab];
                match value == f32::NEG_INFINITY {
                    true => row.fill(value),
                    false => row[vocab / 2] = value,
                }
            }
            Fault::Hidden(at) => out.hidden[at] = f32::NAN,
            _ => {}
        }
        Ok(())
    }
}

/// The echo model with a recurrent layer, which drafts for others. Its passes take no time.
pub struct RecurrentDraft {
    echo: Arc<dyn Model>,
    recurrent: Recurrent,
}

impl RecurrentDraft {
    pub fn new(echo: Arc<dyn Model>) -> Self {
        Self { echo, recurrent: Recurrent::default() }
    }
}

impl Model for RecurrentDraft {
    fn facts(&self) -> &Facts {
        self.echo.facts()
    }

    fn kv_shape(&self) -> KvShape {
        self.echo.kv_shape()
    }

    fn state_shape(&self) -> StateShape {
        recurrent::SHAPE
    }

    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, logits_rows: usize) -> usize {
        self.echo.workspace_bytes(ops, rows, logits_rows)
    }

    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        memory: &mut dyn Memory,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        let host = host();
        if host.borrow_mut().fails("draft passes that failed") {
            self.recurrent.spoil(batch, memory)?;
            return Err(Error::new(Status::Internal, "a fault of the simulation"));
        }
        let result = self.echo.forward(ops, batch, memory, stop, out);
        if result.is_err() {
            self.recurrent.spoil(batch, memory)?;
            return result;
        }
        host.borrow_mut().drafted(batch);
        // Sequences rely on tokens that this pass has written for others, so their states are checked after it.
        if let Some(wrong) = self.recurrent.forward(batch, memory)? {
            host.borrow_mut().broken.get_or_insert(format!("in a draft model, {wrong}"));
        }
        Ok(())
    }
}
