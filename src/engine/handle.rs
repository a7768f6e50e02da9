//! The engine as a host's threads see it.

use super::api::*;
use super::callback::{self, Log};
use super::config::{self, RequestLimits};
use super::core::{Command, Core, Shared, deliver};
use super::hub::{Hub, Phase, Readable, Refused};
use super::ids::next_salt;
use super::memory::{self, MemoryPlan};
use super::sequence::Sequence;
use super::signal::Signal;
use super::stats::Recorder;
use crate::base::clock::now_ns;
use crate::base::{Error, Result, Status, fork, threads};
use crate::kernels::{Pool, isa};
use crate::model::{self, Facts, KvShape, Model, Source};
use crate::ops::{FusedOps, KvCache};
use crate::schedule::{Scheduler, SchedulerConfig};
use crate::text::chat::no_template;
use crate::text::{ChatTemplate, Message, Tokenizer};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

impl Readable for Signal {
    fn set(&self) {
        Signal::set(self)
    }
    fn clear(&self) {
        Signal::clear(self)
    }
}

/// A running engine. Every method may be called from any thread.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    facts: Facts,
    memory: MemoryPlan,
    max_batch_size: u32,
    max_sequence: usize,
    longest_token: usize,
    default_timeout_ms: u32,
    callback_mode: bool,
    made_in: u32,
}

impl Engine {
    /// Loads the model and starts the threads. Everything that can be refused is refused here.
    pub fn create(mut config: EngineConfig) -> Result<Self> {
        config::check(&config)?;
        let log = Log::new(config.log.clone(), config.log_level);
        let source = Source::parse(config.model_path.as_deref())?;
        let (pool, ops) = operations(&config)?;
        if config.instructions.is_some() && matches!(source, Source::Echo { .. }) {
            return Err(Error::invalid("instructions is given, and builtin:echo computes nothing"));
        }
        config.load.max_weight_bytes = config.memory_limit_bytes;
        let loaded = load(&source, &config.load, &pool, &log, config.progress.take())?;
        Self::run(config, loaded, ops)
    }

    /// Runs a model that is loaded already, and that others may run too; `model_path`, `load` and `progress` have
    /// served.
    pub fn with_model(config: EngineConfig, loaded: model::Loaded) -> Result<Self> {
        config::check(&config)?;
        let (_, ops) = operations(&config)?;
        Self::run(config, loaded, ops)
    }

    fn run(mut config: EngineConfig, loaded: model::Loaded, ops: FusedOps) -> Result<Self> {
        let made_in = fork::generation();
        let log = Log::new(config.log.take(), config.log_level);
        log.write(LOG_INFO, format!("instructions: {}", ops.isa().name()));
        let facts = loaded.model.facts().clone();
        let max_sequence = config::sequence_length(config.max_sequence_length, facts.context_length)?;
        let memory = memory::plan(&config, &loaded, &ops, max_sequence)?;
        let MemoryPlan { weights, workspace, kv, kv_type, blocks, limit } = memory;
        let limit = if limit == 0 { "no limit".into() } else { format!("limit {limit}") };
        log.write(
            LOG_INFO,
            format!("memory in bytes: weights and tables {weights}, workspace {workspace}, KV {kv} in {blocks} blocks of {kv_type:?}, {limit}"),
        );
        let longest_token = loaded.tokenizer.as_deref().map_or(0, Tokenizer::longest_token);
        let signal = if config.on_event.is_none() { Some(Signal::new()?) } else { None };
        let shared = Arc::new(Shared {
            hub: Hub::new(next_salt(), config.queue_capacity as usize, memory.for_requests(), signal),
            inbox: Default::default(),
            stop: AtomicBool::new(false),
            cancellable: AtomicBool::new(false),
            recorder: Recorder::default(),
            log,
            tokenizer: loaded.tokenizer,
            end_tokens: loaded.end_tokens,
            chat: loaded.chat,
        });
        let engine = Self {
            shared: shared.clone(),
            threads: Mutex::new(Vec::new()),
            facts,
            memory,
            max_batch_size: config.max_batch_size,
            max_sequence,
            longest_token,
            default_timeout_ms: config.default_timeout_ms,
            callback_mode: config.on_event.is_some(),
            made_in,
        };
        engine.start(config, loaded.model, ops)?;
        Ok(engine)
    }

