//! The thread that loads and unloads models.
use super::held::Held;
use super::list::Listing;
use super::load::Unloaded;
use super::residence::Step;
use super::state::State;
use super::{Models, NO_MODEL, WRONG_OPTION};
use crate::failure::Failure;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};

impl Models {
    /// Loads and unloads models until the server ends.
    pub fn run(self: &Arc<Self>) {
        loop {
            let missed = self.serve(&mut self.lock());
            drop(missed); // which takes the lock
            let (seen, plausible) = self.look_at_wanted();
            let mut state = self.lock();
            state.busy = false;
            if state.stopped {
                return;
            }
            let wanted = state.wanted();
            if wanted != seen {
                continue;
            }
            if wanted.is_some() {
                state.measure();
            }
            let step = match wanted.filter(|_| !plausible) {
                Some(at) => Step::Load(at), // it fails at once, and no model is unloaded for it
                None => state.residence.turn(wanted, self.now()),
            };
            match step {
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
                    state.fail(|of| of == at, &Failure::unavailable("model_unavailable", why, 0));
                }
                Step::Rest if state.waiters.iter().any(|of| state.residence.models[of.at].is_free()) => {}
                Step::Rest => drop(self.wait(state)),
            }
        }
    }

    /// The model to load next, and whether its files may be a model.
    fn look_at_wanted(&self) -> (Option<usize>, bool) {
        let state = self.lock();
        let wanted = state.wanted();
        let listing = wanted.map(|at| state.list.models[at].clone());
        drop(state); // disks may be slow
        (wanted, listing.is_none_or(|listing| listing.is_plausible()))
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        match state.residence.due(self.now()) {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(due) => self.changed.wait_timeout(state, due).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// Gives waiting requests their models. Returns the holds of clients that have just hung up.
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
            state.fail(|of| of == at, &Failure::unavailable("model_unavailable", &why.message, 0));
        }
        drop(state);
        let status = if why.wrong_option { WRONG_OPTION } else { NO_MODEL };
        self.ready.send_if_modified(|ready| ready.is_none() && ready.replace(Err(status)).is_none());
    }
}
