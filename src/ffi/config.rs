//! `bn_engine_config` and its way into `EngineConfig`.

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
pub const BN_KV_TYPE_F16: i32 = 0;
/// Single precision.
pub const BN_KV_TYPE_F32: i32 = 1;
/// int8, with a scale for each token and head.
pub const BN_KV_TYPE_INT8: i32 = 2;

/// The best instruction set that the machine has.
pub const BN_INSTRUCTIONS_AUTO: i32 = 0;
/// Portable code.
pub const BN_INSTRUCTIONS_SCALAR: i32 = 1;
/// x86-64 with AVX2, FMA and F16C.
pub const BN_INSTRUCTIONS_AVX2: i32 = 2;
/// AVX2 and AVX-VNNI.
pub const BN_INSTRUCTIONS_AVX_VNNI: i32 = 3;
/// AVX2 and AVX-512 F, BW, VL and VNNI.
pub const BN_INSTRUCTIONS_AVX512_VNNI: i32 = 4;
/// aarch64 NEON with dot products.
pub const BN_INSTRUCTIONS_NEON: i32 = 5;
/// As AVX512_VNNI, and AMX tiles of bytes, if the system lets the process use them. An engine that
/// wants them, by default too, asks when it is created: from then on the system refuses signal
/// stacks (`sigaltstack`) without room for tiles, some 11 KiB.
pub const BN_INSTRUCTIONS_AMX: i32 = 6;

/// How to make an engine. `bn_engine_create` copies everything that it points to; what the contexts
/// point to must live until `bn_engine_destroy` returns.
#[repr(C)]
pub struct bn_engine_config {
    pub struct_size: u32,
    /// Compute threads, 1 to 256. 0 (default): the CPUs that this process may use.
    pub threads: u32,
    /// The model. The engine keeps its own reference, so it may be freed at any time. NULL
    /// (default): the model at `model_path` is loaded.
    pub model: *mut bn_model,
    /// As `bn_model_config.path`, for a model that this engine alone uses. Not set (default), with
    /// `model` NULL too: the model that is embedded in the library.
    pub model_path: bn_string,
    /// The model's name in metrics. Not set (default): `bn_model_info.name`.
    pub model_name: bn_string,
    /// A small model with the same vocabulary that drafts tokens for `model` to verify. Its weights
    /// and its part of each KV block count against `memory_limit_bytes`. The engine keeps its own
    /// reference. NULL (default): none.
    pub draft_model: *mut bn_model,
    /// Where forward passes run: `cpu` (default, also if not set), or an NVIDIA device, `cuda:0`
    /// and so on, of those that `CUDA_VISIBLE_DEVICES` leaves. There, `kv_cache_bytes`,
    /// `memory_limit_bytes` and the free memory are the device's. Answers equal the CPU's to the
    /// bit, except with F16 and BF16 weights and with `kv_type` F16, where they are near.
    ///
    /// With several devices of one type, as `cuda:0,cuda:1`, each has the whole model and a KV
    /// cache, and runs up to `max_batch_size` requests. Memory limits are for each device, and
    /// `bn_stats` has their sum; the limits of the queue are the engine's. If a device is lost, the
    /// requests that ran there fail with `BN_ERR_ENGINE_DEAD`, its sessions are gone, and the
    /// engine goes on with the others. docs/gpu.md says more.
    pub device: bn_string,

