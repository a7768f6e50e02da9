//! Encoded pictures to pixels, as Pillow opens them and transformers converts them: the first frame, upright, in RGB,
//! transparent pixels over white.
//!
//! Sizes are read from headers and checked before memory is taken. What a file claims beyond its end is refused, so
//! that no picture is partly grey.

mod header;

#[cfg(feature = "pictures")]
mod codecs;

use self::header::Header;
use super::{Limits, Pixels};
use crate::base::{Error, Result};

#[cfg(not(feature = "pictures"))]
mod codecs {
    use super::*;

    pub(super) fn decode(_: &[u8], header: &Header, _: &Limits) -> Result<Pixels> {
        let format = header.format.name();
        Err(Error::unsupported(format!(
            "the picture is a {format}, and this library was built without the feature 'pictures', which decodes it: \
             give its pixels"
        )))
    }
}

/// Width and height of an encoded picture after the rotation that its EXIF data ask for, without decoding it.
/// `InvalidArgument` if it is none, is damaged, or is beyond `limits`.
pub fn size(encoded: &[u8], limits: &Limits) -> Result<(u32, u32)> {
    let header = checked(encoded, limits)?;
    Ok(match header.turns_sides() {
        true => (header.height, header.width),
        false => (header.width, header.height),
    })
}

/// Decodes a PNG, JPEG, WebP or GIF. `InvalidArgument` if it is none of them, is damaged, or is beyond `limits`;
/// `OutOfMemory`; `Unsupported` in a build without the feature `pictures`.
pub fn decode(encoded: &[u8], limits: &Limits) -> Result<Pixels> {
    let header = checked(encoded, limits)?;
    let pixels = codecs::decode(&encoded[..header.end], &header, limits)?;
    upright(pixels, header.orientation)
}

/// Bytes that decoding a picture may take, its pixels included. `InvalidArgument` as for `size`.
pub fn memory(encoded: &[u8], limits: &Limits) -> Result<u64> {
    Ok(decoding(encoded, &checked(encoded, limits)?))
}

/// A decoder keeps at most 12 bytes for each pixel (an animation in WebP, a progressive JPEG), and parts of the file.
fn decoding(encoded: &[u8], header: &Header) -> u64 {
    u64::from(header.width) * u64::from(header.height) * 16 + encoded.len() as u64 + header.tables
}

fn checked(encoded: &[u8], limits: &Limits) -> Result<Header> {
    if encoded.len() > limits.bytes {
        let (has, most) = (encoded.len(), limits.bytes);
        return Err(Error::invalid(format!("the picture has {has} bytes; {most} are allowed")));
    }
    let header = Header::read(encoded)?;
    limits.check(header.width, header.height)?;
    let (takes, most) = (decoding(encoded, &header), limits.memory());
    if takes > most {
        return Err(Error::invalid(format!(
            "decoding the picture may take {takes} bytes, of which most are tables; {most} are allowed"
        )));
    }
    Ok(header)
}

/// Rotates and mirrors by EXIF's orientation, 1 to 8.
fn upright(pixels: Pixels, orientation: u8) -> Result<Pixels> {
    let (width, height) = (pixels.width as usize, pixels.height as usize);
    // The source of the pixel in row y and column x, as (column, row).
    let source: fn(usize, usize, usize, usize) -> (usize, usize) = match orientation {
        2 => |x, y, width, _| (width - 1 - x, y),
        3 => |x, y, width, height| (width - 1 - x, height - 1 - y),
        4 => |x, y, _, height| (x, height - 1 - y),
        5 => |x, y, _, _| (y, x),
        6 => |x, y, _, height| (y, height - 1 - x),
        7 => |x, y, width, height| (width - 1 - y, height - 1 - x),
        8 => |x, y, width, _| (width - 1 - y, x),
        _ => return Ok(pixels),
    };
    let (wide, high) = if orientation >= 5 { (height, width) } else { (width, height) };
    let mut rgb = Vec::new();
    crate::base::reserve(&mut rgb, pixels.rgb.len(), "a picture")?;
    for y in 0..high {
        for x in 0..wide {
            let (column, row) = source(x, y, width, height);
            let at = (row * width + column) * 3;
            rgb.extend_from_slice(&pixels.rgb[at..at + 3]);
        }
    }
    Ok(Pixels { width: wide as u32, height: high as u32, rgb })
}
