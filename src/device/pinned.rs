//! Memory of the host that a device copies from and to by itself, while the host does something else.

use super::driver::Code;
use super::memory::{Buffer, refused};
use super::open::Device;
use super::stream::{Event, Stream};
use crate::base::{Error, Result};
use std::ffi::c_void;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Page-locked bytes of the host, aligned to a page. A copy takes them away, and gives them back when it is done: nobody sees
/// or changes what a device is copying.
pub struct Pinned {
    device: Arc<Device>,
    data: *mut u8,
    bytes: usize,
    /// Behind the last copy.
    done: Event,
}

// SAFETY: owned bytes.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// Bytes that a device copies, until it is waited for.
#[must_use = "the bytes are freed, which waits for the copy"]
pub struct Copying(Pinned);

impl Pinned {
    /// Zeros. `OutOfMemory` where the system refuses them.
    pub fn new(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Self> {
        let done = Event::new(device)?;
        let mut data: *mut c_void = std::ptr::NonNull::dangling().as_ptr();
        if bytes > 0 {
            let made = device.run(what, || {
                // SAFETY: an address to write.
                unsafe { (device.driver.alloc_host)(&mut data, bytes, 0) }
            });
            made.map_err(|error| refused(error, &format!("{what} in page-locked memory"), bytes))?;
            // SAFETY: as many bytes were allocated.
            unsafe { std::ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        }
        Ok(Self { device: device.clone(), data: data.cast(), bytes, done })
    }

    /// Gives the bytes of `range` to `copy` and to a device, on `stream`.
    fn lend(
        self,
        stream: &Stream,
        range: Range<usize>,
        copy: impl FnOnce(*mut c_void) -> Code,
    ) -> Result<Copying> {
        stream.copies_for_host()?;
        if range.start > range.end || range.end > self.bytes || !self.device.is(stream.device()) {
            let number = stream.device().number();
            return Err(Error::internal(format!("bytes {range:?} of {} for cuda:{number}", self.bytes)));
        }
        if !range.is_empty() {
            // SAFETY: within the allocation.
            let data = unsafe { self.data.add(range.start) };
            self.device.run("a copy beside the host", || copy(data.cast()))?;
        }
        if let Err(error) = self.done.record(stream) {
            // Nothing says when the copy is done but the stream itself.
            stream.synchronize()?;
            return Err(error);
        }
        Ok(Copying(self))
    }
}

impl Buffer {
    /// Copies the bytes `range` of `from` to byte `at` and on, when its turn comes.
    pub fn write_from(
        &self,
        stream: &Stream,
        at: usize,
        from: Pinned,
        range: Range<usize>,
    ) -> Result<Copying> {
        let (to, bytes) = (self.part(at..at.saturating_add(range.len()))?, range.len());
        // SAFETY: both ranges are checked; `Copying` keeps the host's, and buffers are freed behind the work of all streams.
        from.lend(stream, range, |from| unsafe {
            (self.device.driver.write)(to, from.cast_const(), bytes, stream.handle)
        })
    }

    /// Copies from byte `at` on to the bytes `range` of `to`, when its turn comes.
    pub fn read_to(&self, stream: &Stream, at: usize, to: Pinned, range: Range<usize>) -> Result<Copying> {
        let (from, bytes) = (self.part(at..at.saturating_add(range.len()))?, range.len());
        // SAFETY: as `write_from`.
        to.lend(stream, range, |to| unsafe { (self.device.driver.read)(to, from, bytes, stream.handle) })
    }
}

impl Copying {
    /// Whether `wait` would not wait.
    pub fn is_done(&self) -> Result<bool> {
        self.0.done.is_done()
    }

    /// Waits for the copy, not for what the stream was given after it.
    pub fn wait(self) -> Result<Pinned> {
        self.0.done.wait()?;
        Ok(self.0)
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialized by `new`, and no device writes to them (`Copying`).
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.bytes > 0 && self.done.wait().is_ok() {
            // SAFETY: allocated once, and the last copy is done.
            let _ = self.device.run("memory", || unsafe { (self.device.driver.free_host)(self.data.cast()) });
        }
    }
}
