//! Conversion of TL1 and TL2, the look-up-table layouts of bitnet.cpp, to `Ternary`.
//!
//! Both store weights in the order in which a kernel reads them: tiles of BM rows and BK columns; within a tile,
//! blocks of `lanes` rows; within a block, groups of a few columns. BM, BK and `lanes` are chosen for each shape
//! when the kernels are generated. They are in `kernel_config.ini`, not in the model file
//! (github.com/microsoft/BitNet, utils/convert-hf-to-gguf-bitnet.py and, as the reader, utils/codegen_tl1.py,
//! utils/codegen_tl2.py).

use super::{filled, pack_ternary};
use crate::base::{Error, Result};
use crate::kernels::{DType, Matrix, Pool};

/// The tiling of the weights of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlTiling {
    pub rows: usize,
    pub cols: usize,
    /// Rows per tile.
    pub bm: usize,
    /// Columns per tile.
    pub bk: usize,
    /// Rows that the kernel computes at once (`bmm`).
    pub lanes: usize,
}

const fn tiling(rows: usize, cols: usize, bm: usize, bk: usize, lanes: usize) -> TlTiling {
    TlTiling { rows, cols, bm, bk, lanes }
}

/// Tilings on which setup_env.py and preset_kernels/ of bitnet.cpp agree: bitnet_b1_58-large and -3B. Llama3-8B-1.58
/// is not here because the two differ on it.
const TL1: [TlTiling; 6] = [
    tiling(1536, 4096, 256, 128, 32),
    tiling(1536, 1536, 128, 64, 64),
    tiling(4096, 1536, 256, 128, 32),
    tiling(3200, 8640, 160, 64, 32),
    tiling(3200, 3200, 320, 128, 64),
    tiling(8640, 3200, 320, 64, 32),
];

/// As `TL1`, with Llama3-8B-1.58 and models of the same shapes.
const TL2: [TlTiling; 10] = [
    tiling(1536, 4096, 256, 96, 32),
    tiling(1536, 1536, 128, 192, 32),
    tiling(4096, 1536, 256, 96, 32),
    tiling(3200, 8640, 160, 96, 32),
    tiling(3200, 3200, 320, 96, 32),
    tiling(8640, 3200, 320, 96, 32),
    tiling(14336, 4096, 256, 96, 32),
    tiling(4096, 14336, 128, 96, 32),
    tiling(1024, 4096, 256, 96, 32),
    tiling(4096, 4096, 128, 96, 32),
];

/// The tilings of a model: from its `kernel_config.ini`, or those of published models.
#[derive(Clone, Debug, Default)]
pub struct Tilings {
    /// The file's name in errors, and its tilings.
    config: Option<(String, Vec<TlTiling>)>,
}

impl Tilings {
    /// Maximum number of sections in a file.
    const MOST: usize = 1024;

    /// Parses `kernel_config.ini`: sections of any name with the integer keys m, k, bm, bk and bmm, in either case.
    /// `BadModel`, naming the section and the key, if a key is missing, appears twice or is not a number.
    pub fn parse(text: &str, what: &str) -> Result<Self> {
        let mut tilings = Vec::new();
        for section in sections(text, what)? {
            tilings.push(section.tiling(what)?);
        }
        Ok(Self { config: Some((what.to_owned(), tilings)) })
    }

    /// Returns the tiling of a `rows` x `cols` tensor. `Unsupported`, with advice, if no tiling is known; `BadModel`
    /// if the known tiling is impossible.
    pub fn find(&self, dtype: DType, rows: usize, cols: usize) -> Result<TlTiling> {
        let (known, what) = match (&self.config, dtype) {
            (Some((what, tilings)), _) => (tilings.as_slice(), what.as_str()),
            (None, DType::TL1) => (TL1.as_slice(), "the built-in tilings"),
            (None, _) => (TL2.as_slice(), "the built-in tilings"),
        };
        let found = known.iter().find(|t| (t.rows, t.cols) == (rows, cols)).ok_or_else(|| {
            Error::unsupported(format!(
                "a {dtype:?} tensor of {rows} rows and {cols} columns is laid out by a tiling that the model file does \
                 not hold, and {what} have no section m = {rows}, k = {cols}; put the kernel_config.ini that the file \
                 was converted with beside it"
            ))
        })?;
        found.check(dtype).map_err(|why| {
            Error::bad_model(format!("{what}: m = {rows}, k = {cols} for a {dtype:?} tensor: {why}"))
        })?;
        Ok(*found)
    }
}

