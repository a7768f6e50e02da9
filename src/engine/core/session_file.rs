//! A session as bytes: its tokens and their K and V, bound to the model that computed them.
//!
//! All numbers are little-endian: [`MAGIC`], then u32 the version, u64 the model's fingerprint, u32 the kind of
//! KV, u32 tokens per block, u64 bytes per block, u64 bytes of a state, u64 the salt, u64 the number of tokens, the
//! tokens as u32, the blocks one after the other, the state of recurrent layers, and XXH64 (seed 0) of all that.

use crate::base::{Error, Result, reserve};
use crate::cache::ContentId;
use crate::kernels::attention::KvType;
use xxhash_rust::xxh64::xxh64;

const MAGIC: &[u8; 8] = b"BNSESSN\0";
const VERSION: u32 = 3;
const HEADER: usize = 8 + 4 + 8 + 4 + 4 + 8 + 8 + 8 + 8;
const CHECKSUM: usize = 8;

/// Properties in which a session must match the engine that restores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Hash of the K and V that the model computes for known tokens.
    pub fingerprint: u64,
    pub kind: KvType,
    pub block_size: u32,
    pub block_bytes: u64,
    /// 0 for a model without recurrent layers.
    pub state_bytes: u64,
}

/// A session's tokens, and the bytes of the blocks that hold them.
#[derive(Debug, PartialEq)]
pub(crate) struct Saved<'a> {
    pub tokens: Vec<ContentId>,
    pub salt: u64,
    pub blocks: &'a [u8],
    pub state: &'a [u8],
}

/// Number of bytes of a session of `tokens` tokens.
pub(crate) fn size(shape: &Shape, tokens: usize) -> usize {
    let blocks = tokens.div_ceil(shape.block_size as usize);
    let data = (shape.block_bytes as usize).saturating_mul(blocks);
    data.saturating_add(shape.state_bytes as usize).saturating_add(HEADER + 4 * tokens + CHECKSUM)
}

/// Encodes a session without its state, which the caller appends, and without the checksum, which `seal` appends so
/// that the engine thread does not hash. `blocks` appends the bytes of block `index`. `Unsupported` for given vectors.
pub(crate) fn encode(
    shape: &Shape,
    tokens: &[ContentId],
    salt: u64,
    blocks: &mut dyn FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let count = tokens.len().div_ceil(shape.block_size as usize);
    reserve(&mut out, size(shape, tokens.len()), "a saved session")?;
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend(shape.fingerprint.to_le_bytes());
    out.extend((shape.kind as u32).to_le_bytes());
    out.extend(shape.block_size.to_le_bytes());
    out.extend(shape.block_bytes.to_le_bytes());
    out.extend(shape.state_bytes.to_le_bytes());
    out.extend(salt.to_le_bytes());
    out.extend((tokens.len() as u64).to_le_bytes());
    for token in tokens {
        let token =
            token.token().ok_or_else(|| Error::unsupported("a session with pictures cannot be saved"))?;
        out.extend(token.to_le_bytes());
    }
    (0..count).try_for_each(|index| blocks(index, &mut out))?;
    Ok(out)
}

/// Appends the checksum.
pub(crate) fn seal(session: &mut Vec<u8>) {
    session.extend(xxh64(session, 0).to_le_bytes());
}

fn refused<T>(why: String) -> Result<T> {
    Err(Error::invalid(format!("this is no session that can be restored: {why}")))
}

/// Checks and removes the checksum. `InvalidArgument` if the bytes are damaged or no session.
pub(crate) fn unseal(bytes: &[u8]) -> Result<&[u8]> {
    if bytes.len() < HEADER + CHECKSUM || !bytes.starts_with(MAGIC) {
        return refused("it does not begin like one".into());
    }
    let version = Fields(&bytes[MAGIC.len()..]).u32();
    if version != VERSION {
        return refused(format!("it has version {version}, this library reads {VERSION}"));
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    match xxh64(content, 0) == Fields(checksum).u64() {
        true => Ok(content),
        false => refused("it is damaged or cut off".into()),
    }
}

/// The fields of a header, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> u32 {
        let (field, rest) = self.0.split_first_chunk().unwrap_or((&[0; 4], &[]));
        self.0 = rest;
        u32::from_le_bytes(*field)
    }

    fn u64(&mut self) -> u64 {
        let (field, rest) = self.0.split_first_chunk().unwrap_or((&[0; 8], &[]));
        self.0 = rest;
        u64::from_le_bytes(*field)
    }
}

