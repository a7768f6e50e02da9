//! The decoders, which see only files that `header` has read.

use super::super::{Limits, Pixels, bytes_of};
use super::header::{Format, Header};
use crate::base::{Error, Result, grow, panics};
use std::io::Cursor;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Decodes the stored picture, not rotated. A decoder that panics has met a damaged picture too.
pub(super) fn decode(encoded: &[u8], header: &Header, limits: &Limits) -> Result<Pixels> {
    let bad = || damaged(header.format);
    let decoded = panics::catch(|| match header.format {
        Format::Png => png(encoded, header, limits),
        Format::Jpeg => jpeg(encoded, header),
        Format::WebP => webp(encoded, header, limits),
        Format::Gif => gif(encoded, header, limits),
    });
    let rgb = decoded.unwrap_or_else(|_| Err(bad()))?;
    let Header { width, height, .. } = *header;
    if bytes_of(width, height) != Some(rgb.len()) {
        return Err(bad());
    }
    Ok(Pixels { width, height, rgb })
}

/// Without the decoder's words, which are for programmers: some are Rust's debug output.
fn damaged(format: Format) -> Error {
    let name = format.name();
    Error::invalid(format!("the picture is damaged, or a kind of {name} that is not supported"))
}

/// Bytes that a decoder may take for the picture and its tables.
fn room(limits: &Limits) -> usize {
    usize::try_from(limits.pixels).unwrap_or(usize::MAX).saturating_mul(8).saturating_add(1 << 20)
}

fn buffer(len: Option<usize>) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    grow(&mut buffer, len.unwrap_or(usize::MAX), "a picture")?;
    Ok(buffer)
}

fn png(encoded: &[u8], header: &Header, limits: &Limits) -> Result<Vec<u8>> {
    let bad = |_| damaged(Format::Png);
    let mut decoder =
        png::Decoder::new_with_limits(Cursor::new(encoded), png::Limits { bytes: room(limits) });
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(bad)?;
    let (colors, depth) = reader.output_color_type();
    let channels = match colors {
        png::ColorType::Grayscale => 1,
        png::ColorType::GrayscaleAlpha => 2,
        png::ColorType::Rgb => 3,
        png::ColorType::Rgba => 4,
        png::ColorType::Indexed => return Err(damaged(Format::Png)),
    };
    let len = bytes_of(header.width, header.height).and_then(|bytes| (bytes / 3).checked_mul(channels));
    if depth != png::BitDepth::Eight || reader.output_buffer_size() != len {
        return Err(damaged(Format::Png));
    }
    let mut pixels = buffer(len)?;
    reader.next_frame(&mut pixels).map_err(bad)?;
    to_rgb(pixels, channels)
}

fn jpeg(encoded: &[u8], header: &Header) -> Result<Vec<u8>> {
    let options = DecoderOptions::default()
        .set_max_width(header.width as usize)
        .set_max_height(header.height as usize)
        .set_strict_mode(false)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(encoded), options);
    let bad = |_| damaged(Format::Jpeg);
    decoder.decode_headers().map_err(bad)?;
    if decoder.dimensions() != Some((header.width as usize, header.height as usize)) {
        return Err(damaged(Format::Jpeg));
    }
    let mut pixels = buffer(decoder.output_buffer_size())?;
    decoder.decode_into(&mut pixels).map_err(bad)?;
    Ok(pixels)
}

fn webp(encoded: &[u8], header: &Header, limits: &Limits) -> Result<Vec<u8>> {
    let bad = |_| damaged(Format::WebP);
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(encoded)).map_err(bad)?;
    decoder.set_memory_limit(room(limits));
    if decoder.dimensions() != (header.width, header.height) {
        return Err(damaged(Format::WebP));
    }
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut pixels = buffer(decoder.output_buffer_size())?;
    decoder.read_image(&mut pixels).map_err(bad)?;
    to_rgb(pixels, channels)
}

/// The first frame on the logical screen, which elsewhere is transparent or has the palette's first colour.
fn gif(encoded: &[u8], header: &Header, limits: &Limits) -> Result<Vec<u8>> {
    let bad = |_| damaged(Format::Gif);
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    options.check_frame_consistency(true);
    let room = std::num::NonZeroU64::new(room(limits) as u64);
    options.set_memory_limit(room.map_or(gif::MemoryLimit::Unlimited, gif::MemoryLimit::Bytes));
    let mut decoder = options.read_info(Cursor::new(encoded)).map_err(bad)?;
    let Some(frame) = decoder.next_frame_info().map_err(bad)? else {
        return Err(damaged(Format::Gif));
    };
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (wide, high, opaque) =
        (usize::from(frame.width), usize::from(frame.height), frame.transparent.is_none());
    let (width, height) = (header.width as usize, header.height as usize);
    if wide == 0 || left + wide > width || top + high > height {
        return Err(damaged(Format::Gif));
    }
    let mut pixels = buffer(wide.checked_mul(high).and_then(|pixels| pixels.checked_mul(4)))?;
    decoder.read_into_buffer(&mut pixels).map_err(bad)?;
    let pixels = to_rgb(pixels, 4)?;
    if (wide, high) == (width, height) {
        return Ok(pixels);
    }
    let mut screen = buffer(bytes_of(header.width, header.height))?;
    match decoder.palette().map_err(bad)?.first_chunk::<3>().filter(|_| opaque) {
        Some(color) => screen.as_chunks_mut::<3>().0.fill(*color),
        None => screen.fill(255),
    }
    for (row, line) in pixels.chunks_exact(wide * 3).enumerate() {
        let at = ((top + row) * width + left) * 3;
        screen[at..at + wide * 3].copy_from_slice(line);
    }
    Ok(screen)
}

/// Grey, grey with alpha, RGB or RGBA to RGB, over white.
fn to_rgb(mut pixels: Vec<u8>, channels: usize) -> Result<Vec<u8>> {
    match channels {
        3 => return Ok(pixels),
        4 => {
            // Each pixel moves to the front, so nothing is overwritten before it is read.
            for n in 0..pixels.len() / 4 {
                let [red, green, blue, alpha] = [0, 1, 2, 3].map(|channel| pixels[n * 4 + channel]);
                let color = [red, green, blue].map(|color| over_white(color, alpha));
                pixels[n * 3..n * 3 + 3].copy_from_slice(&color);
            }
            pixels.truncate(pixels.len() / 4 * 3);
            return Ok(pixels);
        }
        _ => {}
    }
    let mut rgb = buffer((pixels.len() / channels).checked_mul(3))?;
    for (color, pixel) in rgb.chunks_exact_mut(3).zip(pixels.chunks_exact(channels)) {
        color.fill(over_white(pixel[0], pixel.get(1).copied().unwrap_or(255)));
    }
    Ok(rgb)
}

/// Pillow's alpha composition over opaque white: the mean of both in 7 more bits, divided by 255 with rounding.
fn over_white(color: u8, alpha: u8) -> u8 {
    let (color, alpha) = (u32::from(color), u32::from(alpha));
    let sum = (color * alpha + 255 * (255 - alpha)) * 128 + (128 << 7);
    ((((sum >> 8) + sum) >> 8) >> 7) as u8
}
