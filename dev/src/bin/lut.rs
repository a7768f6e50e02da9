//! The ternary product by look-up tables, as TL1 and TL2 of bitnet.cpp, compared with the engine's own: ratios of
//! times.
//!
//! `cargo dev lut -- [--quick] [--threads N] [--json FILE]`
//!
//! Both are exact and use AVX2. TL1 stores two weights as a 4-bit index, TL2 three as a 4-bit index and a sign (1.67
//! bits per weight). For each group of columns, a token has a table of its 16 sums, and `vpshufb` looks up 32 rows at
//! once. A sum is stored as two bytes, `low + 31 * high` with |low| <= 15 and |high| <= 13, so that eight of each can be
//! added in bytes before one `vpmaddubsw` widens both to 16 bits. The two halves of an i16 would have to be combined
//! for each look-up.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("the look-up tables are here for x86-64 alone");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    bench::main();
}

#[cfg(target_arch = "x86_64")]
mod bench {
    use bn_dev::{Options, SplitMix, machine, median, seconds};
    use bn_engine::base::Bytes;
    use bn_engine::kernels::gemm::blocks::Part;
    use bn_engine::kernels::gemm::blocks::SharedOut;
    use bn_engine::kernels::gemm::ternary::{self, Activations};
    use bn_engine::kernels::rows::quantize::QuantRow;
    use bn_engine::kernels::{DType, Isa, Matrix, Pool};
    use serde_json::json;
    use std::arch::x86_64::*;

    const SHAPES: [(usize, usize); 2] = [(2560, 2560), (6912, 2560)];
    const TOKENS: [usize; 3] = [1, 4, 16];
    /// Of each form's weights, so that caches have forgotten a copy when its turn comes again.
    const ARENA: usize = 160 << 20;
    /// Rows of a task, and look-ups whose sums are bytes.
    const ROWS: usize = 64;
    const GROUPS: usize = 8;
    /// Bytes of a group's table: 16 low ones, 16 high ones.
    const TABLE: usize = 32;
    /// Bytes of `GROUPS` groups of `ROWS` rows.
    const PAIRS: usize = ROWS * GROUPS / 2;
    const TRIPLES: usize = PAIRS + ROWS;
    /// Blocks after which 16-bit sums go to 32: eight of 8 * (384 + 32) at most.
    const WIDEN: usize = 8;
    /// What a sum is short of where its sign was turned by inverting both bytes.
    const INVERTED: i32 = 1 + 31;

    pub fn main() {
        let options = Options::parse("lut");
        if !options.isa.has_avx2() {
            return println!("this machine lacks AVX2");
        }
        let pool = Pool::new(options.threads).expect("a pool");
        println!("{}; {} threads; medians of {}", machine(), options.threads, options.rounds());
        println!(
            "x: product's time on AVX2 over this one's, in turns; tables and their making are in the time"
        );
        let mut rows = Vec::new();
        for (height, width) in SHAPES {
            let mut random = SplitMix(1);
            let mut w: Vec<i8> = (0..height * width).map(|_| (random.draw() % 3) as i8 - 1).collect();
            // The largest sums, with -128 below.
            w[..width].fill(1);
            w[width..2 * width].fill(-1);
            let codes = copies(&i2s(&w));
            let codes = codes.into_iter().map(|data| Matrix::new(data, DType::I2S, height, width));
            let codes: Vec<Matrix> = codes.map(|m| m.expect("a matrix")).collect();
            let tables = [0, width / 48 * 2].map(|triples| Lut::new(&w, width, triples));
            for tokens in TOKENS {
                let mut values: Vec<i8> = (0..tokens * width).map(|_| random.draw() as i8).collect();
                values[..width].fill(-128);
                let sum = |x: &[i8]| x.iter().map(|v| *v as i32).sum();
                // Scales of one: outputs are the integer dots.
                let quant: Vec<_> =
                    values.chunks(width).map(|x| QuantRow { scale: 1.0, sum: sum(x) }).collect();
                let x = Activations { values: &values, rows: &quant, cols: width };
                let part = |n: usize| [Part { matrix: &codes[n % codes.len()], column: 0 }];
                let (mut own, mut other) = (vec![0.0; tokens * height], vec![0.0; tokens * height]);
                ternary::matmul(&pool, options.isa, &x, &part(0), codes[0].rows, &mut own);
                let mut scratch = Vec::new();
                for lut in &tables {
                    lut.matmul(&pool, &x, 0, &mut scratch, &mut other);
                    assert!(own == other, "a product of tables is not exact");
                }
                let mut n = 0;
                let mut run = |form: usize| {
                    n += 1;
                    match form {
                        0 | 1 => {
                            let isa = if form == 0 { Isa::Avx2 } else { options.isa };
                            ternary::matmul(&pool, isa, &x, &part(n), codes[0].rows, &mut own)
                        }
                        _ => tables[form - 2].matmul(&pool, &x, n, &mut scratch, &mut other),
                    }
                };
                let times = (8e-3 / seconds(|| run(0))).ceil().clamp(4.0, 1e3) as usize;
                let mut taken = [const { Vec::new() }; 4];
                for _ in 0..options.rounds() {
                    for (form, taken) in taken.iter_mut().enumerate() {
                        taken.push(seconds(|| (0..times).for_each(|_| run(form))) / times as f64);
                    }
                }
                let bytes = [&codes[0].data, &codes[0].data, &tables[0].copies[0], &tables[1].copies[0]];
                print!("{height}x{width} M={tokens}:");
                for (form, name) in ["avx2", options.isa.name(), "TL1", "TL2"].into_iter().enumerate() {
                    let ratio = median(taken[0].iter().zip(&taken[form]).map(|(a, b)| a / b).collect());
                    let one = median(taken[form].clone());
                    let gb = bytes[form].len() as f64 / one / 1e9;
                    print!("  {name} {:.1} us {gb:.1} GB/s {ratio:.2}x", one * 1e6);
                    rows.push(json!({"shape": [height, width], "m": tokens, "form": name, "us": one * 1e6,
                        "gb_per_s": gb, "of_avx2": ratio}));
                }
                println!();
            }
        }
        options.write(&json!({"machine": machine(), "threads": options.threads, "rows": rows}));
    }