    fn start(&self, mut config: EngineConfig, model: Arc<dyn Model>, ops: FusedOps) -> Result<()> {
        let block_size = config.kv_block_size as usize;
        let KvShape { layers, kv_heads, head_dim, .. } = model.kv_shape();
        let MemoryPlan { kv_type, blocks, .. } = self.memory;
        let kv = KvCache::new(kv_type, layers, kv_heads, head_dim, blocks, block_size)?;
        let scheduler = Scheduler::new(SchedulerConfig {
            max_batch_size: config.max_batch_size,
            max_batch_tokens: config.max_batch_tokens,
            max_step_ns: config.max_step_ms as u64 * 1_000_000,
            block_size: config.kv_block_size,
            blocks: self.memory.blocks as u32,
            max_wait_ns: config.max_wait_us as u64 * 1_000,
        })?;
        let (batch, tokens) = (config.max_batch_size as usize, config.max_batch_tokens as usize);
        let core = Core::new(self.shared.clone(), model, ops, kv, scheduler, batch, tokens)?;
        let mut handles = self.threads.lock();
        handles.push(threads::spawn("bn-engine".into(), move || core.main())?);
        if let Some(sink) = config.on_event.take() {
            let shared = self.shared.clone();
            // Where this fails, dropping the half-made engine ends the engine thread.
            handles.push(threads::spawn("bn-delivery".into(), move || deliver(&shared, sink))?);
        }
        Ok(())
    }

    /// All or nothing. Never waits for the engine thread.
    pub fn submit(&self, requests: Vec<RequestParams>) -> Result<Vec<RequestId>> {
        self.check_call(false)?;
        if self.callback_mode && requests.iter().any(|request| request.poll_by_id) {
            self.shared.recorder.rejected(Status::InvalidArgument, requests.len());
            return Err(Error::invalid("poll_by_id: an engine in callback mode cannot be polled"));
        }
        self.accept(requests)
    }

    /// Counts `n` requests that the caller refused for this engine before they came here.
    pub fn refused(&self, status: Status, n: usize) {
        self.shared.recorder.rejected(status, n);
    }

    fn accept(&self, requests: Vec<RequestParams>) -> Result<Vec<RequestId>> {
        let n = requests.len();
        self.try_accept(requests).inspect_err(|error| self.shared.recorder.rejected(error.status, n))
    }

    fn try_accept(&self, requests: Vec<RequestParams>) -> Result<Vec<RequestId>> {
        if requests.is_empty() {
            return Err(Error::invalid("no requests"));
        }
        self.still_open()?;
        self.room_for(requests.len())?;
        let several = requests.len() > 1;
        let mut sequences = Vec::with_capacity(requests.len());
        let mut wanted = Vec::with_capacity(requests.len());
        for (i, request) in requests.into_iter().enumerate() {
            let poll_by_id = request.poll_by_id;
            let prepared = self.prepare(request).map_err(|mut error| {
                if several {
                    error.message = format!("request {i}: {}", error.message);
                }
                error
            });
            let (sequence, bytes) = prepared?;
            wanted.push((poll_by_id, bytes));
            sequences.push(sequence);
        }
        let mut ids = Vec::with_capacity(wanted.len());
        self.shared.hub.open(&wanted, &mut ids).map_err(|refused| self.refusal(refused))?;
        self.shared.recorder.accepted(ids.len(), || {
            for (mut sequence, &id) in sequences.into_iter().zip(&ids) {
                sequence.id = id;
                self.shared.inbox.push(Command::Submit(sequence));
            }
            self.shared.cancellable.store(true, Ordering::SeqCst);
        });
        Ok(ids)
    }

    /// A checked, tokenized request and the bytes that it reserves.
    fn prepare(&self, mut params: RequestParams) -> Result<(Box<Sequence>, u64)> {
        let now = now_ns();
        let prompt = self.limits(params.embedding.is_some()).prompt_ids(&mut params)?;
        let max_new = match params.embedding {
            Some(_) => 1,
            None => params.max_new_tokens.min((self.max_sequence - prompt.len()) as u32),
        };
        let (longest, width) = (self.longest_token, self.facts.hidden_size);
        let bytes = memory::request_bytes(&params, prompt.len(), max_new, longest, width);
        let timeout_ms = match params.timeout_ms {
            0 => self.default_timeout_ms,
            TIMEOUT_NONE => 0,
            ms => ms,
        };
        let ends = self.end_tokens();
        Ok((Box::new(Sequence::new(params, prompt, max_new, &self.facts, ends, now, timeout_ms)?), bytes))
    }

