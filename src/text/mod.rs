//! Tokenizers and streaming UTF-8.

mod bpe;
mod bytes;
pub mod chat;
mod decoder;
mod export;
#[cfg(test)]
mod golden;
mod json;
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
pub mod reply;
mod special;
mod split;
mod spm;
#[cfg(test)]
mod spm_tests;
#[cfg(test)]
mod tests;
mod utf8;
mod vocab;

pub use chat::{Chat, ChatTemplate, Message, Rendered};
pub use export::{end_token_pairs, tokenizer_pairs};
pub use json::{JsonFiles, only_sentencepiece};
pub use json_names::{token_ids, token_text};
pub use part::fields_of;
pub use utf8::Utf8Stream;
pub use vocab::end_tokens as end_tokens_of_gguf;

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
    /// The user-defined ones of them, which are found in every text.
    always: Specials,
    bos: Option<u32>,
    /// The tokens that begin every prompt; `bos` where the model's metadata asks for it.
    first: Vec<u32>,
    /// The tokens that the files put behind a text that is whole; see [`Tokenizer::encode_whole`].
    last: Vec<u32>,
    /// Sorted.
    ends: Vec<u32>,
    /// See [`Tokenizer::longest_token`].
    longest: usize,
    /// See [`Tokenizer::fewest_tokens`]; `usize::MAX` where one token can stand for any length.
    text_of_a_token: usize,
    /// Whether a text's first token has a space before it that [`Tokenizer::decode`] takes away.
    space_prefix: bool,
    /// See [`Tokenizer::table_bytes`].
    table_bytes: usize,
}

enum Kind {
    /// One token a byte.
    Bytes,
    Bpe(Box<bpe::Bpe>),
    Spm(Box<spm::Spm>),
    Json(Box<json_text::Json>),
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

    /// The tokenizer of a Hugging Face folder. `what` names it in messages, `log` hears what was guessed or left
    /// out.
    ///
    /// `Unsupported` for a model that isn't BPE or a part that this build doesn't read, `BadModel` for a file that
    /// is none or contradicts itself, naming file and field.
    pub fn from_json(files: &JsonFiles, what: &str, log: &dyn Fn(&str)) -> Result<Self> {
        json::load(files, what, log)
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
        let none = || Specials::new(std::iter::empty());
        Ok(Self {
            kind: Kind::Bytes,
            bytes,
            specials: none()?,
            always: none()?,
            bos: None,
            first: Vec::new(),
            last: Vec::new(),
            ends: vec![BYTES_END],
            longest: 1,
            text_of_a_token: 1,
            space_prefix: false,
            table_bytes: 16 << 10,
        })
    }

