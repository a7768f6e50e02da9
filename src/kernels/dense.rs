use super::blocks::{SharedOut, block_count, nth_block};
use super::{Isa, Matrix, Pool, rows};
pub fn matmul(pool: &Pool, isa: Isa, x: &[f32], cols: usize, weights: &[&Matrix], out: &mut [f32]) {
    let width: usize = weights.iter().map(|m| m.rows).sum();
    let shared = SharedOut::new(out);
    pool.run(block_count(weights, 16), &|n| {
        let b = nth_block(weights, 16, n);
        let mut w = vec![0.0; cols];
        for row in b.rows.clone() {
            rows::dequantize_row(isa, weights[b.matrix], row, &mut w);
            for (t, x) in x.chunks_exact(cols).enumerate() {
                let mut s = 0.0f32;
                for (a, b) in x.iter().zip(&w) { s = a.mul_add(*b, s); }
                let at = t * width + b.column + row;
                let cell = unsafe { shared.slice(at..at + 1) };
                cell[0] = s;
            }
        }
    });
}
