//! Compiled kernels, and their launches.

use super::driver::{Address, Handle, LaunchConfig, OVERLAPS};
use super::memory::Buffer;
use super::open::Device;
use super::stream::Stream;
use crate::base::{Error, Result};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: the static shared memory of a kernel.
const OWN_SHARED: i32 = 1;
/// CU_FUNC_ATTRIBUTE_PTX_VERSION: the architecture that a kernel was written for, 90 for sm_90.
const WRITTEN_FOR: i32 = 5;
/// The first architecture whose kernels wait themselves for the one before them (`await_inputs` of
/// `cuda/kernels/device.cuh`).
const AWAITS: i32 = 90;
/// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
const MOST_SHARED: i32 = 8;
/// Bytes of shared memory that every device grants without a request.
const SHARED: u32 = 48 << 10;
/// Maximum number of a kernel's arguments.
const ARGS: usize = 24;

/// The image of our kernels, for `Module::load`. `Unsupported` if the library was built without it.
pub fn kernels() -> Result<&'static [u8]> {
    // Written by build.rs; empty without the feature.
    static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));
    match IMAGE {
        [] => {
            Err(Error::unsupported("this library was built without kernels for NVIDIA GPUs (feature `cuda`)"))
        }
        image => Ok(image),
    }
}

/// A loaded image of kernels: a fatbin, a cubin, or PTX text that ends with a NUL.
pub struct Module {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// One kernel of a module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    handle: Handle,
    name: Arc<str>,
    /// Whether it may begin while the kernel before it still runs.
    overlaps: bool,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as for `Module`.
unsafe impl Sync for Function {}

/// Number of blocks, threads per block, and bytes of dynamic shared memory per block.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    pub shared: u32,
}

/// A kernel's arguments in order.
#[derive(Clone, Default)]
pub struct Args {
    values: [u64; ARGS],
    count: usize,
}

impl Args {
    /// Adds a pointer to byte `at` of a buffer.
    pub fn at(self, buffer: &Buffer, at: usize) -> Result<Self> {
        let address: Address = buffer.address(at)?;
        self.push(address.to_le_bytes())
    }

    pub fn pointer(self, buffer: &Buffer) -> Result<Self> {
        self.at(buffer, 0)
    }

    pub fn int(self, value: i32) -> Result<Self> {
        self.push(value.to_le_bytes())
    }

    pub fn uint(self, value: u32) -> Result<Self> {
        self.push(value.to_le_bytes())
    }

    /// Adds a `size_t`.
    pub fn size(self, value: usize) -> Result<Self> {
        self.push((value as u64).to_le_bytes())
    }

    pub fn float(self, value: f32) -> Result<Self> {
        self.push(value.to_le_bytes())
    }

    /// Adds a value. The driver reads only as many of its bytes as the kernel's parameter has.
    fn push<const N: usize>(mut self, bytes: [u8; N]) -> Result<Self> {
        let Some(value) = self.values.get_mut(self.count) else {
            return Err(Error::internal(format!("a kernel of more than {ARGS} arguments")));
        };
        let mut word = [0; 8];
        word[..N].copy_from_slice(&bytes);
        (*value, self.count) = (u64::from_le_bytes(word), self.count + 1);
        Ok(self)
    }
}

impl Module {
    /// Loads an image. The driver compiles PTX for the device. `Unsupported` if the image has no code that the driver
    /// can use for the device.
    pub fn load(device: &Arc<Device>, image: &[u8]) -> Result<Arc<Self>> {
        // The driver reads whole words.
        let mut aligned = Vec::new();
        crate::base::reserve(&mut aligned, image.len().div_ceil(8) + 1, "a module")?;
        aligned.extend(image.chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        }));
        aligned.push(0);
        let mut handle = std::ptr::null_mut();
        device.run("the kernels", || {
            // SAFETY: an image states its own length, and ours are complete.
            unsafe { (device.driver.load)(&mut handle, aligned.as_ptr().cast()) }
        })?;
        Ok(Arc::new(Self { device: device.clone(), handle }))
    }

    /// The kernel with this name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        let symbol = CString::new(name).map_err(|_| Error::internal("a kernel's name with a NUL"))?;
        let mut handle = std::ptr::null_mut();
        self.device.run(name, || {
            // SAFETY: a live module and a terminated name.
            unsafe { (self.device.driver.function)(&mut handle, self.handle, symbol.as_ptr()) }
        })?;
        let mut made = Function { module: self.clone(), handle, name: name.into(), overlaps: false };
        made.overlaps = self.device.overlaps && made.attribute(WRITTEN_FOR)? >= AWAITS;
        Ok(made)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: its functions hold it, so none is left.
        let _ = self.device.run("the kernels", || unsafe { (self.device.driver.unload)(self.handle) });
    }
}

impl Function {
    /// Allows the kernel `bytes` bytes of shared memory per block. This is needed above the 48 KiB that every device
    /// grants. The kernel's static shared memory counts; the rest may be dynamic (`Grid::shared`).
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let (device, own) = (&self.module.device, self.attribute(OWN_SHARED)?);
        device.run(&self.name, || {
            let rest = bytes.max(SHARED) as i32 - own;
            // SAFETY: a live function.
            unsafe { (device.driver.function_attribute)(self.handle, MOST_SHARED, rest) }
        })
    }

    fn attribute(&self, attribute: i32) -> Result<i32> {
        let (device, mut value) = (&self.module.device, 0);
        device.run(&self.name, || {
            // SAFETY: a live function, and a number to write.
            unsafe { (device.driver.read_function_attribute)(&mut value, attribute, self.handle) }
        })?;
        Ok(value)
    }

    /// Enqueues the kernel on `stream`.
    ///
    /// # Safety
    /// `args` match the kernel's parameters in number and types. The memory that they point to has the sizes that the
    /// kernel expects, and is not freed before the stream has run the kernel.
    pub unsafe fn launch(&self, stream: &Stream, grid: Grid, args: &mut Args) -> Result<()> {
        let mut pointers: [*mut c_void; ARGS] = [std::ptr::null_mut(); ARGS];
        for (pointer, value) in pointers.iter_mut().zip(&mut args.values[..args.count]) {
            *pointer = std::ptr::from_mut(value).cast();
        }
        let (device, Grid { blocks, threads, shared }) = (&self.module.device, grid);
        let config = LaunchConfig {
            blocks,
            threads,
            shared,
            stream: stream.handle,
            attributes: &OVERLAPS,
            attribute_count: u32::from(self.overlaps),
        };
        device.run(&self.name, || {
            // SAFETY: guaranteed by the caller; values are copied before the call returns.
            unsafe {
                (device.driver.launch)(&config, self.handle, pointers.as_mut_ptr(), std::ptr::null_mut())
            }
        })
    }
}
