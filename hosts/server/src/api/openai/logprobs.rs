//! Log probabilities as OpenAI's chats, its completions and vLLM's prompts have them.
use serde::Serialize;
use serde_json::{Map, Value, json};

/// JSON has no infinities, and a prompt's first token has no probability.
fn number(logprob: f32) -> Value {
    if logprob.is_nan() {
        return Value::Null;
    }
    let value = f64::from(logprob).clamp(-9999.0, 0.0);
    Value::from((value * 1e6).round() / 1e6 + 0.0)
}

fn bytes_of(model: &bn::Model, token: u32) -> Vec<u8> {
    model.token_bytes(token).unwrap_or_default()
}

/// The text of a token; a part of a character becomes U+FFFD.
fn text_of(model: &bn::Model, token: u32) -> String {
    String::from_utf8_lossy(&bytes_of(model, token)).into_owned()
}

/// A token in a chat.
#[derive(Debug, Serialize)]
pub struct TokenLogprob {
    token: String,
    logprob: Value,
    bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<TokenLogprob>>,
}

impl TokenLogprob {
    fn new(model: &bn::Model, entry: &bn::Logprob) -> Self {
        let bytes = bytes_of(model, entry.token);
        let token = String::from_utf8_lossy(&bytes).into_owned();
        Self { token, logprob: number(entry.logprob), bytes, top_logprobs: None }
    }
}

/// The entries of each token, its own first.
fn each(entries: &[bn::Logprob], per_token: usize) -> impl Iterator<Item = &[bn::Logprob]> {
    entries.chunks_exact(per_token.max(1))
}

pub fn token_logprobs(model: &bn::Model, entries: &[bn::Logprob], per_token: usize) -> Vec<TokenLogprob> {
    let one = |entries: &[bn::Logprob]| {
        let top = entries[1..].iter().map(|entry| TokenLogprob::new(model, entry)).collect();
        TokenLogprob { top_logprobs: Some(top), ..TokenLogprob::new(model, &entries[0]) }
    };
    each(entries, per_token).map(one).collect()
}

/// The log probabilities of a completion: four lists of the same length.
#[derive(Debug, Serialize)]
pub struct Texts {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl Texts {
    /// `offset`: number of characters of the text before these tokens.
    pub fn new(model: &bn::Model, entries: &[bn::Logprob], per_token: usize, mut offset: usize) -> Self {
        let count = entries.len() / per_token.max(1);
        let mut texts = Self {
            tokens: Vec::with_capacity(count),
            token_logprobs: Vec::with_capacity(count),
            top_logprobs: Vec::with_capacity(count),
            text_offset: Vec::with_capacity(count),
        };
        for entries in each(entries, per_token) {
            let own = &entries[0];
            texts.tokens.push(text_of(model, own.token));
            texts.token_logprobs.push(number(own.logprob));
            texts.top_logprobs.push(if own.logprob.is_nan() {
                Value::Null
            } else {
                alternatives(model, &entries[1..])
            });
            texts.text_offset.push(offset);
            // Count a character where it begins, since a token may hold only a part of it.
            offset += bytes_of(model, own.token).iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        }
        texts
    }
}

/// The alternatives by their texts. If several tokens have the same text, such as parts of characters, the
/// likeliest counts.
fn alternatives(model: &bn::Model, entries: &[bn::Logprob]) -> Value {
    let mut map = Map::new();
    for entry in entries {
        map.entry(text_of(model, entry.token)).or_insert_with(|| number(entry.logprob));
    }
    Value::Object(map)
}

/// vLLM's `prompt_logprobs`: null for the first token, then maps by token id, the prompt's own token first. A token's
/// rank is known only among those that were asked for.
pub fn of_prompt(model: &bn::Model, entries: &[bn::Logprob], per_token: usize) -> Value {
    let token = |entries: &[bn::Logprob]| {
        let own = &entries[0];
        if own.logprob.is_nan() {
            return Value::Null;
        }
        let rank = entries[1..].iter().position(|entry| entry.token == own.token).map(|at| at + 1);
        let mut map = Map::new();
        let mut add = |entry: &bn::Logprob, rank: Option<usize>| {
            let logprob = number(entry.logprob);
            let value =
                json!({"logprob": logprob, "rank": rank, "decoded_token": text_of(model, entry.token)});
            map.insert(entry.token.to_string(), value);
        };
        add(own, rank);
        for (at, entry) in entries.iter().enumerate().skip(1).filter(|(at, _)| Some(*at) != rank) {
            add(entry, Some(at));
        }
        Value::Object(map)
    };
    each(entries, per_token).map(token).collect()
}
