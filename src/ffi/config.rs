//! `bn_engine_config`, and its conversion to `EngineConfig`.

use super::callbacks::{bn_event_callback, bn_log_callback, bn_span_callback};
use super::event::bn_event;
use super::growth::grown;
use super::guard;
use super::log::{BN_LOG_WARN, log_sink};
use super::model::path;
use super::registry;
use super::span::span_sink;
use super::speculation::speculation;
use super::types::*;
use crate::base::{Error, Result};
use crate::engine::api::{EngineConfig, EventSink, Isa, KvType};
use crate::model::Loaded;
use std::ffi::c_void;

/// Half precision.
pub const BN_KV_TYPE_F16: u32 = 0;
/// Single precision.
pub const BN_KV_TYPE_F32: u32 = 1;
/// int8, with a scale for each token and head, after a Walsh-Hadamard transform of the head: half
/// of the memory of F16, and less precise.
pub const BN_KV_TYPE_INT8: u32 = 2;
/// Four bits, with a scale for 32 elements of a head, transformed like int8: half of the memory of
/// int8, and less precise. Not on NVIDIA devices.
pub const BN_KV_TYPE_INT4: u32 = 3;

/// The best that the machine has.
pub const BN_INSTRUCTIONS_AUTO: u32 = 0;
/// Portable code.
pub const BN_INSTRUCTIONS_SCALAR: u32 = 1;
/// x86-64 with AVX2, FMA and F16C.
pub const BN_INSTRUCTIONS_AVX2: u32 = 2;
/// AVX2 and AVX-VNNI.
pub const BN_INSTRUCTIONS_AVX_VNNI: u32 = 3;
/// AVX2 and AVX-512 F, BW, VL and VNNI.
pub const BN_INSTRUCTIONS_AVX512_VNNI: u32 = 4;
/// AVX512_VNNI and AVX-512 VBMI, which looks up the entries of codebook weights (IQ2, IQ3).
pub const BN_INSTRUCTIONS_AVX512_VBMI: u32 = 5;
/// AVX512_VBMI and AMX tiles of bytes, if the system lets the process use them. An engine that
/// wants them, by default too, asks when it is created: from then on the system refuses signal
/// stacks (`sigaltstack`) without room for tiles, some 11 KiB.
pub const BN_INSTRUCTIONS_AMX: u32 = 6;
/// aarch64 NEON with dot products.
pub const BN_INSTRUCTIONS_NEON: u32 = 7;
/// NEON, and products of matrices of int8 (i8mm).
pub const BN_INSTRUCTIONS_NEON_I8MM: u32 = 8;

/// How to make an engine. What contexts point to must live until `bn_engine_free` returns.
#[repr(C)]
pub struct bn_engine_config {
    pub struct_size: u32,
    /// Compute threads, 1 to 256. 0: the CPUs that this process may use.
    pub threads: u32,
    /// The engine keeps its own reference. NULL: `model_path`.
    pub model: *mut bn_model,
    /// As `bn_model_config.path`, for a model of this engine alone. Not set, with `model` NULL
    /// too: the model that is embedded in the library.
    pub model_path: bn_string,
    /// The model's name in metrics. Not set: `bn_model_info.name`.
    pub model_name: bn_string,
    /// A small model with the same vocabulary that drafts tokens for `model` to verify. The engine
    /// keeps its own reference. Its weights and its part of each KV block count against
    /// `memory_limit_bytes`.
    pub draft_model: *mut bn_model,
    /// Where forward passes run: `cpu`, also if not set, or NVIDIA devices of one type of those
    /// that `CUDA_VISIBLE_DEVICES` leaves, `cuda:0` or `cuda:0,cuda:1`. Answers equal the CPU's to
    /// the bit, except with F16 and BF16 weights and with `kv_type` F16, where they are near.
    ///
    /// Each device has the whole model and a KV cache, and runs up to `max_batch_size` requests.
    /// `memory_limit_bytes`, `kv_cache_bytes` and the free memory are each device's, in `bn_stats`
    /// they are summed; the queue's limits are the engine's. If one of several devices is lost,
    /// requests that ran there fail with `BN_ERR_ENGINE_DEAD`, its sessions are gone, and the
    /// engine goes on.
    pub device: bn_string,

    /// `BN_INSTRUCTIONS_*`. One that the machine lacks is refused. Results are bitwise the same
    /// with any.
    pub instructions: u32,
    /// The most tokens of one request, prompt and output together: 2 to the model's own
    /// `context_length`. 0: that, or without `memory_limit_bytes` less if the KV cache holds no
    /// more (`bn_stats.context_length`).
    pub context_length: u32,
    /// The most requests in a forward pass, 1 to 4096, default 32.
    pub max_batch_size: u32,
    /// The most tokens in a forward pass, `max_batch_size` to 65536. 0: 512, or more if
    /// `max_batch_size` is. An encoder runs a text in one pass: with 0 its passes hold
    /// `context_length` tokens, or as many as there is memory for.
    pub max_batch_tokens: u32,
    /// Microseconds that an idle engine waits for more requests before its first step, up to
    /// 1000000.
    pub max_wait_us: u32,
    /// Milliseconds that a step with running answers should last at most, 1 to 60000, default 200.
    /// Prompts are cut so that its predicted time is below seven eighths of that, or if this is
    /// more, 1.75 times the answers' time.
    pub max_step_ms: u32,
    /// Milliseconds between two tokens of an answer to aim at, up to 60000: requests wait while a
    /// step with them is predicted to take longer, but one always runs, and none is interrupted.
    /// If lower, it replaces `max_step_ms` in steps with prompts. 0: as many run as fit.
    pub target_itl_ms: u32,
    /// How many milliseconds later than one of priority 0 a request of priority 255 may be
    /// submitted and still come first, up to 3600000, default 30000; others proportionally. 0:
    /// order of arrival.
    pub priority_ageing_ms: u32,

