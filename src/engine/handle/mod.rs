//! The engine, as the host's threads call it.

use crate::base::clock::now_ns;
use crate::base::sync::Mutex;
use crate::base::{Error, Result, Status, fork, reserve, threads};
use crate::cache::bytes_per_block;
use crate::constrain::Grammars;
use crate::engine::api::*;
use crate::engine::core::backend::Backend;
use crate::engine::core::calls::Work;
use crate::engine::core::disk;
use crate::engine::core::disk::Tier;
use crate::engine::core::drafter;
use crate::engine::core::idle::Released;
use crate::engine::core::session_file;
use crate::engine::core::{Core, Shared};
use crate::engine::delivery::callback;
use crate::engine::delivery::callback::Log;
use crate::engine::delivery::deliver;
use crate::engine::delivery::signal::Signal;
use crate::engine::hub::ids::next_salt;
use crate::engine::hub::{Bounds, Hub, Phase, dead};
use crate::engine::memory::free;
use crate::engine::memory::free::Claim;
use crate::engine::memory::plan;
use crate::engine::memory::plan::MemoryPlan;
use crate::engine::request::eyes::Eyes;
use crate::engine::request::speculation::Speculating;
use crate::engine::watch::kv_events::KvEvents;
use crate::engine::watch::stats::Recorder;
use crate::engine::watch::{metrics, report};
use crate::kernels::Pool;
use crate::model::{Facts, Loaded};
use crate::ops::{MemoryLayout, StateLayout};
use crate::schedule::{Scheduler, SchedulerConfig, StateConfig};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A running engine. Every method may be called from any thread, with two exceptions that `check_call` detects:
/// blocking methods from a callback, and any method in a forked child.
pub struct Engine {
    pub(super) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    memory: MemoryPlan,
    /// Compute threads that were started on all devices, and those that take part.
    most_threads: usize,
    active_threads: AtomicUsize,
    max_batch_size: u32,
    max_batch_tokens: u32,
    /// Rows of logits that a prompt may have in any step, beside all other sequences.
    step_logits: usize,
    kv_block_size: u32,
    default_timeout_ms: u32,
    /// Speculation defaults for requests that set none.
    speculation: Speculating,
    model_name: Option<String>,
    pub(super) adapter_scratch: Mutex<Scratch>,
    /// Passes run on a device, so adapters are uploaded when they are opened.
    pub(super) on_device: bool,
    made_in: u32,
}

/// The device of an engine thread, and its memory.
pub(super) struct DeviceSlot {
    pub backend: Backend,
    pub memory: MemoryPlan,
    pub claim: Claim,
}

fn make_core(
    config: &EngineConfig,
    shared: &Arc<Shared>,
    number: usize,
    backend: Backend,
    memory: &MemoryPlan,
) -> Result<Core> {
    let (model, states) = (&shared.loaded.model, memory.states);
    let own = backend.ops.memory(MemoryLayout {
        kv: model.kv_shape().layout(memory.kv_type, memory.blocks, config.kv_block_size as usize),
        states: StateLayout { shape: model.state_shape(), slots: states.slots, drafted: states.drafted },
        longest: config::sequence_length(config.context_length, model.facts().context_length)?,
    })?;
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_batch_size: if states.slots == 0 { config.max_batch_size } else { states.running as u32 },
        max_batch_tokens: config.max_batch_tokens,
        max_logits_rows: plan::logits_rows(config) as u32,
        max_step_ns: config.max_step_ms as u64 * 1_000_000,
        block_size: config.kv_block_size,
        blocks: memory.blocks as u32,
        states: StateConfig {
            slots: states.slots as u32,
            snapshot_interval: config.snapshot_interval.next_multiple_of(config.kv_block_size),
            drafts: states.drafted as u32,
        },
        max_wait_ns: config.max_wait_us as u64 * 1_000,
        target_itl_ns: config.target_itl_ms as u64 * 1_000_000,
        ageing_ns: config.priority_ageing_ms as u64 * 1_000_000,
    })?;
    scheduler.draft_always = config.draft_always;
    shared.kv_events.begin(scheduler.cache_mut())?;
    Core::new(shared.clone(), number, backend, own, scheduler, config, memory)
}

