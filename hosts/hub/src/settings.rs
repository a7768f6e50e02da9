//! The environment variables that huggingface_hub reads too.
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The hub and the cache to use. [`Settings::from_env`] reads the same variables as huggingface_hub.
#[derive(Clone)]
pub struct Settings {
    /// The hub's URL, without a slash at its end (`HF_ENDPOINT`).
    pub endpoint: String,
    /// The folder of models (`HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`).
    pub cache: PathBuf,
    /// Sent to the endpoint alone (`HF_TOKEN`, or the file that a login left).
    pub token: Option<String>,
    /// Never ask the hub (`HF_HUB_OFFLINE`).
    pub offline: bool,
}

impl Settings {
    pub fn from_env() -> Self {
        Environment { home: env::home_dir(), get: &|name| env::var_os(name) }.settings()
    }
}

struct Environment<'a> {
    home: Option<PathBuf>,
    get: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Environment<'_> {
    fn settings(&self) -> Settings {
        let home = self.hub_home();
        let endpoint = self.text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let cache = self.path("HF_HUB_CACHE").or_else(|| self.path("HUGGINGFACE_HUB_CACHE"));
        Settings {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: cache.unwrap_or_else(|| home.join("hub")),
            token: self.token(&home),
            offline: self.is_true("HF_HUB_OFFLINE") || self.is_true("TRANSFORMERS_OFFLINE"),
        }
    }

    /// The value of a variable; an empty one counts as not set.
    fn value(&self, name: &str) -> Option<OsString> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> Option<String> {
        Some(self.value(name)?.to_string_lossy().into_owned())
    }

    fn is_true(&self, name: &str) -> bool {
        let value = self.text(name).unwrap_or_default().to_ascii_lowercase();
        matches!(value.as_str(), "1" | "true" | "yes" | "on")
    }

    /// A path from a variable, with ~ replaced by the home folder.
    fn path(&self, name: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.value(name)?);
        match (path.strip_prefix("~"), &self.home) {
            (Ok(inside), Some(home)) => Some(home.join(inside)),
            _ => Some(path),
        }
    }

    fn hub_home(&self) -> PathBuf {
        let user = || self.home.clone().unwrap_or_else(env::temp_dir).join(".cache");
        self.path("HF_HOME")
            .unwrap_or_else(|| self.path("XDG_CACHE_HOME").unwrap_or_else(user).join("huggingface"))
    }

    /// A token from the environment, or as huggingface_hub's login leaves it.
    fn token(&self, home: &Path) -> Option<String> {
        let given = self.text("HF_TOKEN").or_else(|| self.text("HUGGING_FACE_HUB_TOKEN"));
        let from_file = || match self.is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            true => None,
            false => read_start(&self.path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"))),
        };
        given
            .or_else(from_file)?
            .split([' ', '\t', '\r', '\n'])
            .next()
            .filter(|t| !t.is_empty())
            .map(str::to_owned)
    }
}

/// The first KiB of a file.
fn read_start(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(1024).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Settings {
        let get = |name: &str| {
            let found = variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Environment { home: Some("/home/me".into()), get: &get }.settings()
    }

    #[test]
    fn nothing_set_is_the_public_hub_and_the_usual_cache() {
        let settings = read(&[]);
        assert_eq!(settings.endpoint, "https://huggingface.co");
        assert_eq!(settings.cache, Path::new("/home/me/.cache/huggingface/hub"));
        assert_eq!(settings.token, None);
        assert!(!settings.offline);
    }

    #[test]
    fn the_cache_is_where_the_first_of_the_variables_says() {
        let cache = |variables: &[(&str, &str)]| read(variables).cache.to_string_lossy().into_owned();
        let all = [
            ("HF_HUB_CACHE", "/a"),
            ("HUGGINGFACE_HUB_CACHE", "~/b"),
            ("HF_HOME", "/c"),
            ("XDG_CACHE_HOME", "/d"),
        ];
        assert_eq!(cache(&all), "/a");
        assert_eq!(cache(&all[1..]), "/home/me/b");
        assert_eq!(cache(&all[2..]), "/c/hub");
        assert_eq!(cache(&all[3..]), "/d/huggingface/hub");
        assert_eq!(cache(&[("HF_HUB_CACHE", ""), ("HF_HOME", "~")]), "/home/me/hub");
        assert_eq!(cache(&[("HF_HOME", "~you/c")]), "~you/c/hub");
    }

    #[test]
    fn endpoints_end_without_slashes_and_flags_are_words() {
        let settings = read(&[("HF_ENDPOINT", "http://mirror/hub//"), ("HF_HUB_OFFLINE", "Yes")]);
        assert_eq!((settings.endpoint.as_str(), settings.offline), ("http://mirror/hub", true));
        assert!(!read(&[("HF_HUB_OFFLINE", "0")]).offline);
    }

    #[test]
    fn a_token_is_the_first_word_of_a_variable_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "secret\nmore\n").unwrap();
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        let token = |variables: &[(&str, &str)]| read(variables).token;
        assert_eq!(token(&[home]).as_deref(), Some("secret"));
        assert_eq!(token(&[home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(token(&[home, ("HF_TOKEN", "mine \n")]).as_deref(), Some("mine"));
        assert_eq!(token(&[("HUGGING_FACE_HUB_TOKEN", "old")]).as_deref(), Some("old"));
        assert_eq!(token(&[("HF_HOME", "/nowhere")]), None);
    }
}
