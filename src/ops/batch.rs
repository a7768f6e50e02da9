//! One step's ragged batch.

use super::blend::Blends;
use super::lora::{Adapted, Lora};
use crate::base::{Error, Result, reserve};
use std::ops::Range;
use std::sync::Arc;

/// One sequence's rows in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqRows {
    /// First row of this sequence in `tokens`.
    pub row: u32,
    /// Number of rows of this sequence: 1 in decode, the length of the chunk in prefill.
    pub rows: u32,
    /// The block table is `block_tables[table..table + table_len]`.
    pub table: u32,
    pub table_len: u32,
}

/// Rows of a step that one state passes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateRows {
    /// The state before the rows, and after those that are not drafted. Its contents do not matter at position 0, where
    /// every state is zero.
    pub slot: u32,
    /// Number of rows at the end that are of drafted tokens. They do not change the slot; see `Model::advance`.
    pub drafted: u32,
    /// Entries of `RaggedBatch::saves`, as first and end index.
    pub saves: (u32, u32),
}

/// Everything that a forward pass reads besides weights and KV.
///
/// Row r has position `positions[r]`. The rows of a sequence have consecutive positions. Each attends to positions
/// `0..=positions[r]` of its sequence, including those of the current chunk, and to more if it is in `mutual`. Position
/// p of a sequence is in slot `p % block_size` of block `block_tables[table + p / block_size]`.
#[derive(Clone, Default)]
pub struct RaggedBatch {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub seqs: Vec<SeqRows>,
    pub block_tables: Vec<u32>,
    /// Rows whose logits are wanted, in ascending order.
    pub logits_rows: Vec<u32>,
    /// Rows whose hidden state after the final norm is wanted, in ascending order.
    pub hidden_rows: Vec<u32>,
    /// Rows that run with adapters (see `adapt`).
    pub adapted: Vec<Adapted>,
    pub draws: Draws,
    /// The state of each of `seqs`; empty if the model keeps none.
    pub states: Vec<StateRows>,
    /// Copies of states to make on the way: after this number of the sequence's rows, to this slot. In ascending order
    /// for each sequence.
    pub saves: Vec<(u32, u32)>,
    /// The type of each row's token, for encoders: 0 in a text, 1 in the second one of a pair. Empty: all are 0.
    pub types: Vec<u32>,
    /// Vectors in place of the embeddings of the rows `vector_rows`, which are in ascending order:
    /// `[vector_rows.len(), hidden]`. They are not scaled as embeddings are (in transformers, too, a picture's vectors
    /// replace rows that have been scaled). These rows have a token all the same, for inputs of single layers.
    pub vectors: Vec<f32>,
    pub vector_rows: Vec<u32>,
    /// The numbers that each row is rotated by, for the axes of time, height and width. A rope without axes takes the
    /// first. Windows and block tables go by `positions` all the same. Empty: all are the row's position.
    pub rotations: Vec<[u32; 3]>,
    /// Ranges of rows, each of one sequence, that see each other in both directions (Gemma's pictures), in layers that
    /// have it so (`Attention::mutual`). A picture's rows run in one batch, as none attends before K and V of all are
    /// written. In ascending order. Whoever gives them must not begin a batch inside of one, after a cached prefix
    /// either.
    pub mutual: Vec<Range<u32>>,
    /// What `Op::Blend` adds up for each row; empty for programs without it.
    pub blends: Blends,
    /// Number of sequences at the end that are padding (see `pad`). Each repeats the only row of another
    /// sequence, and its results are ignored.
    pub padding: usize,
}

/// Draws of tokens on the device that holds the logits.
#[derive(Clone, Debug, Default)]
pub struct Draws {
    /// One entry for each of `logits_rows`, `None` for a row without a draw. Empty if no tokens are drawn.
    pub rows: Vec<Option<Draw>>,
    /// Changes to logits before the draws, grouped by row.
    pub edits: Vec<Edit>,
    /// Tokens that reports must contain, grouped by row.
    pub listed: Vec<u32>,
    /// Number of words that all reports take together.
    pub report_words: usize,
}

/// A change to the logit of one token. The logit becomes `logit + bias`. If `count` is above 0, the penalties of the
/// row's `Draw` follow, for a token that the output contains `count - 1` times.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Edit {
    pub token: u32,
    pub count: u32,
    pub bias: f32,
}

/// Maximum number of edits of a row: a longer list costs more than the row's logits.
pub const MAX_EDITS: usize = 8192;

/// Request for a report on a row besides its token, from which log probabilities are computed. A report describes the
/// logits before edits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Number of most likely tokens to report, at most `MAX_TOPS`.
    pub tops: u32,
    /// First and end index in `Draws::listed`, at most `MAX_LISTED` apart.
    pub listed: (u32, u32),
    /// Index of the report's first word among the step's words.
    pub at: u32,
}

