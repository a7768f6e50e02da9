//! Constraints of an output.

use super::config::choice;
use super::guard;
use super::request::bn_request_params;
use super::string::bn_string;
use crate::base::{Error, Result};
use crate::engine::api::{Constraint, ConstraintKind, JsonOptions, WhiteSpace};
use std::borrow::Cow;

/// No constraint.
pub const BN_CONSTRAINT_NONE: i32 = 0;
/// A JSON schema; the output is JSON that is valid under it, with properties in its order. A
/// keyword that cannot be kept is refused by name, as are unknown formats and references to other
/// documents. Numbers may exceed a double, and a property that the schema does not name may come
/// twice (docs/decoding.md).
pub const BN_CONSTRAINT_JSON_SCHEMA: i32 = 1;
/// The output is a JSON object. `constraint` is not set.
pub const BN_CONSTRAINT_JSON_OBJECT: i32 = 2;
/// A regular expression in Rust's syntax, without look-around and back references, that the whole
/// output matches, with or without `^` and `$`.
pub const BN_CONSTRAINT_REGEX: i32 = 3;
/// A grammar in llguidance's dialect of Lark; the output matches its rule `start`.
pub const BN_CONSTRAINT_LARK: i32 = 4;
/// A grammar as llama.cpp has them; the output matches its rule `root`. Rules that are not
/// recursive match greedily.
pub const BN_CONSTRAINT_GBNF: i32 = 5;

/// No white space between JSON's tokens. Without this flag and the next, a space may follow `:` and
/// `,`, and between tokens may stand one line break with up to 32 spaces or 16 tabs after it.
pub const BN_JSON_COMPACT: u32 = 1 << 0;
/// Up to 32 characters of white space between JSON's tokens. Refused with `BN_JSON_COMPACT`.
pub const BN_JSON_FLEXIBLE: u32 = 1 << 1;
/// An unknown `format` in a schema is refused. Without this flag it says nothing, as in JSON
/// Schema.
pub const BN_JSON_KNOWN_FORMATS: u32 = 1 << 2;
/// An object has only the keys of its `properties`, also in the arguments of calls, unless the
/// schema says by another keyword that there may be more. Without this flag, JSON Schema lets any
/// key come.
pub const BN_JSON_CLOSED: u32 = 1 << 3;

const JSON_FLAGS: u32 = BN_JSON_COMPACT | BN_JSON_FLEXIBLE | BN_JSON_KNOWN_FORMATS | BN_JSON_CLOSED;

const KINDS: [(i32, Option<ConstraintKind>); 6] = [
    (BN_CONSTRAINT_NONE, None),
    (BN_CONSTRAINT_JSON_SCHEMA, Some(ConstraintKind::JsonSchema)),
    (BN_CONSTRAINT_JSON_OBJECT, Some(ConstraintKind::JsonObject)),
    (BN_CONSTRAINT_REGEX, Some(ConstraintKind::Regex)),
    (BN_CONSTRAINT_LARK, Some(ConstraintKind::Lark)),
    (BN_CONSTRAINT_GBNF, Some(ConstraintKind::Gbnf)),
];

/// A caller's constraint.
///
/// # Safety
/// As for `guard::text`.
pub(super) unsafe fn constraint<'a>(
    kind: i32,
    text: bn_string,
    json: JsonOptions,
) -> Result<Option<Constraint<'a>>> {
    // SAFETY: the caller's promise.
    let text = unsafe { guard::optional_text("constraint", text) }?;
    let kind = choice("constraint_kind", kind, "BN_CONSTRAINT", &KINDS)?;
    match (kind, text) {
        (None, Some(_)) => Err(Error::invalid("constraint is set and needs constraint_kind")),
        (None, None) => Ok(None),
        (Some(ConstraintKind::JsonObject), None) => {
            Ok(Some(Constraint { kind: ConstraintKind::JsonObject, text: Cow::Borrowed(""), json }))
        }
        (Some(_), None) => Err(Error::invalid("constraint_kind is set and needs constraint")),
        (Some(kind), Some(text)) => Ok(Some(Constraint { kind, text: Cow::Borrowed(text), json })),
    }
}

impl bn_request_params {
    pub(super) fn json_options(&self) -> Result<JsonOptions> {
        let has = |flag| self.json_flags & flag != 0;
        guard::flags("json_flags", self.json_flags, JSON_FLAGS)?;
        let json = [BN_CONSTRAINT_JSON_SCHEMA, BN_CONSTRAINT_JSON_OBJECT, BN_CONSTRAINT_LARK];
        if self.json_flags != 0 && !json.contains(&self.constraint_kind) && self.chat_json.data.is_null() {
            return Err(Error::invalid(
                "json_flags is set and needs chat_json, or a constraint_kind with JSON",
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
