//! An allocator that counts the bytes of the whole process: for test files of one test.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

struct Counting;

/// Bytes held now, and their maximum since `LIVE` was stored there.
pub static LIVE: AtomicUsize = AtomicUsize::new(0);
pub static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Allocations.
pub static CALLS: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    CALLS.fetch_add(1, SeqCst);
    PEAK.fetch_max(LIVE.fetch_add(bytes, SeqCst) + bytes, SeqCst);
}

// SAFETY: every call goes to the system's allocator with its arguments; besides, only atomics are touched. The
// default realloc comes through these. `alloc_zeroed` is the system's, so that large zeros stay untouched pages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
