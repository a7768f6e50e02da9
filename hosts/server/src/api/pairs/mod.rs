//! Documents scored for queries: POST /v1/rerank, as in Cohere's, Jina's and vLLM's APIs, and vLLM's /v1/score.
mod asked;
mod prompts;
mod template;

pub use template::Template;

use crate::api::openai::prompt_usage;
use crate::failure::{Failure, Result};
use crate::fields::{Fields, U32, Whole};
use crate::models::Held;
use crate::run::{Api, Call, Generation, Totals};
use asked::{Own, Pairs};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RerankFields {
    query: Option<String>,
    documents: Option<Value>,
    top_n: Option<Whole<0, U32>>,
    return_documents: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ScoreFields {
    text_1: Option<Value>,
    queries: Option<Value>,
    text_2: Option<Value>,
    documents: Option<Value>,
}

/// A field under one of its two names. The first one counts.
fn either(
    first: (&'static str, Option<Value>),
    other: (&'static str, Option<Value>),
) -> Result<(&'static str, Value)> {
    match (first, other) {
        ((name, Some(value)), _) | (_, (name, Some(value))) => Ok((name, value)),
        ((name, None), _) => Err(Failure::invalid(format!("'{name}' is missing"))),
    }
}

/// The fields that an answer begins with.
fn head(call: &Call, held: &Held, kind: &str) -> Value {
    let id = format!("{kind}-{:016x}", call.id);
    json!({"id": id, "object": "list", "created": call.created, "model": held.shown()})
}

/// The rest of an answer.
fn end(mut head: Value, field: &str, list: Vec<Value>, totals: &Totals) -> String {
    head[field] = list.into();
    head["usage"] = prompt_usage(totals);
    head.to_string()
}

pub struct Rerank {
    head: Value,
    pairs: Pairs,
    most: usize,
    return_documents: bool,
}

impl Api for Rerank {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let (asked, own) = (fields.take::<RerankFields>()?, fields.take::<Own>()?);
        let documents = asked.documents.ok_or_else(|| Failure::invalid("'documents' is missing"))?;
        let query = asked.query.ok_or_else(|| Failure::invalid("'query' is missing"))?;
        let query = Value::String(query);
        let (pairs, by_head) = Pairs::new(call, held, own, ("query", &query), ("documents", &documents))?;
        let generation = pairs.generation(held, by_head, fields)?;
        let most = asked.top_n.map_or(0, |most| most.u32() as usize);
        Ok((
            generation,
            Self {
                head: head(call, held, "rerank"),
                most: if most == 0 { pairs.documents.len() } else { most },
                pairs,
                return_documents: asked.return_documents == Some(true),
            },
        ))
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let mut scores: Vec<_> = answers.iter().map(|answer| self.pairs.score(answer)).enumerate().collect();
        scores.sort_by(|a, b| b.1.total_cmp(&a.1)); // equal scores keep their order
        scores.truncate(self.most);
        let ranked = |(index, score): (usize, f64)| {
            let mut ranked = json!({"index": index, "relevance_score": score});
            if self.return_documents {
                ranked["document"] = json!({"text": self.pairs.documents[index]});
            }
            ranked
        };
        let results = scores.into_iter().map(ranked).collect();
        Ok(end(self.head.take(), "results", results, totals))
    }
}

pub struct Score {
    head: Value,
    pairs: Pairs,
}

impl Api for Score {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let (asked, own) = (fields.take::<ScoreFields>()?, fields.take::<Own>()?);
        let (second, documents) = either(("text_2", asked.text_2), ("documents", asked.documents))?;
        let (first, queries) = either(("text_1", asked.text_1), ("queries", asked.queries))?;
        let (pairs, by_head) = Pairs::new(call, held, own, (first, &queries), (second, &documents))?;
        let generation = pairs.generation(held, by_head, fields)?;
        Ok((generation, Self { head: head(call, held, "score"), pairs }))
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let scored =
            |(index, answer)| json!({"index": index, "object": "score", "score": self.pairs.score(answer)});
        let data = answers.iter().enumerate().map(scored).collect();
        Ok(end(self.head.take(), "data", data, totals))
    }
}
