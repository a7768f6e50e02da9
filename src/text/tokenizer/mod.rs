//! Tokenizers: byte-level and SentencePiece BPE, from GGUF and from `tokenizer.json`.

mod bpe;
mod bytes;
mod decoder;
mod export;
#[cfg(test)]
mod golden;
mod json;
mod json_model;
mod json_names;
#[cfg(test)]
mod json_tests;
mod json_text;
mod marked;
#[cfg(test)]
mod marked_tests;
mod matcher;
#[cfg(test)]
mod matcher_tests;
mod part;
mod pipeline;
mod special;
mod split;
mod spm;
#[cfg(test)]
mod spm_tests;
#[cfg(test)]
mod tests;
mod vocab;
mod vocab_json;

pub use export::{end_token_pairs, tokenizer_pairs};
pub use json::{JsonFiles, only_sentencepiece};
pub use json_names::{token_ids, token_text};
pub use part::fields_of;
pub use vocab::end_tokens as end_tokens_of_gguf;

use crate::base::{Error, Result, reserve, reserved};
use crate::formats::Gguf;
use crate::text::{Utf8Stream, watch};
use bytes::{TokenBytes, shown};
use special::Specials;

/// Text to token ids and back. Immutable: any number of threads may use one at once.
pub struct Tokenizer {
    kind: Kind,
    /// The bytes that each id stands for.
    bytes: TokenBytes,
    /// Control tokens and user-defined tokens, by their written forms.
    specials: Specials,
    /// The user-defined tokens among these, which are recognized in every text.
    always: Specials,
    bos: Option<u32>,
    /// The tokens that begin every prompt; `bos` if the model's metadata ask for it.
    first: Vec<u32>,
    /// Tokens that the files append to a complete text; see [`Tokenizer::encode_whole`].
    last: Vec<u32>,
    /// See [`Tokenizer::encode_pair`].
    pair: Option<Pair>,
    /// Sorted.
    ends: Vec<u32>,
    /// See [`Tokenizer::longest_token`].
    longest: usize,
    /// See [`Tokenizer::fewest_tokens`]; `usize::MAX` if one token can stand for a text of any length.
    text_of_a_token: usize,
    /// The first token of a text has a space before it, which [`Tokenizer::decode`] removes.
    space_prefix: bool,
    /// See [`Tokenizer::table_bytes`].
    table_bytes: usize,
    /// See [`Tokenizer::cut_to`].
    beyond: Vec<(u32, String)>,
}

/// The tokens around two texts.
struct Pair {
    before: Vec<u32>,
    between: Vec<u32>,
    behind: Vec<u32>,
    /// The first of `between` that counts as the second text's. `None`: the texts are not told apart.
    typed: Option<usize>,
}

enum Kind {
    /// One token per byte.
    Bytes,
    Bpe(Box<bpe::Bpe>),
    Spm(Box<spm::Spm>),
    Json(Box<json_text::Json>),
}

fn append(ids: &mut Vec<u32>, more: &[u32]) -> Result<()> {
    reserve(ids, more.len(), "token ids")?;
    ids.extend_from_slice(more);
    Ok(())
}

/// The byte tokenizer's end token.
const BYTES_END: u32 = 256;
/// The byte tokenizer's separator, appended to every prompt.
const BYTES_SEPARATOR: u32 = 257;

impl Tokenizer {
    /// The tokenizer of `gguf`; None if the file has none. `log` receives a line for each guess.
    ///
    /// `Unsupported` for a kind that this build does not read, or a split rule that it does not know (the model
    /// may still run on token ids). `BadModel`, naming the key, if the metadata contradict each other.
    pub fn from_gguf(gguf: &Gguf, log: &dyn Fn(&str)) -> Result<Option<Self>> {
        watch::install();
        vocab::load(gguf, log)
    }

