//! POST /tokenize and /detokenize: the tokens of a text or a chat, and back. vLLM's and llama.cpp's names work too.
use super::direct;
use super::openai::conversation;
use crate::api::write;
use crate::app::App;
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::request::{length, prompts};
use crate::run::Call;
use axum::body::Body;
use axum::http::{Response, request::Parts};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// Bytes of an answer per token: up to ten digits and a comma.
const BYTES_OF_TOKEN: usize = 11;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    text: Option<Value>,
    /// vLLM's name of the text.
    prompt: Option<Value>,
    /// llama.cpp's name of the text.
    content: Option<Value>,
    #[serde(alias = "add_special")]
    add_special_tokens: Option<bool>,
    parse_special: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Tokens {
    /// With what pictures take, each of which has one token.
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
}

pub async fn tokenize(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    direct::answer(app, parts, body, tokens).await
}

pub async fn detokenize(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    direct::answer(app, parts, body, text).await
}

fn tokens(call: &mut Call, held: &Held, mut fields: Fields) -> Result<String> {
    let own: Own = fields.take()?;
    let texts = [("text", &own.text), ("prompt", &own.prompt), ("content", &own.content)];
    let given = texts.into_iter().find_map(|(name, value)| Some((name, value.as_ref()?)));
    let mut more = 0;
    let tokens = match (fields.get("messages").is_some(), given) {
        (true, Some((name, _))) => {
            return Err(Failure::invalid(format!("'{name}' and 'messages' are both there")));
        }
        (true, None) => {
            let told = held.told(conversation(&mut fields)?)?;
            let length = held.length(&told)?;
            let tokens = held.model.chat_tokenize(&told.chat);
            more = length - tokens.as_ref().map_or(length, Vec::len);
            tokens
        }
        (false, None) => return Err(Failure::invalid("'text' is missing")),
        (false, Some((name, value))) => {
            let text =
                value.as_str().ok_or_else(|| Failure::invalid(format!("'{name}' must be one text")))?;
            let how = bn::Tokenize {
                add_special: own.add_special_tokens.unwrap_or(true),
                parse_special: own.parse_special.unwrap_or(false),
            };
            held.model.tokenize(text, how)
        }
    };
    call.app.unknown_fields(&fields)?;
    let tokens = tokens.map_err(|error| held.failure(&error))?;
    call.lease.take(BYTES_OF_TOKEN * tokens.len())?;
    let answer = Tokens { count: tokens.len() + more, max_model_len: length::context(held)?, tokens };
    Ok(write::json(&answer))
}

fn text(call: &mut Call, held: &Held, mut fields: Fields) -> Result<String> {
    let value = fields.take_value("tokens");
    call.app.unknown_fields(&fields)?;
    let value = value.ok_or_else(|| Failure::invalid("'tokens' is missing"))?;
    let none = value.as_array().is_some_and(Vec::is_empty);
    let mut prompts =
        if none { vec![bn::Prompt::Tokens(Vec::new())] } else { prompts::read("tokens", &value)? };
    let (Some(bn::Prompt::Tokens(tokens)), true) = (prompts.pop(), prompts.is_empty()) else {
        return Err(Failure::invalid("'tokens' must be one list of token ids"));
    };
    let text = held.model.detokenize(&tokens).map_err(|error| held.failure(&error))?;
    call.lease.take(3 * text.len())?;
    // The text under vLLM's and llama.cpp's names.
    Ok(json!({"prompt": text, "content": text}).to_string())
}
