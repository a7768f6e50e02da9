//! Resizing with antialiasing, as torchvision does it for bytes: Pillow's filters in 16-bit fixed point.
//!
//! An output pixel is a weighted mean of those input pixels that lie within the filter's support, which grows with the
//! scale. Weights are computed in f64, normalized, and rounded to i16 with as many bits behind the point as the largest
//! weight allows. The horizontal pass comes first and rounds to bytes, then the vertical one (pytorch's
//! `UpSampleKernel.cpp`; Pillow's own code differs in having 22 bits behind the point).

use super::{Pixels, bytes_of};
use crate::base::{Error, Result, grow, reserve};

/// The weight of a pixel by its distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Triangle.
    Bilinear,
    /// Keys's cubic with a = -0.5.
    Bicubic,
    /// Sinc with a window of three lobes.
    Lanczos,
}

impl Filter {
    /// Distance in pixels beyond which weights are 0.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let at = x.abs();
        match self {
            Self::Bilinear if at < 1.0 => 1.0 - at,
            Self::Bicubic if at < 1.0 => (1.5 * at - 2.5) * at * at + 1.0,
            Self::Bicubic if at < 2.0 => ((-0.5 * at + 2.5) * at - 4.0) * at + 2.0,
            Self::Lanczos if at == 0.0 => 1.0,
            Self::Lanczos if (-3.0..3.0).contains(&x) => {
                let pi = std::f64::consts::PI;
                3.0 * sin_pi(at) * sin_pi(at / 3.0) / (pi * at * pi * at)
            }
            _ => 0.0,
        }
    }
}

/// sin(pi x) for 0 <= x <= 3, to within a rounding. The C library's sine differs between systems.
fn sin_pi(x: f64) -> f64 {
    let turns = x.round();
    let angle = (x - turns) * std::f64::consts::PI;
    let square = angle * angle;
    // The Taylor series: an angle is at most pi / 2.
    let mut sum = 0.0;
    for n in (1..=11).rev() {
        let n = f64::from(n);
        sum = (1.0 + sum) * -square / (2.0 * n * (2.0 * n + 1.0));
    }
    let sine = angle * (1.0 + sum);
    if turns % 2.0 == 0.0 { sine } else { -sine }
}

/// The weights of one axis.
struct Axis {
    /// For each output pixel: its first input pixel.
    starts: Vec<usize>,
    /// For each output pixel: its number of input pixels, at most `stride`.
    counts: Vec<usize>,
    /// [output pixels, stride]
    weights: Vec<i16>,
    stride: usize,
    /// Bits behind the point.
    bits: u32,
}

impl Axis {
    fn new(filter: Filter, from: usize, to: usize) -> Result<Self> {
        let scale = from as f64 / to as f64;
        let support = filter.support() * scale.max(1.0);
        let stride = Self::stride(filter, scale);
        let (mut starts, mut counts) = (Vec::new(), Vec::new());
        let mut exact = Vec::new();
        reserve(&mut starts, to, "a resize")?;
        reserve(&mut counts, to, "a resize")?;
        reserve(&mut exact, to.saturating_mul(stride), "a resize")?;
        let mut largest = 0.0f64;
        for n in 0..to {
            let center = scale * (n as f64 + 0.5);
            let start = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let count = end.saturating_sub(start).min(stride);
            let at = exact.len();
            let distance = |k: usize| (k as f64 + start as f64 - center + 0.5) * (1.0 / scale.max(1.0));
            exact.extend((0..count).map(|k| filter.weight(distance(k))));
            let total: f64 = exact[at..].iter().sum();
            if total != 0.0 {
                exact[at..].iter_mut().for_each(|weight| *weight /= total);
            }
            largest = exact[at..].iter().fold(largest, |most, weight| most.max(*weight));
            exact.resize(at + stride, 0.0);
            starts.push(start);
            counts.push(count);
        }
        let fits = |bits: &u32| (0.5 + largest * f64::from(1u32 << (bits + 1))) as i64 <= i64::from(i16::MAX);
        let bits = (0..22).find(|bits| !fits(bits)).unwrap_or(22);
        let mut weights = Vec::new();
        reserve(&mut weights, exact.len(), "a resize")?;
        let unit = f64::from(1u32 << bits);
        weights.extend(exact.iter().map(|weight| (weight * unit + 0.5f64.copysign(*weight)) as i16));
        Ok(Self { starts, counts, weights, stride, bits })
    }

    /// Number of weights of an output pixel.
    fn stride(filter: Filter, scale: f64) -> usize {
        (filter.support() * scale.max(1.0)).ceil() as usize * 2 + 1
    }

    fn of(&self, n: usize) -> (usize, &[i16]) {
        let at = n * self.stride;
        (self.starts[n], &self.weights[at..at + self.counts[n]])
    }
}

/// Bytes that are computed together.
const LANES: usize = 48;
/// Rows that the horizontal pass computes together.
const ROWS: usize = LANES / 3;

