//! The file of earlier prompts: one to a line, oldest first, with "\n" for a line break and "\\" for a backslash. Each
//! chat adds a line as it is sent, so that none is lost however a chat ends, and several may run.
use crate::files::write_whole;
use std::borrow::Cow;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Number of newest prompts that are read.
pub const KEPT: usize = 1000;
/// Number of lines above which a file is shortened.
const TOO_MANY: usize = 2 * KEPT;

/// The path of the file, from the option's value. None: the user wants none, or there is no folder for it.
pub fn file(option: Option<&Path>) -> Option<PathBuf> {
    match option {
        Some(path) if path == OsStr::new("none") => None,
        Some(path) => Some(path.to_owned()),
        None => {
            let folder = usual_folder()?;
            let mut builder = DirBuilder::new();
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            _ = builder.recursive(true).create(&folder); // `add` reports the error
            Some(folder.join("history"))
        }
    }
}

fn usual_folder() -> Option<PathBuf> {
    let whole = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let local = if cfg!(windows) { whole("LOCALAPPDATA") } else { None };
    let home = || Some(env::home_dir().filter(|path| path.is_absolute())?.join(".local/state"));
    let state = whole("XDG_STATE_HOME").or(local).or_else(home)?;
    Some(state.join("bn-chat"))
}

/// The newest prompts, oldest first. Empty if there is no file.
pub fn read(path: &Path) -> Vec<String> {
    let Ok(data) = fs::read(path) else { return Vec::new() };
    let lines: Vec<_> = data.split_inclusive(|&byte| byte == b'\n').collect();
    let newest = &lines[lines.len().saturating_sub(KEPT)..];
    if lines.len() > TOO_MANY {
        _ = write_whole(path, &newest.concat()); // a later chat tries again
    }
    newest.iter().map(|line| decoded(line)).collect()
}

fn decoded(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut text = String::new();
    let line = String::from_utf8_lossy(line);
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match (c, rest.as_str().chars().next()) {
            ('\\', Some(escaped)) => {
                rest.next();
                text.push(if escaped == 'n' { '\n' } else { escaped });
            }
            _ => text.push(c),
        }
    }
    match bn_hub::printable_lines(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(filtered) => filtered,
    }
}

/// Adds a prompt.
pub fn add(path: &Path, text: &str) -> io::Result<()> {
    let mut how = OpenOptions::new();
    how.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut how, 0o600);
    let line = text.replace('\\', r"\\").replace('\n', r"\n") + "\n";
    how.open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        assert!(read(&path).is_empty());
        let prompts = ["one", "two\nlines\\", r"\n is no line break", "größe 猫"];
        for prompt in prompts {
            add(&path, prompt).unwrap();
        }
        assert_eq!(read(&path), prompts);
    }

    #[test]
    fn a_long_file_is_shortened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        fs::write(&path, (0..3000).map(|i| format!("prompt {i}\n")).collect::<String>()).unwrap();
        assert_eq!(read(&path).first().map(String::as_str), Some("prompt 2000"));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), KEPT);
    }

    #[test]
    fn a_line_does_not_drive_the_terminal() {
        assert_eq!(decoded(b"a\x1b[2Jb\xff\\"), "a[2Jb\u{fffd}\\");
    }
}
