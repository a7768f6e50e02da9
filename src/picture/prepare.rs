//! The rows that a tower takes.

use super::processor::{Family, Grid, Plan, Processor};
use super::resize::memory;
use super::{Filter, Pixels, resize};
use crate::base::{Error, Result, reserve};

/// The order of a patch's values.
enum Layout {
    /// [channel, frame, row, column], as a convolution's weights.
    Planes { frames: usize },
    /// [row, column, channel]
    Pixels,
}

impl Plan {
    /// Bytes that `Processor::prepare` with this filter takes at most, the picture's pixels included, without the
    /// patches.
    pub fn memory(&self, filter: Filter) -> u64 {
        let bytes = |image: usize| u64::from(self.size(image).0) * u64::from(self.size(image).1) * 3;
        let own: u64 = (0..=self.images.len()).map(bytes).sum();
        let resized = self.images.iter().map(|to| memory(filter, self.size(to.of), (to.width, to.height)));
        own + resized.max().unwrap_or(0)
    }
}

impl Processor {
    /// Appends rows `[plan.patches(), patch_len]` to `out`: the patches of each grid after each other, row by row; for
    /// Qwen the patches of a soft token after each other. A patch's values are [channel, frame, row, column], for
    /// LFM2-VL and Gemma 4 [row, column, channel]. `InvalidArgument` if `plan` is for another size, `OutOfMemory`.
    pub fn prepare(&self, pixels: &Pixels, plan: &Plan, out: &mut Vec<f32>) -> Result<()> {
        pixels.check()?;
        let (width, height) = plan.source;
        if (pixels.width, pixels.height) != plan.source {
            let is = format!("{}x{}", pixels.width, pixels.height);
            return Err(Error::invalid(format!(
                "the plan is for {width}x{height} pixels, the picture has {is}"
            )));
        }
        let mut images: Vec<Pixels> = Vec::new();
        reserve(&mut images, plan.images.len(), "a picture's sizes")?;
        for image in &plan.images {
            let of = if image.of == 0 { pixels } else { &images[image.of - 1] };
            let image = resize(of, image.width, image.height, self.filter)?;
            images.push(image);
        }
        reserve(out, plan.patches().saturating_mul(self.patch_len()), "a picture's patches")?;
        let values = self.values();
        for (grid, (image, left, top)) in plan.grids.iter().zip(&plan.parts) {
            let image = if *image == 0 { pixels } else { &images[image - 1] };
            self.part(image, *grid, (*left as usize, *top as usize), &values, out);
        }
        Ok(())
    }

    /// For each channel the value of each byte, in f32 as transformers computes it: with a mean, both are multiplied by
    /// 1 / `rescale` first.
    fn values(&self) -> [[f32; 256]; 3] {
        let mut values = [[0.0; 256]; 3];
        for (channel, values) in values.iter_mut().enumerate() {
            for (byte, value) in values.iter_mut().enumerate() {
                let byte = byte as f32;
                *value = match self.normalize {
                    Some(normalize) => {
                        let unit = (1.0 / self.rescale) as f32;
                        (byte - normalize.mean[channel] * unit) / (normalize.std[channel] * unit)
                    }
                    None => byte * self.rescale as f32,
                };
            }
        }
        values
    }

    fn layout(&self) -> Layout {
        match self.family {
            Family::Qwen { frames, .. } => Layout::Planes { frames: frames as usize },
            Family::Lfm2(_) | Family::Gemma4 { .. } => Layout::Pixels,
            _ => Layout::Planes { frames: 1 },
        }
    }

    /// The patches of `grid` that begins at (left, top) of `image`.
    fn part(
        &self,
        image: &Pixels,
        grid: Grid,
        (left, top): (usize, usize),
        values: &[[f32; 256]; 3],
        out: &mut Vec<f32>,
    ) {
        let (rows, cols) = (grid.rows as usize, grid.cols as usize);
        // Patches come in groups of `side` x `side`.
        let side = match self.family {
            Family::Qwen { .. } => self.merge as usize,
            _ => 1,
        };
        let (patch, line) = (self.patch as usize, image.width as usize * 3);
        for group in 0..rows / side * (cols / side) {
            let (group_row, group_col) = (group / (cols / side) * side, group % (cols / side) * side);
            for within in 0..side * side {
                let row = top + (group_row + within / side) * patch;
                let col = left + (group_col + within % side) * patch;
                let at = row * line + col * 3;
                let lines = (0..patch).map(|y| &image.rgb[at + y * line..at + y * line + patch * 3]);
                self.patch(lines, values, out);
            }
        }
    }

    /// One patch, from its lines of pixels.
    fn patch<'a>(
        &self,
        lines: impl Iterator<Item = &'a [u8]> + Clone,
        values: &[[f32; 256]; 3],
        out: &mut Vec<f32>,
    ) {
        match self.layout() {
            Layout::Pixels => {
                for pixel in lines.flat_map(|line| line.as_chunks::<3>().0) {
                    out.extend([0, 1, 2].map(|channel| values[channel][usize::from(pixel[channel])]));
                }
            }
            Layout::Planes { frames } => {
                for (channel, values) in values.iter().enumerate() {
                    let at = out.len();
                    for line in lines.clone() {
                        let pixels = line.as_chunks::<3>().0;
                        out.extend(pixels.iter().map(|pixel| values[usize::from(pixel[channel])]));
                    }
                    let end = out.len();
                    for _ in 1..frames {
                        out.extend_from_within(at..end);
                    }
                }
            }
        }
    }
}