    /// The most requests, from submit to `bn_request_free`, 1 to 1048576, default 1024.
    pub queue_capacity: u32,
    /// `bn_request_params.timeout_ms` of requests that set none.
    pub default_timeout_ms: u32,
    /// The most prompt tokens of queued requests together. More give `BN_ERR_QUEUE_FULL`, unless
    /// none is queued.
    pub queue_token_capacity: u64,

    /// The most bytes for weights, KV cache, workspace, prompts, outputs and events together.
    /// Weights count whole, also of a shared model; a prompt from submit on, an output as it
    /// grows, 16 tokens at a time. A request that gets no more memory is paused until others give
    /// some back, never shortened. 0: none, but the KV cache takes at most half of what the
    /// machine, the process's control groups and its own limits (`ulimit -v`) leave.
    pub memory_limit_bytes: u64,
    /// The most bytes of the KV cache, which takes no more than `memory_limit_bytes` leaves, or
    /// `max_batch_size` requests of `context_length` need. 0: these bounds alone.
    pub kv_cache_bytes: u64,
    /// Bytes of `memory_limit_bytes` that the KV cache leaves for adapters, besides those for
    /// requests. 0: adapters take from the requests' part.
    pub adapter_bytes: u64,
    /// The most bytes of output, as `memory_limit_bytes` counts them, that a streaming request may
    /// have unread. Beyond that it is paused until they are polled or delivered, or ends
    /// (`BN_REQUEST_END_UNREAD`). Default 4194304; 0: no limit.
    pub max_unread_bytes: u64,
    /// Milliseconds without a request, or in a pause, after which the engine releases the pages of
    /// weights that are mapped from files, up to 604800000. The next request reads them again.
    /// Weights that were packed or converted at load, and those on devices, stay. 0: never.
    pub idle_release_ms: u64,
    /// Tokens per KV block: 16, 32 (default), 64 or 128.
    pub kv_block_size: u32,
    /// `BN_KV_TYPE_*`, the type of keys and values. Not for `builtin:echo`.
    pub kv_type: u32,
    /// Changes of the prefix cache to keep for `bn_kv_events`, up to 1048576; there is room for
    /// twice as many as the cache has blocks. 0: none.
    pub kv_events_capacity: u32,
    /// For models with recurrent layers, whose state is not in the KV cache: the most states to
    /// keep for later requests with the same prefix, up to 65536. 0: `max_batch_size`, at least 8.
    /// States count against `memory_limit_bytes`; with little memory there are fewer of them, and
    /// fewer requests run together.
    pub snapshots: u32,
    /// Tokens of a prompt between two such states, up to 16777216, rounded up to KV blocks, default
    /// 512. 0: only at the ends of prompts, and where prompts were seen to diverge.
    pub snapshot_interval: u32,

    /// `BN_SPECULATION_*` of requests that do not set it.
    pub speculation: u32,
    /// `bn_request_params.draft_tokens` of requests that do not set it. 0: as many as save time.
    pub draft_tokens: u32,

    /// The most detailed level that `log` gets, `BN_LOG_*`. Default `BN_LOG_WARN`.
    pub log_level: u32,
    /// Receives the log.
    pub log: bn_log_callback,
    pub log_context: *mut c_void,
    /// Receives each event: callback mode. NULL: poll mode.
    pub on_event: bn_event_callback,
    pub on_event_context: *mut c_void,
    /// Receives the spans of requests that have a `trace_id`.
    pub on_span: bn_span_callback,
    pub on_span_context: *mut c_void,
}

grown!(
    bn_engine_config {
        struct_size, threads, model, model_path, model_name, draft_model, device, instructions,
        context_length, max_batch_size, max_batch_tokens, max_wait_us, max_step_ms, target_itl_ms,
        priority_ageing_ms, queue_capacity, default_timeout_ms, queue_token_capacity,
        memory_limit_bytes, kv_cache_bytes, adapter_bytes, max_unread_bytes, idle_release_ms,
        kv_block_size, kv_type, kv_events_capacity, snapshots, snapshot_interval, speculation,
        draft_tokens, log_level, log, log_context, on_event, on_event_context, on_span,
        on_span_context,
    },
    max_unread_bytes: EngineConfig::default().max_unread_bytes,
    priority_ageing_ms: EngineConfig::default().priority_ageing_ms,
    max_batch_size: EngineConfig::default().max_batch_size,
    kv_block_size: EngineConfig::default().kv_block_size,
    snapshot_interval: EngineConfig::default().snapshot_interval,
    queue_capacity: EngineConfig::default().queue_capacity,
    max_step_ms: EngineConfig::default().max_step_ms, log_level: BN_LOG_WARN
);

