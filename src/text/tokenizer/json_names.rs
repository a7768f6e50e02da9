//! Special tokens in the side files of a folder.

use super::bytes::shown;
use crate::base::{Error, Result};
use serde_json::Value;

/// The text of the token that `file` names at `key`: a string, or the `content` of an object.
pub fn token_text<'a>(file: &'a Value, key: &str) -> Option<&'a str> {
    let token = file.get(key)?;
    token.get("content").unwrap_or(token).as_str()
}

/// The id or ids that `file` has at `key`, for a vocabulary of `n` tokens. `what` names the file in errors.
pub fn token_ids(file: &Value, key: &str, n: usize, what: &str) -> Result<Vec<u32>> {
    let values = match file.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(values)) => values.as_slice(),
        Some(value) => std::slice::from_ref(value),
    };
    let id = |value: &Value| {
        value.as_u64().filter(|&id| id < n as u64).map(|id| id as u32).ok_or_else(|| {
            let value = value.to_string();
            let value = shown(&value);
            Error::bad_model(format!("{what}: '{key}' is {value}; the vocabulary has {n} tokens"))
        })
    };
    values.iter().map(id).collect()
}

/// The side files' settings of BOS and EOS.
pub(super) struct Names<'a> {
    pub what: &'a str,
    pub config: &'a Value,
    pub generation: &'a Value,
    pub id_of: &'a dyn Fn(&str) -> Option<u32>,
    pub n: usize,
}

impl Names<'_> {
    /// The token that `tokenizer_config.json` names, as a string or as an object with its `content`.
    pub(super) fn token(&self, key: &str) -> Result<Option<u32>> {
        let value = match self.config.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value.get("content").unwrap_or(value),
        };
        let id = value.as_str().and_then(self.id_of);
        id.map(Some).ok_or_else(|| {
            Error::bad_model(format!(
                "tokenizer_config.json beside {}: '{key}' is {}, which is no token",
                self.what,
                shown(&value.to_string())
            ))
        })
    }

    /// The id or ids that `generation_config.json` names.
    pub(super) fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let what = format!("generation_config.json beside {}", self.what);
        token_ids(self.generation, key, self.n, &what)
    }

    pub(super) fn bos(&self) -> Result<Option<u32>> {
        match self.token("bos_token")? {
            None => Ok(self.ids("bos_token_id")?.first().copied()),
            id => Ok(id),
        }
    }

    pub(super) fn ends(&self) -> Result<Vec<u32>> {
        let mut ends = self.ids("eos_token_id")?;
        ends.extend(self.token("eos_token")?);
        Ok(ends)
    }

    /// The tokens `ids` that the post-processor puts around a text, with or without `token` as
    /// `add_{name}_token` says; it is added at `place`.
    pub(super) fn with(
        &self,
        name: &str,
        mut ids: Vec<u32>,
        token: Option<u32>,
        place: usize,
    ) -> Result<Vec<u32>> {
        match (self.config.get(format!("add_{name}_token")).and_then(Value::as_bool), token) {
            (Some(true), None) if ids.is_empty() => {
                return Err(Error::bad_model(format!(
                    "tokenizer_config.json beside {}: 'add_{name}_token' is true, but '{name}_token' names none",
                    self.what
                )));
            }
            (Some(true), Some(token)) if !ids.contains(&token) => ids.insert(place, token),
            (Some(false), Some(token)) => ids.retain(|&id| id != token),
            _ => {}
        }
        Ok(ids)
    }
}
