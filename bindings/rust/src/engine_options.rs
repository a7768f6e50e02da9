//! The options of an engine.
use crate::log::{self, Log, LogLevel};
use crate::model::Model;
use crate::request::Speculation;
use crate::shared::on_event;
use crate::span::{self, OnSpan};
use crate::{handle::Keep, sys, text};
use std::mem::{MaybeUninit, size_of};
use std::path::PathBuf;
use std::ptr;

/// The type of keys and values in the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum KvType {
    /// Half precision.
    #[default]
    F16 = sys::BN_KV_TYPE_F16,
    /// Single precision.
    F32 = sys::BN_KV_TYPE_F32,
    /// 8 bits: half of the memory of `F16`, and less precise.
    Int8 = sys::BN_KV_TYPE_INT8,
    /// 4 bits: half of the memory of `Int8`, and less precise. Not on NVIDIA devices.
    Int4 = sys::BN_KV_TYPE_INT4,
}

/// The instruction set that kernels use. Results are bitwise the same with any; one that the machine lacks is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Instructions {
    /// The best that the machine has.
    #[default]
    Auto = sys::BN_INSTRUCTIONS_AUTO,
    /// Portable code.
    Scalar = sys::BN_INSTRUCTIONS_SCALAR,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2 = sys::BN_INSTRUCTIONS_AVX2,
    /// AVX2 and AVX-VNNI.
    AvxVnni = sys::BN_INSTRUCTIONS_AVX_VNNI,
    /// AVX2 and AVX-512 F, BW, VL and VNNI.
    Avx512Vnni = sys::BN_INSTRUCTIONS_AVX512_VNNI,
    /// The same and AVX-512 VBMI.
    Avx512Vbmi = sys::BN_INSTRUCTIONS_AVX512_VBMI,
    /// The same and AMX tiles of bytes.
    Amx = sys::BN_INSTRUCTIONS_AMX,
    /// aarch64 NEON with dot products.
    Neon = sys::BN_INSTRUCTIONS_NEON,
    /// NEON, and products of matrices of int8 (i8mm).
    NeonI8mm = sys::BN_INSTRUCTIONS_NEON_I8MM,
}

/// The options of an engine. Fields have the names and units of the C header, which errors use too; it has the range
/// of each. [`EngineOptions::default`] has the library's defaults.
#[derive(Clone)]
pub struct EngineOptions {
    /// Compute threads. 0: the CPUs that this process may use.
    pub threads: u32,
    /// The model. None: `model_path`.
    pub model: Option<Model>,
    /// The path of a model for this engine alone. If neither is set: the model embedded in the library.
    pub model_path: Option<PathBuf>,
    /// The model's name in metrics. None: the model's own.
    pub model_name: Option<String>,
    /// A small model with the same vocabulary that drafts tokens for `model` to verify.
    pub draft_model: Option<Model>,
    /// Where forward passes run: `cpu`, also with None, or NVIDIA devices, like `cuda:0` or `cuda:0,cuda:1`.
    pub device: Option<String>,
    /// The instruction set that kernels use.
    pub instructions: Instructions,
    /// The most tokens of a request, prompt and output together. 0: the model's own, or as many as fit.
    pub context_length: u32,
    /// The most requests in a forward pass.
    pub max_batch_size: u32,
    /// The most tokens in a forward pass. 0: 512, or more if `max_batch_size` is.
    pub max_batch_tokens: u32,
    /// Microseconds that an idle engine waits for more requests before its first step.
    pub max_wait_us: u32,
    /// Milliseconds that a step with running answers should last at most.
    pub max_step_ms: u32,
    /// Milliseconds between two tokens of an answer to aim at. 0: as many requests run as fit.
    pub target_itl_ms: u32,
    /// How many milliseconds later the most urgent request may come and still be first. 0: the order of arrival.
    pub priority_ageing_ms: u32,
    /// The most requests that have not ended.
    pub queue_capacity: u32,
    /// `timeout_ms` of requests that set none. 0: no limit.
    pub default_timeout_ms: u32,
    /// The most prompt tokens of queued requests together. 0: no limit.
    pub queue_token_capacity: u64,
    /// The most bytes for weights, KV cache, workspace and requests together. 0: the machine's.
    pub memory_limit_bytes: u64,
    /// The most bytes of the KV cache. 0: what the other limits leave.
    pub kv_cache_bytes: u64,
    /// Bytes that the KV cache leaves for adapters.
    pub adapter_bytes: u64,
    /// The most bytes of output that wait for this package's thread, which takes them at once.
    /// [`Request::max_unread_bytes`](crate::Request::max_unread_bytes) limits the output that is not read. 0:
    /// no limit.
    pub max_unread_bytes: u64,
    /// Milliseconds without a request after which mapped weights leave memory. 0: never.
    pub idle_release_ms: u64,
    /// Tokens per block of the KV cache: 16, 32, 64 or 128.
    pub kv_block_size: u32,
    /// The type of keys and values.
    pub kv_type: KvType,
    /// Changes of the prefix cache to keep for [`Engine::kv_events`](crate::Engine::kv_events). 0: none.
    pub kv_events_capacity: u32,
    /// States that models with recurrent layers keep for later requests. 0: as many as run.
    pub snapshots: u32,
    /// Tokens of a prompt between two such states. 0: only where prompts diverge.
    pub snapshot_interval: u32,
    /// The source of drafts for requests that do not set it.
    pub speculation: Speculation,
    /// `draft_tokens` of requests that do not set it. 0: as many as save time.
    pub draft_tokens: u32,
    /// The most detailed level that `log` gets.
    pub log_level: LogLevel,
    /// Receives the log.
    pub log: Option<Log>,
    /// Receives the spans of requests that have a trace.
    pub on_span: Option<OnSpan>,
}

