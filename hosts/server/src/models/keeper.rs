//! The thread that loads models and lets go of them, and what it shares with requests.
use super::held::Held;
use super::list::{List, Listing};
use super::load::{Loaded, Loader, Unloaded};
use super::residence::{Residence, Step};
use super::{Model, NO_MODEL, WRONG_OPTION};
use crate::failure::{Failure, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

pub struct Shared {
    pub loader: Loader,
    /// Whether the first model is there, or the status to end with. It is None until that is known.
    pub ready: watch::Sender<Option<std::result::Result<(), u8>>>,
    /// An engine died.
    pub died: watch::Sender<bool>,
    state: Mutex<State>,
    changed: Condvar,
    start: Instant,
}

pub struct State {
    pub list: List,
    pub residence: Residence,
    /// At the list's places.
    pub loaded: Vec<Option<Arc<Loaded>>>,
    waiters: Vec<Waiter>,
    /// Loaded though no request waits for it.
    first: Option<usize>,
    /// A model is being loaded or let go.
    pub busy: bool,
    stopped: bool,
}

/// A request that waits for a model.
struct Waiter {
    at: usize,
    adapter: Option<usize>,
    answer: oneshot::Sender<Result<Held>>,
}

impl State {
    /// Makes places for models that came to the list, and takes the sizes of their files. Those whose files are gone need
    /// not stay.
    pub fn settle(&mut self) {
        self.residence.places.resize_with(self.list.models.len(), Default::default);
        self.loaded.resize_with(self.list.models.len(), Default::default);
        for (place, model) in self.residence.places.iter_mut().zip(&self.list.models) {
            (place.file_bytes, place.more_bytes) = (model.files.bytes, model.options.kv_cache);
            if !model.present {
                place.keep = Some(Duration::ZERO);
            }
        }
    }

    /// The place of the model that a request means, and that of its adapter.
    pub fn choose(&self, name: Option<&str>) -> Option<(usize, Option<usize>)> {
        match name {
            None => (!self.list.several).then_some((0, None)),
            Some(name) => self.list.find(name).map(|at| (at, self.list.models[at].shown(name).1)),
        }
    }

    /// The model as it is now.
    pub fn model(&self, at: usize, now: Duration) -> Model {
        let listing = &self.list.models[at];
        Model {
            name: listing.name.clone(),
            path: listing.path.clone(),
            bytes: listing.files.bytes,
            created: listing.files.written,
            adapters: listing.adapters.iter().map(|(name, _)| name.clone()).collect(),
            loaded: self.loaded[at].clone(),
            left: self.residence.left(at, now),
        }
    }

    /// The model that is to be loaded next: for the request that has waited longest.
    fn wanted(&self) -> Option<usize> {
        let waited = self.waiters.iter().map(|waiter| waiter.at);
        self.first.into_iter().chain(waited).find(|at| !self.residence.places[*at].here)
    }

    fn measure(&mut self) {
        for (place, loaded) in self.residence.places.iter_mut().zip(&self.loaded) {
            let stats = loaded.as_ref().and_then(|loaded| loaded.engine.stats().ok());
            place.held_bytes = stats.map_or(place.held_bytes, |stats| stats.memory_used_bytes);
        }
    }

    fn fail(&mut self, which: impl Fn(usize) -> bool, failure: &Failure) {
        for waiter in self.waiters.extract_if(.., |waiter| which(waiter.at)) {
            let _ = waiter.answer.send(Err(failure.clone()));
        }
    }
}

impl Shared {
    pub fn new(list: List, residence: Residence, loader: Loader) -> Self {
        let first = (!list.several).then_some(0);
        let ready = watch::Sender::new(list.several.then_some(Ok(())));
        let (loaded, waiters) = (Vec::new(), Vec::new());
        let mut state = State { list, residence, loaded, waiters, first, busy: false, stopped: false };
        state.settle();
        let (died, changed) = (watch::Sender::new(false), Condvar::new());
        Self { loader, ready, died, state: Mutex::new(state), changed, start: Instant::now() }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Something changed that the thread may have to act on.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    // -- requests ---------------------------------------------------------------------------------------

    /// Gives the model, or lets the request wait for it.
    pub fn enter(self: &Arc<Self>, at: usize, adapter: Option<usize>) -> oneshot::Receiver<Result<Held>> {
        let (answer, later) = oneshot::channel();
        let mut state = self.lock();
        if let Some(held) = self.hold(&mut state, at, adapter) {
            let _ = answer.send(Ok(held));
        } else if state.stopped {
            let _ = answer.send(Err(ends()));
        } else {
            state.waiters.push(Waiter { at, adapter, answer });
            drop(state);
            self.wake();
        }
        later
    }

    fn hold(self: &Arc<Self>, state: &mut State, at: usize, adapter: Option<usize>) -> Option<Held> {
        let loaded = state.loaded[at].clone().filter(|_| state.residence.places[at].is_free())?;
        state.residence.hold(at);
        Some(Held { shared: self.clone(), at, loaded, adapter, keep: OnceLock::new() })
    }

    pub fn leave(&self, at: usize, keep: Option<Duration>, died: bool) {
        if died && !self.died.send_replace(true) {
            tracing::error!("the engine died");
        }
        let now = self.now();
        let mut state = self.lock();
        let keep = keep.filter(|_| state.list.several);
        state.residence.leave(at, keep, now);
        drop(state);
        self.wake();
    }

    /// Fails what waits, and ends the thread.
    pub fn stop(&self) {
        self.loader.stop.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        state.stopped = true;
        state.fail(|_| true, &ends());
        drop(state);
        self.wake();
    }

    // -- the thread -------------------------------------------------------------------------------------

    /// Does what is to be done until the server ends.
    pub fn run(self: &Arc<Self>) {
        loop {
            let missed = self.serve(&mut self.lock());
            drop(missed); // which takes the lock
            let mut state = self.lock();
            state.busy = false;
            if state.stopped {
                return;
            }
            let wanted = state.wanted();
            if wanted.is_some() {
                state.measure();
            }
            match state.residence.turn(wanted, self.now()) {
                Step::Load(at) => {
                    (state.first, state.busy) = (None, true);
                    let listing = state.list.models[at].clone();
                    drop(state);
                    self.load(at, &listing);
                }
                Step::LetGo(at) => {
                    let name = state.list.models[at].name.clone();
                    let loaded = state.loaded[at].take();
                    state.busy = true;
                    drop(state);
                    drop(loaded);
                    self.lock().residence.has_gone(at);
                    tracing::info!("{name} is let go");
                }
                Step::Refuse(at) => {
                    let why = "the server has no memory for this model";
                    state.fail(|of| of == at, &unavailable("model_unavailable", why));
                }
                Step::Rest if state.waiters.iter().any(|of| state.residence.places[of.at].is_free()) => {}
                Step::Rest => drop(self.wait(state)),
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        match state.residence.due(self.now()) {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(due) => self.changed.wait_timeout(state, due).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// Gives waiting requests their models. Returns those of clients that hung up just now.
    fn serve(self: &Arc<Self>, state: &mut State) -> Vec<Held> {
        let mut missed = Vec::new();
        for waiter in std::mem::take(&mut state.waiters) {
            if waiter.answer.is_closed() {
                continue;
            }
            match self.hold(state, waiter.at, waiter.adapter) {
                Some(held) => missed.extend(waiter.answer.send(Ok(held)).err().and_then(Result::ok)),
                None => state.waiters.push(waiter),
            }
        }
        missed
    }

    fn load(&self, at: usize, listing: &Listing) {
        let loaded = catch_unwind(AssertUnwindSafe(|| self.loader.load(listing)));
        match loaded.unwrap_or_else(|_| Err(Unloaded::new("loading it failed"))) {
            Ok(loaded) => {
                tracing::info!("serving {}", loaded.summary());
                let mut state = self.lock();
                state.list.models[at].name.clone_from(&loaded.name);
                state.list.models[at].files = loaded.files;
                state.settle();
                state.loaded[at] = Some(Arc::new(loaded));
                state.residence.has_come(at, self.now());
                drop(state);
                self.ready.send_if_modified(|ready| ready.is_none() && ready.replace(Ok(())).is_none());
            }
            Err(why) => self.not_loaded(at, &listing.name, &why),
        }
    }

    fn not_loaded(&self, at: usize, name: &str, why: &Unloaded) {
        let mut state = self.lock();
        let again = state.residence.has_not_come(at, why.lacks_memory);
        if why.stopped {
            return;
        }
        if state.list.several {
            tracing::error!("{name}: {}", why.message);
        } else {
            tracing::error!("{}", why.message);
        }
        if !again {
            state.fail(|of| of == at, &unavailable("model_unavailable", &why.message));
        }
        drop(state);
        let status = if why.wrong_option { WRONG_OPTION } else { NO_MODEL };
        self.ready.send_if_modified(|ready| ready.is_none() && ready.replace(Err(status)).is_none());
    }
}

fn unavailable(code: &'static str, why: &str) -> Failure {
    Failure::unavailable(code, why, 0)
}

pub fn ends() -> Failure {
    unavailable("unavailable", "the server is shutting down")
}
