//! A place in a caller's trace.

use crate::base::{Error, Result};
use crate::engine::api::TraceContext;

/// A place in a trace, as in W3C's `traceparent`. All 0: none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_trace {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The caller's span in it. Needs `trace_id`.
    pub parent_id: [u8; 8],
}

impl bn_trace {
    pub(super) fn as_engine(self) -> Result<Option<TraceContext>> {
        match (self.trace_id == [0; 16], self.parent_id == [0; 8]) {
            (false, _) => Ok(Some(TraceContext { trace: self.trace_id, parent: self.parent_id })),
            (true, true) => Ok(None),
            (true, false) => Err(Error::invalid("parent_id is set and needs trace_id")),
        }
    }
}
