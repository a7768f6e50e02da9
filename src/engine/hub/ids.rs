//! Request handles: 15 bits of engine salt, 28 of generation, 20 of slot. The highest bit is 0: many languages have no
//! unsigned numbers.

use std::sync::atomic::{AtomicU16, Ordering};

pub const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 28;
/// A slot that has served this many requests is retired, so that no handle is ever issued twice.
pub const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// A request's handle: salted by its engine, generational, never 0 or [`RequestId::ANY`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Stands for all requests.
    pub const ANY: Self = Self(i64::MAX as u64);

    pub fn new(salt: u16, generation: u32, slot: u32) -> Self {
        Self((salt as u64) << 48 | (generation as u64) << SLOT_BITS | slot as u64)
    }
    pub fn salt(self) -> u16 {
        (self.0 >> 48) as u16
    }
    pub fn generation(self) -> u32 {
        (self.0 >> SLOT_BITS) as u32 & LAST_GENERATION
    }
    pub fn slot(self) -> u32 {
        self.0 as u32 & ((1 << SLOT_BITS) - 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Any,
    One(RequestId),
}

/// A salt of 15 bits that none of the last 32,766 engines of this process had; never 0 or the maximum.
pub fn next_salt() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const MASK: u16 = u16::MAX >> 1;
    loop {
        // Starts at a different number in each process, so that ids of another process do not match either.
        let salt = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id() as u16) & MASK;
        if salt != 0 && salt != MASK {
            return salt;
        }
    }
}
