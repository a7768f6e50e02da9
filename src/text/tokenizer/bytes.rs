//! GPT-2's printable stand-ins for bytes, and the table from ids to the bytes they stand for.

use crate::base::{Result, reserve, reserved};

/// The character that byte-level vocabularies write for `byte`: the byte itself if it is printable in Latin-1,
/// else 256 + its rank among the unprintable bytes (github.com/openai/gpt-2, src/encoder.py).
pub(super) fn stand_in(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte as char;
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count();
    char::from_u32(256 + rank as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The stand-ins of all bytes, and back.
pub(super) struct ByteMap {
    chars: [char; 256],
}

impl ByteMap {
    pub(super) fn new() -> Self {
        Self { chars: std::array::from_fn(|byte| stand_in(byte as u8)) }
    }

    pub(super) fn char(&self, byte: u8) -> char {
        self.chars[byte as usize]
    }

    /// The bytes that `token` stands for; None if one of its characters is not a stand-in.
    pub(super) fn bytes(&self, token: &str) -> Option<Vec<u8>> {
        token.chars().map(|c| self.byte(c)).collect()
    }

    fn byte(&self, c: char) -> Option<u8> {
        match u32::from(c) {
            code @ 0..=255 => Some(code as u8).filter(|&b| self.char(b) == c),
            256..=323 => self.chars.iter().position(|&s| s == c).map(|b| b as u8),
            _ => None,
        }
    }
}

/// The byte that a token like `<0x0A>` stands for.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let digits = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    u8::from_str_radix(hex, 16).ok().filter(|_| digits)
}

/// A token for an error message: invisible characters are escaped, and an overlong token is cut.
pub(super) fn shown(token: &str) -> String {
    let mut out = String::new();
    for (n, c) in token.chars().enumerate() {
        match c {
            _ if n == 60 => {
                out.push('…');
                break;
            }
            '"' | '\'' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

/// The bytes of all tokens in one allocation.
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// End of token i and start of the next one.
    ends: Vec<usize>,
    /// Tokens that stand for nothing: their bytes are only their written form. In ascending order.
    silent: Vec<u32>,
}

impl TokenBytes {
    pub(super) fn new(tokens: usize) -> Result<Self> {
        let mut ends = Vec::new();
        reserved(ends.try_reserve_exact(tokens), "the vocabulary", tokens.saturating_mul(8))?;
        Ok(Self { bytes: Vec::new(), ends, silent: Vec::new() })
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        reserve(&mut self.bytes, bytes.len(), "the vocabulary")?;
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// Appends a token that stands for nothing and is written as `bytes`.
    pub(super) fn push_silent(&mut self, bytes: &[u8]) -> Result<()> {
        reserve(&mut self.silent, 1, "the vocabulary")?;
        self.silent.push(self.ends.len() as u32);
        self.push(bytes)
    }

    /// Appends empty tokens up to a total of `n`. Returns the bytes that they take.
    pub(super) fn pad_to(&mut self, n: usize) -> Result<usize> {
        let more = n.saturating_sub(self.len());
        let bytes = more.saturating_mul(size_of::<usize>());
        reserved(self.ends.try_reserve_exact(more), "the vocabulary", bytes)?;
        self.ends.resize(self.len() + more, self.bytes.len());
        Ok(bytes)
    }

    /// Drops the tokens from `n` on.
    pub(super) fn cut_to(&mut self, n: usize) {
        self.ends.truncate(n);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        self.silent.retain(|&id| (id as usize) < n);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Number of bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        (0..self.len() as u32).filter_map(|id| self.get(id)).map(<[u8]>::len).max().unwrap_or(0)
    }

    /// The bytes that the token stands for.
    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let written = self.written(id)?;
        Some(if self.silent.binary_search(&id).is_ok() { b"" } else { written })
    }

    /// The bytes that the token stands for or is written as.
    pub(super) fn written(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_are_those_of_the_tokenizers_package() {
        // The package's set is a table, before which the source of seeds must be installed for other tests.
        crate::text::watch::install();
        let map = ByteMap::new();
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert!((0..=255).all(|b| alphabet.contains(&map.char(b))));
        assert_eq!((map.char(b' '), map.char(b'\n'), map.char(b'a'), map.char(0xad)), ('Ġ', 'Ċ', 'a', 'Ń'));
        for byte in 0..=255 {
            assert_eq!(map.bytes(&map.char(byte).to_string()), Some(vec![byte]));
        }
        assert_eq!(map.bytes("a b"), None);
        assert_eq!(map.bytes("€"), None);
        assert_eq!(map.bytes("ĠĊ"), Some(b" \n".to_vec()));
    }
}
