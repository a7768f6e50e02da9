//! Format, size and orientation, from the file's structure alone.

use crate::base::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Png,
    Jpeg,
    WebP,
    Gif,
}

impl Format {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
        }
    }
}

pub(super) struct Header {
    pub format: Format,
    /// As stored, before the rotation.
    pub width: u32,
    pub height: u32,
    /// EXIF's, 1 to 8; 1 if there is none.
    pub orientation: u8,
    /// Where the file ends; what follows is not the decoder's.
    pub end: usize,
    /// Bytes that the decoder may take for tables, whatever the size of the picture.
    pub tables: u64,
}

impl Header {
    /// Reads the structure up to the picture's end. `InvalidArgument` if it is of another format, damaged or cut off.
    pub(super) fn read(encoded: &[u8]) -> Result<Self> {
        let (format, read) = match encoded {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => {
                (Format::Png, png as fn(&[u8]) -> Option<Self>)
            }
            [0xff, 0xd8, 0xff, ..] => (Format::Jpeg, jpeg as _),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => (Format::WebP, webp as _),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => (Format::Gif, gif as _),
            _ => return Err(Error::invalid("the picture is neither PNG, JPEG, WebP nor GIF")),
        };
        read(encoded).ok_or_else(|| {
            let name = format.name();
            Error::invalid(format!(
                "the picture is damaged or cut off, or its {name} structure is not supported"
            ))
        })
    }

    fn new(format: Format, (width, height): (u32, u32), end: usize) -> Self {
        Self { format, width, height, orientation: 1, end, tables: 1 << 20 }
    }

    /// Whether upright width and height are the stored height and width.
    pub(super) fn turns_sides(&self) -> bool {
        self.orientation >= 5
    }
}

/// Each scan of a progressive JPEG costs time for all pixels, however short it is. Encoders write about ten.
const MAX_SCANS: u32 = 100;

/// Reads a number at a place.
type Number = fn(&[u8], usize) -> Option<u32>;

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..)?.first_chunk().copied()
}

fn be16(from: &[u8], at: usize) -> Option<u32> {
    bytes(from, at).map(u16::from_be_bytes).map(u32::from)
}

fn be32(from: &[u8], at: usize) -> Option<u32> {
    bytes(from, at).map(u32::from_be_bytes)
}

fn le16(from: &[u8], at: usize) -> Option<u32> {
    bytes(from, at).map(u16::from_le_bytes).map(u32::from)
}

fn le32(from: &[u8], at: usize) -> Option<u32> {
    bytes(from, at).map(u32::from_le_bytes)
}

/// Chunks of length, type, data and checksum, from IHDR to IEND.
fn png(file: &[u8]) -> Option<Header> {
    let size = (be32(file, 16)?, be32(file, 20)?);
    let (mut at, mut turn) = (8usize, 1);
    loop {
        let kind = bytes::<4>(file, at + 4)?;
        let end = (at + 8).checked_add(be32(file, at)? as usize)?;
        let data = file.get(at + 8..end)?;
        be32(file, end)?;
        match &kind {
            b"IEND" => return Some(Header { orientation: turn, ..Header::new(Format::Png, size, end + 4) }),
            b"eXIf" => turn = orientation(data),
            _ if at == 8 && kind != *b"IHDR" => return None,
            _ => {}
        }
        at = end + 4;
    }
}

/// Segments of marker and length, and entropy-coded data after SOS, from SOI to EOI.
fn jpeg(file: &[u8]) -> Option<Header> {
    let (mut at, mut size, mut turn) = (2usize, None, None);
    let mut scans = 0;
    loop {
        // A marker may be preceded by any number of 0xff; data before it belong to a scan.
        let found = file
            .get(at..)?
            .windows(2)
            .position(|pair| pair[0] == 0xff && !matches!(pair[1], 0x00 | 0xff | 0xd0..=0xd7 | 0x01))?;
        let marker = file[at + found + 1];
        at += found + 2;
        if marker == 0xd9 {
            let header = Header::new(Format::Jpeg, size?, at);
            return Some(Header { orientation: turn.unwrap_or(1), ..header });
        }
        let length = be16(file, at)? as usize;
        let data = file.get(at + 2..at + length.max(2))?;
        match marker {
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                size = Some((be16(data, 3)?, be16(data, 1)?))
            }
            0xda if scans == MAX_SCANS => return None,
            0xda => scans += 1,
            0xe1 if turn.is_none() && data.starts_with(b"Exif\0\0") => turn = Some(orientation(data)),
            _ => {}
        }
        at += length.max(2);
    }
}

