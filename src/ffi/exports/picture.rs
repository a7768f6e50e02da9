//! What pictures take.

use crate::base::Error;
use crate::ffi::guard::{guard, out};
use crate::ffi::picture::bn_picture;
use crate::ffi::registry;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::bn_engine;

/// Writes the number of positions that a picture takes in a prompt of the engine's model.
///
/// @return `BN_ERR_UNSUPPORTED`: the model sees no pictures; `BN_ERR_INVALID_ARGUMENT`: also if the
/// picture cannot be read or is too large.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_picture_positions(
    engine: *mut bn_engine,
    picture: *const bn_picture,
    positions: *mut u64,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::with(engine, |engine| {
            // SAFETY: the caller's promise.
            let picture = unsafe { picture.as_ref() }.ok_or_else(|| Error::invalid("picture is NULL"))?;
            out("positions", positions)?;
            // SAFETY: the caller's promise.
            let count = engine.picture_positions(&unsafe { picture.as_engine("picture") }?)?;
            // SAFETY: the caller's promise.
            unsafe { positions.write(count as u64) };
            Ok(())
        })
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}
