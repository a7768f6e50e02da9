//! One step's ragged batch.

use super::lora::Adapted;
use crate::base::{Error, Result, reserve};

/// One sequence's rows in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqRows {
    /// First row of this sequence in `tokens`.
    pub row: u32,
    /// Rows of this sequence: 1 for decode, a chunk's length for prefill.
    pub rows: u32,
    /// Its block table is `block_tables[table..table + table_len]`.
    pub table: u32,
    pub table_len: u32,
}

/// Everything a forward pass reads besides weights and KV.
///
/// Row r of sequence s has position `positions[r]`; a sequence's rows are consecutive positions and attend to
/// positions `0..=positions[r]`, the current chunk's included. Position p of a sequence lives in block
/// `block_tables[table + p / block_size]`, slot `p % block_size`.
#[derive(Clone, Default)]
pub struct RaggedBatch {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub seqs: Vec<SeqRows>,
    pub block_tables: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub logits_rows: Vec<u32>,
    /// Rows whose hidden state behind the final norm is wanted, ascending.
    pub hidden_rows: Vec<u32>,
    /// Rows that run with adapters (`adapt`).
    pub adapted: Vec<Adapted>,
    pub draws: Draws,
    /// The last so many sequences repeat another's only row (`pad`): nobody reads their results.
    pub padding: usize,
}

/// How tokens are drawn where the logits lie.
#[derive(Clone, Debug, Default)]
pub struct Draws {
    /// From each of `logits_rows`; empty: none is.
    pub rows: Vec<Option<Draw>>,
    /// What changes logits before, each row's one behind the other.
    pub edits: Vec<Edit>,
    /// Tokens that reports are to have, each row's one behind the other.
    pub listed: Vec<u32>,
    /// Words of all reports.
    pub report_words: usize,
}

/// What changes the logit of one token: it becomes `logit + bias`; then, where `count` is above 0, what the penalties of its
/// `Draw` make of it, which the output has `count - 1` times.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Edit {
    pub token: u32,
    pub count: u32,
    pub bias: f32,
}

/// Of a row, at most: a longer list costs more than its logits do.
pub const MAX_EDITS: usize = 8192;

/// What is to be told of a row besides its token, for log probabilities to be made of it: of its logits before edits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// So many of the most likely tokens, at most `MAX_TOPS`.
    pub tops: u32,
    /// The first of `Draws::listed`, and the end, at most `MAX_LISTED` later.
    pub listed: (u32, u32),
    /// The first of the step's words.
    pub at: u32,
}

/// Of a report, at most.
pub const MAX_TOPS: usize = 32;
pub const MAX_LISTED: usize = 256;

/// What a `Report` told.
#[derive(Clone, Copy, Debug)]
pub struct Reported<'a> {
    /// The sum of `e^(logit - max)` in the CPU's order (`kernels::rows::logits::weigh`).
    pub mass: f64,
    /// The greatest logit.
    pub max: f32,
    /// The drawn token's.
    pub logit: f32,
    likely: &'a [u64],
}

impl Report {
    /// The mass, the two logits, and a word for each token.
    pub const MOST_WORDS: usize = 2 + MAX_TOPS + MAX_LISTED;

    fn words(&self) -> usize {
        2 + self.tops as usize + (self.listed.1 - self.listed.0) as usize
    }

    /// What stands in the step's words.
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
    /// The most likely tokens in descending order, the lower id among equals, `u32::MAX` where there are no more; then the
    /// listed ones. With their logits.
    pub fn likely(&self) -> impl Iterator<Item = (u32, f32)> + 'a {
        self.likely.iter().map(|word| (*word as u32, f32::from_bits((word >> 32) as u32)))
    }
}

impl Draws {
    /// The report behind all others, with so many of the most likely tokens and these ones. `OutOfMemory`.
    pub fn report(&mut self, tops: u32, listed: &[u32]) -> Result<Report> {
        reserve(&mut self.listed, listed.len(), "a step's tokens")?;
        let first = self.listed.len() as u32;
        self.listed.extend_from_slice(listed);
        let report = Report { tops, listed: (first, self.listed.len() as u32), at: self.report_words as u32 };
        self.report_words += report.words();
        Ok(report)
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.edits.clear();
        self.listed.clear();
        self.report_words = 0;
    }
}

/// A draw of a token from a row of logits, as `sample::Sampler` does it where a request asks for no more than this, in the
/// default order of filters; and what is told of the row besides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0: the most likely token.
    pub temperature: f32,
    /// 0: all.
    pub top_k: u32,
    /// 1: all.
    pub top_p: f32,
    /// 0: all.
    pub min_p: f32,
    pub seed: u64,
    /// Of the token in its sequence.
    pub position: u64,
    /// Penalties of the tokens that `edits` count, as `SamplingParams` has them.
    pub repetition: f32,
    pub frequency: f32,
    pub presence: f32,
    /// The first of `Draws::edits`, and the end: of different tokens of the vocabulary.
    pub edits: (u32, u32),
    pub report: Option<Report>,
}

impl Default for Draw {
    /// The most likely token.
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

/// Where a step's logits go, and the tokens drawn from them.
pub struct Head<'a> {
    /// A row for each of `logits_rows` at least. Of those that tokens were drawn from, what stands there means nothing.
    pub logits: &'a mut Vec<f32>,
    /// The token of each row that has a draw, or what is wrong with it (`sample::drawn`); empty where none was drawn.
    pub tokens: &'a mut Vec<i32>,
    /// `Draws::report_words`; those of a row whose token says what is wrong mean nothing.
    pub reports: &'a mut Vec<u64>,
    pub draws: &'a Draws,
}

impl RaggedBatch {
    /// Room for `rows` of `seqs` sequences, `logits` of which give logits. `OutOfMemory`.
    pub fn reserve(&mut self, rows: usize, seqs: usize, logits: usize) -> Result<()> {
        reserve(&mut self.tokens, rows, "a step's tokens")?;
        reserve(&mut self.positions, rows, "a step's positions")?;
        reserve(&mut self.seqs, seqs, "a step's sequences")?;
        reserve(&mut self.logits_rows, logits, "a step's rows")
    }

    /// Whether each row ends a sequence of one row and gives logits and nothing else.
    pub fn decodes(&self) -> bool {
        let rows = self.tokens.len();
        let plain = self.hidden_rows.is_empty() && self.adapted.is_empty();
        plain && self.seqs.len() == rows && self.logits_rows.len() == rows
    }

    /// Makes a decode step that tokens are drawn in, and no other, one of `rows` rows at least. New ones repeat the row with
    /// the shortest context, blocks and all: what they write to the KV cache is what it writes. Without memory
    /// for them it stays as it is.
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

    /// Adds `rows` rows of a sequence with this block table, from position `start` on, and returns the first one's number.
    /// Their tokens are the caller's to add. `OutOfMemory`.
    pub fn push_seq(&mut self, table: &[u32], start: u32, rows: u32) -> Result<u32> {
        reserve(&mut self.block_tables, table.len(), "a step's block tables")?;
        let row = self.tokens.len() as u32;
        let (first, table_len) = (self.block_tables.len() as u32, table.len() as u32);
        self.seqs.push(SeqRows { row, rows, table: first, table_len });
        self.block_tables.extend_from_slice(table);
        self.positions.extend(start..start + rows);
        Ok(row)
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.block_tables.clear();
        self.logits_rows.clear();
        self.hidden_rows.clear();
        self.adapted.clear();
        self.draws.clear();
        self.padding = 0;
    }
}
