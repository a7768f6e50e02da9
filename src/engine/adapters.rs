//! LoRA adapters of an engine: opened while it runs, counted in its memory until the last request that has them ends.

use super::handle::Engine;
use super::hub::SetAside;
use crate::base::{Error, Result, reserve};
use crate::model::AdapterFile;
use crate::ops::Lora;
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh64::xxh64;

/// Of `Adapted::scale`.
const MAX_SCALE: f32 = 100.0;

/// An open adapter.
pub struct Adapter {
    pub lora: Arc<Lora>,
    pub bytes: u64,
    fingerprint: u64,
    /// Whose memory it is counted in; it comes back when this is dropped.
    held: SetAside,
}

/// What a request has of an adapter.
#[derive(Clone)]
pub struct Adapted {
    pub adapter: Arc<Adapter>,
    /// Multiplies its updates.
    pub scale: f32,
}

impl fmt::Debug for Adapted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an adapter of {} bytes times {}", self.adapter.bytes, self.scale)
    }
}

impl Adapted {
    /// K and V depend on the adapter: prefixes of requests with different ones have nothing to do with each other.
    pub fn salt(&self, own: u64) -> u64 {
        let mut bytes = self.scale.to_le_bytes().to_vec();
        bytes.extend(self.adapter.fingerprint.to_le_bytes());
        xxh64(&bytes, own)
    }
}

/// Memory that all adapters of an engine share.
pub struct Scratch {
    /// Rows of a step.
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
    /// The adapter at `path`, for requests of this engine. Errors as of `AdapterFile::open` and `Model::adapter`;
    /// `MemoryLimit` where it does not fit beside the requests.
    pub fn open_adapter(&self, path: &str) -> Result<Adapter> {
        let said = |e: Error| Error::new(e.status, format!("adapter: {}", e.message));
        let file = AdapterFile::open(path).map_err(said)?;
        let in_file = |e: Error| Error::new(e.status, format!("adapter '{path}': {}", e.message));
        let held = self.hub().set_aside(self.copies() * file.bytes()).map_err(in_file)?;
        let opened = self.loaded().model.adapter(&file).map_err(said)?;
        self.hold_scratch(opened.ranks).map_err(in_file)?;
        let crate::model::Adapter { lora, bytes, fingerprint, .. } = opened;
        let lora = Arc::new(lora);
        if self.on_device {
            // It waits for the replicas.
            self.check_call(true)?;
            let lora = lora.clone();
            self.call_all(move |core| core.hold_adapter(&lora)).map_err(in_file)?;
        }
        Ok(Adapter { lora, bytes, fingerprint, held })
    }

    /// Each device has its own.
    fn copies(&self) -> u64 {
        self.hub().replicas() as u64
    }

    /// What a pass keeps for adapted rows: inputs behind their norm, those rows once more, and the numbers between A and
    /// B. It stays until the engine goes.
    fn hold_scratch(&self, ranks: usize) -> Result<()> {
        let facts = self.facts();
        let widest = facts.hidden_size.max(facts.ffn_size).max(facts.heads * facts.head_dim);
        let mut scratch = self.adapter_scratch.lock();
        let bytes = self.copies() * 4 * (scratch.rows * (2 * widest + ranks)) as u64;
        if bytes > scratch.bytes {
            reserve(&mut scratch.held, 1, "an adapter")?;
            let held = self.hub().set_aside(bytes - scratch.bytes)?;
            scratch.held.push(held);
            scratch.bytes = bytes;
        }
        Ok(())
    }

    /// `InvalidArgument` for another engine's, or a scale out of range.
    pub(super) fn check_adapter(&self, adapted: &Adapted) -> Result<()> {
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
