//! A session as bytes: its tokens and their K and V, bound to the model that computed them.
//!
//! All numbers are little-endian: [`MAGIC`], then u32 the version, u64 the model's fingerprint, u32 the kind of
//! KV, u32 tokens per block, u64 bytes per block, u64 bytes of a state, u64 the salt, u64 the number of tokens, u64
//! what has made the vectors of pictures (0 without any), u64 the number of their spans, the tokens as u32 (0 for a
//! vector), the spans (u32 the position, u32 the number of vectors, u32 the index of the first in the picture, 32 bytes
//! of the picture's digest), the blocks one after the other, the state of recurrent layers, and XXH64 (seed 0) of all
//! that.

use crate::base::{Error, Result, reserve};
use crate::cache::{ContentId, Digest, PictureSpan};
use crate::kernels::attention::KvType;
use xxhash_rust::xxh64::xxh64;

const MAGIC: &[u8; 8] = b"BNSESSN\0";
const VERSION: u32 = 4;
const HEADER: usize = 8 + 4 + 8 + 4 + 4 + 6 * 8;
const SPAN: usize = 3 * 4 + size_of::<Digest>();
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

/// The pictures of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen<'a> {
    /// `KnownPictures::maker`.
    pub maker: u64,
    pub spans: &'a [PictureSpan],
}

/// A session's tokens, and the bytes of the blocks that hold them.
#[derive(Debug, PartialEq)]
pub(crate) struct Saved<'a> {
    /// Token 0 stands for a vector.
    pub tokens: Vec<ContentId>,
    pub maker: u64,
    pub pictures: Vec<PictureSpan>,
    pub salt: u64,
    pub blocks: &'a [u8],
    pub state: &'a [u8],
}

/// Number of bytes of a session of `tokens` tokens, with `spans` spans of vectors.
pub(crate) fn size(shape: &Shape, tokens: usize, spans: usize) -> usize {
    let blocks = tokens.div_ceil(shape.block_size as usize);
    let data = (shape.block_bytes as usize).saturating_mul(blocks);
    let state = shape.state_bytes as usize;
    data.saturating_add(state).saturating_add(HEADER + 4 * tokens + SPAN * spans + CHECKSUM)
}

