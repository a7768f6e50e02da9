//! How many pictures are decoded at once: by the memory that they take, which no plan counts.

use crate::base::clock::now_ns;
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, Status};
use std::time::Duration;

/// Bytes of a picture that waits for no larger one.
const SMALL: u64 = 128 << 20;
/// Bytes that small ones may take together.
const SMALL_TOGETHER: u64 = 2 * SMALL;

/// Small pictures are decoded together, large ones one at a time beside them: a small one waits only for small ones.
#[derive(Default)]
pub(crate) struct Decoders {
    small: Lane,
    large: Lane,
}

#[derive(Default)]
struct Lane {
    /// Bytes of those that are decoded now.
    taken: Mutex<u64>,
    freed: Condvar,
}

/// Holds a picture's place in its lane.
pub(crate) struct Place<'a> {
    lane: &'a Lane,
    bytes: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.lane.taken.lock() -= self.bytes;
        self.lane.freed.notify_all();
    }
}

impl Decoders {
    /// Waits until a picture may take `bytes`. `TimedOut` if others take them until `until_ns`.
    pub(crate) fn enter(&self, bytes: u64, until_ns: u64) -> Result<Place<'_>> {
        let (lane, most) = if bytes <= SMALL { (&self.small, SMALL_TOGETHER) } else { (&self.large, 0) };
        let mut taken = lane.taken.lock();
        loop {
            let now = now_ns();
            if now >= until_ns {
                return Err(Error::new(Status::TimedOut, "others were decoded until the time was up"));
            }
            if *taken == 0 || taken.saturating_add(bytes) <= most {
                *taken += bytes;
                return Ok(Place { lane, bytes });
            }
            taken = lane.freed.wait_for(taken, Duration::from_nanos(until_ns - now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ones_do_not_wait_for_a_large_one() {
        let decoders = Decoders::default();
        let soon = || now_ns() + 1_000_000;
        let refused = |bytes| decoders.enter(bytes, soon()).err().map(|error| error.status);
        let large = decoders.enter(SMALL + 1, u64::MAX).unwrap();
        assert_eq!(refused(SMALL + 1), Some(Status::TimedOut), "one at a time");
        let small = [(); 2].map(|()| decoders.enter(SMALL, u64::MAX).unwrap());
        assert_eq!(refused(1), Some(Status::TimedOut), "as many as there is memory for");
        drop(small);
        assert_eq!(refused(SMALL), None);
        drop(large);
        assert_eq!(refused(u64::MAX), None);
        assert_eq!(decoders.enter(1, 1).err().unwrap().status, Status::TimedOut, "its time was up before");
    }

    #[test]
    fn who_waits_goes_on_when_a_place_is_free() {
        let decoders = Decoders::default();
        let large = decoders.enter(u64::MAX, u64::MAX).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| decoders.enter(SMALL + 1, u64::MAX).map(drop));
            drop(large);
            waits.join().unwrap().unwrap();
        });
    }
}
