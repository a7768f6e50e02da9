//! The operations that the engine runs on the CPU, by our kernels.

mod angles;
mod products;
mod registers;
mod run;

use super::lora::LoraScratch;
use super::mixture::MixtureScratch;
use super::net::Host;
use super::pass::{Op, Program, Step};
use super::recurrence::RecurrentScratch;
use super::rows::On;
use super::state::Accepted;
use super::{AttentionShape, HostMemory, Memory, OpSet, linear};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::attention::whole::{self as whole_attention, span_rows};
use crate::kernels::gemm::dense::whole;
use crate::kernels::gemm::ternary::Gates;
use crate::kernels::{Isa, Pool, available};
use crate::ops::batch::Outputs;
use angles::Angles;
use registers::Storage;
use run::Run;
use std::sync::Arc;

/// The operations on the CPU, with memory for one forward pass at a time. Each engine has its own.
pub struct CpuOps {
    pool: Arc<Pool>,
    isa: Isa,
    storage: Mutex<Storage>,
    scratch: Mutex<Scratch>,
    gates: Gates,
}

/// Memory that operations keep besides registers. It grows to the largest step, then is reused.
#[derive(Default)]
struct Scratch {
    product: Mutex<linear::Scratch>,
    lora: Mutex<LoraScratch>,
    /// The input of a product with adapters.
    normed: Vec<f32>,
    experts: MixtureScratch,
    recurrent: RecurrentScratch,
    angles: Angles,
    /// States of attention's pieces.
    pieces: Mutex<Vec<f32>>,
}

impl CpuOps {
    /// Uses the best instruction set that this machine has and its system permits.
    pub fn new(pool: Arc<Pool>) -> Self {
        let best = available().iter().rfind(|isa| isa.permitted());
        Self::unchecked(pool, best.copied().unwrap_or(Isa::Scalar))
    }

    /// `Unsupported` if this machine lacks `isa` or its system refuses it. Kernels do not check again.
    pub fn with_isa(pool: Arc<Pool>, isa: Isa) -> Result<Self> {
        if available().contains(&isa) {
            return match isa.permitted() {
                true => Ok(Self::unchecked(pool, isa)),
                false => Err(Error::unsupported(format!(
                    "instructions is {}, which the system does not permit this process: a thread has a signal stack \
                     (sigaltstack) without room for matrix tiles, or a filter forbids arch_prctl",
                    isa.name()
                ))),
            };
        }
        let names: Vec<_> = available().iter().map(|isa| isa.name()).collect();
        let (name, names) = (isa.name(), names.join(", "));
        Err(Error::unsupported(format!("instructions is {name}, which this machine lacks: it has {names}")))
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads that operations run on.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn unchecked(pool: Arc<Pool>, isa: Isa) -> Self {
        Self { pool, isa, storage: Mutex::default(), scratch: Mutex::default(), gates: Gates::default() }
    }

    fn on(&self) -> On<'_> {
        On { pool: &self.pool, isa: self.isa }
    }
}

impl OpSet for CpuOps {
    fn run(
        &self,
        program: &Program,
        step: &Step,
        memory: Option<&mut dyn Memory>,
        given: &[&[f32]],
        out: &mut Outputs,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let (storage, scratch) = (&mut *self.storage.lock(), &mut *self.scratch.lock());
        let registers = storage.begin(program, step.batch.tokens.len())?;
        let memory = memory.map(|memory| memory.of()).transpose()?;
        let mut run = Run::new(self, step, memory, registers, scratch, out);
        run.give(program.inputs(), given)?;
        program.ops().iter().try_for_each(|op| match op {
            Op::Check => check(),
            op => run.op(op),
        })
    }

    fn advance(&self, program: &Program, memory: &mut dyn Memory, accepted: &[Accepted]) -> Result<()> {
        let (HostMemory { states, .. }, scratch) = (memory.of()?, &mut self.scratch.lock().recurrent);
        states.advance_hidden(accepted)?;
        program.recurrent().try_for_each(|(layer, net)| {
            let states = states.layer(layer)?;
            net.advance(Host { on: self.on(), states, scratch }, accepted)
        })
    }

    fn attention_bytes(&self, shape: &AttentionShape, _rows: usize, context: usize) -> usize {
        shape.scratch_bytes(self.pool.threads(), context)
    }

    fn encode_bytes(&self, shape: &AttentionShape, rows: usize) -> usize {
        whole_attention::Scratch::bytes(self.isa, shape.head_dim, rows).saturating_mul(self.pool.threads())
    }

    fn task_rows(&self) -> usize {
        span_rows(self.isa)
    }

    fn whole_bytes(&self, rows: usize, cols: usize) -> usize {
        whole::bytes(self.isa, self.pool.threads(), [rows, cols])
    }

    fn gates(&self) -> [u64; 2] {
        self.gates.counts()
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }
}
