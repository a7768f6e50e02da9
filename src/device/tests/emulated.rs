//! Control of the emulated driver (cuda/emulation/driver.cpp) by tests, here and in tests/all/cuda.rs.

use std::ffi::{CStr, c_char, c_int, c_void};

/// An open driver. Its state belongs to the process, so one test uses it at a time.
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
    /// Opens the library with this name or path.
    pub fn open(name: &CStr) -> Self {
        let _alone = ALONE.lock();
        // SAFETY: a terminated name.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{name:?} is there (make test-cuda)");
        Self { library, _alone }
    }

    /// Address of a symbol; null if this is another driver.
    pub fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library and a terminated name.
        unsafe { libc::dlsym(self.library, name.as_ptr()) }
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        let symbol = self.find(name);
        assert!(!symbol.is_null(), "{name:?}: the emulated driver, not another one");
        symbol
    }

    /// Sets the number of devices. None may be open.
    pub fn devices(&self, count: c_int) {
        // SAFETY: its type in emulation/driver.cpp.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(self.symbol(c"bn_emulated_devices"))(
                count,
            )
        }
    }

    /// Sets the bytes of device `number`; of all devices if it is -1.
    pub fn memory(&self, number: c_int, bytes: usize) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int, usize)>(
                self.symbol(c"bn_emulated_memory"),
            )(number, bytes)
        }
    }

    /// Sets the maximum bytes of shared memory of a block on each device, and the static part of them that each
    /// kernel has.
    pub fn shared(&self, most: c_int, own: c_int) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int, c_int)>(
                self.symbol(c"bn_emulated_shared"),
            )(most, own)
        }
    }

    /// Number of calls since the library was loaded.
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

    /// Makes the next call of `function` return `code`.
    pub fn fail(&self, function: &CStr, code: c_int) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, c_int)>(
                self.symbol(c"bn_emulated_fail"),
            )(function.as_ptr(), code)
        }
    }

    /// Frees everything that a lost device kept. Afterwards there is one device of 1 GiB.
    pub fn reset(&self) {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(self.symbol(c"bn_emulated_reset"))() }
    }

    /// Number of live objects: contexts, streams, modules, allocations and all others.
    pub fn live(&self) -> usize {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(self.symbol(c"bn_emulated_live"))()
        }
    }
}
