//! Counts the memory that engines of this process have claimed and not touched yet, and the memory that remains
//! for grammars.

use crate::base::{Result, os::memory};
use crate::constrain::STACK;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that grammars may take in addition to the process's memory and the promised KV caches. None if the
/// system does not report it.
pub(crate) fn room() -> Option<u64> {
    room_of(memory::free_pages(), memory::free_addresses(), &CLAIMS)
}

fn room_of(pages: Option<u64>, addresses: Option<u64>, claims: &Claims) -> Option<u64> {
    // A claim reserves addresses before its pages are used.
    let pages = pages.map(|free| free.saturating_sub(claims.0.load(Relaxed)));
    // Count memory without a thread's stack, of which little is touched.
    let addresses = addresses.map(|left| left.saturating_sub(STACK as u64));
    pages.into_iter().chain(addresses).min()
}

/// KV bytes that engines have claimed and not touched. The system counts a page as used only when it is first
/// written.
pub(crate) struct Claims(AtomicU64);

/// The claims of this process.
pub(crate) static CLAIMS: Claims = Claims::new();

impl Claims {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Claims as many blocks as `blocks` returns for the bytes that others have claimed, and the bytes that `more` then
    /// gives, which stay claimed. Calls both again if another claim came in between.
    pub(crate) fn claim(
        &'static self,
        block_bytes: u64,
        more: &dyn Fn() -> u64,
        blocks: impl Fn(u64) -> Result<usize>,
    ) -> Result<(usize, Claim)> {
        let mut others = self.0.load(Relaxed);
        loop {
            let blocks = blocks(others)?;
            let bytes = (blocks as u64).saturating_mul(block_bytes).saturating_add(more());
            match self.0.compare_exchange(others, others.saturating_add(bytes), Relaxed, Relaxed) {
                Ok(_) => {
                    let untouched = AtomicU64::new(bytes);
                    return Ok((blocks, Claim { claims: self, bytes, block_bytes, untouched }));
                }
                Err(now) => others = now,
            }
        }
    }
}

/// One engine's claim; returned on drop.
pub(crate) struct Claim {
    claims: &'static Claims,
    bytes: u64,
    block_bytes: u64,
    untouched: AtomicU64,
}

impl Claim {
    /// Records that `blocks` blocks are in use. The pool reuses blocks before it hands out new ones, so the
    /// highest number so far is the number of touched blocks.
    pub(crate) fn touched(&self, blocks: usize) {
        let left = self.bytes.saturating_sub((blocks as u64).saturating_mul(self.block_bytes));
        let before = self.untouched.fetch_min(left, Relaxed);
        self.claims.0.fetch_sub(before.saturating_sub(left), Relaxed);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.0.fetch_sub(*self.untouched.get_mut(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Error;

    const GIB: u64 = 1 << 30;

    #[test]
    fn claims_last_until_they_are_touched_or_dropped() {
        static CLAIMS: Claims = Claims::new();
        let untouched = || CLAIMS.0.load(Relaxed);
        let (blocks, first) = CLAIMS.claim(10, &|| 0, |others| Ok(100 - others as usize)).unwrap();
        assert_eq!((blocks, untouched()), (100, 1000));
        let (blocks, second) = CLAIMS.claim(1, &|| 0, |others| Ok(2000 - others as usize)).unwrap();
        assert_eq!((blocks, untouched()), (1000, 2000));
        first.touched(30);
        assert_eq!(untouched(), 1700);
        first.touched(20);
        assert_eq!(untouched(), 1700, "what was touched once stays touched");
        first.touched(200);
        assert_eq!(untouched(), 1000);
        drop(first);
        assert_eq!(untouched(), 1000);
        drop(second);
        assert_eq!(untouched(), 0);
        assert!(CLAIMS.claim(1, &|| 0, |_| Err(Error::invalid("no"))).is_err());
        assert_eq!(untouched(), 0);
    }

    #[test]
    fn grammars_get_nothing_that_was_claimed() {
        static CLAIMS: Claims = Claims::new();
        let (_, claim) = CLAIMS.claim(GIB, &|| 0, |_| Ok(7)).unwrap();
        assert_eq!(room_of(Some(8 * GIB), None, &CLAIMS), Some(GIB));
        assert_eq!(
            room_of(Some(8 * GIB), Some(GIB), &CLAIMS),
            Some(GIB - STACK as u64),
            "the process's own limits"
        );
        // The system counts touched pages.
        claim.touched(2);
        assert_eq!(room_of(Some(6 * GIB), None, &CLAIMS), Some(GIB));
        let (_, others) = CLAIMS.claim(GIB, &|| 0, |_| Ok(7)).unwrap();
        assert_eq!(room_of(Some(6 * GIB), None, &CLAIMS), Some(0));
        drop((claim, others));
        assert_eq!(room_of(Some(6 * GIB), None, &CLAIMS), Some(6 * GIB));
        assert_eq!(room_of(None, None, &CLAIMS), None);
    }

    #[test]
    fn two_claims_at_a_time_see_each_other() {
        static CLAIMS: Claims = Claims::new();
        let together = std::sync::Barrier::new(8);
        let share = |others: u64| Ok((1_000_000 - others) as usize / 2);
        std::thread::scope(|scope| {
            let claims: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (together.wait(), CLAIMS.claim(1, &|| 0, share).unwrap()).1.1))
                .collect();
            let claims: Vec<_> = claims.into_iter().map(|claim| claim.join().unwrap()).collect();
            let mut bytes: Vec<_> = claims.iter().map(|claim| claim.bytes).collect();
            bytes.sort();
            assert_eq!(bytes.iter().sum::<u64>(), CLAIMS.0.load(Relaxed));
            assert!(bytes.is_sorted_by(|a, b| a < b), "each had half of what others left: {bytes:?}");
        });
        assert_eq!(CLAIMS.0.load(Relaxed), 0);
    }
}
