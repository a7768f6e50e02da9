//! Normalizers and pre-tokenizers, as the `tokenizers` package runs them, except for untrusted patterns.

use super::bytes::shown;
use super::matcher::Matcher;
use super::part::guarded;
use super::split::is_known;
use crate::base::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use tokenizers::pattern::Pattern;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, Offsets, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, SplitDelimiterBehavior,
};

/// Changes of a text, applied in order.
pub(super) struct Normalizers(Vec<Change>);

enum Change {
    Package(NormalizerWrapper),
    Replace { pattern: Matcher, content: String },
}

/// Cuts of a text, applied in order.
pub(super) struct PreTokenizers(Vec<Cut>);

enum Cut {
    Package(PreTokenizerWrapper),
    Split { pattern: Matcher, behavior: SplitDelimiterBehavior, invert: bool },
}

/// Collects a part's own parts in order, with those of nested sequences.
fn flat<'a>(part: &'a Value, key: &str, out: &mut Vec<&'a Value>) {
    match part.get(key).and_then(Value::as_array) {
        Some(parts) if part.get("type").and_then(Value::as_str) == Some("Sequence") => {
            parts.iter().for_each(|part| flat(part, key, out))
        }
        _ => out.push(part),
    }
}

fn parts<'a>(whole: &'a Option<Value>, key: &str) -> Vec<&'a Value> {
    let mut out = Vec::new();
    whole.iter().for_each(|part| flat(part, key, &mut out));
    out
}

/// Compiles the pattern of a part of type `kind`, if it has one that does not belong to a known model.
fn strange(part: &Value, kind: &str, what: &str) -> Result<Option<Matcher>> {
    let pattern = part.get("pattern").and_then(|p| p.get("Regex")).and_then(Value::as_str);
    let is = part.get("type").and_then(Value::as_str) == Some(kind);
    // The package reports invalid patterns.
    let wanted = |pattern: &&str| is && !is_known(pattern) && fancy_regex::Expr::parse_tree(pattern).is_ok();
    let Some(pattern) = pattern.filter(wanted) else { return Ok(None) };
    Matcher::new(pattern).map(Some).map_err(|why| {
        Error::unsupported(format!("{what}: the pattern '{}' is not read: {}", shown(pattern), shown(&why)))
    })
}

fn package<T: DeserializeOwned>(what: &str, field: &str, part: &Value) -> Result<T> {
    guarded(what, field, || T::deserialize(part))
}

#[derive(Deserialize)]
struct Replace {
    content: String,
}

#[derive(Deserialize)]
struct Split {
    behavior: SplitDelimiterBehavior,
    invert: bool,
}

impl Normalizers {
    pub(super) fn new(whole: &Option<Value>, what: &str) -> Result<Self> {
        const FIELD: &str = "normalizer";
        let one = |part: &Value| match strange(part, "Replace", what)? {
            None => package(what, FIELD, part).map(Change::Package),
            Some(pattern) => {
                let Replace { content } = package(what, FIELD, part)?;
                Ok(Change::Replace { pattern, content })
            }
        };
        parts(whole, "normalizers").into_iter().map(one).collect::<Result<_>>().map(Self)
    }
}

/// The normalizers for one text. The package drops the errors of some calls, so they are kept here.
pub(super) struct Normalizing<'a> {
    normalizers: &'a Normalizers,
    error: Mutex<Option<tokenizers::Error>>,
}

impl<'a> Normalizing<'a> {
    pub(super) fn new(normalizers: &'a Normalizers) -> Self {
        Self { normalizers, error: Mutex::new(None) }
    }

    /// Call after normalizing: returns the error that occurred, if any.
    pub(super) fn done(&self) -> Result<()> {
        self.error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .map_or(Ok(()), |error| Err(failed(error)))
    }
}

impl Normalizer for Normalizing<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        for change in &self.normalizers.0 {
            let changed = match change {
                Change::Package(part) => part.normalize(text),
                Change::Replace { pattern, content } => text.replace(pattern, content),
            };
            if let Err(error) = changed {
                *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                break;
            }
        }
        Ok(())
    }
}

impl PreTokenizers {
    pub(super) fn new(whole: &Option<Value>, what: &str) -> Result<Self> {
        const FIELD: &str = "pre_tokenizer";
        let one = |part: &Value| match strange(part, "Split", what)? {
            None => package(what, FIELD, part).map(Cut::Package),
            Some(pattern) => {
                let Split { behavior, invert } = package(what, FIELD, part)?;
                Ok(Cut::Split { pattern, behavior, invert })
            }
        };
        parts(whole, "pretokenizers").into_iter().map(one).collect::<Result<_>>().map(Self)
    }

    pub(super) fn cut(&self, pieces: &mut PreTokenizedString) -> Result<()> {
        for cut in &self.0 {
            let done = match cut {
                Cut::Package(part) => part.pre_tokenize(pieces),
                Cut::Split { pattern, behavior, invert } => pieces.split(|_, piece| match invert {
                    true => piece.split(tokenizers::pattern::Invert(pattern), *behavior),
                    false => piece.split(pattern, *behavior),
                }),
            };
            done.map_err(failed)?;
        }
        Ok(())
    }
}

impl Pattern for &Matcher {
    fn find_matches(&self, text: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        Ok(self.cut(text)?)
    }
}

/// Unwraps our own error, or converts one of the package's.
pub(super) fn failed(error: tokenizers::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(ours) => *ours,
        Err(theirs) => Error::internal(format!("tokenizing failed: {theirs}")),
    }
}
