//! A request's constraint, checked before llguidance sees it.

use super::schema::{self, JsonOptions};
use super::{bounds, depth, gbnf};
use crate::base::{Error, Result, Status};
use llguidance::api::TopLevelGrammar;
use llguidance::derivre::RegexBuilder;
use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConstraintKind {
    /// A JSON value that is valid under this schema.
    JsonSchema,
    /// Any JSON object; the text is empty.
    JsonObject,
    /// A regular expression that matches the whole output (Rust's syntax, without look-around and
    /// back-references).
    Regex,
    /// A grammar in llguidance's dialect of Lark.
    Lark,
    /// A grammar in llama.cpp's GBNF.
    Gbnf,
}

/// A grammar that an output must match.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint<'a> {
    pub kind: ConstraintKind,
    pub text: Cow<'a, str>,
    /// The spelling of JSON and the meaning of schemas, for the two JSON kinds and for schemas within Lark.
    pub json: JsonOptions,
}

/// Limit on the bytes of a constraint's text.
pub const MAX_BYTES: usize = 512 << 10;
/// Limit on open brackets in a grammar; JSON may be nested 127 deep.
const MAX_DEPTH: usize = 256;
/// Limit on the rules of a grammar: llguidance recurses from each rule to those that it names.
const MAX_RULES: usize = 10_000;

impl Constraint<'_> {
    /// The JSON schema of the output as an object; None for other grammars.
    pub fn schema(&self) -> Option<&str> {
        match self.kind {
            ConstraintKind::JsonObject if self.text.is_empty() => Some(r#"{"type": "object"}"#),
            ConstraintKind::JsonSchema => Some(&*self.text).filter(|text| text.trim_start().starts_with('{')),
            _ => None,
        }
    }

    /// The grammar and its steps as `bounds` counts them. Fails with `InvalidArgument` if the text is too
    /// long, too deep, too much work, or not JSON although its kind requires it.
    pub(super) fn grammar(&self) -> Result<(TopLevelGrammar, u64)> {
        let text: &str = &self.text;
        if text.len() > MAX_BYTES {
            return Err(refused(format!("its text has {} bytes, more than {MAX_BYTES}", text.len())));
        }
        match self.kind {
            ConstraintKind::JsonSchema => self.json_schema(text),
            ConstraintKind::JsonObject if text.is_empty() => self.json_schema(r#"{"type": "object"}"#),
            ConstraintKind::JsonObject => Err(refused("BN_CONSTRAINT_JSON_OBJECT takes no text")),
            ConstraintKind::Regex => {
                bounded(text)?;
                let steps = bounds::text(text)?;
                expression(text)?;
                Ok((TopLevelGrammar::from_regex(text), steps))
            }
            ConstraintKind::Lark => {
                bounded(text)?;
                let text = schema::lark(text, self.json).map_err(refused)?;
                depth::check(&text)?;
                let steps = bounds::text(&text)?;
                Ok((TopLevelGrammar::from_lark(text), steps))
            }
            ConstraintKind::Gbnf => {
                bounded(text)?;
                let lark = gbnf::to_lark(text).map_err(refused)?;
                depth::check(&lark)?;
                let steps = bounds::text(&lark)?;
                Ok((TopLevelGrammar::from_lark(lark), steps))
            }
        }
    }

    fn json_schema(&self, text: &str) -> Result<(TopLevelGrammar, u64)> {
        let schema = schema::prepare(text, self.json).map_err(refused)?;
        let steps = bounds::schema(&schema)?;
        Ok((TopLevelGrammar::from_json_schema(schema), steps))
    }
}

pub(super) fn refused(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("constraint: {why}"))
}

pub(super) fn timed_out() -> Error {
    Error::new(Status::TimedOut, "constraint: the request's time was up before it was compiled")
}

/// Refuses an invalid regular expression. llguidance's error would show the grammar that it makes of it.
fn expression(text: &str) -> Result<()> {
    let Err(error) = RegexBuilder::new().mk_regex(text) else { return Ok(()) };
    let words = error.to_string();
    match words.rsplit_once("error: ").filter(|_| words.starts_with("regex parse error")) {
        Some((_, why)) => Err(refused(format!("invalid regex: {}", why.trim_end()))),
        None => Ok(()),
    }
}

fn bounded(text: &str) -> Result<()> {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > MAX_DEPTH {
        return Err(refused(format!("{deepest} brackets are open at once, more than {MAX_DEPTH}")));
    }
    let rules = text.bytes().filter(|&byte| byte == b':').count();
    if rules > MAX_RULES {
        return Err(refused(format!("it has {rules} colons, more than {MAX_RULES}")));
    }
    Ok(())
}
