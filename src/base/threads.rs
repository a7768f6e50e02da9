//! Threads that a host never notices: named, and deaf to its signals.

use super::{Error, Result, Status};
use std::thread::{Builder, JoinHandle};

/// Starts a thread with every signal blocked, so that the host's handlers run on the host's threads.
pub fn spawn<F: FnOnce() + Send + 'static>(name: String, f: F) -> Result<JoinHandle<()>> {
    // Miri has no signals.
    #[cfg(miri)]
    let handle = Builder::new().name(name.clone()).spawn(f);
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask fill before it is read; the mask of the
    // calling thread is put back right after the new thread has inherited the full one.
    #[cfg(not(miri))]
    let handle = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let handle = Builder::new().name(name.clone()).spawn(f);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        handle
    };
    handle.map_err(|e| Error::new(Status::OutOfMemory, format!("could not start thread {name}: {e}")))
}