    /// Token ids of `text`, with the BOS that the model's metadata asks for when `add_special`, and never with an
    /// EOS behind it: what stands there is to go on;
    /// control tokens written out in the text are recognized only when `parse_special`, user-defined ones (which
    /// stand for their text) always. A text that then begins with that BOS, as a chat template's does, gets no
    /// second one.
    ///
    /// A vocabulary that puts a space before its texts gets one before what follows a special token too, as
    /// llama.cpp does and the `tokenizer.json` of Llama 1 and 2 says; a `tokenizer.json` does as it says.
    ///
    /// `TooLong` for a run of letters, spaces or signs without a break that is longer than 256 KiB, in
    /// vocabularies by score than 2 MiB; `Unsupported` for a byte that the vocabulary has no token for.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let mut ids = self.first_ids(add_special && !(parse_special && self.begins(text)))?;
        let forms = if parse_special { &self.specials } else { &self.always };
        match &self.kind {
            Kind::Bytes => marked::byte_ids(text, add_special, &mut ids)?,
            Kind::Bpe(bpe) => self.between(forms, text, &mut ids, |text, ids| bpe.encode(text, ids))?,
            Kind::Spm(spm) => self.between(forms, text, &mut ids, |text, ids| spm.encode(text, ids))?,
            Kind::Json(json) => json.encode(text, parse_special, &mut ids)?,
        }
        Ok(ids)
    }

    /// Whether `text` begins with the one token that begins every prompt, written out.
    fn begins(&self, text: &str) -> bool {
        self.first.len() == 1 && self.specials.at_start(text) == Some(self.first[0])
    }

    /// The ids of a prompt before those of its text.
    fn first_ids(&self, wanted: bool) -> Result<Vec<u32>> {
        let (mut ids, first) = (Vec::new(), if wanted { &self.first[..] } else { &[] });
        ids.try_reserve(first.len()).map_err(|_| Error::out_of_memory("token ids", 4 * first.len()))?;
        ids.extend_from_slice(first);
        Ok(ids)
    }

    /// As [`Self::encode`] with `add_special`, of a text that nothing is to follow, as an embedding's: behind it stand
    /// the tokens that the files put there (EOS, in most embedding models). A text that ends with that one token,
    /// written out, gets no second one.
    pub fn encode_whole(&self, text: &str, parse_special: bool) -> Result<Vec<u32>> {
        let mut ids = self.encode(text, true, parse_special)?;
        let ends = parse_special && self.last.len() == 1 && ids.last() == self.last.first();
        if !ends {
            let more = self.last.len();
            ids.try_reserve(more).map_err(|_| Error::out_of_memory("token ids", 4 * more))?;
            ids.extend_from_slice(&self.last);
        }
        Ok(ids)
    }

    /// The tokens of `forms` as they are, and by `encode` what lies between them.
    fn between(
        &self,
        forms: &Specials,
        text: &str,
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let mut rest = text;
        while let Some((start, end, id)) = forms.find(rest) {
            encode(&rest[..start], ids)?;
            marked::push_id(id, ids)?;
            rest = &rest[end..];
        }
        encode(rest, ids)
    }

    /// The bytes that token `id` stands for; empty for control tokens. None when out of range.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// The bytes of token `id` by itself: those that it stands for, or what a control token is written as; a space that the
    /// vocabulary puts before a text and a character's part are kept. Empty for what is not written at all: padding of
    /// a vocabulary, and the byte tokenizer's two. None when out of range.
    pub fn token_piece(&self, id: u32) -> Option<&[u8]> {
        self.bytes.written(id)
    }

    /// The control token that is written so.
    pub fn control_token(&self, written: &str) -> Option<u32> {
        let id = self.specials.at_start(written)?;
        let whole = self.token_piece(id) == Some(written.as_bytes());
        (whole && self.token_bytes(id).is_some_and(<[u8]>::is_empty)).then_some(id)
    }

    /// The most bytes that one token stands for in [`Self::token_bytes`] or is written with.
    pub fn longest_token(&self) -> usize {
        self.longest
    }

    /// A text of `bytes` bytes has at least so many tokens: most tokenizers stand for a bounded length each, but
    /// composing characters shortens a text, and some make one token of any run that they don't know.
    pub fn fewest_tokens(&self, bytes: usize) -> usize {
        bytes / self.text_of_a_token
    }

    /// Heap bytes that the tables take, at their peak while loading, as measured for each kind.
    pub fn table_bytes(&self) -> usize {
        self.table_bytes
    }

    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// Ids up to `n` belong to the vocabulary too, and stand for nothing: models often have more than their tokenizer.
    pub fn pad_to(&mut self, n: usize) -> Result<()> {
        let more = self.bytes.pad_to(n)?;
        self.table_bytes += more;
        Ok(())
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that end a generation (EOS, end of turn).
    pub fn end_tokens(&self) -> &[u32] {
        &self.ends
    }

    /// Bytes of `ids` joined, invalid UTF-8 replaced by U+FFFD. Where the vocabulary puts a space before every
    /// text, that one is taken away, so that a text comes back as it was; a stream of [`Self::token_bytes`] keeps
    /// it, for what goes on behind a prompt begins with a space of its own. `InvalidArgument` naming an id out
    /// of range.
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
        if self.space_prefix && out.starts_with(' ') {
            out.remove(0);
        }
        Ok(out)
    }
}
