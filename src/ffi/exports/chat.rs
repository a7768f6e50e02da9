//! Conversations to prompts, with tools or without.

use super::model::tokenizer;
use crate::base::{Error, Result};
use crate::ffi::chat::bn_chat;
use crate::ffi::guard::guard_copy;
use crate::ffi::registry;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::bn_model;
use crate::model::Loaded;
use crate::text::chat::no_template;
use crate::text::{Chat, Rendered};
use std::ffi::c_char;
use std::sync::Arc;

/// The conversation by the model's chat template, and the model.
///
/// # Safety
/// `chat` is NULL or points to a conversation as the header describes it.
unsafe fn rendered(model: *const bn_model, chat: *const bn_chat) -> Result<(Arc<Loaded>, Rendered)> {
    // SAFETY: the caller's promise.
    let chat = unsafe { chat.as_ref() }.ok_or_else(|| Error::invalid("chat is NULL"))?;
    // SAFETY: the caller's promise.
    let (messages, json) = unsafe { (chat.messages()?, chat.json()?) };
    let model = registry::model(model)?;
    let template = model.chat.as_deref().ok_or_else(no_template)?;
    let made = match (chat.messages.is_null(), json) {
        (false, None) => template.render(&messages, true)?,
        (true, Some(json)) => template.render_chat(&Chat::parse(json)?)?,
        (true, None) => return Err(Error::invalid("chat is empty: set messages or json")),
        (false, Some(_)) => return Err(Error::invalid("chat.messages and chat.json are both set")),
    };
    Ok((model, made))
}

/// Writes a conversation as the model's chat template formats it, for display. Do not submit it:
/// control tokens that a user typed would take effect. `messages` end with the beginning of the
/// assistant's answer. At most 64 MiB together. SECURITY.md says how the template is bounded.
///
/// @return `BN_ERR_INVALID_ARGUMENT`: also if there is no conversation, or the template refuses
/// it; `BN_ERR_UNSUPPORTED`: the model has no template, or one that fails or is not understood;
/// `BN_ERR_TOO_LONG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_chat_format(
    model: *const bn_model,
    chat: *const bn_chat,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let (_, made) = unsafe { rendered(model, chat) }?;
        Ok(made.text)
    };
    // SAFETY: the caller's promise for `error`, `text` and `length`.
    unsafe { guard_copy(error, ("text", text.cast::<u8>(), capacity), ("length", length), body) }
}

/// Writes the token ids of that conversation: the prompt that a request with it has.
///
/// @return as `bn_model_chat_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_chat_tokenize(
    model: *const bn_model,
    chat: *const bn_chat,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let (model, made) = unsafe { rendered(model, chat) }?;
        tokenizer(&model)?.encode_chat(&made)
    };
    // SAFETY: the caller's promise for `error`, `tokens` and `count`.
    unsafe { guard_copy(error, ("tokens", tokens, capacity), ("count", count), body) }
}
