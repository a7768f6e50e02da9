//! Constraints that are compiled before requests come.

use crate::base::Error;
use crate::ffi::constraint::bn_constraint;
use crate::ffi::guard::guard;
use crate::ffi::registry;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::bn_engine;

/// Compiles a constraint, as `bn_submit` does, and keeps it for requests with the same one.
///
/// @return `BN_ERR_INVALID_ARGUMENT`: the constraint is wrong or too complex, the message says
/// why; `BN_ERR_UNSUPPORTED`: the model has no tokenizer or no end token; `BN_ERR_QUEUE_FULL`;
/// `BN_ERR_TIMED_OUT`: it waited for others, or took, ten seconds; `BN_ERR_SHUTDOWN`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_check_constraint(
    engine: *mut bn_engine,
    constraint: *const bn_constraint,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let constraint =
            unsafe { constraint.as_ref() }.ok_or_else(|| Error::invalid("constraint is NULL"))?;
        // SAFETY: the caller's promise.
        let (constraint, _) = unsafe { constraint.as_engine(false) }?;
        registry::with(engine, |engine| constraint.iter().try_for_each(|one| engine.check_constraint(one)))
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}
