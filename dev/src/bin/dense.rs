//! The dense product compared with its form before rows were decoded in registers: ratios of times, in alternation.
//!
//! `cargo dev dense -- [TYPE]... [ROWSxCOLS]... [m=N]... [t=THREADS]... [rounds=N]`; the default is all.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("the older product is here for x86-64 alone");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    bench::main();
}

#[cfg(target_arch = "x86_64")]
mod bench {
    use bn_engine::base::Bytes;
    use bn_engine::kernels::gemm::blocks::Part;
    use bn_engine::kernels::gemm::dense;
    use bn_engine::kernels::{DType, Isa, Matrix, Pool, isa};
    use std::hint::black_box;

    const SHAPES: [(usize, usize); 4] = [(16384, 2560), (2048, 2048), (8192, 2048), (2048, 8192)];
    const TYPES: [DType; 2] = [DType::F16, DType::BF16];
    const MORE: [DType; 1] = [DType::F32];
    const TOKENS: [usize; 7] = [1, 2, 4, 8, 16, 32, 128];

    pub fn main() {
        if !isa().has_avx2() {
            return println!("this machine lacks AVX2");
        }
        let args: Vec<String> = std::env::args().skip(1).collect();
        let numbers = |key: &str, all: &[usize]| -> Vec<usize> {
            let some: Vec<_> =
                args.iter().filter_map(|a| a.strip_prefix(key)).filter_map(|n| n.parse().ok()).collect();
            if some.is_empty() { all.to_vec() } else { some }
        };
        let named = |dtype: &DType| args.iter().any(|a| *a == format!("{dtype:?}"));
        let mut types: Vec<DType> = TYPES.into_iter().chain(MORE).filter(named).collect();
        if types.is_empty() {
            types = TYPES.to_vec();
        }
        let mut shapes: Vec<(usize, usize)> = args
            .iter()
            .filter_map(|a| a.split_once('x'))
            .filter_map(|(r, c)| Some((r.parse().ok()?, c.parse().ok()?)))
            .collect();
        if shapes.is_empty() {
            shapes = SHAPES.to_vec();
        }
        let rounds = numbers("rounds=", &[11])[0];
        println!(
            "type  rows x cols  threads: old time / new time by tokens (of the new: GFLOP/s, GB/s of weights)"
        );
        for threads in numbers("t=", &[1, 2]) {
            let pool = Pool::new(threads).expect("threads");
            for dtype in &types {
                for &(rows, cols) in &shapes {
                    let m = matrix(*dtype, rows, cols);
                    print!("{dtype:?} {rows}x{cols} t={threads}:");
                    for tokens in numbers("m=", &TOKENS) {
                        let (ratio, seconds) = compare(&pool, &m, tokens, rounds);
                        let flops = 2.0 * (rows * cols * tokens) as f64 / seconds / 1e9;
                        let bytes = m.data.len() as f64 / seconds / 1e9;
                        print!("  m={tokens} {ratio:.2} ({flops:.0}, {bytes:.1})");
                    }
                    println!();
                }
            }
        }
    }

