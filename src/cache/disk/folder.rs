//! The folder of a scope: a file for each record, and a lock that says which process writes.

use super::index::Name;
use crate::base::{Error, Result, Status};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Whether a process may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Held,
    /// It may from now on: another process may have written until now, so list again.
    New,
    /// Another process writes, or the folder cannot be written to.
    Denied,
}

/// Files of records. A failure costs a hit, never an answer.
pub trait Files: Send {
    /// Asks for the right to write, which is held until `release` or drop.
    fn claim(&mut self) -> Claim;
    fn release(&mut self);
    /// All records with their sizes in bytes, the least recently used first.
    fn list(&mut self) -> io::Result<Vec<(Name, u64)>>;
    /// Appends a record, or the beginning of one that has more than `most` bytes, and marks it as used.
    fn read(&mut self, name: Name, most: usize, out: &mut Vec<u8>) -> io::Result<()>;
    /// Writes a record as a whole or not at all.
    fn write(&mut self, name: Name, record: &[u8]) -> io::Result<()>;
    fn remove(&mut self, name: Name) -> io::Result<()>;
}

/// The name of the lock's file, and the beginning of those of unfinished files.
const LOCK: &str = "lock";
const UNFINISHED: &str = "new-";

pub struct Folder {
    path: PathBuf,
    /// Locked for as long as it is open.
    lock: Option<File>,
}

impl Folder {
    /// Creates the folder `path` if it is missing. `Io` if that fails.
    pub fn make(path: &Path) -> Result<()> {
        let wrong = |error: io::Error| {
            let message = format!("cache_path = {}: {error}", path.display());
            Error::new(Status::Io, message)
        };
        fs::create_dir_all(path).map_err(wrong)?;
        fs::read_dir(path).map(drop).map_err(wrong)
    }

    /// The folder of `scope` within `path`. It is made with the first record.
    pub fn new(path: &Path, scope: u64) -> Self {
        Self { path: path.join(format!("{scope:016x}")), lock: None }
    }

    fn file(&self, name: Name) -> PathBuf {
        self.path.join(name.file())
    }

    fn try_claim(&self) -> io::Result<Option<File>> {
        fs::create_dir_all(&self.path)?;
        let file = File::options().create(true).truncate(false).write(true).open(self.path.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes what a process left that ended while it wrote.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED)) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

impl Files for Folder {
    fn claim(&mut self) -> Claim {
        if self.lock.is_some() {
            return Claim::Held;
        }
        let Ok(Some(lock)) = self.try_claim() else { return Claim::Denied };
        self.lock = Some(lock);
        // A leftover takes room, and nothing more.
        let _ = self.sweep();
        Claim::New
    }

    fn release(&mut self) {
        self.lock = None;
    }

    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        let mut found = Vec::new();
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().and_then(Name::of_file) else { continue };
            // It may be gone by now.
            let Ok(facts) = entry.metadata() else { continue };
            let used = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if found.try_reserve(1).is_err() {
                break;
            }
            found.push((used, name, facts.len()));
        }
        found.sort_unstable_by_key(|(used, name, _)| (*used, *name));
        Ok(found.into_iter().map(|(_, name, bytes)| (name, bytes)).collect())
    }

    fn read(&mut self, name: Name, most: usize, out: &mut Vec<u8>) -> io::Result<()> {
        let mut file = File::open(self.file(name))?;
        // One byte more tells a file that is too long.
        let bytes = file.metadata()?.len().min(most as u64 + 1) as usize;
        out.try_reserve_exact(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // Not more than it had: a file that grows meanwhile is damaged anyway.
        Read::by_ref(&mut file).take(bytes as u64).read_to_end(out)?;
        if self.lock.is_some() {
            // Only the order of uses would be lost.
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(())
    }

    fn write(&mut self, name: Name, record: &[u8]) -> io::Result<()> {
        let unfinished = self.path.join(format!("{UNFINISHED}{}", name.file()));
        let written = File::create(&unfinished)
            .and_then(|mut file| file.write_all(record))
            .and_then(|()| fs::rename(&unfinished, self.file(name)));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    fn remove(&mut self, name: Name) -> io::Result<()> {
        fs::remove_file(self.file(name))
    }
}
