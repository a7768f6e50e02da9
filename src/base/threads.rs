//! Threads that do not disturb a host: they have names, and block all signals.

use super::os::{deaf, lower_priority};
use super::{Error, Result, Status, panics};
use std::thread::{Builder, JoinHandle};

/// Starts a thread with all signals blocked, so that the host's signal handlers run on the host's threads.
pub fn spawn<F: FnOnce() + Send + 'static>(name: String, f: F) -> Result<JoinHandle<()>> {
    start(Builder::new(), name, f)
}

/// Like `spawn`, with a stack of `bytes` bytes.
pub fn spawn_on_stack<F: FnOnce() + Send + 'static>(
    name: String,
    bytes: usize,
    f: F,
) -> Result<JoinHandle<()>> {
    start(Builder::new().stack_size(bytes), name, f)
}

/// Runs `f` on a thread with a stack of `bytes` bytes and waits for it. For recursion that may be too deep for a
/// host's thread. `Internal` if `f` panics.
pub fn run_on_stack<T, F>(name: &str, bytes: usize, f: F) -> Result<T>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    run(Builder::new().stack_size(bytes), name, f)
}

/// Runs `f` on a thread of low priority and waits for it, so that it takes little of the processors from others' tokens.
/// `Internal` if `f` panics.
pub fn run_in_background<T, F>(name: &str, f: F) -> Result<T>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    run(Builder::new(), name, || {
        lower_priority();
        f()
    })
}

fn run<T, F>(builder: Builder, name: &str, f: F) -> Result<T>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    let builder = builder.name(name.into());
    let made = std::thread::scope(|scope| {
        let thread = deaf(|| builder.spawn_scoped(scope, || panics::catch(f)));
        let thread = thread.map_err(|e| not_started(name, &e))?;
        Ok(thread.join().unwrap_or_else(|_| Err("it ended early".into())))
    })?;
    made.map_err(|panic| Error::internal(format!("thread {name}: {panic}")))
}

fn start<F: FnOnce() + Send + 'static>(builder: Builder, name: String, f: F) -> Result<JoinHandle<()>> {
    deaf(|| builder.name(name.clone()).spawn(f)).map_err(|e| not_started(&name, &e))
}

fn not_started(name: &str, error: &std::io::Error) -> Error {
    Error::new(Status::OutOfMemory, format!("could not start thread {name}: {error}"))
}
