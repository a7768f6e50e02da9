//! Names of finish reasons.

use crate::ffi::event::finish_name;
use std::ffi::c_char;

/// A finish reason in a word, like `stop`, or `unknown`.
#[unsafe(no_mangle)]
pub extern "C" fn bn_finish_reason_name(reason: i32) -> *const c_char {
    finish_name(reason).as_ptr()
}
