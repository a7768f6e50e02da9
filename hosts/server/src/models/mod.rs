//! The models that clients may ask for: which are loaded, which requests hold them, which wait. One at a time is loaded or
//! let go, on a thread of its own (keeper.rs), which alone changes what is loaded.
mod held;
mod keeper;
mod list;
mod load;
mod residence;

pub use held::Held;
pub use load::{Check, Loaded};
pub use residence::FOREVER;

use crate::failure::{Failure, Result};
use crate::options::Options;
use axum::http::StatusCode;
use keeper::Shared;
use list::List;
use load::Loader;
use residence::{Limits, Residence};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Status of the server's end: an option does not fit the model.
const WRONG_OPTION: u8 = 2;
/// The same: the model cannot be loaded.
const NO_MODEL: u8 = 3;

pub struct Models {
    shared: Arc<Shared>,
    /// Names that are not there are the first one's.
    any_model: bool,
}

/// A model of the list as it is now.
#[derive(Clone)]
pub struct Model {
    /// The client's name for it.
    pub name: String,
    /// A file, a folder, `hf:OWNER/NAME` or `builtin:echo`. None: the demo.
    pub path: Option<PathBuf>,
    /// Bytes of its files.
    pub bytes: u64,
    /// When they were written, in seconds since 1970.
    pub created: u64,
    pub adapters: Vec<String>,
    /// None: it is not loaded.
    pub loaded: Option<Arc<Loaded>>,
    /// How long it stays if nobody asks for it. `FOREVER`: for good.
    pub left: Duration,
}

impl Models {
    /// The models of the options. `check` says why an option of the server does not fit a model. Err: what is wrong with
    /// the options.
    pub fn new(
        options: &Options,
        on_span: Option<bn::OnSpan>,
        check: Check,
    ) -> std::result::Result<Self, String> {
        let list = List::of(options)?;
        let idle = if options.idle_unload.is_zero() { FOREVER } else { options.idle_unload };
        let limits = Limits { loaded: options.max_loaded, bytes: options.models_memory, idle };
        let loader = Loader { on_span, check, stop: Arc::new(AtomicBool::new(false)) };
        let shared = Shared::new(list, Residence::new(limits), loader);
        Ok(Self { shared: Arc::new(shared), any_model: options.any_model })
    }

    /// Begins to load models.
    pub fn start(&self) -> std::io::Result<()> {
        let shared = self.shared.clone();
        std::thread::Builder::new().name("models".to_owned()).spawn(move || shared.run())?;
        Ok(())
    }

    /// Waits until the only model is loaded; several need not be. Err: the status to end with.
    pub async fn ready(&self) -> std::result::Result<(), u8> {
        let mut ready = self.shared.ready.subscribe();
        let known = ready.wait_for(Option::is_some).await;
        known.ok().and_then(|known| *known).unwrap_or(Err(NO_MODEL))
    }

    /// Waits for an engine's death.
    pub async fn died(&self) {
        let _ = self.shared.died.subscribe().wait_for(|died| *died).await;
    }

    /// There are several, and requests name theirs.
    pub fn several(&self) -> bool {
        self.shared.lock().list.several
    }

    /// The model of a request that names `name`, once it is loaded.
    pub async fn take(&self, name: Option<&str>) -> Result<Held> {
        let known = self.shared.lock().choose(name);
        let known = match known {
            None if self.look_again().await => self.shared.lock().choose(name),
            known => known,
        };
        let any =
            self.any_model.then(|| (self.shared.lock().list.present().first().copied().unwrap_or(0), None));
        let (at, adapter) = known.or(any).ok_or_else(|| no_model(name))?;
        self.shared.enter(at, adapter).await.unwrap_or_else(|_| Err(keeper::ends()))
    }

    /// All models of the list.
    pub async fn list(&self) -> Vec<Model> {
        self.look_again().await;
        let (state, now) = (self.shared.lock(), self.shared.now());
        state.list.present().into_iter().map(|at| state.model(at, now)).collect()
    }

    /// The model of a name or of its adapter's, and what of both it is.
    pub async fn find(&self, name: &str) -> Option<(Model, String)> {
        let known = self.shared.lock().list.find(name);
        if known.is_none() {
            self.look_again().await;
        }
        let (state, now) = (self.shared.lock(), self.shared.now());
        let at = state.list.find(name)?;
        Some((state.model(at, now), state.list.models[at].shown(name).0))
    }

    /// Looks for models that came to the folder later. False: there is no folder.
    async fn look_again(&self) -> bool {
        let Some(folder) = self.shared.lock().list.folder.clone() else { return false };
        if let Ok(found) = tokio::task::spawn_blocking(move || folder.models()).await {
            let mut state = self.shared.lock();
            state.list.merge(found);
            state.settle();
            drop(state);
            self.shared.wake();
        }
        true
    }

    /// Loads nothing any more, and fails what waits for a model. For the server's end.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// A model is being loaded or let go.
    pub fn busy(&self) -> bool {
        self.shared.lock().busy
    }

    /// Ends the engines' acceptance of requests.
    pub fn shutdown(&self, how: bn::Shutdown) {
        for loaded in self.shared.lock().loaded.iter().flatten() {
            let _ = loaded.engine.shutdown(how);
        }
    }
}

fn no_model(name: Option<&str>) -> Failure {
    match name {
        None => Failure::invalid("'model' is missing: this server has several"),
        // Another model's answer would pass for its own.
        Some(name) => {
            let name: String = name.chars().take(200).collect();
            Failure::new(StatusCode::NOT_FOUND, "model_not_found", format!("there is no model '{name}' here"))
        }
    }
}
