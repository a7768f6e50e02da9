//! SIGINT, or Ctrl-C in a console.
use std::io::{Write, stderr};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that SIGINT ended.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Set by a SIGINT until it is taken. A second SIGINT in that time ends the program, which may hang.
#[derive(Clone)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn install() -> Result<Self, ctrlc::Error> {
        let set = Arc::new(AtomicBool::new(false));
        let stop = Self(set.clone());
        ctrlc::set_handler(move || {
            if set.swap(true, Ordering::SeqCst) {
                _ = writeln!(stderr());
                exit(EXIT_INTERRUPTED.into());
            }
        })?;
        Ok(stop)
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }

    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }
}
