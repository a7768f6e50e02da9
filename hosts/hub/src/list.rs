//! A list of a repository's files. It may have tens of thousands, so they are found by a hash.
use std::collections::HashMap;

use crate::printable;

#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// The path within the repository.
    pub name: String,
    /// SHA-256, or git's SHA-1 for small files; empty in a list of the cache's.
    pub etag: String,
    pub size: u64,
}

#[derive(Debug, Default)]
pub struct List {
    pub commit: String,
    files: Vec<File>,
    places: HashMap<String, usize>,
}

impl List {
    pub fn new(commit: &str) -> Self {
        Self { commit: commit.to_owned(), ..Self::default() }
    }

    /// Adds a file. Ignores names that lead out of the folder, repeated names, and invalid checksums.
    pub fn add(&mut self, name: String, etag: String, size: u64) {
        if !is_safe(&name) || !is_checksum(&etag) || self.places.contains_key(&name) {
            return;
        }
        self.places.insert(name.clone(), self.files.len());
        self.files.push(File { name, etag, size });
    }

    pub fn find(&self, name: &str) -> Option<&File> {
        self.places.get(name).map(|&place| &self.files[place])
    }

    pub fn files(&self) -> &[File] {
        &self.files
    }
}

/// Whether a text consists of `digits` hexadecimal digits in lower case.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

pub fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

fn is_checksum(etag: &str) -> bool {
    etag.is_empty() || is_hex(etag, 40) || is_hex(etag, 64)
}

/// Whether a name stays within the folder and has no control characters.
fn is_safe(name: &str) -> bool {
    // A colon names a drive or a stream there.
    let odd = |c: char| c == '\\' || (cfg!(windows) && "<>:\"|?*".contains(c));
    printable(name) == name
        && !name.contains(odd)
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_or_do_more_than_print_are_passed_over() {
        let mut list = List::new("");
        let bad = [
            "",
            "/etc/x",
            "../up",
            "a/../b",
            "a//b",
            "a/",
            ".",
            "a\\b",
            "a\nb",
            "\x1b[2J",
            "a\u{9b}b",
            "a\u{202e}b",
        ];
        for name in bad {
            list.add(name.to_owned(), String::new(), 1);
        }
        assert_eq!(list.files(), []);
        for name in ["a", "q/a.gguf", "..a", "größe 猫.gguf"] {
            list.add(name.to_owned(), String::new(), 1);
            assert_eq!(list.find(name).unwrap().name, name);
        }
    }

    #[test]
    fn checksums_are_of_two_lengths_and_the_first_of_a_name_counts() {
        let mut list = List::new("");
        for (etag, size) in
            [("x".repeat(40), 1), ("A".repeat(64), 2), ("a".repeat(39), 3), ("a".repeat(40), 4)]
        {
            list.add("a".to_owned(), etag, size);
        }
        list.add("a".to_owned(), "b".repeat(64), 5);
        assert_eq!(list.files().len(), 1);
        assert_eq!(list.find("a").unwrap().size, 4);
        assert!(list.find("b").is_none());
    }
}
