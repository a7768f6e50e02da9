//! Saved sessions: a folder of files, each with a name, within limits of their number and bytes (`--session-path`).
use crate::failure::{Failure, Result};
use crate::options::Options;
use axum::http::StatusCode;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The end of a file's name, behind the session's.
const END: &str = ".session";
/// The end of the name of a file that is being written, which begins with a dot.
const UNFINISHED: &str = ".tmp";
/// An unfinished file of this age is nobody's.
const OLD: Duration = Duration::from_secs(3600);
/// Maximum length of a name in bytes.
const LONG: usize = 128;

pub struct Sessions {
    /// None: nothing is saved.
    folder: Option<PathBuf>,
    /// Maximum number of sessions.
    most: usize,
    /// Maximum bytes of all of them.
    bytes: u64,
    /// One session is written or read at a time, because it is in memory as a whole.
    turn: Arc<Mutex<()>>,
}

/// A session in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    pub name: String,
    pub bytes: u64,
    /// Seconds since 1970.
    pub written: u64,
}

impl Sessions {
    /// Err: the error in the options.
    pub fn new(options: &Options) -> std::result::Result<Self, String> {
        let folder = options.session_path.clone();
        if let Some(folder) = &folder {
            let wrong = |error| format!("--session-path {}: {error}", folder.display());
            fs::create_dir_all(folder).map_err(wrong)?;
            clean(folder).map_err(wrong)?;
        }
        let (most, bytes) = (options.max_sessions, options.session_bytes);
        Ok(Self { folder, most, bytes, turn: Arc::default() })
    }

    /// Waits for the others that save or restore.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Refuses requests if nothing can be saved.
    pub fn folder(&self) -> Result<&Path> {
        let words = "this server saves no sessions: it needs --session-path";
        self.folder.as_deref().ok_or_else(|| Failure::new(StatusCode::NOT_IMPLEMENTED, "unsupported", words))
    }

    /// The limits: of the number, and of the bytes.
    pub fn limits(&self) -> (usize, u64) {
        (self.most, self.bytes)
    }

    /// All sessions, by name.
    pub fn list(&self) -> Result<Vec<Saved>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.folder()?).map_err(|error| broken(&error))? {
            let Ok(entry) = entry else { continue };
            let file = entry.file_name();
            let Some(name) = file.to_str().and_then(|file| file.strip_suffix(END)) else { continue };
            // A file may go while the folder is read.
            let Ok(about) = entry.metadata() else { continue };
            if about.is_file() && check(name).is_ok() {
                all.push(Saved::new(name, &about));
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    pub fn find(&self, name: &str) -> Result<Saved> {
        let about = fs::metadata(self.path(name)?).map_err(|error| failed(name, &error))?;
        if about.is_file() { Ok(Saved::new(name, &about)) } else { Err(missing(name)) }
    }

    /// Writes a session, in place of one of this name. What was there stays until all is written.
    pub fn write(&self, name: &str, data: &[u8]) -> Result<()> {
        let path = self.path(name)?;
        self.fits(name, data.len() as u64)?;
        // Other servers may write to this folder.
        let unique = RandomState::new().hash_one(name);
        let unfinished = self.folder()?.join(format!(".{name}.{unique:016x}{UNFINISHED}"));
        let written = put(&unfinished, data).and_then(|()| fs::rename(&unfinished, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            failed(name, &error)
        })
    }

    /// Refuses a session of `bytes` bytes that the limits do not allow.
    fn fits(&self, name: &str, bytes: u64) -> Result<()> {
        let most = self.bytes;
        if bytes > most {
            let words = format!("session '{name}' has {bytes} bytes, more than --session-bytes = {most}");
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", words));
        }
        let (mut count, mut used) = (0, 0_u64);
        for other in self.list()?.iter().filter(|other| other.name != name) {
            (count, used) = (count + 1, used.saturating_add(other.bytes));
        }
        let words = if count >= self.most {
            format!("{count} sessions are saved, and --max-sessions = {}: delete one", self.most)
        } else if used.saturating_add(bytes) > most {
            format!(
                "the saved sessions have {used} bytes, so {bytes} more exceed --session-bytes = {most}: delete one"
            )
        } else {
            return Ok(());
        };
        Err(Failure::new(StatusCode::INSUFFICIENT_STORAGE, "sessions_full", words))
    }

    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let mut file = File::open(self.path(name)?).map_err(|error| failed(name, &error))?;
        let about = file.metadata().map_err(|error| failed(name, &error))?;
        if !about.is_file() {
            return Err(missing(name));
        }
        if about.len() > self.bytes {
            let words = format!("session '{name}' has {} bytes, more than --session-bytes", about.len());
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", words));
        }
        let mut data = Vec::new();
        let words = "the server has no memory for this session now: try again later";
        let room = data.try_reserve_exact(about.len() as usize);
        room.map_err(|_| Failure::unavailable("out_of_memory", words, 1))?;
        // A file that grows meanwhile is damaged, which the library finds.
        (&mut file).take(about.len()).read_to_end(&mut data).map_err(|error| failed(name, &error))?;
        Ok(data)
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.path(name)?).map_err(|error| failed(name, &error))
    }

    /// The file of a session.
    fn path(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder()?;
        check(name)?;
        Ok(folder.join(format!("{name}{END}")))
    }
}

impl Saved {
    fn new(name: &str, about: &fs::Metadata) -> Self {
        let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
        let written = about.modified().ok().and_then(since).unwrap_or_default().as_secs();
        Self { name: name.to_owned(), bytes: about.len(), written }
    }
}