    /// As many copies as the arena takes, each at a cache line's start.
    fn copies(one: &[u8]) -> Vec<Bytes> {
        let (len, stride) = (one.len(), one.len().next_multiple_of(64));
        let count = (ARENA / stride).max(2);
        let mut all = vec![0; count * stride + 64];
        let start = all.as_ptr().align_offset(64);
        all[start..].chunks_exact_mut(stride).for_each(|to| to[..len].copy_from_slice(one));
        let all = Bytes::new(all);
        (0..count).filter_map(|n| all.slice(start + n * stride..start + n * stride + len)).collect()
    }

    /// -1, 0 and 1 in I2_S's layout, with a scale of one.
    fn i2s(w: &[i8]) -> Vec<u8> {
        let mut bytes = vec![0; w.len() / 4 + 32];
        for (block, w) in bytes.chunks_exact_mut(32).zip(w.chunks_exact(128)) {
            w.iter().enumerate().for_each(|(i, w)| block[i % 32] |= ((w + 1) as u8) << (6 - i / 32 * 2));
        }
        bytes[w.len() / 4..][..4].copy_from_slice(&1f32.to_le_bytes());
        bytes
    }

    /// The balanced ternary digits of -13 to 13.
    fn digits(v: i16) -> [i16; 3] {
        let digit = |v: i16| (v + 1).rem_euclid(3) - 1;
        let c = digit(v);
        let b = digit((v - c) / 3);
        [(v - c - 3 * b) / 9, b, c]
    }

    /// Weights as indices: `ROWS` rows after another, of each first blocks of triples and then of pairs.
    struct Lut {
        copies: Vec<Bytes>,
        /// What each row is short of (`INVERTED`).
        short: Vec<i32>,
        triples: usize,
        pairs: usize,
    }

    impl Lut {
        fn new(w: &[i8], cols: usize, triples: usize) -> Self {
            let (rows, split) = (w.len() / cols, triples * 3 * GROUPS);
            let pairs = (cols - split) / (2 * GROUPS);
            assert!(rows.is_multiple_of(ROWS) && split + pairs * 2 * GROUPS == cols);
            let stride = triples * TRIPLES + pairs * PAIRS;
            let (mut bytes, mut short) = (vec![0; rows / ROWS * stride], vec![0; rows]);
            for (row, w) in w.chunks_exact(cols).enumerate() {
                let (bytes, r) = (&mut bytes[row / ROWS * stride..][..stride], row % ROWS);
                let (threes, twos) = bytes.split_at_mut(triples * TRIPLES);
                for (n, w) in w[..split].chunks_exact(3).enumerate() {
                    let (block, g) = (&mut threes[n / GROUPS * TRIPLES..], n % GROUPS);
                    let v = 9 * w[0] + 3 * w[1] + w[2];
                    block[g / 2 * ROWS + r] |= v.unsigned_abs() << (g % 2 * 4);
                    block[PAIRS + r] |= u8::from(v < 0) << (7 - g);
                    short[row] += i32::from(v < 0) * INVERTED;
                }
                for (n, w) in w[split..].chunks_exact(2).enumerate() {
                    let (block, g) = (&mut twos[n / GROUPS * PAIRS..], n % GROUPS);
                    block[g / 2 * ROWS + r] |= ((3 * w[0] + w[1] + 4) as u8) << (g % 2 * 4);
                }
            }
            Self { copies: copies(&bytes), short, triples, pairs }
        }

