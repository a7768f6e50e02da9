//! LoRA adapters of an engine. They are opened while it runs, and count in its memory until the last request that
//! uses them ends.

use crate::base::{Error, Result, fork, reserve};
use crate::engine::core::Shared;
use crate::engine::handle::Engine;
use crate::engine::hub::SetAside;
use crate::model::AdapterFile;
use crate::ops::Lora;
use std::fmt;
use std::sync::{Arc, Weak};
use xxhash_rust::xxh64::xxh64;

/// Largest magnitude of `Adapted::scale`.
const MAX_SCALE: f32 = 100.0;

/// An open adapter.
pub struct Adapter {
    pub lora: Arc<Lora>,
    pub bytes: u64,
    /// Hash of its contents.
    pub fingerprint: u64,
    /// The reservation that counts its bytes in an engine's memory; returned on drop.
    held: SetAside,
    engine: Weak<Shared>,
    made_in: u32,
}

impl Adapter {
    /// Drops a host's reference. If it was the last one, requests that wait for memory get the adapter's.
    pub fn free(self: Arc<Self>) {
        let (engine, made_in) = (self.engine.clone(), self.made_in);
        drop(self);
        // In a forked child there are no waiting requests, and the lock may stay locked forever.
        if made_in == fork::generation()
            && let Some(shared) = engine.upgrade()
        {
            shared.hub.take_back();
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

/// Scratch memory that all adapters of an engine share.
pub struct Scratch {
    /// Maximum number of rows in a step.
    rows: usize,
    held: Vec<SetAside>,
    bytes: u64,
}

impl Scratch {
    pub fn new(rows: u32) -> Self {
        Self { rows: rows as usize, held: Vec::new(), bytes: 0 }
    }
}

impl Engine {
    /// Opens the adapter at `path` for requests of this engine. Fails as `AdapterFile::open` and
    /// `Model::adapter` do, and with `MemoryLimit` if the adapter does not fit in addition to the requests.
    pub fn open_adapter(&self, path: &str) -> Result<Adapter> {
        // Return the bytes that were set aside before it failed.
        self.try_open_adapter(path).inspect_err(|_| self.hub().take_back())
    }

    fn try_open_adapter(&self, path: &str) -> Result<Adapter> {
        let said = |e: Error| Error::new(e.status, format!("adapter: {}", e.message));
        let file = AdapterFile::open(path).map_err(said)?;
        let in_file = |e: Error| Error::new(e.status, format!("adapter '{path}': {}", e.message));
        let held = self.set_aside(self.copies() * file.bytes()).map_err(in_file)?;
        let opened = self.loaded().model.adapter(&file).map_err(said)?;
        self.hold_scratch(opened.ranks).map_err(in_file)?;
        let crate::model::Adapter { lora, bytes, fingerprint, .. } = opened;
        let lora = Arc::new(lora);
        if self.on_device {
            // The upload waits for the replicas.
            self.check_call(true)?;
            let lora = lora.clone();
            self.call_all(move |core| core.hold_adapter(&lora)).map_err(in_file)?;
        }
        let (engine, made_in) = (Arc::downgrade(&self.shared), fork::generation());
        Ok(Adapter { lora, bytes, fingerprint, held, engine, made_in })
    }

    /// Kept grammars are evicted before the adapter is refused.
    fn set_aside(&self, bytes: u64) -> Result<SetAside> {
        let aside = || self.hub().set_aside(bytes);
        let fits_alone = bytes <= self.hub().bounds().aside;
        aside().or_else(|error| match fits_alone && self.shared.grammars.clear() {
            true => aside(),
            false => Err(error),
        })
    }

    /// Number of copies: each device has its own.
    fn copies(&self) -> u64 {
        self.hub().replicas() as u64
    }

    /// Reserves the memory that a pass keeps for adapted rows: their normalized inputs, a second copy of the rows,
    /// and the values between A and B. It is held until the engine is destroyed.
    fn hold_scratch(&self, ranks: usize) -> Result<()> {
        let facts = self.facts();
        let widest = facts.hidden_size.max(facts.ffn_size).max(facts.heads * facts.head_dim);
        let mut scratch = self.adapter_scratch.lock();
        let bytes = self.copies() * 4 * (scratch.rows * (2 * widest + ranks)) as u64;
        if bytes > scratch.bytes {
            reserve(&mut scratch.held, 1, "an adapter")?;
            let held = self.set_aside(bytes - scratch.bytes)?;
            scratch.held.push(held);
            scratch.bytes = bytes;
        }
        Ok(())
    }

    /// `InvalidArgument` if the adapter belongs to another engine, or the scale is out of range.
    pub fn check_adapter(&self, adapted: &Adapted) -> Result<()> {
        if !(-MAX_SCALE..=MAX_SCALE).contains(&adapted.scale) {
            let scale = adapted.scale;
            return Err(Error::invalid(format!(
                "adapter_scale = {scale} is out of range: -{MAX_SCALE} to {MAX_SCALE}"
            )));
        }
        match self.hub().owns(&adapted.adapter.held) {
            true => Ok(()),
            false => Err(Error::invalid("adapter belongs to another engine")),
        }
    }
}
