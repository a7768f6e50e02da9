//! Windows.

pub mod clock;
mod event;
#[cfg(target_env = "gnu")]
mod fma;
pub mod memory;

pub use event::Event;

use std::ffi::{CStr, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::null_mut;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_REPARSE_POINT, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT,
    SECURITY_IDENTIFICATION,
};
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExA,
};
use windows_sys::Win32::System::Memory::VirtualUnlock;
use windows_sys::Win32::System::Threading::{
    GetCurrentThread, SetThreadPriority, THREAD_PRIORITY_BELOW_NORMAL,
};

/// Opens a file for reading. A folder opens too, so that errors can say that it is one. If `path` is a named pipe,
/// its server may identify this process but not impersonate it.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, FILE_FLAG_BACKUP_SEMANTICS)
}

/// Like `open`, but follows no link at the end of `path`, so that the file that is opened is the one that was checked.
/// A link is opened itself, and is not a regular file. Other reparse points are files that a driver keeps elsewhere.
pub fn open_no_link(path: &Path) -> io::Result<File> {
    let file = open_with(path, FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)?;
    let stat = file.metadata()?;
    match stat.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0 && !stat.is_symlink() {
        true => open(path),
        false => Ok(file),
    }
}

fn open_with(path: &Path, flags: u32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags).security_qos_flags(SECURITY_IDENTIFICATION).open(path)
}

/// Windows has no descriptors, and those of one C runtime are invalid in another.
///
/// # Safety There are no requirements.
pub unsafe fn duplicate(_fd: i32) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Releases the pages that are wholly within `start..start + len`, and perhaps those at its ends. A later read fetches
/// them again.
///
/// # Safety
/// The range belongs to a private read-only mapping of a file.
pub unsafe fn release_pages(start: *const u8, len: usize) {
    // SAFETY: pages that were never locked leave the working set; what they hold does not change. A failure, which is
    // the usual answer for unlocked pages, does no harm.
    unsafe { VirtualUnlock(start.cast(), len) };
}

/// There are no signals.
pub fn deaf<T>(spawn: impl FnOnce() -> T) -> T {
    spawn()
}

/// Lets other threads go first where there are too few processors.
pub fn lower_priority() {
    // SAFETY: the handle stands for the calling thread. A failure leaves it as it is.
    unsafe { SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_BELOW_NORMAL) };
}

/// There is no fork.
pub fn at_fork(_before: extern "C" fn(), _in_parent: extern "C" fn(), _in_child: extern "C" fn()) {}

/// There is no cancellation.
pub struct Uncancelled;

impl Uncancelled {
    pub fn begin() -> Self {
        Self
    }
}

/// Requests permission for this process to use matrix tiles (AMX). Not tested on Windows.
pub fn permit_tiles() -> bool {
    false
}

/// The library of NVIDIA's driver.
pub const NVIDIA_DRIVER: &str = "nvcuda.dll";

/// Opens a system library, which is never closed. The error says why that failed.
///
/// # Safety
/// The code that the library runs when it is loaded is sound.
pub unsafe fn open_library(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a terminated name, and the caller's promise.
    let library = unsafe { LoadLibraryExA(name.as_ptr().cast(), null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32) };
    match library.is_null() {
        false => Ok(library),
        true => Err(format!("{}: {}", name.to_string_lossy(), io::Error::last_os_error())),
    }
}

/// Address of a library's symbol, or NULL.
///
/// # Safety
/// `library` is from `open_library`.
pub unsafe fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the caller's promise, and a terminated name.
    let found = unsafe { GetProcAddress(library, name.as_ptr().cast()) };
    found.map_or(null_mut(), |function| function as *mut c_void)
}

#[cfg(test)]
mod tests;
