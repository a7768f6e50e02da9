//! Responses that are stored for `previous_response_id` and for reading, within a limit of bytes: the oldest are
//! dropped first.
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a response's entries in the maps.
const PLACE: usize = 256;

/// A response and its conversation, both as JSON.
#[derive(Debug)]
pub struct Kept {
    pub response: String,
    /// A list of items.
    pub items: String,
}

#[derive(Default)]
struct State {
    by_id: HashMap<String, (u64, Arc<Kept>)>,
    /// Ids by age, the oldest first.
    by_age: BTreeMap<u64, String>,
    bytes: usize,
    next: u64,
}

pub struct Store {
    most: usize,
    /// Key for ids. Whoever knows an id may read the response, so ids must not be guessable.
    key: RandomState,
    state: Mutex<State>,
}

impl Kept {
    fn bytes(&self) -> usize {
        PLACE + self.response.capacity() + self.items.capacity()
    }
}

impl State {
    fn remove(&mut self, id: &str) -> bool {
        let Some((age, kept)) = self.by_id.remove(id) else { return false };
        self.by_age.remove(&age);
        self.bytes -= kept.bytes();
        true
    }
}

impl Store {
    /// Creates a store of `most` bytes; 0: nothing is stored.
    pub fn new(most: u64) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { most, key: RandomState::new(), state: Mutex::default() }
    }

    /// Whether anything may be stored.
    pub fn keeps(&self) -> bool {
        self.most > 0
    }

    /// The id of the response to request `number`.
    pub fn id(&self, number: u64) -> String {
        format!("resp_{:016x}", self.key.hash_one(number))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response. False: it is larger than the limit.
    pub fn put(&self, id: &str, mut kept: Kept) -> bool {
        kept.response.shrink_to_fit();
        kept.items.shrink_to_fit();
        let bytes = kept.bytes();
        if bytes > self.most {
            return false;
        }
        let mut state = self.lock();
        state.remove(id);
        while state.bytes + bytes > self.most {
            let Some((_, oldest)) = state.by_age.pop_first() else { break };
            state.remove(&oldest);
        }
        let age = state.next;
        state.next += 1;
        state.bytes += bytes;
        state.by_age.insert(age, id.to_owned());
        state.by_id.insert(id.to_owned(), (age, Arc::new(kept)));
        true
    }

    pub fn get(&self, id: &str) -> Option<Arc<Kept>> {
        self.lock().by_id.get(id).map(|(_, kept)| kept.clone())
    }

    /// Removes a response. False: it is not stored.
    pub fn remove(&self, id: &str) -> bool {
        self.lock().remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(bytes: usize) -> Kept {
        Kept { response: "x".repeat(bytes), items: String::new() }
    }

    #[test]
    fn the_oldest_go_first() {
        let store = Store::new(3 * (PLACE as u64 + 100));
        let ids: Vec<_> = (0..4).map(|number| store.id(number)).collect();
        assert!(ids.iter().all(|id| store.put(id, kept(100))));
        let there = |store: &Store| ids.iter().map(|id| store.get(id).is_some()).collect::<Vec<_>>();
        assert_eq!(there(&store), [false, true, true, true]);
        assert!(store.put("large", kept(300)) && !store.put("larger", kept(2000)));
        assert_eq!(there(&store), [false, false, false, true]);
        assert!(store.remove("large") && !store.remove("large"));
        assert!(store.get("large").is_none());
        assert_eq!(store.lock().bytes, PLACE + 100);
    }

    #[test]
    fn nothing_is_kept_without_room() {
        let store = Store::new(0);
        assert!(!store.keeps() && !store.put("a", kept(0)));
        assert_ne!(store.id(1), Store::new(0).id(1));
    }
}
