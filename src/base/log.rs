//! Log levels. Their numbers are those of the C API.

/// No messages.
pub const OFF: u32 = 0;
/// Failures of the engine or of a request that the caller did not cause.
pub const ERROR: u32 = 1;
/// Irregularities, and how the engine continues in spite of them.
pub const WARN: u32 = 2;
/// Normal events: loading, start, shutdown.
pub const INFO: u32 = 3;
/// Details for developers of the engine.
pub const DEBUG: u32 = 4;
