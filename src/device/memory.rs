//! Memory on a device.

use super::driver::Address;
use super::open::Device;
use super::stream::Stream;
use crate::base::{Error, Result, Status};
use std::ops::Range;
use std::sync::Arc;

/// Names the refused allocation if `error` is a lack of memory.
pub(super) fn refused(error: Error, what: &str, bytes: usize) -> Error {
    match error.status {
        Status::OutOfMemory => Error::out_of_memory(what, bytes),
        _ => error,
    }
}

/// Bytes on a device.
pub struct Buffer {
    pub(super) device: Arc<Device>,
    address: Address,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` bytes with unspecified contents. `OutOfMemory` if the device refuses them.
    pub fn new(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Self> {
        let mut address = 0;
        if bytes > 0 {
            let made = device.run(what, || {
                // SAFETY: an address to write.
                unsafe { (device.driver.alloc)(&mut address, bytes) }
            });
            made.map_err(|error| refused(error, &format!("{what} on the device"), bytes))?;
        }
        Ok(Self { device: device.clone(), address, bytes })
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Address of byte `at`, for a kernel's arguments.
    pub fn address(&self, at: usize) -> Result<Address> {
        self.part(at..at)
    }

    pub(super) fn part(&self, range: Range<usize>) -> Result<Address> {
        if range.start > range.end || range.end > self.bytes {
            return Err(Error::internal(format!("bytes {range:?} of {} on the device", self.bytes)));
        }
        Ok(self.address + range.start as Address)
    }

    /// Writes `data` from byte `at` on, and waits until it is written.
    pub fn write(&self, stream: &Stream, at: usize, data: &[u8]) -> Result<()> {
        let to = self.part(at..at.saturating_add(data.len()))?;
        stream.copies_for_host()?;
        if data.is_empty() {
            return Ok(());
        }
        self.device.run("a copy to the device", || {
            // SAFETY: `data` is borrowed until the stream is done, below; the range was checked.
            unsafe { (self.device.driver.write)(to, data.as_ptr().cast(), data.len(), stream.handle) }
        })?;
        stream.synchronize()
    }

    /// Reads into `data` from byte `at` on, after all earlier work of `stream`, and waits until it is read.
    pub fn read(&self, stream: &Stream, at: usize, data: &mut [u8]) -> Result<()> {
        let from = self.part(at..at.saturating_add(data.len()))?;
        stream.copies_for_host()?;
        if data.is_empty() {
            return Ok(());
        }
        self.device.run("a copy from the device", || {
            // SAFETY: as in `write`.
            unsafe { (self.device.driver.read)(data.as_mut_ptr().cast(), from, data.len(), stream.handle) }
        })?;
        stream.synchronize()
    }

    /// Enqueues setting all bytes to `value`.
    pub fn fill(&self, stream: &Stream, value: u8) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the buffer's own bytes.
        self.device.run("memory of the device", || unsafe {
            (self.device.driver.fill)(self.address, value, self.bytes, stream.handle)
        })
    }

    /// Enqueues a copy of `bytes` bytes from byte `from` to byte `to` of `other`. The two ranges must not overlap.
    pub fn copy(&self, stream: &Stream, from: usize, other: &Self, to: usize, bytes: usize) -> Result<()> {
        let parts = (self.part(from..from.saturating_add(bytes))?, other.part(to..to.saturating_add(bytes))?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges were checked, and buffers are freed only after the work of all streams.
        self.device.run("a copy on the device", || unsafe {
            (self.device.driver.copy)(parts.1, parts.0, bytes, stream.handle)
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated once. Its owner has waited for all work that uses it, and drivers wait too.
            let _ = self.device.run("memory", || unsafe { (self.device.driver.free)(self.address) });
        }
    }
}
