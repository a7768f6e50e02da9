//! A recurrent layer for the simulation's machine. Its state is the number of a sequence's tokens and their hash, so
//! the next pass detects a state of another sequence or position. The hidden state, from which a block drafts, is the
//! last token.

use crate::base::Result;
use crate::base::sync::Mutex;
use crate::ops::{Accepted, Memory, RaggedBatch, StateShape, Unit};
use crate::rng::mix;

/// The number of tokens, then the hash in pieces of 16 bits, which f32 holds exactly.
pub const SHAPE: StateShape = StateShape { layers: 1, floats: 5, row: 1, hidden: 1 };

/// A state: the number of tokens, and their hash.
pub type State = (u32, u64);

const NONE: State = (0, 0);

/// The hidden state after this token.
fn hidden(token: u32) -> f32 {
    token as f32 + 0.5
}

fn read(memory: &dyn Memory, slot: u32) -> Result<State> {
    let mut bytes = Vec::new();
    memory.read(Unit::State, slot, &mut bytes)?;
    let floats: Vec<u64> =
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes) as u64).collect();
    let hash = floats[1..5].iter().rev().fold(0, |hash, piece| hash << 16 | piece);
    Ok((floats[0] as u32, hash))
}

fn write(memory: &mut dyn Memory, slot: u32, (tokens, hash): State, last: u32) -> Result<()> {
    let pieces = (0..4).map(|n| (hash >> (16 * n) & 0xffff) as f32);
    let floats = std::iter::once(tokens as f32).chain(pieces).chain([hidden(last)]);
    let bytes: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
    memory.write(Unit::State, slot, &bytes)
}

fn after((tokens, hash): State, token: u32) -> State {
    (tokens + 1, mix(hash, u64::from(token) + 1))
}

/// Drafted tokens of the last pass.
#[derive(Default)]
pub struct Recurrent {
    drafted: Mutex<Vec<u32>>,
}

impl Recurrent {
    /// Advances the states of a pass. Returns an error message if a state is wrong.
    pub fn forward(&self, batch: &RaggedBatch, memory: &mut dyn Memory) -> Result<Option<String>> {
        memory.layout().states.check(batch)?;
        let mut drafted = self.drafted.lock();
        drafted.clear();
        for (seq, own) in batch.seqs.iter().zip(&batch.states) {
            let (first, rows) = (seq.row as usize, seq.rows as usize);
            let start = batch.positions[first];
            let mut state = if start == 0 { NONE } else { read(memory, own.slot)? };
            let past = past(batch, memory, seq.table as usize, start)?;
            if state != past {
                return Ok(Some(format!("the state at position {start} is {state:?} instead of {past:?}")));
            }
            let saves = &batch.saves[own.saves.0 as usize..own.saves.1 as usize];
            let (known, drafts) = batch.tokens[first..first + rows].split_at(rows - own.drafted as usize);
            for (row, token) in (1..).zip(known) {
                state = after(state, *token);
                for (_, slot) in saves.iter().filter(|(at, _)| *at == row) {
                    write(memory, *slot, state, *token)?;
                }
            }
            if let Some(last) = known.last() {
                write(memory, own.slot, state, *last)?;
            }
            drafted.extend(drafts);
        }
        Ok(None)
    }

    /// Leaves useless states, as a pass that fails does.
    pub fn spoil(&self, batch: &RaggedBatch, memory: &mut dyn Memory) -> Result<()> {
        let own = batch.states.iter().map(|state| state.slot);
        own.chain(batch.saves.iter().map(|(_, slot)| *slot))
            .try_for_each(|slot| write(memory, slot, (7, 7), 7))
    }

    pub fn advance(&self, memory: &mut dyn Memory, accepted: &[Accepted]) -> Result<()> {
        let drafted = self.drafted.lock();
        accepted.iter().try_for_each(|accepted| {
            let rows = &drafted[accepted.first as usize..][..accepted.rows as usize];
            let state = rows.iter().fold(read(memory, accepted.slot)?, |state, token| after(state, *token));
            rows.last().map_or(Ok(()), |last| write(memory, accepted.slot, state, *last))
        })
    }

    /// Writes the hidden states of a draft pass to `out`. Returns an error message if a hidden state before its rows is
    /// wrong.
    pub fn draft(
        batch: &RaggedBatch,
        before: &[f32],
        memory: &dyn Memory,
        out: &mut Vec<f32>,
    ) -> Result<Option<String>> {
        assert_eq!(before.len(), batch.seqs.len(), "a hidden state for each row");
        let mut wrong = None;
        for (seq, before) in batch.seqs.iter().zip(before) {
            let last = batch.positions[seq.row as usize] - 1;
            let want = hidden(token_at(batch, memory, seq.table as usize, last as usize)?);
            if *before != want {
                wrong = Some(format!("the hidden state after position {last} is {before} instead of {want}"));
            }
        }
        out.clear();
        out.extend(batch.tokens.iter().map(|token| hidden(*token)));
        Ok(wrong)
    }
}

/// The token at a position, which the echo model keeps in its KV cache.
fn token_at(batch: &RaggedBatch, memory: &dyn Memory, table: usize, position: usize) -> Result<u32> {
    let (size, mut bytes) = (memory.layout().kv.block_size, Vec::new());
    memory.read(Unit::Block, batch.block_tables[table + position / size], &mut bytes)?;
    let at = position % size * 8;
    Ok(f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as u32)
}

/// The state after the first `tokens` tokens.
fn past(batch: &RaggedBatch, memory: &dyn Memory, table: usize, tokens: u32) -> Result<State> {
    (0..tokens as usize)
        .try_fold(NONE, |state, position| Ok(after(state, token_at(batch, memory, table, position)?)))
}
