//! Releases the weights of an idle engine: the pages of mapped files, which the next pass reads again. Packed
//! copies stay, because packing them again takes as long as loading.

use crate::engine::api::EngineConfig;
use crate::model::Loaded;
use crate::ops::pass::Program;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts of what the engine's threads have released.
#[derive(Default)]
pub(crate) struct Released {
    /// Bytes released in the current idle time; 0 while something runs.
    pub bytes: AtomicU64,
    /// Number of releases.
    pub times: AtomicU64,
}

/// Counts the engine thread as a user of a model until it is dropped.
struct User(Arc<AtomicUsize>);

impl User {
    fn new(loaded: &Loaded) -> Self {
        loaded.users.fetch_add(1, Ordering::Relaxed);
        Self(loaded.users.clone())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The engine's models, and the time since which this thread does not use them.
pub(super) struct Idle {
    /// 0: nothing is released.
    after_ns: u64,
    /// The model, and the one that drafts.
    models: [Option<Loaded>; 2],
    users: [Option<User>; 2],
    /// None while something can run.
    since: Option<u64>,
    done: bool,
}

impl Idle {
    pub(super) fn new(config: &EngineConfig, loaded: &Loaded) -> Self {
        let models = [Some(loaded.clone()), config.draft_model.clone()];
        let after_ns = config.idle_release_ms * 1_000_000;
        Self { after_ns, models, users: [None, None], since: None, done: false }
    }

    /// Notes whether the thread `rests`, without requests or on hold, and releases the weights once that has lasted
    /// long enough. Returns the time of the next call; `u64::MAX`: when something has changed.
    pub(super) fn look(&mut self, rests: bool, now: u64, released: &Released) -> u64 {
        if !rests {
            if self.users[0].is_none() {
                self.users = self.models.each_ref().map(|loaded| loaded.as_ref().map(User::new));
                (self.since, self.done) = (None, false);
                released.bytes.store(0, Ordering::Relaxed);
            }
            return u64::MAX;
        }
        self.users = [None, None];
        if self.after_ns == 0 || self.done {
            return u64::MAX;
        }
        let at = *self.since.get_or_insert(now) + self.after_ns;
        if now < at {
            return at;
        }
        let mut loaded = self.models.iter().flatten();
        if loaded.clone().any(|loaded| loaded.users.load(Ordering::Relaxed) > 0) {
            // Another thread, perhaps of another engine, still uses the weights and would read the pages
            // again at once.
            self.since = Some(now);
            return now + self.after_ns;
        }
        let bytes = loaded.by_ref().map(release).sum();
        if released.bytes.swap(bytes, Ordering::Relaxed) == 0 && bytes > 0 {
            released.times.fetch_add(1, Ordering::Relaxed);
        }
        self.done = true;
        u64::MAX
    }
}

/// Releases the pages of a model's mapped weights, and returns their bytes.
fn release(loaded: &Loaded) -> u64 {
    let (mut seen, mut bytes) = (BTreeSet::new(), 0);
    for weight in loaded.model.programs().into_iter().flat_map(Program::weights) {
        weight.matrices(&mut |matrix| {
            // Head and embedding may share a matrix.
            if matrix.data.is_mapped() && seen.insert(matrix.data.as_ptr()) {
                matrix.data.release_pages();
                bytes += matrix.data.len() as u64;
            }
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Pool;
    use crate::model::{Source, load};

    #[test]
    fn weights_go_after_the_time_unless_another_thread_has_requests() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/llama-tiny-f32.gguf");
        let pool = Pool::new(1).unwrap();
        let loaded =
            load(&Source::File(path.into()), &Default::default(), &pool, &|_, _| (), &mut |_, _| false);
        let loaded = loaded.unwrap();
        let config = EngineConfig { idle_release_ms: 2, ..EngineConfig::default() };
        let (released, mut own) = (Released::default(), Idle::new(&config, &loaded));
        let mut other = Idle::new(&EngineConfig::default(), &loaded);
        let counts = || (released.bytes.load(Ordering::Relaxed) > 0, released.times.load(Ordering::Relaxed));
        assert_eq!(own.look(true, 1_000_000, &released), 3_000_000);
        assert_eq!(own.look(true, 2_999_999, &released), 3_000_000);
        assert_eq!(other.look(false, 0, &released), u64::MAX);
        assert_eq!(own.look(true, 3_000_000, &released), 5_000_000);
        assert_eq!(counts(), (false, 0));
        assert_eq!(other.look(true, 0, &released), u64::MAX);
        assert_eq!(own.look(true, 5_000_000, &released), u64::MAX);
        assert_eq!(counts(), (true, 1));
        assert_eq!(own.look(true, 50_000_000, &released), u64::MAX);
        assert_eq!(own.look(false, 60_000_000, &released), u64::MAX);
        assert_eq!((counts(), loaded.users.load(Ordering::Relaxed)), ((false, 1), 1));
        assert_eq!(own.look(true, 61_000_000, &released), 63_000_000);
        own.look(false, 62_000_000, &released);
        drop(own);
        assert_eq!(loaded.users.load(Ordering::Relaxed), 0, "a thread that ends is no user");
    }
}
