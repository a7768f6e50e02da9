//! Checksums against damage: SHA-256, or git's SHA-1, which begins with the kind and the size of the object.
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::list::File;

#[derive(Clone)]
pub enum Digest {
    Git(Sha1),
    Large(Sha256),
}

impl Digest {
    /// The checksum of a file, as listed.
    pub fn of(file: &File) -> Self {
        match file.etag.len() {
            64 => Self::Large(Sha256::new()),
            _ => Self::Git(Sha1::new_with_prefix(format!("blob {}\0", file.size))),
        }
    }

    pub fn add(&mut self, data: &[u8]) {
        match self {
            Self::Git(sum) => sum.update(data),
            Self::Large(sum) => sum.update(data),
        }
    }

    pub fn hex(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Git(sum) => hex(&sum.finalize()),
            Self::Large(sum) => hex(&sum.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_git_and_of_sha_256() {
        let sum = |digits| {
            let mut digest = Digest::of(&File { name: "a".to_owned(), etag: "0".repeat(digits), size: 6 });
            digest.add(b"hel");
            digest.add(b"lo\n");
            digest.hex()
        };
        assert_eq!(sum(40), "ce013625030ba8dba906f756967f9e9ca394464a"); // git hash-object
        assert_eq!(sum(64), "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    }
}
