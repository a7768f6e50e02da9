//! Pictures, for models that see.
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The most pictures of a request.
pub const MAX_PICTURES: usize = sys::BN_MAX_PICTURES as usize;

/// A picture of a request. Clones share its bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Picture {
    data: Arc<[u8]>,
    /// 0 and 0: `data` is a file.
    width: u32,
    height: u32,
}

impl Picture {
    /// The bytes of a PNG, a JPEG, a WebP or a GIF, whose first frame counts.
    pub fn new(data: impl Into<Arc<[u8]>>) -> Self {
        Self { data: data.into(), width: 0, height: 0 }
    }

    /// Reads such a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        match fs::read(path) {
            Ok(data) => Ok(Self::new(data)),
            Err(error) => Err(Error::new(ErrorKind::Io, format!("{}: {error}", path.display()))),
        }
    }

    /// Bytes of red, green and blue for each pixel, line by line from the top.
    pub fn pixels(width: u32, height: u32, rgb: impl Into<Arc<[u8]>>) -> Self {
        Self { data: rgb.into(), width, height }
    }

    /// The bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Valid while this is.
    pub(crate) fn raw(&self) -> sys::bn_picture {
        let Self { data, width, height } = self;
        let (data, data_len) = (data.as_ptr(), data.len());
        sys::bn_picture { data, data_len, width: *width, height: *height, reserved: [0; 2] }
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data, width, height } = self;
        let mut shown = f.debug_struct("Picture");
        shown.field("bytes", &data.len()).field("width", width).field("height", height).finish()
    }
}

impl Engine {
    /// The number of positions that a picture takes in a prompt. An error of the kind [`ErrorKind::Unsupported`] if the
    /// model sees none.
    pub fn picture_positions(&self, picture: &Picture) -> Result<u64> {
        let mut positions = 0;
        let raw = picture.raw();
        self.0.call(|engine, error| {
            // SAFETY: the picture lives until the call returns, and `positions` can be written.
            unsafe { sys::bn_picture_positions(engine, &raw, &mut positions, error) }
        })?;
        Ok(positions)
    }
}
