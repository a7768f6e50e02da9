//! Levels of the log. Their numbers are the C API's.

/// No log.
pub const OFF: i32 = 0;
/// A failure of the engine or of a request that the caller did not cause.
pub const ERROR: i32 = 1;
/// Something is not as it should be, and how the engine goes on.
pub const WARN: i32 = 2;
/// What happens: loading, start, shutdown.
pub const INFO: i32 = 3;
/// Detail for work on the engine.
pub const DEBUG: i32 = 4;