    /// Medians of `rounds`: old over new, and seconds of the new.
    fn compare(pool: &Pool, m: &Matrix, tokens: usize, rounds: usize) -> (f64, f64) {
        let x: Vec<f32> = (0..tokens * m.cols).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let mut new = vec![f32::NAN; tokens * m.rows];
        let mut was = new.clone();
        let (mut ratios, mut times) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let start = now(pool);
            old::matmul(pool, black_box(&x), m, &mut was);
            let middle = now(pool);
            dense::matmul(
                pool,
                isa(),
                black_box(&x),
                m.cols,
                &[Part { matrix: m, column: 0 }],
                m.rows,
                &mut new,
            );
            let end = now(pool);
            ratios.push((middle - start) / (end - middle));
            times.push(end - middle);
        }
        assert!(new.iter().zip(&was).all(|(a, b)| a.to_bits() == b.to_bits()), "a product changed its bits");
        ratios.sort_by(f64::total_cmp);
        times.sort_by(f64::total_cmp);
        (ratios[rounds / 2], times[rounds / 2])
    }

    /// Seconds: of this thread's own time where there is one, so that a shared machine's other work does not count.
    fn now(pool: &Pool) -> f64 {
        let clock = if pool.threads() == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is a timespec to write to.
        unsafe { libc::clock_gettime(clock, &mut t) };
        t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
    }

    /// Random numbers.
    fn matrix(dtype: DType, rows: usize, cols: usize) -> Matrix {
        let (elements, bytes) = dtype.block();
        let mut state = 1u64;
        let mut data = vec![0; rows * cols / elements * bytes];
        for b in &mut data {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *b = (state >> 56) as u8;
        }
        for block in data.chunks_exact_mut(bytes) {
            // Exponents of numbers below 2.
            *block.last_mut().expect("a byte") &= 0xbf;
        }
        Matrix::new(Bytes::new(data), dtype, rows, cols).expect("a matrix")
    }

    /// The product as it was: two rows to f32, swept over the tokens, three at a time.
    mod old {
        use super::*;
        use bn_engine::kernels::gemm::blocks::{SharedOut, block_count, nth_block};
        use bn_engine::kernels::gemm::formats::dequantize_row;
        use std::arch::x86_64::*;
        use std::cell::RefCell;

        const TASK_ROWS: usize = 16;
        const GROUP: usize = 2;
        const SHARED: usize = 3;

        thread_local! {
            static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }

        pub fn matmul(pool: &Pool, x: &[f32], m: &Matrix, out: &mut [f32]) {
            let (cols, stride) = (m.cols, m.rows);
            // Only this one was decoded by vector instructions.
            let decoder = if m.dtype == DType::F16 { isa() } else { Isa::Scalar };
            let out = SharedOut::new(out);
            let one = |n: usize| {
                let block = nth_block(&[m], TASK_ROWS, n);
                SCRATCH.with_borrow_mut(|scratch| {
                    scratch.resize(GROUP * cols, 0.0);
                    for first in block.rows.clone().step_by(GROUP) {
                        for (r, w) in scratch.chunks_exact_mut(cols).enumerate() {
                            dequantize_row(decoder, m, first + r, w);
                        }
                        for (i, x) in x.chunks(SHARED * cols).enumerate() {
                            let mut dots = [[0.0; GROUP]; SHARED];
                            // SAFETY: `main` asked for AVX2.
                            unsafe {
                                match x.len() / cols {
                                    1 => dots[..1].copy_from_slice(&tile::<1>(x, scratch, cols)),
                                    2 => dots[..2].copy_from_slice(&tile::<2>(x, scratch, cols)),
                                    _ => dots = tile::<3>(x, scratch, cols),
                                }
                            }
                            for (j, dots) in dots.iter().take(x.len() / cols).enumerate() {
                                let at = (i * SHARED + j) * stride + first;
                                // SAFETY: each task has rows of its own.
                                unsafe { out.slice(at..at + GROUP) }.copy_from_slice(dots);
                            }
                        }
                    }
                })
            };
            pool.run(block_count(&[m], TASK_ROWS), &one);
        }

        #[inline]
        #[target_feature(enable = "avx2,fma")]
        fn tile<const N: usize>(x: &[f32], w: &[f32], cols: usize) -> [[f32; GROUP]; N] {
            assert!(x.len() == N * cols && w.len() == GROUP * cols && cols.is_multiple_of(16));
            let mut sums = [[[_mm256_setzero_ps(); 2]; GROUP]; N];
            for k in (0..cols).step_by(16) {
                for half in 0..2 {
                    let at = k + 8 * half;
                    // SAFETY: at + 8 <= cols, the length of each row of w and x.
                    unsafe {
                        let w: [__m256; GROUP] =
                            std::array::from_fn(|r| _mm256_loadu_ps(w.as_ptr().add(r * cols + at)));
                        for (t, sums) in sums.iter_mut().enumerate() {
                            let v = _mm256_loadu_ps(x.as_ptr().add(t * cols + at));
                            for (sums, w) in sums.iter_mut().zip(w) {
                                sums[half] = _mm256_fmadd_ps(v, w, sums[half]);
                            }
                        }
                    }
                }
            }
            sums.map(|sums| {
                sums.map(|sums| {
                    let mut lanes = [0.0f32; 16];
                    for (half, sum) in sums.iter().enumerate() {
                        // SAFETY: eight floats at 8·half of 16.
                        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr().add(8 * half), *sum) };
                    }
                    for width in [8, 4, 2, 1] {
                        (0..width).for_each(|i| lanes[i] += lanes[i + width]);
                    }
                    lanes[0]
                })
            })
        }
    }
}
