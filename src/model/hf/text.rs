//! Text-related files of a folder: its tokenizer and end tokens, and both with the chat template as GGUF metadata.

use super::chat;
use super::config::parse;
use super::files::{CONFIG, MAX_CONFIG_BYTES, MAX_TOKENIZER_CONFIG_BYTES, TOKENIZER};
use super::folder::HfFolder;
use crate::base::{Bytes, Result};
use crate::formats::gguf::writer::Meta;
use crate::formats::hf::Folder;
use crate::model::sampling::{HF_KEYS, SamplingDefaults};
use crate::text::{JsonFiles, Tokenizer, only_sentencepiece, token_ids, tokenizer_pairs};
use serde_json::Value;

const GENERATION: &str = "generation_config.json";

/// The files that a tokenizer is made of.
struct Files {
    tokenizer: Bytes,
    config: Option<Vec<u8>>,
    generation: Option<Vec<u8>>,
}

impl Files {
    /// `None` if there is no tokenizer; `Unsupported` if there is one that is not read.
    fn read(folder: &Folder) -> Result<Option<Self>> {
        let Some(tokenizer) = folder.map(TOKENIZER)? else {
            return match folder.has("tokenizer.model") {
                true => Err(only_sentencepiece(folder.what())),
                false => Ok(None),
            };
        };
        let config = folder.read("tokenizer_config.json", MAX_TOKENIZER_CONFIG_BYTES)?;
        Ok(Some(Self { tokenizer, config, generation: Some(generation(folder)?.1) }))
    }

    fn json(&self) -> JsonFiles<'_> {
        JsonFiles {
            tokenizer: &self.tokenizer,
            config: self.config.as_deref(),
            generation: self.generation.as_deref(),
        }
    }
}

/// The generation settings: name and content of their own file or, as in transformers, of `config.json`.
fn generation(folder: &Folder) -> Result<(&'static str, Vec<u8>)> {
    match folder.read(GENERATION, MAX_CONFIG_BYTES)? {
        Some(own) => Ok((GENERATION, own)),
        None => Ok((CONFIG, folder.read(CONFIG, MAX_CONFIG_BYTES)?.unwrap_or_else(|| b"{}".into()))),
    }
}

pub(super) fn tokenizer(folder: &Folder, warn: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
    let Some(files) = Files::read(folder)? else { return Ok(None) };
    Tokenizer::from_json(&files.json(), &folder.path_of(TOKENIZER), warn).map(Some)
}

/// `eos_token_id`, one or a list, for a vocabulary of `n` tokens.
pub(super) fn end_tokens(folder: &Folder, n: usize) -> Result<Vec<u32>> {
    let (name, json) = generation(folder)?;
    let what = folder.path_of(name);
    let json = parse(&json, &what)?;
    let mut ids = token_ids(&json, "eos_token_id", n, &what)?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Sampling defaults of the generation settings. Includes `do_sample`: unless it is true, transformers is greedy.
pub(super) fn sampling(folder: &Folder, warn: &dyn Fn(&str)) -> Result<SamplingDefaults> {
    let (name, json) = generation(folder)?;
    let what = folder.path_of(name);
    let json = parse(&json, &what)?;
    let find = |key: &str| {
        let value = json.get(key).filter(|value| !value.is_null())?;
        Some(value.as_f64().unwrap_or(f64::NAN))
    };
    let do_sample = json.get("do_sample").and_then(Value::as_bool).unwrap_or(false);
    Ok(SamplingDefaults::read(&HF_KEYS, &find, &what, warn).drawn_if(do_sample))
}

impl HfFolder {
    /// Tokenizer, end tokens and chat template as GGUF metadata, for a model of `vocab_size` tokens. `Unsupported`
    /// for a tokenizer that GGUF has no keys for.
    pub fn text_pairs(&self, vocab_size: usize, warn: &dyn Fn(&str)) -> Result<Vec<(String, Meta)>> {
        let folder = &self.folder;
        let mut pairs = match Files::read(folder) {
            Ok(Some(files)) => tokenizer_pairs(&files.json(), vocab_size, &folder.path_of(TOKENIZER), warn)?,
            missing => {
                let why = missing.err().map_or_else(|| "there is no tokenizer.json".into(), |e| e.message);
                warn(&format!("the file will take and give token ids only: {why}"));
                let mut pairs = vec![("tokenizer.ggml.model".to_owned(), Meta::from("none"))];
                pairs.extend(crate::text::end_token_pairs(&end_tokens(folder, vocab_size)?, None, warn));
                pairs
            }
        };
        if let Some(source) = chat::source(folder)? {
            pairs.push(("tokenizer.chat_template".into(), Meta::Str(source.text)));
            let for_tools = source.for_tools.map(Meta::Str);
            pairs.extend(for_tools.map(|template| ("tokenizer.chat_template.tool_use".into(), template)));
        }
        Ok(pairs)
    }
}
