//! A flag that the host's event loop waits on: a descriptor that is readable while it is set.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An eventfd on Linux, a pipe elsewhere; non-blocking, close-on-exec. Callers serialize `set` and `clear`.
pub struct Event {
    read: OwnedFd,
    #[cfg(not(target_os = "linux"))]
    write: OwnedFd,
}

impl Event {
    #[cfg(target_os = "linux")]
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd is open and has no other owner.
        Ok(Self { read: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    #[cfg(not(target_os = "linux"))]
    pub fn new() -> io::Result<Self> {
        let mut fds = [0; 2];
        // SAFETY: `fds` has room for the two descriptors that pipe writes.
        if unsafe { libc::pipe(fds.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
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
                return Err(io::Error::last_os_error());
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

    pub fn set(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `one` is 8 readable bytes. A full pipe or counter (EAGAIN) is readable already.
        unsafe { libc::write(self.write_end(), one.as_ptr().cast(), one.len()) };
    }

    pub fn clear(&self) {
        let mut sink = [0u8; 8];
        // SAFETY: `sink` is 8 writable bytes; the descriptor does not block.
        unsafe { libc::read(self.read.as_raw_fd(), sink.as_mut_ptr().cast(), sink.len()) };
    }

    pub fn is_set(&self) -> bool {
        let mut entry = libc::pollfd { fd: self.read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives here.
        unsafe { libc::poll(&mut entry, 1, 0) == 1 }
    }

    /// The descriptor to pass to poll and similar calls.
    pub fn descriptor(&self) -> Option<i32> {
        Some(self.read.as_raw_fd())
    }

    /// None: only Windows has handles.
    pub fn handle(&self) -> Option<*mut c_void> {
        None
    }
}
