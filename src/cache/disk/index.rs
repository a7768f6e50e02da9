//! What the folder holds: names, sizes and last uses of records.

use super::Kind;
use crate::base::{Result, reserved};
use std::collections::HashMap;

/// A record's name: its kind and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub kind: Kind,
    pub key: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    bytes: u64,
    /// Value of `Index::uses` at the last use.
    used: u64,
}

#[derive(Default)]
pub(super) struct Index {
    entries: HashMap<Name, Entry>,
    uses: u64,
    bytes: u64,
}

impl Index {
    /// Bytes of memory per record: entries of 40 bytes in a table that is at least 7/16 full.
    pub(crate) const ENTRY_BYTES: u64 = 96;

    pub(crate) fn has(&self, name: Name) -> bool {
        self.entries.contains_key(&name)
    }

    /// Adds a record as the one used last, or marks it as that. `OutOfMemory`.
    pub(crate) fn add(&mut self, name: Name, bytes: u64) -> Result<()> {
        reserved(self.entries.try_reserve(1), "the index of the prompt cache", Self::ENTRY_BYTES as usize)?;
        self.uses += 1;
        let old = self.entries.insert(name, Entry { bytes, used: self.uses });
        self.bytes = self.bytes + bytes - old.map_or(0, |old| old.bytes);
        Ok(())
    }

    pub(crate) fn touch(&mut self, name: Name) {
        self.uses += 1;
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.used = self.uses;
        }
    }

    pub(crate) fn remove(&mut self, name: Name) {
        if let Some(entry) = self.entries.remove(&name) {
            self.bytes -= entry.bytes;
        }
    }

    /// The record that was not used for the longest time.
    pub(crate) fn oldest(&self) -> Option<Name> {
        self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(name, _)| *name)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all records.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Name {
    /// The name of its file.
    pub fn file(self) -> String {
        let kind = match self.kind {
            Kind::Block => 'b',
            Kind::State => 's',
        };
        format!("{kind}{:016x}", self.key)
    }

    /// The inverse of `file`; `None` for other files.
    pub fn of_file(file: &str) -> Option<Self> {
        let kind = match file.chars().next()? {
            'b' => Kind::Block,
            's' => Kind::State,
            _ => return None,
        };
        let key = u64::from_str_radix(&file[1..], 16).ok()?;
        let name = Self { kind, key };
        (name.file() == file).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: u64) -> Name {
        Name { kind: Kind::Block, key }
    }

    #[test]
    fn the_least_recently_used_record_is_the_oldest() {
        let mut index = Index::default();
        (1..=3).for_each(|key| index.add(name(key), 10 * key).unwrap());
        assert_eq!((index.len(), index.bytes(), index.oldest()), (3, 60, Some(name(1))));
        index.touch(name(1));
        index.add(name(2), 5).unwrap();
        assert_eq!((index.bytes(), index.oldest()), (45, Some(name(3))));
        index.remove(name(3));
        index.remove(name(3));
        assert_eq!((index.bytes(), index.oldest(), index.has(name(3))), (15, Some(name(1)), false));
    }

    #[test]
    fn files_have_the_names_of_their_keys() {
        for kind in [Kind::Block, Kind::State] {
            let name = Name { kind, key: 0xab };
            assert_eq!(Name::of_file(&name.file()), Some(name));
        }
        for file in
            ["", "b", "lock", "b00000000000000AB", "b000000000000000ab.tmp", "x00000000000000ab", "bab", "é"]
        {
            assert_eq!(Name::of_file(file), None, "{file}");
        }
    }
}
