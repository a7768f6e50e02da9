//! A conversation to the text of a prompt.

use crate::base::{Error, Result, Status};
use crate::engine::Engine;
use crate::ffi::guard::{self, copy_out, guard, out, slice};
use crate::ffi::registry::{self, Call};
use crate::ffi::status::bn_status;
use crate::ffi::types::{bn_chat_message, bn_engine};
use crate::text::chat::MAX_MESSAGES;
use crate::text::{Message, Rendered};
use std::ffi::c_char;

/// `bn_chat_format`'s flags: end with what begins the assistant's answer, so that the model goes on with it.
pub const BN_CHAT_ADD_GENERATION_PROMPT: u32 = 1;
/// `bn_chat_format`'s flags: refuse a role or content that holds a control token written out (like
/// `<|eot_id|>`), with which its author could end the message and begin another in another's name.
pub const BN_CHAT_REFUSE_SPECIAL: u32 = 2;

/// Writes a conversation as the one text that the model was trained to read, by the model's own chat
/// template: `count` messages, first to last, as UTF-8 to `text`, which has room for `capacity` bytes, not
/// NUL-terminated, and the bytes of it all to `*length`. `flags`: `BN_CHAT_*`, or'ed. `text` may be NULL where
/// `capacity` is 0, to ask for the length: `BN_ERR_BUFFER_TOO_SMALL` (`BN_OK` where it is 0) is then the answer,
/// no failure. Each call runs the template.
///
/// Submit the text with `BN_REQUEST_PARSE_SPECIAL`: it holds special tokens written out. A BOS that the template
/// writes is not doubled by submit. With that flag, special tokens that somebody wrote in a message are
/// recognised too, and the text does not tell them from the template's own: for messages from outside,
/// set `BN_CHAT_REFUSE_SPECIAL`. It looks at each role and content by itself, and at control tokens only, so
/// `<think>` and its like, which models write, pass.
///
/// Roles are the model's: mostly "system", "user" and "assistant". The template is a program that came with
/// the model: its steps and memory are bounded (some 24 MB and 40 bytes for each byte of the messages, on this
/// thread while the call runs, not counted in `memory_limit_bytes`), it reads nothing but the messages and
/// the date, and takes up to 65,536 messages of 64 MiB in all.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*length` was written; `BN_ERR_INVALID_ARGUMENT`: NULL,
/// not UTF-8, not an engine, the template refuses these messages (roles that don't alternate, say), or
/// `BN_CHAT_REFUSE_SPECIAL` does; `BN_ERR_UNSUPPORTED`: unknown flag, or the model has no chat template, or one that
/// is not understood or fails (the log says why); `BN_ERR_TOO_LONG`; `BN_ERR_OUT_OF_MEMORY`;
/// `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_chat_format(
    engine: *mut bn_engine,
    messages: *const bn_chat_message,
    count: usize,
    flags: u32,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> bn_status {
    guard(|| {
        out("length", length)?;
        guard::flags(flags, BN_CHAT_ADD_GENERATION_PROMPT | BN_CHAT_REFUSE_SPECIAL)?;
        // SAFETY: the caller's promise.
        let messages = unsafe { conversation(messages, count) }?;
        let made = registry::with(engine, Call::Any, |engine| {
            let made = engine.format_chat(&messages, flags & BN_CHAT_ADD_GENERATION_PROMPT != 0)?;
            if flags & BN_CHAT_REFUSE_SPECIAL != 0 {
                refuse_special(engine, &made)?;
            }
            Ok(made.text)
        })?;
        // SAFETY: `length` was checked; `text` is the caller's promise.
        unsafe { copy_out("text", made.as_bytes(), text.cast(), capacity, length) }
    })
}

/// # Safety
/// `messages` is NULL or points to `count` messages whose strings are as the header says, for `'a`.
unsafe fn conversation<'a>(messages: *const bn_chat_message, count: usize) -> Result<Vec<Message<'a>>> {
    if count > MAX_MESSAGES {
        let message = format!("count is {count}; at most {MAX_MESSAGES} messages are taken");
        return Err(Error::new(Status::TooLong, message));
    }
    // SAFETY: the caller's promise.
    let messages = unsafe { slice("messages", messages, count) }?;
    let mut out = Vec::new();
    let bytes = size_of::<Message>() * count;
    out.try_reserve_exact(count).map_err(|_| Error::out_of_memory("messages", bytes))?;
    for (at, bn_chat_message { role, content }) in messages.iter().enumerate() {
        // SAFETY: the caller's promise.
        let text = |name, from: &crate::ffi::types::bn_string| unsafe {
            guard::text(&format!("messages[{at}].{name}"), from.data, from.length)
        };
        out.push(Message { role: text("role", role)?, content: text("content", content)? });
    }
    Ok(out)
}

/// Where what messages wrote makes or completes a control token.
fn refuse_special(engine: &Engine, made: &Rendered) -> Result<()> {
    let Some(tokenizer) = engine.tokenizer() else { return Ok(()) };
    if tokenizer.encode_chat(made)? == tokenizer.encode(&made.text, true, true)? {
        return Ok(());
    }
    Err(Error::invalid("messages hold a control token written out, which BN_CHAT_REFUSE_SPECIAL refuses"))
}
