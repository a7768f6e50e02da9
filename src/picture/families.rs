//! The plan of each family, as its processor in transformers computes it: sizes in f64, rounded as Python does.

use super::processor::{Family, Grid, Lfm2, Piece, Plan, Processor, Resized};
use crate::base::{Error, Result};

/// Pixels of an image that a picture is resized to; the largest that published models want have 2^24.
const LARGEST: u64 = 1 << 26;
/// Idefics 3 makes no image with a longer side, whatever `longest` says.
const IDEFICS3_LONGEST: u32 = 4096;

impl Processor {
    /// The plan for a picture with this size in pixels. `InvalidArgument` for sizes that the model's processor refuses.
    pub fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        self.check()?;
        if width == 0 || height == 0 {
            return Err(Error::invalid(format!("a picture of {width}x{height} pixels is empty")));
        }
        let mut plan = Plan {
            pieces: Vec::new(),
            grids: Vec::new(),
            source: (width, height),
            images: Vec::new(),
            parts: Vec::new(),
        };
        match self.family {
            Family::Qwen { min_pixels, max_pixels, .. } => {
                let size = self.qwen(width, height, min_pixels as f64, max_pixels as f64)?;
                plan.whole(self, size)?;
                plan.vectors_of(self, size);
            }
            Family::Gemma3 { width, height } => {
                plan.whole(self, (width, height))?;
                plan.text("\n\n<start_of_image>");
                plan.vectors_of(self, (width, height));
                plan.text("<end_of_image>\n\n");
            }
            Family::Idefics3 { longest, tile, split } => self.idefics3(&mut plan, longest, tile, split)?,
            Family::Pixtral { width: widest, height: highest } => {
                self.pixtral(&mut plan, f64::from(widest), f64::from(highest))?;
            }
            Family::Lfm2(lfm2) => self.lfm2(&mut plan, &lfm2)?,
            Family::Gemma4 { max_tokens } => {
                let size = self.gemma4(width, height, max_tokens)?;
                plan.whole(self, size)?;
                plan.text("<|image>");
                plan.vectors_of(self, size);
                plan.text("<image|>");
            }
        }
        Ok(plan)
    }

    /// Side of a soft token in pixels.
    fn cell(&self) -> f64 {
        f64::from(self.patch) * f64::from(self.merge)
    }

    /// Width and height of whole soft tokens within bounds of pixels: `nearest`, if that is within them.
    fn fitted(&self, width: f64, height: f64, bounds: (f64, f64), nearest: (f64, f64)) -> (f64, f64) {
        let cell = self.cell();
        let (least, most) = bounds;
        let pixels = nearest.0 * nearest.1;
        if pixels > most {
            let shrink = (width * height / most).sqrt();
            let fit = |side: f64| ((side / shrink / cell).floor() * cell).max(cell);
            (fit(width), fit(height))
        } else if pixels < least {
            let stretch = (least / (width * height)).sqrt();
            let fit = |side: f64| (side * stretch / cell).ceil() * cell;
            (fit(width), fit(height))
        } else {
            nearest
        }
    }

    fn qwen(&self, width: u32, height: u32, least: f64, most: f64) -> Result<(u32, u32)> {
        let ratio = f64::from(width.max(height)) / f64::from(width.min(height));
        if ratio > 200.0 {
            return Err(Error::invalid(format!(
                "a picture of {width}x{height} pixels is too narrow: the model takes one side up to 200 times the other"
            )));
        }
        let (width, height) = (f64::from(width), f64::from(height));
        let nearest = |side: f64| (side / self.cell()).round_ties_even() * self.cell();
        let (width, height) = self.fitted(width, height, (least, most), (nearest(width), nearest(height)));
        Ok((width as u32, height as u32))
    }

    fn pixtral(&self, plan: &mut Plan, widest: f64, highest: f64) -> Result<()> {
        let (mut width, mut height) = (f64::from(plan.source.0), f64::from(plan.source.1));
        let ratio = (height / highest).max(width / widest);
        if ratio > 1.0 {
            (width, height) = ((width / ratio).floor(), (height / ratio).floor());
        }
        if width < 1.0 || height < 1.0 {
            let (width, height) = plan.source;
            return Err(Error::invalid(format!(
                "a picture of {width}x{height} pixels is too narrow: nothing is left of it in {widest}x{highest}"
            )));
        }
        let cells = |side: f64| (side / self.cell()).ceil();
        let (rows, cols) = (cells(height) as u32, cells(width) as u32);
        let size = ((cells(width) * self.cell()) as u32, (cells(height) * self.cell()) as u32);
        plan.whole(self, size)?;
        for row in 1..=rows {
            plan.pieces.push(Piece::Vectors { rows: 1, cols });
            plan.text(if row < rows { "[IMG_BREAK]" } else { "[IMG_END]" });
        }
        Ok(())
    }

    fn gemma4(&self, width: u32, height: u32, max_tokens: u32) -> Result<(u32, u32)> {
        let cell = self.cell();
        let most = f64::from(max_tokens) * cell * cell;
        let (w, h) = (f64::from(width), f64::from(height));
        let factor = (most / (h * w)).sqrt();
        let fit = |side: f64| (factor * side / cell).floor() * cell;
        let longest = f64::from(max_tokens) * cell;
        let (wide, high) = match (fit(w), fit(h)) {
            (0.0, 0.0) => (0.0, 0.0),
            (wide, 0.0) if wide > 0.0 => (((w / h).floor() * cell).min(longest), cell),
            (0.0, _) => (cell, ((h / w).floor() * cell).min(longest)),
            size => size,
        };
        if wide == 0.0 || high == 0.0 || wide * high > most {
            return Err(Error::invalid(format!(
                "a picture of {width}x{height} pixels does not fit {max_tokens} tokens of {cell}x{cell} pixels"
            )));
        }
        Ok((wide as u32, high as u32))
    }

    fn idefics3(&self, plan: &mut Plan, longest: u32, tile: u32, split: bool) -> Result<()> {
        let (width, height) = idefics3_size(plan.source, longest);
        let mut whole = plan.resized(0, width, height)?;
        let (mut rows, mut cols) = (0, 0);
        if split {
            let tiles = |side: f64| (side / f64::from(tile)).ceil();
            let aspect = f64::from(width) / f64::from(height);
            if width >= height {
                let wide = tiles(f64::from(width)) * f64::from(tile);
                (cols, rows) = (tiles(f64::from(width)) as u32, tiles((wide / aspect).trunc()) as u32);
            } else {
                let high = tiles(f64::from(height)) * f64::from(tile);
                (cols, rows) = (tiles((high * aspect).trunc()) as u32, tiles(f64::from(height)) as u32);
            }
            // A side of 0 is refused when it is resized.
            whole = plan.resized(whole, cols.saturating_mul(tile), rows.saturating_mul(tile))?;
        }
        if rows > 1 || cols > 1 {
            for part in 0..rows * cols {
                let (row, col) = (part / cols, part % cols);
                plan.part(self, whole, (col * tile, row * tile), (tile, tile));
                plan.text(&format!("<fake_token_around_image><row_{}_col_{}>", row + 1, col + 1));
                plan.vectors_of(self, (tile, tile));
                if col + 1 == cols {
                    plan.text("\n");
                }
            }
            plan.text("\n");
        }
        let whole = plan.resized(whole, tile, tile)?;
        plan.part(self, whole, (0, 0), (tile, tile));
        plan.text("<fake_token_around_image><global-img>");
        plan.vectors_of(self, (tile, tile));
        plan.text("<fake_token_around_image>");
        Ok(())
    }

    fn lfm2(&self, plan: &mut Plan, lfm2: &Lfm2) -> Result<()> {
        let (width, height) = (f64::from(plan.source.0), f64::from(plan.source.1));
        let cell = self.cell();
        let rounded = |side: f64| (side / cell).round_ties_even() * cell;
        let least = f64::from(lfm2.min_tokens) * cell * cell;
        let most = f64::from(lfm2.max_tokens) * cell * cell;
        let nearest = (rounded(width).max(cell), rounded(height).max(cell));
        let (wide, high) = self.fitted(width, height, (least, most), nearest);
        let size = (wide as u32, high as u32);
        let patch = f64::from(self.patch);
        let large = rounded(height).max(patch) * rounded(width).max(patch) > most * lfm2.tolerance;
        plan.mark(lfm2, "<|image_start|>");
        let (mut cols, mut rows) = (1, 1);
        if large && lfm2.max_tiles > 1 {
            (cols, rows) = lfm2.tiles(width, height);
            let whole = plan.resized(0, cols * lfm2.tile, rows * lfm2.tile)?;
            for part in 0..rows * cols {
                let (row, col) = (part / cols, part % cols);
                plan.part(self, whole, (col * lfm2.tile, row * lfm2.tile), (lfm2.tile, lfm2.tile));
                if rows * cols > 1 {
                    plan.mark(lfm2, &format!("<|img_row_{}_col_{}|>", row + 1, col + 1));
                }
                plan.vectors_of(self, (lfm2.tile, lfm2.tile));
            }
        }
        if (rows, cols) == (1, 1) && plan.grids.is_empty() {
            plan.whole(self, size)?;
            plan.vectors_of(self, size);
        } else if lfm2.thumbnail && (rows, cols) != (1, 1) {
            // The model's processor pads all parts to the larger of both, and no part may have more.
            let room = most.max(f64::from(lfm2.tile) * f64::from(lfm2.tile));
            if wide * high > room {
                let (width, height) = plan.source;
                return Err(Error::invalid(format!(
                    "a picture of {width}x{height} pixels is too narrow: beside its tiles it would be {wide}x{high}"
                )));
            }
            plan.whole(self, size)?;
            plan.mark(lfm2, "<|img_thumbnail|>");
            plan.vectors_of(self, size);
        }
        plan.mark(lfm2, "<|image_end|>");
        Ok(())
    }
}

