//! The end of a pass that its caller gives up.

use crate::base::{Error, Result, Status};

/// `Cancelled` if `stop` says so.
pub(super) fn check_stop(stop: &mut dyn FnMut() -> bool) -> Result<()> {
    if stop() {
        return Err(Error::new(Status::Cancelled, "the step was stopped"));
    }
    Ok(())
}
