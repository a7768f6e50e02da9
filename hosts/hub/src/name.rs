//! A model's name, `hf:OWNER/NAME:WHICH`.
use crate::error::{Error, Result};
use crate::printable;

/// The prefix of a name.
const SCHEME: &str = "hf:";

/// The rest of a name after the scheme, which may be in lower or upper case.
pub fn without_scheme(model: &str) -> Option<&str> {
    let (scheme, rest) = model.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(rest)
}

#[derive(Debug, PartialEq)]
pub struct Name {
    /// OWNER/NAME
    pub repo: String,
    /// A file or a type.
    pub which: Option<String>,
}

impl Name {
    pub fn parse(model: &str) -> Result<Self> {
        let name = without_scheme(model).unwrap_or(model);
        let (repo, which) = name.split_once(':').unwrap_or((name, ""));
        if !is_repo(repo) {
            return Err(Error::failed(format!(
                "'{}' is no name on the hub: hf:OWNER/NAME, or hf:OWNER/NAME:Q4_K_M",
                printable(model)
            )));
        }
        Ok(Self { repo: repo.to_owned(), which: (!which.is_empty()).then(|| which.to_owned()) })
    }

    /// The folder in the cache.
    pub fn folder(&self) -> String {
        format!("models--{}", self.repo.replace('/', "--"))
    }
}

/// A repository's name: one or two parts of letters, digits and any of "-_." that do not begin with a dot.
fn is_repo(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(good);
    name.split('/').count() <= 2 && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_repository_and_perhaps_a_file_or_type() {
        for (model, repo, which) in [
            ("hf:tiny/model", "tiny/model", None),
            ("hf:gpt2:", "gpt2", None),
            ("HF:gpt2", "gpt2", None),
            ("hf:a.b/c-d_e.f:Q4_K_M", "a.b/c-d_e.f", Some("Q4_K_M")),
            ("hf:a/b:q/c:d.gguf", "a/b", Some("q/c:d.gguf")),
        ] {
            let expected = Name { repo: repo.to_owned(), which: which.map(str::to_owned) };
            assert_eq!(Name::parse(model).unwrap(), expected);
        }
        assert_eq!(Name::parse("hf:tiny/model").unwrap().folder(), "models--tiny--model");
        assert_eq!(Name::parse("hf:gpt2").unwrap().folder(), "models--gpt2");
    }

    #[test]
    fn others_are_refused() {
        for model in [
            "hf:", "hf:a/b/c", "hf:../a", "hf:a/.b", "hf:/a", "hf:a/", "hf:a b", "hf:a/ü", "hf:a?b", "hf:a\n",
        ] {
            assert!(Name::parse(model).unwrap_err().to_string().contains("is no name on the hub"), "{model}");
        }
        assert!(!Name::parse("hf:\x1b[31m").unwrap_err().to_string().contains('\x1b'));
    }
}
