//! Files that are written as a whole or not at all, and read up to a bound. Devices, pipes and folders are refused.
use crate::failure::words_of_system;
use std::env::home_dir;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf, is_separator};

const NOT_REGULAR: &str = "it is not a regular file";
const TOO_LARGE: &str = "it is too large";

/// The path that the user wrote, with ~/ replaced by the home folder. Terminals put quotes around a file that is
/// dragged to them.
pub fn path_of(text: &str) -> PathBuf {
    let inside = |quote| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let text = ['\'', '"'].into_iter().find_map(inside).unwrap_or(text);
    let inside = text.strip_prefix('~').and_then(|rest| rest.strip_prefix(is_separator));
    match (inside, home_dir()) {
        (Some(inside), Some(home)) => home.join(inside),
        _ => text.into(),
    }
}

/// Writes a file that only its owner may read. After an error, the old file is unchanged. If `path` is a link, its
/// target is replaced. The error says what is wrong.
pub fn write_whole(path: &Path, data: &[u8]) -> Result<(), String> {
    let path = target(path)?;
    let (mut file, name) = create_beside(&path).map_err(|error| words_of_system(&error))?;
    let written = match file.metadata() {
        Ok(facts) if !facts.is_file() => Err(NOT_REGULAR.to_owned()), // on Windows, NUL with any ending
        _ => file.write_all(data).map_err(|error| words_of_system(&error)),
    };
    drop(file);
    let moved = written.and_then(|()| fs::rename(&name, path).map_err(|error| words_of_system(&error)));
    if moved.is_err() {
        _ = fs::remove_file(name);
    }
    moved
}

fn target(path: &Path) -> Result<PathBuf, String> {
    match facts_of(path) {
        Ok(facts) if !facts.is_file() => Err(NOT_REGULAR.to_owned()),
        Ok(_) => path.canonicalize().map_err(|error| words_of_system(&error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(words_of(&error)),
    }
}

/// Windows does not report the metadata of devices; the error is that there is no such function or parameter.
fn facts_of(path: &Path) -> io::Result<fs::Metadata> {
    fs::metadata(path).map_err(|error| match error.raw_os_error() {
        Some(1 | 87) if cfg!(windows) => io::Error::other(NOT_REGULAR),
        _ => error,
    })
}

/// The message of an error of the system or of this file.
fn words_of(error: &io::Error) -> String {
    error.get_ref().map_or_else(|| words_of_system(error), ToString::to_string)
}

/// A new file in the same folder, so that it can take the name of the other.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    const TRIES: u32 = 1000;
    let mut how = OpenOptions::new();
    how.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut how, 0o600);
    let mut number = 0;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{number}.part", std::process::id()));
        match how.open(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < TRIES => number += 1,
            opened => return Ok((opened?, name.into())),
        }
    }
}

/// Reads a file of at most `most` bytes. The error says what is wrong.
pub fn read_whole(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    read_up_to(path, most).map_err(|error| words_of(&error))
}

fn read_up_to(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Check before opening, which would wait for the other end of a pipe, and once more after it.
    check(&facts_of(path)?, most)?;
    let file = File::open(path)?;
    check(&file.metadata()?, most)?;
    let mut data = Vec::new();
    file.take(most + 1).read_to_end(&mut data)?;
    if data.len() as u64 > most { Err(io::Error::other(TOO_LARGE)) } else { Ok(data) }
}

fn check(facts: &fs::Metadata, most: u64) -> io::Result<()> {
    match facts.is_file() {
        false => Err(io::Error::other(NOT_REGULAR)),
        true if facts.len() > most => Err(io::Error::other(TOO_LARGE)),
        true => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_around_a_path_are_not_of_it() {
        for (text, path) in [
            ("'a b.png'", "a b.png"),
            ("\"a.png\"", "a.png"),
            ("it's", "it's"),
            ("'a.png\"", "'a.png\""),
            ("'", "'"),
        ] {
            assert_eq!(path_of(text), Path::new(path));
        }
    }

    #[test]
    fn files_are_replaced_and_nothing_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        write_whole(&path, b"one").unwrap();
        write_whole(&path, b"two").unwrap();
        assert_eq!(read_whole(&path, 3).unwrap(), b"two");
        assert_eq!(read_whole(&path, 2).unwrap_err(), TOO_LARGE);
        assert_eq!(read_whole(folder.path(), 2).unwrap_err(), NOT_REGULAR);
        assert_eq!(write_whole(folder.path(), b"x").unwrap_err(), NOT_REGULAR);
        assert!(write_whole(&folder.path().join("no/x"), b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
