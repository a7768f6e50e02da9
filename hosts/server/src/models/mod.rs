//! The models that clients may ask for: which are loaded, which requests hold them, and which wait. One at a time is
//! loaded or unloaded, by a thread of its own (keeper.rs), which alone changes the set of loaded models.
mod held;
mod keeper;
mod list;
mod load;
mod residence;
mod sizes;
mod state;

pub use held::Held;
pub use load::{Check, Loaded};
pub use residence::FOREVER;

use crate::failure::{Failure, Result};
use crate::options::Options;
use axum::http::StatusCode;
use list::List;
use load::Loader;
use residence::{Limits, Residence};
use state::{State, Waiter};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Exit status of the server: an option does not fit the model.
const WRONG_OPTION: u8 = 2;
/// Exit status of the server: the model cannot be loaded.
const NO_MODEL: u8 = 3;

pub struct Models {
    loader: Loader,
    /// Unknown names mean the first model.
    any_model: bool,
    /// Whether the first model is loaded, or the status to end with. None until that is known.
    ready: watch::Sender<Option<std::result::Result<(), u8>>>,
    /// An engine died.
    died: watch::Sender<bool>,
    state: Mutex<State>,
    /// Notified when something changed that the thread may have to act on.
    changed: Condvar,
    start: Instant,
}

/// The current state of a model in the list.
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
    /// It sees images; before it is loaded, that its files have a part for that.
    pub sees: bool,
    /// The loaded model; None: it is not loaded.
    pub loaded: Option<Arc<Loaded>>,
    /// How long it stays without requests. `FOREVER`: always.
    pub left: Duration,
}

impl Models {
    /// The models of the options. `check` says why an option of the server does not fit a model. Err: what is wrong
    /// with the options.
    pub fn new(
        options: &Options,
        on_span: Option<bn::OnSpan>,
        check: Check,
    ) -> std::result::Result<Arc<Self>, String> {
        let list = List::of(options)?;
        let idle = if options.idle_unload.is_zero() { FOREVER } else { options.idle_unload };
        let limits = Limits { loaded: options.max_loaded, bytes: options.models_memory, idle };
        let loader = Loader { on_span, check, stop: Arc::new(AtomicBool::new(false)) };
        Ok(Arc::new(Self {
            loader,
            any_model: options.any_model,
            ready: watch::Sender::new(list.several.then_some(Ok(()))),
            died: watch::Sender::new(false),
            state: Mutex::new(State::new(list, Residence::new(limits))),
            changed: Condvar::new(),
            start: Instant::now(),
        }))
    }

    /// Begins to load models.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let models = self.clone();
        std::thread::Builder::new().name("models".to_owned()).spawn(move || models.run())?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until the only model is loaded. Does not wait with several models. Err: the status to end with.
    pub async fn ready(&self) -> std::result::Result<(), u8> {
        let mut ready = self.ready.subscribe();
        let known = ready.wait_for(Option::is_some).await;
        known.ok().and_then(|known| *known).unwrap_or(Err(NO_MODEL))
    }

    /// Waits for an engine's death.
    pub async fn died(&self) {
        let _ = self.died.subscribe().wait_for(|died| *died).await;
    }

    /// Whether there are several models, so that requests name theirs.
    pub fn several(&self) -> bool {
        self.lock().list.several
    }

    /// The model of a request that names `name`, once it is loaded.
    pub async fn take(self: &Arc<Self>, name: Option<&str>) -> Result<Held> {
        let known = self.lock().choose(name);
        let known = match known {
            None if self.look_again().await => self.lock().choose(name),
            known => known,
        };
        let any = self.any_model.then(|| (self.lock().list.present().first().copied().unwrap_or(0), None));
        let (at, adapter) = known.or(any).ok_or_else(|| no_model(name))?;
        self.enter(at, adapter).await.unwrap_or_else(|_| Err(ends()))
    }

    /// Gives the model, or lets the request wait for it.
    fn enter(self: &Arc<Self>, at: usize, adapter: Option<usize>) -> oneshot::Receiver<Result<Held>> {
        let (answer, later) = oneshot::channel();
        let mut state = self.lock();
        if let Some(held) = self.hold(&mut state, at, adapter) {
            let _ = answer.send(Ok(held));
        } else if state.stopped {
            let _ = answer.send(Err(ends()));
        } else {
            state.waiters.push(Waiter { at, adapter, answer });
            drop(state);
            self.changed.notify_one();
        }
        later
    }

    fn hold(self: &Arc<Self>, state: &mut State, at: usize, adapter: Option<usize>) -> Option<Held> {
        let loaded = state.loaded[at].clone().filter(|_| state.residence.models[at].is_free())?;
        state.residence.hold(at);
        let (keep, places) = (OnceLock::new(), OnceLock::new());
        Some(Held { models: self.clone(), at, loaded, adapter, keep, places })
    }

    fn leave(&self, at: usize, keep: Option<Duration>, died: bool) {
        if died && !self.died.send_replace(true) {
            tracing::error!("the engine died");
        }
        let now = self.now();
        let mut state = self.lock();
        let keep = keep.filter(|_| state.list.several);
        state.residence.leave(at, keep, now);
        // Most requests leave nothing to do, and waking the thread costs more than all of this.
        let may_go = !state.waiters.is_empty() || state.residence.left(at, now) != FOREVER;
        drop(state);
        if may_go {
            self.changed.notify_one();
        }
    }

    /// All models of the list.
    pub async fn list(&self) -> Vec<Model> {
        self.look_again().await;
        let (state, now) = (self.lock(), self.now());
        state.list.present().into_iter().map(|at| state.model(at, now)).collect()
    }

    /// The model with this name, or with an adapter of this name; and which of both it is.
    pub async fn find(&self, name: &str) -> Option<(Model, String)> {
        let known = self.lock().list.find(name);
        if known.is_none() {
            self.look_again().await;
        }
        let (state, now) = (self.lock(), self.now());
        let at = state.list.find(name)?;
        Some((state.model(at, now), state.list.models[at].shown(name).0))
    }

    /// Looks for new models in the folder. False: there is no folder.
    async fn look_again(&self) -> bool {
        let Some(folder) = self.lock().list.folder.clone() else { return false };
        if let Ok(found) = tokio::task::spawn_blocking(move || folder.models()).await {
            let mut state = self.lock();
            state.list.merge(found);
            state.settle();
            drop(state);
            self.changed.notify_one();
        }
        true
    }

    /// Stops loading, and fails all requests that wait for a model. For the end of the server.
    pub fn stop(&self) {
        self.loader.stop.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        state.stopped = true;
        state.fail(|_| true, &ends());
        drop(state);
        self.changed.notify_one();
    }

    /// Whether a model is being loaded or unloaded.
    pub fn busy(&self) -> bool {
        self.lock().busy
    }

    /// Ends the engines' acceptance of requests.
    pub fn shutdown(&self, how: bn::Shutdown) {
        for loaded in self.lock().loaded.iter().flatten() {
            let _ = loaded.engine.shutdown(how);
        }
    }
}

fn no_model(name: Option<&str>) -> Failure {
    // Another model's answer would be taken for its own.
    name.map_or_else(|| Failure::invalid("'model' is missing: this server has several"), not_found)
}

/// The failure for an unknown model name, in the words that Ollama's clients look for.
pub fn not_found(name: &str) -> Failure {
    let name: String = name.chars().take(200).collect();
    Failure::new(StatusCode::NOT_FOUND, "model_not_found", format!("model '{name}' not found"))
}

fn ends() -> Failure {
    Failure::unavailable("unavailable", "the server is shutting down", 0)
}
