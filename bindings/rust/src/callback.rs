//! Wraps every closure that the library calls: no panic leaves it, and the thread is marked as inside a
//! callback.
use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread runs a callback of the library, where nothing may wait for it.
pub(crate) fn inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

/// Runs a callback's body. None: it panicked.
pub(crate) fn run<R>(body: impl FnOnce() -> R) -> Option<R> {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let result = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // The payload may panic too when it is dropped. That second payload is leaked.
            mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
            None
        }
    };
    DEPTH.with(|depth| depth.set(depth.get() - 1));
    result
}

#[cfg(test)]
mod tests {
    use super::{inside, run};
    use std::panic::resume_unwind;

    struct Again;

    impl Drop for Again {
        fn drop(&mut self) {
            resume_unwind(Box::new(()));
        }
    }

    #[test]
    fn panics_stay_inside() {
        assert_eq!(run(|| (inside(), run(inside))), Some((true, Some(true))));
        assert_eq!(run(|| -> u32 { resume_unwind(Box::new(1)) }), None);
        assert_eq!(run(|| -> u32 { resume_unwind(Box::new(Again)) }), None);
        assert!(!inside());
    }
}