/// Maximum number of most likely tokens, and of listed tokens, in a report.
pub const MAX_TOPS: usize = 32;
pub const MAX_LISTED: usize = 256;

/// The contents of a report.
#[derive(Clone, Copy, Debug)]
pub struct Reported<'a> {
    /// Sum of `e^(logit - max)`, added in the CPU's order (`kernels::rows::logits::weigh`).
    pub mass: f64,
    /// The greatest logit.
    pub max: f32,
    /// The logit of the drawn token.
    pub logit: f32,
    likely: &'a [u64],
}

impl Report {
    /// Maximum number of words: the mass, the two logits, and one word per token.
    pub const MOST_WORDS: usize = 2 + MAX_TOPS + MAX_LISTED;

    fn words(&self) -> usize {
        2 + self.tops as usize + (self.listed.1 - self.listed.0) as usize
    }

    /// Reads this report from the step's words. `Internal` if there are too few.
    pub fn read(self, words: &[u64]) -> Result<Reported<'_>> {
        let own = words.get(self.at as usize..self.at as usize + self.words());
        let Some([mass, logits, likely @ ..]) = own else {
            return Err(Error::internal("a row without its report"));
        };
        let [max, logit] = [*logits, logits >> 32].map(|bits| f32::from_bits(bits as u32));
        Ok(Reported { mass: f64::from_bits(*mass), max, logit, likely })
    }
}

impl<'a> Reported<'a> {
    /// Tokens with their logits. First come the most likely ones in descending order: among equals the lower
    /// id first, and `u32::MAX` if the vocabulary has no more. Then come the listed ones.
    pub fn likely(&self) -> impl Iterator<Item = (u32, f32)> + 'a {
        self.likely.iter().map(|word| (*word as u32, f32::from_bits((word >> 32) as u32)))
    }
}

impl Draws {
    /// Appends a report with the `tops` most likely tokens and the `listed` ones. `OutOfMemory`.
    pub fn report(&mut self, tops: u32, listed: &[u32]) -> Result<Report> {
        reserve(&mut self.listed, listed.len(), "a step's tokens")?;
        let first = self.listed.len() as u32;
        self.listed.extend_from_slice(listed);
        let report = Report { tops, listed: (first, self.listed.len() as u32), at: self.report_words as u32 };
        self.report_words += report.words();
        Ok(report)
    }

    /// Clears all lists and keeps their memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.edits.clear();
        self.listed.clear();
        self.report_words = 0;
    }
}

/// A draw of a token from a row of logits, and the values to report about the row. The result is that of
/// `sample::Sampler` for a request with these parameters alone, in the default order of filters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0: takes the most likely token.
    pub temperature: f32,
    /// 0: off.
    pub top_k: u32,
    /// 1: off.
    pub top_p: f32,
    /// 0: off.
    pub min_p: f32,
    pub seed: u64,
    /// Position of the token in its sequence.
    pub position: u64,
    /// Penalties for the tokens that `edits` count, as in `SamplingParams`.
    pub repetition: f32,
    pub frequency: f32,
    pub presence: f32,
    /// First and end index in `Draws::edits`. These edits have distinct tokens, all within the vocabulary.
    pub edits: (u32, u32),
    pub report: Option<Report>,
}

impl Default for Draw {
    /// Takes the most likely token.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            position: 0,
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
            edits: (0, 0),
            report: None,
        }
    }
}

/// Results of a step; reused from step to step for their memory.
#[derive(Debug, Default)]
pub struct Outputs {
    /// `[logits_rows.len(), vocab_size]`, or more rows where tokens are drawn. The contents of rows that a token was
    /// drawn from are unspecified.
    pub logits: Vec<f32>,
    /// The token of each of `logits_rows` with a draw, or a code for the row's fault (see `sample::drawn`). Empty if no
    /// tokens were drawn.
    pub tokens: Vec<i32>,
    /// `Draws::report_words` words. The words of a row are meaningless if its token is such a code.
    pub reports: Vec<u64>,
    /// `[hidden_rows.len(), hidden_size]`.
    pub hidden: Vec<f32>,
}

impl Outputs {
    /// Empties it. Logits that a pass for `batch` overwrites stay: memory that is overwritten needs no zeros first.
    pub(super) fn begin(&mut self, batch: &RaggedBatch) {
        self.hidden.clear();
        self.tokens.clear();
        self.reports.clear();
        if batch.logits_rows.is_empty() {
            self.logits.clear();
        }
    }
}

