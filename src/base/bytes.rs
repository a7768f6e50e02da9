//! Shared read-only bytes: a slice of a mapped file, of embedded data or of a buffer, which it keeps alive.

use super::os;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A view into bytes that live as long as any view of them. Cloning is cheap.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
    /// Whether the bytes map a file; released pages of it are read again on access.
    mapped: bool,
}

impl Bytes {
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { owner: Arc::new(owner), range, mapped: false }
    }

    /// Takes a read-only mapping of a file.
    pub fn of_file(map: memmap2::Mmap) -> Self {
        Self { mapped: true, ..Self::new(map) }
    }

    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// Releases the pages that are wholly within the view of a mapped file. A later read fetches them again.
    /// For callers that have converted the bytes to another form. Does nothing to other bytes.
    pub fn release_pages(&self) {
        if self.mapped {
            // SAFETY: a part of a private read-only mapping of a file, which `owner` keeps.
            unsafe { os::release_pages(self.as_ptr(), self.len()) };
        }
    }

    /// A sub-view, or `None` if `range` is not within this one.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let range = self.range.start + range.start..self.range.start + range.end;
        Some(Self { owner: self.owner.clone(), range, mapped: self.mapped })
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// KiB of the view's mapping that this process has in memory.
    #[cfg(target_os = "linux")]
    fn resident(bytes: &Bytes) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", bytes.as_ptr() as usize);
        let own = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = own.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn released_pages_come_back_with_the_same_bytes() {
        let path = std::env::temp_dir().join(format!("bn-bytes-{}", std::process::id()));
        let content: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        // SAFETY: the file does not change while the test runs.
        let bytes = Bytes::of_file(unsafe { memmap2::Mmap::map(&file) }.unwrap());
        assert!(bytes[..] == content[..]);
        // A part that is not aligned to pages must keep its neighbors' bytes too.
        bytes.slice(5000..900_001).unwrap().release_pages();
        assert!(bytes[..] == content[..]);
        bytes.release_pages();
        #[cfg(target_os = "linux")]
        assert_eq!(resident(&bytes), 0);
        assert!(bytes[..] == content[..]);
        std::fs::remove_file(path).unwrap();
        let owned = Bytes::new(content.clone());
        owned.release_pages();
        assert!(owned[..] == content[..]);
    }
}
