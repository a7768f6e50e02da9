//! Constraints of an output.

use super::config::choice;
use super::guard;
use super::string::bn_string;
use crate::base::{Error, Result};
use crate::engine::api::{Constraint, ConstraintKind, JsonOptions, WhiteSpace};
use std::borrow::Cow;

/// No constraint.
pub const BN_CONSTRAINT_NONE: u32 = 0;
/// A JSON schema; the output is JSON that is valid under it, with properties in its order. A
/// keyword that cannot be kept is refused by name, as are references to other documents; one that
/// JSON Schema does not have asks for nothing. Numbers may exceed a double, and a property that the
/// schema does not name may come twice (docs/decoding.md).
pub const BN_CONSTRAINT_JSON_SCHEMA: u32 = 1;
/// The output is a JSON object. `text` is not set.
pub const BN_CONSTRAINT_JSON_OBJECT: u32 = 2;
/// A regular expression in Rust's syntax, without look-around and back references, that the whole
/// output matches, with or without `^` and `$`.
pub const BN_CONSTRAINT_REGEX: u32 = 3;
/// A grammar in llguidance's dialect of Lark; the output matches its rule `start`.
pub const BN_CONSTRAINT_LARK: u32 = 4;
/// A grammar in llama.cpp's GBNF; the output matches its rule `root`. Rules that are not recursive
/// match greedily.
pub const BN_CONSTRAINT_GBNF: u32 = 5;

/// No white space between JSON's tokens. Without this flag and the next, a space may follow `:`
/// and `,`, and between tokens may stand one line break with up to 32 spaces or 16 tabs after it.
pub const BN_JSON_COMPACT: u32 = 1 << 0;
/// Up to 32 characters of white space between JSON's tokens. Refused with `BN_JSON_COMPACT`.
pub const BN_JSON_FLEXIBLE: u32 = 1 << 1;
/// An unknown `format` in a schema is refused. Without this flag it is ignored.
pub const BN_JSON_KNOWN_FORMATS: u32 = 1 << 2;
/// An object has only the keys of its `properties`, also in the arguments of calls, unless the
/// schema says by another keyword that there may be more. Without this flag, JSON Schema lets any
/// key come.
pub const BN_JSON_CLOSED: u32 = 1 << 3;

const JSON_FLAGS: u32 = BN_JSON_COMPACT | BN_JSON_FLEXIBLE | BN_JSON_KNOWN_FORMATS | BN_JSON_CLOSED;

const KINDS: [(u32, Option<ConstraintKind>); 6] = [
    (BN_CONSTRAINT_NONE, None),
    (BN_CONSTRAINT_JSON_SCHEMA, Some(ConstraintKind::JsonSchema)),
    (BN_CONSTRAINT_JSON_OBJECT, Some(ConstraintKind::JsonObject)),
    (BN_CONSTRAINT_REGEX, Some(ConstraintKind::Regex)),
    (BN_CONSTRAINT_LARK, Some(ConstraintKind::Lark)),
    (BN_CONSTRAINT_GBNF, Some(ConstraintKind::Gbnf)),
];

/// The grammar of an output, which takes precedence over all other options. After a complete match,
/// the model's end tokens are allowed, even with `BN_REQUEST_IGNORE_EOS`, and nothing else if the
/// match cannot go on. An output that ends early is the beginning of a match. It is compiled at
/// submit; the latest ones stay compiled. A request may still fail later, where its constraint
/// needs more than docs/decoding.md allows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_constraint {
    /// `BN_CONSTRAINT_*`.
    pub kind: u32,
    /// `BN_JSON_*`, for JSON or Lark and `bn_chat.json` alone. A schema's "x-guidance" overrides
    /// them.
    pub json_flags: u32,
    /// The schema, expression or grammar; at most 524288 bytes.
    pub text: bn_string,
    /// Room for later fields: 0.
    pub reserved: [u64; 2],
}

impl bn_constraint {
    /// `has_chat`: `json_flags` may be for a `bn_chat.json`.
    ///
    /// # Safety
    /// As for `guard::text`.
    pub(super) unsafe fn as_engine<'a>(
        &self,
        has_chat: bool,
    ) -> Result<(Option<Constraint<'a>>, JsonOptions)> {
        guard::reserved("constraint", &self.reserved)?;
        // SAFETY: the caller's promise.
        let text = unsafe { guard::optional_text("constraint.text", self.text) }?;
        let kind = choice("constraint.kind", self.kind, "BN_CONSTRAINT", &KINDS)?;
        let json = self.json_options(has_chat)?;
        let text = match (kind, text) {
            (None, Some(_)) => {
                return Err(Error::invalid("constraint.text is set and needs constraint.kind"));
            }
            (None, None) => return Ok((None, json)),
            (Some(ConstraintKind::JsonObject), None) => "",
            (Some(_), None) => {
                return Err(Error::invalid("constraint.kind is set and needs constraint.text"));
            }
            (Some(_), Some(text)) => text,
        };
        let text = Cow::Borrowed(text);
        Ok((kind.map(|kind| Constraint { kind, text, json }), json))
    }

    fn json_options(&self, has_chat: bool) -> Result<JsonOptions> {
        let has = |flag| self.json_flags & flag != 0;
        guard::flags("json_flags", self.json_flags, JSON_FLAGS)?;
        let json = [BN_CONSTRAINT_JSON_SCHEMA, BN_CONSTRAINT_JSON_OBJECT, BN_CONSTRAINT_LARK];
        if self.json_flags != 0 && !json.contains(&self.kind) && !has_chat {
            return Err(Error::invalid(
                "json_flags is set and needs chat.json, or a constraint.kind with JSON",
            ));
        }
        let white_space = match (has(BN_JSON_COMPACT), has(BN_JSON_FLEXIBLE)) {
            (false, false) => WhiteSpace::Tight,
            (true, false) => WhiteSpace::Compact,
            (false, true) => WhiteSpace::Flexible,
            (true, true) => {
                return Err(Error::invalid("json_flags has both BN_JSON_COMPACT and BN_JSON_FLEXIBLE"));
            }
        };
        let (known_formats, closed) = (has(BN_JSON_KNOWN_FORMATS), has(BN_JSON_CLOSED));
        Ok(JsonOptions { white_space, known_formats, closed })
    }
}