/// A RIFF file of chunks of name, length and data, each with an even length. The size of the bitstream must not be
/// beyond that of the canvas: its decoder takes memory by the former.
fn webp(file: &[u8]) -> Option<Header> {
    let end = (le32(file, 4)? as usize).checked_add(8)?;
    let file = file.get(..end)?;
    let (mut canvas, mut turn, mut tables, mut frames) = (None, 1, 1 << 20, 0);
    let mut at = 12usize;
    while let Some(name) = bytes::<4>(file, at) {
        let length = le32(file, at + 4)? as usize;
        let data = file.get(at + 8..(at + 8).checked_add(length)?)?;
        let frame = match &name {
            b"VP8X" if canvas.is_none() => {
                let side = |at| Some((le32(data, at)? & 0xff_ffff) + 1);
                // The last of three bytes is the last of the chunk.
                let height = u32::from_le_bytes([*data.get(7)?, *data.get(8)?, *data.get(9)?, 0]) + 1;
                canvas = Some((side(4)?, height));
                None
            }
            b"VP8 " | b"VP8L" => Some((name, data)),
            b"ANMF" => Some(first_of_frame(data)?),
            b"EXIF" => {
                turn = orientation(data);
                None
            }
            _ => None,
        };
        if let Some((bitstream, data)) = frame {
            let (width, height) = size_of(&bitstream, data)?;
            let (most_wide, most_high) = *canvas.get_or_insert((width, height));
            if width > most_wide || height > most_high {
                return None;
            }
        }
        frames += u32::from(name == *b"ANMF");
        // Of an animation the first frame is decoded.
        tables += match &name {
            b"VP8 " => PARTITION,
            b"VP8L" | b"ALPH" => prefix_codes(length),
            b"ANMF" if frames == 1 => PARTITION + prefix_codes(length),
            _ => 0,
        };
        at = (at + 8).checked_add(length.checked_next_multiple_of(2)?)?;
    }
    Some(Header { orientation: turn, tables, ..Header::new(Format::WebP, canvas?, end) })
}

/// A lossy bitstream says the length of a partition in 24 bits, and its decoder believes it.
const PARTITION: u64 = 1 << 24;

/// Bytes that the decoder of a lossless bitstream of this length may take for prefix codes: one of 11 bytes takes
/// 4 KiB, and there are at most five for each of 2^16 groups.
fn prefix_codes(length: usize) -> u64 {
    (length as u64 * 384).min(5 * (1 << 16) * 4352)
}

/// The bitstream of an animation's frame, which may come after a plane of alpha.
fn first_of_frame(data: &[u8]) -> Option<([u8; 4], &[u8])> {
    let (name, inner) = (bytes::<4>(data, 16)?, data.get(24..)?);
    if name != *b"ALPH" {
        return Some((name, inner));
    }
    let skip = (le32(data, 20)? as usize).checked_next_multiple_of(2)?;
    Some((bytes::<4>(inner, skip)?, inner.get(skip.checked_add(8)?..)?))
}

/// Width and height in the header of a lossy or lossless bitstream.
fn size_of(name: &[u8; 4], data: &[u8]) -> Option<(u32, u32)> {
    match name {
        b"VP8 " => Some((le16(data, 6)? & 0x3fff, le16(data, 8)? & 0x3fff)),
        b"VP8L" => {
            let bits = le32(data, 1)?;
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        _ => None,
    }
}

/// The logical screen. The decoder finds where the first frame ends.
fn gif(file: &[u8]) -> Option<Header> {
    Some(Header::new(Format::Gif, (le16(file, 6)?, le16(file, 8)?), file.len()))
}

/// The orientation in EXIF data: a TIFF file, perhaps after a name. 1 if there is none.
fn orientation(exif: &[u8]) -> u8 {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    in_tiff(tiff).filter(|turn| (1..=8).contains(turn)).map_or(1, |turn| turn as u8)
}

fn in_tiff(tiff: &[u8]) -> Option<u32> {
    const ORIENTATION: u32 = 0x112;
    const SHORT: u32 = 3;
    let (read16, read32): (Number, Number) = match tiff.first_chunk()? {
        b"II*\0" => (le16, le32),
        b"MM\0*" => (be16, be32),
        _ => return None,
    };
    let directory = tiff.get(read32(tiff, 4)? as usize..)?;
    let entries = (0..read16(directory, 0)? as usize).map(|n| 2 + n * 12);
    for at in entries {
        if read16(directory, at)? == ORIENTATION && read16(directory, at + 2)? == SHORT {
            return read16(directory, at + 8);
        }
    }
    None
}
