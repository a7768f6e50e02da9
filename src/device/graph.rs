//! Graphs: recorded work of a stream that one call launches again.

use super::driver::Handle;
use super::open::Device;
use super::stream::Stream;
use crate::base::Result;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: calls of other threads do not disturb a capture.
const OF_THREAD: i32 = 1;

/// Records the work that its stream gets, which does not run, until it ends. Calls of this thread that would wait,
/// allocate or free fail during a capture, and then `end` fails too.
pub struct Capture<'a> {
    stream: &'a Stream,
    open: bool,
    /// The thread that began a capture must end it.
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
    /// Ends the capture and returns its graph, with all memory that the graph needs. `OutOfMemory`.
    pub fn end(mut self) -> Result<Graph> {
        let (graph, device) = (self.close()?, self.stream.device().clone());
        let mut handle = std::ptr::null_mut();
        let made = device.run("a graph", || {
            // SAFETY: a handle to write, and the graph, which is not used afterwards.
            unsafe {
                let code = (device.driver.instantiate)(&mut handle, graph, 0);
                (device.driver.destroy_graph)(graph);
                code
            }
        });
        made?;
        let (graph, stream) = (Graph { device, handle }, self.stream.handle);
        // Upload the graph now. Otherwise the first launch would do it, and a lack of memory would fail a
        // step.
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
            // SAFETY: the graph has no other holder.
            let _ = device.run("a graph", || unsafe { (device.driver.destroy_graph)(graph) });
        }
    }
}

/// A captured graph that can be launched.
pub struct Graph {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: any thread may use it, but only one at a time: `launch` takes it exclusively.
unsafe impl Send for Graph {}
// SAFETY: a shared reference allows nothing.
unsafe impl Sync for Graph {}

impl Graph {
    /// Enqueues the captured work on `stream`, with the arguments of the capture. It begins when the graph's
    /// previous launch is done.
    ///
    /// # Safety
    /// The contract of `Function::launch` holds for all captured launches, and nothing that they use, kernels
    /// included, has been freed since.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<()> {
        self.device.run("a graph", || {
            // SAFETY: guaranteed by the caller; both are live.
            unsafe { (self.device.driver.launch_graph)(self.handle, stream.handle) }
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it has no holder any more. The driver keeps it until its last launch is done.
        let _ =
            self.device.run("a graph", || unsafe { (self.device.driver.destroy_executable)(self.handle) });
    }
}
