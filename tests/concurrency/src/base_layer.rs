#[path = "../../../src/base/bytes.rs"]
pub mod bytes;
#[path = "../../../src/base/error.rs"]
pub mod error;
#[path = "../../../src/base/os/mod.rs"]
pub mod os;
#[path = "../../../src/base/sync.rs"]
pub mod sync;
#[cfg(not(loom))]
#[path = "../../../src/base/panics.rs"]
pub mod panics;
#[cfg(not(loom))]
#[path = "../../../src/base/threads.rs"]
pub mod threads;
#[cfg(not(loom))]
pub use error::REFUSED;
pub use error::{Error, Result, Status, reserved};
