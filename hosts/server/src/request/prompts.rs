//! Prompts of completions and embeddings: texts or token ids.
use crate::failure::{Failure, Result};
use crate::models::Held;
use serde_json::Value;

/// A text, a list of texts, a list of token ids, or a list of such lists.
pub fn read(field: &str, value: &Value) -> Result<Vec<bn::Prompt>> {
    let wrong = |what: &str| Failure::invalid(format!("'{field}' {what}"));
    let items = match value {
        Value::String(text) => return Ok(vec![bn::Prompt::Text(text.clone())]),
        Value::Array(items) if items.is_empty() => return Err(wrong("must not be empty")),
        Value::Array(items) if items[0].is_number() => {
            return Ok(vec![bn::Prompt::Tokens(tokens(field, items)?)]);
        }
        Value::Array(items) => items,
        _ => return Err(wrong("must be a text, a list of texts or lists of token ids")),
    };
    let prompt = |item: &Value| match item {
        Value::String(text) => Ok(bn::Prompt::Text(text.clone())),
        Value::Array(ids) => Ok(bn::Prompt::Tokens(tokens(field, ids)?)),
        _ => Err(wrong("must have texts or lists of token ids only")),
    };
    items.iter().map(prompt).collect()
}

fn tokens(field: &str, ids: &[Value]) -> Result<Vec<u32>> {
    if ids.is_empty() {
        return Err(Failure::invalid(format!("'{field}' must have no empty list of tokens")));
    }
    let id = |value: &Value| {
        let id = value.as_f64().filter(|id| id.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(id));
        id.map(|id| id as u32).ok_or_else(|| Failure::invalid(format!("'{field}' must have token ids only")))
    };
    ids.iter().map(id).collect()
}

/// A prompt to continue. If it has no tokens, because the tokenizer adds none in front of a text, it gets a token to
/// begin with.
pub fn begun(held: &Held, prompt: bn::Prompt) -> bn::Prompt {
    let how = bn::Tokenize { add_special: true, parse_special: false };
    let first = held.info.bos_token.or(held.info.end_tokens.first().copied());
    match (&prompt, first) {
        (bn::Prompt::Text(text), Some(first)) if text.is_empty() => match held.model.tokenize(text, how) {
            Ok(tokens) if tokens.is_empty() => bn::Prompt::Tokens(vec![first]),
            _ => prompt,
        },
        _ => prompt,
    }
}

/// Texts that end an answer. Empty ones and null are left out.
pub fn stops(field: &str, value: Option<&Value>) -> Result<Vec<String>> {
    let items = match value {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let text = |item: &Value| match item {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        _ => Err(Failure::invalid(format!("'{field}' must be a text or a list of texts"))),
    };
    let mut stops = items.iter().map(text).collect::<Result<Vec<_>>>()?;
    stops.retain(|text| !text.is_empty());
    if stops.len() > bn::MAX_STOPS {
        return Err(Failure::invalid(format!("'{field}' has more than {} texts", bn::MAX_STOPS)));
    }
    Ok(stops)
}
