//! Byte-level BPE: a split rule cuts the text into words, and the `tokenizers` package merges each word into
//! tokens.
//!
//! The package's own pipeline (`PreTokenizedString`, `Encoding`) keeps several copies of every word with offsets,
//! some hundred bytes for each byte of text. Here one word is in flight at a time.

use super::bytes::ByteMap;
use super::split::{MAX_WORD_BYTES, Rule, Splitter, byte_digits, too_long};
use crate::base::{Error, Result, reserve, reserved};
use std::ops::RangeInclusive;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// The bytes that occur in UTF-8.
const UTF8_BYTES: [RangeInclusive<u8>; 2] = [0..=0xbf, 0xc2..=0xf4];

pub(super) struct Bpe {
    splitter: Splitter,
    byte_digits: bool,
    pub nfc: bool,
    model: BPE,
    map: ByteMap,
    /// Bytes that have a token of their own. The package ignores all others in a text.
    known: [bool; 256],
}

impl Bpe {
    /// The caller has checked that the parts and the result of each merge are in `vocab`.
    pub(super) fn new(rule: &Rule, vocab: Vocab, merges: Vec<(String, String)>) -> Result<Self> {
        let failed = |e| Error::internal(format!("the tokenizer could not be built: {e}"));
        let map = ByteMap::new();
        let known =
            std::array::from_fn(|b| vocab.contains_key(map.char(b as u8).encode_utf8(&mut [0; 4]) as &str));
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(rule.ignore_merges)
            // The package's cache lives in thread locals of every calling thread and outlives the model.
            .cache_capacity(0)
            .build()
            .map_err(failed)?;
        Ok(Self {
            splitter: rule.splitter()?,
            byte_digits: rule.byte_digits,
            nfc: rule.nfc,
            model,
            map,
            known,
        })
    }

    /// Number of bytes of `text` that its tokens stand for at least, before it is composed.
    pub(super) fn spelled(&self, text: &str) -> usize {
        let known = |&byte: &u8| self.known[byte as usize];
        match self.nfc {
            // A composed character has other bytes.
            true if !UTF8_BYTES.iter().all(|range| range.clone().all(|byte| known(&byte))) => 0,
            true => text.len(),
            false => text.as_bytes().iter().filter(|byte| known(byte)).count(),
        }
    }

    /// Appends the tokens of `text`, which has no special tokens.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let composed;
        let mut text = text;
        if self.nfc && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            composed = compose(text)?;
            text = &composed;
        }
        let mut word = String::new();
        self.splitter.words(text, &mut |piece| match self.byte_digits {
            true => byte_digits(piece.as_bytes(), &mut |piece| self.encode_word(piece, &mut word, ids)),
            false => self.encode_word(piece.as_bytes(), &mut word, ids),
        })
    }

    fn encode_word(&self, text: &[u8], word: &mut String, ids: &mut Vec<u32>) -> Result<()> {
        if text.len() > MAX_WORD_BYTES {
            return Err(too_long(text.len()));
        }
        word.clear();
        word.extend(text.iter().map(|&byte| self.map.char(byte)));
        let tokens =
            self.model.tokenize(word).map_err(|e| Error::internal(format!("tokenizing failed: {e}")))?;
        reserve(ids, tokens.len(), "token ids")?;
        ids.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }
}

/// Converts to Unicode's normalization form C, which is at most three times as long.
fn compose(text: &str) -> Result<String> {
    let mut out = String::new();
    reserved(out.try_reserve(text.len()), "composed text", text.len())?;
    for (c, _) in text.nfc() {
        reserved(out.try_reserve(4), "composed text", text.len())?;
        out.push(c);
    }
    Ok(out)
}