/// Decodes the result of `unseal`. `InvalidArgument` for a session of another model, KV type or block size, and
/// for a forged one.
pub(crate) fn decode<'a>(content: &'a [u8], shape: &Shape, vocab: usize) -> Result<Saved<'a>> {
    if content.len() < HEADER {
        return refused("it is cut off".into());
    }
    let mut fields = Fields(&content[MAGIC.len() + size_of_val(&VERSION)..HEADER]);
    let fingerprint = fields.u64();
    let (kind, block_size, block_bytes) = (fields.u32(), fields.u32(), fields.u64());
    if (kind, block_size, block_bytes) != (shape.kind as u32, shape.block_size, shape.block_bytes) {
        let kind =
            KvType::ALL.into_iter().find(|of| *of as u32 == kind).map_or("an unknown type", KvType::name);
        return refused(format!(
            "its KV cache has {kind} and blocks of {block_size} tokens and {block_bytes} bytes; the engine's has {}, {} \
             and {}",
            shape.kind.name(),
            shape.block_size,
            shape.block_bytes
        ));
    }
    let state_bytes = fields.u64();
    if (fingerprint, state_bytes) != (shape.fingerprint, shape.state_bytes) {
        return refused("another model has computed it".into());
    }
    let (salt, count) = (fields.u64(), fields.u64());
    let data = &content[HEADER..];
    let blocks = count.div_ceil(u64::from(block_size));
    let expected =
        count.checked_mul(4).zip(blocks.checked_mul(block_bytes)).and_then(|(a, b)| a.checked_add(b));
    let expected = expected.and_then(|bytes| bytes.checked_add(state_bytes));
    if count == 0 || expected != Some(data.len() as u64) {
        return refused(format!("it has {} bytes for {count} tokens", data.len()));
    }
    let (ids, blocks) = data.split_at(4 * count as usize);
    let (blocks, state) = blocks.split_at(blocks.len() - state_bytes as usize);
    let mut tokens = Vec::new();
    reserve(&mut tokens, count as usize, "a restored session")?;
    tokens.extend(ids.chunks_exact(4).map(|id| ContentId::from(Fields(id).u32())));
    match tokens.iter().filter_map(|id| id.token()).find(|token| *token as usize >= vocab) {
        Some(token) => refused(format!("token {token} is out of range: the vocabulary has {vocab}")),
        None => Ok(Saved { tokens, salt, blocks, state }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { fingerprint: 7, kind: KvType::F16, block_size: 16, block_bytes: 6, state_bytes: 3 };

    fn tokens() -> Vec<ContentId> {
        (0..20).map(ContentId::from).collect()
    }

    fn saved() -> Vec<u8> {
        let mut bytes = encode(&SHAPE, &tokens(), 3, &mut |index, out| {
            out.extend([index as u8; 6]);
            Ok(())
        })
        .unwrap();
        bytes.extend([9; 3]);
        seal(&mut bytes);
        assert_eq!(bytes.len(), size(&SHAPE, 20));
        bytes
    }

    fn open<'a>(bytes: &'a [u8], shape: &Shape, vocab: usize) -> Result<Saved<'a>> {
        decode(unseal(bytes)?, shape, vocab)
    }

    #[test]
    fn what_is_saved_comes_back() {
        let bytes = saved();
        let back = open(&bytes, &SHAPE, 20).unwrap();
        assert_eq!((back.tokens, back.salt), (tokens(), 3));
        assert_eq!(bytes[52..60], 20_u64.to_le_bytes()); // where the header says that hosts find it
        assert_eq!((back.blocks, back.state), (&[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1][..], &[9; 3][..]));
    }

    #[test]
    fn pictures_are_not_saved() {
        let contents = [1.into(), ContentId::of_vector(2, 3)];
        let error = encode(&SHAPE, &contents, 0, &mut |_, _| Ok(())).unwrap_err();
        assert!(error.message.contains("a session with pictures"), "{error}");
    }

    #[test]
    fn what_is_wrong_or_damaged_is_refused() {
        let bytes = saved();
        let refused = |bytes: &[u8], shape: &Shape, vocab, says: &str| {
            let error = open(bytes, shape, vocab).unwrap_err();
            assert!(error.message.contains(says), "{error} should say {says}");
        };
        for end in 0..bytes.len() {
            assert!(open(&bytes[..end], &SHAPE, 20).is_err(), "cut at {end}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(open(&damaged, &SHAPE, 20).is_err(), "byte {at}");
        }
        let mut older = bytes.clone();
        older[MAGIC.len()] = 2;
        refused(&older, &SHAPE, 20, "it has version 2, this library reads 3");
        refused(&bytes, &SHAPE, 19, "token 19 is out of range");
        refused(&bytes, &Shape { fingerprint: 8, ..SHAPE }, 20, "another model");
        refused(&bytes, &Shape { kind: KvType::F32, ..SHAPE }, 20, "has f16 and blocks of 16 tokens");
        refused(&bytes, &Shape { block_size: 32, ..SHAPE }, 20, "blocks of 16 tokens");
        // A wrong count with a valid checksum.
        let mut lying = bytes[..bytes.len() - 8].to_vec();
        lying[HEADER - 8..HEADER].copy_from_slice(&(u64::MAX / 4).to_le_bytes());
        lying.extend(xxh64(&lying, 0).to_le_bytes());
        refused(&lying, &SHAPE, 20, "bytes for");
    }
}
