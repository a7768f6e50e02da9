//! Memory that belongs to no request but counts against the same limit.

use super::*;

/// Reserved bytes that are returned on drop. If no other call of the hub follows, the holder calls
/// `Hub::take_back`.
pub struct SetAside {
    bytes: u64,
    returned: Arc<AtomicU64>,
}

impl Drop for SetAside {
    fn drop(&mut self) {
        self.returned.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// Sets `bytes` aside, an equal part of them on each device. Fails with `MemoryLimit` if they do not fit
    /// together with other set-asides and the memory that requests may need.
    pub fn set_aside(&self, bytes: u64) -> Result<SetAside> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let room = self.bounds.aside.saturating_sub(state.aside);
        if bytes > room || !state.slots.set_aside(bytes, self.bounds.bytes) {
            let left = self.bounds.bytes.saturating_sub(state.slots.usage().reserved).min(room);
            return Err(Error::new(
                Status::MemoryLimit,
                format!(
                    "it takes {bytes} bytes, and memory_limit_bytes leaves {left} beside what requests hold"
                ),
            ));
        }
        state.aside += bytes;
        Ok(SetAside { bytes, returned: self.returned.clone() })
    }

    /// As `set_aside`, without the bound on its sum. None if there is no room.
    pub fn keep(&self, bytes: u64) -> Option<SetAside> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        state.slots.set_aside(bytes, self.bounds.bytes).then(|| {
            state.aside += bytes;
            SetAside { bytes, returned: self.returned.clone() }
        })
    }

    /// Returns whether these requests do not fit now, and would if `kept` bytes were given up.
    pub fn wants_kept(&self, requests: &[(RequestInfo, C)], kept: u64) -> bool {
        if kept == 0 || self.bounds.bytes == u64::MAX {
            return false;
        }
        let mut state = self.state.lock();
        self.settle(&mut state);
        let infos = || requests.iter().map(|(info, _)| info);
        let mut fits = |spare| fits(infos(), &mut state.slots, self.bounds.bytes, spare).is_ok();
        let helps = !fits(0) && fits(kept);
        helps && self.bounds.queue(infos(), state.slots.usage()).is_ok()
    }

    /// Returns whether these bytes belong to this hub.
    pub fn owns(&self, aside: &SetAside) -> bool {
        Arc::ptr_eq(&aside.returned, &self.returned)
    }

    /// Takes back the bytes of set-asides that the caller has dropped, so that requests that wait for memory get them.
    pub fn take_back(&self) {
        self.settle(&mut self.state.lock());
    }

    /// Takes back the bytes of dropped set-asides, and wakes everything that waits for memory.
    pub(super) fn settle(&self, state: &mut State<E, C>) {
        let returned = self.returned.swap(0, Ordering::Relaxed);
        if returned > 0 {
            state.aside -= returned;
            state.slots.put_back(returned);
            state.team.retry_grants();
            self.ring(state.take_wakeups());
        }
    }
}
