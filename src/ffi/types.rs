//! Handles, strings, callbacks, and the constants that several structs share.

pub use super::string::*;
use crate::base::log;
use std::ffi::c_void;

/// Version of the ABI. It changes only if a program compiled against an older header could break;
/// compare it with `bn_abi_version()`.
pub const BN_ABI_VERSION: u32 = 1;
/// This header's version of the library. `bn_version()` returns the linked one's.
pub const BN_VERSION_MAJOR: u32 = 0;
/// See `BN_VERSION_MAJOR`.
pub const BN_VERSION_MINOR: u32 = 1;
/// See `BN_VERSION_MAJOR`.
pub const BN_VERSION_PATCH: u32 = 0;

/// A model: weights, tokenizer and chat template. Immutable, so any number of engines may share
/// one.
///
/// Made by `bn_model_open` or `bn_engine_model`, freed by `bn_model_free`. The pointer is only a
/// name: it is looked up, never dereferenced, and never reused.
pub struct bn_model {
    _opaque: [u8; 0],
}

/// An engine: the threads, KV cache and requests that run one model.
///
/// Made by `bn_engine_create`, freed by `bn_engine_destroy`. The pointer is only a name, as
/// `bn_model`'s is: a destroyed one is refused with `BN_ERR_INVALID_ARGUMENT`.
pub struct bn_engine {
    _opaque: [u8; 0],
}

/// A LoRA adapter of an engine.
///
/// Made by `bn_adapter_open`, freed by `bn_adapter_free`. The pointer is only a name, as
/// `bn_model`'s is.
pub struct bn_adapter {
    _opaque: [u8; 0],
}

/// The id of a request, valid for its engine until `bn_release`. Never 0 and never `BN_ANY`. A
/// stale or foreign id is refused with `BN_ERR_NOT_FOUND`.
pub type bn_request = u64;

/// For `bn_poll`: any request, except those with `BN_REQUEST_POLL_BY_ID`. For `bn_cancel`: all
/// requests.
pub const BN_ANY: u64 = 0xffff_ffff_ffff_ffff;

/// As `timeout_ms` of `bn_poll`: no time limit.
pub const BN_WAIT_FOREVER: i32 = -1;
/// As `bn_request_params.timeout_ms`: no timeout, whatever the engine's default is.
pub const BN_TIMEOUT_NONE: u32 = 0xffff_ffff;

/// As `bn_engine_config.delivery_mode`: the host takes events with `bn_poll`.
pub const BN_DELIVERY_POLL: i32 = 0;
/// As `bn_engine_config.delivery_mode`: a thread of the engine passes each event to `on_event`.
pub const BN_DELIVERY_CALLBACK: i32 = 1;

/// No log.
pub const BN_LOG_OFF: i32 = 0;
/// The engine or a request failed, and the caller did not cause it.
pub const BN_LOG_ERROR: i32 = 1;
/// Something is wrong, and the message says how the library goes on.
pub const BN_LOG_WARN: i32 = 2;
/// Loading, start and shutdown.
pub const BN_LOG_INFO: i32 = 3;
/// Details for work on the library.
pub const BN_LOG_DEBUG: i32 = 4;

/// Keep the weights as the model's files store them.
pub const BN_WEIGHTS_KEEP: i32 = 0;
/// 8 bits, in blocks of 32 with a half-precision scale.
pub const BN_WEIGHTS_Q8_0: i32 = 1;
/// 4 bits, in blocks of 32 with a half-precision scale.
pub const BN_WEIGHTS_Q4_0: i32 = 2;
/// -1, 0 and 1 with a scale, as in BitNet b1.58.
pub const BN_WEIGHTS_TERNARY: i32 = 3;
/// 8 bits, with a scale for each row; activations get one for each token. Faster than
/// `BN_WEIGHTS_Q8_0` for prompts, and less precise.
pub const BN_WEIGHTS_INT8: i32 = 4;

/// Half precision.
pub const BN_KV_F16: i32 = 0;
/// Single precision.
pub const BN_KV_F32: i32 = 1;
/// int8, with a scale for each token and head.
pub const BN_KV_INT8: i32 = 2;

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
/// As AVX512_VNNI, and AMX's matrix tiles of bytes, where the system lets the process use them. It
/// is asked when an engine that wants them is created, by default too: from then on it refuses
/// signal stacks (`sigaltstack`) without room for tiles, some 11 KiB.
pub const BN_INSTRUCTIONS_AMX: i32 = 6;

