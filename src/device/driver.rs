//! The functions of the CUDA driver API that we use. The headers (cuda.h) of CUDA 12.0 and 13.0 declare them alike.

use crate::base::{Error, Result, os};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// CUresult, as a plain number: a newer driver may return a code that an enum would lack.
pub(super) type Code = c_int;

pub(super) const SUCCESS: Code = 0;
pub(super) const OUT_OF_MEMORY: Code = 2;
pub(super) const NOT_READY: Code = 600;

/// A pointer on the device (CUdeviceptr).
pub(super) type Address = u64;
/// CUcontext, CUstream, CUevent, CUgraph, CUgraphExec, CUmodule and CUfunction: opaque pointers of the driver.
pub(super) type Handle = *mut c_void;

/// CUlaunchConfig.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub blocks: [c_uint; 3],
    pub threads: [c_uint; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: c_uint,
}

/// CUlaunchAttribute: its number, and a union of which the int is used.
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    id: c_int,
    padding: c_int,
    value: [c_int; 16],
}

/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the kernel may begin while the previous one still runs, and
/// waits for it itself.
pub(super) const OVERLAPS: LaunchAttribute =
    LaunchAttribute { id: 6, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] };

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// The driver's functions. The library is never closed.
        pub struct Driver {
            /// Whether this is the emulated driver of the tests (`cuda/emulation`), which contains our kernels and
            /// reads no image.
            pub emulates: bool,
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Code,)*
        }

        impl Driver {
            /// Opens the driver's library. `Unsupported` if there is none, or if it is too old to have all functions.
            pub fn open(library: &str) -> Result<Self> {
                let library = Library::open(library)?;
                Ok(Self {
                    emulates: library.symbol(c"bn_emulated_live").is_ok(),
                    // SAFETY: cuda.h declares the symbols with these types, and a symbol with its suffix (_v2) never
                    // changes its type.
                    $($name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Code>(
                            library.symbol($symbol)?,
                        )
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    version = c"cuDriverGetVersion" (*mut c_int);
    error_name = c"cuGetErrorName" (Code, *mut *const c_char);
    count = c"cuDeviceGetCount" (*mut c_int);
    get = c"cuDeviceGet" (*mut c_int, c_int);
    name = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
    attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    total_bytes = c"cuDeviceTotalMem_v2" (*mut usize, c_int);
    retain = c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release = c"cuDevicePrimaryCtxRelease_v2" (c_int);
    push = c"cuCtxPushCurrent_v2" (Handle);
    pop = c"cuCtxPopCurrent_v2" (*mut Handle);
    free_bytes = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    alloc = c"cuMemAlloc_v2" (*mut Address, usize);
    free = c"cuMemFree_v2" (Address);
    alloc_host = c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    free_host = c"cuMemFreeHost" (*mut c_void);
    write = c"cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    read = c"cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    copy = c"cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle);
    fill = c"cuMemsetD8Async" (Address, u8, usize, Handle);
    stream = c"cuStreamCreate" (*mut Handle, c_uint);
    destroy_stream = c"cuStreamDestroy_v2" (Handle);
    synchronize = c"cuStreamSynchronize" (Handle);
    event = c"cuEventCreate" (*mut Handle, c_uint);
    destroy_event = c"cuEventDestroy_v2" (Handle);
    record = c"cuEventRecord" (Handle, Handle);
    wait = c"cuEventSynchronize" (Handle);
    query = c"cuEventQuery" (Handle);
    wait_for = c"cuStreamWaitEvent" (Handle, Handle, c_uint);
    begin_capture = c"cuStreamBeginCapture_v2" (Handle, c_int);
    end_capture = c"cuStreamEndCapture" (Handle, *mut Handle);
    destroy_graph = c"cuGraphDestroy" (Handle);
    instantiate = c"cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    upload_graph = c"cuGraphUpload" (Handle, Handle);
    launch_graph = c"cuGraphLaunch" (Handle, Handle);
    destroy_executable = c"cuGraphExecDestroy" (Handle);
    load = c"cuModuleLoadData" (*mut Handle, *const c_void);
    unload = c"cuModuleUnload" (Handle);
    function = c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    read_function_attribute = c"cuFuncGetAttribute" (*mut c_int, c_int, Handle);
    function_attribute = c"cuFuncSetAttribute" (Handle, c_int, c_int);
    launch = c"cuLaunchKernelEx" (*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
}

impl Driver {
    /// Opens this machine's driver.
    pub fn of_machine() -> Result<Self> {
        Self::open(os::NVIDIA_DRIVER)
    }

    /// The name of `code`, such as CUDA_ERROR_OUT_OF_MEMORY.
    pub(super) fn name_of(&self, code: Code) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the driver writes a pointer to a constant, or returns an error for an unknown number.
        let known = unsafe { (self.error_name)(code, &mut name) } == SUCCESS && !name.is_null();
        match known {
            // SAFETY: it ends with a NUL and is never freed.
            true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            false => format!("CUDA error {code}"),
        }
    }
}

/// A library that is never closed, because the driver has threads of its own.
struct Library {
    handle: Handle,
    name: String,
}

impl Library {
    fn open(name: &str) -> Result<Self> {
        let path = CString::new(name).map_err(|_| Error::invalid("a library's name holds a NUL"))?;
        // SAFETY: the system vouches for the code that the library runs when it is loaded.
        let handle = unsafe { os::open_library(&path) };
        let handle = handle.map_err(|e| Error::unsupported(format!("no NVIDIA driver: {e}")))?;
        Ok(Self { handle, name: name.to_owned() })
    }

    fn symbol(&self, symbol: &CStr) -> Result<*mut c_void> {
        // SAFETY: an open library.
        let found = unsafe { os::symbol(self.handle, symbol) };
        if found.is_null() {
            let (name, symbol) = (&self.name, symbol.to_string_lossy());
            return Err(Error::unsupported(format!("the NVIDIA driver is too old: {name} lacks {symbol}")));
        }
        Ok(found)
    }
}