impl RaggedBatch {
    /// Reserves memory for `rows` rows of `seqs` sequences. `logits` of the rows give logits. `OutOfMemory`.
    pub fn reserve(&mut self, rows: usize, seqs: usize, logits: usize) -> Result<()> {
        reserve(&mut self.tokens, rows, "a step's tokens")?;
        reserve(&mut self.positions, rows, "a step's positions")?;
        reserve(&mut self.seqs, seqs, "a step's sequences")?;
        reserve(&mut self.states, seqs, "a step's states")?;
        reserve(&mut self.logits_rows, logits, "a step's rows")
    }

    /// Whether each row is the only one of its sequence, and gives logits but nothing else.
    pub fn decodes(&self) -> bool {
        let rows = self.tokens.len();
        let plain = self.hidden_rows.is_empty() && self.adapted.is_empty() && self.beyond_tokens().is_none();
        plain && self.seqs.len() == rows && self.logits_rows.len() == rows
    }

    /// What it has besides tokens that see those before them, if anything.
    pub(crate) fn beyond_tokens(&self) -> Option<&'static str> {
        let parts = [
            (!self.vectors.is_empty(), "rows of given vectors"),
            (!self.rotations.is_empty(), "rotations apart from positions"),
            (!self.mutual.is_empty(), "rows that see each other in both directions"),
        ];
        parts.into_iter().find_map(|(has, part)| has.then_some(part))
    }

    /// The positions that `row` sees in both directions, its own among them.
    pub(super) fn mutual_with(&self, row: usize) -> Option<Range<usize>> {
        let at = self.mutual.partition_point(|rows| rows.end as usize <= row);
        let rows = self.mutual.get(at).filter(|rows| rows.start as usize <= row)?;
        let start = self.positions[rows.start as usize] as usize;
        Some(start..start + rows.len())
    }

    /// Pads a decode step to at least `rows` rows if tokens are drawn in it. Other steps stay as they are. New rows
    /// repeat the row with the shortest context, including its blocks, which they read. They have no state, and
    /// backends do not keep their K and V. Without memory for them the step stays as it is.
    pub fn pad(&mut self, rows: usize) {
        let more = rows.saturating_sub(self.tokens.len());
        if more == 0 || !self.decodes() || self.draws.rows.is_empty() {
            return;
        }
        let shortest = (0..self.tokens.len()).min_by_key(|row| self.positions[*row]);
        let Some(shortest) = shortest else { return };
        let room = self.reserve(more, more, more);
        if room.and_then(|()| reserve(&mut self.draws.rows, more, "a step's rows")).is_err() {
            return;
        }
        for row in self.tokens.len() as u32..rows as u32 {
            self.tokens.push(self.tokens[shortest]);
            self.positions.push(self.positions[shortest]);
            self.seqs.push(SeqRows { row, ..self.seqs[shortest] });
            self.logits_rows.push(row);
            self.draws.rows.push(Some(Draw::default()));
        }
        self.padding = more;
    }

    /// Adds `rows` rows of a sequence with this block table, from position `start` on. Returns the index of the first
    /// one. The caller adds the tokens. `OutOfMemory`.
    pub fn push_seq(&mut self, table: &[u32], start: u32, rows: u32) -> Result<u32> {
        reserve(&mut self.block_tables, table.len(), "a step's block tables")?;
        let row = self.tokens.len() as u32;
        let (first, table_len) = (self.block_tables.len() as u32, table.len() as u32);
        self.seqs.push(SeqRows { row, rows, table: first, table_len });
        self.block_tables.extend_from_slice(table);
        self.positions.extend(start..start + rows);
        Ok(row)
    }

    /// Clears all lists and keeps their memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.block_tables.clear();
        self.logits_rows.clear();
        self.hidden_rows.clear();
        self.adapted.clear();
        self.states.clear();
        self.saves.clear();
        self.types.clear();
        self.vectors.clear();
        self.vector_rows.clear();
        self.rotations.clear();
        self.mutual.clear();
        self.blends.clear();
        self.draws.clear();
        self.padding = 0;
    }
}

impl RaggedBatch {
    /// Lets `count` rows from `row` on run with `lora` at `scale`. Calls must come in ascending order of rows.
    pub fn adapt(&mut self, lora: &Arc<Lora>, scale: f32, row: u32, count: u32) {
        let same = |a: &&mut Adapted| Arc::ptr_eq(&a.lora, lora) && a.scale.to_bits() == scale.to_bits();
        match self.adapted.iter_mut().find(same) {
            Some(adapted) => adapted.rows.extend(row..row + count),
            None => {
                let rows = (row..row + count).collect();
                self.adapted.push(Adapted { lora: lora.clone(), scale, rows });
            }
        }
    }
}
