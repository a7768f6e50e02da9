//! The sizes to which a model's embeddings may be cut, by its files. Models that are trained for it put the most of a
//! vector into its first elements (Matryoshka: Kusupati et al. 2022, arXiv:2205.13147). There is no standard for saying
//! so: `config.json` may have the keys that vLLM and SGLang read, and GGUF has none.
use serde::Deserialize;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Maximum size of the file.
const LONG: u64 = 64 << 20;

/// If nothing is said, any size may be asked for.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Sizes {
    is_matryoshka: Option<bool>,
    matryoshka_dimensions: Option<Vec<u64>>,
}

impl Sizes {
    /// Those of a model's file or folder.
    pub fn of(path: Option<&Path>) -> Self {
        path.and_then(|path| Self::read(&path.join("config.json"))).unwrap_or_default()
    }

    fn read(path: &Path) -> Option<Self> {
        let mut text = Vec::new();
        File::open(path).ok()?.take(LONG).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Checks whether a vector of `own` elements may be cut to `asked`. Err: why not, behind the field's name.
    pub fn check(&self, own: u64, asked: f64) -> Result<u64, String> {
        let fits = asked.fract() == 0.0 && (1.0..=own as f64).contains(&asked);
        let size = asked as u64;
        match (self.is_matryoshka, self.matryoshka_dimensions.as_deref()) {
            _ if !fits => {
                Err(format!("must be a whole number from 1 to {own}, this model's size, and not {asked}"))
            }
            (Some(true), _) | (None, None) => Ok(size),
            _ if size == own => Ok(size),
            (_, Some(sizes)) if sizes.contains(&size) => Ok(size),
            (_, Some(sizes)) if !sizes.is_empty() => {
                let sizes: Vec<_> = sizes.iter().map(u64::to_string).collect();
                let sizes = sizes.join(", ");
                Err(format!(
                    "must be {own} or one of {sizes}, for which this model is trained, and not {size}"
                ))
            }
            _ => Err(format!(
                "must be {own} and not {size}: by its files this model is not trained for shorter embeddings"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn sizes(json: &str) -> Sizes {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_models_size_is_the_limit() {
        let any = Sizes::default();
        assert_eq!((any.check(256, 1.0), any.check(256, 256.0)), (Ok(1), Ok(256)));
        for (asked, shown) in [(0.0, "0"), (257.0, "257"), (1.5, "1.5"), (-1.0, "-1")] {
            let words = format!("must be a whole number from 1 to 256, this model's size, and not {shown}");
            assert_eq!(any.check(256, asked), Err(words));
        }
    }

    #[test]
    fn what_a_file_says_counts() {
        let refused = |json: &str, asked: f64| sizes(json).check(256, asked).unwrap_err();
        let listed = r#"{"matryoshka_dimensions": [64, 128]}"#;
        assert_eq!(
            refused(listed, 32.0),
            "must be 256 or one of 64, 128, for which this model is trained, and not 32"
        );
        assert_eq!((sizes(listed).check(256, 64.0), sizes(listed).check(256, 256.0)), (Ok(64), Ok(256)));
        let all = r#"{"is_matryoshka": true, "matryoshka_dimensions": [64]}"#;
        assert_eq!(sizes(all).check(256, 32.0), Ok(32));
        let none = r#"{"is_matryoshka": false}"#;
        assert!(
            refused(none, 64.0).ends_with("by its files this model is not trained for shorter embeddings")
        );
        assert_eq!(sizes(none).check(256, 256.0), Ok(256));
        assert_eq!(sizes(r#"{"hidden_size": 256}"#), Sizes::default());
    }

    #[test]
    fn folders_have_a_file_and_files_have_none() {
        let folder = std::env::temp_dir().join(format!("bn-server-{}-sizes", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("config.json");
        fs::write(&file, r#"{"matryoshka_dimensions": [8]}"#).unwrap();
        let (here, nowhere) = (Sizes::of(Some(&folder)), Sizes::of(Some(&file)));
        fs::write(&file, r#"{"matryoshka_dimensions": "all"}"#).unwrap();
        let wrong = Sizes::of(Some(&folder));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(here, sizes(r#"{"matryoshka_dimensions": [8]}"#));
        assert_eq!((nowhere, wrong, Sizes::of(None)), (Sizes::default(), Sizes::default(), Sizes::default()));
    }
}
