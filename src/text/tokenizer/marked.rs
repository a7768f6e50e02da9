//! Tokens of a rendered conversation: text from a message never becomes a control token.

use super::{Kind, Tokenizer, append};
use crate::base::{Error, Result, reserve};
use crate::text::chat::Rendered;

impl Rendered {
    /// The parts that no untrusted range covers, with their positions: the template's own words.
    /// `InvalidArgument` for invalid ranges.
    pub fn own_parts(&self) -> Result<Vec<(usize, &str)>> {
        let mut parts = Vec::new();
        reserve(&mut parts, self.untrusted.len() + 1, "parts of a conversation")?;
        let mut done = 0;
        let end = self.text.len();
        for range in self.untrusted.iter().chain(std::iter::once(&(end..end))) {
            let part = self.text.get(done..range.start).filter(|_| self.text.get(range.clone()).is_some());
            match part {
                Some(part) => parts.push((done, part)),
                None => {
                    let (from, to) = (range.start, range.end);
                    return Err(Error::invalid(format!(
                        "the untrusted range {from}..{to} of a text of {end} bytes is out of place"
                    )));
                }
            }
            done = range.end;
        }
        Ok(parts)
    }
}

impl Tokenizer {
    /// Token ids of a conversation, as [`Self::encode`] with both flags gives them for its text, except that a
    /// control token counts only if all of it is the template's own. If a message wrote it, in whole or in part,
    /// it is plain text.
    ///
    /// Errors are those of `encode`, and `InvalidArgument` for invalid ranges.
    pub fn encode_chat(&self, chat: &Rendered) -> Result<Vec<u32>> {
        self.encode_parts(&chat.text, &chat.own_parts()?, true)
    }

    /// See [`Self::encode`]; control tokens count only within one of the parts `own`.
    pub(super) fn encode_parts(
        &self,
        text: &str,
        own: &[(usize, &str)],
        add_special: bool,
    ) -> Result<Vec<u32>> {
        let begins =
            |part: &str| self.first.len() == 1 && self.specials.at_start(part) == Some(self.first[0]);
        let begun = own.first().is_some_and(|(at, part)| *at == 0 && begins(part));
        let mut ids = Vec::new();
        if add_special && !begun {
            append(&mut ids, &self.first)?;
        }
        match &self.kind {
            Kind::Bytes => byte_ids(text, add_special, &mut ids)?,
            Kind::Bpe(bpe) => self.between_own(text, own, &mut ids, |text, ids| bpe.encode(text, ids))?,
            Kind::Spm(spm) => self.between_own(text, own, &mut ids, |text, ids| spm.encode(text, ids))?,
            Kind::Json(json) => json.encode(text, own, &mut ids)?,
        }
        self.checked(ids)
    }

    /// Appends the control tokens in the parts `own`, and encodes the text between them without any.
    fn between_own(
        &self,
        text: &str,
        own: &[(usize, &str)],
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        for &(place, part) in own {
            let mut at = 0;
            while let Some((start, end, id)) = self.specials.find(&part[at..]) {
                let (start, end) = (place + at + start, place + at + end);
                at = end - place;
                if self.token_bytes(id).is_none_or(<[u8]>::is_empty) {
                    self.between_always(&text[done..start], ids, &encode)?;
                    append(ids, &[id])?;
                    done = end;
                }
            }
        }
        self.between_always(&text[done..], ids, &encode)
    }

    /// Appends the user-defined tokens in `text`, and encodes the text between them.
    fn between_always(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let mut rest = text;
        while let Some((start, end, id)) = self.always.find(rest) {
            encode(&rest[..start], ids)?;
            append(ids, &[id])?;
            rest = &rest[end..];
        }
        encode(rest, ids)
    }
}

/// Appends the token ids of the byte tokenizer.
fn byte_ids(text: &str, separator: bool, ids: &mut Vec<u32>) -> Result<()> {
    reserve(ids, text.len() + 1, "token ids")?;
    ids.extend(text.bytes().map(u32::from));
    ids.extend(separator.then_some(super::BYTES_SEPARATOR));
    Ok(())
}