/// State that an engine's threads share.
fn share(
    config: &EngineConfig,
    loaded: Loaded,
    threads: usize,
    bounds: Bounds,
    claims: Vec<Claim>,
    blocks: Vec<usize>,
    log: Log,
) -> Result<Arc<Shared>> {
    let kv_type = plan::kv_type(config, &*loaded.model)?;
    let block = bytes_per_block(loaded.model.kv_shape(), kv_type, config.kv_block_size as usize)?;
    let state = loaded.model.state_shape().slot_bytes().unwrap_or(0);
    let tier = Tier::new(config, claims.len(), disk::sizes(config, block, state))?;
    let signal = if config.on_event.is_none() { Some(Signal::new()?) } else { None };
    let count = claims.len();
    Ok(Arc::new(Shared {
        kv_events: KvEvents::new(config.kv_events_capacity as usize, count),
        hub: Hub::new(next_salt(), bounds, count, signal),
        recorder: Recorder::new(claims, blocks),
        log,
        on_span: config.on_span.clone(),
        grammars: Grammars::new(threads, bounds.bytes, free::room),
        released: Released::default(),
        tier,
        eyes: Eyes::new(config, &loaded),
        loaded,
    }))
}

impl Engine {
    /// Loads the model, unless it is loaded already, and starts the threads. Everything that can be refused is
    /// refused here.
    pub fn create(config: EngineConfig) -> Result<Self> {
        config::check(&config)?;
        loading::with_room(|| Self::make(config))
    }

    fn make(mut config: EngineConfig) -> Result<Self> {
        let log = Log::new(config.log.take(), config.log_level)?;
        let pool = Pool::new(config::threads(config.threads)?)?;
        let backends = Backend::all(&config, &pool)?;
        let loaded = match config.model.take() {
            Some(loaded) => loaded,
            None => load(&config, &pool, &log)?,
        };
        let computes = [("instructions", config.instructions.is_some()), ("device", backends[0].on_device)];
        if loaded.model.kv_shape().kind.is_some()
            && let Some((field, _)) = computes.iter().find(|(_, given)| *given)
        {
            return Err(Error::invalid(format!("{field} is given, and builtin:echo computes nothing")));
        }
        let keeps =
            [("cache_path", config.cache_path.is_some()), ("host_cache_bytes", config.host_cache_bytes > 0)];
        if let Some((field, _)) = keeps.iter().find(|(_, given)| *given && loaded.model.facts().encodes) {
            let message =
                format!("{field} is given, and the model is an encoder, which leaves nothing to keep");
            return Err(Error::invalid(message));
        }
        if config.host_cache_bytes > 0 && !backends[0].on_device {
            let message = "host_cache_bytes is given, and the KV cache is in the machine's memory already: it is for devices";
            return Err(Error::invalid(message));
        }
        drafter::check(&config, &loaded)?;
        let max_sequence =
            config::sequence_length(config.context_length, loaded.model.facts().context_length)?;
        let (mut devices, count) = (Vec::new(), backends.len());
        config::set_batch_tokens(&mut config, loaded.model.facts(), max_sequence, |config| {
            plan::plan(config, &loaded, &backends[0], count, max_sequence, 0).is_ok()
        });
        if loaded.model.facts().encodes && (config.max_batch_tokens as usize) < max_sequence {
            let most = config.max_batch_tokens;
            log.write(LOG_INFO, format!("texts of up to {most} tokens are read, by max_batch_tokens"));
        }
        reserve(&mut devices, count, "an engine's devices")?;
        // Check all before any of them takes memory, so that a refusal leaves it to other engines.
        let models = || [Some(&loaded), config.draft_model.as_ref()].into_iter().flatten();
        for backend in backends.iter().filter(|backend| backend.on_device) {
            models().try_for_each(|loaded| backend.supports(loaded))?;
            let lacking = backend.lacks(models());
            plan::plan(&config, &loaded, backend, count, max_sequence, lacking)?;
        }
        for backend in backends {
            log.write(LOG_INFO, backend.name.clone());
            models().try_for_each(|loaded| backend.hold(loaded))?;
            let (memory, claim) = plan::plan(&config, &loaded, &backend, count, max_sequence, 0)?;
            log.write(LOG_INFO, memory.to_string());
            if let Some(text) = memory.clamped(max_sequence) {
                log.write(LOG_WARN, text);
            }
            devices.push(DeviceSlot { backend, memory, claim });
        }
        let (engine, cores) = Self::assemble(&config, loaded, devices, log)?;
        engine.start(cores, config.on_event.take())?;
        Ok(engine)
    }

