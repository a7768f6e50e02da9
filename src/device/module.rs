//! Compiled kernels, and their launches.

use super::driver::{Address, Handle};
use super::memory::Buffer;
use super::open::Device;
use super::stream::Stream;
use crate::base::{Error, Result};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: what a kernel has besides.
const OWN_SHARED: i32 = 1;
/// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
const MOST_SHARED: i32 = 8;
/// What every device grants without being asked.
const SHARED: u32 = 48 << 10;
/// Arguments of a kernel, at most.
const ARGS: usize = 24;

/// The image of our kernels, for `Module::load`. `Unsupported` where the library was built without it.
pub fn kernels() -> Result<&'static [u8]> {
    // build.rs writes it; empty without the feature.
    static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));
    match IMAGE {
        [] => {
            Err(Error::unsupported("this library was built without kernels for NVIDIA GPUs (feature `cuda`)"))
        }
        image => Ok(image),
    }
}

/// Kernels: a fatbin, a cubin or PTX text that ends with a NUL.
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
}

// SAFETY: as of `Module`.
unsafe impl Send for Function {}
// SAFETY: as of `Module`.
unsafe impl Sync for Function {}

/// How many blocks there are, how many threads each has, and its dynamic shared memory in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    pub shared: u32,
}

/// A kernel's arguments in their order.
#[derive(Clone, Default)]
pub struct Args {
    values: [u64; ARGS],
    count: usize,
}

impl Args {
    /// A pointer into a buffer's bytes from `at` on.
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

    /// `size_t`.
    pub fn size(self, value: usize) -> Result<Self> {
        self.push((value as u64).to_le_bytes())
    }

    pub fn float(self, value: f32) -> Result<Self> {
        self.push(value.to_le_bytes())
    }

    /// The driver reads as many bytes of each as the kernel's argument has.
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
    /// Loads an image; the driver compiles PTX for the device. `Unsupported` from the driver where it holds no code for it.
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
            // SAFETY: images say their own length; one of ours is whole.
            unsafe { (device.driver.load)(&mut handle, aligned.as_ptr().cast()) }
        })?;
        Ok(Arc::new(Self { device: device.clone(), handle }))
    }

    /// The kernel of that name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        let symbol = CString::new(name).map_err(|_| Error::internal("a kernel's name with a NUL"))?;
        let mut handle = std::ptr::null_mut();
        self.device.run(name, || {
            // SAFETY: a live module and a terminated name.
            unsafe { (self.device.driver.function)(&mut handle, self.handle, symbol.as_ptr()) }
        })?;
        Ok(Function { module: self.clone(), handle, name: name.into() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: its functions hold it, so none is left.
        let _ = self.device.run("the kernels", || unsafe { (self.device.driver.unload)(self.handle) });
    }
}

impl Function {
    /// Asks for `bytes` of shared memory, more than every device grants (`Grid::shared` above 48 KiB): as dynamic memory what
    /// the kernel does not have already.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let (device, mut own) = (&self.module.device, 0);
        device.run(&self.name, || {
            // SAFETY: a live function, and a number to write.
            unsafe { (device.driver.read_function_attribute)(&mut own, OWN_SHARED, self.handle) }
        })?;
        device.run(&self.name, || {
            let rest = bytes.max(SHARED) as i32 - own;
            // SAFETY: a live function.
            unsafe { (device.driver.function_attribute)(self.handle, MOST_SHARED, rest) }
        })
    }

    /// Gives the kernel to `stream`.
    ///
    /// # Safety
    /// `args` are the kernel's in number and types, and what they point to has the sizes that the kernel says, and is not
    /// freed before the stream is through.
    pub unsafe fn launch(&self, stream: &Stream, grid: Grid, args: &mut Args) -> Result<()> {
        let mut pointers: [*mut c_void; ARGS] = [std::ptr::null_mut(); ARGS];
        for (pointer, value) in pointers.iter_mut().zip(&mut args.values[..args.count]) {
            *pointer = std::ptr::from_mut(value).cast();
        }
        let (device, Grid { blocks, threads, shared }) = (&self.module.device, grid);
        device.run(&self.name, || {
            // SAFETY: the caller's; values are copied before the call returns.
            unsafe {
                (device.driver.launch)(
                    self.handle,
                    blocks[0],
                    blocks[1],
                    blocks[2],
                    threads[0],
                    threads[1],
                    threads[2],
                    shared,
                    stream.handle,
                    pointers.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        })
    }
}
