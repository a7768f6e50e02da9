//! The delivery thread of callback mode.

use super::api::{EventSink, LOG_ERROR};
use super::callback;
use super::core::Shared;
use super::event::FinishReason;
use crate::base::panics;

/// Hands every event to the host with no lock held.
pub fn deliver(shared: &Shared, mut sink: EventSink) {
    let mut events = Vec::new();
    while shared.hub.take(&mut events) {
        for event in events.drain(..) {
            // Released meanwhile: the host wants to hear no more of it.
            if shared.hub.stage(event.request).is_err() {
                continue;
            }
            if let Err(text) = panics::catch(|| callback::run(|| sink(&event))) {
                shared.log.write(LOG_ERROR, format!("the event callback panicked: {text}"));
            }
            shared.hub.delivered(event.request, event.granted);
            if event.finish != FinishReason::None {
                // The host may have released it itself.
                let _ = shared.hub.release(event.request);
            }
        }
    }
}
