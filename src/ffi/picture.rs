//! Pictures of a request.

use super::guard;
use crate::base::{Error, Result, reserve};
use crate::engine::MAX_PICTURES;
use crate::engine::api::Picture;
use std::borrow::Cow;

/// The largest `pictures_count`.
pub const BN_MAX_PICTURES: u32 = 1024;

/// A picture, as a file's bytes or as pixels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_picture {
    /// A PNG, a JPEG, a WebP or a GIF, whose first frame counts. With `width` and `height`: bytes
    /// of red, green and blue for each pixel, line by line from the top. At most 64 MiB for a file,
    /// 16384 pixels a side, and 33554432 in all.
    pub data: *const u8,
    /// Bytes at `data`.
    pub data_len: usize,
    /// Pixels of a line. 0, as `height`: `data` is a file.
    pub width: u32,
    /// Number of lines.
    pub height: u32,
    /// Room for later fields: 0.
    pub reserved: [u64; 2],
}

impl bn_picture {
    /// # Safety
    /// `data` is NULL or as the fields say, for `'a`.
    pub(super) unsafe fn as_engine<'a>(&self, name: &str) -> Result<Picture<'a>> {
        guard::reserved(name, &self.reserved)?;
        // SAFETY: the caller's promise.
        let data = unsafe { guard::slice(&format!("{name}.data"), self.data, self.data_len) }?;
        let (width, height) = (self.width, self.height);
        if data.is_empty() {
            return Err(Error::invalid(format!("{name}.data is empty")));
        }
        if (width, height) == (0, 0) {
            return Ok(Picture::Encoded(Cow::Borrowed(data)));
        }
        let pixels = u64::from(width) * u64::from(height);
        if pixels.checked_mul(3) != Some(data.len() as u64) {
            let len = data.len();
            return Err(Error::invalid(format!(
                "{name}: {len} bytes for {width} x {height} pixels of 3 bytes"
            )));
        }
        Ok(Picture::Pixels { width, height, rgb: Cow::Borrowed(data) })
    }
}

const _: () = assert!(BN_MAX_PICTURES as usize == MAX_PICTURES);

/// The pictures of a request.
///
/// # Safety
/// `from` is NULL or points to `count` structs whose pointers are as the fields say, for `'a`.
pub(super) unsafe fn pictures<'a>(from: *const bn_picture, count: usize) -> Result<Vec<Picture<'a>>> {
    guard::count("pictures", count, MAX_PICTURES)?;
    // SAFETY: the caller's promise.
    let from = unsafe { guard::slice("pictures", from, count) }?;
    let mut all = Vec::new();
    reserve(&mut all, count, "pictures")?;
    for (at, picture) in from.iter().enumerate() {
        // SAFETY: the caller's promise.
        all.push(unsafe { picture.as_engine(&format!("pictures[{at}]")) }?);
    }
    Ok(all)
}
