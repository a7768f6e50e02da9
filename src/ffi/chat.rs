//! Conversations.

use super::growth::grown;
use super::string::bn_string;

/// A message of a conversation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_chat_message {
    /// "system", "user", "assistant", or another that the template knows.
    pub role: bn_string,
    /// What they say.
    pub content: bn_string,
}

grown!(bn_chat_message: 32; SIZED = false);
