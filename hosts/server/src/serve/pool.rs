//! All connections. The one that has waited longest for its request makes room for another, never one that is being
//! answered.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A connection is not closed for another before this time, because it may be about to send; new ones wait
/// this long.
pub const FRESH: Duration = Duration::from_millis(20);
/// Number of connections beyond the maximum, for /health and the like.
const EXTRA: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The connection waits for the client's request.
    Waits,
    /// A head was received, and not all of its body.
    Receives,
    Answers,
    /// The last answer is sent, and the connection waits for the client's end.
    Lingers,
}

pub struct Pool {
    most: usize,
    all: Mutex<All>,
    /// Notified when a connection was closed.
    pub closed: Notify,
}

#[derive(Default)]
struct All {
    next: u64,
    /// By a number that a connection gets anew when it begins to wait or linger, so the first has done so
    /// longest.
    listed: BTreeMap<u64, Listed>,
}

struct Listed {
    phase: Phase,
    since: Instant,
    /// Notified when the connection must close.
    evicted: Arc<Notify>,
}

/// A connection's entry in the pool, which is removed on drop.
pub struct PoolEntry {
    pool: Arc<Pool>,
    evicted: Arc<Notify>,
    /// The connection is beyond the maximum, and may only ask for the state.
    pub extra: bool,
    number: AtomicU64,
}

impl Pool {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, all: Mutex::default(), closed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more connection may be accepted. Closes another if that makes room.
    pub fn has_room(&self) -> bool {
        let mut all = self.lock();
        all.listed.len() < self.most + EXTRA || all.evict()
    }

    /// Closes the connection that has waited longest. False: there is none.
    pub fn evict(&self) -> bool {
        self.lock().evict()
    }

    /// Closes the connections that have sent part of a request's body, which would not be answered any more.
    pub fn drop_receiving(&self) {
        self.lock().listed.retain(|_, listed| {
            let receives = listed.phase == Phase::Receives;
            if receives {
                listed.evicted.notify_one();
            }
            !receives
        });
    }

    /// Number of connections that wait for their client's end.
    pub fn lingering(&self) -> usize {
        self.lock().listed.values().filter(|listed| listed.phase == Phase::Lingers).count()
    }

    pub fn enter(self: &Arc<Self>) -> PoolEntry {
        let mut all = self.lock();
        if all.listed.len() >= self.most {
            all.evict();
        }
        let extra = all.listed.len() >= self.most;
        let evicted = Arc::new(Notify::new());
        let number = all.list(Phase::Waits, evicted.clone()).into();
        PoolEntry { pool: self.clone(), evicted, extra, number }
    }
}

impl All {
    fn evict(&mut self) -> bool {
        for phases in [&[Phase::Lingers][..], &[Phase::Waits, Phase::Receives]] {
            let first = self.listed.iter().find(|(_, listed)| phases.contains(&listed.phase));
            let stale = first.filter(|(_, listed)| listed.since.elapsed() >= FRESH);
            if let Some(evicted) = stale.map(|(number, _)| *number).and_then(|at| self.listed.remove(&at)) {
                evicted.evicted.notify_one();
                return true;
            }
        }
        false
    }

    fn list(&mut self, phase: Phase, evicted: Arc<Notify>) -> u64 {
        self.next += 1;
        self.listed.insert(self.next, Listed { phase, since: Instant::now(), evicted });
        self.next
    }
}

impl PoolEntry {
    /// Enters a phase. A connection that was evicted stays out.
    pub fn go(&self, phase: Phase) {
        let mut all = self.pool.lock();
        let number = self.number.load(Ordering::Relaxed);
        let Some(listed) = all.listed.get_mut(&number) else { return };
        match (listed.phase, phase) {
            (Phase::Answers, Phase::Receives) => {} // both, with HTTP/2
            (_, Phase::Receives | Phase::Answers) => listed.phase = phase,
            (_, Phase::Waits | Phase::Lingers) => {
                all.listed.remove(&number);
                self.number.store(all.list(phase, self.evicted.clone()), Ordering::Relaxed);
            }
        }
    }

    /// Waits until the connection must close.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for PoolEntry {
    fn drop(&mut self) {
        self.pool.lock().listed.remove(&self.number.load(Ordering::Relaxed));
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
        assert_eq!(pool.lock().listed.len(), 2);
        first.go(Phase::Answers);
        third.go(Phase::Answers);
        sleep(FRESH);
        assert!(!pool.evict());
        let extra = pool.enter();
        assert!(extra.extra);
        drop((first, second));
        assert_eq!(pool.lock().listed.len(), 2);
        third.go(Phase::Lingers);
        sleep(FRESH);
        assert!(pool.evict());
        assert_eq!((pool.lingering(), pool.lock().listed.len()), (0, 1));
        drop((third, extra));
        assert_eq!(pool.lock().listed.len(), 0);
    }

    #[test]
    fn there_is_an_end_to_extra_ones() {
        let pool = Pool::new(1);
        let all: Vec<_> = (0..=EXTRA).map(|_| pool.enter()).collect();
        all.iter().for_each(|entry| entry.go(Phase::Answers));
        assert!(!pool.has_room());
        all[3].go(Phase::Lingers);
        sleep(FRESH);
        assert!(pool.has_room());
    }
}
