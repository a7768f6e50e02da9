//! Byte-level BPE with the `tokenizers` package: its regex engine cuts the text, its merges make the tokens.
//!
//! Its own pipeline (`PreTokenizedString`, `Encoding`) keeps several copies of every word with offsets, some
//! hundred bytes for each byte of text; here one word is in flight at a time.

use super::bytes::ByteMap;
use super::split::SplitRule;
use crate::base::{Error, Result, Status};
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::utils::SysRegex;

/// Longest word merged. Merging takes n log n time and about 130 bytes of scratch per byte of the word; a run
/// of a quarter million letters or spaces without a cut is no language.
pub(super) const MAX_WORD_BYTES: usize = 256 * 1024;

pub(super) struct Bpe {
    split: SysRegex,
    model: BPE,
    map: ByteMap,
    /// Whether the vocabulary has a token for the byte alone. Where it has none, the package would drop the
    /// byte without a word.
    known: [bool; 256],
}

impl Bpe {
    /// The parts and the whole of each merge must be in `vocab`: the caller has checked.
    pub fn new(rule: SplitRule, vocab: Vocab, merges: Vec<(String, String)>) -> Result<Self> {
        let failed = |e| Error::internal(format!("the tokenizer could not be built: {e}"));
        let map = ByteMap::new();
        let known =
            std::array::from_fn(|b| vocab.contains_key(map.char(b as u8).encode_utf8(&mut [0; 4]) as &str));
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(rule.ignores_merges())
            // The package's cache lives in thread locals of every thread that calls, and outlives the model.
            .cache_capacity(0)
            .build()
            .map_err(failed)?;
        Ok(Self { split: SysRegex::new(rule.pattern()).map_err(failed)?, model, map, known })
    }

    /// Appends the tokens of `text`, in which nothing is special.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let mut word = String::new();
        let mut done = 0;
        for (start, end) in self.split.find_iter(text) {
            if start != done {
                break;
            }
            self.encode_word(&text[start..end], &mut word, ids)?;
            done = end;
        }
        if done == text.len() {
            return Ok(());
        }
        // The patterns match every character, so the engine stopped at its backtracking limit; its iterator
        // ends there without an error.
        Err(too_long(text.len() - done))
    }

    fn encode_word(&self, text: &str, word: &mut String, ids: &mut Vec<u32>) -> Result<()> {
        if text.len() > MAX_WORD_BYTES {
            return Err(too_long(text.len()));
        }
        word.clear();
        for byte in text.bytes() {
            if !self.known[byte as usize] {
                return Err(Error::unsupported(format!(
                    "the text holds byte 0x{byte:02x}, for which the model's vocabulary has no token"
                )));
            }
            word.push(self.map.char(byte));
        }
        let tokens =
            self.model.tokenize(word).map_err(|e| Error::internal(format!("tokenizing failed: {e}")))?;
        ids.try_reserve(tokens.len())
            .map_err(|_| Error::out_of_memory("token ids", text.len().saturating_mul(4)))?;
        ids.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }
}

fn too_long(bytes: usize) -> Error {
    Error::new(
        Status::TooLong,
        format!(
            "the text holds a run of up to {bytes} bytes of one kind (letters, spaces or signs) without a break; \
             at most {MAX_WORD_BYTES} are tokenized"
        ),
    )
}