    fn refusal(&self, refused: Refused) -> Error {
        match refused {
            Refused::Full => Error::new(
                Status::QueueFull,
                format!(
                    "{} requests (queue_capacity) are unreleased; release finished ones, or raise it",
                    self.shared.hub.capacity()
                ),
            ),
            Refused::Memory(left) => Error::new(
                Status::MemoryLimit,
                format!("memory_limit_bytes leaves {left} bytes for requests, and this one may need more"),
            ),
            Refused::Closed(Phase::Dead) => {
                Error::new(Status::EngineDead, "the engine's thread died; destroy the engine")
            }
            Refused::Closed(_) => Error::new(Status::Shutdown, "the engine is shutting down"),
        }
    }

    /// Refuses before any work what can never be taken.
    pub fn room_for(&self, n: usize) -> Result<()> {
        if n > self.shared.hub.capacity() { Err(self.refusal(Refused::Full)) } else { Ok(()) }
    }

    /// Refuses a prompt of so many bytes, or ids, that can never fit, before anybody copies it.
    pub fn prompt_may_fit(&self, bytes: usize, ids: usize, embedding: bool) -> Result<()> {
        self.limits(embedding).size(bytes, ids)
    }

    /// Elements of an embedding; `Unsupported` where the model makes none.
    pub fn embedding_size(&self) -> Result<usize> {
        self.limits(true).embedding_size()
    }

    fn limits(&self, embedding: bool) -> RequestLimits<'_> {
        RequestLimits {
            vocab_size: self.facts.vocab_size,
            hidden_size: self.facts.hidden_size,
            new_tokens: usize::from(!embedding),
            max_sequence: self.max_sequence,
            tokenizer: self.tokenizer().map(|t| &**t),
        }
    }

    fn still_open(&self) -> Result<()> {
        match self.shared.hub.phase() {
            Phase::Open => Ok(()),
            phase => Err(self.refusal(Refused::Closed(phase))),
        }
    }

    /// Hands up to `capacity` events to `sink`, waiting for the first up to `timeout` (None: for good).
    /// What an event points to stays where it is until the next poll that returns an event of the same
    /// request, or its release. A request whose terminal event was returned gives 0 at once.
    pub fn poll(
        &self,
        which: Which,
        capacity: usize,
        timeout: Option<Duration>,
        sink: &mut dyn FnMut(usize, &Event),
    ) -> Result<usize> {
        self.check_call(true)?;
        if self.callback_mode {
            return Err(Error::new(
                Status::WrongMode,
                "the engine delivers by callback; it cannot be polled",
            ));
        }
        if capacity == 0 {
            return Err(Error::invalid("capacity = 0 is out of range: at least 1"));
        }
        self.shared.hub.poll(which, capacity, timeout, sink)
    }

    /// Asynchronous: the terminal event tells. Fine for a request that has finished already.
    pub fn cancel(&self, which: Which) -> Result<()> {
        self.check_call(false)?;
        self.alive()?;
        let news = match which {
            Which::Any => self.shared.cancellable.swap(false, Ordering::SeqCst),
            Which::One(id) => self.shared.hub.cancel(id)?,
        };
        if news {
            self.shared.inbox.push(Command::Cancel(which));
        }
        Ok(())
    }

    /// Retires `id`; a live request is cancelled and its events are dropped.
    pub fn release(&self, id: RequestId) -> Result<()> {
        self.check_call(false)?;
        if self.shared.hub.release(id)? {
            self.shared.inbox.push(Command::Abandon(id));
        }
        Ok(())
    }

    /// Submits and waits for the completion event, in either mode and beside any poller.
    pub fn generate(&self, mut request: RequestParams) -> Result<Event> {
        self.check_call(true)?;
        (request.stream, request.poll_by_id) = (false, true);
        let id = self.accept(vec![request])?[0];
        let mut event = None;
        let polled =
            self.shared.hub.poll(Which::One(id), 1, None, &mut |_, e: &Event| event = Some(e.clone()));
        // Only `destroy` can have retired it before.
        let _ = self.release(id);
        polled.map_err(|error| match error.status {
            Status::NotFound => Error::new(Status::Shutdown, "the engine was destroyed meanwhile"),
            _ => error,
        })?;
        event.ok_or_else(|| Error::internal("a request ended without its completion"))
    }

    pub fn stats(&self) -> Stats {
        let (live, reserved, peak) = self.shared.hub.usage();
        Stats {
            unreleased: live as u64,
            kv_blocks_total: self.memory.blocks as u64,
            kv_bytes: self.memory.kv,
            memory_used_bytes: self.memory.fixed() + reserved,
            memory_peak_bytes: self.memory.fixed() + peak,
            memory_limit_bytes: self.memory.limit,
            ..self.shared.recorder.snapshot(self.max_batch_size)
        }
    }

    /// -1 in callback mode.
    pub fn wait_fd(&self) -> i32 {
        self.shared.hub.signal().map_or(-1, Signal::fd)
    }

    /// Asynchronous, idempotent; Drain may be followed by Cancel.
    pub fn shutdown(&self, mode: ShutdownMode) -> Result<()> {
        self.check_call(false)?;
        self.alive()?;
        self.begin_shutdown(mode);
        Ok(())
    }

    /// `EngineDead` after the engine thread died.
    pub fn alive(&self) -> Result<()> {
        match self.shared.hub.phase() {
            Phase::Dead => Err(self.refusal(Refused::Closed(Phase::Dead))),
            _ => Ok(()),
        }
    }

    fn begin_shutdown(&self, mode: ShutdownMode) {
        let first = self.shared.hub.advance(Phase::Closing);
        let news = match mode {
            ShutdownMode::Drain => first,
            ShutdownMode::Cancel => !self.shared.stop.swap(true, Ordering::SeqCst),
        };
        if news {
            self.shared.inbox.push(Command::Shutdown(mode));
        }
    }

    /// Cancels what is left, wakes and waits for blocked pollers, joins every thread. Ids are dead after it.
    /// `Reentrant` from a callback, and then nothing has happened; nothing in a forked child either.
    pub fn destroy(&self) -> Result<()> {
        if self.is_forked() {
            return Ok(());
        }
        if callback::inside() {
            return Err(Error::new(Status::Reentrant, "an engine cannot be destroyed from a callback"));
        }
        self.begin_shutdown(ShutdownMode::Cancel);
        for handle in std::mem::take(&mut *self.threads.lock()) {
            // Both threads catch what they run; there is nothing to hear from them.
            let _ = handle.join();
        }
        self.shared.hub.destroy();
        Ok(())
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Tokens that one request may have, prompt and output together.
    pub fn max_sequence_length(&self) -> usize {
        self.max_sequence
    }

    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.shared.tokenizer.as_ref()
    }

    /// The ids that end an output.
    pub fn end_tokens(&self) -> &[u32] {
        &self.shared.end_tokens
    }

    pub fn chat_template(&self) -> Option<&Arc<ChatTemplate>> {
        self.shared.chat.as_ref()
    }

    /// The conversation as a prompt; a failure is logged too. See `ChatTemplate::render`.
    pub fn format_chat(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let template = self.chat_template().ok_or_else(no_template)?;
        let text = template.render(messages, add_generation_prompt);
        text.inspect_err(|error| self.shared.log.write(LOG_WARN, &error.message))
    }

    fn is_forked(&self) -> bool {
        self.made_in != fork::generation()
    }

    /// `Forked` in a child of the process that made the engine; `Reentrant` inside a callback when `blocking`.
    pub fn check_call(&self, blocking: bool) -> Result<()> {
        if self.is_forked() {
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
        if self.is_forked() {
            // The threads do not exist here; their handles and locks are in an unknown state.
            std::mem::forget(std::mem::take(self.threads.get_mut()));
        } else if self.destroy().is_err() {
            // Inside a callback nothing can be joined; the threads end by themselves.
            self.begin_shutdown(ShutdownMode::Cancel);
        }
    }
}

