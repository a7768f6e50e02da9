//! Turns panics into errors. Nothing is printed: the hook keeps the text for `catch`.

use super::error::{Error, Status};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Threads that call this at the same time may install the hook twice, which does no harm. A lock could stay held
/// after a fork.
fn install_hook() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.load(Ordering::Acquire) {
        return;
    }
    let previous = take_hook();
    set_hook(Box::new(move |info| {
        if DEPTH.get() == 0 {
            return previous(info);
        }
        let text = info.to_string();
        TEXT.with(|slot| *slot.borrow_mut() = text);
    }));
    INSTALLED.store(true, Ordering::Release);
}

/// Runs `f`. If it panics, returns the message with file and line.
pub fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    install_hook();
    DEPTH.set(DEPTH.get() + 1);
    // The caller drops the state that `f` leaves, or marks it as failed.
    let result = catch_unwind(AssertUnwindSafe(f));
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|_| TEXT.with(|slot| std::mem::take(&mut *slot.borrow_mut())))
}

/// Runs `f`. If it panics, the error says that `what` did; see `Error::failed`.
pub fn checked<T>(what: &str, f: impl FnOnce() -> super::error::Result<T>) -> super::error::Result<T> {
    catch(f).unwrap_or_else(|text| Err(Error::failed(Status::Internal, format!("{what} panicked: {text}"))))
}

/// Continues a panic that was caught on another thread, with its text and without running the hook again.
pub fn resume(text: String) -> ! {
    TEXT.with(|slot| *slot.borrow_mut() = text);
    resume_unwind(Box::new(()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_comes_back_as_text_with_its_place() {
        let text = super::catch(|| panic!("boom {}", 7)).unwrap_err();
        assert!(text.contains("boom 7") && text.contains("panics.rs"), "{text}");
        assert_eq!(super::catch(|| super::resume("from afar".into())).unwrap_err(), "from afar");
        assert_eq!(super::catch(|| 5).unwrap(), 5);
    }
}
