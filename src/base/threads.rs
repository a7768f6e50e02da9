//! Threads that a host never notices: named, and deaf to its signals.

use super::{Error, Result, Status, panics};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Starts a thread with every signal blocked, so that the host's handlers run on the host's threads.
pub fn spawn<F: FnOnce() + Send + 'static>(name: String, f: F) -> Result<JoinHandle<()>> {
    start(Builder::new(), name, f)
}

/// Runs `f` on a thread with a stack of `bytes` and waits for it: for recursion that a host's thread may have no room
/// for. `Internal` where it panics.
pub fn run_on_stack<T, F>(name: &str, bytes: usize, f: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let result = Arc::new(Mutex::new(None));
    let to = result.clone();
    let thread = start(Builder::new().stack_size(bytes), name.into(), move || {
        let made = panics::catch(f);
        *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
    })?;
    let _ = thread.join();
    let made = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    made.unwrap_or_else(|| Err("it ended early".into()))
        .map_err(|panic| Error::internal(format!("thread {name}: {panic}")))
}

fn start<F: FnOnce() + Send + 'static>(builder: Builder, name: String, f: F) -> Result<JoinHandle<()>> {
    // Miri has no signals.
    #[cfg(miri)]
    let handle = builder.name(name.clone()).spawn(f);
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask fill before it is read; the mask of the
    // calling thread is put back right after the new thread has inherited the full one.
    #[cfg(not(miri))]
    let handle = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let handle = builder.name(name.clone()).spawn(f);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        handle
    };
    handle.map_err(|e| Error::new(Status::OutOfMemory, format!("could not start thread {name}: {e}")))
}