/// `out[i]` is the rounded sum of `weights[k] * source[k * step + i]`.
fn blend<const N: usize>(source: &[u8], step: usize, weights: &[i16], bits: u32, out: &mut [u8; N]) {
    let mut sums = [1i32 << (bits - 1); N];
    for (k, weight) in weights.iter().enumerate() {
        let Some((row, _)) = source[k * step..].split_first_chunk::<N>() else { unreachable!() };
        for (sum, byte) in sums.iter_mut().zip(row) {
            *sum += i32::from(*weight) * i32::from(*byte);
        }
    }
    for (byte, sum) in out.iter_mut().zip(sums) {
        *byte = (sum >> bits).clamp(0, 255) as u8;
    }
}

/// [height, width, 3] to [height, to, 3].
fn horizontal(source: &[u8], width: usize, axis: &Axis, out: &mut [u8]) -> Result<()> {
    let to = axis.starts.len();
    // Rows become lanes: [width, ROWS * 3]
    let mut turned = Vec::new();
    let turned = grow(&mut turned, width * LANES, "a resize")?;
    let rows = source.chunks(width * 3 * ROWS).zip(out.chunks_mut(to * 3 * ROWS));
    for (source, out) in rows {
        for (row, pixels) in source.chunks_exact(width * 3).enumerate() {
            for (x, pixel) in pixels.chunks_exact(3).enumerate() {
                let at = x * LANES + row * 3;
                turned[at..at + 3].copy_from_slice(pixel);
            }
        }
        let mut lanes = [0; LANES];
        for x in 0..to {
            let (start, weights) = axis.of(x);
            blend(&turned[start * LANES..], LANES, weights, axis.bits, &mut lanes);
            for (row, pixel) in out.chunks_exact_mut(to * 3).zip(lanes.chunks_exact(3)) {
                row[x * 3..x * 3 + 3].copy_from_slice(pixel);
            }
        }
    }
    Ok(())
}

/// [height, width, 3] to [to, width, 3].
fn vertical(source: &[u8], width: usize, axis: &Axis, out: &mut [u8]) {
    let line = width * 3;
    for (y, row) in out.chunks_exact_mut(line).enumerate() {
        let (start, weights) = axis.of(y);
        let source = &source[start * line..];
        let (blocks, rest) = row.as_chunks_mut::<LANES>();
        let done = blocks.len() * LANES;
        for (n, block) in blocks.iter_mut().enumerate() {
            blend(&source[n * LANES..], line, weights, axis.bits, block);
        }
        for (n, byte) in rest.iter_mut().enumerate() {
            let mut one = [0];
            blend::<1>(&source[done + n..], line, weights, axis.bits, &mut one);
            *byte = one[0];
        }
    }
}

/// Bytes that `resize` takes besides its result, at most.
pub(super) fn memory(filter: Filter, from: (u32, u32), to: (u32, u32)) -> u64 {
    let axis = |from: u32, to: u32| {
        let weights = u64::from(to) * Axis::stride(filter, f64::from(from) / f64::from(to)) as u64;
        weights * (size_of::<f64>() + size_of::<i16>()) as u64 + u64::from(to) * 2 * size_of::<usize>() as u64
    };
    let narrowed = u64::from(to.0) * u64::from(from.1) * 3;
    narrowed + axis(from.0, to.0).max(axis(from.1, to.1)) + u64::from(from.0) * LANES as u64
}

/// `pixels` with another size; a copy if it has that size already. `InvalidArgument` for an empty size, `OutOfMemory`.
pub fn resize(pixels: &Pixels, width: u32, height: u32, filter: Filter) -> Result<Pixels> {
    pixels.check()?;
    let Some(bytes) = bytes_of(width, height).filter(|bytes| *bytes > 0) else {
        return Err(Error::invalid(format!("a picture cannot be resized to {width}x{height} pixels")));
    };
    let between = bytes_of(width, pixels.height).unwrap_or(usize::MAX);
    let (from, to) = ((pixels.width as usize, pixels.height as usize), (width as usize, height as usize));
    let mut narrowed = Vec::new();
    if from.0 != to.0 {
        let axis = Axis::new(filter, from.0, to.0)?;
        horizontal(&pixels.rgb, from.0, &axis, grow(&mut narrowed, between, "a resized picture")?)?;
    }
    let source = if from.0 == to.0 { &pixels.rgb } else { &narrowed };
    let mut rgb = Vec::new();
    if from.1 != to.1 {
        let axis = Axis::new(filter, from.1, to.1)?;
        vertical(source, to.0, &axis, grow(&mut rgb, bytes, "a resized picture")?);
    } else if from.0 != to.0 {
        rgb = narrowed;
    } else {
        grow(&mut rgb, bytes, "a resized picture")?.copy_from_slice(source);
    }
    Ok(Pixels { width, height, rgb })
}
