//! The models that clients may ask for: `--model`, or `--models` with a folder or a list.
use crate::options::{ModelOptions, NO_PICTURES, Options};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The tag that Ollama's clients append to a name.
const TAG: &str = ":latest";
/// The model in the library.
pub const DEMO: &str = "bn-demo";

/// A model of the list.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The name for clients. Empty: the model's own name is used once it is loaded.
    pub name: String,
    /// A file, a folder, `hf:OWNER/NAME` or `builtin:echo`. None: the demo.
    pub path: Option<PathBuf>,
    pub options: ModelOptions,
    pub files: Files,
    /// Its files have a part that sees images.
    pub sees: bool,
    /// The model's file exists. A missing one may come back.
    pub present: bool,
}

/// A model's files, those of its part that sees included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    pub bytes: u64,
    /// When they were written, in seconds since 1970.
    pub written: u64,
}

impl Files {
    pub fn of(path: Option<&Path>, pictures: Option<&Path>) -> Self {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let Some(about) = path.and_then(|path| fs::metadata(path).ok()) else {
            return Self { bytes: 0, written: seconds(SystemTime::now()) };
        };
        let own = path.map_or(0, if about.is_dir() { weights_in } else { bytes_of_parts });
        let bytes = own.saturating_add(pictures.map_or(0, length));
        Self { bytes, written: seconds(about.modified().unwrap_or(UNIX_EPOCH)) }
    }
}

fn weights_in(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    weights.map(|file| length(&file.path())).fold(0, u64::saturating_add)
}

/// The bytes of a model's files from this one on, up to the first that is missing.
fn bytes_of_parts(first: &Path) -> u64 {
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    let lengths = bn_hub::parts_of(&name).map_while(|part| known_length(&first.with_file_name(part)));
    lengths.fold(0, u64::saturating_add)
}

fn length(path: &Path) -> u64 {
    known_length(path).unwrap_or(0)
}

fn known_length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|about| about.len())
}

/// The list of models, and its source.
pub struct List {
    pub models: Vec<Listing>,
    /// The folder, which is scanned again for new models.
    pub folder: Option<Folder>,
    /// Models are loaded when they are asked for, and requests name them.
    pub several: bool,
}

#[derive(Clone)]
pub struct Folder {
    path: PathBuf,
    options: ModelOptions,
}

impl Folder {
    /// Folders in it with GGUF files, which are no models.
    fn passed_over(&self) -> Vec<PathBuf> {
        let has_models = |path: &PathBuf| {
            path.is_dir() && !is_model(path) && paths_in(path).any(|path| path.is_file() && is_model(&path))
        };
        paths_in(&self.path).filter(has_models).collect()
    }

    /// The models that are in the folder now.
    pub fn models(&self) -> Vec<Listing> {
        let mut paths: Vec<_> = paths_in(&self.path).filter(|path| is_model(path)).collect();
        paths.sort();
        let listing = |path: PathBuf| Listing::new(name_of(&path), Some(path), self.options.clone());
        paths.into_iter().map(listing).collect()
    }
}

fn paths_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

impl List {
    /// Err: what is wrong with the options.
    pub fn of(options: &Options) -> Result<Self, String> {
        let Some(models) = &options.models else {
            options.each.check()?;
            if options.max_loaded > 0 || options.models_memory > 0 || !options.idle_unload.is_zero() {
                return Err("--max-loaded, --models-memory and --idle-unload are for --models".to_owned());
            }
            let name = options.model_name.clone().unwrap_or_default();
            let model = Listing::new(name, options.model.as_ref().map(PathBuf::from), options.each.clone());
            return Ok(Self { models: vec![model], folder: None, several: false });
        };
        if options.model.is_some() || options.model_name.is_some() {
            return Err(
                "--models has its own models and names: --model and --model-name are for one".to_owned()
            );
        }
        let list = if Path::new(models).is_dir() {
            options.each.check()?;
            let folder = Folder { path: models.into(), options: options.each.clone() };
            for path in folder.passed_over() {
                let (below, models) = (path.to_string_lossy(), bn_hub::printable(models));
                let below = bn_hub::printable(&below);
                tracing::warn!(
                    "--models: GGUF files in {below} are not served: only those in {models} itself are"
                );
            }
            Self { models: folder.models(), folder: Some(folder), several: true }
        } else {
            let items = models.split(',').filter(|item| !item.is_empty());
            let models = items.map(|item| of_item(options, item)).collect::<Result<_, _>>()?;
            Self { models, folder: None, several: true }
        };
        match (&list.models[..], &list.folder) {
            ([], Some(_)) => Err(format!("--models: no model is in {}", bn_hub::printable(models))),
            ([], None) => Err("--models names no model".to_owned()),
            _ => list.checked(),
        }
    }

