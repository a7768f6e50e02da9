//! A device: found, checked and opened.

use super::driver::{Code, Driver, Handle, OUT_OF_MEMORY, SUCCESS};
use crate::base::{Error, Result, Status};
use std::ffi::{CStr, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, .._COMPUTE_CAPABILITY_MAJOR and .._MINOR.
const ATTRIBUTES: [c_int; 3] = [16, 75, 76];
/// The oldest architecture that our kernels are compiled for.
const OLDEST: (i32, i32) = (8, 0);
/// Driver for CUDA 12.0.
const OLDEST_DRIVER: c_int = 12_000;
/// Codes of a launch that ended badly, after which a context answers nothing else: illegal address, timeout, assertion,
/// hardware stack, illegal instruction, misaligned address, illegal address space, program counter, launch failure; and
/// a device that is gone (46, 101).
const LOST: [Code; 11] = [46, 101, 700, 702, 710, 714, 715, 716, 717, 718, 719];

/// What a host may want to know of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    pub name: String,
    pub total_bytes: usize,
    pub multiprocessors: u32,
    /// Compute capability.
    pub capability: (i32, i32),
}

/// An open device. Any thread may use it.
pub struct Device {
    pub(super) driver: Arc<Driver>,
    number: c_int,
    context: Handle,
    facts: DeviceFacts,
    /// The code that the device was lost with; 0: none.
    lost: AtomicI32,
}

// SAFETY: the driver's functions may be called from any thread, and a context be current in several.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens device `number` (of those that CUDA_VISIBLE_DEVICES leaves). `Unsupported` where there is no such device, or
    /// it or its driver is too old.
    pub fn open(driver: Arc<Driver>, number: u32) -> Result<Arc<Self>> {
        // SAFETY: as cuda.h has these functions; all pointers are to what lives through the call.
        unsafe {
            Self::must(&driver, (driver.init)(0), "cuInit")?;
            let (mut version, mut count, mut device) = (0, 0, 0);
            Self::must(&driver, (driver.version)(&mut version), "the driver's version")?;
            if version < OLDEST_DRIVER {
                let of = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
                return Err(Error::unsupported(format!(
                    "the NVIDIA driver is for CUDA {}, and {} is needed",
                    of(version),
                    of(OLDEST_DRIVER)
                )));
            }
            Self::must(&driver, (driver.count)(&mut count), "the number of devices")?;
            let Some(number) = c_int::try_from(number).ok().filter(|number| *number < count) else {
                return Err(Error::unsupported(format!("no device cuda:{number}: there are {count}")));
            };
            Self::must(&driver, (driver.get)(&mut device, number), "the device")?;
            let facts = Self::look(&driver, device)?;
            if facts.capability < OLDEST {
                let ((major, minor), name) = (facts.capability, &facts.name);
                return Err(Error::unsupported(format!(
                    "cuda:{number} ({name}) has compute capability {major}.{minor}, and {}.{} is needed",
                    OLDEST.0, OLDEST.1
                )));
            }
            let mut context = std::ptr::null_mut();
            Self::must(&driver, (driver.retain)(&mut context, device), "the device's context")?;
            Ok(Arc::new(Self { driver, number: device, context, facts, lost: AtomicI32::new(SUCCESS) }))
        }
    }

    /// # Safety
    /// `device` is one of the driver's.
    unsafe fn look(driver: &Driver, device: c_int) -> Result<DeviceFacts> {
        let (mut name, mut total_bytes) = ([0; 256], 0);
        let mut values = [0; ATTRIBUTES.len()];
        // SAFETY: the name's length is passed, and the driver ends it with a NUL.
        unsafe {
            let code = (driver.name)(name.as_mut_ptr(), name.len() as c_int, device);
            Self::must(driver, code, "the device's name")?;
            Self::must(driver, (driver.total_bytes)(&mut total_bytes, device), "the device's memory")?;
            for (value, attribute) in values.iter_mut().zip(ATTRIBUTES) {
                Self::must(driver, (driver.attribute)(value, attribute, device), "the device's attributes")?;
            }
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let [multiprocessors, major, minor] = values;
            let multiprocessors = multiprocessors.max(1) as u32;
            Ok(DeviceFacts { name, total_bytes, multiprocessors, capability: (major, minor) })
        }
    }

    /// Before there is a device, everything that fails is a machine without one.
    fn must(driver: &Driver, code: Code, what: &str) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            code => Err(Error::unsupported(format!("{what}: {}", driver.name_of(code)))),
        }
    }

    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Bytes that are free now, whoever took the others.
    pub fn free_bytes(&self) -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        self.run("the device's free memory", || {
            // SAFETY: two numbers to write.
            unsafe { (self.driver.free_bytes)(&mut free, &mut total) }
        })?;
        Ok(free)
    }

    /// Makes the device current and calls the driver. `OutOfMemory` where it refuses memory; `Internal` for everything else.
    /// After the device was lost, nothing is called any more.
    pub(super) fn run(&self, what: &str, call: impl FnOnce() -> Code) -> Result<()> {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost != SUCCESS {
            return Err(self.failed(what, lost));
        }
        // SAFETY: the context is retained for as long as `self` lives.
        let code = match unsafe { (self.driver.set_current)(self.context) } {
            SUCCESS => call(),
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

    fn failed(&self, what: &str, code: Code) -> Error {
        let (name, number) = (self.driver.name_of(code), self.number);
        match code {
            OUT_OF_MEMORY => {
                Error::new(Status::OutOfMemory, format!("{what}: cuda:{number} is out of memory"))
            }
            code if LOST.contains(&code) => {
                Error::internal(format!("{what}: cuda:{number} was lost: {name}"))
            }
            _ => Error::internal(format!("{what}: cuda:{number}: {name}")),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once. What the driver says of it helps nobody.
        unsafe { (self.driver.release)(self.number) };
    }
}
