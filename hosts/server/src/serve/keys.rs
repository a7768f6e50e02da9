//! The keys that clients must send, if there are any.
use crate::options::Options;
use axum::http::{HeaderMap, header::AUTHORIZATION};
use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

pub struct Keys {
    own: Option<String>,
    file: Option<PathBuf>,
    of_file: RwLock<Vec<String>>,
}

impl Keys {
    pub fn new(options: &Options) -> Result<Self> {
        let keys = Self {
            own: options.api_key.clone(),
            file: options.api_key_file.clone(),
            of_file: RwLock::default(),
        };
        keys.reload()?;
        Ok(keys)
    }

    /// Reads the file again. If that fails, the keys stay.
    pub fn reload(&self) -> Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let wrong = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::InvalidData, format!("{}: {why}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys: Vec<_> = lines.map(str::to_owned).collect();
        if keys.is_empty() {
            return Err(wrong(&"it has no key")); // it would let everybody in
        }
        *self.of_file.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// Whether requests need no key.
    pub fn is_open(&self) -> bool {
        self.own.is_none() && self.file.is_none()
    }

    /// Whether a request has one of the keys. Compares with all of them, so that the time reveals nothing.
    pub fn allow(&self, headers: &HeaderMap) -> bool {
        let named = || headers.get("x-api-key").or(headers.get("api-key")).map(|value| value.as_bytes());
        let given = bearer(headers).or_else(named);
        let of_file = self.of_file.read().unwrap_or_else(PoisonError::into_inner);
        let keys = self.own.iter().chain(of_file.iter());
        self.is_open()
            || given.is_some_and(|given| keys.fold(false, |found, key| found | equals(given, key.as_bytes())))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// Compares in a time that depends only on the lengths.
fn equals(given: &[u8], key: &[u8]) -> bool {
    let own = key.iter().cycle();
    let difference = given.iter().zip(own).fold(0, |all, (one, other)| all | (one ^ other));
    std::hint::black_box(difference) == 0 && given.len() == key.len() && !key.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_of_several_is_enough() {
        let keys = Keys {
            own: Some("secret".into()),
            file: Some(PathBuf::new()),
            of_file: RwLock::new(vec!["first".into(), "second".into()]),
        };
        for (name, value, expected) in [
            ("authorization", "Bearer secret", true),
            ("authorization", "bEARER  second ", true),
            ("x-api-key", "first", true),
            ("api-key", "first", true),
            ("authorization", "Bearer ", false),
            ("authorization", "Bearer secre", false),
            ("authorization", "Bearer secretsecret", false),
            ("authorization", "Basic secret", false),
            ("authorization", "secret", false),
            ("x-api-key", "", false),
            ("x-key", "first", false),
        ] {
            let headers = [(name.parse().unwrap(), value.parse().unwrap())].into_iter().collect();
            assert_eq!(keys.allow(&headers), expected, "{name}: {value}");
        }
    }
}