/// Checks a name, which becomes that of a file.
pub fn check(name: &str) -> Result<()> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=LONG).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(good) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "a saved session's name has 1 to {LONG} of a-z, A-Z, 0-9, '.', '_' and '-', and begins with no dot"
    )))
}

/// Removes files whose writer ended before they were whole.
fn clean(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let file = entry.file_name();
        let is_unfinished =
            file.to_str().is_some_and(|file| file.starts_with('.') && file.ends_with(UNFINISHED));
        let age =
            entry.metadata().and_then(|about| about.modified()).ok().and_then(|time| time.elapsed().ok());
        if is_unfinished && age.is_some_and(|age| age >= OLD) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Writes a file that only this user may read, since it has a conversation.
fn put(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(data)?;
    file.sync_all()
}

fn missing(name: &str) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "not_found", format!("no session '{name}' is saved"))
}

fn failed(name: &str, error: &io::Error) -> Failure {
    use io::ErrorKind::{FileTooLarge, NotFound, QuotaExceeded, StorageFull};
    match error.kind() {
        NotFound => missing(name),
        StorageFull | QuotaExceeded | FileTooLarge => {
            let words = format!("the disk has no room for session '{name}'");
            Failure::new(StatusCode::INSUFFICIENT_STORAGE, "sessions_full", words)
        }
        _ => broken(error),
    }
}

/// The failure of the folder. Its path is not the client's business.
fn broken(error: &io::Error) -> Failure {
    tracing::warn!("the folder of sessions: {error}");
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "the folder of sessions cannot be used")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(name: &str, limits: &[&str]) -> (Sessions, PathBuf) {
        let folder = std::env::temp_dir().join(format!("bn-server-{}-{name}", std::process::id()));
        let mut arguments = vec!["--session-path", folder.to_str().unwrap()];
        arguments.extend(limits);
        (Sessions::new(&Options::of_arguments(&arguments)).unwrap(), folder)
    }

    fn status<T: std::fmt::Debug>(result: Result<T>) -> u16 {
        result.unwrap_err().status.as_u16()
    }

    #[test]
    fn names_are_those_of_files_in_the_folder() {
        for good in ["a", "my-chat_2.bin", &"x".repeat(LONG)] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in
            ["", ".", "..", ".a", "a/b", "../a", "a\\b", "a b", "é", "a\n", "a:b", &"x".repeat(LONG + 1)]
        {
            assert_eq!(status(check(bad)), 400, "{bad}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let (all, folder) = sessions("written", &[]);
        assert_eq!(all.list().unwrap(), []);
        assert_eq!((status(all.read("a")), status(all.find("a")), status(all.remove("a"))), (404, 404, 404));
        all.write("b", b"one").unwrap();
        all.write("a", b"three").unwrap();
        all.write("b", b"four").unwrap();
        let listed: Vec<_> = all.list().unwrap().into_iter().map(|saved| (saved.name, saved.bytes)).collect();
        assert_eq!(listed, [("a".to_owned(), 5), ("b".to_owned(), 4)]);
        assert_eq!((all.read("b").unwrap(), all.find("a").unwrap().bytes), (b"four".to_vec(), 5));
        // Foreign and unfinished files are none.
        fs::write(folder.join(".c.1.tmp"), b"").unwrap();
        fs::write(folder.join("notes"), b"").unwrap();
        fs::create_dir(folder.join("d.session")).unwrap();
        assert_eq!((all.list().unwrap().len(), status(all.read("d"))), (2, 404));
        all.remove("b").unwrap();
        assert_eq!(all.list().unwrap().len(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn limits_hold() {
        let (all, folder) = sessions("limits", &["--max-sessions", "2", "--session-bytes", "10"]);
        assert_eq!(status(all.write("a", &[0; 11])), 413);
        all.write("a", &[0; 6]).unwrap();
        assert_eq!(status(all.write("b", &[0; 5])), 507);
        all.write("b", &[0; 4]).unwrap();
        let full = all.write("c", &[]).unwrap_err();
        assert_eq!((full.status.as_u16(), full.code), (507, "sessions_full"));
        assert_eq!(full.message, "2 sessions are saved, and --max-sessions = 2: delete one");
        all.write("b", &[0; 3]).unwrap(); // in place of itself
        fs::write(folder.join("c.session"), [0; 11]).unwrap();
        assert_eq!(status(all.read("c")), 413);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_old_unfinished_files_are_removed() {
        let (_, folder) = sessions("unfinished", &[]);
        let age = |file: &str, age: Duration| {
            let file = File::create(folder.join(file)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        };
        age(".new.1.tmp", Duration::ZERO);
        age(".old.1.tmp", OLD * 2);
        age("old.session", OLD * 2);
        clean(&folder).unwrap();
        let there = [".new.1.tmp", ".old.1.tmp", "old.session"].map(|file| folder.join(file).exists());
        fs::remove_dir_all(folder).unwrap();
        assert_eq!(there, [true, false, true]);
    }

    #[test]
    fn without_a_folder_nothing_is_saved() {
        let none = Sessions::new(&Options::of_arguments(&[])).unwrap();
        let failure = none.list().unwrap_err();
        assert_eq!(failure.status, StatusCode::NOT_IMPLEMENTED);
        assert!(failure.message.contains("--session-path"));
    }

    #[test]
    fn a_full_disk_is_told() {
        let of = |kind: io::ErrorKind| failed("a", &kind.into()).status.as_u16();
        use io::ErrorKind::{NotFound, PermissionDenied, StorageFull};
        assert_eq!([NotFound, StorageFull, PermissionDenied].map(of), [404, 507, 500]);
    }
}
