//! The reasons for which a request is ended from outside.

use super::event::FinishReason;
use crate::base::{Error, Status};

/// The finish reason and the error of a terminal event.
pub(crate) type Ending = (FinishReason, Error);

pub(crate) fn failed(error: Error) -> Ending {
    (FinishReason::Failed, error)
}

pub(crate) fn cancelled(what: &str) -> Ending {
    (FinishReason::Cancelled, Error::new(Status::Cancelled, what))
}

pub(crate) fn timed_out(what: &str) -> Ending {
    (FinishReason::TimedOut, Error::new(Status::TimedOut, what))
}

pub(crate) fn too_late() -> Ending {
    timed_out(
        "the request was given up while it was queued: its first token would have come after queue_timeout_ms",
    )
}
