//! NVIDIA devices, through their driver. The driver is opened when a device is asked for, so this library loads on
//! any machine and needs no toolkit to be built.
//! `cuda/README.md` lists the parts that have not yet run on a device.

mod driver;
mod graph;
mod memory;
mod module;
mod open;
mod pinned;
mod stream;
// The emulated driver is a shared library of Unix.
#[cfg(all(test, unix))]
mod tests;

pub use driver::Driver;
pub use graph::{Capture, Graph};
pub use memory::Buffer;
pub use module::{Args, Function, Grid, Module, kernels};
pub use open::{Device, DeviceFacts};
pub use pinned::{Copying, Pinned};
pub use stream::{Event, Stream};
