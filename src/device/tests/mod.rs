//! On the emulated driver (cuda/emulation), which does what a stream is given as late as it may.

mod devices;
mod graphs;
mod memory;
mod streams;

use super::*;
use crate::base::{Result, Status};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::Command;
use std::sync::Arc;

/// The driver that `cuda/build.sh` makes of the emulation: it keeps memory on the heap and runs kernels on the CPU.
fn library() -> String {
    std::env::var("BN_EMULATED_CUDA").expect("BN_EMULATED_CUDA names the emulated driver (make test-cuda)")
}

/// What the emulated driver offers to tests; its state is the process's, so one test uses it at a time.
struct Emulated {
    handle: *mut c_void,
    _alone: parking_lot::MutexGuard<'static, ()>,
}

static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

impl Emulated {
    fn new() -> Self {
        let alone = ALONE.lock();
        let path = CString::new(library()).unwrap();
        // SAFETY: a terminated name.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path:?} can be opened");
        let emulated = Self { handle, _alone: alone };
        assert_eq!(emulated.live(), 0, "a test before this one leaves something on the device");
        emulated.reset();
        emulated
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    /// As many devices from now on; none is open.
    fn devices(&self, count: c_int) {
        // SAFETY: its type in emulation/driver.cpp.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(self.symbol(c"bn_emulated_devices"))(
                count,
            )
        }
    }

    /// Bytes that device `number` has; -1: each.
    fn memory(&self, number: c_int, bytes: usize) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int, usize)>(
                self.symbol(c"bn_emulated_memory"),
            )(number, bytes)
        }
    }

    /// Calls since the library was loaded.
    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*mut Counts)>(self.symbol(c"bn_emulated_counts"))(
                &mut counts,
            )
        };
        counts
    }

    /// The next call of `function` gives `code`.
    fn fail(&self, function: &CStr, code: c_int) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, c_int)>(
                self.symbol(c"bn_emulated_fail"),
            )(function.as_ptr(), code)
        }
    }

    /// Frees what a lost device keeps. One device of 1 GiB is there.
    fn reset(&self) {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(self.symbol(c"bn_emulated_reset"))() }
    }

    /// Contexts, allocations and all other objects that there are.
    fn live(&self) -> usize {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(self.symbol(c"bn_emulated_live"))()
        }
    }
}

/// `Counts` of emulation/driver.cpp.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    launches: u64,
    writes: u64,
    reads: u64,
    synchronizations: u64,
    graph_launches: u64,
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
    let mut args = Args::default().pointer(x)?.pointer(y)?.size(4)?;
    let grid = Grid { blocks: [1, 1, 1], threads: [32, 1, 1], shared: 0 };
    // SAFETY: as the kernel has them.
    unsafe { module.function("bn_add")?.launch(stream, grid, &mut args) }
}

/// `deed` ends its process with `message`; run in a process of its own, which runs this one test, `name`, again.
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
