//! Tests on the emulated driver (cuda/emulation), which runs the work of a stream as late as it may.

mod devices;
mod emulated;
mod graphs;
mod memory;
mod streams;

use super::*;
use crate::base::{Result, Status};
use emulated::{Counts, Emulated};
use std::ffi::CString;
use std::process::Command;
use std::sync::Arc;

/// Path of the driver that `cuda/build.sh` builds from the emulation. It keeps memory on the heap and runs kernels on
/// the CPU.
fn library() -> String {
    std::env::var("BN_EMULATED_CUDA").expect("BN_EMULATED_CUDA names the emulated driver (make test-cuda)")
}

impl Emulated {
    fn new() -> Self {
        let emulated = Self::open(&CString::new(library()).unwrap());
        assert_eq!(emulated.live(), 0, "a test before this one leaves something on the device");
        emulated.reset();
        emulated
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            launches: self.launches - before.launches,
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
            synchronizations: self.synchronizations - before.synchronizations,
            graph_launches: self.graph_launches - before.graph_launches,
        }
    }
}

fn open(number: u32) -> Result<Arc<Device>> {
    Device::open(Arc::new(Driver::open(&library())?), number)
}

fn device() -> Result<Arc<Device>> {
    open(0)
}

/// The bytes of `buffer`.
fn read(buffer: &Buffer, stream: &Stream) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(stream, 0, &mut bytes).unwrap();
    bytes
}

/// Adds `y` [4] to `x` [4], both f32, with the kernel `bn_add`.
fn add(module: &Arc<Module>, stream: &Stream, x: &Buffer, y: &Buffer) -> Result<()> {
    add_by(32, module, stream, x, y)
}

/// Like `add`, with `threads` threads.
fn add_by(threads: u32, module: &Arc<Module>, stream: &Stream, x: &Buffer, y: &Buffer) -> Result<()> {
    let mut args = Args::default().pointer(x)?.pointer(y)?.size(4)?;
    let grid = Grid { blocks: [1, 1, 1], threads: [threads, 1, 1], shared: 0 };
    // SAFETY: the arguments that the kernel expects.
    unsafe { module.function("bn_add")?.launch(stream, grid, &mut args) }
}

/// Checks that `deed` ends its process with `message`. It runs in a process of its own, which runs this test, `name`,
/// again.
fn ends(name: &str, message: &str, deed: impl FnOnce()) {
    const AGAIN: &str = "BN_EMULATED_DEED";
    if std::env::var_os(AGAIN).is_some() {
        return deed();
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let arguments = [&format!("device::tests::{name}"), "--exact", "--include-ignored", "--nocapture"];
    let output = again.args(arguments).env(AGAIN, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(message), "{said}");
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
