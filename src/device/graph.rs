//! What a stream was given, kept to be given again by one call.

use super::driver::Handle;
use super::open::Device;
use super::stream::Stream;
use crate::base::Result;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads call meanwhile is their own concern.
const OF_THREAD: i32 = 1;

/// While it lives, what its stream is given is recorded, not done. Calls of the same thread that would wait, or that allocate
/// or free, fail then, and `end` after them.
pub struct Capture<'a> {
    stream: &'a Stream,
    open: bool,
    /// The thread that began it ends it.
    _thread: PhantomData<*mut ()>,
}

impl Stream {
    pub fn capture(&self) -> Result<Capture<'_>> {
        let device = self.device();
        device.run("a graph", || {
            // SAFETY: a live stream.
            unsafe { (device.driver.begin_capture)(self.handle, OF_THREAD) }
        })?;
        self.captured.store(true, Ordering::Relaxed);
        Ok(Capture { stream: self, open: true, _thread: PhantomData })
    }
}

impl Capture<'_> {
    /// The graph, with all memory that it needs. `OutOfMemory`.
    pub fn end(mut self) -> Result<Graph> {
        let (graph, device) = (self.close()?, self.stream.device().clone());
        let mut handle = std::ptr::null_mut();
        let made = device.run("a graph", || {
            // SAFETY: a handle to write, and the graph, which is not needed after it.
            unsafe {
                let code = (device.driver.instantiate)(&mut handle, graph, 0);
                (device.driver.destroy_graph)(graph);
                code
            }
        });
        made?;
        let (graph, stream) = (Graph { device, handle }, self.stream.handle);
        // Else the first launch would, where a lack of memory is a step's failure.
        graph.device.run("a graph", || {
            // SAFETY: both are live.
            unsafe { (graph.device.driver.upload_graph)(handle, stream) }
        })?;
        Ok(graph)
    }

    fn close(&mut self) -> Result<Handle> {
        let (device, mut graph) = (self.stream.device(), std::ptr::null_mut());
        self.open = false;
        self.stream.captured.store(false, Ordering::Relaxed);
        device.run("a graph", || {
            // SAFETY: a live stream, and a handle to write.
            unsafe { (device.driver.end_capture)(self.stream.handle, &mut graph) }
        })?;
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if let Ok(graph) = self.close() {
            let device = self.stream.device();
            // SAFETY: nobody else has it.
            let _ = device.run("a graph", || unsafe { (device.driver.destroy_graph)(graph) });
        }
    }
}

/// A capture that can be launched.
pub struct Graph {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: used by one thread at a time, whichever: `launch` takes it for itself.
unsafe impl Send for Graph {}
// SAFETY: a shared one can do nothing.
unsafe impl Sync for Graph {}

impl Graph {
    /// Gives `stream` what was captured, with the arguments of then. It begins when the graph's last launch is done.
    ///
    /// # Safety
    /// As of `Function::launch`, for all launches that were captured; what they use, kernels too, has not been freed since.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<()> {
        self.device.run("a graph", || {
            // SAFETY: the caller's; both are live.
            unsafe { (self.device.driver.launch_graph)(self.handle, stream.handle) }
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more. The driver keeps it until its last launch is done.
        let _ =
            self.device.run("a graph", || unsafe { (self.device.driver.destroy_executable)(self.handle) });
    }
}
