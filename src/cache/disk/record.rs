//! A file of the disk tier: a block's K and V, or a state, with the contents of the positions that it belongs to.
//!
//! All numbers are little-endian: [`MAGIC`], then u64 the scope, u64 the salt, u64 the key before, u64 the key, u32 the
//! kind, u32 the number of contents, these as u64, the bytes of the block or state, and XXH64 (seed 0) of all that.

use super::Kind;
use crate::base::{Result, reserve};
use crate::cache::content::ContentId;
use xxhash_rust::xxh64::xxh64;

const MAGIC: &[u8; 8] = b"BNCACHE\x01";
const HEADER: usize = 8 + 4 * 8 + 2 * 4;
const CHECKSUM: usize = 8;

/// Which block or state a record is of: the positions of one block up to the key's, and what is before them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub kind: Kind,
    pub salt: u64,
    /// The key of the blocks before; the salt for a first block.
    pub parent_key: u64,
    /// The key of these contents (`cache::chain`).
    pub key: u64,
    pub contents: Vec<ContentId>,
}

/// Bytes of a record of `positions` positions and a payload of `payload` bytes.
pub(super) fn size(positions: usize, payload: usize) -> usize {
    HEADER + size_of::<u64>() * positions + payload + CHECKSUM
}

/// Encodes a record but for its checksum, which `seal` appends. `payload` appends the bytes of the block or state.
pub(super) fn encode(
    scope: u64,
    place: &Place,
    bytes: usize,
    payload: impl FnOnce(&mut Vec<u8>) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    reserve(&mut out, size(place.contents.len(), bytes), "a record of the prompt cache")?;
    out.extend(MAGIC);
    for field in [scope, place.salt, place.parent_key, place.key] {
        out.extend(field.to_le_bytes());
    }
    out.extend((place.kind as u32).to_le_bytes());
    out.extend((place.contents.len() as u32).to_le_bytes());
    place.contents.iter().for_each(|content| out.extend(content.raw().to_le_bytes()));
    payload(&mut out)?;
    Ok(out)
}

/// Appends the checksum.
pub(super) fn seal(record: &mut Vec<u8>) {
    record.extend(xxh64(record, 0).to_le_bytes());
}

/// The payload of a sealed record, if it is that of `place`, whole and undamaged.
pub(super) fn decode<'a>(record: &'a [u8], scope: u64, place: &Place) -> Option<&'a [u8]> {
    let (content, checksum) = record.split_last_chunk::<CHECKSUM>()?;
    if xxh64(content, 0) != u64::from_le_bytes(*checksum) {
        return None;
    }
    let mut rest = content.strip_prefix(MAGIC)?;
    let mut take = |bytes: usize| {
        let (field, behind) = rest.split_at_checked(bytes)?;
        rest = behind;
        Some(field)
    };
    for field in [scope, place.salt, place.parent_key, place.key] {
        (take(8)? == field.to_le_bytes()).then_some(())?;
    }
    for field in [place.kind as u32, place.contents.len() as u32] {
        (take(4)? == field.to_le_bytes()).then_some(())?;
    }
    for content in &place.contents {
        (take(8)? == content.raw().to_le_bytes()).then_some(())?;
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        let contents = [7, 8, 9].map(ContentId::from).to_vec();
        Place { kind: Kind::Block, salt: 3, parent_key: 4, key: 5, contents }
    }

    fn record() -> Vec<u8> {
        let payload = |out: &mut Vec<u8>| {
            out.extend([1, 2, 3, 4]);
            Ok(())
        };
        let mut record = encode(11, &place(), 4, payload).unwrap();
        seal(&mut record);
        record
    }

    #[test]
    fn a_record_gives_its_payload_for_its_own_place_only() {
        let record = record();
        assert_eq!(record.len(), size(3, 4));
        assert_eq!(decode(&record, 11, &place()), Some(&[1, 2, 3, 4][..]));
        assert_eq!(decode(&record, 12, &place()), None);
        let others: [fn(&mut Place); 6] = [
            |place| place.kind = Kind::State,
            |place| place.salt = 0,
            |place| place.parent_key = 0,
            |place| place.key = 0,
            |place| place.contents[1] = 0.into(),
            |place| place.contents.truncate(2),
        ];
        for other in others {
            let mut wanted = place();
            other(&mut wanted);
            assert_eq!(decode(&record, 11, &wanted), None, "{wanted:?}");
        }
    }

    #[test]
    fn damage_anywhere_is_found() {
        let record = record();
        for at in 0..record.len() {
            assert_eq!(decode(&record[..at], 11, &place()), None, "cut at {at}");
            for bit in 0..8 {
                let mut damaged = record.clone();
                damaged[at] ^= 1 << bit;
                assert_eq!(decode(&damaged, 11, &place()), None, "bit {bit} of byte {at}");
            }
        }
    }
}