    /// Checks that each name belongs to one model only, and to no adapter.
    fn checked(self) -> Result<Self, String> {
        let is_double = |(at, model): &(usize, &Listing)| self.find(&model.name) != Some(*at);
        match self.models.iter().enumerate().find(is_double) {
            Some((_, model)) => Err(format!("--models: two models are called {}", model.name)),
            None => Ok(self),
        }
    }

    /// Merges the models that are in the folder now. Models keep their indices: those whose files are gone are marked
    /// as absent, and new ones are appended. If two have the same name, the first one counts.
    pub fn merge(&mut self, found: Vec<Listing>) {
        for model in &mut self.models {
            let now = found.iter().find(|found| found.path == model.path);
            model.present = now.is_some();
            if let Some(now) = now {
                (model.files, model.sees) = (now.files, now.sees);
            }
        }
        for new in found {
            if !self.models.iter().any(|model| model.path == new.path || model.name == new.name) {
                self.models.push(new);
            }
        }
    }

    /// The indices of the present models in the order for clients: the list's order, or by name for a folder.
    pub fn present(&self) -> Vec<usize> {
        let mut places: Vec<_> = (0..self.models.len()).filter(|at| self.models[*at].present).collect();
        if self.folder.is_some() {
            places.sort_by(|a, b| self.models[*a].name.cmp(&self.models[*b].name));
        }
        places
    }

    /// The model of this name, or the one with an adapter of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        let exact = |name: &str| {
            let has = |model: &Listing| {
                model.present
                    && (model.name == name
                        || model.options.adapters.iter().any(|(adapter, _)| adapter == name))
            };
            self.models.iter().position(has)
        };
        exact(name).or_else(|| exact(name.strip_suffix(TAG)?))
    }
}

impl Listing {
    fn new(name: String, path: Option<PathBuf>, options: ModelOptions) -> Self {
        let part = match options.pictures.as_deref() {
            Some(NO_PICTURES) => None,
            Some(part) => Some(PathBuf::from(part)),
            None => path.as_deref().and_then(|path| bn_hub::beside(path).ok().flatten()),
        };
        let files = Files::of(path.as_deref(), part.as_deref());
        let sees = options.may_see() && (part.is_some() || path.as_deref().is_some_and(says_of_pictures));
        Self { name, path, options, files, sees, present: true }
    }

    /// Whether the files may be a model. No loaded model is unloaded for others.
    pub fn is_plausible(&self) -> bool {
        let options = &self.options;
        let pictures = options.pictures.as_ref().filter(|path| *path != NO_PICTURES);
        let others = [options.draft_model.as_ref(), options.drafter.as_ref(), pictures];
        let mut models = self.path.as_deref().into_iter().chain(others.into_iter().flatten().map(Path::new));
        let mut adapters = options.adapters.iter().map(|(_, path)| path);
        models.all(|path| may_be(path, "config.json"))
            && adapters.all(|path| may_be(path, "adapter_config.json"))
    }

    /// The name of this model or of its adapter that a client means by `name`.
    pub fn shown(&self, name: &str) -> (String, Option<usize>) {
        let named = |name: &str| self.options.adapters.iter().position(|(adapter, _)| adapter == name);
        let plain = name.strip_suffix(TAG).unwrap_or(name);
        let adapter = if self.name == name { None } else { named(name).or_else(|| named(plain)) };
        (adapter.map_or(&self.name, |at| &self.options.adapters[at].0).clone(), adapter)
    }
}

