//! NVIDIA devices through their driver, which is opened when a device is asked for: this library loads on any machine, and
//! needs no toolkit to be built.
//!
//! Nothing above uses this layer yet; `cuda/README.md` says what is there and what has not run.

mod driver;
mod memory;
mod module;
mod open;
#[cfg(test)]
mod tests;

pub use driver::Driver;
pub use memory::{Buffer, Stream};
pub use module::{Args, Function, Grid, Module};
pub use open::{Device, DeviceFacts};