    /// The instruction set, `BN_INSTRUCTIONS_*`. One that the machine lacks is refused. Results are
    /// bitwise the same with any: this is for measuring and for finding faults.
    pub instructions: i32,
    /// The most requests in one forward pass, 1 to 4096, default 32.
    pub max_batch_size: u32,
    /// The most tokens in one forward pass, `max_batch_size` to 65536, default 512. Longer prompts
    /// run in chunks.
    pub max_batch_tokens: u32,
    /// The most tokens of one request, prompt and output together: 2 to the model's context length.
    /// 0 (default): the context length, or without `memory_limit_bytes` less if the KV cache holds
    /// no more; `bn_stats.max_sequence_length` says how much.
    pub max_sequence_length: u32,
    /// Microseconds that an idle engine waits for more requests before its first step, 0 (default)
    /// to 1000000.
    pub max_wait_us: u32,
    /// The time that a step with running answers should not exceed, in milliseconds, 1 to 60000,
    /// default 200. Prompts are cut into chunks, to keep the predicted time of a step below seven
    /// eighths of it. But prompts may always add three quarters of the time that the answers take,
    /// so that prompts get on: if answers alone take more than half of the target, a step may
    /// exceed it.
    pub max_step_ms: u32,
    /// The time between two tokens of an answer to aim at, in milliseconds, up to 60000. A request
    /// waits while a step of all running answers and its own, with as much prompt as recent steps
    /// had, is predicted to take longer. The lower of this and `max_step_ms` is the target for a
    /// step with prompts. It is an aim: at least one request runs, and running ones are not
    /// interrupted for it. 0 (default): as many run as fit, for throughput.
    pub target_itl_ms: u32,
    /// How much later a request of priority 255 may be submitted than one of priority 0 and still
    /// come first, in milliseconds, up to 3600000, default 30000. Priorities between are worth
    /// proportionally less. So a request of priority 0 waits only for work that came before it, or
    /// up to this much later. 0: order of arrival.
    pub priority_ageing_ms: u32,

    /// The most unreleased requests, 1 to 1048576, default 1024: queued, running, and finished ones
    /// that were not released. One more is refused with `BN_ERR_QUEUE_FULL`.
    pub queue_capacity: u32,
    /// The timeout of requests that set none, in milliseconds from submit. 0 (default): none.
    pub default_timeout_ms: u32,
    /// The most prompt tokens of queued requests together. More are refused with
    /// `BN_ERR_QUEUE_FULL`, unless none is queued: a long prompt has its turn. 0 (default): no
    /// bound but `queue_capacity`.
    pub queue_token_capacity: u64,

    /// The most bytes for weights, KV cache, workspace, prompts, outputs and events together.
    /// Weights count whole, also those of a shared model. A prompt counts from submit on, an output
    /// as it grows, 16 tokens at a time: a request that gets no more memory is paused until others
    /// give some back, and is never shortened for it. 0 (default): no limit. Then the KV cache
    /// takes at most half of the memory that the machine and the process's control groups have
    /// free.
    pub memory_limit_bytes: u64,
    /// The most bytes of the KV cache. It never takes more than `memory_limit_bytes` leaves, or
    /// without that limit half of the free memory, nor more than `max_batch_size` requests of
    /// `max_sequence_length` need. 0 (default): these bounds alone.
    pub kv_cache_bytes: u64,
    /// Bytes of `memory_limit_bytes` that the KV cache leaves for adapters, besides what it leaves
    /// for requests. 0 (default): adapters take from the requests' part.
    pub adapter_bytes: u64,
    /// The most bytes of output, as `memory_limit_bytes` counts them, that a streaming request may
    /// have unread. Beyond that it is paused until they are polled or delivered, or ends
    /// (`BN_REQUEST_END_UNREAD`). Default 4194304; 0: no limit.
    pub max_unread_bytes: u64,
    /// Tokens per block of the KV cache: 16, 32 (default), 64 or 128.
    pub kv_block_size: u32,
    /// The type of keys and values in the cache, `BN_KV_TYPE_*`. `BN_KV_TYPE_INT8` takes half of
    /// the memory of `BN_KV_TYPE_F16`, the default, and rounds more. Not for `builtin:echo`.
    pub kv_type: i32,
    /// Changes of the prefix cache to keep for `bn_kv_events`, at most 1048576. There is always
    /// room for twice as many as the cache has blocks. 0 (default): none are kept.
    pub kv_events_capacity: u32,

