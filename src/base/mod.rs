//! Errors, ids, shared bytes, the clock, the operating system and the loom shim. Everything may import this layer.

pub mod bytes;
pub mod clock;
pub mod error;
pub mod fork;
pub mod log;
pub mod os;
pub mod panics;
pub mod sync;
pub mod threads;

pub use bytes::Bytes;
pub use error::{Error, REFUSED, Result, Status, grow, in_range, reserve, reserved};
