//! A flag that the host's event loop waits on: an event with manual reset.

use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::null;
use windows_sys::Win32::Foundation::WAIT_OBJECT_0;
use windows_sys::Win32::System::Threading::{CreateEventW, ResetEvent, SetEvent, WaitForSingleObject};

/// Child processes do not inherit it. Callers serialize `set` and `clear`.
pub struct Event(OwnedHandle);

impl Event {
    pub fn new() -> io::Result<Self> {
        let (by_hand, set) = (1, 0);
        // SAFETY: no name and no attributes; the result is checked.
        let handle = unsafe { CreateEventW(null(), by_hand, set, null()) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is open and has no other owner.
        Ok(Self(unsafe { OwnedHandle::from_raw_handle(handle) }))
    }

    pub fn set(&self) {
        // SAFETY: our own event.
        unsafe { SetEvent(self.0.as_raw_handle()) };
    }

    pub fn clear(&self) {
        // SAFETY: our own event.
        unsafe { ResetEvent(self.0.as_raw_handle()) };
    }

    pub fn is_set(&self) -> bool {
        // SAFETY: our own event; the call does not wait.
        unsafe { WaitForSingleObject(self.0.as_raw_handle(), 0) == WAIT_OBJECT_0 }
    }

    /// None: Windows has no descriptors.
    pub fn descriptor(&self) -> Option<i32> {
        None
    }

    /// The handle to pass to WaitForMultipleObjects.
    pub fn handle(&self) -> Option<*mut c_void> {
        Some(self.0.as_raw_handle())
    }
}
