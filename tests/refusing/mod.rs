//! An allocator that refuses one allocation, and processes that run with it: for a test file of one test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicUsize, Ordering::SeqCst};

struct Refusing;

static FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static TO: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Number of allocations of that size that succeed before the refused one.
static BEFORE: AtomicIsize = AtomicIsize::new(0);
static SIZE: AtomicUsize = AtomicUsize::new(0);
/// Backtrace of the refused allocation.
static PLACE: AtomicPtr<Backtrace> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    static CAPTURING: Cell<bool> = const { Cell::new(false) };
}

fn refuses(size: usize) -> bool {
    if size < FROM.load(SeqCst)
        || size > TO.load(SeqCst)
        || CAPTURING.get()
        || BEFORE.fetch_sub(1, SeqCst) != 0
    {
        return false;
    }
    CAPTURING.set(true);
    PLACE.store(Box::into_raw(Box::new(Backtrace::force_capture())), SeqCst);
    SIZE.store(size, SeqCst);
    CAPTURING.set(false);
    true
}

// SAFETY: every call goes to the system's allocator with its arguments, or returns null, which is always
// allowed. The default realloc comes through `alloc`.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static REFUSING: Refusing = Refusing;

pub fn disarm() {
    FROM.store(usize::MAX, SeqCst);
}

#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Survived,
    Error(String),
    Aborted,
    Signal(i32),
    Exit(i32),
}

pub struct Run {
    pub end: End,
    /// Size of the refused allocation; 0: there was none.
    pub size: usize,
    pub trace: String,
}

const ROOM: usize = 1 << 16;

/// Shared page on which a child reports to its parent.
#[repr(C)]
struct Page {
    size: usize,
    refused: bool,
    length: usize,
    text: [u8; ROOM],
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

fn write(refused: Option<&str>) {
    CAPTURING.set(true);
    let place = PLACE.load(SeqCst);
    // SAFETY: the page lives as long as the process; PLACE is null or never freed.
    unsafe {
        let page = &mut *PAGE.load(SeqCst);
        page.size = SIZE.load(SeqCst);
        let mut text = refused.map_or(String::new(), |text| format!("{text}\n"));
        page.refused = refused.is_some();
        if !place.is_null() {
            text += &format!("{}", *place);
        }
        page.length = text.len().min(ROOM);
        page.text[..page.length].copy_from_slice(&text.as_bytes()[..page.length]);
    }
}

extern "C" fn aborted(_: i32) {
    write(None);
    // SAFETY: ends the process.
    unsafe { libc::_exit(77) };
}

/// The standard library, the test itself, and hash tables: they allocate on behalf of others.
const OTHERS: [&str; 14] = [
    "alloc::",
    "core::",
    "std::",
    "hashbrown::",
    "ahash::",
    "test::",
    "alloc_refused::",
    "__rust",
    "__rdl",
    "F as ",
    "T as ",
    "I as ",
    "str",
    "&",
];

/// The functions that requested the allocation, innermost first, up to the library's second one.
fn asking(backtrace: &str) -> String {
    let frames = backtrace.lines().filter_map(|line| {
        let (number, name) = line.trim().split_once(": ")?;
        number.parse::<u32>().ok().map(|_| name)
    });
    let mut names = Vec::new();
    for name in
        frames.filter(|name| !OTHERS.iter().any(|other| name.trim_start_matches('<').starts_with(other)))
    {
        names.push(name);
        if names.iter().filter(|name| name.trim_start_matches('<').starts_with("bn_engine::")).count() == 2 {
            break;
        }
    }
    names.join(" < ")
}

pub fn run(sizes: RangeInclusive<usize>, n: usize, body: impl FnOnce() -> Option<String>) -> Run {
    use std::ptr::null_mut;
    // SAFETY: plain system calls; the child continues with only this thread and never returns.
    unsafe {
        if PAGE.load(SeqCst).is_null() {
            std::env::set_var("RUST_BACKTRACE", "0");
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            PAGE.store(libc::mmap(null_mut(), size_of::<Page>(), prot, flags, -1, 0).cast(), SeqCst);
            // Read the symbols once, here.
            let _ = Backtrace::force_capture().to_string();
        }
        let page = PAGE.load(SeqCst);
        ((*page).size, (*page).length, (*page).refused) = (0, 0, false);
        let child = libc::fork();
        if child == 0 {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
            libc::dup2(null, 2);
            libc::alarm(20);
            libc::signal(libc::SIGABRT, aborted as extern "C" fn(i32) as usize);
            BEFORE.store(n as isize, SeqCst);
            TO.store(*sizes.end(), SeqCst);
            FROM.store(*sizes.start(), SeqCst);
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            disarm();
            match refused {
                Ok(refused) => write(refused.as_deref()),
                Err(_) => write(Some("PANIC")),
            }
            libc::_exit(0);
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        let page = &*page;
        let text = String::from_utf8_lossy(&page.text[..page.length]).into_owned();
        let end = match (libc::WIFSIGNALED(status), libc::WEXITSTATUS(status)) {
            (true, _) => End::Signal(libc::WTERMSIG(status)),
            (false, 77) => End::Aborted,
            (false, 0) if page.refused => End::Error(text.lines().next().unwrap_or("").into()),
            (false, 0) => End::Survived,
            (false, code) => End::Exit(code),
        };
        Run { end, size: page.size, trace: asking(&text) }
    }
}
