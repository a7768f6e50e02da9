//! Turns a single token into bytes by the decoder of a `tokenizer.json`.

use super::bytes::{ByteMap, byte_token, shown};
use crate::base::{Error, Result};
use serde_json::Value;
use tokenizers::models::bpe::Vocab;

/// Maximum number of decoders in a sequence; real ones have four.
const MAX_PARTS: usize = 64;

pub(super) struct Spelling {
    /// Tokens are written in GPT-2's stand-ins.
    byte_level: Option<ByteMap>,
    /// Texts in tokens and their replacements, applied in order.
    replaced: Vec<(String, String)>,
    /// Tokens of the form `<0x0A>` are bytes.
    byte_fallback: bool,
    /// The prefix of tokens that continue a word.
    parts: Option<String>,
    /// One space at the start of a whole text is removed.
    pub strips_space: bool,
}

impl Spelling {
    /// `Unsupported`, naming the decoder, if it cannot work token by token.
    pub(super) fn of(decoder: Option<&Value>, what: &str, log: &dyn Fn(&str)) -> Result<Self> {
        let mut spelling = Self {
            byte_level: None,
            replaced: Vec::new(),
            byte_fallback: false,
            parts: None,
            strips_space: false,
        };
        let Some(decoder) = decoder else {
            log(&format!("{what}: 'decoder' is missing; tokens are written as they stand in the vocabulary"));
            return Ok(spelling);
        };
        let mut todo = vec![decoder];
        let mut seen = 0;
        while let Some(part) = todo.pop() {
            seen += 1;
            if seen > MAX_PARTS {
                return Err(Error::bad_model(format!("{what}: 'decoder': more than {MAX_PARTS} parts")));
            }
            if part.get("type").and_then(Value::as_str) == Some("Sequence") {
                let parts = part.get("decoders").and_then(Value::as_array);
                todo.extend(parts.into_iter().flatten().rev());
            } else if !spelling.add(part) {
                return Err(Error::unsupported(format!(
                    "{what}: 'decoder': {} is not read",
                    shown(&part.to_string())
                )));
            }
        }
        Ok(spelling)
    }

    /// Returns false for an unknown part.
    fn add(&mut self, part: &Value) -> bool {
        let text = |key: &str| part.get(key).and_then(Value::as_str);
        let number = |key: &str| part.get(key).and_then(Value::as_u64);
        match text("type") {
            Some("ByteLevel") => self.byte_level = Some(ByteMap::new()),
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Fuse") => {}
            // Without its prefix a part of a word stands for its letters; a word has a space before it.
            Some("WordPiece") => {
                self.parts = Some(text("prefix").unwrap_or("##").into());
                self.strips_space = true;
            }
            Some("Replace") => {
                let pattern = part.get("pattern").and_then(|p| p.get("String")).and_then(Value::as_str);
                let (Some(pattern), Some(content)) = (pattern, text("content")) else { return false };
                if pattern.is_empty() || content.len() > pattern.len() {
                    return false;
                }
                self.replaced.push((pattern.into(), content.into()));
            }
            Some("Metaspace") => {
                self.replaced.push((text("replacement").unwrap_or("\u{2581}").into(), " ".into()));
                // Before prepend_scheme there was add_prefix_space, which defaults to true.
                self.strips_space = match text("prepend_scheme") {
                    Some(scheme) => scheme != "never",
                    None => part.get("add_prefix_space") != Some(&Value::Bool(false)),
                };
            }
            Some("Strip") => {
                let nothing = number("start") == Some(0);
                let one = number("start") == Some(1) && text("content") == Some(" ");
                if number("stop") != Some(0) || !(nothing || one) {
                    return false;
                }
                self.strips_space |= one;
            }
            _ => return false,
        }
        true
    }

    /// The bytes of a token. `added`: it is an added token, whose text is as it is written.
    pub(super) fn bytes(&self, token: &str, added: bool) -> Vec<u8> {
        if let Some(bytes) = self.byte_level.as_ref().filter(|_| !added).and_then(|map| map.bytes(token)) {
            return bytes;
        }
        if let Some(byte) = byte_token(token).filter(|_| self.byte_fallback && !added) {
            return vec![byte];
        }
        if let Some(prefix) = self.parts.as_deref().filter(|prefix| !added && !prefix.is_empty()) {
            let written = token.strip_prefix(prefix).map(str::to_owned);
            return written.unwrap_or_else(|| format!(" {token}")).into_bytes();
        }
        let mut text = token.to_owned();
        for (pattern, content) in &self.replaced {
            text = text.replace(pattern, content);
        }
        text.into_bytes()
    }

    /// Returns whether the vocabulary has a token for every byte, so that nothing vanishes.
    pub(super) fn spells_all(&self, vocab: &Vocab, byte_fallback: bool) -> bool {
        let written = |byte: u8| match &self.byte_level {
            Some(map) => vocab.contains_key(map.char(byte).encode_utf8(&mut [0; 4]) as &str),
            None => byte_fallback && vocab.contains_key(&format!("<0x{byte:02X}>")),
        };
        (0..=255).all(written)
    }
}
