//! Host memory that a device copies from and to on its own, while the host does something else.

use super::driver::Code;
use super::memory::{Buffer, refused};
use super::open::Device;
use super::stream::{Event, Stream};
use crate::base::{Error, Result};
use std::ffi::c_void;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Page-locked bytes of the host, aligned to a page. A copy takes them, and returns them when it is done. So
/// no code sees or changes bytes that a device is copying.
pub struct Pinned {
    device: Arc<Device>,
    data: *mut u8,
    bytes: usize,
    /// Recorded after the last copy.
    done: Event,
}

// SAFETY: owned bytes.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// Bytes that a device is copying, until `wait` returns them.
#[must_use = "the bytes are freed, which waits for the copy"]
pub struct Copying(Pinned);

impl Pinned {
    /// Allocates zeroed bytes. `OutOfMemory` if the system refuses them.
    pub fn new(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Self> {
        let done = Event::new(device)?;
        let mut data: *mut c_void = std::ptr::NonNull::dangling().as_ptr();
        if bytes > 0 {
            let made = device.run(what, || {
                // SAFETY: an address to write.
                unsafe { (device.driver.alloc_host)(&mut data, bytes, 0) }
            });
            made.map_err(|error| refused(error, &format!("{what} in page-locked memory"), bytes))?;
            // SAFETY: `bytes` bytes were allocated.
            unsafe { std::ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        }
        Ok(Self { device: device.clone(), data: data.cast(), bytes, done })
    }

    /// Enqueues `copy` on `stream` with a pointer to the bytes of `range`, and holds them until it is done.
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
            // Only the stream itself can tell now when the copy is done.
            stream.synchronize()?;
            return Err(error);
        }
        Ok(Copying(self))
    }
}

impl Buffer {
    /// Enqueues a copy of bytes `range` of `from` to the buffer, from byte `at` on.
    pub fn write_from(
        &self,
        stream: &Stream,
        at: usize,
        from: Pinned,
        range: Range<usize>,
    ) -> Result<Copying> {
        let (to, bytes) = (self.part(at..at.saturating_add(range.len()))?, range.len());
        // SAFETY: both ranges were checked; `Copying` keeps the host's bytes, and buffers are freed only after the
        // work of all streams.
        from.lend(stream, range, |from| unsafe {
            (self.device.driver.write)(to, from.cast_const(), bytes, stream.handle)
        })
    }

    /// Enqueues a copy of the buffer from byte `at` on to bytes `range` of `to`.
    pub fn read_to(&self, stream: &Stream, at: usize, to: Pinned, range: Range<usize>) -> Result<Copying> {
        let (from, bytes) = (self.part(at..at.saturating_add(range.len()))?, range.len());
        // SAFETY: as in `write_from`.
        to.lend(stream, range, |to| unsafe { (self.device.driver.read)(to, from, bytes, stream.handle) })
    }
}

impl Copying {
    /// Whether the copy is done, so that `wait` returns at once.
    pub fn is_done(&self) -> Result<bool> {
        self.0.done.is_done()
    }

    /// Waits for the copy, but not for later work of the stream.
    pub fn wait(self) -> Result<Pinned> {
        self.0.done.wait()?;
        Ok(self.0)
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialized by `new`, and no device writes to them now: `Copying` would have them.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
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
