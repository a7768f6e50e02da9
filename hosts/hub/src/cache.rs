//! Hugging Face's cache: models--OWNER--NAME has blobs (files by their checksums), refs (main has a commit) and
//! snapshots (a folder for each commit, whose files are links to blobs). Locks stand beside it, in .locks.
use std::fs::{self, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::Hub;
use crate::download;
use crate::error::{Error, Result};
use crate::list::{File, List, is_commit};
use crate::printable;
use crate::progress::bytes;

/// Maximum depth of a snapshot's folders.
const DEEPEST: usize = 4;

/// The folder of a model in the cache.
pub struct Cache {
    root: PathBuf,
    folder: String,
}

impl Cache {
    pub fn new(root: &Path, folder: String) -> Self {
        Self { root: root.to_owned(), folder }
    }

    fn inside(&self, part: &str, name: &str) -> PathBuf {
        self.root.join(&self.folder).join(part).join(name)
    }

    /// The path of a file, or with "" of the folder.
    pub fn path(&self, commit: &str, name: &str) -> PathBuf {
        let snapshot = self.inside("snapshots", commit);
        // Joined part by part, for Windows' separators.
        name.split('/').filter(|part| !part.is_empty()).fold(snapshot, |path, part| path.join(part))
    }

    fn blob(&self, file: &File) -> PathBuf {
        self.inside("blobs", &file.etag)
    }

    fn part(&self, file: &File) -> PathBuf {
        self.inside("blobs", &format!("{}.incomplete", file.etag))
    }

    /// The files of the model's newest snapshot in the cache, or None.
    pub fn list(&self) -> Option<List> {
        let mut commit = String::new();
        fs::File::open(self.inside("refs", "main")).ok()?.take(64).read_to_string(&mut commit).ok()?;
        let commit = Some(commit.trim()).filter(|commit| is_commit(commit))?;
        let mut list = List::new(commit);
        list_folder(&mut list, &self.path(commit, ""), "", DEEPEST);
        (!list.files().is_empty()).then_some(list)
    }

    /// Records this commit as the newest one.
    pub fn set_main(&self, commit: &str) -> Result<()> {
        put(&self.inside("refs", "main"), |next| fs::write(next, commit))
    }

    /// Downloads the missing files and parts of files.
    pub fn fill(&self, hub: &mut Hub, commit: &str, files: &[&File]) -> Result<()> {
        self.check_room(commit, files)?;
        for file in files {
            if has_size(&self.path(commit, &file.name), file.size) {
                continue;
            }
            if file.etag.is_empty() {
                return Err(Error::failed(format!("{} lists no checksum of {}", hub.endpoint(), file.name)));
            }
            let _lock = self.lock(hub, file)?;
            self.fill_locked(hub, commit, file)?;
        }
        Ok(())
    }

    fn fill_locked(&self, hub: &mut Hub, commit: &str, file: &File) -> Result<()> {
        let blob = self.blob(file);
        if !has_size(&blob, file.size) {
            let part = self.part(file);
            make_folder_of(&blob)?;
            download::get(hub, commit, file, &part)?;
            fs::rename(&part, &blob).map_err(|error| Error::io(&blob, &error))?;
        }
        let up = file.name.split('/').count() + 1;
        let target: PathBuf = [".."].repeat(up).into_iter().chain(["blobs", &file.etag]).collect();
        put(&self.path(commit, &file.name), |next| link(&target, &blob, next))
    }

    /// Takes the lock of a file, as huggingface_hub does. It is held until it is dropped.
    fn lock(&self, hub: &mut Hub, file: &File) -> Result<fs::File> {
        let path = self.root.join(".locks").join(&self.folder).join(format!("{}.lock", file.etag));
        make_folder_of(&path)?;
        let lock = fs::File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let lock = lock.map_err(|error| Error::io(&path, &error))?;
        let mut noted = false;
        // On a file system without locks, no lock is taken.
        while matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            if !noted {
                hub.progress.note(&format!("another process downloads {}: waiting for it", file.name));
            }
            noted = true;
            hub.check("stopped")?;
            thread::sleep(Duration::from_millis(100));
        }
        Ok(lock)
    }

    /// Bytes of a file that are still to come.
    fn missing(&self, commit: &str, file: &File) -> u64 {
        if has_size(&self.path(commit, &file.name), file.size) || has_size(&self.blob(file), file.size) {
            return 0;
        }
        let part = fs::metadata(self.part(file)).map_or(0, |about| about.len());
        if part < file.size { file.size - part } else { file.size }
    }

    /// Fails before a long download if the disk is too small for it.
    fn check_room(&self, commit: &str, files: &[&File]) -> Result<()> {
        let needed = files.iter().fold(0, |sum: u64, file| sum.saturating_add(self.missing(commit, file)));
        if needed == 0 {
            return Ok(());
        }
        fs::create_dir_all(&self.root).map_err(|error| Error::io(&self.root, &error))?;
        match fs4::available_space(&self.root) {
            Ok(room) if room < needed => Err(Error::failed(format!(
                "{}: no space left: {} are to be downloaded, {} are free",
                printable(&self.root.to_string_lossy()),
                bytes(needed),
                bytes(room)
            ))),
            _ => Ok(()),
        }
    }
}

/// Lists a snapshot's files whose blobs are there.
fn list_folder(list: &mut List, folder: &Path, inside: &str, depth: usize) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let (Some(name), Ok(about)) = (file_name.to_str(), fs::metadata(entry.path())) else { continue };
        let name = format!("{inside}{name}");
        if about.is_file() {
            list.add(name, String::new(), about.len());
        } else if about.is_dir() && depth > 0 {
            list_folder(list, &entry.path(), &format!("{name}/"), depth - 1);
        }
    }
}

fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == size)
}

fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| Error::io(folder, &error))
}

/// Makes a file under another name and renames it, because another process may have made the file and be
/// reading it.
fn put(path: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    make_folder_of(path)?;
    let mut next = path.as_os_str().to_owned();
    next.push(format!(".{}.{}.tmp", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let next = PathBuf::from(next);
    // An earlier process with the same id may have left it.
    _ = fs::remove_file(&next);
    make(&next).and_then(|()| fs::rename(&next, path)).map_err(|error| {
        _ = fs::remove_file(&next);
        Error::io(path, &error)
    })
}

/// Links to a blob, by `target` relative to the link.
#[cfg(not(windows))]
fn link(target: &Path, _: &Path, next: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, next)
}

/// The same on Windows, where most users may not make symbolic links. The file gets a hard link instead, or is copied
/// if the file system has none. huggingface_hub finds these too.
#[cfg(windows)]
fn link(target: &Path, blob: &Path, next: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, next)
        .or_else(|_| fs::hard_link(blob, next))
        .or_else(|_| fs::copy(blob, next).map(drop))
}
