//! The product of Q1_0 weights and one token by look-up tables, compared with the engine's own: ratios of times.
//!
//! `cargo dev lut_q1 -- [--quick] [--threads N] [--json FILE]`
//!
//! Four weights of one bit are an index of 4 bits, as they lie in the file; 32 rows' indices stand side by side, which a
//! file does not have. A token has a table of 16 sums for each four columns, and `vpshufb` looks up 32 rows at once
//! (AVX2). A sum, at most 4 * 127 = 508, is stored as `508 + sum = low + 32 * high`, so that the bytes of eight
//! look-ups, the 32 columns of one scale, add up without overflow. Results have the bits of the engine's.

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
    use bn_dev::weights::Arena;
    use bn_dev::{Options, SplitMix, machine, median, seconds};
    use bn_engine::base::Bytes;
    use bn_engine::kernels::gemm::blocks::{Part, SharedOut};
    use bn_engine::kernels::gemm::quantized;
    use bn_engine::kernels::rows::quantize_blocks::{BlockActivations, quantize_blocks};
    use bn_engine::kernels::{DType, Isa, Matrix, Pool};
    use serde_json::json;
    use std::arch::x86_64::*;

    /// Of Bonsai 1.7B: q and output, gate and up, down.
    const SHAPES: [(usize, usize); 3] = [(2048, 2048), (6144, 2048), (2048, 6144)];
    /// Of each form's weights, so that caches have forgotten a copy when its turn comes again.
    const ARENA: usize = 160 << 20;
    const ROWS: usize = 32;
    /// Columns of a weight's scale, and of an activation's.
    const BLOCK: usize = 128;
    const SPAN: usize = 32;
    /// Bytes of `ROWS` rows' block: scales, then two indices a byte.
    const BYTES: usize = ROWS * 18;
    /// Of four columns: 16 low bytes, 16 high ones.
    const TABLE: usize = 32;
    /// What eight sums are too large by.
    const OFFSET: i16 = 8 * 508;

    pub fn main() {
        let options = Options::parse("lut_q1");
        if !options.isa.has_avx2() {
            return println!("this machine lacks AVX2");
        }
        let pool = Pool::new(options.threads).expect("a pool");
        println!("{}; {} threads; medians of {}", machine(), options.threads, options.rounds());
        println!("x: product's time on AVX2 over this one's, in turns; tables' making is in the time");
        let mut report = Vec::new();
        for (rows, cols) in SHAPES {
            let arena = Arena::new(DType::Q1_0, ARENA);
            let matrices = arena.matrices(rows, cols).expect("room");
            let tables = copies(&repacked(&matrices[0].data, cols), &matrices);
            let mut random = SplitMix(3);
            let x: Vec<f32> = (0..cols).map(|_| random.unit()).collect();
            let (mut values, mut scales, mut sums) =
                (vec![0; cols], vec![0.0; cols / SPAN], vec![0; cols / SPAN]);
            quantize_blocks(options.isa, SPAN, &x, &mut values, &mut scales, &mut sums);
            let x = BlockActivations { values: &values, scales: &scales, sums: &sums, cols, block: SPAN };
            let [mut own, mut other] = [(); 2].map(|()| vec![0.0; rows]);
            let product = |isa: Isa, n: usize, out: &mut [f32]| {
                let part = [Part { matrix: &matrices[n % matrices.len()], column: 0 }];
                quantized::matmul(&pool, isa, &x, &part, rows, out);
            };
            let mut scratch = Vec::new();
            product(options.isa, 0, &mut own);
            look_up(&pool, &x, &tables[0], &mut scratch, &mut other);
            assert!(own == other, "a product of tables has other bits");
            let mut n = 0;
            let mut run = |form: usize| {
                n += 1;
                match form {
                    0 => product(Isa::Avx2, n, &mut own),
                    1 => product(options.isa, n, &mut own),
                    _ => look_up(&pool, &x, &tables[n % tables.len()], &mut scratch, &mut other),
                }
            };
            let times = (8e-3 / seconds(|| run(0))).ceil().clamp(4.0, 1e3) as usize;
            let mut taken = [const { Vec::new() }; 3];
            for _ in 0..options.rounds() {
                for (form, taken) in taken.iter_mut().enumerate() {
                    taken.push(seconds(|| (0..times).for_each(|_| run(form))) / times as f64);
                }
            }
            print!("{rows}x{cols}:");
            for (form, name) in ["avx2", options.isa.name(), "tables"].into_iter().enumerate() {
                let ratio = median(taken[0].iter().zip(&taken[form]).map(|(a, b)| a / b).collect());
                let one = median(taken[form].clone());
                let gb = matrices[0].data.len() as f64 / one / 1e9;
                print!("  {name} {:.1} us {gb:.1} GB/s {ratio:.2}x", one * 1e6);
                report.push(json!({"shape": [rows, cols], "form": name, "us": one * 1e6, "gb_per_s": gb,
                    "of_avx2": ratio}));
            }
            println!();
        }
        options.write(&json!({"machine": machine(), "threads": options.threads, "rows": report}));
    }

    /// As many copies as there are matrices.
    fn copies(one: &[u8], matrices: &[Matrix]) -> Vec<Bytes> {
        matrices.iter().map(|_| Bytes::new(one.to_vec())).collect()
    }

    /// `ROWS` rows after another, of each block after block: scales in f16, then for each eight columns a byte a row.
    fn repacked(data: &[u8], cols: usize) -> Vec<u8> {
        let stride = cols / BLOCK * 18;
        let mut out = vec![0; data.len()];
        for (group, out) in data.chunks_exact(ROWS * stride).zip(out.chunks_exact_mut(ROWS * stride)) {
            for (r, row) in group.chunks_exact(stride).enumerate() {
                for (from, to) in row.chunks_exact(18).zip(out.chunks_exact_mut(BYTES)) {
                    to[2 * r..2 * r + 2].copy_from_slice(&from[..2]);
                    from[2..].iter().enumerate().for_each(|(i, byte)| to[(2 + i) * ROWS + r] = *byte);
                }
            }
        }
        out
    }

    fn look_up(pool: &Pool, x: &BlockActivations, data: &Bytes, scratch: &mut Vec<u8>, out: &mut [f32]) {
        let size = x.cols / 4 * TABLE;
        scratch.resize(size + 64, 0);
        let start = scratch.as_ptr().align_offset(64);
        let tables = &mut scratch[start..][..size];
        // SAFETY (of both): the machine has AVX2.
        unsafe { make(x.values, tables) };
        let (tables, tasks, shared) = (&*tables, out.len() / ROWS, SharedOut::new(out));
        pool.run_in_order(tasks, data.len(), 1, &|task| {
            let stride = data.len() / tasks;
            // SAFETY: a task has its rows to itself.
            let out = unsafe { shared.slice(task * ROWS..(task + 1) * ROWS) };
            unsafe { rows(&data[task * stride..(task + 1) * stride], tables, x.scales, out) }
        });
    }

    /// The tables of a token.
    #[target_feature(enable = "avx2")]
    fn make(x: &[i8], tables: &mut [u8]) {
        let factors: [__m256i; 4] = std::array::from_fn(|d| {
            let one: [i16; 16] = std::array::from_fn(|i| if i >> d & 1 == 1 { 1 } else { -1 });
            // SAFETY: sixteen i16.
            unsafe { _mm256_loadu_si256(one.as_ptr().cast()) }
        });
        for (x, to) in x.as_chunks::<4>().0.iter().zip(tables.as_chunks_mut::<TABLE>().0) {
            let mut sum = _mm256_set1_epi16(508);
            for (x, factor) in x.iter().zip(factors) {
                sum = _mm256_add_epi16(sum, _mm256_sign_epi16(_mm256_set1_epi16(i16::from(*x)), factor));
            }
            let (low, high) = (_mm256_and_si256(sum, _mm256_set1_epi16(31)), _mm256_srli_epi16::<5>(sum));
            let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(low, high));
            // SAFETY: 32 bytes.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes) }
        }
    }

    /// Of `ROWS` rows the products with one token.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn rows(w: &[u8], tables: &[u8], scales: &[f32], out: &mut [f32]) {
        let mut totals = [_mm256_setzero_ps(); 4];
        let spans = tables.as_chunks::<{ 8 * TABLE }>().0.iter().zip(scales);
        let mut spans = spans.into_iter();
        for block in w.as_chunks::<BYTES>().0 {
            for line in 0..BYTES / 64 {
                _mm_prefetch::<_MM_HINT_T1>(block.as_ptr().wrapping_add(6144 + 64 * line).cast());
            }
            // SAFETY (of all): all lies in the block, whose first 64 bytes are scales.
            let own: [__m256; 4] = [0, 1, 2, 3]
                .map(|i| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(block[16 * i..].as_ptr().cast())) });
            for span in block[64..].as_chunks::<{ 4 * ROWS }>().0 {
                let (tables, scale) = spans.next().expect("a span of columns");
                let [low, high] = sums(span, tables);
                let weigh = |pairs| {
                    let sum = _mm256_maddubs_epi16(pairs, _mm256_set1_epi16(1 | 32 << 8));
                    _mm256_sub_epi16(sum, _mm256_set1_epi16(OFFSET))
                };
                let pairs = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)].map(weigh);
                let scale = _mm256_set1_ps(*scale);
                for i in 0..4 {
                    let pair = pairs[i % 2];
                    let half = if i < 2 {
                        _mm256_castsi256_si128(pair)
                    } else {
                        _mm256_extracti128_si256::<1>(pair)
                    };
                    let dot = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(half));
                    totals[i] = _mm256_fmadd_ps(dot, _mm256_mul_ps(own[i], scale), totals[i]);
                }
            }
        }
        for (out, total) in out.as_chunks_mut::<8>().0.iter_mut().zip(totals) {
            // SAFETY: eight floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), total) };
        }
    }

    /// Low and high bytes of eight look-ups' sums, of 32 rows.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sums(span: &[u8; 4 * ROWS], tables: &[u8; 8 * TABLE]) -> [__m256i; 2] {
        let (mut low, mut high) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for i in 0..4 {
            // SAFETY: 32 bytes.
            let both = unsafe { _mm256_loadu_si256(span[ROWS * i..].as_ptr().cast()) };
            for (nibble, index) in [both, _mm256_srli_epi16::<4>(both)].into_iter().enumerate() {
                let index = _mm256_and_si256(index, _mm256_set1_epi8(15));
                let at = (2 * i + nibble) * TABLE;
                // SAFETY: 16 bytes each.
                let [l, h] = [at, at + 16].map(|at| unsafe {
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(tables[at..].as_ptr().cast()))
                });
                low = _mm256_add_epi8(low, _mm256_shuffle_epi8(l, index));
                high = _mm256_add_epi8(high, _mm256_shuffle_epi8(h, index));
            }
        }
        [low, high]
    }
}
