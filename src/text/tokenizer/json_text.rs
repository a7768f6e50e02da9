//! Encodes a text by a `tokenizer.json`: see `json`.

use super::pipeline::{Normalizers, Normalizing, PreTokenizers, failed};
use super::split::{MAX_WORD_BYTES, too_long};
use crate::base::{Error, Result, Status, panics, reserve};
use std::ops::Range;
use tokenizers::normalizer::Range as OffsetRange;
use tokenizers::{
    AddedVocabulary, Model, ModelWrapper, NormalizedString, Normalizer, OffsetReferential, OffsetType,
    PreTokenizedString, Token,
};

/// Maximum length of a text. The parts take 80 to 260 bytes for each of its bytes, most if words are short.
const MAX_TEXT_BYTES: usize = 2 << 20;

/// The parts that encode.
pub(super) struct Json {
    pub normalizers: Normalizers,
    pub pre_tokenizers: PreTokenizers,
    /// Finds all added tokens.
    pub special: AddedVocabulary,
    /// Finds only the added tokens that are not special.
    pub plain: AddedVocabulary,
    /// Ids of the special tokens, sorted.
    pub special_ids: Vec<u32>,
    pub model: ModelWrapper,
    /// A pattern splits text into words.
    pub cuts: bool,
}

/// A special token in a text. Its range may start with blanks; `begins` is the position after them.
struct Found {
    range: Range<usize>,
    begins: usize,
    id: u32,
}

impl Json {
    /// Appends the tokens of `text`. A special token counts only if it is inside one of the parts `own`.
    pub(super) fn encode(&self, text: &str, own: &[(usize, &str)], ids: &mut Vec<u32>) -> Result<()> {
        guarded_run(text, || self.run(self.pieces(text, own)?, ids))
    }

    fn pieces(&self, text: &str, own: &[(usize, &str)]) -> Result<PreTokenizedString> {
        if own.is_empty() {
            return self.extract(&self.plain, text);
        }
        let all = self.extract(&self.special, text)?;
        if own[0].1.len() == text.len() {
            return Ok(all);
        }
        let (mut trusted, mut found) = (Vec::new(), Vec::new());
        for &(place, part) in own {
            self.specials_of(&self.extract(&self.special, part)?, part, place, &mut trusted)?;
        }
        self.specials_of(&all, text, 0, &mut found)?;
        // Blanks around a token, which some tokens include, may belong to a message.
        let places = |found: &'_ Found| (found.begins, found.id);
        match found.iter().map(places).eq(trusted.iter().map(places)) {
            true => Ok(all),
            false => self.cut_at(text, &trusted),
        }
    }

    /// Cuts `text` at the added tokens, and normalizes it.
    fn extract(&self, vocabulary: &AddedVocabulary, text: &str) -> Result<PreTokenizedString> {
        let normalizing = Normalizing::new(&self.normalizers);
        let pieces = vocabulary.extract_and_normalize(Some(&normalizing), text);
        normalizing.done().map(|()| pieces)
    }

    /// Appends the special tokens of `pieces`, which were cut from `text`.
    fn specials_of(
        &self,
        pieces: &PreTokenizedString,
        text: &str,
        place: usize,
        found: &mut Vec<Found>,
    ) -> Result<()> {
        for (_, (start, end), tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let Some([token]) = tokens.as_deref() else { continue };
            if self.special_ids.binary_search(&token.id).is_err() {
                continue;
            }
            let blanks = text[start..end].len() - text[start..end].trim_start().len();
            let range = place + start..place + end;
            reserve(found, 1, "special tokens")?;
            found.push(Found { begins: range.start + blanks, range, id: token.id });
        }
        Ok(())
    }

    /// Cuts `text` at `specials` and, between them, at the other added tokens, and then normalizes it.
    fn cut_at(&self, text: &str, specials: &[Found]) -> Result<PreTokenizedString> {
        let mut pieces = PreTokenizedString::from(text);
        pieces
            .split(|_, whole| {
                let slice = |range: Range<usize>| {
                    whole.slice(OffsetRange::Original(range)).ok_or("a slice out of place")
                };
                let mut out: Vec<(NormalizedString, Option<Vec<Token>>)> = Vec::new();
                let mut done = 0;
                let end = (text.len()..text.len(), None);
                for (range, id) in
                    specials.iter().map(|found| (found.range.clone(), Some(found.id))).chain([end])
                {
                    let between = &text[done..range.start];
                    // Added tokens that match normalized text are searched for in the original text here. This
                    // matters only where messages hold control tokens.
                    let others = self.plain.extract_and_normalize(None::<&Normalizing>, between);
                    for (_, (from, to), tokens) in
                        others.get_splits(OffsetReferential::Original, OffsetType::Byte)
                    {
                        out.push((slice(done + from..done + to)?, tokens.clone()));
                    }
                    if let Some(id) = id {
                        let token = Token::new(id, text[range.clone()].to_owned(), (0, range.len()));
                        out.push((slice(range.clone())?, Some(vec![token])));
                    }
                    done = range.end;
                }
                Ok(out)
            })
            .map_err(failed)?;
        let normalizing = Normalizing::new(&self.normalizers);
        pieces.normalize(|piece| normalizing.normalize(piece)).map_err(failed)?;
        normalizing.done().map(|()| pieces)
    }

    fn run(&self, mut pieces: PreTokenizedString, ids: &mut Vec<u32>) -> Result<()> {
        self.pre_tokenizers.cut(&mut pieces)?;
        for (piece, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            let made;
            let tokens = match tokens {
                Some(tokens) => tokens,
                // If a regex gives up, the whole rest is one piece. Stand-ins take up to two bytes.
                None if self.cuts && piece.len() > 2 * MAX_WORD_BYTES => return Err(too_long(piece.len())),
                None => {
                    made = self.model.tokenize(piece).map_err(failed)?;
                    &made
                }
            };
            reserve(ids, tokens.len(), "token ids")?;
            ids.extend(tokens.iter().map(|token| token.id));
        }
        Ok(())
    }
}

/// Runs `f` on a text that is not too long, and catches panics of the package.
fn guarded_run(text: &str, f: impl FnOnce() -> Result<()>) -> Result<()> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(Error::new(
            Status::TooLong,
            format!("the text has {} bytes; at most {MAX_TEXT_BYTES} are tokenized at once", text.len()),
        ));
    }
    panics::catch(f).map_err(|text| Error::internal(format!("tokenizing failed: {text}")))?
}
