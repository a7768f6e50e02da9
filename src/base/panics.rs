//! Panics become errors. Nothing is printed: the hook keeps the text for whoever catches it.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Two threads that come here at once install it twice, which does no harm; a lock would outlive a fork.
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

/// Runs `f`; a panic in it comes back as its message with file and line.
pub fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    install_hook();
    DEPTH.set(DEPTH.get() + 1);
    // What `f` leaves behind is dropped or marked failed by the caller.
    let result = catch_unwind(AssertUnwindSafe(f));
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|_| TEXT.with(|slot| std::mem::take(&mut *slot.borrow_mut())))
}

/// Carries a panic caught on another thread on, with its text, without running the hook again.
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
