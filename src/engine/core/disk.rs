//! The prefix cache's tier on disk: what leaves memory goes there, and prefixes that waiting requests want come back.

use super::*;
use crate::base::sync::Mutex;
use crate::base::threads;
use crate::cache::Leaving;
use crate::cache::disk::{Bounds, Files, Folder, Host, Kind, Port, Sizes, Store};
use crate::engine::api::LOG_INFO;
use crate::schedule::Destination;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use xxhash_rust::xxh64::xxh64;

/// Bytes of records on their way in each direction, and of the index, at most; and their part of a memory limit.
const MEMORY: u64 = 64 << 20;
const PART: u64 = 64;

fn bounds(config: &EngineConfig, sizes: &Sizes) -> Bounds {
    let memory = match config.memory_limit_bytes {
        0 => MEMORY,
        limit => MEMORY.min(limit / PART),
    };
    let bytes = if config.cache_path.is_some() { config.cache_bytes } else { config.host_cache_bytes };
    sizes.bounds(bytes, memory)
}

fn asked(config: &EngineConfig) -> bool {
    config.cache_path.is_some() || config.host_cache_bytes > 0
}

/// Bytes of memory of the tier. A block of K and V has `block_bytes`, a state `state_bytes`.
pub(crate) fn bytes(config: &EngineConfig, block_bytes: u64, state_bytes: usize) -> u64 {
    match asked(config) {
        true => bounds(config, &sizes(config, block_bytes, state_bytes)).memory(),
        false => 0,
    }
}

pub(crate) fn sizes(config: &EngineConfig, block_bytes: u64, state_bytes: usize) -> Sizes {
    let block_size = config.kv_block_size as usize;
    Sizes { block_size, block_bytes: block_bytes as usize, state_bytes }
}

/// The folder of an engine, which its threads share; or the machine's memory.
pub(crate) struct Tier {
    path: Option<PathBuf>,
    /// Bytes of the machine's memory; 0: none.
    host: u64,
    bounds: Bounds,
    replicas: usize,
    /// Opened by the first engine thread, which knows what the model computes. `None` inside: that failed.
    store: OnceLock<Option<Arc<Store>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Tier {
    /// Makes the folder that the configuration names. None if it asks for no tier. `Io`.
    pub(crate) fn new(config: &EngineConfig, replicas: usize, sizes: Sizes) -> Result<Option<Self>> {
        if !asked(config) {
            return Ok(None);
        }
        let (path, host) = (config.cache_path.as_ref().map(PathBuf::from), config.host_cache_bytes);
        path.as_ref().map_or(Ok(()), |path| Folder::make(path))?;
        let (store, thread) = (OnceLock::new(), Mutex::new(None));
        Ok(Some(Self { path, host, bounds: bounds(config, &sizes), replicas, store, thread }))
    }

    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()?.as_ref()
    }

    fn open(&self, scope: u64, sizes: Sizes, shared: &Arc<Shared>) -> Option<&Arc<Store>> {
        let opened = self.store.get_or_init(|| {
            let folder =
                self.path.as_ref().map(|path| -> Box<dyn Files> { Box::new(Folder::new(path, scope)) });
            let files = match (folder, self.host) {
                (Some(folder), 0) => folder,
                (folder, host) => Box::new(Host::new(host, folder)),
            };
            let store = Store::open(files, scope, sizes, self.bounds, self.replicas);
            let opened = store.and_then(|store| {
                let (store, own) = (Arc::new(store), shared.clone());
                let worker = store.clone();
                let work = move || {
                    let ran = panics::catch(|| worker.run(&|replica| own.hub.knock(replica)));
                    if let Err(text) = ran {
                        own.log.write(LOG_ERROR, format!("the prompt cache's thread died: {text}"));
                        // Nobody may wait for it.
                        worker.close();
                    }
                };
                *self.thread.lock() = Some(threads::spawn("bn-cache".into(), work)?);
                Ok(store)
            });
            opened.inspect_err(|error| shared.log.write(LOG_WARN, format!("no prompt cache: {error}"))).ok()
        });
        opened.as_ref()
    }

