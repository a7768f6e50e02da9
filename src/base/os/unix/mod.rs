//! Linux, macOS and their relatives.

pub mod clock;
mod event;
pub mod memory;

pub use event::Event;

use std::ffi::{CStr, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file for reading. A FIFO does not wait for a writer; on regular files the flag has no effect.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Like `open`, but follows no link at the end of `path`, so that the file that is opened is the one that was
/// checked.
pub fn open_no_link(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)
}

/// Duplicates the descriptor of a file that a host has open.
///
/// # Safety `fd` is an open descriptor. A closed one is an error, unless another thread reuses its number
/// meanwhile.
pub unsafe fn duplicate(fd: i32) -> io::Result<File> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map(File::from)
}

/// Releases the pages that are wholly within `start..start + len`. A later read fetches them again.
///
/// # Safety
/// The range belongs to a private read-only mapping of a file.
pub unsafe fn release_pages(start: *const u8, len: usize) {
    // SAFETY: no pointers; sysconf returns -1 for a name that it does not know.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok();
    let Some(page) = page.filter(|n| n.is_power_of_two()) else { return };
    let end = (start as usize + len) / page * page;
    let start = (start as usize).next_multiple_of(page);
    if start < end {
        // SAFETY: whole pages of the mapping, whose contents are the file's before and after. A failure leaves them
        // resident, which does no harm.
        unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// Calls `spawn` such that the thread that it starts has all signals blocked: the host's signal handlers run on the
/// host's threads.
pub fn deaf<T>(spawn: impl FnOnce() -> T) -> T {
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

/// Lets other threads go first where there are too few processors. A system that refuses runs the thread as before.
pub fn lower_priority() {
    // SAFETY (both): no pointers. On Linux niceness is of the calling thread alone.
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
    unsafe {
        libc::nice(10);
    }
    #[cfg(target_vendor = "apple")]
    unsafe {
        libc::setpriority(libc::PRIO_DARWIN_THREAD, 0, libc::PRIO_DARWIN_BG);
    }
}

/// Registers handlers for every fork of this process: one runs in the parent before it, the others in the parent and
/// in the child after it.
pub fn at_fork(before: extern "C" fn(), in_parent: extern "C" fn(), in_child: extern "C" fn()) {
    // SAFETY: the handlers live as long as this object, because glibc drops the handlers of an object that dlclose
    // unloads. If registration fails (no memory), forks go undetected.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// Delays `pthread_cancel` of this thread until it is dropped. If a thread were cancelled while it waits in one of our
/// calls, it would unwind through frames that forbid unwinding, and abort the process.
pub struct Uncancelled(c_int);

impl Uncancelled {
    pub fn begin() -> Self {
        Self(set_cancel_state(if cfg!(target_vendor = "apple") { 0 } else { 1 }))
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        set_cancel_state(self.0);
    }
}

/// Returns the previous state.
#[cfg(not(any(miri, target_os = "android")))]
fn set_cancel_state(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    let mut old = state;
    // SAFETY: a state that exists, and a place for the old one.
    unsafe { pthread_setcancelstate(state, &mut old) };
    old
}

/// Miri and Android have no cancellation.
#[cfg(any(miri, target_os = "android"))]
fn set_cancel_state(state: c_int) -> c_int {
    state
}

/// Requests permission for this process to use matrix tiles (AMX).
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn permit_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: a system call with two numbers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn permit_tiles() -> bool {
    false
}

/// The library of NVIDIA's driver.
pub const NVIDIA_DRIVER: &str = "libcuda.so.1";

/// Opens a shared library, which is never closed. The error says why that failed.
///
/// # Safety
/// The code that the library runs when it is loaded is sound.
pub unsafe fn open_library(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a terminated name, and the caller's promise.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: dlerror returns NULL or a text that stays until this thread's next call.
    unsafe {
        let text = libc::dlerror();
        Err(if text.is_null() {
            "unknown".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        })
    }
}

/// Address of a library's symbol, or NULL.
///
/// # Safety
/// `library` is from `open_library`.
pub unsafe fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the caller's promise, and a terminated name.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}
