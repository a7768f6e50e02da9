//! Decoding against Pillow; damaged files and bombs.

use super::super::{Limits, Pixels, decode, memory, size};
use super::{golden, json, number};
use crate::base::Status;
use crate::rng::Rng;
use serde_json::Value;

const LIMITS: Limits = Limits { bytes: 1 << 20, side: 5000, pixels: 1 << 20 };

struct File {
    name: String,
    encoded: Vec<u8>,
    /// Pillow's.
    pixels: Pixels,
}

fn files() -> Vec<File> {
    let expected = std::fs::read(golden("files.rgb")).expect("files.rgb");
    let file = |case: &Value| {
        let name = case["file"].as_str().expect("a name").to_owned();
        let (width, height, at) =
            (number(&case["width"]), number(&case["height"]), number(&case["at"]) as usize);
        let encoded = std::fs::read(golden("files").join(&name)).expect("a file");
        let rgb = expected[at..at + (width * height * 3) as usize].to_vec();
        File { name, encoded, pixels: Pixels::new(width, height, rgb).expect("a picture") }
    };
    json("files.json")["cases"].as_array().expect("cases").iter().map(file).collect()
}

/// The largest difference of a byte, and the mean difference.
fn difference(a: &Pixels, b: &Pixels) -> (u8, f64) {
    let differences = a.rgb.iter().zip(&b.rgb).map(|(a, b)| a.abs_diff(*b));
    let sum: f64 = differences.clone().map(f64::from).sum();
    (differences.max().unwrap_or(0), sum / a.rgb.len() as f64)
}

/// Formats without loss agree bit for bit. JPEG and lossy WebP are rounded by their decoders.
#[test]
fn pixels_are_those_of_pillow() {
    let files = files();
    assert!(files.len() > 40);
    for File { name, encoded, pixels } in &files {
        let decoded = decode(encoded, &LIMITS).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((decoded.width, decoded.height), (pixels.width, pixels.height), "{name}");
        assert_eq!(size(encoded, &LIMITS).expect("a size"), (pixels.width, pixels.height), "{name}");
        let (most, mean) = difference(&decoded, pixels);
        let (allowed, mean_allowed) = if name.ends_with(".jpg") { (4, 0.5) } else { (0, 0.0) };
        assert!(most <= allowed && mean <= mean_allowed, "{name}: {most}, {mean}");
    }
}

/// A picture that is not whole is refused. A GIF may end after its first frame.
#[test]
fn a_cut_file_is_refused_at_every_length() {
    for File { name, encoded, .. } in files() {
        let whole = decode(&encoded, &LIMITS).expect("a picture");
        for len in 0..encoded.len() {
            match decode(&encoded[..len], &LIMITS) {
                Ok(pixels) => assert!(name.ends_with(".gif") && pixels == whole, "{name}, {len} bytes"),
                Err(error) => assert_eq!(error.status, Status::InvalidArgument, "{name}: {error}"),
            }
        }
    }
}

