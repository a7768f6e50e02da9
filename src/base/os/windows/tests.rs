use super::*;
use std::io::Read;
use std::time::Duration;

fn scratch(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("bn-os-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn what_is_no_regular_file_says_so() {
    let folder = scratch("kinds");
    assert!(open(&folder).unwrap().metadata().unwrap().is_dir());
    assert!(open(&folder.join("missing")).is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
    // A device has no length to map.
    let device = open(Path::new("NUL")).and_then(|file| file.metadata());
    assert!(device.is_err() || device.is_ok_and(|stat| stat.len() == 0));
    std::fs::write(folder.join("file"), "text").unwrap();
    for opened in [open(&folder.join("file")), open_no_link(&folder.join("file"))] {
        let mut text = String::new();
        opened.unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Skipped for users who may not make links, and under Wine, which reports success without making one.
#[test]
fn a_link_is_no_file() {
    let folder = scratch("links");
    let (file, link) = (folder.join("file"), folder.join("link"));
    std::fs::write(&file, "text").unwrap();
    if std::os::windows::fs::symlink_file(&file, &link).is_ok() && std::fs::symlink_metadata(&link).is_ok() {
        assert!(open(&link).unwrap().metadata().unwrap().is_file());
        assert!(!open_no_link(&link).unwrap().metadata().unwrap().is_file());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_event_is_set_until_it_is_cleared() {
    let event = Event::new().unwrap();
    assert!(!event.is_set());
    event.set();
    event.set();
    assert!(event.is_set() && event.is_set());
    event.clear();
    assert!(!event.is_set());
    assert!(event.handle().is_some() && event.descriptor().is_none());
}

#[test]
fn clocks_go_on() {
    let (before, thread) = (clock::monotonic_ns(), clock::ThreadClock::own());
    std::thread::sleep(Duration::from_millis(20));
    let passed = clock::monotonic_ns() - before;
    assert!(passed >= 19_000_000, "{passed}");
    assert!(clock::unix_ns() > 1_700_000_000_000_000_000);
    // Another thread reads this thread's CPU time.
    let spent = std::thread::spawn(move || thread.ns()).join().unwrap();
    assert!(clock::thread_ns() >= spent && clock::ThreadClock::own().ns() >= spent);
}

#[test]
fn a_library_and_its_symbols() {
    // SAFETY: a library of the system, and what it gives.
    unsafe {
        let library = open_library(c"kernel32.dll").unwrap();
        assert!(!symbol(library, c"GetCurrentProcessId").is_null());
        assert!(symbol(library, c"nothing of this name").is_null());
        assert!(open_library(c"no such library.dll").unwrap_err().contains("no such library.dll"));
    }
}
