use super::{DEPTH, Rows, TOGETHER, matmul};
use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::dense::tests::{TYPES, matrix, number};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::gemm::tiles::{here, modelling};
use crate::kernels::pool::buffer::Line;
use crate::kernels::{Isa, Matrix, Pool, available};

fn product(isa: Isa, threads: usize, x: &[f32], weights: &[&Matrix]) -> Vec<u32> {
    let pool = Pool::new(threads).unwrap();
    let (cols, mut column, mut parts) = (weights[0].cols, 0, Vec::new());
    for matrix in weights {
        parts.push(Part { matrix, column });
        column += matrix.rows;
    }
    let row = |n: usize, then: &mut dyn FnMut(&[f32])| then(&x[n * cols..(n + 1) * cols]);
    let rows = Rows { count: x.len() / cols, cols, row: &row };
    // Memory as an earlier product may have left it.
    let mut lines = vec![Line([0xff; 64]); 5000];
    let mut out = vec![f32::NAN; rows.count * column];
    matmul(&pool, isa, &rows, &parts, column, &mut lines, &mut out);
    out.iter().map(|v| v.to_bits()).collect()
}

type Computes<'a> = dyn Fn(usize, &[f32], &[&Matrix]) -> Vec<u32> + 'a;

/// Runs `check` with the model of tiles beside each set of vectors, and with the processor's tiles if it has them.
fn with_tiles(check: impl Fn(&Computes)) {
    for isa in available().iter().filter(|isa| **isa != Isa::Scalar) {
        check(&|_, x, weights| modelling(*isa, || product(*isa, 1, x, weights)));
    }
    if here() {
        check(&|threads, x, weights| product(Isa::Amx, threads, x, weights));
    }
}

fn with_lanes(check: impl Fn(&Computes)) {
    for isa in available().iter().filter(|isa| **isa != Isa::Amx) {
        check(&|threads, x, weights| product(*isa, threads, x, weights));
    }
}

fn row_of(m: &Matrix, row: usize) -> Vec<f32> {
    let mut w = vec![0.0; m.cols];
    dequantize_row(Isa::Scalar, m, row, &mut w);
    w
}

#[test]
fn blocks_of_columns_are_added_in_order() {
    for dtype in TYPES {
        for (rows, cols, tokens) in [(1, 3, 1), (40, 2 * DEPTH + 21, 15), (66, DEPTH, 29), (31, 7, 8)] {
            let m = matrix(dtype, rows, cols);
            let x: Vec<f32> = (0..tokens * cols).map(number).collect();
            let mut want = Vec::new();
            for (x, i) in x.chunks_exact(cols).flat_map(|x| (0..rows).map(move |i| (x, i))) {
                let w = row_of(&m, i);
                let blocks = x
                    .chunks(DEPTH)
                    .zip(w.chunks(DEPTH))
                    .map(|(x, w)| x.iter().zip(w).fold(0.0, |sum: f32, (x, w)| x.mul_add(*w, sum)));
                want.push(blocks.reduce(|sum, block| sum + block).unwrap().to_bits());
            }
            with_lanes(|product| assert!(product(2, &x, &[&m]) == want, "{dtype:?} {rows} {cols} {tokens}"));
        }
    }
}

#[test]
fn products_are_as_exact_as_floats() {
    for dtype in TYPES {
        // Past a span of columns, and within a step.
        for (rows, cols) in [(21, 1070), (33, 7)] {
            let m = matrix(dtype, rows, cols);
            let x: Vec<f32> = (0..3 * cols).map(number).collect();
            let check = |product: &Computes| {
                let out = product(2, &x, &[&m]);
                for (t, x) in x.chunks_exact(cols).enumerate() {
                    for i in 0..rows {
                        let w = row_of(&m, i);
                        let terms = x.iter().zip(&w).map(|(x, w)| *x as f64 * *w as f64);
                        let size: f64 = terms.clone().map(f64::abs).sum();
                        let got = f32::from_bits(out[t * rows + i]) as f64;
                        assert!((got - terms.sum::<f64>()).abs() < 1e-6 * size, "{dtype:?} {i} {t}");
                    }
                }
            };
            with_tiles(check);
            with_lanes(check);
        }
    }
}

#[test]
fn threads_and_company_change_no_bit() {
    for dtype in TYPES {
        for (cols, rows_a, rows_b) in [(15, 7, 20), (96, 150, 1)] {
            let (a, b) = (matrix(dtype, rows_a, cols), matrix(dtype, rows_b, cols));
            let (weights, stride) = ([&a, &b], rows_a + rows_b);
            let x: Vec<f32> = (0..40 * cols).map(number).collect();
            let first = std::cell::RefCell::new(Vec::new());
            let check = |product: &Computes| {
                if first.borrow().is_empty() {
                    first.replace(product(1, &x, &weights));
                }
                let all = first.borrow();
                for threads in [1, 3] {
                    assert_eq!(*all, product(threads, &x, &weights), "{dtype:?}, {cols}, {threads}");
                }
                for (start, count) in [(0, 1), (17, 1), (5, 30)] {
                    let some = product(2, &x[start * cols..(start + count) * cols], &weights);
                    let want = &all[start * stride..(start + count) * stride];
                    assert_eq!(some, want, "{dtype:?}, {cols}, {count}");
                }
            };
            with_tiles(check);
            first.take();
            with_lanes(check);
        }
    }
}

/// More tokens than a task's sums are for.
#[test]
fn many_rows_have_the_bits_of_a_few() {
    let (m, tokens) = (matrix(TYPES[1], 40, 64), 2 * TOGETHER - 10);
    let x: Vec<f32> = (0..tokens * 64).map(number).collect();
    for isa in available().iter().filter(|isa| **isa != Isa::Amx || here()) {
        let all = product(*isa, 2, &x, &[&m]);
        let last = product(*isa, 1, &x[(tokens - 10) * 64..], &[&m]);
        assert_eq!(all[(tokens - 10) * 40..], last, "{isa:?}");
    }
}
