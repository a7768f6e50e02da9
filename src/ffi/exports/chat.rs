//! Conversations to prompts, with tools or without.

use super::model::tokenizer;
use crate::base::{Error, Result};
use crate::engine::api::Prompt;
use crate::ffi::growth;
use crate::ffi::guard::guard_copy;
use crate::ffi::registry;
use crate::ffi::request::bn_request_params;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::bn_model;
use crate::model::Loaded;
use crate::text::chat::no_template;
use crate::text::{Chat, Rendered};
use std::ffi::c_char;
use std::sync::Arc;

/// The conversation of `params` by the model's chat template, and the model.
///
/// # Safety
/// `params` is NULL or points to parameters as the header describes them.
unsafe fn rendered(
    model: *const bn_model,
    params: *const bn_request_params,
) -> Result<(Arc<Loaded>, Rendered)> {
    // SAFETY: the caller's promise.
    let prompt = unsafe { growth::read(params)?.prompt() }?;
    let model = registry::model(model)?;
    let template = model.chat.as_deref().ok_or_else(no_template)?;
    let made = match prompt {
        Prompt::Chat(messages) => template.render(&messages, true)?,
        Prompt::ChatJson(chat) => template.render_chat(&Chat::parse(&chat)?)?,
        Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Pair(..) => {
            return Err(Error::invalid("the prompt is no conversation: set messages or chat_json"));
        }
    };
    Ok((model, made))
}

/// Writes the conversation of `params`, its `messages` or `chat_json`, as the model's chat template
/// formats it, for display: do not submit it, as a control token that somebody typed is one in it.
/// A `prompt` or `prompt_tokens` is refused, other fields are not read. `messages` end with the
/// beginning of the assistant's answer. At most 65536 messages of 64 MiB together. SECURITY.md says
/// how the template is bounded.
///
/// @return `BN_ERR_INVALID_ARGUMENT`: also if there is no conversation, or the template refuses it;
/// `BN_ERR_UNSUPPORTED`: the model has no template, or one that fails or is not understood;
/// `BN_ERR_TOO_LONG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_chat_format(
    model: *const bn_model,
    params: *const bn_request_params,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let (_, made) = unsafe { rendered(model, params) }?;
        Ok(made.text)
    };
    // SAFETY: the caller's promise for `error`, `text` and `length`.
    unsafe { guard_copy(error, ("text", text.cast::<u8>(), capacity), ("length", length), body) }
}

/// Writes the token ids of that conversation: the prompt that submitting `params` makes.
///
/// @return as `bn_model_chat_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_chat_tokenize(
    model: *const bn_model,
    params: *const bn_request_params,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let (model, made) = unsafe { rendered(model, params) }?;
        tokenizer(&model)?.encode_chat(&made)
    };
    // SAFETY: the caller's promise for `error`, `tokens` and `count`.
    unsafe { guard_copy(error, ("tokens", tokens, capacity), ("count", count), body) }
}