    /// Makes everything but the threads, with one core per device.
    pub(super) fn assemble(
        config: &EngineConfig,
        loaded: Loaded,
        devices: Vec<DeviceSlot>,
        log: Log,
    ) -> Result<(Self, Vec<Core>)> {
        let memory = MemoryPlan::of_all(devices.iter().map(|slot| &slot.memory));
        let memory = memory.ok_or_else(|| Error::internal("an engine without a device"))?;
        let on_device = devices[0].backend.on_device;
        let threads = devices.iter().map(|slot| slot.backend.pool.threads()).sum();
        let blocks = devices.iter().map(|slot| slot.memory.blocks).collect();
        let bounds = Bounds {
            requests: config.queue_capacity as usize,
            queued_tokens: match config.queue_token_capacity {
                0 => u64::MAX,
                n => n,
            },
            bytes: memory.for_requests(),
            aside: MemoryPlan::for_copies(devices.iter().map(|slot| &slot.memory)),
            unread_bytes: config.max_unread_bytes,
        };
        let (mut cores, mut claims, mut memories) = (Vec::new(), Vec::new(), Vec::new());
        reserve(&mut cores, devices.len(), "the engine's cores")?;
        for DeviceSlot { backend, memory, claim } in devices {
            claims.push(claim);
            memories.push((backend, memory));
        }
        let shared = share(config, loaded, threads, bounds, claims, blocks, log)?;
        for (number, (backend, own)) in memories.into_iter().enumerate() {
            let own = MemoryPlan { max_sequence: memory.max_sequence, ..own };
            let mut core = make_core(config, &shared, number, backend, &own)?;
            if on_device {
                core.warm(config, memory.max_sequence)?;
            }
            cores.push(core);
        }
        let speculation = Speculating::new(config, &*shared.loaded.model);
        let engine = Self {
            shared,
            threads: Mutex::new(Vec::new()),
            memory,
            most_threads: threads,
            active_threads: AtomicUsize::new(threads),
            max_batch_size: config.max_batch_size,
            max_batch_tokens: config.max_batch_tokens,
            step_logits: plan::logits_rows(config) + 1 - config.max_batch_size as usize,
            kv_block_size: config.kv_block_size,
            default_timeout_ms: config.default_timeout_ms,
            speculation,
            model_name: config.model_name.clone(),
            adapter_scratch: Mutex::new(Scratch::new(config.max_batch_tokens)),
            on_device,
            made_in: fork::generation(),
        };
        Ok((engine, cores))
    }

    fn start(&self, cores: Vec<Core>, sink: Option<EventSink>) -> Result<()> {
        let mut handles = self.threads.lock();
        for core in cores {
            // A vector's memory can be refused, unlike that of a thread's closure.
            let mut own = Vec::new();
            reserve(&mut own, 1, "an engine's core")?;
            own.push(core);
            handles.push(threads::spawn("bn-engine".into(), move || own.into_iter().for_each(Core::main))?);
        }
        if let Some(sink) = sink {
            let shared = self.shared.clone();
            // If this fails, dropping the half-made engine ends the engine threads.
            handles.push(threads::spawn("bn-delivery".into(), move || deliver(&shared, sink))?);
        }
        Ok(())
    }

    pub(super) fn hub(&self) -> &Hub<Event, Work, Signal> {
        &self.shared.hub
    }

