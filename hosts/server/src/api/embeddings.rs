//! POST /v1/embeddings, and the parts that Ollama's embeddings share with it.
use super::openai::prompt_usage;
use crate::api::write;
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::request::engine::Running;
use crate::request::{length, prompts};
use crate::run::{Api, Call, Generation, Totals};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The number of elements that a request asks for: the first ones of the model's embedding.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size(Option<usize>);

impl Size {
    pub fn of(held: &Held, dimensions: Option<f64>) -> Result<Self> {
        let Some(asked) = dimensions else { return Ok(Self(None)) };
        let own = held.info.embedding_size;
        let size = held.sizes.check(own, asked);
        let size = size.map_err(|words| Failure::invalid(format!("'dimensions' {words}")))?;
        Ok(Self(usize::try_from(size).ok().filter(|_| size < own)))
    }

    /// The vector of an answer. If it had length 1, it is normalized again after it is cut, as models are trained for
    /// (Matryoshka).
    pub fn vector(self, answer: bn::Answer) -> Vec<f32> {
        self.cut(answer.finish.embedding.unwrap_or_default())
    }

    fn cut(self, mut vector: Vec<f32>) -> Vec<f32> {
        let Some(size) = self.0 else { return vector };
        let unit = (length(&vector) - 1.0).abs() < 1e-3;
        vector.truncate(size);
        let length = length(&vector);
        if unit && length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
        vector
    }
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// Requests for the embeddings of prompts, of which there may be more than the queue takes.
pub fn generation(
    prompts: Vec<bn::Prompt>,
    fields: &mut Fields,
    normalization: bn::Normalization,
) -> Result<Generation> {
    let how = bn::EmbeddingParams { normalization, ..bn::EmbeddingParams::default() };
    let mut template = bn::Request { task: bn::Task::Embed(how), ..bn::Request::default() };
    fields.take::<Running>()?.apply(&mut template);
    let mut generation = Generation::samples(&template, prompts, 1, false);
    generation.portions = true;
    Ok(generation)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    input: Option<Value>,
    encoding_format: Option<String>,
    dimensions: Option<f64>,
    truncate: Option<bool>,
}

/// A vector as numbers, or as the base64 of little-endian floats.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Coded {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Coded,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    object: &'static str,
    data: Vec<Entry>,
    model: &'a str,
    usage: Value,
}

pub struct Embeddings {
    model: String,
    base64: bool,
    size: Size,
}

impl Api for Embeddings {
    fn read(_: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let own: Own = fields.take()?;
        let input = own.input.ok_or_else(|| Failure::invalid("'input' is missing"))?;
        let texts = prompts::read("input", &input)?;
        let texts = if own.truncate == Some(true) { length::fit_all(held, texts)? } else { texts };
        let generation = generation(texts, fields, bn::Normalization::Model)?;
        let size = Size::of(held, own.dimensions)?;
        let base64 = match own.encoding_format.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(Failure::invalid("'encoding_format' must be 'float' or 'base64'")),
        };
        Ok((generation, Self { model: held.shown().to_owned(), base64, size }))
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let entry = |(index, answer)| {
            let vector = self.size.vector(answer);
            let embedding = if self.base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Coded::Base64(BASE64_STANDARD.encode(bytes))
            } else {
                Coded::Float(vector)
            };
            Entry { object: "embedding", index, embedding }
        };
        let data = answers.into_iter().enumerate().map(entry).collect();
        let answer = Answer { object: "list", data, model: &self.model, usage: prompt_usage(totals) };
        Ok(write::json(&answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_of_length_1_has_it_again_once_it_is_cut() {
        let vector = vec![0.6, 0.0, 0.8];
        assert_eq!(Size(None).cut(vector.clone()), vector);
        assert_eq!(Size(Some(2)).cut(vector), [1.0, 0.0]);
        assert_eq!(Size(Some(2)).cut(vec![3.0, 4.0, 5.0]), [3.0, 4.0]);
        assert_eq!(Size(Some(1)).cut(vec![0.0, 1.0]), [0.0]);
    }
}
