//! POST /api/embed, and the older /api/embeddings.
use super::duration::KeepAlive;
use super::line::nanoseconds;
use crate::api::embeddings::{Size, generation};
use crate::api::write;
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::request::{length, prompts};
use crate::run::{Api, Call, Generation, Totals};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Common {
    truncate: Option<bool>,
    keep_alive: Option<KeepAlive>,
    /// Options for loading a model or drawing tokens.
    options: Option<Value>,
}

impl Common {
    /// The requests of the texts in the field `name`. Those that are too long are cut, unless the client says no.
    fn generation(
        &self,
        held: &Held,
        fields: &mut Fields,
        name: &str,
        normalization: bn::Normalization,
    ) -> Result<Generation> {
        let missing = || Failure::invalid(format!("'{name}' is missing"));
        let value = fields.take_value(name).ok_or_else(missing)?;
        // Nothing to embed: the client only loads its model.
        let nothing = value == "" || value.as_array().is_some_and(Vec::is_empty);
        let mut given = if nothing { Vec::new() } else { prompts::read(name, &value)? };
        if self.truncate != Some(false) {
            given = length::fit_all(held, given)?;
        }
        if let Some(KeepAlive(time)) = self.keep_alive {
            held.keep(time);
        }
        generation(given, fields, normalization)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    dimensions: Option<f64>,
}

#[derive(Debug, Serialize)]
struct EmbedAnswer<'a> {
    model: &'a str,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

pub struct Embed {
    model: String,
    size: Size,
    loading: Duration,
}

impl Api for Embed {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let common: Common = fields.take()?;
        // Ollama's embeddings have length 1 with any model.
        let generation = common.generation(held, fields, "input", bn::Normalization::Unit)?;
        let size = Size::of(held, fields.take::<Own>()?.dimensions)?;
        Ok((generation, Self { model: held.shown().to_owned(), size, loading: call.loading }))
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let longest = answers.iter().map(|answer| answer.finish.times.total).max().unwrap_or_default();
        let answer = EmbedAnswer {
            model: &self.model,
            embeddings: answers.into_iter().map(|answer| self.size.vector(answer)).collect(),
            total_duration: nanoseconds(longest.saturating_add(self.loading)),
            load_duration: nanoseconds(self.loading),
            prompt_eval_count: totals.prompt,
        };
        Ok(write::json(&answer))
    }
}

pub struct Embeddings;

impl Api for Embeddings {
    fn read(_: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let common: Common = fields.take()?;
        let generation = common.generation(held, fields, "prompt", bn::Normalization::Model)?;
        if generation.requests.len() > 1 {
            return Err(Failure::invalid("'prompt' must be one text"));
        }
        Ok((generation, Self))
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, _totals: &Totals) -> Result<String> {
        let vector = answers.into_iter().next().and_then(|answer| answer.finish.embedding);
        Ok(write::json(&BTreeMap::from([("embedding", vector.unwrap_or_default())])))
    }
}