    /// Passes up to `capacity` events to `sink`, each with its lease. Waits for the first one for up to `timeout`
    /// (None: without limit). An event stays in place until it is given back, its request is released or the
    /// engine is destroyed. `Finished` for a request whose terminal event was returned; `Shutdown` or `EngineDead`
    /// if no event is left and none will come.
    pub fn poll(
        &self,
        which: Which,
        capacity: usize,
        timeout: Option<Duration>,
        sink: &mut dyn FnMut(u64, &Event),
    ) -> Result<usize> {
        self.signal()?;
        if capacity == 0 {
            return Err(Error::invalid("capacity = 0 is out of range: at least 1"));
        }
        self.shared.hub.poll(which, capacity, timeout, sink)
    }

    /// Frees polled events, by request and lease. Unknown leases are ignored.
    pub fn give_back(&self, leases: &mut dyn Iterator<Item = (RequestId, u64)>) {
        self.shared.hub.give_back(leases);
    }

    /// Begins to cancel requests; the terminal event confirms it. No error if a request has finished already.
    pub fn cancel(&self, which: Which) -> Result<()> {
        self.shared.hub.cancel(which)
    }

    /// Releases `id`; a live request is cancelled and its events are dropped.
    pub fn release(&self, id: RequestId) -> Result<()> {
        self.shared.hub.release(id)
    }

    pub fn stage(&self, id: RequestId) -> Result<Stage> {
        self.shared.hub.stage(id)
    }

    /// The statistics as Prometheus text.
    pub fn metrics(&self) -> String {
        metrics::text(&self.stats(), self.facts(), self.model_name(), self.phase())
    }

    /// The efficiency of batching, as readable text.
    pub fn report(&self) -> String {
        let (stats, efficiency) = self.counted();
        report::text(&stats, &efficiency)
    }

    pub fn stats(&self) -> Stats {
        self.counted().0
    }

    fn counted(&self) -> (Stats, Efficiency) {
        let (hub, bounds) = (self.shared.hub.usage(), self.shared.hub.bounds());
        let (recorded, efficiency) = self.shared.recorder.snapshot();
        let completed = |reason: FinishReason| hub.outcomes[reason as usize];
        let grammars = self.shared.grammars.totals();
        let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let store = self.shared.tier.as_ref().and_then(|tier| tier.store());
        let disk = store.map(|store| store.counts()).unwrap_or_default();
        let stats = Stats {
            max_batch_size: self.max_batch_size.into(),
            accepted: hub.accepted,
            completed_stop: completed(FinishReason::Stop),
            completed_stop_string: completed(FinishReason::StopString),
            completed_length: completed(FinishReason::Length),
            completed_cancelled: completed(FinishReason::Cancelled),
            completed_timed_out: completed(FinishReason::TimedOut),
            completed_failed: completed(FinishReason::Failed),
            completed_embedding: completed(FinishReason::Embedding),
            queued: (hub.unfinished - hub.running) as u64,
            running: hub.running as u64,
            // The hub was read earlier, and requests may have begun or ended since.
            paused: recorded.paused.min(hub.running as u64),
            unreleased: hub.unreleased as u64,
            queue_capacity: bounds.requests as u64,
            queued_tokens: hub.queued_tokens,
            queue_token_capacity: if bounds.queued_tokens == u64::MAX { 0 } else { bounds.queued_tokens },
            queue_age_ns: self.shared.hub.queue_ages(now_ns()),
            devices: self.shared.hub.threads() as u64,
            devices_lost: self.shared.hub.team(|team| team.balance.lost()) as u64,
            kv_block_size: self.kv_block_size.into(),
            kv_bytes: self.memory.kv,
            context_length: self.longest() as u64,
            memory_used_bytes: self.memory.fixed() + hub.reserved,
            memory_peak_bytes: self.memory.fixed() + hub.reserved_peak,
            memory_limit_bytes: self.memory.limit,
            grammars_compiled: total(&grammars.compiled),
            grammars_reused: total(&grammars.hits),
            grammar_compile_ns: total(&grammars.compile_ns),
            masks: total(&grammars.masks),
            mask_ns: total(&grammars.mask_ns),
            mask_wait_ns: total(&grammars.wait_ns),
            engine_paused: self.shared.hub.is_held().into(),
            threads: self.active_threads.load(Ordering::Relaxed) as u64,
            weights_released_bytes: total(&self.shared.released.bytes),
            weight_releases: total(&self.shared.released.times),
            disk_read_bytes: disk.read_bytes,
            disk_read_ns: disk.read_ns,
            disk_written_bytes: disk.written_bytes,
            disk_write_ns: disk.write_ns,
            disk_dropped: disk.dropped,
            disk_damaged: disk.damaged,
            disk_bytes: disk.bytes,
            ..recorded
        };
        (stats, efficiency)
    }

