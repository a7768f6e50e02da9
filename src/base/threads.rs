//! Threads that do not disturb a host: they have names, and block all signals.

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
    let builder = Builder::new().stack_size(bytes).name(name.into());
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

/// Calls `spawn` such that the thread that it starts has all signals blocked.
fn deaf<T>(spawn: impl FnOnce() -> T) -> T {
    // Miri has no signals.
    #[cfg(miri)]
    let handle = spawn();
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask fill before it is read; the mask of the
    // calling thread is restored right after the new thread has inherited the full one.
    #[cfg(not(miri))]
    let handle = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let handle = spawn();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        handle
    };
    handle
}