    /// `bn_request_params.draft_tokens` of requests that do not say. 0 (default): as many as
    /// pay.
    pub draft_tokens: u32,
    /// `BN_SPECULATION_*` of requests that do not say. Default `BN_SPECULATION_DEFAULT`.
    pub speculation: i32,

    /// The most detailed level that `log` gets, `BN_LOG_*`. Default `BN_LOG_WARN`.
    pub log_level: i32,
    /// Receives the log. NULL (default): no log.
    pub log: bn_log_callback,
    pub log_context: *mut c_void,
    /// Receives each event on a thread of the engine: callback mode. NULL (default): poll mode, the
    /// host takes events with `bn_poll`.
    pub on_event: bn_event_callback,
    pub on_event_context: *mut c_void,
    /// Receives the spans of requests that have a `trace_id`. NULL (default): none.
    pub on_span: bn_span_callback,
    pub on_span_context: *mut c_void,
}

grown!(
    bn_engine_config: 224, max_unread_bytes: EngineConfig::default().max_unread_bytes, priority_ageing_ms: EngineConfig::default().priority_ageing_ms, max_batch_size: EngineConfig::default().max_batch_size,
    max_batch_tokens: EngineConfig::default().max_batch_tokens,
    kv_block_size: EngineConfig::default().kv_block_size,
    queue_capacity: EngineConfig::default().queue_capacity,
    max_step_ms: EngineConfig::default().max_step_ms, log_level: BN_LOG_WARN
);

/// The value that a constant `family_*` stands for.
pub(super) fn choice<T: Copy>(field: &str, value: i32, family: &str, choices: &[(i32, T)]) -> Result<T> {
    let found = choices.iter().find(|(number, _)| *number == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let (low, high) = (choices[0].0, choices[choices.len() - 1].0);
        Error::invalid(format!("{field} is {value}; it is a {family}_*, {low} to {high}"))
    })
}

impl bn_engine_config {
    /// # Safety
    /// Pointers are NULL or as the fields say.
    pub(super) unsafe fn to_engine(&self) -> Result<EngineConfig> {
        // SAFETY: the caller's promise.
        let model_path = unsafe { path("model_path", self.model_path) }?;
        let model = match (self.model.is_null(), model_path) {
            (true, _) => None,
            (false, None) => Some((*registry::model(self.model)?).clone()),
            (false, Some(_)) => return Err(Error::invalid("model and model_path are both set")),
        };
        let kv_types =
            [(BN_KV_TYPE_F16, KvType::F16), (BN_KV_TYPE_F32, KvType::F32), (BN_KV_TYPE_INT8, KvType::Int8)];
        Ok(EngineConfig {
            model,
            model_path: model_path.map(str::to_owned),
            threads: self.threads,
            instructions: self.instructions()?,
            max_batch_size: self.max_batch_size,
            max_batch_tokens: self.max_batch_tokens,
            max_sequence_length: self.max_sequence_length,
            kv_block_size: self.kv_block_size,
            kv_type: choice("kv_type", self.kv_type, "BN_KV_TYPE", &kv_types)?,
            memory_limit_bytes: self.memory_limit_bytes,
            kv_cache_bytes: self.kv_cache_bytes,
            max_unread_bytes: self.max_unread_bytes,
            kv_events_capacity: self.kv_events_capacity,
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
            (BN_INSTRUCTIONS_NEON, Some(Isa::Neon)),
            (BN_INSTRUCTIONS_AMX, Some(Isa::Amx)),
        ];
        choice("instructions", self.instructions, "BN_INSTRUCTIONS", &sets)
    }

    fn event_sink(&self) -> Option<EventSink> {
        let call = self.on_event?;
        let context = Context::new(self.on_event_context);
        Some(Box::new(move |event| {
            let event = bn_event::new(event, 0);
            // SAFETY: the header's contract for `on_event`; `event` outlives the call.
            unsafe { call(&event, context.get()) }
        }))
    }
}