/// Maximum number of keys in a section; five are read.
const MOST_KEYS: usize = 64;

/// Shortens a name or value for an error message.
fn cut(text: &str) -> &str {
    text.char_indices().nth(60).map_or(text, |(end, _)| &text[..end])
}

/// A section's name, and its keys in lower case with their values.
struct Section<'a> {
    name: &'a str,
    pairs: Vec<(String, &'a str)>,
}

fn sections<'a>(text: &'a str, what: &str) -> Result<Vec<Section<'a>>> {
    let mut sections: Vec<Section> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            if sections.len() == Tilings::MOST {
                return Err(Error::bad_model(format!("{what}: more than {} sections", Tilings::MOST)));
            }
            sections.push(Section { name: name.trim(), pairs: Vec::new() });
            continue;
        }
        let pair = line.split_once(['=', ':']);
        let (Some((key, value)), Some(section)) = (pair, sections.last_mut()) else {
            return Err(Error::bad_model(format!(
                "{what}: line {} is no section, comment or key = value within a section",
                n + 1
            )));
        };
        if section.pairs.len() == MOST_KEYS {
            let name = cut(section.name);
            return Err(Error::bad_model(format!("{what}: section [{name}] has more than {MOST_KEYS} keys")));
        }
        section.pairs.push((key.trim().to_ascii_lowercase(), value.trim()));
    }
    Ok(sections)
}

impl Section<'_> {
    fn tiling(&self, what: &str) -> Result<TlTiling> {
        let number = |key: &str| {
            let mut values = self.pairs.iter().filter(|(name, _)| name == key).map(|(_, value)| *value);
            let bad = |why: String| Error::bad_model(format!("{what}: section [{}]: {why}", cut(self.name)));
            let value = values.next().ok_or_else(|| bad(format!("the key '{key}' is missing")))?;
            if values.next().is_some() {
                return Err(bad(format!("the key '{key}' stands there twice")));
            }
            let number = value.parse::<u32>().ok().filter(|n| *n > 0);
            number
                .map(|n| n as usize)
                .ok_or_else(|| bad(format!("'{key}' is '{}', no positive number", cut(value))))
        };
        Ok(tiling(number("m")?, number("k")?, number("bm")?, number("bk")?, number("bmm")?))
    }
}

impl TlTiling {
    /// Columns in a group of `lanes` rows in TL1.
    fn group(&self) -> usize {
        256 / self.lanes
    }

    /// Number of columns that TL2 packs by threes; the rest, at most 256, are packed by twos.
    fn threes(&self) -> usize {
        self.cols / self.bk * self.bk
    }

    fn check(&self, dtype: DType) -> std::result::Result<(), String> {
        let Self { rows, cols, bm, bk, lanes } = *self;
        let whole = |what: &str, n: usize, of: usize| match n.is_multiple_of(of) {
            true => Ok(()),
            false => Err(format!("{what} = {n} is no multiple of {of}")),
        };
        let possible: &[usize] = if dtype == DType::TL1 { &[32, 64] } else { &[32] };
        if !possible.contains(&lanes) {
            return Err(format!("bmm = {lanes} is none of {possible:?}"));
        }
        whole("m", rows, bm)?;
        whole("bm", bm, lanes)?;
        if dtype == DType::TL1 {
            whole("bk", bk, self.group())?;
            return whole("k", cols, bk);
        }
        whole("bk", bk, 24)?;
        let twos = cols - self.threes();
        whole("k after the last bk", twos, 32)?;
        if twos > 256 || cols < 256 {
            return Err(format!(
                "k = {cols} leaves {twos} columns after the last bk = {bk}; at most 256 can be"
            ));
        }
        Ok(())
    }
}

