//! Text: tokenizers, chat templates, parsed answers, and streaming UTF-8.

pub mod chat;
pub mod formats;
mod json;
pub mod patterns;
pub mod reply;
mod tokenizer;
mod utf8;
pub mod watch;

pub use chat::{Chat, ChatTemplate, Message, Rendered};
pub use tokenizer::{
    JsonFiles, Tokenizer, end_token_pairs, end_tokens_of_gguf, fields_of, only_sentencepiece, token_ids,
    token_text, tokenizer_pairs,
};
pub use utf8::Utf8Stream;
