//! Codebooks in the forms in which they are looked up, made from `grids` at compile time.

/// A table that begins at a cache line: registers of a whole line are otherwise loaded from two.
#[repr(C, align(64))]
pub(super) struct InLines<T>(pub T);

pub(super) const IQ2: [u8; 3] = [8, 25, 43];
pub(super) const IQ3_EVEN: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
pub(super) const IQ3_ODD: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

/// The codes at four digits of an entry, from the one at `bit` on.
const fn word(entry: u16, bit: usize, bits: usize, magnitudes: &[u8], offset: u8) -> u32 {
    let (mut word, mut i) = (0, 0);
    while i < 4 {
        let digit = entry as usize >> (bit + bits * i) & ((1 << bits) - 1);
        word |= ((magnitudes[digit] + offset) as u32) << (8 * i);
        i += 1;
    }
    word
}

/// See `Book::grid`.
pub(super) const fn grid<const N: usize, const WORDS: usize>(
    bits: usize,
    entries: &[u16; N],
    magnitudes: &[u8],
    offset: u8,
) -> [u32; WORDS] {
    let (mut grid, mut n) = ([0; WORDS], 0);
    while n < WORDS {
        let each = WORDS / N;
        grid[n] = word(entries[n / each], n % each * 4 * bits, bits, magnitudes, offset);
        n += 1;
    }
    grid
}

/// As `Book::digits`: of eight columns of two bits, or of four columns of three bits.
pub(super) const fn digits<const N: usize, const TABLES: usize>(
    bits: usize,
    entries: &[u16; N],
) -> [[[u8; 256]; TABLES]; 2] {
    assert!(N == 256 * TABLES);
    let half = if bits == 2 { 8 } else { 6 };
    let (mut digits, mut n) = ([[[0; 256]; TABLES]; 2], 0);
    while n < N {
        digits[0][n / 256][n % 256] = (entries[n] & ((1 << half) - 1)) as u8;
        digits[1][n / 256][n % 256] = (entries[n] >> half) as u8;
        n += 1;
    }
    digits
}

/// As `Book::levels`, for the six low bits of a byte.
pub(super) const fn levels(bits: usize, magnitudes: &[u8], offset: u8) -> [[u8; 64]; 4] {
    let (mut levels, mut n) = ([[0; 64]; 4], 0);
    while n < 4 * 64 {
        let digit = (n % 64) >> (bits * (n / 64) % 6) & ((1 << bits) - 1);
        levels[n / 64][n % 64] = if digit < magnitudes.len() { magnitudes[digit] + offset } else { 0 };
        n += 1;
    }
    levels
}

/// Signs by their low seven bits: these and the eighth.
pub(super) static EVEN: InLines<[u8; 128]> = {
    let (mut even, mut n) = ([0; 128], 0);
    while n < 128 {
        even[n] = n as u8 | ((n.count_ones() % 2) as u8) << 7;
        n += 1;
    }
    InLines(even)
};
