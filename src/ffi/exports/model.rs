//! Models: open, free, facts, tokens, conversations.

use crate::base::{Error, Result};
use crate::engine::open_model;
use crate::ffi::guard::{self, copy_out, guard, guard_copy, guard_only, guard_out, out, slice};
use crate::ffi::model::{bn_model_config, bn_model_info};
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;
use crate::ffi::{growth, registry};
use crate::model::Loaded;
use crate::text::Tokenizer;
use std::ffi::c_char;

/// Fills `*config` with the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_config_init(config: *mut bn_model_config, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(config, struct_size) })
}

/// Loads a model and writes it to `*out`.
///
/// @return `BN_ERR_UNSUPPORTED`: the model needs something that this version lacks; `BN_ERR_IO`;
/// `BN_ERR_BAD_MODEL`; `BN_ERR_MEMORY_LIMIT`; `BN_ERR_CANCELLED`: `progress` stopped it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_open(
    config: *const bn_model_config,
    out: *mut *mut bn_model,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::begin()?;
        // SAFETY: the caller's promise, as the header states it.
        let config = unsafe { growth::read(config)?.as_engine() }?;
        registry::insert_model(open_model(config)?)
    };
    // SAFETY: the caller's promise for `error` and `out`.
    unsafe { guard_out(error, "out", out, body) }
}

/// Frees a model's handle. Engines made of the model keep it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_free(model: *mut bn_model) -> bn_status {
    guard_only(|| if model.is_null() { Ok(()) } else { registry::free_model(model) })
}

/// Writes a handle of the engine's model to `*out`, for `bn_model_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_model(
    engine: *mut bn_engine,
    out: *mut *mut bn_model,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        let model = registry::with(engine, |engine| Ok(engine.loaded().clone()))?;
        registry::insert_model(model)
    };
    // SAFETY: the caller's promise for `error` and `out`.
    unsafe { guard_out(error, "out", out, body) }
}

/// Prepares `*info` for `bn_model_get_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_info_init(info: *mut bn_model_info, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(info, struct_size) })
}

/// Writes what is known of a model to `*out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_get_info(
    model: *const bn_model,
    out: *mut bn_model_info,
    error: *mut bn_error,
) -> bn_status {
    // SAFETY: the caller's promise. The pointers lie in the model, which lives until it is freed.
    unsafe { guard(error, || growth::write(out, bn_model_info::of(&*registry::model(model)?))) }
}

/// Add the tokens that submitting the text adds: BOS, and an encoder's end token.
pub const BN_TOKENIZE_ADD_SPECIAL: u32 = 1 << 0;
/// Control tokens spelled out in the text become those tokens.
pub const BN_TOKENIZE_PARSE_SPECIAL: u32 = 1 << 1;

pub(super) fn tokenizer(model: &Loaded) -> Result<&Tokenizer> {
    model
        .tokenizer
        .as_deref()
        .ok_or_else(|| Error::unsupported("this model has no tokenizer: it takes and gives token ids"))
}

/// Writes the token ids of `text` to `tokens`. `flags` are `BN_TOKENIZE_*`.
///
/// @return `BN_ERR_UNSUPPORTED`: also if the model has no tokenizer; `BN_ERR_TOO_LONG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_tokenize(
    model: *const bn_model,
    text: bn_string,
    flags: u32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        guard::flags("flags", flags, BN_TOKENIZE_ADD_SPECIAL | BN_TOKENIZE_PARSE_SPECIAL)?;
        // SAFETY: the caller's promise.
        let text = unsafe { guard::text("text", text) }?;
        let (special, parse) = (flags & BN_TOKENIZE_ADD_SPECIAL != 0, flags & BN_TOKENIZE_PARSE_SPECIAL != 0);
        let model = registry::model(model)?;
        let tokenizer = tokenizer(&model)?;
        match special && model.model.facts().encodes {
            true => tokenizer.encode_whole(text, parse),
            false => tokenizer.encode(text, special, parse),
        }
    };
    // SAFETY: the caller's promise for `error`, `tokens` and `count`.
    unsafe { guard_copy(error, ("tokens", tokens, capacity), ("count", count), body) }
}

/// Writes the text of `tokens` to `text`. Bytes that are not UTF-8 become U+FFFD; control tokens
/// have no text; the space that some vocabularies put in front of every text is removed.
///
/// @return `BN_ERR_INVALID_ARGUMENT`: also for an id outside of the vocabulary;
/// `BN_ERR_UNSUPPORTED`: the model has no tokenizer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_detokenize(
    model: *const bn_model,
    tokens: *const u32,
    tokens_count: usize,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let ids = unsafe { slice("tokens", tokens, tokens_count) }?;
        tokenizer(&*registry::model(model)?)?.decode(ids)
    };
    // SAFETY: the caller's promise for `error`, `text` and `length`.
    unsafe { guard_copy(error, ("text", text.cast::<u8>(), capacity), ("length", length), body) }
}

/// Writes the exact bytes of a token, which may be part of a UTF-8 character and begin with a
/// space. A control token gives its name, like `<|eot_id|>`.
///
/// @return as `bn_model_detokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_token_bytes(
    model: *const bn_model,
    token: u32,
    bytes: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        out("length", length)?;
        let model = registry::model(model)?;
        let tokenizer = tokenizer(&model)?;
        let piece = tokenizer.token_piece(token).ok_or_else(|| {
            let size = tokenizer.vocab_size();
            Error::invalid(format!("token is {token}; the vocabulary has {size}"))
        })?;
        // SAFETY: `length` was checked; `bytes` is the caller's promise.
        unsafe { copy_out("bytes", piece, bytes.cast(), capacity, length) }
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}
