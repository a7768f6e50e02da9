//! Devices: finding, checking and opening them.

use super::driver::{Code, Driver, Handle, OUT_OF_MEMORY, SUCCESS};
use crate::base::{Error, Result, Status};
use std::ffi::{CStr, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, .._COMPUTE_CAPABILITY_MAJOR and .._MINOR,
/// .._MAX_SHARED_MEMORY_PER_BLOCK_OPTIN.
const ATTRIBUTES: [c_int; 4] = [16, 75, 76, 97];
/// The oldest architecture that our kernels are compiled for.
const OLDEST: (i32, i32) = (8, 0);
/// The driver for CUDA 12.0.
const OLDEST_DRIVER: c_int = 12_000;
/// The first architecture and the driver (CUDA 12.3) that let kernels of a graph begin while those before them run.
const OVERLAPS: (i32, i32) = (9, 0);
const OVERLAPS_DRIVER: c_int = 12_030;
/// Codes after which all calls of a context fail. A launch may have failed: illegal address, timeout, assertion,
/// hardware stack, illegal instruction, misaligned address, illegal address space, program counter, launch failure,
/// tensor leak, an external device's failure. Somebody may have destroyed the context, as MPS does. Memory (ECC) or a
/// link may have failed for good. The device may be gone (46, 101), or the driver have ended (4). The driver may have
/// no name for the error (999).
const LOST: [Code; 20] =
    [4, 46, 101, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999];

/// Codes for an unreadable image: it is broken, has no code for the device, or has PTX that this driver has no
/// compiler for or is too old for.
const UNREADABLE: [Code; 7] = [200, 209, 218, 221, 222, 223, 300];

/// A driver's version in the usual notation, such as 12.3.
fn numbered(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Properties of a device that a host may want to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    pub name: String,
    pub total_bytes: usize,
    pub multiprocessors: u32,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Maximum shared memory of a block that asks for it.
    pub shared_bytes: usize,
}

/// An open device. Any thread may use it.
pub struct Device {
    pub(super) driver: Arc<Driver>,
    number: c_int,
    context: Handle,
    facts: DeviceFacts,
    /// Whether kernels may begin while those before them still run (programmatic dependent launch).
    pub(super) overlaps: bool,
    /// The code that the device was lost with; 0 if it is not lost.
    lost: AtomicI32,
}

// SAFETY: the driver's functions may be called from any thread, and a context may be current in several threads.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Number of devices that CUDA_VISIBLE_DEVICES leaves visible. `Unsupported` if the driver finds none or is too
    /// old.
    pub fn count(driver: &Driver) -> Result<u32> {
        // SAFETY: these are the types in cuda.h; all pointers are to values that outlive the call.
        unsafe {
            Self::must(driver, (driver.init)(0), "cuInit")?;
            let (version, mut count) = (Self::version(driver)?, 0);
            if version < OLDEST_DRIVER {
                return Err(Error::unsupported(format!(
                    "the NVIDIA driver is for CUDA {}, and {} is needed",
                    numbered(version),
                    numbered(OLDEST_DRIVER)
                )));
            }
            Self::must(driver, (driver.count)(&mut count), "the number of devices")?;
            Ok(count.max(0) as u32)
        }
    }

    fn version(driver: &Driver) -> Result<c_int> {
        let mut version = 0;
        // SAFETY: a number to write.
        Self::must(driver, unsafe { (driver.version)(&mut version) }, "the driver's version")?;
        Ok(version)
    }

    /// All devices in order, including those that are too old to be opened.
    pub fn list(driver: &Driver) -> Result<Vec<DeviceFacts>> {
        (0..Self::count(driver)?).map(|number| Ok(Self::find(driver, number)?.1)).collect()
    }

    /// Opens device `number`. `Unsupported` if there is no such device, or if the device or its driver is too old.
    pub fn open(driver: Arc<Driver>, number: u32) -> Result<Arc<Self>> {
        let count = Self::count(&driver)?;
        if number >= count {
            return Err(Error::unsupported(format!("no device cuda:{number}: there are {count}")));
        }
        let (device, facts) = Self::find(&driver, number)?;
        // SAFETY: as above.
        unsafe {
            if facts.capability < OLDEST {
                let ((major, minor), name) = (facts.capability, &facts.name);
                return Err(Error::unsupported(format!(
                    "cuda:{number} ({name}) has compute capability {major}.{minor}, and {}.{} is needed",
                    OLDEST.0, OLDEST.1
                )));
            }
            let mut context = std::ptr::null_mut();
            Self::must(&driver, (driver.retain)(&mut context, device), "the device's context")?;
            let overlaps = facts.capability >= OVERLAPS && Self::version(&driver)? >= OVERLAPS_DRIVER;
            Ok(Arc::new(Self {
                driver,
                number: device,
                context,
                facts,
                overlaps,
                lost: AtomicI32::new(SUCCESS),
            }))
        }
    }

    /// The handle and the properties of a device below the count.
    fn find(driver: &Driver, number: u32) -> Result<(c_int, DeviceFacts)> {
        let (mut device, mut name, mut total_bytes) = (0, [0; 256], 0);
        let mut values = [0; ATTRIBUTES.len()];
        // SAFETY: the name's length is passed, and the driver ends it with a NUL.
        unsafe {
            Self::must(driver, (driver.get)(&mut device, number as c_int), "the device")?;
            let code = (driver.name)(name.as_mut_ptr(), name.len() as c_int, device);
            Self::must(driver, code, "the device's name")?;
            Self::must(driver, (driver.total_bytes)(&mut total_bytes, device), "the device's memory")?;
            for (value, attribute) in values.iter_mut().zip(ATTRIBUTES) {
                Self::must(driver, (driver.attribute)(value, attribute, device), "the device's attributes")?;
            }
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let [multiprocessors, major, minor, shared] = values;
            let facts = DeviceFacts {
                name,
                total_bytes,
                multiprocessors: multiprocessors.max(1) as u32,
                capability: (major, minor),
                shared_bytes: shared.max(0) as usize,
            };
            Ok((device, facts))
        }
    }

    /// Turns any failure into `Unsupported`. Before a device is open, a failure means that the machine has no
    /// usable one.
    fn must(driver: &Driver, code: Code, what: &str) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            code => Err(Error::unsupported(format!("{what}: {}", driver.name_of(code)))),
        }
    }

    /// Whether the device was lost, so that all calls fail.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) != SUCCESS
    }

    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    pub fn number(&self) -> i32 {
        self.number
    }

    /// Whether both are the same device, opened twice.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.context == other.context
    }

    /// Bytes of the device's memory that no process uses now.
    pub fn free_bytes(&self) -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        self.run("the device's free memory", || {
            // SAFETY: two numbers to write.
            unsafe { (self.driver.free_bytes)(&mut free, &mut total) }
        })?;
        Ok(free)
    }

    /// Calls the driver with the device's context current, and then restores the thread's own context, which
    /// the host may use. Fails with `OutOfMemory` if the driver refuses memory, `EngineDead` if the device is
    /// lost (the driver is then not called any more), `Unsupported` if it cannot read an image, `Internal`
    /// for everything else.
    pub(super) fn run(&self, what: &str, call: impl FnOnce() -> Code) -> Result<()> {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost != SUCCESS {
            return Err(self.failed(what, lost));
        }
        // SAFETY: the context is retained as long as `self` lives; each push is popped.
        let code = match unsafe { (self.driver.push)(self.context) } {
            SUCCESS => {
                let code = call();
                let mut own = std::ptr::null_mut();
                // SAFETY: as above. A context that fails here also fails the next call.
                unsafe { (self.driver.pop)(&mut own) };
                code
            }
            code => code,
        };
        match code {
            SUCCESS => Ok(()),
            code => {
                if LOST.contains(&code) {
                    self.lost.store(code, Ordering::Relaxed);
                }
                Err(self.failed(what, code))
            }
        }
    }

    fn driver_version(&self) -> String {
        let mut version = 0;
        // SAFETY: a number to write.
        match unsafe { (self.driver.version)(&mut version) } {
            SUCCESS => numbered(version),
            _ => "unknown".into(),
        }
    }

    fn failed(&self, what: &str, code: Code) -> Error {
        let (name, number) = (self.driver.name_of(code), self.number);
        match code {
            OUT_OF_MEMORY => {
                Error::new(Status::OutOfMemory, format!("{what}: cuda:{number} is out of memory"))
            }
            code if LOST.contains(&code) => {
                Error::new(Status::EngineDead, format!("{what}: cuda:{number} was lost: {name}"))
            }
            code if UNREADABLE.contains(&code) => Error::unsupported(format!(
                "{what}: cuda:{number}: the NVIDIA driver, for CUDA {}, does not take this image: {name}",
                self.driver_version()
            )),
            _ => Error::internal(format!("{what}: cuda:{number}: {name}")),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once. Reporting an error here would be useless.
        unsafe { (self.driver.release)(self.number) };
    }
}
