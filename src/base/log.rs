//! Log levels. Their numbers are those of the C API.

/// No messages.
pub const OFF: i32 = 0;
/// Failures of the engine or of a request that the caller did not cause.
pub const ERROR: i32 = 1;
/// Irregularities, and how the engine continues in spite of them.
pub const WARN: i32 = 2;
/// Normal events: loading, start, shutdown.
pub const INFO: i32 = 3;
/// Details for developers of the engine.
pub const DEBUG: i32 = 4;
