//! Resizing against plain code in f64.

use super::super::{Filter, Pixels, resize};
use super::picture;
use proptest::prelude::*;
use std::f64::consts::PI;

const FILTERS: [Filter; 3] = [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos];

fn weight(filter: Filter, x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) };
    let x = x.abs();
    match filter {
        Filter::Bilinear => (1.0 - x).max(0.0),
        Filter::Bicubic if x < 1.0 => 1.5 * x.powi(3) - 2.5 * x.powi(2) + 1.0,
        Filter::Bicubic if x < 2.0 => -0.5 * x.powi(3) + 2.5 * x.powi(2) - 4.0 * x + 2.0,
        Filter::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
        _ => 0.0,
    }
}

/// One axis: weighted means over all pixels, not rounded.
fn plain_axis(line: &[f64], to: usize, filter: Filter) -> Vec<f64> {
    let scale = line.len() as f64 / to as f64;
    let mean = |n: usize| {
        let center = (n as f64 + 0.5) * scale;
        let weights: Vec<f64> =
            (0..line.len()).map(|k| weight(filter, (k as f64 + 0.5 - center) / scale.max(1.0))).collect();
        let sum: f64 = weights.iter().zip(line).map(|(weight, value)| weight * value).sum();
        sum / weights.iter().sum::<f64>()
    };
    (0..to).map(mean).collect()
}

/// Rows, then columns, with bytes in between if both change.
fn plain(pixels: &Pixels, width: usize, height: usize, filter: Filter) -> Vec<f64> {
    let (from_width, from_height) = (pixels.width as usize, pixels.height as usize);
    let mut out = vec![0.0; width * height * 3];
    for channel in 0..3 {
        let mut narrowed = Vec::new();
        for y in 0..from_height {
            let line: Vec<f64> =
                (0..from_width).map(|x| f64::from(pixels.rgb[(y * from_width + x) * 3 + channel])).collect();
            let bytes =
                |value: f64| if height == from_height { value } else { value.round() }.clamp(0.0, 255.0);
            narrowed.extend(plain_axis(&line, width, filter).into_iter().map(bytes));
        }
        for x in 0..width {
            let line: Vec<f64> = (0..from_height).map(|y| narrowed[y * width + x]).collect();
            for (y, value) in plain_axis(&line, height, filter).into_iter().enumerate() {
                out[(y * width + x) * 3 + channel] = value.clamp(0.0, 255.0);
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    /// One axis is rounded to a byte, with weights of 14 bits. With two, rounding after the first counts as much as the
    /// weights of the second do, of which those of Lanczos add up to 1.7 without signs.
    #[test]
    fn every_filter_is_the_weighted_mean(
        (width, height) in (1u32..40, 1u32..40), (wide, high) in (1u32..90, 1u32..90), which in 0usize..3,
    ) {
        let pixels = picture(width, height);
        for (wide, high, most) in [(wide, height, 0.75), (width, high, 0.75), (wide, high, 2.5)] {
            let resized = resize(&pixels, wide, high, FILTERS[which]).expect("a picture");
            prop_assert_eq!((resized.width, resized.height), (wide, high));
            let want = plain(&pixels, wide as usize, high as usize, FILTERS[which]);
            let differences = resized.rgb.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs());
            let difference = differences.fold(0.0, f64::max);
            prop_assert!(difference < most, "{difference}");
        }
    }

    /// One colour stays that colour.
    #[test]
    fn a_plain_colour_stays(
        (width, height) in (1u32..50, 1u32..50), (wide, high) in (1u32..200, 1u32..200), which in 0usize..3, grey: u8,
    ) {
        let pixels = Pixels::new(width, height, vec![grey; (width * height * 3) as usize]).expect("a picture");
        let resized = resize(&pixels, wide, high, FILTERS[which]).expect("a picture");
        let most = resized.rgb.iter().map(|byte| byte.abs_diff(grey)).max();
        prop_assert!(most <= Some(1), "{most:?}");
    }
}

#[test]
fn a_size_of_its_own_is_a_copy() {
    let pixels = picture(33, 7);
    for filter in FILTERS {
        assert_eq!(resize(&pixels, 33, 7, filter).expect("a copy"), pixels);
        // An axis that keeps its size is not touched: each row becomes the same as in a picture of that row.
        let wider = resize(&pixels, 50, 7, filter).expect("a picture");
        let row = Pixels::new(33, 1, pixels.rgb[..99].to_vec()).expect("a row");
        assert_eq!(wider.rgb[..150], resize(&row, 50, 1, filter).expect("a row").rgb[..]);
    }
}

#[test]
fn empty_sizes_are_refused() {
    let pixels = picture(3, 2);
    for (width, height) in [(0, 2), (2, 0), (u32::MAX, u32::MAX)] {
        assert!(resize(&pixels, width, height, Filter::Bicubic).is_err());
    }
    assert!(Pixels::new(0, 0, Vec::new()).is_err());
    assert!(Pixels::new(2, 2, vec![0; 11]).is_err());
}
