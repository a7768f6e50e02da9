//! Conversations to prompts, with tools or without.

use super::model::tokenizer;
use crate::base::Result;
use crate::ffi::guard::{self, copy_out, guard, out};
use crate::ffi::registry;
use crate::ffi::request::conversation;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;
use crate::model::Loaded;
use crate::text::chat::no_template;
use crate::text::{Chat, Rendered};
use std::ffi::c_char;
use std::sync::Arc;

/// A conversation by a model's chat template, and the model.
type Conversation = (Arc<Loaded>, Rendered);

/// Writes the text of a conversation.
///
/// # Safety
/// Pointers are as the header says.
unsafe fn text_of(
    rendered: &dyn Fn() -> Result<Conversation>,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        out("length", length)?;
        let (_, made) = rendered()?;
        // SAFETY: `length` was checked; `text` is the caller's promise.
        unsafe { copy_out("text", made.text.as_bytes(), text.cast(), capacity, length) }
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Writes the token ids of a conversation.
///
/// # Safety
/// Pointers are as the header says.
unsafe fn ids_of(
    rendered: &dyn Fn() -> Result<Conversation>,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        out("count", count)?;
        let (model, made) = rendered()?;
        let ids = tokenizer(&model)?.encode_chat(&made)?;
        // SAFETY: `count` was checked; `tokens` is the caller's promise.
        unsafe { copy_out("tokens", &ids, tokens, capacity, count) }
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// For `bn_model_chat_format` and `bn_model_chat_tokenize`: end with the beginning of the
/// assistant's answer, as submitting `messages` does.
pub const BN_CHAT_ADD_GENERATION_PROMPT: u32 = 1 << 0;

/// # Safety
/// As `conversation`.
unsafe fn of_messages(
    model: *const bn_model,
    messages: *const bn_chat_message,
    count: usize,
    size: usize,
    flags: u32,
) -> Result<Conversation> {
    guard::flags(flags, BN_CHAT_ADD_GENERATION_PROMPT)?;
    // SAFETY: the caller's promise.
    let messages = unsafe { conversation(messages, count, size) }?;
    let model = registry::model(model)?;
    let made = model.chat.as_deref().ok_or_else(no_template)?.render(&messages, flags != 0)?;
    Ok((model, made))
}

/// Writes a conversation as text, as the model's own chat template formats it, to `text`, which
/// has room for `capacity` bytes, and its length to `*length`. `message_size` is
/// `sizeof(bn_chat_message)`. `flags` is 0 or `BN_CHAT_ADD_GENERATION_PROMPT`. To ask for the
/// length alone, pass NULL and 0; each call runs the template.
///
/// This is for display and for tests. To generate from a conversation, submit it as
/// `bn_request_params.messages` or tokenize it with `bn_model_chat_tokenize`: those know which
/// control tokens the template wrote, and which somebody typed into a message.
///
/// The template is a program that came with the model. Its steps and its memory are bounded; it
/// sees only the messages and the date. It takes at most 65536 messages of 64 MiB together.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written;
/// `BN_ERR_INVALID_ARGUMENT`: also if the template refuses the messages; `BN_ERR_UNSUPPORTED`:
/// unknown flag, or the model has no template, or one that fails or is not understood;
/// `BN_ERR_TOO_LONG`; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_chat_format(
    model: *const bn_model,
    messages: *const bn_chat_message,
    messages_count: usize,
    message_size: usize,
    flags: u32,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    // SAFETY: the caller's promise.
    let rendered = || unsafe { of_messages(model, messages, messages_count, message_size, flags) };
    // SAFETY: the caller's promise.
    unsafe { text_of(&rendered, text, capacity, length, error) }
}

/// Writes the token ids of a conversation, formatted by the model's own chat template, to
/// `tokens`, which has room for `capacity`, and their number to `*count`. They are a
/// `bn_request_params.prompt_tokens`. `content` never becomes a control token. `message_size` is
/// `sizeof(bn_chat_message)`. `flags` is 0 or `BN_CHAT_ADD_GENERATION_PROMPT`. To ask for the
/// number alone, pass NULL and 0: the call returns `BN_ERR_BUFFER_TOO_SMALL`, or `BN_OK` if it is
/// 0.
///
/// [any thread]
/// @return as `bn_model_chat_format`, with `*count` for `*length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_chat_tokenize(
    model: *const bn_model,
    messages: *const bn_chat_message,
    messages_count: usize,
    message_size: usize,
    flags: u32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    // SAFETY: the caller's promise.
    let rendered = || unsafe { of_messages(model, messages, messages_count, message_size, flags) };
    // SAFETY: the caller's promise.
    unsafe { ids_of(&rendered, tokens, capacity, count, error) }
}

/// # Safety
/// `chat` is as the header says.
unsafe fn of_json(model: *const bn_model, chat: bn_string) -> Result<Conversation> {
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
    // SAFETY: the caller's promise.
    let rendered = || unsafe { of_json(model, chat_json) };
    // SAFETY: the caller's promise.
    unsafe { text_of(&rendered, text, capacity, length, error) }
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
    // SAFETY: the caller's promise.
    let rendered = || unsafe { of_json(model, chat_json) };
    // SAFETY: the caller's promise.
    unsafe { ids_of(&rendered, tokens, capacity, count, error) }
}
