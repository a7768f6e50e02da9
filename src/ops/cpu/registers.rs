//! The registers of a pass on the CPU, in one piece of memory.

use crate::base::{Error, Result, reserve};
use crate::ops::pass::{Place, Program, Reg};
use crate::ops::tensors::zeroed;

/// The memory; grows to the largest pass, then is reused.
#[derive(Default)]
pub(super) struct Storage {
    floats: Vec<f32>,
    /// Where a cache line begins.
    start: usize,
    /// The number of rows in each register.
    rows: Vec<usize>,
}

/// Elements of a cache line.
const LINE: usize = 16;

/// The registers of one pass.
pub(super) struct Registers<'a> {
    places: &'a [Place],
    memory: &'a mut Storage,
    /// Rows of the batch.
    most: usize,
}

/// Rows of a register: `[rows, width]`.
pub(super) struct Rows<'a> {
    pub data: &'a mut [f32],
    pub rows: usize,
    pub width: usize,
}

impl Rows<'_> {
    pub(super) fn dims(&self) -> [usize; 2] {
        [self.rows, self.width]
    }
}

impl Storage {
    /// The registers of a pass for `rows` rows, all without rows. `OutOfMemory`.
    pub(super) fn begin<'a>(&'a mut self, program: &'a Program, rows: usize) -> Result<Registers<'a>> {
        let floats = rows.checked_mul(program.floats()).ok_or_else(|| out_of_memory(usize::MAX))?;
        if self.floats.len() < floats + LINE {
            // Freed first, so that there are never two of them.
            self.floats = Vec::new();
            self.floats = zeroed(floats.saturating_add(LINE)).ok_or_else(|| out_of_memory(floats))?;
            self.start = self.floats.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        }
        self.rows.clear();
        reserve(&mut self.rows, program.places().len(), "a step's registers")?;
        self.rows.resize(program.places().len(), 0);
        Ok(Registers { places: program.places(), memory: self, most: rows })
    }
}

fn out_of_memory(floats: usize) -> Error {
    Error::out_of_memory("a step's registers", floats.saturating_mul(size_of::<f32>()))
}

impl Registers<'_> {
    /// Gives a register `rows` rows, whose contents are unspecified.
    pub(super) fn make(&mut self, reg: Reg, rows: usize) -> Result<()> {
        if rows > self.most {
            return Err(Error::internal(format!("{rows} rows in a step of {}", self.most)));
        }
        self.memory.rows[reg.index()] = rows;
        if cfg!(debug_assertions) {
            // A result that is read before it was written shows in every test.
            let [made] = self.of([reg])?;
            made.data.fill(f32::NAN);
        }
        Ok(())
    }

    /// The number of rows in a register.
    pub(super) fn rows(&self, reg: Reg) -> usize {
        self.memory.rows[reg.index()]
    }

    /// Takes the rows after the first `rows` away.
    pub(super) fn shorten(&mut self, reg: Reg, rows: usize) {
        let own = &mut self.memory.rows[reg.index()];
        *own = rows.min(*own);
    }

    /// Registers by themselves, which must not be the same. `Internal`.
    pub(super) fn of<const N: usize>(&mut self, regs: [Reg; N]) -> Result<[Rows<'_>; N]> {
        let most = self.most;
        let shape = regs.map(|reg| (self.memory.rows[reg.index()], self.places[reg.index()]));
        let spans = shape.map(|(rows, place)| place.offset * most..place.offset * most + rows * place.width);
        let parts = self.memory.floats[self.memory.start..].get_disjoint_mut(spans);
        let parts = parts.map_err(|_| Error::internal("registers that overlap"))?;
        let mut shape = shape.into_iter();
        Ok(parts.map(|data| {
            let (rows, place) = shape.next().unwrap_or_default();
            Rows { data, rows, width: place.width }
        }))
    }

    /// The registers `from`, and after them `to` with `rows` rows that are to be written.
    pub(super) fn made<const N: usize, const M: usize>(
        &mut self,
        rows: usize,
        from: [Reg; N],
        to: Reg,
    ) -> Result<[Rows<'_>; M]> {
        const { assert!(M == N + 1) };
        self.make(to, rows)?;
        let mut all = [to; M];
        all[..N].copy_from_slice(&from);
        self.of(all)
    }

    /// As `made`, with as many rows as `x`.
    pub(super) fn like(&mut self, x: Reg, to: Reg) -> Result<[Rows<'_>; 2]> {
        self.made(self.rows(x), [x], to)
    }
}