fn defaults() -> sys::bn_engine_config {
    let mut config = MaybeUninit::<sys::bn_engine_config>::zeroed();
    // SAFETY: the library fills a struct of this size, and one of zeros is a valid one.
    unsafe {
        sys::bn_engine_config_init(config.as_mut_ptr(), size_of::<sys::bn_engine_config>() as u32);
        config.assume_init()
    }
}

impl Default for EngineOptions {
    /// The embedded model, and the library's defaults.
    fn default() -> Self {
        let raw = defaults();
        Self {
            threads: raw.threads,
            model: None,
            model_path: None,
            model_name: None,
            draft_model: None,
            device: None,
            instructions: Instructions::Auto,
            context_length: raw.context_length,
            max_batch_size: raw.max_batch_size,
            max_batch_tokens: raw.max_batch_tokens,
            max_wait_us: raw.max_wait_us,
            max_step_ms: raw.max_step_ms,
            target_itl_ms: raw.target_itl_ms,
            priority_ageing_ms: raw.priority_ageing_ms,
            queue_capacity: raw.queue_capacity,
            default_timeout_ms: raw.default_timeout_ms,
            queue_token_capacity: raw.queue_token_capacity,
            memory_limit_bytes: raw.memory_limit_bytes,
            kv_cache_bytes: raw.kv_cache_bytes,
            adapter_bytes: raw.adapter_bytes,
            max_unread_bytes: raw.max_unread_bytes,
            idle_release_ms: raw.idle_release_ms,
            kv_block_size: raw.kv_block_size,
            kv_type: KvType::F16,
            kv_events_capacity: raw.kv_events_capacity,
            snapshots: raw.snapshots,
            snapshot_interval: raw.snapshot_interval,
            speculation: Speculation::Default,
            draft_tokens: raw.draft_tokens,
            log_level: LogLevel::of(raw.log_level),
            log: None,
            on_span: None,
        }
    }
}

impl EngineOptions {
    /// Everything that the engine's threads will use.
    pub(crate) fn keep(&self) -> Keep {
        Keep {
            log: self.log.clone(),
            on_span: self.on_span.clone(),
            _models: [self.model.clone(), self.draft_model.clone()],
        }
    }

    /// Valid while this is, with hooks that are valid while `keep` is and does not move.
    pub(crate) fn raw(&self, keep: &Keep) -> sys::bn_engine_config {
        let model = |model: &Option<Model>| model.as_ref().map_or(ptr::null_mut(), Model::raw);
        let mut config = defaults();
        config.threads = self.threads;
        config.model = model(&self.model);
        config.model_path = text::path(self.model_path.as_deref());
        config.model_name = text::optional(self.model_name.as_deref());
        config.draft_model = model(&self.draft_model);
        config.device = text::optional(self.device.as_deref());
        config.instructions = self.instructions as u32;
        config.context_length = self.context_length;
        config.max_batch_size = self.max_batch_size;
        config.max_batch_tokens = self.max_batch_tokens;
        config.max_wait_us = self.max_wait_us;
        config.max_step_ms = self.max_step_ms;
        config.target_itl_ms = self.target_itl_ms;
        config.priority_ageing_ms = self.priority_ageing_ms;
        config.queue_capacity = self.queue_capacity;
        config.default_timeout_ms = self.default_timeout_ms;
        config.queue_token_capacity = self.queue_token_capacity;
        config.memory_limit_bytes = self.memory_limit_bytes;
        config.kv_cache_bytes = self.kv_cache_bytes;
        config.adapter_bytes = self.adapter_bytes;
        config.max_unread_bytes = self.max_unread_bytes;
        config.idle_release_ms = self.idle_release_ms;
        config.kv_block_size = self.kv_block_size;
        config.kv_type = self.kv_type as u32;
        config.kv_events_capacity = self.kv_events_capacity;
        config.snapshots = self.snapshots;
        config.snapshot_interval = self.snapshot_interval;
        config.speculation = self.speculation as u32;
        config.draft_tokens = self.draft_tokens;
        config.log_level = self.log_level as u32;
        (config.log, config.log_context) = log::hook(keep.log.as_ref());
        (config.on_span, config.on_span_context) = span::hook(keep.on_span.as_ref());
        config.on_event = Some(on_event);
        config
    }
}