/// Encodes a session without its state, which the caller appends, and without the checksum, which `seal` appends so
/// that the engine thread does not hash. `blocks` appends the bytes of block `index`.
pub(crate) fn encode(
    shape: &Shape,
    tokens: &[ContentId],
    pictures: Seen,
    salt: u64,
    blocks: &mut dyn FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let count = tokens.len().div_ceil(shape.block_size as usize);
    reserve(&mut out, size(shape, tokens.len(), pictures.spans.len()), "a saved session")?;
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend(shape.fingerprint.to_le_bytes());
    out.extend((shape.kind as u32).to_le_bytes());
    out.extend(shape.block_size.to_le_bytes());
    out.extend(shape.block_bytes.to_le_bytes());
    out.extend(shape.state_bytes.to_le_bytes());
    out.extend(salt.to_le_bytes());
    out.extend((tokens.len() as u64).to_le_bytes());
    out.extend(pictures.maker.to_le_bytes());
    out.extend((pictures.spans.len() as u64).to_le_bytes());
    let mut vectors = 0;
    for token in tokens {
        vectors += u64::from(token.token().is_none());
        out.extend(token.token().unwrap_or(0).to_le_bytes());
    }
    for span in pictures.spans {
        vectors = vectors.wrapping_sub(span.count.into());
        [span.at, span.count, span.first].iter().for_each(|field| out.extend(field.to_le_bytes()));
        out.extend(span.digest);
    }
    if vectors != 0 {
        return Err(Error::internal("a session has vectors of unknown pictures"));
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

/// Number of spans of pictures in a sealed session.
#[cfg(test)]
pub(crate) fn pictures(sealed: &[u8]) -> u64 {
    Fields(&sealed[HEADER - size_of::<u64>()..]).u64()
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
    let (maker, spans) = (fields.u64(), fields.u64());
    if spans == 0 && maker != 0 {
        return refused("it names what made its pictures, and has none".into());
    }
    let data = &content[HEADER..];
    let blocks = count.div_ceil(u64::from(block_size));
    let parts = [(count, 4), (spans, SPAN as u64), (blocks, block_bytes), (state_bytes, 1)];
    let expected =
        parts.iter().try_fold(0_u64, |sum, (count, bytes)| sum.checked_add(count.checked_mul(*bytes)?));
    if count == 0 || expected != Some(data.len() as u64) {
        return refused(format!("it has {} bytes for {count} tokens", data.len()));
    }
    let (ids, rest) = data.split_at(4 * count as usize);
    let (spans, blocks) = rest.split_at(SPAN * spans as usize);
    let pictures = decode_spans(spans, count)?;
    let (blocks, state) = blocks.split_at(blocks.len() - state_bytes as usize);
    let mut tokens = Vec::new();
    reserve(&mut tokens, count as usize, "a restored session")?;
    tokens.extend(ids.chunks_exact(4).map(|id| ContentId::from(Fields(id).u32())));
    match tokens.iter().filter_map(|id| id.token()).find(|token| *token as usize >= vocab) {
        Some(token) => refused(format!("token {token} is out of range: the vocabulary has {vocab}")),
        None => Ok(Saved { tokens, maker, pictures, salt, blocks, state }),
    }
}

/// Reads the spans of vectors among `count` positions.
fn decode_spans(bytes: &[u8], count: u64) -> Result<Vec<PictureSpan>> {
    let (mut pictures, mut end) = (Vec::new(), 0);
    reserve(&mut pictures, bytes.len() / SPAN, "a restored session")?;
    for span in bytes.chunks_exact(SPAN) {
        let mut fields = Fields(span);
        let (at, vectors, first) = (fields.u32(), fields.u32(), fields.u32());
        let digest = *fields.0.first_chunk().unwrap_or(&[0; size_of::<Digest>()]);
        let after = u64::from(at) + u64::from(vectors);
        if vectors == 0 || u64::from(at) < end || after > count || first.checked_add(vectors).is_none() {
            return refused(format!("its pictures are not where {count} tokens have room for them"));
        }
        end = after;
        pictures.push(PictureSpan { at, count: vectors, first, digest });
    }
    Ok(pictures)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { fingerprint: 7, kind: KvType::F16, block_size: 16, block_bytes: 6, state_bytes: 3 };

    fn tokens() -> Vec<ContentId> {
        (0..20).map(ContentId::from).collect()
    }

    fn spans() -> Vec<PictureSpan> {
        let span = |at, count, first, digest| PictureSpan { at, count, first, digest: [digest; 32] };
        vec![span(2, 3, 0, 1), span(5, 1, 0, 2), span(19, 1, 4, 1)]
    }

    fn saved_with(tokens: &[ContentId], pictures: Seen) -> Vec<u8> {
        let mut bytes = encode(&SHAPE, tokens, pictures, 3, &mut |index, out| {
            out.extend([index as u8; 6]);
            Ok(())
        })
        .unwrap();
        bytes.extend([9; 3]);
        seal(&mut bytes);
        assert_eq!(bytes.len(), size(&SHAPE, 20, pictures.spans.len()));
        bytes
    }

    fn saved() -> Vec<u8> {
        saved_with(&tokens(), Seen { maker: 0, spans: &[] })
    }

    /// Tokens with vectors in the spans.
    fn seen(spans: &[PictureSpan]) -> Vec<ContentId> {
        let mut all = tokens();
        for span in spans {
            (span.at as usize..).zip(span.contents(7)).for_each(|(at, content)| all[at] = content);
        }
        all
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
    fn pictures_come_back_as_spans() {
        let bytes = saved_with(&seen(&spans()), Seen { maker: 5, spans: &spans() });
        let back = open(&bytes, &SHAPE, 20).unwrap();
        assert_eq!((back.maker, &back.pictures), (5, &spans()));
        let vectors: Vec<u32> = spans().iter().flat_map(|span| span.at..span.at + span.count).collect();
        let want = |at: u32| if vectors.contains(&at) { 0 } else { at };
        assert_eq!(back.tokens, (0..20).map(|at| want(at).into()).collect::<Vec<ContentId>>());
        assert_eq!((back.blocks.len(), back.state), (12, &[9; 3][..]));
        // Vectors of no picture would become tokens.
        for some in [&spans()[..2], &[]] {
            let result =
                encode(&SHAPE, &seen(&spans()), Seen { maker: 5, spans: some }, 0, &mut |_, _| Ok(()));
            assert!(result.unwrap_err().message.contains("unknown pictures"));
        }
    }

    #[test]
    fn pictures_in_wrong_places_are_refused() {
        let forged = |change: fn(&mut [PictureSpan])| {
            let mut wrong = spans();
            change(&mut wrong);
            let (right, mut bytes) = (spans(), Vec::new());
            bytes.extend(saved_with(&seen(&right), Seen { maker: 5, spans: &right }));
            for (at, span) in wrong.iter().enumerate() {
                let fields = [span.at, span.count, span.first].map(u32::to_le_bytes).concat();
                bytes[HEADER + 4 * 20 + SPAN * at..][..12].copy_from_slice(&fields);
            }
            bytes.truncate(bytes.len() - CHECKSUM);
            seal(&mut bytes);
            open(&bytes, &SHAPE, 20).map(|back| back.pictures)
        };
        assert_eq!(forged(|_| ()).unwrap(), spans());
        let wrong: [fn(&mut [PictureSpan]); 6] = [
            |spans| spans[0].count = 0,
            |spans| spans[0].count = 4,
            |spans| spans[2].at = 20,
            |spans| spans[2].count = u32::MAX,
            |spans| spans[0].first = u32::MAX - 1,
            |spans| spans.swap(0, 1),
        ];
        for change in wrong {
            let error = forged(change).unwrap_err();
            assert!(error.message.contains("its pictures are not where 20 tokens"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_or_damaged_is_refused() {
        let bytes = saved();
        let refused = |bytes: &[u8], shape: &Shape, vocab, says: &str| {
            let error = open(bytes, shape, vocab).unwrap_err();
            assert!(error.message.contains(says), "{error} should say {says}");
        };
        for bytes in [bytes.clone(), saved_with(&seen(&spans()), Seen { maker: 5, spans: &spans() })] {
            for end in 0..bytes.len() {
                assert!(open(&bytes[..end], &SHAPE, 20).is_err(), "cut at {end}");
            }
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert!(open(&damaged, &SHAPE, 20).is_err(), "byte {at}");
            }
        }
        let mut older = bytes.clone();
        older[MAGIC.len()] = 3;
        refused(&older, &SHAPE, 20, "it has version 3, this library reads 4");
        refused(&bytes, &SHAPE, 19, "token 19 is out of range");
        refused(&bytes, &Shape { fingerprint: 8, ..SHAPE }, 20, "another model");
        refused(&bytes, &Shape { kind: KvType::F32, ..SHAPE }, 20, "has f16 and blocks of 16 tokens");
        refused(&bytes, &Shape { block_size: 32, ..SHAPE }, 20, "blocks of 16 tokens");
        // Wrong counts with a valid checksum: of tokens, and of spans.
        for (at, count) in [(52, u64::MAX / 4), (68, 1), (68, u64::MAX / 44)] {
            let mut lying = bytes[..bytes.len() - 8].to_vec();
            lying[at..at + 8].copy_from_slice(&count.to_le_bytes());
            seal(&mut lying);
            refused(&lying, &SHAPE, 20, "bytes for");
        }
        let maker = saved_with(&tokens(), Seen { maker: 5, spans: &[] });
        refused(&maker, &SHAPE, 20, "names what made its pictures");
    }
}