/// A request's: as the engine's. An engine's: `BN_SPECULATION_DRAFT` with a `draft_model`, else
/// `BN_SPECULATION_OFF`.
pub const BN_SPECULATION_DEFAULT: i32 = 0;
/// Nothing is drafted.
pub const BN_SPECULATION_OFF: i32 = 1;
/// What followed the request's last tokens where they came before, in its prompt or output.
pub const BN_SPECULATION_LOOKUP: i32 = 2;
/// The engine's `draft_model`.
pub const BN_SPECULATION_DRAFT: i32 = 3;

/// For `bn_engine_shutdown`: accept nothing new, finish what was accepted.
pub const BN_SHUTDOWN_DRAIN: i32 = 0;
/// For `bn_engine_shutdown`: accept nothing new, cancel what was accepted. May follow a drain.
pub const BN_SHUTDOWN_CANCEL: i32 = 1;

/// The engine accepts requests.
pub const BN_STATE_RUNNING: i32 = 0;
/// The engine accepts no more requests and finishes those that it has.
pub const BN_STATE_DRAINING: i32 = 1;
/// Every request has finished. Events may still wait to be polled or delivered.
pub const BN_STATE_DRAINED: i32 = 2;
/// The engine's thread died of a bug. Every request has its last event.
pub const BN_STATE_DEAD: i32 = 3;

/// A message of a conversation. Arrays of it are passed with `sizeof(bn_chat_message)`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_chat_message {
    /// Who speaks: "system", "user", "assistant", or another role that the model's template
    /// knows.
    pub role: bn_string,
    /// What they say.
    pub content: bn_string,
}

/// A token and its log probability.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_logprob {
    /// The token's id.
    pub token: u32,
    /// Natural logarithm of its probability: before everything that a request asks of sampling, or
    /// after it with `BN_REQUEST_CHAIN_LOGPROBS`.
    pub logprob: f32,
}

/// Receives one event.
///
/// Called on the engine's delivery thread, with no lock held, one call at a time; the events of a
/// request come in order. `event` and what it points to are valid until the callback returns. It
/// may call every [any thread] function. It should not take long, as opening a model does: other
/// events wait meanwhile (the model keeps running). It must return: no `longjmp`, no C++
/// exception. `context` is `bn_engine_config.on_event_context`.
pub type bn_event_callback =
    Option<unsafe extern "C" fn(event: *const super::event::bn_event, context: *mut c_void)>;

/// Receives one line of the log.
///
/// `message` is valid until the callback returns. The callback may run on any thread, on several
/// at once, and inside the host's own calls. None runs after `bn_engine_destroy`, or for a model
/// `bn_model_open`, has returned. The rules of `bn_event_callback` apply.
pub type bn_log_callback = Option<unsafe extern "C" fn(level: i32, message: bn_string, context: *mut c_void)>;

/// Receives the progress of loading: `fraction` from 0 to 1, and what is being loaded.
///
/// Called on a thread of the library while `bn_model_open` waits. A non-zero return value stops
/// loading: `bn_model_open` returns `BN_ERR_CANCELLED`. The rules of `bn_event_callback` apply.
pub type bn_progress_callback =
    Option<unsafe extern "C" fn(fraction: f32, what: bn_string, context: *mut c_void) -> i32>;

const _: () = assert!(BN_LOG_OFF == log::OFF && BN_LOG_ERROR == log::ERROR && BN_LOG_WARN == log::WARN);
const _: () = assert!(BN_LOG_INFO == log::INFO && BN_LOG_DEBUG == log::DEBUG);

/// A context pointer on its way to the threads that call back.
pub(super) struct Context(*mut c_void);
// SAFETY: never dereferenced here; the header asks the caller for callbacks that any thread may call.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(pointer: *mut c_void) -> Self {
        Self(pointer)
    }

    // A method, so that closures capture the whole and not the bare pointer.
    pub(super) fn get(&self) -> *mut c_void {
        self.0
    }
}
