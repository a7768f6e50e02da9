//! Pictures: from encoded bytes to the rows that a vision tower takes, on the CPU, without a model.
//!
//! `decode` reads PNG, JPEG, WebP and GIF within `Limits`. A `Processor` says what a model wants of a picture;
//! `Processor::plan` computes from the picture's size alone what stands for it in the prompt and which patches there
//! are, and `Processor::prepare` makes the patches.
//!
//! A chat template renders a placeholder for each picture (`Processor::placeholder`), and `Plan::pieces` take its
//! place. Their texts are tokenized together with the text around them, special tokens included; their vectors are the
//! tower's. Only with Qwen the template writes the tokens around a picture, `<|vision_start|>` and `<|vision_end|>`,
//! and the vectors are the only piece. With all other families the pieces have them, and with Gemma 3 the placeholder
//! too, which is not to be replaced again. docs/pictures.md lists them.

mod decode;
mod families;
mod hf;
mod prepare;
mod processor;
mod resize;
#[cfg(test)]
mod tests;

pub use decode::{decode, memory, size};
pub use hf::HfFiles;
pub use processor::{Family, Grid, Lfm2, Normalize, Piece, Plan, Processor};
pub use resize::{Filter, resize};

use crate::base::{Error, Result};

/// A picture of 8 bits per channel, [height, width, 3], red first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pixels {
    pub width: u32,
    pub height: u32,
    pub rgb: Vec<u8>,
}

impl Pixels {
    /// `InvalidArgument` unless `rgb` has 3 bytes for each of at least one pixel.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self> {
        let pixels = Self { width, height, rgb };
        pixels.check()?;
        Ok(pixels)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let Self { width, height, rgb } = self;
        if *width == 0 || *height == 0 {
            return Err(Error::invalid(format!("a picture of {width}x{height} pixels is empty")));
        }
        if bytes_of(*width, *height) != Some(rgb.len()) {
            let has = rgb.len();
            return Err(Error::invalid(format!(
                "a picture of {width}x{height} pixels has {has} bytes, not 3 each"
            )));
        }
        Ok(())
    }
}

/// Bytes of an RGB picture.
fn bytes_of(width: u32, height: u32) -> Option<usize> {
    (width as usize).checked_mul(height as usize)?.checked_mul(3)
}

/// The largest picture that is decoded. Decoding takes at most `memory` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of an encoded picture.
    pub bytes: usize,
    /// Maximum width, and maximum height, in pixels.
    pub side: u32,
    /// Maximum number of pixels.
    pub pixels: u64,
}

impl Default for Limits {
    /// Pictures of cameras and screens, up to 64 megapixels.
    fn default() -> Self {
        Self { bytes: 64 << 20, side: 1 << 14, pixels: 1 << 26 }
    }
}

impl Limits {
    /// Bytes that decoding a picture within these limits may take, its pixels included: more than pixels need, so that
    /// there is room for tables (`memory`).
    pub fn memory(&self) -> u64 {
        self.pixels.saturating_mul(24).saturating_add(self.bytes as u64).saturating_add(48 << 20)
    }

    /// Refuses a picture by its size. `InvalidArgument`.
    pub fn check(&self, width: u32, height: u32) -> Result<()> {
        if width == 0 || height == 0 {
            return Err(Error::invalid(format!("the picture is empty: it says {width}x{height} pixels")));
        }
        if width > self.side || height > self.side {
            let side = self.side;
            return Err(Error::invalid(format!(
                "the picture has {width}x{height} pixels; a side may have {side}"
            )));
        }
        if u64::from(width) * u64::from(height) > self.pixels {
            let most = self.pixels;
            return Err(Error::invalid(format!(
                "the picture has {width}x{height} pixels; {most} are allowed"
            )));
        }
        Ok(())
    }
}
