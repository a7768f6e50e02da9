//! The operating system: everything that Unix and Windows have each in their own way. Both folders have the same names,
//! so that no other file of the library asks which system it runs on.

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub use unix::*;

#[cfg(windows)]
mod windows;
#[cfg(windows)]
pub use windows::*;

#[cfg(not(any(unix, windows)))]
compile_error!("bn_engine knows Unix and Windows");