        fn matmul(&self, pool: &Pool, x: &Activations, n: usize, scratch: &mut Vec<u8>, out: &mut [f32]) {
            let (tokens, rows) = (x.rows.len(), self.short.len());
            let size = (self.triples + self.pairs) * GROUPS * TABLE;
            scratch.resize(tokens * size + 64, 0);
            let start = scratch.as_ptr().align_offset(64);
            let tables = &mut scratch[start..][..tokens * size];
            let shared = SharedOut::new(tables);
            pool.run_if_worth(tokens * size, tokens, &|t| {
                // SAFETY: a task has its token's tables to itself; the machine has AVX2.
                let tables = unsafe { shared.slice(t * size..(t + 1) * size) };
                unsafe { self.tables(&x.values[t * x.cols..(t + 1) * x.cols], tables) }
            });
            let (tables, out) = (&*tables, SharedOut::new(out));
            let data = &self.copies[n % self.copies.len()];
            let tasks = rows / ROWS;
            pool.run_in_order(tasks, data.len(), tokens, &|task| {
                let stride = data.len() / tasks;
                let w = &data[task * stride..(task + 1) * stride];
                let write = |t: usize, sums: &[i32; ROWS]| {
                    let at = t * rows + task * ROWS;
                    // SAFETY: a task has its rows to itself.
                    let out = unsafe { out.slice(at..at + ROWS) };
                    let short = &self.short[task * ROWS..];
                    out.iter_mut().zip(sums.iter().zip(short)).for_each(|(o, (s, c))| *o = (s + c) as f32);
                };
                let table = |t: usize| tables[t * size..(t + 1) * size].as_ptr();
                for t in (0..tokens / 2 * 2).step_by(2) {
                    // SAFETY (both): weights and tables have the bytes of all blocks; the machine has AVX2.
                    let sums = unsafe { self.rows(w.as_ptr(), [table(t), table(t + 1)]) };
                    write(t, &sums[0]);
                    write(t + 1, &sums[1]);
                }
                if tokens % 2 == 1 {
                    write(tokens - 1, &unsafe { self.rows(w.as_ptr(), [table(tokens - 1)]) }[0]);
                }
            });
        }

        /// A token's tables.
        #[target_feature(enable = "avx2")]
        fn tables(&self, x: &[i8], tables: &mut [u8]) {
            let split = self.triples * 3 * GROUPS;
            let factors = |first: i16| {
                let all: [[i16; 3]; 16] = std::array::from_fn(|i| digits((i as i16 + first).min(13)));
                [0, 1, 2].map(|d| {
                    let one: [i16; 16] = std::array::from_fn(|i| all[i][d]);
                    // SAFETY: sixteen i16.
                    unsafe { _mm256_loadu_si256(one.as_ptr().cast()) }
                })
            };
            let (threes, twos) = (factors(0), factors(-4));
            let (x3, x2) = x.split_at(split);
            let (t3, t2) = tables.split_at_mut(split / 3 * TABLE);
            for (x, to) in x3.as_chunks::<3>().0.iter().zip(t3.as_chunks_mut::<TABLE>().0) {
                table(*x, threes, to);
            }
            for (x, to) in x2.as_chunks::<2>().0.iter().zip(t2.as_chunks_mut::<TABLE>().0) {
                table([0, x[0], x[1]], twos, to);
            }
        }

