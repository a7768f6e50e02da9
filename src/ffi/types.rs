//! The handle types and the values that several structs share.

use std::ffi::{c_char, c_void};

/// The number of this interface. It changes only when a program compiled against an older header of the
/// same soname could break, so in effect never: compare it with `bn_abi_version()`.
pub const BN_ABI_VERSION: u32 = 1;
/// This header's version of the library; `bn_version()` gives the linked one's.
pub const BN_VERSION_MAJOR: u32 = 0;
/// See `BN_VERSION_MAJOR`.
pub const BN_VERSION_MINOR: u32 = 1;
/// See `BN_VERSION_MAJOR`.
pub const BN_VERSION_PATCH: u32 = 0;

/// An engine: a loaded model, its threads, its requests. Made by `bn_engine_create`, freed by
/// `bn_engine_destroy`. All its functions may be called from several threads at once. The pointer is a
/// name and not to be read through; one that was destroyed is refused with `BN_ERR_INVALID_ARGUMENT`,
/// and no later engine gets the same one (each costs some 32 bytes that stay for the process's life).
pub struct bn_engine {
    _opaque: [u8; 0],
}

/// A request's id, good for its own engine until `bn_release`. Stale, foreign and invented ids are
/// refused with `BN_ERR_NOT_FOUND`. Never 0, so 0 may stand for "none"; never `BN_ANY`.
pub type bn_request = u64;

/// In place of a request, to `bn_poll`: whichever has an event (but none with `BN_REQUEST_POLL_BY_ID`).
/// To `bn_cancel`: every request.
pub const BN_ANY: u64 = 0xffff_ffff_ffff_ffff;

/// `bn_poll`'s `timeout_ms`: wait for good.
pub const BN_WAIT_FOREVER: i32 = -1;
/// `bn_request_params.timeout_ms`: no timeout, whatever the engine's default is.
pub const BN_TIMEOUT_NONE: u32 = 0xffff_ffff;

/// `bn_engine_config.delivery_mode`: events wait for `bn_poll`.
pub const BN_DELIVERY_POLL: i32 = 0;
/// `bn_engine_config.delivery_mode`: a thread of the engine's hands each event to `on_event`.
pub const BN_DELIVERY_CALLBACK: i32 = 1;

/// `bn_engine_config.log_level`: no log.
pub const BN_LOG_OFF: i32 = 0;
/// A failure of the engine or of a request through no fault of the caller's.
pub const BN_LOG_ERROR: i32 = 1;
/// Something is not as it should be, and how the engine goes on.
pub const BN_LOG_WARN: i32 = 2;
/// What happens: loading and its progress, start, shutdown.
pub const BN_LOG_INFO: i32 = 3;
/// Detail for those who work on the engine.
pub const BN_LOG_DEBUG: i32 = 4;

/// Weights stay as the model's files have them.
pub const BN_WEIGHTS_KEEP: i32 = 0;
/// 8 bits: blocks of 32 with a half-precision scale.
pub const BN_WEIGHTS_Q8_0: i32 = 1;
/// 4 bits: blocks of 32 with a half-precision scale.
pub const BN_WEIGHTS_Q4_0: i32 = 2;
/// BitNet's -1, 0 and 1, with a scale.
pub const BN_WEIGHTS_TERNARY: i32 = 3;

/// `bn_engine_config.instructions`: the best that the machine has.
pub const BN_INSTRUCTIONS_AUTO: i32 = 0;
/// Portable code.
pub const BN_INSTRUCTIONS_SCALAR: i32 = 1;
/// x86-64 with AVX2, FMA and F16C.
pub const BN_INSTRUCTIONS_AVX2: i32 = 2;
/// The same with AVX-VNNI.
pub const BN_INSTRUCTIONS_AVX_VNNI: i32 = 3;
/// The same with AVX-512 F, BW, VL and VNNI.
pub const BN_INSTRUCTIONS_AVX512_VNNI: i32 = 4;
/// aarch64 with NEON's dot products.
pub const BN_INSTRUCTIONS_NEON: i32 = 5;

/// `bn_engine_shutdown`'s mode: accept nothing new, finish what is accepted.
pub const BN_SHUTDOWN_DRAIN: i32 = 0;
/// `bn_engine_shutdown`'s mode: accept nothing new, cancel what is accepted. May follow a drain.
pub const BN_SHUTDOWN_CANCEL: i32 = 1;

/// UTF-8 text of `length` bytes, not NUL-terminated.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_string {
    /// The bytes; may be NULL where `length` is 0.
    pub data: *const c_char,
    /// Bytes.
    pub length: usize,
}

/// A message of a conversation, for `bn_chat_format`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_chat_message {
    /// Whose it is: "system", "user", "assistant", or what else the model's template knows.
    pub role: bn_string,
    /// What it says.
    pub content: bn_string,
}

/// A token and the natural logarithm of its probability.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_logprob {
    /// The token's id.
    pub token: u32,
    /// Natural logarithm of its probability before temperature and truncation.
    pub logprob: f32,
}

/// Counts and times of a finished request. Times in nanoseconds, 0 where a phase was not reached. It
/// grows at its end: `bn_event.usage_size` says how much of it is there.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_usage {
    /// Tokens of the prompt, the ones that the tokenizer added included.
    pub prompt_tokens: u32,
    /// Tokens generated, an end token included.
    pub generated_tokens: u32,
    /// From submit to admission.
    pub queued_ns: u64,
    /// From admission to the end of the prompt.
    pub prefill_ns: u64,
    /// From submit to the first generated token.
    pub first_token_ns: u64,
    /// From the first generated token to the last.
    pub decode_ns: u64,
    /// From submit to the terminal event.
    pub total_ns: u64,
}

/// Takes one event, on the engine's delivery thread, with no lock held; one call at a time, in order for
/// each request. What `event` points to lives until the function returns. It may submit, cancel, release,
/// read statistics; `bn_poll`, `bn_generate`, `bn_embed` and `bn_engine_destroy` give `BN_ERR_REENTRANT`. While it
/// runs, other events wait and forward passes do not. It must return (no `longjmp`, no C++ exception).
/// `context` is `bn_engine_config.on_event_context`.
pub type bn_event_callback =
    Option<unsafe extern "C" fn(event: *const super::event::bn_event, context: *mut c_void)>;

/// Takes one line of the log: a `BN_LOG_*` level and `length` bytes of UTF-8, not NUL-terminated, that
/// live until it returns. It may be called from any thread, several at once, those of the caller's own
/// calls included, and until `bn_engine_destroy` returns. The rules of `bn_event_callback` hold.
/// `context` is `bn_engine_config.log_context`.
pub type bn_log_callback =
    Option<unsafe extern "C" fn(level: i32, message: *const c_char, length: usize, context: *mut c_void)>;

/// Told how far loading is: `fraction` from 0 to 1, and what is being done (`length` bytes of UTF-8, not
/// NUL-terminated, that live until it returns). Called during `bn_engine_create` only. Non-zero gives the
/// load up: create returns `BN_ERR_CANCELLED`. `context` is `bn_engine_config.progress_context`.
pub type bn_progress_callback = Option<
    unsafe extern "C" fn(fraction: f32, what: *const c_char, length: usize, context: *mut c_void) -> i32,
>;
