//! Tokenizers and streaming UTF-8.

use crate::base::Result;

/// Text to token ids and back.
pub struct Tokenizer {}

impl Tokenizer {
    /// Token ids of `text`, with the BOS that the model's metadata asks for when `add_special`;
    /// special tokens written out in the text are recognised only when `parse_special`.
    pub fn encode(&self, _text: &str, _add_special: bool, _parse_special: bool) -> Result<Vec<u32>> {
        unimplemented!()
    }
    /// The bytes that token `id` stands for; empty for control tokens. None when out of range.
    pub fn token_bytes(&self, _id: u32) -> Option<&[u8]> {
        unimplemented!()
    }
    pub fn vocab_size(&self) -> usize {
        unimplemented!()
    }
    pub fn bos(&self) -> Option<u32> {
        unimplemented!()
    }
    /// Tokens that end a generation (EOS, end of turn).
    pub fn end_tokens(&self) -> &[u32] {
        unimplemented!()
    }
    /// Bytes of `ids` joined, invalid UTF-8 replaced by U+FFFD.
    pub fn decode(&self, _ids: &[u32]) -> Result<String> {
        unimplemented!()
    }
}

/// Turns a stream of token bytes into whole UTF-8, holding an unfinished sequence back.
#[derive(Default)]
pub struct Utf8Stream {}

impl Utf8Stream {
    /// Appends what has become complete to `out`; invalid bytes become U+FFFD.
    pub fn push(&mut self, _bytes: &[u8], _out: &mut String) {
        unimplemented!()
    }
    /// Ends the stream: an unfinished sequence becomes one U+FFFD.
    pub fn finish(&mut self, _out: &mut String) {
        unimplemented!()
    }
}
