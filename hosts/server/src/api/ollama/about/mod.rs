//! Descriptions of models, including those that are not loaded: read from the beginnings of their files, once for each
//! file.
mod folder;
mod gguf;
mod types;

use crate::api::infill;
use crate::models::Model;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

/// The description of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    pub architecture: String,
    pub parameters: u64,
    /// The usual name of the type, like `Q4_K_M`.
    pub quantization: String,
    /// Context length in tokens.
    pub context_length: u64,
    /// The model makes only embeddings.
    pub embeds: bool,
    /// The chat template; empty: the model has none.
    template: String,
    /// The model has a chat template, though its text may be unknown.
    pub chats: bool,
    /// The model has control tokens for filling in the middle.
    pub infills: bool,
    /// The model sees images.
    pub sees: bool,
    /// The keys of the files, in GGUF's form.
    values: Map<String, Value>,
}

/// Identifies a model's files by path, size and time.
type Key = (PathBuf, u64, u64);

/// Maximum number of cached descriptions; lists are seldom longer.
const MOST_CACHED: usize = 1024;

static CACHE: LazyLock<Mutex<HashMap<Key, About>>> = LazyLock::new(Mutex::default);

impl About {
    /// The description of a model. May read files.
    pub fn of(model: &Model) -> Self {
        let path = model.loaded.as_ref().map_or(model.path.as_deref(), |loaded| loaded.path.as_deref());
        let mut about = match path {
            Some(path) if path.exists() => Self::cached((path.to_owned(), model.bytes, model.created)),
            // The models inside the library can chat.
            _ => Self { format: "gguf", chats: true, ..Self::default() },
        };
        about.sees = model.sees;
        if let Some(loaded) = &model.loaded {
            let info = &loaded.info;
            about.architecture.clone_from(&info.architecture);
            (about.parameters, about.context_length) = (info.parameters, info.context_length);
            about.embeds |= info.encodes;
            about.chats = info.has_chat_template;
            about.infills = infill::is_known(&loaded.model);
        }
        about
    }

    fn cached(key: Key) -> Self {
        let lock = || CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(about) = lock().get(&key) {
            return about.clone();
        }
        let about = Self::read(&key.0);
        let mut cache = lock();
        if cache.len() >= MOST_CACHED {
            cache.clear();
        }
        cache.insert(key, about.clone());
        about
    }

    /// Reads the files. Errors are ignored, since loading the model reports them.
    fn read(path: &Path) -> Self {
        let (format, read) =
            if path.is_dir() { ("safetensors", folder::read(path)) } else { ("gguf", gguf::read(path)) };
        Self { format, ..read.unwrap_or_default() }
    }

    /// In Ollama's words.
    pub fn capabilities(&self) -> Vec<&'static str> {
        if self.embeds {
            return vec!["embedding"];
        }
        let thinks = ["enable_thinking", "<think>", "reasoning_content", "<|channel|>"];
        let all = [
            ("completion", true),
            ("tools", self.chats),
            ("insert", self.infills),
            ("vision", self.sees),
            ("thinking", thinks.iter().any(|mark| self.template.contains(mark))),
        ];
        all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }

    /// The keys of the files, and those that all models have.
    pub fn values(&self) -> Map<String, Value> {
        let mut values = self.values.clone();
        let architecture = &self.architecture;
        if !architecture.is_empty() {
            values.insert("general.architecture".to_owned(), architecture.as_str().into());
            values.insert("general.parameter_count".to_owned(), self.parameters.into());
            values.insert(format!("{architecture}.context_length"), self.context_length.into());
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_of_the_template() {
        let about =
            About { chats: true, template: "{% if enable_thinking %}".to_owned(), ..About::default() };
        assert_eq!(about.capabilities(), ["completion", "tools", "thinking"]);
        assert_eq!(About { infills: true, ..About::default() }.capabilities(), ["completion", "insert"]);
        assert_eq!(About { sees: true, ..About::default() }.capabilities(), ["completion", "vision"]);
        assert_eq!(About { embeds: true, ..about }.capabilities(), ["embedding"]);
    }
}
