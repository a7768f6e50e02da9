//! Tokens of a rendered conversation: text from a message never becomes a control token.

use super::{Kind, Tokenizer};
use crate::base::{Error, Result};
use crate::text::chat::Rendered;

/// Parts of a text with their positions in it.
pub(super) type Parts<'a> = Vec<(usize, &'a str)>;

impl Rendered {
    /// The parts that no untrusted range covers: the template's own words. `InvalidArgument` for invalid ranges.
    pub fn own_parts(&self) -> Result<Parts<'_>> {
        let mut parts = Vec::new();
        let count = self.untrusted.len() + 1;
        let too_much =
            |_| Error::out_of_memory("parts of a conversation", count * size_of::<(usize, &str)>());
        parts.try_reserve_exact(count).map_err(too_much)?;
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
        let own = chat.own_parts()?;
        let begins = own.first().is_some_and(|(at, part)| *at == 0 && self.begins(part));
        let mut ids = self.first_ids(!begins)?;
        match &self.kind {
            Kind::Bytes => byte_ids(&chat.text, true, &mut ids)?,
            Kind::Bpe(bpe) => {
                self.between_own(&chat.text, &own, &mut ids, |text, ids| bpe.encode(text, ids))?
            }
            Kind::Spm(spm) => {
                self.between_own(&chat.text, &own, &mut ids, |text, ids| spm.encode(text, ids))?
            }
            Kind::Json(json) => json.encode_own(&chat.text, &own, &mut ids)?,
        }
        Ok(ids)
    }

    /// Appends the control tokens in the parts `own`, and encodes the text between them without any.
    fn between_own(
        &self,
        text: &str,
        own: &Parts,
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        for &(place, part) in own {
            let mut at = 0;
            while let Some((start, end, id)) = self.specials.find(&part[at..]) {
                let (start, end) = (place + at + start, place + at + end);
                at = end - place;
                if self.token_bytes(id).is_some_and(<[u8]>::is_empty) {
                    self.between(&self.always, &text[done..start], ids, &encode)?;
                    push_id(id, ids)?;
                    done = end;
                }
            }
        }
        self.between(&self.always, &text[done..], ids, &encode)
    }
}

pub(super) fn push_id(id: u32, ids: &mut Vec<u32>) -> Result<()> {
    ids.try_reserve(1).map_err(|_| Error::out_of_memory("token ids", 4))?;
    ids.push(id);
    Ok(())
}

/// Token ids of the byte tokenizer.
pub(super) fn byte_ids(text: &str, separator: bool, ids: &mut Vec<u32>) -> Result<()> {
    let too_much = |_| Error::out_of_memory("token ids", text.len().saturating_mul(4));
    ids.try_reserve_exact(text.len() + 1).map_err(too_much)?;
    ids.extend(text.bytes().map(u32::from));
    ids.extend(separator.then_some(super::BYTES_SEPARATOR));
    Ok(())
}
