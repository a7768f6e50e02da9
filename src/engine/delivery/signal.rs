//! The descriptor that an event loop waits on: readable while set.

use crate::base::{Error, Result, Status};
use crate::engine::hub::Readable;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An eventfd on Linux, a pipe elsewhere; non-blocking, close-on-exec. Callers serialize `set` and `clear`.
pub struct Signal {
    read: OwnedFd,
    #[cfg(not(target_os = "linux"))]
    write: OwnedFd,
}

fn failed(what: &str) -> Error {
    Error::new(
        Status::Io,
        format!("could not make the wait descriptor ({what}): {}", io::Error::last_os_error()),
    )
}

impl Signal {
    #[cfg(target_os = "linux")]
    pub fn new() -> Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(failed("eventfd"));
        }
        // SAFETY: fd is open and has no other owner.
        Ok(Self { read: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    #[cfg(not(target_os = "linux"))]
    pub fn new() -> Result<Self> {
        let mut fds = [0; 2];
        // SAFETY: `fds` has room for the two descriptors that pipe writes.
        if unsafe { libc::pipe(fds.as_mut_ptr()) } != 0 {
            return Err(failed("pipe"));
        }
        // SAFETY: both are open and have no other owner.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        for fd in fds {
            // SAFETY: flags of our own open descriptors.
            let ok = unsafe {
                libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) == 0
                    && libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) == 0
            };
            if !ok {
                return Err(failed("fcntl"));
            }
        }
        Ok(Self { read, write })
    }

    fn write_end(&self) -> RawFd {
        #[cfg(target_os = "linux")]
        return self.read.as_raw_fd();
        #[cfg(not(target_os = "linux"))]
        return self.write.as_raw_fd();
    }

    pub fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }
}

impl Readable for Signal {
    fn set(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `one` is 8 readable bytes. A full pipe or counter (EAGAIN) is readable already.
        unsafe { libc::write(self.write_end(), one.as_ptr().cast(), one.len()) };
    }

    fn clear(&self) {
        let mut sink = [0u8; 8];
        // SAFETY: `sink` is 8 writable bytes; the descriptor does not block.
        unsafe { libc::read(self.fd(), sink.as_mut_ptr().cast(), sink.len()) };
    }
}
