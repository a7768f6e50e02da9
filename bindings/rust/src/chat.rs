//! Conversations.
use crate::{sys, text};
use std::marker::PhantomData;
use std::ptr;

/// A message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Message {
    /// "system", "user", "assistant", or another role that the template knows. It may become a control token.
    pub role: String,
    /// The text, which never becomes control tokens.
    pub content: String,
}

impl Message {
    /// A message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }

    /// A message of the role "system".
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the role "user".
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the role "assistant".
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }
}

/// A conversation, for the model's chat template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Chat {
    /// Messages, in order; the template begins the assistant's answer.
    Messages(Vec<Message>),
    /// A JSON object: a conversation with tools, and more that `docs/chat.md` describes.
    Json(String),
}

impl From<Vec<Message>> for Chat {
    fn from(messages: Vec<Message>) -> Self {
        Self::Messages(messages)
    }
}

/// A conversation in the library's form.
pub(crate) struct RawChat<'a> {
    messages: Option<Vec<sys::bn_chat_message>>,
    json: sys::bn_string,
    _chat: PhantomData<&'a Chat>,
}

impl<'a> RawChat<'a> {
    pub fn new(chat: &'a Chat) -> Self {
        let (messages, json) = match chat {
            Chat::Messages(list) => (Some(list.iter().map(raw_message).collect()), text::NONE),
            Chat::Json(json) => (None, text::view(json)),
        };
        Self { messages, json, _chat: PhantomData }
    }

    /// Valid while this and the conversation are.
    pub fn get(&self) -> sys::bn_chat {
        // The field is set, even if it is empty.
        let (messages, messages_count) =
            self.messages.as_ref().map_or((ptr::null(), 0), |list| (list.as_ptr(), list.len()));
        sys::bn_chat { messages, messages_count, json: self.json, reserved: [0; 2] }
    }
}

fn raw_message(message: &Message) -> sys::bn_chat_message {
    sys::bn_chat_message { role: text::view(&message.role), content: text::view(&message.content) }
}
