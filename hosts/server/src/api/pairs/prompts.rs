//! The prompts of pairs for models that generate text.
use super::asked::Pairs;
use super::template::{Template, spaced};
use crate::failure::{Failure, Result};
use crate::models::Held;
use crate::request::length;
use axum::http::StatusCode;

/// Texts from requests never become control tokens.
const TEXT: bn::Tokenize = bn::Tokenize { add_special: false, parse_special: false };

/// The parts that all prompts of a request have, tokenized once.
struct Common {
    /// The template's parts.
    parts: [Vec<u32>; 3],
    /// The query, if there is only one for all documents.
    query: Option<Vec<u32>>,
}

/// Tokens of a text that follows a part of the template.
fn value(model: &bn::Model, part: &str, text: &str) -> bn::Result<Vec<u32>> {
    match spaced(part) {
        true => model.tokenize(&format!(" {text}"), TEXT),
        false => model.tokenize(text, TEXT),
    }
}

impl Common {
    fn new(model: &bn::Model, template: &Template, queries: &[String]) -> bn::Result<Self> {
        let mut parts = [const { Vec::new() }; 3];
        for (at, part) in template.parts.iter().enumerate() {
            let own = part.strip_suffix(' ').unwrap_or(part);
            if at == 0 || !own.is_empty() {
                let how = bn::Tokenize { add_special: at == 0, parse_special: true };
                parts[at] = model.tokenize(own, how)?;
            }
        }
        let before = &template.parts[usize::from(!template.query_first)];
        let query = match queries {
            [query] => Some(value(model, before, query)?),
            _ => None,
        };
        Ok(Self { parts, query })
    }
}

impl Pairs {
    /// A request for each pair.
    pub fn prompts(&self, held: &Held, template: &bn::Request) -> Result<Vec<bn::Request>> {
        let failure = |error: bn::Error| held.failure(&error);
        let words = self.template.verdict_tokens(&held.model).map_err(failure)?.map_err(Failure::invalid)?;
        let common = Common::new(&held.model, &self.template, &self.queries).map_err(failure)?;
        let most = length::context(held)?;
        let mut requests = Vec::with_capacity(self.documents.len());
        for at in 0..self.documents.len() {
            let (tokens, from) = self.tokens(&held.model, &common, at).map_err(failure)?;
            // Refuse it before the next one is made. The engine would refuse it too, but only with all of them in
            // memory.
            if tokens.len() > most {
                return Err(too_long(at, tokens.len(), most));
            }
            let task = if words.is_empty() { bn::Task::Score { from } } else { bn::Task::Generate };
            requests.push(bn::Request {
                task,
                prompt: bn::Prompt::Tokens(tokens),
                max_new_tokens: 1,
                logprobs: true,
                logprob_tokens: words.clone(),
                ..template.clone()
            });
        }
        Ok(requests)
    }

    /// The tokens of a pair's prompt, and the index of the query's first token.
    fn tokens(&self, model: &bn::Model, common: &Common, at: usize) -> bn::Result<(Vec<u32>, u32)> {
        let (template, mut tokens, mut from) = (&self.template, Vec::new(), 0);
        for (part, ids) in common.parts.iter().enumerate() {
            tokens.extend(ids);
            let is_query = template.query_first == (part == 0);
            match (part, is_query, &common.query) {
                (2, ..) => {}
                (_, true, query) => {
                    from = tokens.len() as u32;
                    match query {
                        Some(query) => tokens.extend(query),
                        None => tokens.extend(value(model, &template.parts[part], &self.queries[at])?),
                    }
                }
                (_, false, _) => {
                    let document = value(model, &template.parts[part], &self.documents[at])?;
                    tokens.extend(&document[..document.len().min(self.document_tokens)]);
                }
            }
        }
        Ok((tokens, from))
    }

    /// The first word's share of both probabilities, or the geometric mean probability of the query's tokens.
    pub fn score(&self, answer: &bn::Answer) -> f64 {
        if let Some([score]) = answer.finish.embedding.as_deref() {
            return f64::from(*score); // by the model's head
        }
        let entries = || answer.logprobs.iter().map(|entry| f64::from(entry.logprob));
        if self.template.words.is_some() {
            return verdict(&entries().take(3).collect::<Vec<_>>());
        }
        // The first token of a prompt has no probability.
        let known: Vec<_> = entries().filter(|logprob| !logprob.is_nan()).collect();
        if known.is_empty() { 0.0 } else { (known.iter().sum::<f64>() / known.len() as f64).exp() }
    }
}

/// The score by the log probabilities of a token and both words.
fn verdict(entries: &[f64]) -> f64 {
    let [_, yes, no] = entries else { return 0.0 };
    let score = 1.0 / (1.0 + (no - yes).exp());
    if score.is_nan() { 0.0 } else { score } // neither word is possible
}

fn too_long(at: usize, count: usize, most: usize) -> Failure {
    let words = format!("request {at}: the prompt has {count} tokens, more than the {most} of a sequence");
    Failure::new(StatusCode::BAD_REQUEST, "context_length_exceeded", words).of_prompt("query and document")
}