    /// The tokenizer of a Hugging Face folder. `what` is its name in messages; `log` receives a line for each
    /// guess or omission.
    ///
    /// `Unsupported` for a model that is not BPE, or a part that this build does not read. `BadModel`, naming file
    /// and field, for a file that is not a tokenizer or contradicts itself.
    pub fn from_json(files: &JsonFiles, what: &str, log: &dyn Fn(&str)) -> Result<Self> {
        watch::install();
        json::load(files, what, log)
    }

    /// The tokenizer of the echo model: ids 0..=255 are bytes, 256 ends a generation, 257 separates the prompt
    /// (appended when `add_special`) from the reply.
    pub fn bytes() -> Result<Self> {
        watch::install();
        let mut bytes = TokenBytes::new(258)?;
        for byte in 0..=255u8 {
            bytes.push(&[byte])?;
        }
        bytes.push(b"")?;
        bytes.push(b"")?;
        let none = || Specials::new(std::iter::empty());
        Ok(Self {
            kind: Kind::Bytes,
            bytes,
            specials: none()?,
            always: none()?,
            bos: None,
            first: Vec::new(),
            last: Vec::new(),
            pair: None,
            ends: vec![BYTES_END],
            longest: 1,
            text_of_a_token: 1,
            space_prefix: false,
            table_bytes: 16 << 10,
            beyond: Vec::new(),
        })
    }

