//! Conversations.

use super::guard;
use super::string::bn_string;
use crate::base::{Error, Result, Status, reserve};
use crate::engine::api::Message;
use crate::text::chat::MAX_MESSAGES;

/// A message of a conversation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_chat_message {
    /// "system", "user", "assistant", or another role that the template knows.
    pub role: bn_string,
    /// The text of the message.
    pub content: bn_string,
}

/// A conversation, as `messages` or as `json`, for the model's chat template.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_chat {
    /// Up to 65536 messages, in order; the template begins the assistant's answer. `content` never
    /// becomes a control token, but `role` may.
    pub messages: *const bn_chat_message,
    pub messages_count: usize,
    /// A conversation with tools: a JSON object with the fields that docs/chat.md describes.
    /// Others are refused, nulls ignored. No text in it becomes a control token. At most 64 MiB,
    /// 65536 messages and 1048576 values.
    ///
    /// A `tool_choice` of "required" or a function constrains the output to such a call, "auto"
    /// with `strict` tools or without `parallel_tool_calls` the calls that come; the request has
    /// no `constraint` then. Elsewhere a `constraint` in JSON is for answers that are not calls.
    pub json: bn_string,
    /// Room for later fields: 0.
    pub reserved: [u64; 2],
}

impl bn_chat {
    /// `messages`.
    ///
    /// # Safety
    /// Pointers are NULL or as the fields say, for `'a`.
    pub(super) unsafe fn messages<'a>(&self) -> Result<Vec<Message<'a>>> {
        guard::reserved("chat", &self.reserved)?;
        let count = self.messages_count;
        if count > MAX_MESSAGES {
            let message = format!("{count} messages; at most {MAX_MESSAGES} are taken");
            return Err(Error::new(Status::TooLong, message));
        }
        // SAFETY: the caller's promise.
        let from = unsafe { guard::slice("chat.messages", self.messages, count) }?;
        let mut out = Vec::new();
        reserve(&mut out, count, "messages")?;
        for (at, message) in from.iter().enumerate() {
            // SAFETY: the caller's promise.
            let text = |name, from| unsafe { guard::text(&format_args!("chat.messages[{at}].{name}"), from) };
            let (role, content) = (text("role", message.role)?, text("content", message.content)?);
            if role.is_empty() {
                return Err(Error::invalid(format!("chat.messages[{at}].role is not set")));
            }
            out.push(Message { role, content });
        }
        Ok(out)
    }

    /// `json`, where it is set.
    ///
    /// # Safety
    /// As [`bn_chat::messages`].
    pub(super) unsafe fn json<'a>(&self) -> Result<Option<&'a str>> {
        // SAFETY: the caller's promise.
        unsafe { guard::optional_text("chat.json", self.json) }
    }
}
