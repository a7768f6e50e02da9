//! `bn_engine_config` and its way into `EngineConfig`.

use super::event::bn_event;
use super::growth::Grown;
use super::guard;
use super::types::*;
use crate::base::{Error, Result};
use crate::engine::api::{
    self, EngineConfig, EventSink, Isa, KvType, LoadOptions, LogSink, ProgressSink, WeightType,
};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// How to make an engine. `bn_engine_config_init` fills in the defaults; then change what you need.
/// Everything it points to is copied by `bn_engine_create`, but the three contexts, which the caller keeps
/// alive until `bn_engine_destroy` has returned.
#[repr(C)]
pub struct bn_engine_config {
    /// `sizeof(bn_engine_config)`; set by `bn_engine_config_init`.
    pub struct_size: u32,
    /// `BN_DELIVERY_POLL` (default) or `BN_DELIVERY_CALLBACK`, for all requests of the engine.
    pub delivery_mode: i32,
    /// UTF-8, `model_path_length` bytes: a GGUF file, a Hugging Face folder (`config.json`, safetensors and
    /// `tokenizer.json`), or `builtin:echo` (a model without weights that
    /// answers with its prompt; `builtin:echo?us_per_token=N` takes N microseconds a token). NULL
    /// (default): the small model that ships inside the library.
    pub model_path: *const c_char,
    /// Bytes of `model_path`, without a NUL.
    pub model_path_length: usize,
    /// Compute threads, 1 to 256. 0 (default): as many as this process may use CPUs.
    pub threads: u32,
    /// Requests that run together in one forward pass, 1 to 4096, default 32. 1 is sequential mode.
    pub max_batch_size: u32,
    /// Tokens in one forward pass, `max_batch_size` to 65536, default 512. Longer prompts go in chunks.
    pub max_batch_tokens: u32,
    /// Tokens of a request's prompt and output together, from 2 to the model's context length. 0 (default):
    /// the model's context length.
    pub max_sequence_length: u32,
    /// Tokens per block of the KV cache: 16, 32 (default), 64 or 128.
    pub kv_block_size: u32,
    /// Unreleased requests at a time, 1 to 1048576, default 1024.
    pub queue_capacity: u32,
    /// Bytes that weights, KV cache, workspace, queued prompts and buffered events may take together.
    /// 0 (default): no limit.
    pub memory_limit_bytes: u64,
    /// Microseconds for which an idle engine holds its first step open for company, 0 (default) to 1000000.
    pub max_wait_us: u32,
    /// Milliseconds that a step with running answers should not exceed, 1 to 60000, default 200: prompts
    /// are cut into chunks to hold it.
    pub max_step_ms: u32,
    /// Milliseconds from submit, for requests that set no timeout of their own. 0 (default): none.
    pub default_timeout_ms: u32,
    /// The most detailed level that `log` gets, `BN_LOG_OFF` to `BN_LOG_DEBUG`, default `BN_LOG_WARN`.
    pub log_level: i32,
    /// Takes the events in `BN_DELIVERY_CALLBACK` mode, and must be NULL in the other.
    pub on_event: bn_event_callback,
    /// Handed to `on_event`. Not touched.
    pub on_event_context: *mut c_void,
    /// Takes the log. NULL (default): none; the library itself never prints.
    pub log: bn_log_callback,
    /// Handed to `log`. Not touched.
    pub log_context: *mut c_void,
    /// Told how far loading is, and may give it up. NULL (default): nobody.
    pub progress: bn_progress_callback,
    /// Handed to `progress`. Not touched.
    pub progress_context: *mut c_void,
    /// What the weights of attention and feed-forward become as they are loaded: `BN_WEIGHTS_KEEP` (default),
    /// `BN_WEIGHTS_Q8_0`, `BN_WEIGHTS_Q4_0`, or, of BitNet models, `BN_WEIGHTS_TERNARY`. Only F32, F16 and BF16
    /// weights can become something else; others are refused.
    pub weight_type: i32,
    /// The same for the embedding, without `BN_WEIGHTS_TERNARY`.
    pub embedding_type: i32,
    /// The same for the output head. Where that is the embedding (tied), either field says what both become.
    pub head_type: i32,
    /// What kernels use, `BN_INSTRUCTIONS_AUTO` (default) to `BN_INSTRUCTIONS_NEON`; refused where the machine lacks it.
    /// Results are bitwise the same with any: this is for measuring, and for finding faults.
    pub instructions: i32,
    /// UTF-8, `kernel_config_path_length` bytes: the `kernel_config.ini` that a GGUF file with TL1 or TL2 tensors was
    /// converted with; refused where it would do nothing. NULL (default): the one beside the file, or the tilings of
    /// published models.
    pub kernel_config_path: *const c_char,
    /// Bytes of `kernel_config_path`, without a NUL.
    pub kernel_config_path_length: usize,
    /// What keys and values are stored in: `BN_KV_F16` (default), `BN_KV_F32`, or `BN_KV_INT8`, which takes half of
    /// F16's memory and rounds more. `builtin:echo` keeps neither, and refuses any other than the default.
    pub kv_type: i32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, and integers, pointers and nullable functions after it.
unsafe impl Grown for bn_engine_config {
    const NAME: &'static str = "bn_engine_config";
    const FIRST: usize = 120;
    fn defaults() -> Self {
        let defaults = EngineConfig::default();
        Self {
            struct_size: 0,
            delivery_mode: BN_DELIVERY_POLL,
            model_path: std::ptr::null(),
            model_path_length: 0,
            threads: defaults.threads,
            max_batch_size: defaults.max_batch_size,
            max_batch_tokens: defaults.max_batch_tokens,
            max_sequence_length: defaults.max_sequence_length,
            kv_block_size: defaults.kv_block_size,
            queue_capacity: defaults.queue_capacity,
            memory_limit_bytes: defaults.memory_limit_bytes,
            max_wait_us: defaults.max_wait_us,
            max_step_ms: defaults.max_step_ms,
            default_timeout_ms: defaults.default_timeout_ms,
            log_level: defaults.log_level,
            on_event: None,
            on_event_context: std::ptr::null_mut(),
            log: None,
            log_context: std::ptr::null_mut(),
            progress: None,
            progress_context: std::ptr::null_mut(),
            weight_type: BN_WEIGHTS_KEEP,
            embedding_type: BN_WEIGHTS_KEEP,
            head_type: BN_WEIGHTS_KEEP,
            instructions: BN_INSTRUCTIONS_AUTO,
            kernel_config_path: std::ptr::null(),
            kernel_config_path_length: 0,
            kv_type: BN_KV_F16,
            reserved: 0,
        }
    }
    fn set_struct_size(&mut self, size: u32) {
        self.struct_size = size;
    }
}

const _: () = assert!(size_of::<bn_engine_config>() >= <bn_engine_config as Grown>::FIRST);
const _: () = assert!(BN_LOG_ERROR == api::LOG_ERROR && BN_LOG_WARN == api::LOG_WARN);
const _: () = assert!(BN_LOG_INFO == api::LOG_INFO && BN_LOG_DEBUG == api::LOG_DEBUG);

/// A context pointer on its way to the threads that call back.
struct Context(*mut c_void);
// SAFETY: never dereferenced here; the header asks the caller for callbacks that any thread may call.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    // A method, so that closures capture the whole and not the bare pointer.
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// None where the pointer is NULL and the length 0.
///
/// # Safety
/// `path` is NULL or points to `length` readable bytes.
unsafe fn optional_path(field: &str, path: *const c_char, length: usize) -> Result<Option<String>> {
    if path.is_null() && length == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let path = unsafe { guard::text(field, path, length) }?;
    if path.is_empty() {
        return Err(Error::invalid(format!("{field} is empty; NULL stands for the default")));
    }
    guard::copy_text(field, path).map(Some)
}

fn weight_type(field: &str, value: i32) -> Result<WeightType> {
    Ok(match value {
        BN_WEIGHTS_KEEP => WeightType::Keep,
        BN_WEIGHTS_Q8_0 => WeightType::Q8_0,
        BN_WEIGHTS_Q4_0 => WeightType::Q4_0,
        BN_WEIGHTS_TERNARY => WeightType::Ternary,
        _ => {
            return Err(Error::invalid(format!(
                "{field} is {value}; it goes from BN_WEIGHTS_KEEP ({BN_WEIGHTS_KEEP}) to BN_WEIGHTS_TERNARY \
                 ({BN_WEIGHTS_TERNARY})"
            )));
        }
    })
}

fn kv_type(value: i32) -> Result<KvType> {
    Ok(match value {
        BN_KV_F16 => KvType::F16,
        BN_KV_F32 => KvType::F32,
        BN_KV_INT8 => KvType::Int8,
        _ => {
            return Err(Error::invalid(format!(
                "kv_type is {value}; it goes from BN_KV_F16 ({BN_KV_F16}) to BN_KV_INT8 ({BN_KV_INT8})"
            )));
        }
    })
}

fn instructions(value: i32) -> Result<Option<Isa>> {
    Ok(Some(match value {
        BN_INSTRUCTIONS_AUTO => return Ok(None),
        BN_INSTRUCTIONS_SCALAR => Isa::Scalar,
        BN_INSTRUCTIONS_AVX2 => Isa::Avx2,
        BN_INSTRUCTIONS_AVX_VNNI => Isa::AvxVnni,
        BN_INSTRUCTIONS_AVX512_VNNI => Isa::Avx512Vnni,
        BN_INSTRUCTIONS_NEON => Isa::Neon,
        _ => {
            return Err(Error::invalid(format!(
                "instructions is {value}; it goes from BN_INSTRUCTIONS_AUTO ({BN_INSTRUCTIONS_AUTO}) to \
                 BN_INSTRUCTIONS_NEON ({BN_INSTRUCTIONS_NEON})"
            )));
        }
    }))
}

impl bn_engine_config {
    /// # Safety
    /// Pointers are NULL or as the fields say.
    pub(super) unsafe fn to_engine(&self) -> Result<EngineConfig> {
        if !(BN_LOG_OFF..=BN_LOG_DEBUG).contains(&self.log_level) {
            return Err(Error::invalid(format!(
                "log_level is {}; it goes from {BN_LOG_OFF} to {BN_LOG_DEBUG}",
                self.log_level
            )));
        }
        if self.reserved != 0 {
            return Err(Error::unsupported(format!("bn_engine_config.reserved is {}, not 0", self.reserved)));
        }
        Ok(EngineConfig {
            // SAFETY: the caller's promise.
            model_path: unsafe { optional_path("model_path", self.model_path, self.model_path_length) }?,
            threads: self.threads,
            max_batch_size: self.max_batch_size,
            max_batch_tokens: self.max_batch_tokens,
            max_sequence_length: self.max_sequence_length,
            kv_block_size: self.kv_block_size,
            kv_type: kv_type(self.kv_type)?,
            memory_limit_bytes: self.memory_limit_bytes,
            queue_capacity: self.queue_capacity,
            max_wait_us: self.max_wait_us,
            max_step_ms: self.max_step_ms,
            default_timeout_ms: self.default_timeout_ms,
            on_event: self.event_sink()?,
            log: self.log_sink(),
            log_level: self.log_level,
            progress: self.progress_sink(),
            // SAFETY: the caller's promise.
            load: unsafe { self.load_options() }?,
            instructions: instructions(self.instructions)?,
        })
    }