/// Parses `NAME=PATH`, without a name if there is none, and options after semicolons.
fn of_item(options: &Options, item: &str) -> Result<Listing, String> {
    let mut parts = item.split(';');
    let first = parts.next().unwrap_or_default();
    let plain = first.find(['/', ':', '?', '=']).unwrap_or(first.len());
    let (name, path) = match first[plain..].strip_prefix('=') {
        Some(path) => (first[..plain].to_owned(), path),
        None if is_missing(first) => {
            return Err(format!("--models: there is no {}", bn_hub::printable(first)));
        }
        None => (name_of(Path::new(first)), first),
    };
    let own: Vec<_> = parts.filter(|option| !option.is_empty()).collect();
    let path = Some(path).filter(|path| !path.is_empty()).map(PathBuf::from);
    let name = if name.is_empty() { DEMO.to_owned() } else { bn_hub::printable(&name).into_owned() };
    Ok(Listing::new(name, path, options.of_model(&own)?))
}

/// Whether a folder has a file on how pictures are prepared, so that it sees.
fn says_of_pictures(folder: &Path) -> bool {
    ["preprocessor_config.json", "processor_config.json"].iter().any(|name| folder.join(name).exists())
}

/// The last part of a path, without `.gguf`.
pub fn name_of(path: &Path) -> String {
    let last = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    bn_hub::printable(bn_hub::without_gguf(&last)).into_owned()
}

fn is_model(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(about) = fs::metadata(path).ok().filter(|_| !name.starts_with('.')) else { return false };
    if about.is_dir() {
        return path.join("config.json").exists();
    }
    about.is_file() && bn_hub::is_model(&name)
}

/// Whether nothing exists at the path.
fn is_missing(path: &str) -> bool {
    !path.is_empty() && !is_elsewhere(path) && !Path::new(path).exists()
}

/// Whether the model is in the library or on a hub.
fn is_elsewhere(path: &str) -> bool {
    path.starts_with("builtin:") || bn_hub::is_remote(path)
}