/// Converts a TL1 or TL2 matrix, whose weights are its codes times `scale`, to `Ternary`. `BadModel` if it contains a
/// number that encodes no weights, or if `scale` is not finite.
pub fn unpack(pool: &Pool, m: &Matrix, tiling: TlTiling, scale: f32) -> Result<Matrix> {
    assert!((tiling.rows, tiling.cols) == (m.rows, m.cols), "a tiling of another shape");
    tiling.check(m.dtype).map_err(Error::bad_model)?;
    pack_ternary(pool, m.rows, m.cols, &filled(m.rows, scale)?, &|row, codes| {
        let valid = if m.dtype == DType::TL1 {
            tl1_row(&m.data, tiling, row, codes)
        } else {
            tl2_row(&m.data, tiling, row, codes)
        };
        valid.ok_or_else(|| Error::bad_model(format!("row {row} holds a number that stands for no weights")))
    })
}

/// The weights a and b of the number 3a + b + 4, as codes; None for a number above 8.
fn pair(number: u8) -> Option<[u8; 2]> {
    (number <= 8).then_some([number / 3, number % 3])
}

/// Reads the bytes of a row: for each tile of its columns and each group, two pairs per byte, the first in the high
/// bits. The bytes of 16 rows are interleaved.
fn tl1_row(data: &[u8], t: TlTiling, row: usize, codes: &mut [u8]) -> Option<()> {
    let (block, lane) = (row % t.bm / t.lanes, row % t.lanes);
    let group = t.group();
    let mut codes = codes.as_chunks_mut::<4>().0.iter_mut();
    for tile in 0..t.cols / t.bk {
        let tile = row / t.bm * (t.cols / t.bk) + tile;
        for at in 0..t.bk / group {
            let at = (tile * (t.bm / t.lanes) + block) * (t.bk / group) + at;
            for two in 0..group / 4 {
                let byte = data[((at * (t.lanes / 16) + lane / 16) * (group / 4) + two) * 16 + lane % 16];
                let ([a, b], [c, d]) = (pair(byte >> 4)?, pair(byte & 15)?);
                *codes.next()? = [a, b, c, d];
            }
        }
    }
    Some(())
}

/// Index of a row's byte among the bytes of 32 rows: the middle two groups of eight are swapped.
fn byte_index(lane: usize) -> usize {
    [0, 16, 8, 24][lane / 8] + lane % 8
}

/// Reads a row from three planes: the magnitudes |9a + 3b + c|, two per byte, of all tiles; the signs, 16 bits for
/// eight such numbers of two rows that are 16 apart; and the columns after the last tile as pairs, in tiles of 32
/// columns.
fn tl2_row(data: &[u8], t: TlTiling, row: usize, codes: &mut [u8]) -> Option<()> {
    let (block, lane) = (row % t.bm / 32, row % 32);
    let threes = t.threes();
    let (magnitudes, rest) = data.split_at(t.rows * threes / 6);
    let (signs, pairs) = rest.split_at(t.rows * threes / 24);
    let (by_threes, by_twos) = codes.split_at_mut(threes);
    for (tile, codes) in by_threes.chunks_exact_mut(t.bk).enumerate() {
        let tile = (row / t.bm * (threes / t.bk) + tile) * (t.bm / 32) + block;
        for (n, codes) in codes.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let byte = magnitudes[(tile * (t.bk / 6) + n / 2) * 32 + byte_index(lane)];
            let magnitude = if n % 2 == 0 { byte >> 4 } else { byte & 15 };
            let at = ((tile * (t.bk / 24) + n / 8) * 16 + lane % 16) * 2;
            let bits = u16::from_le_bytes([signs[at], signs[at + 1]]);
            let negative = bits >> (15 - 2 * (n % 8) - lane / 16) & 1 == 1;
            let number = if negative { 13u8.checked_sub(magnitude)? } else { 13 + magnitude };
            if number > 26 {
                return None;
            }
            *codes = [number / 9, number / 3 % 3, number % 3];
        }
    }
    let tiles = (t.cols - threes) / 32;
    for (tile, codes) in by_twos.chunks_exact_mut(32).enumerate() {
        let tile = (row / t.bm * tiles + tile) * (t.bm / 32) + block;
        for (n, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let byte = pairs[(tile * 8 + n) * 32 + byte_index(lane)];
            let ([a, b], [c, d]) = (pair(byte >> 4)?, pair(byte & 15)?);
            *codes = [a, b, c, d];
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
