//! The models of a `tokenizer.json`: BPE, WordPiece, and Unigram, a vocabulary by score.

use super::bytes::{byte_token, shown};
use super::json::MAX_TOKENS;
use super::part::{bad, guarded};
use crate::base::{Result, reserve};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use tokenizers::models::bpe::{self, BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{AddedToken, ModelWrapper};

/// The types of models that are read.
pub(super) const KINDS: [&str; 3] = ["BPE", WORD_PIECE, UNIGRAM];
pub(super) const WORD_PIECE: &str = "WordPiece";
const UNIGRAM: &str = "Unigram";
/// WordPiece's token for unknown words, if the file names none.
const UNKNOWN: &str = "[UNK]";

#[derive(Deserialize)]
pub(super) struct ModelEntry {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub vocab: Pieces,
    #[serde(default)]
    pub merges: Vec<Merge>,
    pub unk_token: Option<String>,
    unk_id: Option<usize>,
    max_input_chars_per_word: Option<usize>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub ignore_merges: bool,
}

impl ModelEntry {
    /// Its type, if that is not BPE.
    pub(super) fn other_kind(&self) -> Option<&str> {
        self.kind.as_deref().filter(|kind| *kind != KINDS[0])
    }

    /// Takes the special tokens among `added` out of the vocabulary, so that no text can spell one, and returns their
    /// texts. The token for unknown texts and the tokens of bytes stay.
    fn take_out(&mut self, added: &[AddedToken]) -> HashSet<String> {
        let unknown = self.unk_token.as_deref();
        let unknown = unknown.or((self.kind.as_deref() == Some(WORD_PIECE)).then_some(UNKNOWN));
        let byte = |text: &str| self.byte_fallback && byte_token(text).is_some();
        let special = added.iter().filter(|token| token.special).map(|token| &token.content);
        let plain = special.filter(|text| Some(text.as_str()) != unknown && !byte(text));
        plain.filter_map(|text| self.vocab.ids.remove_entry(text)).map(|(text, _)| text).collect()
    }
}

/// The tokens of a model.
#[derive(Default)]
pub(super) struct Pieces {
    ids: Vocab,
    /// The score of each id in a vocabulary by score; else empty.
    scores: Vec<f64>,
}

impl Deref for Pieces {
    type Target = Vocab;
    fn deref(&self) -> &Vocab {
        &self.ids
    }
}

impl<'de> Deserialize<'de> for Pieces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Pieces;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map of tokens, or a list of tokens and scores")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Pieces, A::Error> {
                let ids = Vocab::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Pieces { ids, scores: Vec::new() })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Pieces, A::Error> {
                let mut pieces = Pieces::default();
                while let Some((text, score)) = list.next_element::<(String, f64)>()? {
                    let id = pieces.scores.len();
                    if id == MAX_TOKENS || pieces.ids.insert(text, id as u32).is_some() {
                        return Err(A::Error::custom(format_args!(
                            "token {id} stands there twice, or is too many"
                        )));
                    }
                    pieces.scores.push(score);
                }
                Ok(pieces)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// A merge; older files write it as one line.
pub(super) enum Merge {
    Line(String),
    Pair(String, String),
}

/// By hand, as serde's untagged enum keeps a copy of each entry to try both forms.
impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge: two tokens, as a list or with a space between")
            }
            fn visit_str<E>(self, line: &str) -> std::result::Result<Merge, E> {
                Ok(Merge::Line(line.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Merge, A::Error> {
                match (list.next_element()?, list.next_element()?, list.next_element::<IgnoredAny>()?) {
                    (Some(a), Some(b), None) => Ok(Merge::Pair(a, b)),
                    _ => Err(A::Error::custom("a merge that is not two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Merge {
    /// None for a line that is not a merge.
    pub(super) fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Merge::Pair(a, b) => Some((a, b)),
            Merge::Line(line) => line.split_once(' ').filter(|_| !line.starts_with("#version")),
        }
    }
}

/// The model, which makes none of the special tokens among `added` of a text.
pub(super) fn model(mut entry: ModelEntry, added: &[AddedToken], what: &str) -> Result<ModelWrapper> {
    let special = entry.take_out(added);
    match entry.kind.as_deref() {
        Some(WORD_PIECE) => word_piece(entry, what).map(ModelWrapper::WordPiece),
        Some(UNIGRAM) => unigram(entry, what).map(ModelWrapper::Unigram),
        _ => bpe(entry, &special, what).map(ModelWrapper::BPE),
    }
}

fn word_piece(entry: ModelEntry, what: &str) -> Result<WordPiece> {
    let unknown = entry.unk_token.unwrap_or_else(|| UNKNOWN.into());
    if !entry.vocab.contains_key(&unknown) {
        let why = format_args!("'{}' is no token of the vocabulary", shown(&unknown));
        return Err(bad(what, "model.unk_token", why));
    }
    let prefix = entry.continuing_subword_prefix.unwrap_or_else(|| "##".into());
    let longest = entry.max_input_chars_per_word.unwrap_or(100);
    let builder = WordPiece::builder().vocab(entry.vocab.ids).unk_token(unknown);
    let builder = builder.continuing_subword_prefix(prefix).max_input_chars_per_word(longest);
    guarded(what, "model", || builder.build())
}

fn unigram(entry: ModelEntry, what: &str) -> Result<Unigram> {
    let Pieces { ids, scores } = entry.vocab;
    if scores.is_empty() || scores.iter().any(|score| !score.is_finite()) {
        return Err(bad(what, "model.vocab", "it must be a list of tokens and finite scores"));
    }
    if let Some(id) = entry.unk_id.filter(|id| *id >= scores.len()) {
        return Err(bad(what, "model.unk_id", format_args!("{id} of {} tokens", scores.len())));
    }
    let mut vocab: Vec<(String, f64)> = Vec::new();
    reserve(&mut vocab, scores.len(), "the vocabulary")?;
    vocab.extend(scores.iter().map(|score| (String::new(), *score)));
    for (text, id) in ids {
        vocab[id as usize].0 = text;
    }
    let mut model = guarded(what, "model", || Unigram::from(vocab, entry.unk_id, entry.byte_fallback))?;
    // Words that a caller once sent are not kept.
    model.resize_cache(0);
    Ok(model)
}

/// Merges that need one of the `special` tokens are left out.
fn bpe(entry: ModelEntry, special: &HashSet<String>, what: &str) -> Result<BPE> {
    let mut merges = Vec::new();
    let mut whole = String::new();
    let longest = entry.vocab.keys().map(String::len).max().unwrap_or(0);
    let missing = |token: &str| format!("'{}' is no token of the vocabulary", shown(token));
    for (i, merge) in entry.merges.into_iter().enumerate() {
        let (a, b) = match merge {
            Merge::Pair(a, b) => (a, b),
            Merge::Line(line) if i == 0 && line.starts_with("#version") => continue,
            Merge::Line(line) => match line.split_once(' ') {
                Some((a, b)) if !b.contains(' ') => (a.to_owned(), b.to_owned()),
                _ => {
                    let why = format_args!("entry {i} is not two tokens with a space between");
                    return Err(bad(what, "model.merges", why));
                }
            },
        };
        whole.clear();
        whole.extend([&*a, &*b]);
        if [&a, &b, &whole].into_iter().any(|part| special.contains(part)) {
            continue;
        }
        // The package looks them all up, but has room for no more bytes than the longest token.
        if whole.len() > longest {
            return Err(bad(what, "model.merges", missing(&whole)));
        }
        reserve(&mut merges, 1, "merges")?;
        merges.push((a, b));
    }
    if let Some(unknown) = entry.unk_token.as_ref().filter(|unknown| !entry.vocab.contains_key(*unknown)) {
        return Err(bad(what, "model.unk_token", missing(unknown)));
    }
    let mut builder = BPE::builder()
        .vocab_and_merges(entry.vocab.ids, merges)
        .fuse_unk(entry.fuse_unk)
        .byte_fallback(entry.byte_fallback)
        .ignore_merges(entry.ignore_merges)
        .cache_capacity(0);
    if let Some(unknown) = entry.unk_token {
        builder = builder.unk_token(unknown);
    }
    guarded(what, "model.merges", || {
        builder.build().map_err(|error| match error.downcast_ref() {
            Some(bpe::Error::MergeTokenOutOfVocabulary(token)) => missing(token),
            _ => error.to_string(),
        })
    })
}
