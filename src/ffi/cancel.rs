//! A thread that is cancelled (`pthread_cancel`) while it waits in a call of ours would unwind through frames that forbid
//! it, and abort the process. So calls are no cancellation points: the request takes effect behind them.

use std::ffi::c_int;

#[cfg(target_os = "macos")]
const DISABLE: c_int = 0;
#[cfg(not(target_os = "macos"))]
const DISABLE: c_int = 1;

/// Returns the state before.
#[cfg(not(miri))]
fn set(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    let mut old = state;
    // SAFETY: a state that exists, and a place for the old one.
    unsafe { pthread_setcancelstate(state, &mut old) };
    old
}

/// Miri has no cancellation.
#[cfg(miri)]
fn set(state: c_int) -> c_int {
    state
}

/// Cancellation is off while it lives.
pub struct Disabled(c_int);

impl Disabled {
    pub fn new() -> Self {
        Self(set(DISABLE))
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        set(self.0);
    }
}
