//! Pictures against transformers and Pillow (tools/golden/pictures.py), and against plain code.

#[cfg(feature = "pictures")]
mod files;
mod hf;
mod processors;
mod resize;

use super::Pixels;
use serde_json::Value;
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pictures").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name)).expect("a golden file")).expect("JSON")
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|n| u32::try_from(n).ok()).expect("a number")
}

/// The picture that tools/golden/pictures.py makes: ramps with noise on them.
fn picture(width: u32, height: u32) -> Pixels {
    let byte = |x: u32, y: u32, c: u32| {
        let mut h = x.wrapping_mul(0x9E37_79B1) ^ y.wrapping_mul(0x85EB_CA77) ^ c.wrapping_mul(0xC2B2_AE3D);
        h ^= h >> 15;
        h = h.wrapping_mul(0x2C1B_3C6D);
        h ^= h >> 12;
        ((x * 3 + y * 5 + c * 40) / 4 % 192 + h % 64) as u8
    };
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let rgb = places.flat_map(|(x, y)| [0, 1, 2].map(|c| byte(x, y, c))).collect();
    Pixels::new(width, height, rgb).expect("a picture")
}

#[cfg(not(feature = "pictures"))]
#[test]
fn without_the_feature_sizes_are_read_and_pictures_refused() {
    let png = std::fs::read(golden("files/rgb.png")).expect("a file");
    let limits = super::Limits::default();
    assert_eq!(super::size(&png, &limits).expect("a size"), (19, 11));
    let error = super::decode(&png, &limits).expect_err("no decoder");
    assert!(
        error.status == crate::base::Status::Unsupported && error.message.contains("'pictures'"),
        "{error}"
    );
}