        /// Sums of `ROWS` rows at `w` for `T` tokens.
        ///
        /// # Safety
        /// At `w` and `tables` are the bytes of all blocks.
        #[target_feature(enable = "avx2")]
        unsafe fn rows<const T: usize>(&self, w: *const u8, tables: [*const u8; T]) -> [[i32; ROWS]; T] {
            let (mut w, mut tables, mut all) = (w, tables, [[0i32; ROWS]; T]);
            let blocks = self.triples + self.pairs;
            for first in (0..blocks).step_by(WIDEN) {
                let mut sums = [[_mm256_setzero_si256(); 4]; T];
                for n in first..blocks.min(first + WIDEN) {
                    // SAFETY: the caller's promise, block by block.
                    unsafe {
                        if n < self.triples {
                            block::<T, true>(w, tables, &mut sums);
                        } else {
                            block::<T, false>(w, tables, &mut sums);
                        }
                        w = w.add(if n < self.triples { TRIPLES } else { PAIRS });
                        tables = tables.map(|t| t.add(GROUPS * TABLE));
                    }
                }
                for (all, sums) in all.iter_mut().zip(sums) {
                    for (i, sums) in sums.into_iter().enumerate() {
                        let halves = [_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums)];
                        for (half, sums) in halves.into_iter().enumerate() {
                            // `vpunpck` has put rows 8 to 15 of each 32 in a second vector, 16 to 23 in a second half.
                            let to = all[i / 2 * 32 + half * 16 + i % 2 * 8..][..8].as_mut_ptr().cast();
                            // SAFETY: eight i32.
                            unsafe {
                                let sum =
                                    _mm256_add_epi32(_mm256_loadu_si256(to), _mm256_cvtepi16_epi32(sums));
                                _mm256_storeu_si256(to, sum);
                            }
                        }
                    }
                }
            }
            all
        }
    }

    /// The sums of three values with 16 triples of factors.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn table(x: [i8; 3], factors: [__m256i; 3], to: &mut [u8; TABLE]) {
        let [a, b, c] = [0, 1, 2].map(|d| _mm256_sign_epi16(_mm256_set1_epi16(i16::from(x[d])), factors[d]));
        let sum = _mm256_add_epi16(_mm256_add_epi16(a, b), c);
        // To the nearest: 1057 / 2^15 is 1 / 31.
        let high = _mm256_mulhrs_epi16(sum, _mm256_set1_epi16(1057));
        let low = _mm256_sub_epi16(sum, _mm256_mullo_epi16(high, _mm256_set1_epi16(31)));
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(low, high));
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes) }
    }

    /// Adds `GROUPS` look-ups of `ROWS` rows to 16-bit sums, of `T` tokens.
    ///
    /// # Safety
    /// At `w` is a block, at `tables` are its tables.
    #[inline]
    #[target_feature(enable = "avx2")]
    #[allow(clippy::needless_range_loop)] // tiles of registers
    unsafe fn block<const T: usize, const SIGNED: bool>(
        w: *const u8,
        tables: [*const u8; T],
        sums: &mut [[__m256i; 4]; T],
    ) {
        let zero = _mm256_setzero_si256();
        // SAFETY (of all): the caller's promise.
        let load = |at: usize| unsafe { _mm256_loadu_si256(w.add(at).cast()) };
        for line in 0..if SIGNED { TRIPLES } else { PAIRS } / 64 {
            _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add(6144 + 64 * line).cast());
        }
        let mut signs = if SIGNED { [load(PAIRS), load(PAIRS + 32)] } else { [zero; 2] };
        let mut bytes = [[[zero; 2]; 2]; T];
        for pair in 0..GROUPS / 2 {
            let index = [load(pair * ROWS), load(pair * ROWS + 32)];
            let tables = tables.map(|t| t.wrapping_add(2 * pair * TABLE));
            // SAFETY (both): the caller's promise.
            unsafe { look_up::<T, SIGNED>(index, &mut signs, tables, &mut bytes) };
            let (index, tables) =
                (index.map(|i| _mm256_srli_epi16::<4>(i)), tables.map(|t| t.wrapping_add(TABLE)));
            unsafe { look_up::<T, SIGNED>(index, &mut signs, tables, &mut bytes) };
        }
        let weigh = |pairs| _mm256_maddubs_epi16(_mm256_set1_epi16(1 | 31 << 8), pairs);
        for t in 0..T {
            for r in 0..2 {
                let [low, high] = bytes[t][r];
                let (a, b) = (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
                sums[t][2 * r] = _mm256_add_epi16(sums[t][2 * r], weigh(a));
                sums[t][2 * r + 1] = _mm256_add_epi16(sums[t][2 * r + 1], weigh(b));
            }
        }
    }

    /// One group: what the low nibbles of `index` say of `tables`, turned by `signs`' topmost bits, which go.
    ///
    /// # Safety
    /// At `tables` are `TABLE` bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    #[allow(clippy::needless_range_loop)]
    unsafe fn look_up<const T: usize, const SIGNED: bool>(
        index: [__m256i; 2],
        signs: &mut [__m256i; 2],
        tables: [*const u8; T],
        bytes: &mut [[[__m256i; 2]; 2]; T],
    ) {
        let index = index.map(|i| _mm256_and_si256(i, _mm256_set1_epi8(15)));
        let turned = signs.map(|s| _mm256_cmpgt_epi8(_mm256_setzero_si256(), s));
        *signs = signs.map(|s| _mm256_add_epi8(s, s));
        for t in 0..T {
            for half in 0..2 {
                // SAFETY: the caller's promise.
                let table = unsafe { _mm_loadu_si128(tables[t].add(16 * half).cast()) };
                let table = _mm256_broadcastsi128_si256(table);
                for r in 0..2 {
                    let found = _mm256_shuffle_epi8(table, index[r]);
                    let found = if SIGNED { _mm256_xor_si256(found, turned[r]) } else { found };
                    bytes[t][r][half] = _mm256_add_epi8(bytes[t][r][half], found);
                }
            }
        }
    }
}