    /// Token ids of `text`. With `add_special`, they begin with the BOS that the model's metadata ask for, unless
    /// the text itself begins with this token, as a chat template's does. They never end with an EOS, since the
    /// text is to be continued. Control tokens written out in the text are recognized only with `parse_special`,
    /// user-defined ones (which stand for their text) always.
    ///
    /// A vocabulary that puts a space before a text also puts one after a special token, as llama.cpp and the
    /// `tokenizer.json` of Llama 1 and 2 do. A `tokenizer.json` follows its own rules.
    ///
    /// `TooLong` for an unbroken run of letters, spaces or signs of more than 256 KiB, or more than 2 MiB in
    /// vocabularies by score. Characters that the vocabulary cannot spell become its unknown token, or are left out
    /// if it has none, as `tokenizers` leaves them out.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let whole = [(0, text)];
        self.encode_parts(text, if parse_special { &whole } else { &[] }, add_special)
    }

    /// Like [`Self::encode`] with `add_special`, for a text that is not continued, such as one to embed: appends
    /// the tokens that the files ask for (EOS, in most embedding models). If the text already ends with this one
    /// token, written out, it is not appended again.
    pub fn encode_whole(&self, text: &str, parse_special: bool) -> Result<Vec<u32>> {
        let mut ids = self.encode(text, true, parse_special)?;
        let ends = parse_special && self.last.len() == 1 && ids.last() == self.last.first();
        if !ends {
            append(&mut ids, &self.last)?;
        }
        Ok(ids)
    }

    /// Token ids of two texts, with the tokens that the files put around and between them; and the position from which
    /// tokens have another type, if they do. `Unsupported` if the files do not say how.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, Option<u32>)> {
        let Some(Pair { before, between, behind, typed }) = &self.pair else {
            return Err(Error::unsupported(
                "the tokenizer's files do not say how two texts are put together",
            ));
        };
        let mut ids = Vec::new();
        append(&mut ids, before)?;
        append(&mut ids, &self.encode(first, false, false)?)?;
        let from = typed.map(|typed| (ids.len() + typed) as u32);
        append(&mut ids, between)?;
        append(&mut ids, &self.encode(second, false, false)?)?;
        append(&mut ids, behind)?;
        Ok((ids, from))
    }

    /// The bytes that token `id` stands for; empty for control tokens. None if out of range.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// The bytes of token `id` by itself: those that it stands for, or the written form of a control token. Keeps
    /// a leading space, and parts of a character. Empty for tokens without a written form: padding of a
    /// vocabulary, and the byte tokenizer's two. None if out of range.
    pub fn token_piece(&self, id: u32) -> Option<&[u8]> {
        self.bytes.written(id)
    }

    /// The control token with this written form.
    pub fn control_token(&self, written: &str) -> Option<u32> {
        let id = self.specials.at_start(written)?;
        let whole = self.token_piece(id) == Some(written.as_bytes());
        (whole && self.token_bytes(id).is_some_and(<[u8]>::is_empty)).then_some(id)
    }

    /// Maximum number of bytes that one token stands for in [`Self::token_bytes`], or is written with.
    pub fn longest_token(&self) -> usize {
        self.longest
    }

    /// A number of tokens that `text` has at least, without tokenizing it. A token usually stands for a bounded
    /// length, but composing characters shortens a text, some tokenizers make one token of any run that they do not
    /// know, and others leave bytes out.
    pub fn fewest_tokens(&self, text: &str) -> usize {
        let bytes = match &self.kind {
            Kind::Bpe(bpe) => bpe.spelled(text),
            Kind::Bytes | Kind::Spm(_) | Kind::Json(_) => text.len(),
        };
        bytes / self.text_of_a_token
    }

    /// Heap bytes of the tables at their peak while loading, as measured for each kind.
    pub fn table_bytes(&self) -> usize {
        self.table_bytes
    }

    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// Pads the vocabulary with ids up to `n` that stand for nothing: models often have more tokens than their
    /// tokenizer.
    pub fn pad_to(&mut self, n: usize) -> Result<()> {
        let more = self.bytes.pad_to(n)?;
        self.table_bytes += more;
        Ok(())
    }

    /// Leaves the tokens out from `n` on, which a model of `n` tokens has no embeddings of, and returns their written
    /// forms. They must be special or user-defined; a text in which one is recognized is refused.
    ///
    /// `BadModel` if one is an ordinary token, or one that the files put around texts.
    pub fn cut_to(&mut self, n: usize) -> Result<Vec<&str>> {
        let cut = |id: u32| id as usize >= n;
        let around = self.pair.iter().flat_map(|pair| [&pair.before, &pair.between, &pair.behind]);
        let around = around.chain([&self.first, &self.last]).flatten().chain(&self.bos);
        let mut fine = !around.copied().any(cut);
        for id in n as u32..self.vocab_size() as u32 {
            let written = self.token_piece(id).and_then(|bytes| std::str::from_utf8(bytes).ok());
            match written.filter(|written| self.specials.at_start(written) == Some(id)) {
                Some(written) => self.beyond.push((id, written.to_owned())),
                // Unused ids are written as nothing.
                None => fine &= written == Some(""),
            }
        }
        if !fine {
            let more = self.vocab_size();
            return Err(Error::bad_model(format!("the tokenizer has {more} tokens, the model {n}")));
        }
        self.bytes.cut_to(n);
        self.ends.retain(|&id| !cut(id));
        Ok(self.beyond.iter().map(|(_, written)| written.as_str()).collect())
    }

    /// Checks that the model has the tokens `ids` of a text.
    fn checked(&self, ids: Vec<u32>) -> Result<Vec<u32>> {
        match self.beyond.iter().find(|(id, _)| ids.contains(id)) {
            None => Ok(ids),
            Some((id, written)) => Err(Error::unsupported(format!(
                "the text holds '{}', token {id}, and the model has {} tokens",
                shown(written),
                self.vocab_size()
            ))),
        }
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that end a generation (EOS, end of turn).
    pub fn end_tokens(&self) -> &[u32] {
        &self.ends
    }

    /// Decodes `ids`: their bytes joined, with invalid UTF-8 replaced by U+FFFD. If the vocabulary puts a space
    /// before every text, that space is removed, so that a text comes back unchanged. A stream of
    /// [`Self::token_bytes`] keeps it, because a continuation of a prompt begins with a space of its own.
    /// `InvalidArgument`, naming the id, if one is out of range.
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
            // A replacement character has three bytes for one.
            let need = 3 * bytes.len() + 3;
            reserved(out.try_reserve(need), "decoded text", need)?;
            utf8.push(bytes, &mut out);
        }
        utf8.finish(&mut out);
        if self.space_prefix && out.starts_with(' ') {
            out.remove(0);
        }
        Ok(out)
    }
}
