//! Models by their names on Hugging Face's hub: found in its cache, or downloaded into it.
//!
//! ```no_run
//! # fn main() -> Result<(), bn_hub::Error> {
//! let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)); // Ctrl-C sets it
//! let settings = bn_hub::Settings::from_env();
//! let mut bar = bn_hub::Bar::new("bn-chat");
//! let path = bn_hub::resolve("hf:OWNER/NAME:Q4_K_M", &settings, &mut bar, &stop)?;
//! # Ok(())
//! # }
//! ```
mod cache;
mod choose;
mod digest;
mod download;
mod error;
mod http;
mod list;
mod name;
mod naming;
mod outside;
mod printable;
mod progress;
mod proxy;
mod remote;
mod settings;
mod sight;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

pub use choose::{is_model, parts_of, without_gguf};
pub use error::Error;
pub use naming::fields_as_options;
pub use outside::{Hosts, Outside};
pub use printable::{printable, printable_lines};
pub use progress::{Bar, Progress, bytes, counted};
pub use settings::Settings;
pub use sight::beside;

use cache::Cache;
use choose::{Chooser, INDEX};
use error::Result;
use http::Client;
use list::List;
use name::Name;
use remote::Listed;

/// Whether a model is named as `hf:OWNER/NAME` or `hf:OWNER/NAME:WHICH`, and is not a path.
pub fn is_remote(name: &str) -> bool {
    name::without_scheme(name).is_some()
}

/// The path of a model's file or folder. A path stays as it is.
///
/// `hf:OWNER/NAME` is looked up on the hub and downloaded into the cache where it is not there yet.
/// `hf:OWNER/NAME:WHICH` says which of its models: a file of the repository, or the type of its GGUF file, as `Q4_K_M`.
/// If the hub cannot be reached, the cached files are used, and `progress` gets a line that says so.
///
/// Soon after `stop` is set, this returns an error with [`Error::is_stopped`]; the next call goes on with the download.
pub fn resolve(
    name: &str,
    settings: &Settings,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> std::result::Result<PathBuf, Error> {
    look(name, settings, progress, stop, false).map(|found| found.path)
}

/// A model's file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub path: PathBuf,
    /// The GGUF file of the part that sees pictures, of a model that is a GGUF file.
    pub pictures: Option<PathBuf>,
    /// Why none of the files that may be that part is taken.
    pub unclear: Option<String>,
}

/// As [`resolve`], with the part of the model that sees pictures: on the hub it is downloaded too, otherwise it is the
/// only `mmproj-*.gguf` beside the file that can belong to it.
pub fn resolve_seeing(
    name: &str,
    settings: &Settings,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> std::result::Result<Found, Error> {
    look(name, settings, progress, stop, true)
}

fn look(
    name: &str,
    settings: &Settings,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
    sees: bool,
) -> Result<Found> {
    if !is_remote(name) {
        let path = PathBuf::from(name);
        let (pictures, unclear) = match if sees { beside(&path) } else { Ok(None) } {
            Ok(part) => (part, None),
            Err(why) => (None, Some(why)),
        };
        return Ok(Found { path, pictures, unclear });
    }
    let name = Name::parse(name)?;
    let cache = Cache::new(&settings.cache, name.folder());
    let client = Client::new(settings.token.as_deref());
    let mut hub = Hub { name, settings, client, progress, stop };
    find(&mut hub, &cache, sees)
}

/// A model and the hub to look for it.
struct Hub<'a> {
    name: Name,
    settings: &'a Settings,
    client: Client,
    progress: &'a mut dyn Progress,
    stop: &'a AtomicBool,
}

impl Hub<'_> {
    /// Returns an error with the text if the caller's flag is set.
    fn check(&self, text: &str) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::stopped(text)) } else { Ok(()) }
    }

    /// The hub's URL for messages.
    fn endpoint(&self) -> Cow<'_, str> {
        printable(&self.settings.endpoint)
    }
}

fn find(hub: &mut Hub, cache: &Cache, sees: bool) -> Result<Found> {
    let (list, offline) = list_files(hub, cache)?;
    let place = format!("{}{}", hub.name.repo, if offline { " in the cache" } else { "" });
    let chooser = Chooser { place, list: &list };
    let mut choice = chooser.choose(hub.name.which.as_deref())?;
    // A folder's index names its weights.
    if choice.files.iter().any(|file| file.name == INDEX) {
        if !offline {
            cache.fill(hub, &list.commit, &choice.files)?;
        }
        choice.files.extend(chooser.shards(&cache.path(&list.commit, INDEX))?);
    }
    let part = if sees && is_model(choice.entry) { chooser.part(choice.entry) } else { None };
    choice.files.extend(part);
    if !offline {
        cache.fill(hub, &list.commit, &choice.files)?;
        cache.set_main(&list.commit)?;
    }
    let path = |name: &str| cache.path(&list.commit, name);
    Ok(Found { path: path(choice.entry), pictures: part.map(|part| path(&part.name)), unclear: None })
}

/// Lists the files of the hub, or those of the cache if the hub is not asked or not reached. Returns true for the
/// cache.
fn list_files(hub: &mut Hub, cache: &Cache) -> Result<(List, bool)> {
    let why = match hub.settings.offline {
        true => "HF_HUB_OFFLINE is set".to_owned(),
        false => match remote::list(hub)? {
            Listed::Here(list) => return Ok((list, false)),
            Listed::Away(why) => why,
        },
    };
    let Some(list) = cache.list() else {
        let folder = hub.settings.cache.to_string_lossy();
        let (repo, folder) = (&hub.name.repo, printable(&folder));
        return Err(Error::failed(format!("{repo} is not in the cache {folder}, and {why}")));
    };
    if !hub.settings.offline {
        hub.progress.note(&format!("{why}: what is in the cache is used"));
    }
    Ok((list, true))
}
