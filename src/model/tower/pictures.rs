//! How pictures are prepared for a tower, as an mmproj file says it.

/// The keys of a GGUF file about pictures, by llama.cpp's names without `clip.vision.`. Sizes are in pixels.
#[derive(Clone, Debug, PartialEq)]
pub struct Pictures {
    /// `clip.projector_type`, which names the way of resizing.
    pub projector: &'static str,
    /// `image_size`: the side of a picture or a tile; 0 where pictures keep their shape.
    pub side: usize,
    /// `patch_size`.
    pub patch: usize,
    /// Frames of a patch: a picture is repeated for each.
    pub frames: usize,
    /// `spatial_merge_size` or `projector.scale_factor`: the sides of a soft token in patches.
    pub merge: usize,
    /// `image_mean` and `image_std`, of colors from 0 to 1.
    pub mean: [f32; 3],
    pub std: [f32; 3],
    /// `image_min_pixels` and `image_max_pixels`.
    pub pixels: [Option<usize>; 2],
    /// `preproc_image_size`: the longest side after resizing.
    pub longest: Option<usize>,
    /// `preproc_min_tiles` and `preproc_max_tiles`.
    pub tiles: [Option<usize>; 2],
}
