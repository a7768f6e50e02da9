//! LoRA adapters of an engine. They are opened while it runs, and count in its memory until the last request that
//! uses them ends.

use super::Engine;
use crate::base::{Error, Result, fork, reserve};
use crate::engine::hub::SetAside;
use crate::engine::request::adapters::{Adapted, Adapter};
use crate::model::AdapterFile;
use std::sync::Arc;

/// Largest magnitude of `Adapted::scale`.
const MAX_SCALE: f32 = 100.0;

/// Scratch memory that all adapters of an engine share.
pub(crate) struct Scratch {
    /// Maximum number of rows in a step.
    rows: usize,
    held: Vec<SetAside>,
    bytes: u64,
}

impl Scratch {
    pub(crate) fn new(rows: u32) -> Self {
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
        self.hold_scratch(opened.ranks, opened.widest).map_err(in_file)?;
        let crate::model::Adapter { lora, bytes, fingerprint, .. } = opened;
        let lora = Arc::new(lora);
        if self.on_device {
            // The upload waits for the engine threads.
            self.check_call(true)?;
            let lora = lora.clone();
            self.shared.call_all(move |core| core.hold_adapter(&lora)).map_err(in_file)?;
        }
        let engine = Arc::downgrade(&self.shared);
        let take_back = move || engine.upgrade().iter().for_each(|shared| shared.hub.take_back());
        let (take_back, made_in) = (Arc::new(take_back), fork::generation());
        Ok(Adapter { lora, bytes, fingerprint, held, take_back, made_in })
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
        self.hub().threads() as u64
    }

    /// Reserves the memory that a pass keeps for adapted rows: their normalized inputs, a second copy of the rows,
    /// and the values between A and B. It is held until the engine is destroyed.
    fn hold_scratch(&self, ranks: usize, widest: usize) -> Result<()> {
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
