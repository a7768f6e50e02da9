//! Completion: commands, the names of settings, the names of files after /save, /load and /image.
use crate::commands::COMMANDS;
use crate::files::path_of;
use crate::settings::SETTINGS;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};
use std::fs;
use std::path::is_separator;

/// Maximum number of completions that the editor can show.
const MOST: usize = 10_000;

pub struct Words;

impl Helper for Words {}
impl Highlighter for Words {}
impl Hinter for Words {
    type Hint = String;
}
impl Validator for Words {}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(possibilities(&line[..at]))
    }
}

/// The start of the word before the cursor, and its possible completions.
fn possibilities(text: &str) -> (usize, Vec<Pair>) {
    let start_of = |rest: &str| text.len() - rest.len();
    let file = ["/save ", "/load ", "/image "].iter().find_map(|name| text.strip_prefix(name));
    if let Some(path) = file.map(str::trim_start) {
        let (folder, name) = path.split_at(path.rfind(is_separator).map_or(0, |at| at + 1));
        return (start_of(name), files(folder, name));
    }
    if let Some(name) = text.strip_prefix("/set ") {
        let names = SETTINGS.iter().map(|setting| setting.name).chain(["system"]);
        let found = names.filter(|known| known.starts_with(name)).map(|known| pair(known, " "));
        return (start_of(name), found.collect());
    }
    if !text.starts_with('/') || text.contains(' ') {
        return (text.len(), Vec::new());
    }
    let all = COMMANDS.iter().flat_map(|command| command.names.iter().map(move |name| (name, command)));
    let found = all.filter(|(name, _)| name.starts_with(text));
    (0, found.map(|(name, command)| pair(name, if command.takes.is_empty() { "" } else { " " })).collect())
}

/// A completion; `end` is appended if it is the only one.
fn pair(name: &str, end: &str) -> Pair {
    Pair { display: name.to_owned(), replacement: format!("{name}{end}") }
}

/// The files in a folder whose names begin with a text. Hidden ones are listed only if it begins with a dot.
fn files(folder: &str, begin: &str) -> Vec<Pair> {
    let Ok(all) = fs::read_dir(if folder.is_empty() { ".".into() } else { path_of(folder) }) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for file in all.flatten() {
        let name = file.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(begin)) else { continue };
        let hidden = name.starts_with('.') && begin.is_empty();
        // Such a name would control the terminal.
        if hidden || bn_hub::printable(name) != name {
            continue;
        }
        let is_folder = fs::metadata(file.path()).is_ok_and(|facts| facts.is_dir());
        found.push(pair(name, if is_folder { "/" } else { " " }));
        if found.len() > MOST {
            return Vec::new();
        }
    }
    found.sort_by(|a, b| a.display.cmp(&b.display));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        possibilities(text).1.into_iter().map(|pair| pair.replacement).collect()
    }

    #[test]
    fn commands_and_settings_are_completed() {
        assert_eq!(words("/se"), ["/set "]);
        assert_eq!(words("/reg"), ["/regen", "/regenerate"]);
        assert_eq!(words("/set temp"), ["temperature "]);
        assert_eq!(words("/set top"), ["top_k ", "top_p "]);
        assert_eq!(words("/set s"), ["seed ", "system "]);
        assert!(words("se").is_empty() && words("/stats x").is_empty() && words(" /se").is_empty());
    }

    #[test]
    fn files_are_completed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("talk.json"), "").unwrap();
        fs::write(folder.path().join(".hidden"), "").unwrap();
        fs::create_dir(folder.path().join("talks")).unwrap();
        let text = format!("/load {}/", folder.path().display());
        assert_eq!(possibilities(&text).0, text.len());
        assert_eq!(words(&text), ["talk.json ", "talks/"]);
        assert_eq!(words(&format!("{text}talks")), ["talks/"]);
        assert_eq!(words(&format!("{text}.")), [".hidden "]);
    }
}
