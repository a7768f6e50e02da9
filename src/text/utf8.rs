//! Decodes UTF-8 from bytes that arrive in pieces.

use std::str::from_utf8;

/// Turns a stream of token bytes into complete UTF-8, holding back an unfinished sequence. However the bytes are
/// cut, the text equals `String::from_utf8_lossy` of all of them: each maximal part of an invalid sequence becomes
/// one U+FFFD (Unicode 16, section 3.9, "Substitution of Maximal Subparts").
#[derive(Default)]
pub struct Utf8Stream {
    /// The first bytes of a sequence that may still become a character; at most 3.
    pending: [u8; 4],
    len: usize,
}

impl Utf8Stream {
    /// Appends the text that has become complete to `out`; invalid bytes become U+FFFD.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        while self.len > 0 {
            let Some((&byte, behind)) = rest.split_first() else { return };
            self.pending[self.len] = byte;
            match from_utf8(&self.pending[..self.len + 1]) {
                Ok(text) => out.push_str(text),
                Err(e) if e.error_len().is_none() => {
                    self.len += 1;
                    rest = behind;
                    continue;
                }
                Err(_) => {
                    // The pending bytes cannot continue with `byte`, which starts a new sequence.
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.len = 0;
                    continue;
                }
            }
            self.len = 0;
            rest = behind;
        }
        self.push_whole(rest, out);
    }

    /// `push` with nothing pending.
    fn push_whole(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        while let Err(e) = from_utf8(rest) {
            let (valid, behind) = rest.split_at(e.valid_up_to());
            out.push_str(from_utf8(valid).unwrap_or_default());
            match e.error_len() {
                Some(n) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &behind[n..];
                }
                None => {
                    self.pending[..behind.len()].copy_from_slice(behind);
                    self.len = behind.len();
                    return;
                }
            }
        }
        out.push_str(from_utf8(rest).unwrap_or_default());
    }

    /// Ends the stream: an unfinished sequence becomes one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if self.len > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            self.len = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
        let (mut utf8, mut out) = (Utf8Stream::default(), String::new());
        pieces.for_each(|piece| utf8.push(piece, &mut out));
        utf8.finish(&mut out);
        out
    }

    /// Bytes that begin, continue and end sequences far more often than random ones.
    fn tricky_byte() -> impl Strategy<Value = u8> {
        prop_oneof![
            any::<u8>(),
            proptest::sample::select(
                &b"a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc2\xe0\xe2\xed\xef\xf0\xf4\xf5\xff"[..]
            )
        ]
    }

    proptest! {
        #[test]
        fn equals_lossy_on_the_whole(bytes in proptest::collection::vec(tricky_byte(), 0..40), cuts in any::<u64>()) {
            let mut pieces = vec![Vec::new()];
            for (i, &byte) in bytes.iter().enumerate() {
                if cuts >> (i % 64) & 1 == 1 {
                    pieces.push(Vec::new());
                }
                pieces.last_mut().unwrap().push(byte);
            }
            let text = stream(pieces.iter().map(Vec::as_slice));
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn every_cut_of_every_short_sequence() {
        let tricky = b"a\x80\x90\xa0\xbf\xc2\xe0\xed\xf0\xf4\xff";
        let n = tricky.len();
        for code in 0..n.pow(4) {
            let bytes: Vec<u8> = (0..4).map(|i| tricky[code / n.pow(i) % n]).collect();
            for cut in 0..=4 {
                let text = stream([&bytes[..cut], &bytes[cut..]].into_iter());
                assert_eq!(text, String::from_utf8_lossy(&bytes), "{bytes:x?} cut at {cut}");
            }
        }
    }

    #[test]
    fn holds_back_until_complete() {
        let (mut utf8, mut out) = (Utf8Stream::default(), String::new());
        for (byte, want) in "a€".bytes().zip(["a", "a", "a", "a€"]) {
            utf8.push(&[byte], &mut out);
            assert_eq!(out, want);
        }
        utf8.finish(&mut out);
        assert_eq!(out, "a€");
    }
}
