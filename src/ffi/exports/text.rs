//! Text to tokens and back.

use crate::base::{Error, Result};
use crate::engine::Engine;
use crate::ffi::guard::{self, copy_out, guard, out, slice};
use crate::ffi::registry::{self, Call};
use crate::ffi::status::bn_status;
use crate::ffi::types::bn_engine;
use crate::text::Tokenizer;
use std::ffi::c_char;
use std::sync::Arc;

/// `bn_tokenize`'s flags: put in front what the model wants there (BOS), as submitting a text does. What a request for
/// an embedding has behind its text (EOS, where the model's files ask for it) is not added.
pub const BN_TOKENIZE_ADD_SPECIAL: u32 = 1;
/// `bn_tokenize`'s flags: special tokens written out in the text are those tokens.
pub const BN_TOKENIZE_PARSE_SPECIAL: u32 = 2;

fn tokenizer(engine: &Engine) -> Result<&Arc<Tokenizer>> {
    engine
        .tokenizer()
        .ok_or_else(|| Error::unsupported("this model has no tokenizer: it takes and gives token ids"))
}

/// Writes the ids of `text` (UTF-8, `length` bytes) to `tokens`, which has room for `capacity`, and their
/// number to `*count`. `flags`: `BN_TOKENIZE_*`, or'ed. `tokens` may be NULL where `capacity` is 0, to ask
/// for the number: `BN_ERR_BUFFER_TOO_SMALL` (`BN_OK` where it is 0) is then the answer, no failure.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*count` was written;
/// `BN_ERR_INVALID_ARGUMENT`: NULL, not UTF-8, not an engine; `BN_ERR_UNSUPPORTED`: unknown flag, or the
/// model has no tokenizer; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`;
/// `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_tokenize(
    engine: *mut bn_engine,
    text: *const c_char,
    length: usize,
    flags: u32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> bn_status {
    guard(|| {
        out("count", count)?;
        guard::flags(flags, BN_TOKENIZE_ADD_SPECIAL | BN_TOKENIZE_PARSE_SPECIAL)?;
        // SAFETY: the caller's promise.
        let text = unsafe { guard::text("text", text, length) }?;
        let has = |flag| flags & flag != 0;
        let ids = registry::with(engine, Call::Any, |engine| {
            tokenizer(engine)?.encode(text, has(BN_TOKENIZE_ADD_SPECIAL), has(BN_TOKENIZE_PARSE_SPECIAL))
        })?;
        // SAFETY: `count` was checked; `tokens` is the caller's promise.
        unsafe { copy_out("tokens", &ids, tokens, capacity, count) }
    })
}

/// Writes the text of `tokens` (`count` ids) to `text`, which has room for `capacity` bytes, and the bytes of
/// it all to `*length`: UTF-8, not NUL-terminated; bytes that make no character become U+FFFD, control
/// tokens and ids that the tokenizer has no text for nothing. `text` may be NULL where `capacity` is 0, to ask for the length:
/// `BN_ERR_BUFFER_TOO_SMALL` (`BN_OK` where it is 0) is then the answer, no failure.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*length` was written;
/// `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, an id outside the vocabulary; `BN_ERR_UNSUPPORTED`: the
/// model has no tokenizer; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`;
/// `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_detokenize(
    engine: *mut bn_engine,
    tokens: *const u32,
    count: usize,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> bn_status {
    guard(|| {
        out("length", length)?;
        // SAFETY: the caller's promise.
        let ids = unsafe { slice("tokens", tokens, count) }?;
        let decoded = registry::with(engine, Call::Any, |engine| tokenizer(engine)?.decode(ids))?;
        // SAFETY: `length` was checked; `text` is the caller's promise.
        unsafe { copy_out("text", decoded.as_bytes(), text.cast(), capacity, length) }
    })
}
