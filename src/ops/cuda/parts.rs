//! Reuses device memory of dropped results for later ones.

use super::launch::{Arg, Queue};
use crate::base::sync::Mutex;
use crate::base::{Error, Result, reserve};
use crate::device::Buffer;
use std::sync::Arc;

/// Free memory of one queue's results. Kernels launched earlier may still read memory that was returned. Kernels that
/// write to it next run after them.
#[derive(Default)]
pub(super) struct Parts(Mutex<Free>);

#[derive(Default)]
struct Free {
    rows: usize,
    outputs: usize,
    buffers: Vec<Arc<Buffer>>,
    /// Counts how often some of it was freed.
    generation: u64,
}

/// `[rows, columns]` f32, or bytes, on a device.
pub(super) struct Part {
    pub dims: [usize; 2],
    /// `None` if there are no bytes, or if only a graph knows their address.
    buffer: Option<Arc<Buffer>>,
    queue: Arc<Queue>,
    parts: Arc<Parts>,
}

/// Sizes are rounded up to a multiple of this, so that similar sizes share memory.
const GRAIN: usize = 4096;

impl Parts {
    /// Begins a step of `rows` rows, `outputs` of which are wanted. If either exceeds all earlier steps, frees the
    /// kept buffers, which are too small now.
    pub(super) fn begin(&self, queue: &Queue, rows: usize, outputs: usize) -> Result<()> {
        let mut free = self.0.lock();
        if rows > free.rows || outputs > free.outputs {
            // The driver may wait until no work uses them, but need not.
            queue.stream.synchronize()?;
            free.buffers.clear();
            free.generation += 1;
            (free.rows, free.outputs) = (free.rows.max(rows), free.outputs.max(outputs));
        }
        Ok(())
    }

    pub(super) fn generation(&self) -> u64 {
        self.0.lock().generation
    }

    fn take(&self, queue: &Queue, bytes: usize) -> Result<Arc<Buffer>> {
        let mut free = self.0.lock();
        let fits = (0..free.buffers.len()).filter(|i| free.buffers[*i].len() >= bytes);
        match fits.min_by_key(|i| free.buffers[*i].len()) {
            Some(best) => Ok(free.buffers.swap_remove(best)),
            None => {
                let bytes = bytes.next_multiple_of(GRAIN);
                Buffer::new(&queue.opened.device, bytes, "a step's results").map(Arc::new)
            }
        }
    }
}

impl Part {
    /// `[rows, columns]` f32 with unspecified contents.
    pub(super) fn new(queue: &Arc<Queue>, parts: &Arc<Parts>, rows: usize, columns: usize) -> Result<Self> {
        Self::of_bytes(queue, parts, rows * columns * size_of::<f32>(), [rows, columns])
    }

    /// `bytes` bytes with unspecified contents.
    pub(super) fn bytes(queue: &Arc<Queue>, parts: &Arc<Parts>, bytes: usize) -> Result<Self> {
        Self::of_bytes(queue, parts, bytes, [1, bytes / size_of::<f32>()])
    }

    fn of_bytes(queue: &Arc<Queue>, parts: &Arc<Parts>, bytes: usize, dims: [usize; 2]) -> Result<Self> {
        let buffer = if bytes == 0 || queue.leaves() { None } else { Some(parts.take(queue, bytes)?) };
        Ok(Self { dims, buffer, queue: queue.clone(), parts: parts.clone() })
    }

    /// Address of the first byte; 0 if there is none.
    pub(super) fn address(&self) -> Result<u64> {
        self.buffer.as_ref().map_or(Ok(0), |buffer| buffer.address(0))
    }

    /// The address as a kernel argument.
    pub(super) fn arg(&self) -> Result<Arg> {
        self.address().map(Arg::from)
    }

    pub(super) fn buffer(&self) -> Option<&Arc<Buffer>> {
        self.buffer.as_ref()
    }

    /// Refuses a result of another shape.
    pub(super) fn check(&self, what: &str, dims: [usize; 2]) -> Result<&Self> {
        match self.dims == dims {
            true => Ok(self),
            false => Err(Error::internal(format!("{what}: {dims:?} is needed, this is {:?}", self.dims))),
        }
    }

    /// Waits for the elements and copies them to the host.
    pub(super) fn copy_to(&self, out: &mut Vec<f32>) -> Result<()> {
        let [rows, columns] = self.dims;
        let out = grown(out, rows * columns)?;
        match &self.buffer {
            Some(buffer) => read(&self.queue, buffer, [0, rows], columns, out),
            None if out.is_empty() => Ok(()),
            None => Err(Error::internal("a result that only a graph has")),
        }
    }
}

/// Resizes `out` to `len` and returns it; the contents are unspecified. `OutOfMemory`.
pub(super) fn grown(out: &mut Vec<f32>, len: usize) -> Result<&mut [f32]> {
    let more = len.saturating_sub(out.len());
    reserve(out, more, "a step's outputs")?;
    out.resize(len, 0.0);
    Ok(out)
}

/// Waits for rows `from..to` of `columns` columns and copies them to the host.
pub(super) fn read(
    queue: &Queue,
    buffer: &Buffer,
    [from, to]: [usize; 2],
    columns: usize,
    out: &mut [f32],
) -> Result<()> {
    if out.len() != (to - from) * columns {
        return Err(Error::internal("a result of another shape"));
    }
    // SAFETY: floats have no padding, and any bytes are valid floats.
    let bytes = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), size_of_val(out)) };
    buffer.read(&queue.stream, from * columns * size_of::<f32>(), bytes)
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.parts.0.lock().buffers.push(buffer);
        }
    }
}
