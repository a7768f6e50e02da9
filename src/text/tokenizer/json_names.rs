//! Special tokens in the side files of a folder.

use super::vocab::shown;
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
    pub fn token(&self, key: &str) -> Result<Option<u32>> {
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
    pub fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let what = format!("generation_config.json beside {}", self.what);
        token_ids(self.generation, key, self.n, &what)
    }

    pub fn bos(&self) -> Result<Option<u32>> {
        match self.token("bos_token")? {
            None => Ok(self.ids("bos_token_id")?.first().copied()),
            id => Ok(id),
        }
    }

    pub fn ends(&self) -> Result<Vec<u32>> {
        let mut ends = self.ids("eos_token_id")?;
        ends.extend(self.token("eos_token")?);
        Ok(ends)
    }

    /// The tokens that the post-processor puts `before` a text, with or without BOS as `add_bos_token` says.
    pub fn with_bos(&self, mut before: Vec<u32>, bos: Option<u32>) -> Result<Vec<u32>> {
        match (self.config.get("add_bos_token").and_then(Value::as_bool), bos) {
            (Some(true), None) if before.is_empty() => {
                return Err(Error::bad_model(format!(
                    "tokenizer_config.json beside {}: 'add_bos_token' is true, but 'bos_token' names none",
                    self.what
                )));
            }
            (Some(true), Some(bos)) if !before.contains(&bos) => before.insert(0, bos),
            (Some(false), Some(bos)) => before.retain(|&id| id != bos),
            _ => {}
        }
        Ok(before)
    }

    /// Like `with_bos`, for the tokens `behind` a text, by `add_eos_token`.
    pub fn with_eos(&self, mut behind: Vec<u32>) -> Result<Vec<u32>> {
        let Some(asked) = self.config.get("add_eos_token").and_then(Value::as_bool) else {
            return Ok(behind);
        };
        match (asked, self.token("eos_token")?) {
            (true, None) if behind.is_empty() => {
                return Err(Error::bad_model(format!(
                    "tokenizer_config.json beside {}: 'add_eos_token' is true, but 'eos_token' names none",
                    self.what
                )));
            }
            (true, Some(eos)) if !behind.contains(&eos) => behind.push(eos),
            (false, Some(eos)) => behind.retain(|&id| id != eos),
            _ => {}
        }
        Ok(behind)
    }
}