/// What the engine's steps run on.
fn operations(config: &EngineConfig) -> Result<(Arc<Pool>, FusedOps)> {
    let threads = if config.threads == 0 { config::default_threads() } else { config.threads as usize };
    let pool = Pool::new(threads)?;
    let ops = FusedOps::with_isa(pool.clone(), config.instructions.unwrap_or_else(isa))?;
    Ok((pool, ops))
}

/// Loads with progress through the host's callback, and as log lines every tenth.
fn load(
    source: &Source,
    options: &LoadOptions,
    pool: &Pool,
    log: &Log,
    mut host: Option<ProgressSink>,
) -> Result<model::Loaded> {
    let mut logged = -1;
    let mut progress = |fraction: f32, what: &str| {
        let tenth = (fraction * 10.0) as i32;
        if tenth > logged {
            logged = tenth;
            log.write(LOG_INFO, format!("loading: {}% ({what})", tenth * 10));
        }
        host.as_mut().is_some_and(|host| callback::run(|| host(fraction, what)))
    };
    let log = |level, message: &str| log.write(level, message);
    model::load(source, options, pool, &log, &mut progress).map_err(|mut error| {
        if error.status == Status::MemoryLimit {
            error.message.push_str("; that is memory_limit_bytes here");
        }
        error
    })
}