/// Width and height with `longest` as the longer side, the shorter one even, and both below the bound.
fn idefics3_size((width, height): (u32, u32), longest: u32) -> (u32, u32) {
    let even = |side: f64| {
        let side = side as u32;
        (side + side % 2).max(1)
    };
    let aspect = f64::from(width) / f64::from(height);
    let (mut width, mut height) = if width >= height {
        (longest, even(f64::from(longest) / aspect))
    } else {
        (even(f64::from(longest) * aspect), longest)
    };
    let aspect = f64::from(width) / f64::from(height);
    if width >= height && width > IDEFICS3_LONGEST {
        (width, height) = (IDEFICS3_LONGEST, (f64::from(IDEFICS3_LONGEST) / aspect) as u32);
    } else if height > width && height > IDEFICS3_LONGEST {
        (width, height) = ((f64::from(IDEFICS3_LONGEST) * aspect) as u32, IDEFICS3_LONGEST);
    }
    (width.max(1), height.max(1))
}

impl Lfm2 {
    /// Columns and rows of tiles whose aspect is nearest to the picture's; of equally near ones the last whose pixels
    /// are less than twice the picture's.
    fn tiles(&self, width: f64, height: f64) -> (u32, u32) {
        let bounds = self.min_tiles..=self.max_tiles;
        let mut grids: Vec<(u32, u32)> = (1..=self.max_tiles)
            .flat_map(|cols| (1..=self.max_tiles).map(move |rows| (cols, rows)))
            .filter(|(cols, rows)| bounds.contains(&(cols * rows)))
            .collect();
        grids.sort_by_key(|(cols, rows)| cols * rows);
        let tile = f64::from(self.tile) * f64::from(self.tile);
        let (mut best, mut least) = ((1, 1), f64::INFINITY);
        for (cols, rows) in grids {
            let distance = (width / height - f64::from(cols) / f64::from(rows)).abs();
            let half = 0.5 * (tile * f64::from(cols) * f64::from(rows));
            if distance < least || (distance == least && width * height > half) {
                (best, least) = ((cols, rows), distance);
            }
        }
        best
    }
}

