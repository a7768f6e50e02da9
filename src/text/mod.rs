//! Tokenizers and streaming UTF-8.

mod bpe;
mod bytes;
pub mod chat;
#[cfg(test)]
mod golden;
mod special;
mod split;
#[cfg(test)]
mod tests;
mod utf8;
mod vocab;

pub use chat::{ChatTemplate, Message};
pub use utf8::Utf8Stream;

use crate::base::{Error, Result};
use crate::formats::Gguf;
use bytes::TokenBytes;
use special::Specials;

/// Text to token ids and back. Immutable: any number of threads may use one at once.
pub struct Tokenizer {
    kind: Kind,
    /// What each id stands for.
    bytes: TokenBytes,
    /// Control and user-defined tokens as they are written out.
    specials: Specials,
    bos: Option<u32>,
    /// The token that begins every prompt; `bos` where the model's metadata asks for it.
    first: Option<u32>,
    /// Sorted.
    ends: Vec<u32>,
    /// See [`Tokenizer::longest_token`].
    longest: usize,
}

enum Kind {
    /// One token a byte.
    Bytes,
    Bpe(Box<bpe::Bpe>),
}

/// The byte tokenizer's end token.
const BYTES_END: u32 = 256;
/// The byte tokenizer's separator, put behind every prompt.
const BYTES_SEPARATOR: u32 = 257;

impl Tokenizer {
    /// The tokenizer of `gguf`, None where the file has none. `log` hears what was guessed.
    ///
    /// `Unsupported` for a kind that this build doesn't read, or a split rule that it doesn't know (the model
    /// may still run on token ids); `BadModel` where the metadata contradict each other, naming the key.
    pub fn from_gguf(gguf: &Gguf, log: &dyn Fn(&str)) -> Result<Option<Self>> {
        vocab::load(gguf, log)
    }

    /// The echo model's: ids 0..=255 are bytes, 256 ends a generation, 257 separates the prompt (appended when
    /// `add_special`) from the reply.
    pub fn bytes() -> Result<Self> {
        let mut bytes = TokenBytes::new(258)?;
        for byte in 0..=255u8 {
            bytes.push(&[byte])?;
        }
        bytes.push(b"")?;
        bytes.push(b"")?;
        let specials = Specials::new(std::iter::empty());
        Ok(Self {
            kind: Kind::Bytes,
            bytes,
            specials,
            bos: None,
            first: None,
            ends: vec![BYTES_END],
            longest: 1,
        })
    }

    /// Token ids of `text`, with the BOS that the model's metadata asks for when `add_special`;
    /// special tokens written out in the text are recognised only when `parse_special`. A text that then begins
    /// with that BOS, as a chat template's does, gets no second one.
    ///
    /// At most one id per byte and one more. `TooLong` for a run of letters, spaces or signs without a break
    /// that is longer than 256 KiB; `Unsupported` for a byte that the vocabulary has no token for.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let bpe = match &self.kind {
            Kind::Bpe(bpe) => bpe,
            Kind::Bytes => {
                let too_much = |_| Error::out_of_memory("token ids", text.len().saturating_mul(4));
                ids.try_reserve_exact(text.len() + 1).map_err(too_much)?;
                ids.extend(text.bytes().map(u32::from));
                ids.extend(add_special.then_some(BYTES_SEPARATOR));
                return Ok(ids);
            }
        };
        let begins = |bos| parse_special && self.specials.at_start(text) == Some(bos);
        ids.extend(self.first.filter(|&bos| add_special && !begins(bos)));
        let mut rest = text;
        if parse_special {
            while let Some((start, end, id)) = self.specials.find(rest) {
                bpe.encode(&rest[..start], &mut ids)?;
                ids.push(id);
                rest = &rest[end..];
            }
        }
        bpe.encode(rest, &mut ids)?;
        Ok(ids)
    }

    /// The first control token that `text` holds, written out.
    pub fn control_token_in(&self, text: &str) -> Option<u32> {
        let mut rest = text;
        while let Some((_, end, id)) = self.specials.find(rest) {
            if self.token_bytes(id).is_some_and(<[u8]>::is_empty) {
                return Some(id);
            }
            rest = &rest[end..];
        }
        None
    }

    /// The bytes that token `id` stands for; empty for control tokens. None when out of range.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// The most bytes of text that one token can stand for, special tokens' written forms included: a text of
    /// n bytes has at least n / this many tokens.
    pub fn longest_token(&self) -> usize {
        self.longest
    }

    /// Heap bytes that the tables take, at their peak while loading: about 630 a token measured for BPE, whose
    /// vocabulary and merges the `tokenizers` crate keeps both ways.
    pub fn table_bytes(&self) -> usize {
        match self.kind {
            Kind::Bytes => 16 << 10,
            Kind::Bpe(_) => 640 * self.vocab_size(),
        }
    }

    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that end a generation (EOS, end of turn).
    pub fn end_tokens(&self) -> &[u32] {
        &self.ends
    }

    /// Bytes of `ids` joined, invalid UTF-8 replaced by U+FFFD. `InvalidArgument` naming an id out of range.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let mut utf8 = Utf8Stream::default();
        let mut out = String::new();
        for &id in ids {
            let bytes = self.token_bytes(id).ok_or_else(|| {
                Error::invalid(format!(
                    "token id {id} is out of range, the vocabulary has {}",
                    self.vocab_size()
                ))
            })?;
            // A replacement character is three bytes long for one.
            let need = 3 * bytes.len() + 3;
            out.try_reserve(need).map_err(|_| Error::out_of_memory("decoded text", need))?;
            utf8.push(bytes, &mut out);
        }
        utf8.finish(&mut out);
        Ok(out)
    }
}
