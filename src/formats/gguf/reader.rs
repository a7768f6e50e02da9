//! A bounds-checked little-endian cursor. Errors name the file, the place and the item that was being read.

use crate::base::{Error, Result};

/// The format's limit on a metadata key.
pub(super) const MAX_KEY_BYTES: usize = 65_535;
/// Maximum bytes of a tensor's name; the format says 64.
pub(super) const MAX_NAME_BYTES: usize = 1024;
/// The end of a message about a file that is shorter than it says.
const CUT: &str = "; is the file truncated?";
/// Maximum characters of a key in a message.
const SHOWN: usize = 100;

/// Name of a metadata key in errors.
pub(super) fn called(key: &str) -> String {
    match key.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("metadata key '{}…'", &key[..end]),
        None => format!("metadata key '{key}'"),
    }
}

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
    /// Name of the file in errors.
    what: &'a str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'a str) -> Self {
        Self { bytes, pos: 0, what }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.pos
    }

    pub(super) fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::bad_model(format!("{}: {message}", self.what))
    }

    pub(super) fn no_memory(&self, bytes: usize) -> Error {
        Error::out_of_memory(self.what, bytes)
    }

    /// Copies a name, which may be long.
    pub(super) fn owned(&self, name: &str) -> Result<String> {
        let mut owned = String::new();
        owned.try_reserve_exact(name.len()).map_err(|_| self.no_memory(name.len()))?;
        owned.push_str(name);
        Ok(owned)
    }

    pub(super) fn take(&mut self, n: usize, item: &str) -> Result<&'a [u8]> {
        if n > self.left() {
            return Err(self.error(format_args!(
                "the file ends inside {item} (byte {} of {}, where {n} are needed)",
                self.pos,
                self.bytes.len()
            )));
        }
        let out = &self.bytes[self.pos..self.pos + n];
        self.pos += n;
        Ok(out)
    }

    pub(super) fn u32(&mut self, item: &str) -> Result<u32> {
        let bytes = self.take(4, item)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(super) fn u64(&mut self, item: &str) -> Result<u64> {
        let b = self.take(8, item)?;
        Ok(u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    }

    /// Reads a count of items that take at least `min_bytes` each. Refuses it if the remaining bytes can't hold them,
    /// so that nothing is ever sized by a count alone.
    pub(super) fn count(&mut self, min_bytes: usize, item: &str) -> Result<usize> {
        let n = self.u64(item)?;
        if n > (self.left() / min_bytes) as u64 {
            return Err(
                self.error(format_args!("{item} says {n}, but only {} bytes are left{CUT}", self.left()))
            );
        }
        Ok(n as usize)
    }

    /// Reads a string's bytes: a u64 length and as many bytes.
    pub(super) fn string(&mut self, item: &str) -> Result<&'a [u8]> {
        let n = self.u64(item)?;
        if n > self.left() as u64 {
            let left = self.left();
            return Err(self.error(format_args!(
                "{item} is a string of {n} bytes, but only {left} bytes are left{CUT}"
            )));
        }
        self.take(n as usize, item)
    }

    /// Reads the name of a metadata key or a tensor, of at most `max` bytes.
    pub(super) fn name(&mut self, max: usize, item: &str) -> Result<&'a str> {
        let bytes = self.string(item)?;
        if bytes.len() > max {
            return Err(
                self.error(format_args!("{item} of {} bytes; at most {max} are possible", bytes.len()))
            );
        }
        std::str::from_utf8(bytes).map_err(|_| self.error(format_args!("{item} is not UTF-8")))
    }
}