impl Plan {
    fn text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Text(before)) => before.push_str(text),
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    fn mark(&mut self, lfm2: &Lfm2, text: &str) {
        if lfm2.marked {
            self.text(text);
        }
    }

    fn vectors_of(&mut self, processor: &Processor, (width, height): (u32, u32)) {
        let cell = processor.patch * processor.merge;
        self.pieces.push(Piece::Vectors { rows: height / cell, cols: width / cell });
    }

    /// Adds an image that is another one in this size, unless that has it already. Returns its number.
    fn resized(&mut self, of: usize, width: u32, height: u32) -> Result<usize> {
        let (from, to) = (self.source, (width, height));
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 || pixels > LARGEST {
            let (from_width, from_height) = from;
            return Err(Error::invalid(format!(
                "a picture of {from_width}x{from_height} would become {width}x{height}; {LARGEST} pixels are allowed"
            )));
        }
        if self.size(of) == to {
            return Ok(of);
        }
        self.images.push(Resized { of, width, height });
        Ok(self.images.len())
    }

    fn part(
        &mut self,
        processor: &Processor,
        image: usize,
        (left, top): (u32, u32),
        (width, height): (u32, u32),
    ) {
        self.parts.push((image, left, top));
        self.grids.push(Grid { rows: height / processor.patch, cols: width / processor.patch });
    }

    /// Adds the whole picture in this size as a part.
    fn whole(&mut self, processor: &Processor, size: (u32, u32)) -> Result<()> {
        let image = self.resized(0, size.0, size.1)?;
        self.part(processor, image, (0, 0), size);
        Ok(())
    }
}
