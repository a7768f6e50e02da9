//! The state that a connection's socket and requests share: who waits for whom, and how long.
use super::pool::{Phase, PoolEntry};
use crate::app::App;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;
use tokio::time::sleep;

/// Bytes that a client must take before its time is over; fewer do not count as progress.
pub const PROGRESS: usize = 16 << 10;

pub struct Link {
    pub app: Arc<App>,
    pub peer: IpAddr,
    pub entry: PoolEntry,
    /// Number of running requests. With HTTP/2 there may be several.
    active: watch::Sender<usize>,
    waits: Mutex<Waits>,
    /// The socket accepts no more bytes for now.
    pub stuffed: AtomicBool,
    /// The answer that is being sent will continue later.
    pub paused: AtomicBool,
    /// Number of answers of which more is ready than the connection has taken.
    pub held: AtomicUsize,
    /// Number of bytes that the connection has taken of all answers.
    pub taken: AtomicUsize,
}

struct Waits {
    /// Nothing was received since the last answer.
    idle: bool,
    /// Time at which the connection is dropped. None: no request is awaited.
    until: Option<Instant>,
}

/// A running request, which ends when this is dropped.
pub struct Active(pub Arc<Link>);

impl Link {
    pub fn new(app: Arc<App>, peer: IpAddr, entry: PoolEntry) -> Self {
        app.life.connections.fetch_add(1, Ordering::Relaxed);
        let until = Some(Instant::now() + app.options.receive_timeout);
        Self {
            app,
            peer,
            entry,
            active: watch::Sender::new(0),
            waits: Mutex::new(Waits { idle: true, until }),
            stuffed: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    /// Maximum bytes to read at once, and thus after a request that is being answered.
    pub fn piece(&self) -> usize {
        self.app.options.max_header
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when bytes were received. The first bytes of a request start its time limit.
    pub fn received(&self) {
        let mut waits = self.waits();
        if waits.idle {
            *waits = Waits { idle: false, until: Some(Instant::now() + self.app.options.receive_timeout) };
        }
    }

    pub fn until(&self) -> Option<Instant> {
        self.waits().until
    }

    /// Called when a request's head was received. Returns the time by which its body must be received.
    pub fn begin(self: &Arc<Self>) -> (Active, Instant) {
        let mut waits = self.waits();
        waits.idle = false;
        let until = waits.until.take().unwrap_or_else(|| Instant::now() + self.app.options.receive_timeout);
        self.active.send_modify(|active| *active += 1);
        self.app.life.exchanges.fetch_add(1, Ordering::Relaxed);
        self.entry.go(Phase::Receives);
        (Active(self.clone()), until)
    }

    /// Called when a request's body was received.
    pub fn answer(&self) {
        self.entry.go(Phase::Answers);
    }

    pub async fn answers(&self) {
        let _ = self.active.subscribe().wait_for(|active| *active > 0).await;
    }

    pub fn is_idle(&self) -> bool {
        *self.active.borrow() == 0
    }

    /// Waits until the client leaves answers unread. With HTTP/2 it may do so even if its socket accepts
    /// bytes.
    pub async fn stalled(&self) {
        let held = || self.held.load(Ordering::Relaxed) > 0;
        let taken = || self.taken.load(Ordering::Relaxed);
        loop {
            self.answers().await;
            let before = (held(), taken());
            sleep(self.app.options.idle_timeout).await;
            if before.0 && held() && taken().wrapping_sub(before.1) < PROGRESS {
                return;
            }
        }
    }

    /// Whether the client waits for a part of an answer that is not made yet.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed) && !self.stuffed.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.app.life.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let link = &self.0;
        let mut waits = link.waits();
        link.paused.store(false, Ordering::Relaxed);
        link.active.send_modify(|active| *active -= 1);
        link.app.life.exchanges.fetch_sub(1, Ordering::Relaxed);
        if link.is_idle() {
            *waits = Waits { idle: true, until: Some(Instant::now() + link.app.options.idle_timeout) };
            link.entry.go(Phase::Waits);
        }
    }
}
