//! Speculative decoding.

use super::config::choice;
use crate::base::Result;
use crate::engine::api::Speculation;

/// A request's: the engine's. An engine's: `BN_SPECULATION_DRAFT` with a `draft_model`,
/// `BN_MODEL_MTP` or a `drafter_path`, else on the CPU `BN_SPECULATION_LOOKUP` as long as it makes
/// requests faster, else `BN_SPECULATION_OFF`.
pub const BN_SPECULATION_DEFAULT: u32 = 0;
/// No drafts.
pub const BN_SPECULATION_OFF: u32 = 1;
/// Look-ups draft the tokens that followed the same tokens earlier in prompt or output.
pub const BN_SPECULATION_LOOKUP: u32 = 2;
/// The engine's `draft_model` drafts, or the model's own block (`BN_MODEL_MTP`), or the drafter in
/// a file beside it (`drafter_path`).
pub const BN_SPECULATION_DRAFT: u32 = 3;

/// The largest `draft_tokens`.
pub const BN_MAX_DRAFT_TOKENS: u32 = 15;
const _: () = assert!(BN_MAX_DRAFT_TOKENS as usize == crate::schedule::MAX_DRAFT);

/// None: by default.
pub(super) fn speculation(value: u32) -> Result<Option<Speculation>> {
    let kinds = [
        (BN_SPECULATION_DEFAULT, None),
        (BN_SPECULATION_OFF, Some(Speculation::Off)),
        (BN_SPECULATION_LOOKUP, Some(Speculation::Lookup)),
        (BN_SPECULATION_DRAFT, Some(Speculation::Model)),
    ];
    choice("speculation", value, "BN_SPECULATION", &kinds)
}
