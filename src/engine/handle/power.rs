//! Pauses and thread limits, for hosts that save power or leave the machine to other programs.

use super::*;
use crate::base::in_range;

impl Engine {
    /// Waits for the running step. No other step begins until `resume` or a shutdown. Fails with `Shutdown` or
    /// `EngineDead`.
    pub fn pause(&self) -> Result<()> {
        let before = self.hub().hold(true)?;
        // The threads answer between two steps, after they have seen the hold.
        let waited = self.shared.call_all(|_| Ok(()));
        if waited.is_err() && !before {
            self.hub().hold(false)?;
        }
        waited
    }

    /// Ends a pause. Does nothing if the engine is not paused.
    pub fn resume(&self) -> Result<()> {
        self.hub().hold(false).map(|_| ())
    }

    /// Waits for the running step; the next ones run on `threads` threads, from 1 to the number that the engine was
    /// made with (0: that number). Several devices share them equally, and each gets at least one.
    pub fn set_threads(&self, threads: u32) -> Result<()> {
        in_range("threads", threads.into(), 0, self.most_threads as i64)?;
        let threads = if threads == 0 { self.most_threads } else { threads as usize };
        let each = (threads / self.hub().threads()).max(1);
        self.shared.call_all(move |core| {
            core.set_threads(each);
            Ok(())
        })?;
        self.active_threads.store(each * self.hub().threads(), Ordering::Relaxed);
        Ok(())
    }
}
