//! SentencePiece's byte-pair encoding (`tokenizer.ggml.model` "llama"). Of all neighbors that form a token
//! together, the pair whose token scores best is merged, the leftmost on a tie, until there is none. Symbols that
//! are not tokens then are spelled in byte tokens.
//!
//! Pieces write U+2581 for a space. Tables and texts here hold spaces, and a U+2581 in a text counts as one.

use crate::base::{Error, Result, Status, reserve, reserved};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// Maximum length of a stretch that is merged at once; each byte takes about 100 bytes of scratch. If no token
/// goes on past the end of a word (in all vocabularies that cut at white space), a stretch is a word and the
/// spaces before it, else the whole text.
pub(super) const MAX_STRETCH_BYTES: usize = 2 << 20;

/// How `tokenizer.ggml.*` asks for text to be prepared.
#[derive(Clone, Copy)]
pub(super) struct Spaces {
    /// Put a space before the text and after each special token (`add_space_prefix`).
    pub prefix: bool,
    /// Reduce runs of spaces to one, and remove them at both ends (`remove_extra_whitespaces`).
    pub squeeze: bool,
}

pub(super) struct Spm {
    /// Token and score of each text that merging may produce, with spaces for U+2581.
    pieces: HashMap<Box<str>, (u32, f32)>,
    /// The ids that spell bytes.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    pub spaces: Spaces,
    /// No piece holds a space after another character.
    cut_at_spaces: bool,
    /// Number of bytes of the longest piece.
    longest: usize,
}

/// A stretch of text that is a token or a character. `len` is 0 if it was merged into the one before.
struct Symbol {
    start: u32,
    len: u32,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// Two neighbors that form a token together.
struct Pair {
    score: f32,
    left: u32,
    /// Length of both together. If it differs now, one of them has changed.
    len: u32,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

/// The text of a piece, with spaces for U+2581.
pub(super) fn spaced(piece: &str) -> String {
    piece.replace('\u{2581}', " ")
}

impl Spm {
    /// `pieces`: id, text as the vocabulary writes it, score. The first of equal texts counts. `OutOfMemory`.
    pub(super) fn new<'a>(
        pieces: impl Iterator<Item = (u32, &'a str, f32)>,
        bytes: [Option<u32>; 256],
        unknown: Option<u32>,
        spaces: Spaces,
    ) -> Result<Self> {
        let mut table: HashMap<Box<str>, (u32, f32)> = HashMap::new();
        for (id, piece, score) in pieces {
            reserved(table.try_reserve(1), "the vocabulary", 32 * table.len())?;
            // Adding 0.0 makes -0.0 equal to 0.0.
            table.entry(spaced(piece).into_boxed_str()).or_insert((id, score + 0.0));
        }
        let crosses = |piece: &str| piece.trim_start_matches(' ').contains(' ');
        Ok(Self {
            cut_at_spaces: !table.keys().any(|piece| crosses(piece)),
            longest: table.keys().map(|piece| piece.len()).max().unwrap_or(0),
            pieces: table,
            bytes,
            unknown,
            spaces,
        })
    }

    /// Returns whether each byte has a token, so that no two ever share one.
    pub(super) fn spells_all_bytes(&self) -> bool {
        self.bytes.iter().all(Option::is_some)
    }

    /// Appends the tokens of `text`, which has no special tokens.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let text = self.prepare(text)?;
        let mut rest = text.as_str();
        let first = ids.len();
        while !rest.is_empty() {
            let (stretch, behind) = rest.split_at(self.stretch(rest));
            self.merge(stretch, first, ids)?;
            rest = behind;
        }
        Ok(())
    }

    fn prepare(&self, text: &str) -> Result<String> {
        let mut out = String::new();
        if text.is_empty() {
            return Ok(out);
        }
        reserved(out.try_reserve_exact(text.len() + 1), "text to tokenize", text.len() + 1)?;
        if self.spaces.prefix {
            out.push(' ');
        }
        // For squeezing, a U+2581 in the text does not count as a space, except at the end.
        let mut after_space = true;
        for c in text.chars() {
            if !(self.spaces.squeeze && c == ' ' && after_space) {
                out.push(if c == '\u{2581}' { ' ' } else { c });
            }
            after_space = c == ' ';
        }
        if self.spaces.squeeze {
            out.truncate(out.trim_end_matches(' ').len());
        }
        Ok(out)
    }

