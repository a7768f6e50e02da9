//! The delivery thread of callback mode.

pub(super) mod callback;
pub(super) mod signal;

use crate::base::panics;
use crate::engine::api::{EventSink, LOG_ERROR};
use crate::engine::core::Shared;

/// Hands every event to the host with no lock held.
pub(super) fn deliver(shared: &Shared, mut sink: EventSink) {
    shared.hub.deliver(&mut |event| {
        if let Err(text) = panics::catch(|| callback::run(|| sink(event))) {
            shared.log.write(LOG_ERROR, format!("the event callback panicked: {text}"));
        }
    });
}
