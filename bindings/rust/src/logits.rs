//! Logits that a request's closure changes before each token.
use crate::shared::Shared;
use crate::{callback, sys, text};
use std::ffi::c_void;
use std::ops::ControlFlow;
use std::slice;
use std::sync::Arc;

/// The logits of a request's next token, before anything else changes them.
#[derive(Debug)]
#[non_exhaustive]
pub struct Logits<'a> {
    /// The request's own.
    pub user_data: u64,
    /// The prompt's tokens.
    pub prompt_tokens: &'a [u32],
    /// The tokens generated so far.
    pub output_tokens: &'a [u32],
    /// One for each token of the vocabulary, to be changed in place. Negative infinity forbids a token; at least one must
    /// stay finite, and none may be NaN or positive infinity, or the request fails.
    pub logits: &'a mut [f32],
}

/// Changes a request's logits before each of its tokens. `Break` and a panic end the request as failed, with
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
///
/// It runs on threads of the engine, and all requests wait for it. It must not wait for the engine. The output is the
/// same in every batch only if it depends on its argument alone. It is dropped after the request's last event.
pub type OnLogits = Arc<dyn Fn(&mut Logits<'_>) -> ControlFlow<()> + Send + Sync>;

/// The library's callback for requests with such a closure. The context is the request's [`Shared`].
pub(crate) unsafe extern "C" fn on_logits(row: *const sys::bn_logits, context: *mut c_void) -> i32 {
    // SAFETY: the library's reference keeps the request's `Shared` until its last event.
    let shared = unsafe { &*context.cast_const().cast::<Shared>() };
    let Some(closure) = &shared.on_logits else { return 0 };
    let flow = callback::run(|| {
        // SAFETY: the library passes a row and its arrays that are valid, and its own, until this returns.
        let mut logits = unsafe {
            let row = &*row;
            Logits {
                user_data: shared.user_data,
                prompt_tokens: text::slice(row.prompt_tokens, row.prompt_tokens_count),
                output_tokens: text::slice(row.output_tokens, row.output_tokens_count),
                logits: slice::from_raw_parts_mut(row.logits, row.vocab_size as usize),
            }
        };
        closure(&mut logits)
    });
    if flow.is_none() {
        shared.panicked();
    }
    i32::from(flow != Some(ControlFlow::Continue(())))
}