    /// Number of bytes of `text` up to where no merge can cross: a space after another character.
    fn stretch(&self, text: &str) -> usize {
        let bytes = text.as_bytes();
        let end = bytes.windows(2).position(|pair| pair[0] != b' ' && pair[1] == b' ');
        end.filter(|_| self.cut_at_spaces).map_or(text.len(), |at| at + 1)
    }

    /// Appends the tokens of one stretch. `first` is the index of the text's first token.
    fn merge(&self, text: &str, first: usize, ids: &mut Vec<u32>) -> Result<()> {
        if text.len() > MAX_STRETCH_BYTES {
            return Err(Error::new(
                Status::TooLong,
                format!(
                    "the text holds {} bytes in which the vocabulary shows no place to cut; at most \
                     {MAX_STRETCH_BYTES} are tokenized at once",
                    text.len()
                ),
            ));
        }
        let mut symbols = characters(text)?;
        let mut pairs = BinaryHeap::new();
        // Each merge removes a pair and adds at most two, and there are fewer merges than characters.
        let most = 2 * symbols.len();
        reserved(pairs.try_reserve(most), "merging", most * size_of::<Pair>())?;
        for left in 0..symbols.len() as u32 {
            pairs.extend(self.pair(text, &symbols, left));
        }
        while let Some(Pair { left, len, .. }) = pairs.pop() {
            let at = left as usize;
            let right = symbols[at].next;
            if symbols[at].len == 0 || right == NONE || symbols[at].len + symbols[right as usize].len != len {
                continue;
            }
            let behind = symbols[right as usize].next;
            symbols[right as usize].len = 0;
            symbols[at].len = len;
            symbols[at].next = behind;
            if behind != NONE {
                symbols[behind as usize].previous = left;
            }
            if symbols[at].previous != NONE {
                pairs.extend(self.pair(text, &symbols, symbols[at].previous));
            }
            pairs.extend(self.pair(text, &symbols, left));
        }
        let mut at = 0;
        while at != NONE {
            let Symbol { start, len, next, .. } = symbols[at as usize];
            self.spell(&text[start as usize..][..len as usize], first, ids)?;
            at = next;
        }
        Ok(())
    }

    /// The pair of the symbol `left` and its next neighbor, if they form a token.
    fn pair(&self, text: &str, symbols: &[Symbol], left: u32) -> Option<Pair> {
        let Symbol { start, len, next, .. } = symbols[left as usize];
        let len = len + symbols.get(next as usize)?.len;
        if len as usize > self.longest {
            return None;
        }
        let (_, score) = self.pieces.get(&text[start as usize..][..len as usize])?;
        Some(Pair { score: *score, left, len })
    }

    /// Appends a token, or the bytes of a character that is none, or the unknown token, if there is one, once for a
    /// run.
    fn spell(&self, symbol: &str, first: usize, ids: &mut Vec<u32>) -> Result<()> {
        reserve(ids, symbol.len(), "token ids")?;
        if let Some((id, _)) = self.pieces.get(symbol) {
            ids.push(*id);
            return Ok(());
        }
        // If a vocabulary lacks the space, SentencePiece writes it as the bytes of U+2581.
        let symbol = if symbol == " " { "\u{2581}" } else { symbol };
        if symbol.bytes().all(|byte| self.bytes[byte as usize].is_some()) {
            ids.extend(symbol.bytes().filter_map(|byte| self.bytes[byte as usize]));
            return Ok(());
        }
        ids.extend(self.unknown.filter(|unknown| ids[first..].last() != Some(unknown)));
        Ok(())
    }
}

fn characters(text: &str) -> Result<Vec<Symbol>> {
    let mut symbols: Vec<Symbol> = Vec::new();
    reserve(&mut symbols, text.chars().count(), "symbols")?;
    for (i, (start, c)) in (0u32..).zip(text.char_indices()) {
        symbols.push(Symbol {
            start: start as u32,
            len: c.len_utf8() as u32,
            previous: i.checked_sub(1).unwrap_or(NONE),
            next: i + 1,
        });
    }
    if let Some(last) = symbols.last_mut() {
        last.next = NONE;
    }
    Ok(symbols)
}
