//! The order of what is done on a device, and points in it.

use super::driver::{Handle, NOT_READY, SUCCESS};
use super::open::Device;
use crate::base::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// CU_STREAM_NON_BLOCKING: it does not wait for the stream that other users of this process may have.
const NON_BLOCKING: u32 = 1;
/// CU_EVENT_DISABLE_TIMING, which would make it slower.
const NO_TIMING: u32 = 2;

/// A device's work in order. What is given to it runs beside the host.
pub struct Stream {
    device: Arc<Device>,
    pub(super) handle: Handle,
    pub(super) captured: AtomicBool,
}

// SAFETY: a stream is used by any thread; the driver has locks of its own.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        device.run("a stream", || {
            // SAFETY: a handle to write.
            unsafe { (device.driver.stream)(&mut handle, NON_BLOCKING) }
        })?;
        Ok(Self { device: device.clone(), handle, captured: AtomicBool::new(false) })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Waits until all that was given to it is done. What went wrong with it comes out here, at the latest.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a live stream.
        self.device.run("a step on the device", || unsafe { (self.device.driver.synchronize)(self.handle) })
    }

    /// What is given to it from now on waits for what `event` was recorded behind.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.device.run("an event", || {
            // SAFETY: a live stream and a live event.
            unsafe { (self.device.driver.wait_for)(self.handle, event.handle, 0) }
        })
    }

    /// A graph would copy again at each launch, whoever has the host's memory then.
    pub(super) fn copies_for_host(&self) -> Result<()> {
        match self.captured.load(Ordering::Relaxed) {
            true => Err(Error::internal("a copy to or from the host within a capture")),
            false => Ok(()),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more. The driver ends it when its work is done.
        let _ = self.device.run("a stream", || unsafe { (self.device.driver.destroy_stream)(self.handle) });
    }
}

/// A point in a stream's work. One that was never recorded is done.
pub struct Event {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: as of `Stream`.
unsafe impl Send for Event {}
// SAFETY: as of `Stream`.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        device.run("an event", || {
            // SAFETY: a handle to write.
            unsafe { (device.driver.event)(&mut handle, NO_TIMING) }
        })?;
        Ok(Self { device: device.clone(), handle })
    }

    /// From now on it stands behind all that `stream`, of the same device, has been given.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.device.run("an event", || {
            // SAFETY: a live event and a live stream.
            unsafe { (self.device.driver.record)(self.handle, stream.handle) }
        })
    }

    /// Waits until the work before it is done. What went wrong with that may come out here.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: a live event.
        self.device.run("a step on the device", || unsafe { (self.device.driver.wait)(self.handle) })
    }

    /// Whether the work before it is done.
    pub fn is_done(&self) -> Result<bool> {
        let mut done = true;
        self.device.run("a step on the device", || {
            // SAFETY: a live event.
            match unsafe { (self.device.driver.query)(self.handle) } {
                NOT_READY => {
                    done = false;
                    SUCCESS
                }
                code => code,
            }
        })?;
        Ok(done)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more; a stream that waits for it does so without it.
        let _ = self.device.run("an event", || unsafe { (self.device.driver.destroy_event)(self.handle) });
    }
}
