//! What the emulated driver (cuda/emulation/driver.cpp) offers to tests, here and in tests/all/cuda.rs.

use std::ffi::{CStr, c_char, c_int, c_void};

/// An open driver; its state is the process's, so one test uses it at a time.
pub struct Emulated {
    library: *mut c_void,
    _alone: parking_lot::MutexGuard<'static, ()>,
}

static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// `Counts` of emulation/driver.cpp.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub launches: u64,
    pub writes: u64,
    pub reads: u64,
    pub synchronizations: u64,
    pub graph_launches: u64,
}

impl Emulated {
    /// The library of this name or path.
    pub fn open(name: &CStr) -> Self {
        let _alone = ALONE.lock();
        // SAFETY: a terminated name.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{name:?} is there (make test-cuda)");
        Self { library, _alone }
    }

    /// Null where it is another driver.
    pub fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library and a terminated name.
        unsafe { libc::dlsym(self.library, name.as_ptr()) }
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        let symbol = self.find(name);
        assert!(!symbol.is_null(), "{name:?}: the emulated driver, not another one");
        symbol
    }

    /// As many devices from now on; none is open.
    pub fn devices(&self, count: c_int) {
        // SAFETY: its type in emulation/driver.cpp.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(self.symbol(c"bn_emulated_devices"))(
                count,
            )
        }
    }

    /// Bytes that device `number` has; -1: each.
    pub fn memory(&self, number: c_int, bytes: usize) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int, usize)>(
                self.symbol(c"bn_emulated_memory"),
            )(number, bytes)
        }
    }

    /// Bytes of shared memory that a block of each device has at most, and those of them that each kernel has already.
    pub fn shared(&self, most: c_int, own: c_int) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int, c_int)>(
                self.symbol(c"bn_emulated_shared"),
            )(most, own)
        }
    }

    /// Calls since the library was loaded.
    pub fn counts(&self) -> Counts {
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
    pub fn fail(&self, function: &CStr, code: c_int) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, c_int)>(
                self.symbol(c"bn_emulated_fail"),
            )(function.as_ptr(), code)
        }
    }

    /// Frees what a lost device keeps. One device of 1 GiB is there.
    pub fn reset(&self) {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(self.symbol(c"bn_emulated_reset"))() }
    }

    /// Contexts, streams, modules, allocations and all other objects that there are.
    pub fn live(&self) -> usize {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(self.symbol(c"bn_emulated_live"))()
        }
    }
}
