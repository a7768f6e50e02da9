//! LoRA adapters, as requests use them.

use crate::base::fork;
use crate::engine::hub::SetAside;
use crate::ops::Lora;
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh64::xxh64;

/// An open adapter.
pub struct Adapter {
    pub lora: Arc<Lora>,
    pub bytes: u64,
    /// Hash of its contents.
    pub fingerprint: u64,
    /// The reservation that counts its bytes in an engine's memory; returned on drop.
    pub held: SetAside,
    /// Returns the bytes to the engine, if it still exists.
    pub take_back: Arc<dyn Fn() + Send + Sync>,
    pub made_in: u32,
}

impl Adapter {
    /// Drops a host's reference. If it was the last one, requests that wait for memory get the adapter's.
    pub fn free(self: Arc<Self>) {
        let (take_back, made_in) = (self.take_back.clone(), self.made_in);
        drop(self);
        // In a forked child there are no waiting requests, and the lock may stay locked forever.
        if made_in == fork::generation() {
            take_back();
        }
    }
}

/// An adapter and its scale, as a request uses them.
#[derive(Clone)]
pub struct Adapted {
    pub adapter: Arc<Adapter>,
    /// Factor of the adapter's updates.
    pub scale: f32,
}

impl fmt::Debug for Adapted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an adapter of {} bytes times {}", self.adapter.bytes, self.scale)
    }
}

impl Adapted {
    /// Mixes the adapter and its scale into a cache salt. K and V depend on both, so requests that differ in them
    /// share no prefix.
    pub fn salt(&self, own: u64) -> u64 {
        let mut bytes = self.scale.to_le_bytes().to_vec();
        bytes.extend(self.adapter.fingerprint.to_le_bytes());
        xxh64(&bytes, own)
    }
}