/// The value that a constant `family_*` stands for.
pub(super) fn choice<T: Copy>(field: &str, value: u32, family: &str, choices: &[(u32, T)]) -> Result<T> {
    let found = choices.iter().find(|(number, _)| *number == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let (low, high) = (choices[0].0, choices[choices.len() - 1].0);
        Error::invalid(format!("{field} is {value}; it is a {family}_*, {low} to {high}"))
    })
}

impl bn_engine_config {
    /// # Safety
    /// Pointers are NULL or as the fields say.
    pub(super) unsafe fn as_engine(&self) -> Result<EngineConfig> {
        // SAFETY: the caller's promise.
        let model_path = unsafe { path("model_path", self.model_path) }?;
        let model = match (self.model.is_null(), model_path) {
            (true, _) => None,
            (false, None) => Some((*registry::model(self.model)?).clone()),
            (false, Some(_)) => return Err(Error::invalid("model and model_path are both set")),
        };
        let kv_types = [
            (BN_KV_TYPE_F16, KvType::F16),
            (BN_KV_TYPE_F32, KvType::F32),
            (BN_KV_TYPE_INT8, KvType::Int8),
            (BN_KV_TYPE_INT4, KvType::Int4),
        ];
        Ok(EngineConfig {
            model,
            model_path: model_path.map(str::to_owned),
            threads: self.threads,
            instructions: self.instructions()?,
            max_batch_size: self.max_batch_size,
            max_batch_tokens: self.max_batch_tokens,
            context_length: self.context_length,
            kv_block_size: self.kv_block_size,
            kv_type: choice("kv_type", self.kv_type, "BN_KV_TYPE", &kv_types)?,
            memory_limit_bytes: self.memory_limit_bytes,
            kv_cache_bytes: self.kv_cache_bytes,
            max_unread_bytes: self.max_unread_bytes,
            kv_events_capacity: self.kv_events_capacity,
            snapshots: self.snapshots,
            snapshot_interval: self.snapshot_interval,
            queue_capacity: self.queue_capacity,
            queue_token_capacity: self.queue_token_capacity,
            max_wait_us: self.max_wait_us,
            max_step_ms: self.max_step_ms,
            target_itl_ms: self.target_itl_ms,
            priority_ageing_ms: self.priority_ageing_ms,
            default_timeout_ms: self.default_timeout_ms,
            on_event: self.event_sink(),
            log: log_sink(self.log, self.log_context),
            log_level: self.log_level,
            adapter_bytes: self.adapter_bytes,
            draft_always: false,
            idle_release_ms: self.idle_release_ms,
            on_span: span_sink(self.on_span, self.on_span_context),
            // SAFETY: the caller's promise.
            model_name: unsafe { guard::optional_text("model_name", self.model_name) }?.map(str::to_owned),
            speculation: speculation(self.speculation)?,
            draft_model: self.draft_model()?,
            draft_tokens: self.draft_tokens,
            // SAFETY: the caller's promise.
            device: unsafe { guard::optional_text("device", self.device) }?.unwrap_or_default().to_owned(),
        })
    }

    fn draft_model(&self) -> Result<Option<Loaded>> {
        match self.draft_model.is_null() {
            true => Ok(None),
            false => Ok(Some((*registry::model(self.draft_model)?).clone())),
        }
    }

    fn instructions(&self) -> Result<Option<Isa>> {
        let sets = [
            (BN_INSTRUCTIONS_AUTO, None),
            (BN_INSTRUCTIONS_SCALAR, Some(Isa::Scalar)),
            (BN_INSTRUCTIONS_AVX2, Some(Isa::Avx2)),
            (BN_INSTRUCTIONS_AVX_VNNI, Some(Isa::AvxVnni)),
            (BN_INSTRUCTIONS_AVX512_VNNI, Some(Isa::Avx512Vnni)),
            (BN_INSTRUCTIONS_AVX512_VBMI, Some(Isa::Avx512Vbmi)),
            (BN_INSTRUCTIONS_AMX, Some(Isa::Amx)),
            (BN_INSTRUCTIONS_NEON, Some(Isa::Neon)),
            (BN_INSTRUCTIONS_NEON_I8MM, Some(Isa::NeonI8mm)),
        ];
        choice("instructions", self.instructions, "BN_INSTRUCTIONS", &sets)
    }

    fn event_sink(&self) -> Option<EventSink> {
        let call = self.on_event?;
        let context = Context::new(self.on_event_context);
        Some(Box::new(move |event| {
            let event = bn_event::new(event, std::ptr::null_mut(), 0);
            // SAFETY: the header's contract for `on_event`; `event` outlives the call.
            unsafe { call(&event, context.get()) }
        }))
    }
}
