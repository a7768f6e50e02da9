//! The state that all operations on a device share: the stream, weights, memory.

use super::experts::Tables;
use super::graphs::{Graphs, Staging};
use super::inputs::Inputs;
use super::kernels::Kernels;
use super::launch::{Arg, Opened, Queue};
use super::lora::Loras;
use super::parts::{Part, Parts};
use super::weights::{Key, OnDevice, Vector, key_of};
use crate::base::Result;
use crate::base::sync::Mutex;
use crate::device::{DeviceFacts, Function};
use crate::kernels::{Matrix, Pool};
use std::collections::HashMap;
use std::sync::Arc;

/// An engine's operations on a device, with scratch memory for one forward pass at a time.
pub struct CudaOps {
    // Dropped first: graphs refer to kernels and to memory of the other fields.
    pub(super) graphs: Mutex<Graphs>,
    pub(super) staging: Mutex<Staging>,
    pub(super) inputs: Mutex<Inputs>,
    pub(super) held: Mutex<Held>,
    pub(super) loras: Mutex<Loras>,
    pub(super) parts: Arc<Parts>,
    /// Computes rotations.
    pub(super) pool: Arc<Pool>,
    pub(super) queue: Arc<Queue>,
}

impl Drop for CudaOps {
    /// A cancelled pass may still run, and a driver need not wait for it when memory is freed.
    fn drop(&mut self) {
        let _ = self.queue.stream.synchronize();
    }
}

/// This engine's weights on the device, by their address on the host.
#[derive(Default)]
pub(super) struct Held {
    pub(super) matrices: HashMap<Key, Arc<OnDevice>>,
    pub(super) vectors: HashMap<usize, Arc<Vector>>,
    /// By the key of the first expert's first matrix.
    pub(super) experts: HashMap<Key, Arc<Tables>>,
}

impl CudaOps {
    /// Operations on device `number`. `Unsupported` if there is no such device that we can use, or if this library
    /// was built without kernels for it.
    pub fn new(number: u32, pool: Arc<Pool>) -> Result<Self> {
        let queue = Queue::new(Opened::get(number)?)?;
        Ok(Self {
            queue,
            parts: Arc::default(),
            pool,
            inputs: Mutex::default(),
            held: Mutex::default(),
            loras: Mutex::default(),
            graphs: Mutex::default(),
            staging: Mutex::default(),
        })
    }

    pub fn facts(&self) -> &DeviceFacts {
        self.queue.opened.device.facts()
    }

    pub(super) fn kernels(&self) -> &Kernels {
        self.queue.kernels()
    }

    /// # Safety
    /// The contract of `Function::launch`.
    pub(super) unsafe fn launch(
        &self,
        function: &Function,
        blocks: [usize; 3],
        threads: usize,
        shared: usize,
        args: &[Arg],
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.queue.launch(function, blocks, threads, shared, args) }
    }

    /// Generation of the memory that graphs refer to. It changes when some of that memory moves.
    pub(super) fn generation(&self) -> u64 {
        self.inputs.lock().generation + self.parts.generation()
    }

    pub(super) fn part(&self, rows: usize, columns: usize) -> Result<Part> {
        Part::new(&self.queue, &self.parts, rows, columns)
    }

    pub(super) fn bytes(&self, bytes: usize) -> Result<Part> {
        Part::bytes(&self.queue, &self.parts, bytes)
    }

    pub(super) fn matrix(&self, matrix: &Matrix) -> Result<Arc<OnDevice>> {
        let Queue { opened, stream, .. } = &*self.queue;
        let mut held = self.held.lock();
        let key = key_of(matrix);
        if let Some(known) = held.matrices.get(&key) {
            return Ok(known.clone());
        }
        let made = opened.weights.matrix(opened, stream, &self.pool, matrix)?;
        held.matrices.insert(key, made.clone());
        Ok(made)
    }

    pub(super) fn vector(&self, vector: &Arc<[f32]>) -> Result<Arc<Vector>> {
        let Queue { opened, stream, .. } = &*self.queue;
        let mut held = self.held.lock();
        let key = vector.as_ptr() as usize;
        if let Some(known) = held.vectors.get(&key) {
            return Ok(known.clone());
        }
        let made = opened.weights.vector(opened, stream, vector)?;
        held.vectors.insert(key, made.clone());
        Ok(made)
    }
}