    /// Waits until everything is written. All engine threads have left.
    pub(crate) fn join(&self) {
        self.store().into_iter().for_each(|store| store.close());
        let thread = self.thread.lock().take();
        // It catches its panics, so `join` reports nothing.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Core {
    /// Opens the engine's tier on disk, if it has one. Without it, the engine works as well.
    pub(super) fn open_tier(&mut self) {
        let shared = self.shared.clone();
        let Some(tier) = &shared.tier else { return };
        let opened = panics::checked("the prompt cache", || {
            let (scope, sizes) = self.scope()?;
            let store = tier.open(scope, sizes, &shared).cloned();
            store.map_or(Ok(()), |store| self.use_store(store))
        });
        if let Err(error) = opened {
            shared.log.write(LOG_WARN, format!("no prompt cache: {error}"));
        }
        if let Some(store) = &self.store {
            let counts = store.counts();
            let message = format!("prompt cache: {} records, {} bytes", counts.records, counts.bytes);
            shared.log.write(LOG_INFO, message);
        }
    }

    /// The scope of this engine's records, and their sizes: the model, the type of K and V, and their layout.
    fn scope(&mut self) -> Result<(u64, Sizes)> {
        let shape = self.shape()?;
        let mut facts = Vec::new();
        for fact in [shape.fingerprint, shape.kind as u64, shape.block_bytes, shape.state_bytes] {
            facts.extend(fact.to_le_bytes());
        }
        Ok((xxh64(&facts, shape.block_size.into()), self.sizes()))
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let layout = self.memory.layout();
        Sizes {
            block_size: layout.kv.block_size,
            block_bytes: layout.bytes(Unit::Block),
            state_bytes: layout.bytes(Unit::State),
        }
    }

    /// From now on, the prefix cache has a lower tier.
    pub(crate) fn use_store(&mut self, store: Arc<Store>) -> Result<()> {
        self.scheduler.set_lower(Box::new(Port { store: store.clone(), replica: self.number }))?;
        self.store = Some(store);
        Ok(())
    }

    /// Queues the units of memory that the last plan took from the prefix cache to be written. Must be called before
    /// anything is written there.
    pub(super) fn spill(&mut self) {
        let Some(store) = self.store.clone() else { return };
        while let Some(leaving) = self.scheduler.cache_mut().next_leaving() {
            // Without memory for the copy, the record is lost.
            let _ = self.put(&store, &leaving, false);
        }
        if let Some(failure) = store.failure() {
            self.shared.log.write(LOG_WARN, failure);
        }
    }

    /// Forgets what the last changes took from the prefix cache.
    pub(super) fn forget_leaving(&mut self) {
        while self.scheduler.cache_mut().next_leaving().is_some() {}
    }

    fn put(&mut self, store: &Store, leaving: &Leaving, wait: bool) -> Result<()> {
        let place = self.scheduler.cache_mut().place_of(leaving)?;
        let unit = match place.kind {
            Kind::Block => Unit::Block,
            Kind::State => Unit::State,
        };
        store.put(&place, wait, |out| self.memory.read(unit, leaving.unit, out))
    }

    /// Moves what has arrived from the tier to its place in memory.
    pub(super) fn collect(&mut self) {
        let Some(store) = self.store.clone() else { return };
        while let Some(arrival) = store.arrival(self.number) {
            let to = self.scheduler.destination(arrival.ticket, arrival.index);
            let written = match (to, arrival.payload()) {
                (Some(Destination::Block(block)), Some(bytes)) => {
                    self.drafting.own_cache().iter_mut().for_each(|drafter| drafter.forget(block));
                    self.memory.write(Unit::Block, block, bytes).is_ok()
                }
                (Some(Destination::State(state)), Some(bytes)) => {
                    self.memory.write(Unit::State, state, bytes).is_ok()
                }
                _ => false,
            };
            self.scheduler.arrived(arrival.ticket, arrival.index, written, &self.sequences);
            store.reuse(arrival);
        }
    }

    /// Queues everything in the prefix cache to be written, at the end of a thread.
    pub(super) fn keep_all(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let mut units = Vec::new();
        self.scheduler.cache_mut().units(&mut |unit| {
            units.try_reserve(1).is_ok() && {
                units.push(unit);
                true
            }
        });
        for unit in units {
            if self.put(&store, &unit, true).is_err() {
                return;
            }
        }
    }

    /// Gives up the tier.
    pub(super) fn leave_tier(&mut self) {
        match (self.store.take(), &self.shared.tier) {
            (Some(store), _) => store.leave(),
            (None, Some(tier)) => tier.store().into_iter().for_each(|store| store.leave()),
            (None, None) => {}
        }
    }
}