    /// # Safety
    /// As `to_engine`.
    unsafe fn load_options(&self) -> Result<LoadOptions> {
        let (path, length) = (self.kernel_config_path, self.kernel_config_path_length);
        Ok(LoadOptions {
            weights: weight_type("weight_type", self.weight_type)?,
            embedding: weight_type("embedding_type", self.embedding_type)?,
            head: weight_type("head_type", self.head_type)?,
            // SAFETY: the caller's promise.
            kernel_config: unsafe { optional_path("kernel_config_path", path, length) }?,
            ..LoadOptions::default()
        })
    }

    fn event_sink(&self) -> Result<Option<EventSink>> {
        match (self.delivery_mode, self.on_event) {
            (BN_DELIVERY_POLL, None) => Ok(None),
            (BN_DELIVERY_POLL, Some(_)) => Err(Error::invalid(
                "on_event is set, and delivery_mode is BN_DELIVERY_POLL, which never calls it",
            )),
            (BN_DELIVERY_CALLBACK, None) => {
                Err(Error::invalid("on_event is NULL, and delivery_mode is BN_DELIVERY_CALLBACK"))
            }
            (BN_DELIVERY_CALLBACK, Some(call)) => {
                let context = Context(self.on_event_context);
                Ok(Some(Box::new(move |event| {
                    let event = bn_event::new(event);
                    // SAFETY: the header's contract for `on_event`; `event` outlives the call.
                    unsafe { call(&event, context.get()) }
                })))
            }
            (mode, _) => Err(Error::invalid(format!(
                "delivery_mode is {mode}; it is BN_DELIVERY_POLL ({BN_DELIVERY_POLL}) or BN_DELIVERY_CALLBACK ({BN_DELIVERY_CALLBACK})"
            ))),
        }
    }

    fn log_sink(&self) -> Option<LogSink> {
        let call = self.log?;
        let context = Context(self.log_context);
        Some(Arc::new(move |level, message: &str| {
            // SAFETY: the header's contract for `log`; `message` outlives the call.
            unsafe { call(level, message.as_ptr().cast(), message.len(), context.get()) }
        }))
    }

    fn progress_sink(&self) -> Option<ProgressSink> {
        let call = self.progress?;
        let context = Context(self.progress_context);
        Some(Box::new(move |fraction, what: &str| {
            // SAFETY: the header's contract for `progress`; `what` outlives the call.
            unsafe { call(fraction, what.as_ptr().cast(), what.len(), context.get()) != 0 }
        }))
    }
}
