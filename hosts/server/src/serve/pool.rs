//! All connections, and which of them makes room for another: the one that has waited longest for its request, never one
//! that is being answered.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A connection is not closed for another this early, as it may be about to send: new ones wait so long.
pub const FRESH: Duration = Duration::from_millis(20);
/// Connections beyond the most, for /health and the like.
const EXTRA: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// For the client's request.
    Waits,
    Answers,
    /// The last answer is sent: for the client's end.
    Lingers,
}

pub struct Pool {
    most: usize,
    all: Mutex<All>,
    /// A connection was closed.
    pub closed: Notify,
}

#[derive(Default)]
struct All {
    next: u64,
    /// By the number under which each is listed, so that the first has been there longest.
    waiting: BTreeMap<u64, Listed>,
    lingering: BTreeMap<u64, Listed>,
    answering: usize,
}

struct Listed {
    since: Instant,
    /// Has to close.
    evicted: Arc<Notify>,
    /// A head has come, and not all of its body.
    receives: bool,
}

/// A connection's place in the pool. It leaves when this is dropped.
pub struct Place {
    pool: Arc<Pool>,
    evicted: Arc<Notify>,
    /// Beyond the most: it may ask for the state alone.
    pub extra: bool,
    now: Mutex<(Phase, u64)>,
}

impl Pool {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, all: Mutex::default(), closed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more may be accepted. Closes another where that makes room.
    pub fn has_room(&self) -> bool {
        let mut all = self.lock();
        all.count() < self.most + EXTRA || all.evict()
    }

    /// Closes the one that has waited longest. False: there is none.
    pub fn evict(&self) -> bool {
        self.lock().evict()
    }

    /// Closes those that have sent a part of a request's body: it would not be answered any more.
    pub fn drop_receiving(&self) {
        self.lock().waiting.retain(|_, listed| {
            if listed.receives {
                listed.evicted.notify_one();
            }
            !listed.receives
        });
    }

    /// Connections that wait for their client's end.
    pub fn lingering(&self) -> usize {
        self.lock().lingering.len()
    }

    pub fn enter(self: &Arc<Self>) -> Place {
        let mut all = self.lock();
        if all.count() >= self.most {
            all.evict();
        }
        let extra = all.count() >= self.most;
        let evicted = Arc::new(Notify::new());
        let number = all.list(Phase::Waits, &evicted);
        let now = Mutex::new((Phase::Waits, number));
        Place { pool: self.clone(), evicted, extra, now }
    }
}

impl All {
    fn count(&self) -> usize {
        self.waiting.len() + self.lingering.len() + self.answering
    }

    fn evict(&mut self) -> bool {
        for list in [&mut self.lingering, &mut self.waiting] {
            let stale = list.first_entry().filter(|first| first.get().since.elapsed() >= FRESH);
            if let Some(first) = stale {
                first.remove().evicted.notify_one();
                return true;
            }
        }
        false
    }

    fn list(&mut self, phase: Phase, evicted: &Arc<Notify>) -> u64 {
        self.next += 1;
        let listed = Listed { since: Instant::now(), evicted: evicted.clone(), receives: false };
        match phase {
            Phase::Waits => drop(self.waiting.insert(self.next, listed)),
            Phase::Lingers => drop(self.lingering.insert(self.next, listed)),
            Phase::Answers => self.answering += 1,
        }
        self.next
    }

    /// False: it was evicted.
    fn unlist(&mut self, phase: Phase, number: u64) -> bool {
        match phase {
            Phase::Waits => self.waiting.remove(&number).is_some(),
            Phase::Lingers => self.lingering.remove(&number).is_some(),
            Phase::Answers => {
                self.answering -= 1;
                true
            }
        }
    }
}

impl Place {
    /// Goes on to a phase. One that was evicted stays out.
    pub fn go(&self, phase: Phase) {
        let mut all = self.pool.lock();
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 == Phase::Answers && phase == Phase::Answers {
            return;
        }
        if all.unlist(now.0, now.1) {
            *now = (phase, all.list(phase, &self.evicted));
        }
    }

    /// A head has come.
    pub fn receive(&self) {
        let mut all = self.pool.lock();
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listed) = all.waiting.get_mut(&now.1) {
            listed.receives = true;
        }
    }

    /// Waits until it has to close.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (phase, number) = *self.now.lock().unwrap_or_else(PoisonError::into_inner);
        self.pool.lock().unlist(phase, number);
        self.pool.closed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    #[test]
    fn the_one_that_has_waited_longest_makes_room() {
        let pool = Pool::new(2);
        let (first, second) = (pool.enter(), pool.enter());
        assert!(!pool.evict()); // both are fresh
        sleep(FRESH);
        first.go(Phase::Waits); // it has been answered meanwhile
        let third = pool.enter();
        assert!(!first.extra && !third.extra);
        second.go(Phase::Answers); // too late
        assert_eq!(pool.lock().count(), 2);
        first.go(Phase::Answers);
        third.go(Phase::Answers);
        sleep(FRESH);
        assert!(!pool.evict());
        let extra = pool.enter();
        assert!(extra.extra);
        drop((first, second));
        assert_eq!(pool.lock().count(), 2);
        third.go(Phase::Lingers);
        sleep(FRESH);
        assert!(pool.evict());
        assert_eq!((pool.lingering(), pool.lock().count()), (0, 1));
        drop((third, extra));
        assert_eq!(pool.lock().count(), 0);
    }

    #[test]
    fn there_is_an_end_to_extra_ones() {
        let pool = Pool::new(1);
        let all: Vec<_> = (0..=EXTRA).map(|_| pool.enter()).collect();
        all.iter().for_each(|place| place.go(Phase::Answers));
        assert!(!pool.has_room());
        all[3].go(Phase::Lingers);
        sleep(FRESH);
        assert!(pool.has_room());
    }
}
