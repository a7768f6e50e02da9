//! The contents of a text's positions, as ids that the prefix cache hashes and compares.

use xxhash_rust::xxh64::xxh64;

/// A token, whose id it is, or a given vector, whose id is at least 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContentId(u64);

const FIRST_VECTOR: u64 = 1 << 32;

impl ContentId {
    /// Vector `index` of a picture with this hash. Vectors with equal ids count as equal, so nobody may be able to find
    /// another picture with the same hash.
    pub fn of_vector(picture: u64, index: u32) -> Self {
        Self(xxh64(&index.to_le_bytes(), picture) | FIRST_VECTOR)
    }

    /// `None` for a vector.
    pub fn token(self) -> Option<u32> {
        u32::try_from(self.0).ok()
    }

    /// A number that no other content has.
    pub(super) fn raw(self) -> u64 {
        self.0
    }

    /// Calls the function with the bytes that stand for it in keys.
    pub(super) fn with_bytes(self, each: impl FnOnce(&[u8])) {
        match self.token() {
            Some(token) => each(&token.to_le_bytes()),
            None => each(&self.0.to_le_bytes()),
        }
    }
}

/// SHA-256 of a picture.
pub type Digest = [u8; 32];

/// Positions that have vectors `first ..` of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureSpan {
    pub at: u32,
    pub count: u32,
    pub first: u32,
    pub digest: Digest,
}

impl PictureSpan {
    /// Their contents, given the picture's hash.
    pub fn contents(&self, picture: u64) -> impl Iterator<Item = ContentId> {
        (self.first..self.first + self.count).map(move |index| ContentId::of_vector(picture, index))
    }
}

impl From<u32> for ContentId {
    fn from(token: u32) -> Self {
        Self(token.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_no_tokens_and_differ_by_picture_and_index() {
        assert_eq!([0, 7, u32::MAX].map(|token| ContentId::from(token).token()), [0, 7, u32::MAX].map(Some));
        let mut all: Vec<u64> = (0..50)
            .flat_map(|picture| (0..50).map(move |index| ContentId::of_vector(picture, index)))
            .map(|id| id.0)
            .collect();
        assert!(all.iter().all(|id| *id >= FIRST_VECTOR));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2500);
        assert_eq!(ContentId::of_vector(3, 4), ContentId::of_vector(3, 4));
        assert_eq!(ContentId::of_vector(3, 4).token(), None);
    }
}
