//! Memory that is no request's, beside theirs in the limit.

use super::*;

/// Bytes that were set aside; they come back when this is dropped.
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
    /// Sets `bytes` aside, an equal part of them on each device. `MemoryLimit` where they do not fit beside what requests may
    /// need, or what else is set aside.
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

    /// Whether these bytes are this hub's.
    pub fn owns(&self, aside: &SetAside) -> bool {
        Arc::ptr_eq(&aside.returned, &self.returned)
    }

    /// Takes back what was set aside and is gone.
    pub(super) fn settle(&self, state: &mut State<E, C>) {
        let returned = self.returned.swap(0, Ordering::Relaxed);
        state.aside -= returned;
        state.slots.put_back(returned);
    }
}