    /// The wait descriptor. `WrongMode` in callback mode, which has none.
    pub fn wait_fd(&self) -> Result<i32> {
        self.signal().and_then(Signal::fd)
    }

    /// Like `wait_fd`, for Windows.
    pub fn wait_handle(&self) -> Result<*mut c_void> {
        self.signal().and_then(Signal::handle)
    }

    fn signal(&self) -> Result<&Signal> {
        self.shared.hub.signal().ok_or_else(|| {
            let message = "the engine delivers by callback; it cannot be polled and has no wait descriptor";
            Error::new(Status::WrongMode, message)
        })
    }

    /// Begins a shutdown. Asynchronous and idempotent; Drain may be followed by Cancel. `EngineDead` after
    /// the engine thread died.
    pub fn shutdown(&self, mode: ShutdownMode) -> Result<()> {
        if self.phase() == Phase::Dead {
            return Err(dead());
        }
        self.shared.hub.advance(Phase::Closing, mode == ShutdownMode::Cancel);
        self.shared.grammars.close();
        Ok(())
    }

    pub fn phase(&self) -> Phase {
        self.shared.hub.phase()
    }

    /// Cancels all live requests, wakes blocked pollers and waits for them, joins every thread. Ids are invalid
    /// afterwards. Does nothing if `check_call` refuses a blocking call.
    pub fn destroy(&self) -> Result<()> {
        self.check_call(true)?;
        self.shared.hub.leave_all();
        // A dead engine has nothing to cancel.
        let _ = self.shutdown(ShutdownMode::Cancel);
        let threads = std::mem::take(&mut *self.threads.lock());
        for handle in threads {
            // Both kinds of threads catch their panics, so `join` reports nothing.
            let _ = handle.join();
        }
        self.shared.tier.iter().for_each(Tier::join);
        self.shared.grammars.stop();
        self.shared.hub.destroy();
        Ok(())
    }

    pub fn facts(&self) -> &Facts {
        self.shared.loaded.model.facts()
    }

    /// Name of the model in the metrics.
    pub fn model_name(&self) -> &str {
        self.model_name.as_deref().unwrap_or(&self.facts().name)
    }

    /// The model that the engine runs.
    pub fn loaded(&self) -> &Loaded {
        &self.shared.loaded
    }

    /// `Forked` in a child of the process that made the engine; `Reentrant` inside a callback when `blocking`.
    pub fn check_call(&self, blocking: bool) -> Result<()> {
        if self.made_in != fork::generation() {
            return Err(Error::new(Status::Forked, "the engine was made before this process was forked"));
        }
        if blocking && callback::inside() {
            return Err(Error::new(Status::Reentrant, "a blocking call from a callback"));
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        match self.destroy().map_err(|error| error.status) {
            Ok(()) => {}
            // The threads do not exist in a forked child; their handles and locks are in an unknown state.
            Err(Status::Forked) => std::mem::forget(std::mem::take(self.threads.get_mut())),
            // Nothing can be joined inside a callback; the threads end by themselves.
            Err(_) => drop(self.shutdown(ShutdownMode::Cancel)),
        }
    }
}

/// Loads the model at `model_path`.
fn load(config: &EngineConfig, pool: &Pool, log: &Log) -> Result<Loaded> {
    let source = Source::parse(config.model_path.as_deref())?;
    let options = LoadOptions { max_weight_bytes: config.memory_limit_bytes, ..Default::default() };
    loading::load(&source, &options, pool, log, None)
}

mod adapters;
mod calls;
pub(super) mod config;
mod limits;
pub(super) mod loading;
mod pictures;
mod power;
mod questions;
mod submit;
use adapters::Scratch;
pub use pictures::MAX_PICTURES;
pub use questions::{MAX_OPTIONS, MAX_QUESTIONS};
pub use submit::in_batch;
#[cfg(test)]
mod slow_masks;