#[test]
fn damage_is_an_error_or_other_pixels() {
    let mut rng = Rng(0x91c7);
    let mut refused = 0;
    for File { name, encoded, .. } in files() {
        for _ in 0..200 {
            let mut bytes = encoded.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            match decode(&bytes, &LIMITS) {
                Ok(pixels) => {
                    LIMITS.check(pixels.width, pixels.height).expect("within limits");
                    pixels.check().expect("whole");
                    assert_eq!(size(&bytes, &LIMITS).expect("a size"), (pixels.width, pixels.height));
                }
                Err(error) => {
                    assert_eq!(error.status, Status::InvalidArgument, "{name}: {error}");
                    assert!(error.message.contains("the picture"), "{name}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

fn named(name: &str) -> Vec<u8> {
    std::fs::read(golden("files").join(name)).expect("a file")
}

/// Sizes are refused before memory for them is taken: no machine has it.
#[test]
fn bombs_are_refused_by_their_headers() {
    let mut png = named("rgb.png");
    png[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    let mut gif = named("plain.gif");
    gif[6..10].fill(0xff);
    let mut jpeg = named("444.jpg");
    let at = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("SOF0");
    jpeg[at + 5..at + 9].fill(0xff);
    let mut webp = named("lossy.webp");
    webp[26..30].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    let mut canvas = named("exif.webp");
    canvas[24..30].fill(0xff);
    for (bytes, side) in
        [(png, "60000x60000"), (gif, "65535x65535"), (jpeg, "65535x65535"), (webp, "16383x16383")]
    {
        let error = decode(&bytes, &LIMITS).expect_err("a bomb");
        assert!(error.status == Status::InvalidArgument && error.message.contains(side), "{error}");
        assert!(size(&bytes, &LIMITS).is_err());
        // Nor with limits that the size alone would pass.
        let wide = Limits { side: u32::MAX, ..LIMITS };
        assert!(decode(&bytes, &wide).expect_err("a bomb").message.contains("1048576 are allowed"));
    }
    assert!(decode(&canvas, &LIMITS).expect_err("a bomb").message.contains("16777216x16777216"));
}

/// A canvas of a few pixels does not excuse a bitstream of many.
#[test]
fn a_bitstream_larger_than_its_canvas_is_refused() {
    for (name, tag) in [("exif.webp", b"VP8 "), ("frames.webp", b"VP8 "), ("frames-alpha.webp", b"VP8L")] {
        let mut webp = named(name);
        let at = webp.windows(4).position(|four| four == tag).expect("a bitstream") + 8;
        match tag {
            b"VP8 " => webp[at + 6..at + 10].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]),
            _ => webp[at + 1..at + 4].fill(0xff),
        }
        assert!(decode(&webp, &LIMITS).expect_err("a bomb").message.contains("damaged"), "{name}");
    }
}

/// Tables of prefix codes take hundreds of times the bytes that they are read from.
#[test]
fn a_lossless_webp_of_many_bytes_needs_limits_with_room_for_its_tables() {
    let webp = named("lossless.webp");
    let padded = |bytes: usize| {
        let mut padded = [&webp[..], &vec![0; bytes]].concat();
        let riff = padded.len() as u32 - 8;
        padded[4..8].copy_from_slice(&riff.to_le_bytes());
        padded[16..20].copy_from_slice(&(riff - 12).to_le_bytes());
        padded
    };
    assert!(decode(&padded(10_000), &LIMITS).is_ok());
    let large = padded(200_000);
    assert!(decode(&large, &LIMITS).expect_err("tables").message.contains("most are tables"));
    let wide = Limits { pixels: 4 << 20, ..LIMITS };
    assert!(decode(&large, &wide).is_ok() && memory(&large, &wide).expect("bytes") > 70_000_000);
}

#[test]
fn memory_is_within_that_of_the_limits() {
    for File { name, encoded, pixels } in files() {
        let bytes = memory(&encoded, &LIMITS).expect("bytes");
        assert!(bytes > pixels.rgb.len() as u64 * 6 && bytes < LIMITS.memory(), "{name}: {bytes}");
    }
}

/// Each takes time for all pixels, and few bytes.
#[test]
fn a_jpeg_of_very_many_scans_is_refused() {
    let jpeg = named("progressive.jpg");
    let at = jpeg.windows(2).rposition(|pair| pair == [0xff, 0xda]).expect("a scan");
    let (before, last) = jpeg[..jpeg.len() - 2].split_at(at);
    let times = |n: usize| [before, &last.repeat(n), &[0xff, 0xd9]].concat();
    assert!(decode(&times(1), &LIMITS).is_ok());
    let error = decode(&times(100), &LIMITS).expect_err("too many");
    assert!(error.message.contains("JPEG structure is not supported"), "{error}");
}

/// In words for whoever sent the picture, not in those of its decoder.
#[test]
fn damage_is_told_by_the_format() {
    let mut png = named("rgb.png");
    let at = png.windows(4).position(|four| four == b"IDAT").expect("pixels") + 8;
    png[at] ^= 0xff;
    let mut jpeg = named("444.jpg");
    let at = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("SOF0");
    jpeg[at + 4] = 12;
    for (bytes, name) in [(png, "PNG"), (jpeg, "JPEG")] {
        let error = decode(&bytes, &LIMITS).expect_err(name);
        let words = format!("the picture is damaged, or a kind of {name} that is not supported");
        assert_eq!((error.status, error.message), (Status::InvalidArgument, words));
    }
}

#[test]
fn limits_are_named() {
    let png = named("rgb.png");
    let at_most = |bytes, side, pixels| decode(&png, &Limits { bytes, side, pixels });
    assert!(at_most(png.len(), 19, 209).is_ok());
    assert!(at_most(png.len() - 1, 19, 209).expect_err("bytes").message.contains("641 are allowed"));
    assert!(at_most(png.len(), 18, 209).expect_err("a side").message.contains("a side may have 18"));
    assert!(at_most(png.len(), 19, 208).expect_err("pixels").message.contains("208 are allowed"));
    for (bytes, what) in
        [(&b""[..], "neither"), (b"%PDF-1.7", "neither"), (b"\x89PNG\r\n\x1a\n", "its PNG structure")]
    {
        let error = decode(bytes, &Limits::default()).expect_err(what);
        assert!(error.message.contains(what), "{error}");
    }
}
