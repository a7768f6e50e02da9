//! Commands from any thread to the engine thread, and how it sleeps.
//!
//! A producer pushes, then takes the gate; the consumer takes the gate, then looks whether the queue is empty:
//! whoever takes it second sees what the other did, so no wakeup is lost (hub_loom.rs).

use crate::base::sync::{Condvar, Mutex, Queue};
use std::time::Duration;

pub struct Inbox<T> {
    queue: Queue<T>,
    sleeping: Mutex<bool>,
    bell: Condvar,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { queue: Queue::new(), sleeping: Mutex::new(false), bell: Condvar::new() }
    }
}

impl<T> Inbox<T> {
    pub fn push(&self, item: T) {
        self.queue.push(item);
        if std::mem::take(&mut *self.sleeping.lock()) {
            self.bell.notify_one();
        }
    }

    pub fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// Consumer only: returns when something was pushed, after `timeout`, or for no reason.
    pub fn wait(&self, timeout: Option<Duration>) {
        let mut sleeping = self.sleeping.lock();
        if !self.queue.is_empty() {
            return;
        }
        *sleeping = true;
        match timeout {
            Some(timeout) => {
                let _ = self.bell.wait_for(&mut sleeping, timeout);
            }
            None => self.bell.wait(&mut sleeping),
        }
        *sleeping = false;
    }
}
