//! Streams, which order the work on a device, and events, which are points in that order.

use super::driver::{Handle, NOT_READY, SUCCESS};
use super::open::Device;
use crate::base::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// CU_STREAM_NON_BLOCKING: it does not wait for the default stream, which other code of this process may use.
const NON_BLOCKING: u32 = 1;
/// CU_EVENT_DISABLE_TIMING: timing would make events slower.
const NO_TIMING: u32 = 2;

/// Work of a device that runs in order, concurrently with the host.
pub struct Stream {
    device: Arc<Device>,
    pub(super) handle: Handle,
    pub(super) captured: AtomicBool,
}

// SAFETY: any thread may use a stream; the driver has locks of its own.
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

    /// Waits until all its work is done. Errors of that work appear here at the latest.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a live stream.
        self.device.run("a step on the device", || unsafe { (self.device.driver.synchronize)(self.handle) })
    }

    /// Makes all later work of this stream wait for the work before `event`.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.device.run("an event", || {
            // SAFETY: a live stream and a live event.
            unsafe { (self.device.driver.wait_for)(self.handle, event.handle, 0) }
        })
    }

    /// Refuses copies from or to the host during a capture: each launch of the graph would repeat the copy,
    /// and the host's memory may have another owner by then.
    pub(super) fn copies_for_host(&self) -> Result<()> {
        match self.captured.load(Ordering::Relaxed) {
            true => Err(Error::internal("a copy to or from the host within a capture")),
            false => Ok(()),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it has no holder any more. The driver destroys it when its work is done.
        let _ = self.device.run("a stream", || unsafe { (self.device.driver.destroy_stream)(self.handle) });
    }
}

/// A point in a stream's work. An event that was never recorded is done.
pub struct Event {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as for `Stream`.
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

    /// Moves the event after all work that `stream`, of the same device, has been given so far.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.device.run("an event", || {
            // SAFETY: a live event and a live stream.
            unsafe { (self.device.driver.record)(self.handle, stream.handle) }
        })
    }

    /// Waits until the work before it is done. Errors of that work may appear here.
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
        // SAFETY: it has no holder any more; streams that wait for it keep waiting without it.
        let _ = self.device.run("an event", || unsafe { (self.device.driver.destroy_event)(self.handle) });
    }
}
