//! Conversations with tools to prompts.

use crate::base::{Error, Result};
use crate::ffi::guard::{self, copy_out, guard, out};
use crate::ffi::registry;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;
use crate::model::Loaded;
use crate::text::chat::no_template;
use crate::text::{Chat, Rendered};
use std::ffi::c_char;
use std::sync::Arc;

/// # Safety
/// `chat` is as the header says.
unsafe fn render(model: *const bn_model, chat: bn_string) -> Result<(Arc<Loaded>, Rendered)> {
    // SAFETY: the caller's promise.
    let chat = unsafe { guard::text("chat_json", chat) }?;
    let model = registry::model(model)?;
    let template = model.chat.as_deref().ok_or_else(no_template)?;
    let made = template.render_chat(&Chat::parse(chat)?)?;
    Ok((model, made))
}

/// As `bn_model_chat_format`, of a conversation as `bn_request_params.chat_json` has it.
///
/// [any thread]
/// @return as `bn_model_chat_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_chat_json_format(
    model: *const bn_model,
    chat_json: bn_string,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        out("length", length)?;
        // SAFETY: the caller's promise.
        let (_, made) = unsafe { render(model, chat_json) }?;
        // SAFETY: `length` was checked; `text` is the caller's promise.
        unsafe { copy_out("text", made.text.as_bytes(), text.cast(), capacity, length) }
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// As `bn_model_chat_tokenize`, of a conversation as `bn_request_params.chat_json` has it.
///
/// [any thread]
/// @return as `bn_model_chat_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_chat_json_tokenize(
    model: *const bn_model,
    chat_json: bn_string,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        out("count", count)?;
        // SAFETY: the caller's promise.
        let (model, made) = unsafe { render(model, chat_json) }?;
        let tokenizer = model.tokenizer.as_deref();
        let tokenizer = tokenizer.ok_or_else(|| Error::unsupported("this model has no tokenizer"))?;
        let ids = tokenizer.encode_chat(&made)?;
        // SAFETY: `count` was checked; `tokens` is the caller's promise.
        unsafe { copy_out("tokens", &ids, tokens, capacity, count) }
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}
