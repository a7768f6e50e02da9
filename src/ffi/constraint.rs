//! What an output must match, and the host's hand in logits.

use super::config::choice;
use super::guard;
use super::request::bn_request_params;
use super::string::bn_string;
use super::types::Context;
use crate::base::{Error, Result};
use crate::engine::api::{Constraint, ConstraintKind, LogitsHook};
use std::borrow::Cow;
use std::ffi::c_void;
use std::sync::Arc;

/// For `bn_request_params.constraint_kind`: no constraint.
pub const BN_CONSTRAINT_NONE: i32 = 0;
/// `constraint` is a JSON schema; the output is JSON that is valid under it. Object keys come in the
/// schema's order. A keyword that cannot be kept is refused by name; so are references to other
/// documents.
pub const BN_CONSTRAINT_JSON_SCHEMA: i32 = 1;
/// The output is a JSON object. `constraint` is not set.
pub const BN_CONSTRAINT_JSON_OBJECT: i32 = 2;
/// `constraint` is a regular expression in Rust's syntax, without look-around and back references;
/// the whole output matches it, with or without `^` and `$`.
pub const BN_CONSTRAINT_REGEX: i32 = 3;
/// `constraint` is a grammar in llguidance's dialect of Lark, whose rule `start` the output matches.
pub const BN_CONSTRAINT_LARK: i32 = 4;
/// `constraint` is a grammar as llama.cpp has them, whose rule `root` the output matches. Its rules
/// that are not recursive match greedily.
pub const BN_CONSTRAINT_GBNF: i32 = 5;

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
pub(super) unsafe fn constraint<'a>(kind: i32, text: bn_string) -> Result<Option<Constraint<'a>>> {
    // SAFETY: the caller's promise.
    let text = unsafe { guard::optional_text("constraint", text) }?;
    let kind = choice("constraint_kind", kind, "BN_CONSTRAINT", &KINDS)?;
    match (kind, text) {
        (None, Some(_)) => Err(Error::invalid("constraint is set and needs constraint_kind")),
        (None, None) => Ok(None),
        (Some(ConstraintKind::JsonObject), None) => {
            Ok(Some(Constraint { kind: ConstraintKind::JsonObject, text: Cow::Borrowed("") }))
        }
        (Some(_), None) => Err(Error::invalid("constraint_kind is set and needs constraint")),
        (Some(kind), Some(text)) => Ok(Some(Constraint { kind, text: Cow::Borrowed(text) })),
    }
}

/// A row of logits before anything else looks at it, for `bn_logits_callback`.
#[repr(C)]
pub struct bn_logits {
    /// Bytes of this struct that the library wrote.
    pub struct_size: u32,
    /// Number of `logits`.
    pub vocab_size: u32,
    /// `bn_request_params.user_data`.
    pub user_data: u64,
    /// The prompt's tokens.
    pub prompt_tokens: *const u32,
    /// Number of `prompt_tokens`.
    pub prompt_tokens_count: usize,
    /// The tokens generated so far.
    pub output_tokens: *const u32,
    /// Number of `output_tokens`.
    pub output_tokens_count: usize,
    /// A logit for each token of the vocabulary, to be changed in place. `-INFINITY` forbids a
    /// token; at least one must stay finite, and none may be NaN or `INFINITY`.
    pub logits: *mut f32,
}

/// Changes a request's logits before each of its tokens. Biases, penalties, samplers and
/// log probabilities are of what it leaves. Anything but 0 ends the request as `BN_FINISH_FAILED`
/// with `BN_ERR_CANCELLED`.
///
/// Called on threads of the engine, for several requests at a time. All requests wait until it
/// returns. What `*row` points to is valid until then. The same output in every batch needs a
/// callback that depends on `*row` alone. The rules of `bn_event_callback` apply.
/// `context` is `bn_request_params.on_logits_context`. Keep both alive until the request's last
/// event, or, if it is released before, until `bn_engine_destroy` has returned.
pub type bn_logits_callback =
    Option<unsafe extern "C" fn(row: *const bn_logits, context: *mut c_void) -> i32>;

impl bn_request_params {
    pub(super) fn logits_hook(&self) -> Option<LogitsHook> {
        let call = self.on_logits?;
        let context = Context::new(self.on_logits_context);
        Some(LogitsHook(Arc::new(move |row| {
            let row = bn_logits {
                struct_size: size_of::<bn_logits>() as u32,
                vocab_size: row.logits.len() as u32,
                user_data: row.user_data,
                prompt_tokens: row.prompt.as_ptr(),
                prompt_tokens_count: row.prompt.len(),
                output_tokens: row.output.as_ptr(),
                output_tokens_count: row.output.len(),
                logits: row.logits.as_mut_ptr(),
            };
            // SAFETY: the header's contract for `on_logits`; `row` outlives the call.
            unsafe { call(&row, context.get()) }
        })))
    }
}