/// Whether the beginning of the file or folder may be that of a model (or, with another `config`, of an adapter).
fn may_be(path: &Path, config: &str) -> bool {
    let head = || {
        let mut head = [0; 8];
        let mut file = path.is_file().then(|| fs::File::open(path).ok())??;
        file.read_exact(&mut head).ok().map(|()| head)
    };
    path.to_str().is_some_and(is_elsewhere)
        || path.join(config).exists()
        || head().is_some_and(|head| matches!(&head, b"GGUF\x02\0\0\0" | b"GGUF\x03\0\0\0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(models: &str) -> Result<List, String> {
        List::of(&Options::of_arguments(&["--models", models]))
    }

    fn names(list: &List) -> Vec<&str> {
        list.present().into_iter().map(|at| list.models[at].name.as_str()).collect()
    }

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("bn-server-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_list_has_names_paths_and_options() {
        let path = folder("list").join("b-Q4.GGUF");
        fs::write(&path, "").unwrap();
        let path = path.to_str().unwrap();
        let list = list(&format!("one=a.gguf;max-batch=3,{path},c=builtin:echo?x=1,,hf:o/n")).unwrap();
        assert_eq!(names(&list), ["one", "b-Q4", "c", "n"]);
        let paths: Vec<_> = list.models.iter().map(|model| model.path.clone().unwrap()).collect();
        assert_eq!(paths, ["a.gguf", path, "builtin:echo?x=1", "hf:o/n"].map(PathBuf::from));
        assert_eq!((list.models[0].options.max_batch, list.models[1].options.max_batch), (3, 32));
        assert_eq!(list.find("b-Q4:latest"), Some(1));
        assert_eq!((list.find("b-Q4:old"), list.find("")), (None, None));
    }

    #[test]
    fn wrong_lists_are_refused() {
        for (models, words) in [
            ("a=x,a=y", "two models are called a"),
            ("a=x;port=1", "'port=1' is no option of a model"),
            (",", "names no model"),
            ("builtin:echo,no-such-folder", "there is no no-such-folder"),
            ("a=x;speculation=draft", "--speculation draft needs"),
            ("a=x;adapters=b=z,b=y", "two models are called b"),
        ] {
            assert!(list(models).err().unwrap().contains(words), "{models}");
        }
    }

    #[test]
    fn adapters_are_asked_for_as_models() {
        let list = list("base=x;adapters=poet=p").unwrap();
        assert_eq!((list.find("poet"), list.find("poet:latest")), (Some(0), Some(0)));
        let shown = |name: &str| list.models[0].shown(name);
        assert_eq!(shown("poet:latest"), ("poet".to_owned(), Some(0)));
        assert_eq!(shown("base:latest"), ("base".to_owned(), None));
        assert_eq!(shown("whatever"), ("base".to_owned(), None));
    }

    #[test]
    fn a_folder_is_looked_at_again() {
        let path = folder("again");
        for name in [
            "b.gguf",
            "mmproj-b.gguf",
            "b.imatrix.gguf",
            "E.GGUF",
            "notes.txt",
            ".x.gguf",
            "d-00001-of-00002.gguf",
            "d-00002-of-00002.gguf",
        ] {
            fs::write(path.join(name), "12345").unwrap();
        }
        fs::create_dir_all(path.join("empty")).unwrap();
        fs::create_dir_all(path.join("below")).unwrap();
        fs::write(path.join("below/f.gguf"), "").unwrap();
        let mut list = list(path.to_str().unwrap()).unwrap();
        assert_eq!(names(&list), ["E", "b", "d-00001-of-00002"]);
        assert_eq!(list.folder.as_ref().unwrap().passed_over(), [path.join("below")]);
        // With the part that sees, and with both parts of the model.
        assert_eq!(list.models.iter().map(|model| model.files.bytes).collect::<Vec<_>>(), [5, 10, 10]);
        assert_eq!(list.models.iter().map(|model| model.sees).collect::<Vec<_>>(), [false, true, false]);
        fs::create_dir_all(path.join("c")).unwrap();
        fs::write(path.join("c/config.json"), "{}").unwrap();
        fs::write(path.join("c/x.safetensors"), "1234567").unwrap();
        fs::write(path.join("c/preprocessor_config.json"), "{}").unwrap();
        fs::remove_file(path.join("mmproj-b.gguf")).unwrap();
        fs::write(path.join("a\u{202e}\x1b.gguf"), "").unwrap();
        fs::remove_file(path.join("d-00001-of-00002.gguf")).unwrap();
        list.merge(list.folder.as_ref().unwrap().models());
        assert_eq!(names(&list), ["E", "a", "b", "c"]);
        let found = |name: &str| {
            let model = &list.models[list.find(name).unwrap()];
            (model.files.bytes, model.sees)
        };
        assert_eq!((found("b"), found("c")), ((5, false), (7, true)));
        assert_eq!(list.find("d-00001-of-00002"), None);
        fs::write(path.join("d-00001-of-00002.gguf"), "").unwrap();
        list.merge(list.folder.as_ref().unwrap().models());
        assert_eq!(list.find("d-00001-of-00002"), Some(2));
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_look_at_the_head_tells_what_cannot_be_a_model() {
        let path = folder("head");
        fs::write(path.join("good"), "GGUF\x03\0\0\0and so on").unwrap();
        fs::write(path.join("junk"), "junk and so on").unwrap();
        fs::write(path.join("short"), "GGUF").unwrap();
        fs::write(path.join("config.json"), "{}").unwrap();
        #[cfg(unix)]
        assert!(std::process::Command::new("mkfifo").arg(path.join("pipe")).status().unwrap().success());
        let at = |name: &str| format!("{}/{name}", path.display());
        for (item, expected) in [
            (at("good"), true),
            (at(""), true),
            ("hf:a/b".to_owned(), true),
            (String::new(), true),
            (at("junk"), false),
            (at("short"), false),
            (at("none"), false),
            // It is not opened, which would wait for a writer.
            (at("pipe"), false),
            (format!("{};draft-model={}", at("good"), at("junk")), false),
            (format!("{};drafter={}", at("good"), at("good")), true),
            (format!("{};drafter={}", at("good"), at("junk")), false),
            (format!("{};pictures={}", at("good"), at("good")), true),
            (format!("{};pictures={}", at("good"), at("junk")), false),
            (format!("{};pictures=none", at("good")), true),
            (format!("{};adapters=x={}", at("good"), at("")), false),
        ] {
            let found = list(&format!("a={item}")).unwrap().models[0].is_plausible();
            assert_eq!(found, expected, "{item}");
        }
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        let path = folder("double");
        fs::write(path.join("a.gguf"), "").unwrap();
        fs::create_dir_all(path.join("a")).unwrap();
        fs::write(path.join("a/config.json"), "{}").unwrap();
        assert!(list(path.to_str().unwrap()).err().unwrap().contains("two models are called a"));
        fs::remove_dir_all(path).unwrap();
    }
}
