//! A model of matrix tiles on arrays, used with the vectors of each instruction set.

use super::amx::{Set, Tiles, shape};
use super::wide::Many;
use super::{ints, lanes};

/// Emulates the instructions on arrays, for tests on every machine.
pub struct Model {
    tiles: [[[u8; 64]; 16]; 8],
    depth: usize,
}

impl Model {
    fn dot<const C: usize, const A: usize, const B: usize>(&mut self, left: impl Fn(u8) -> i32) {
        const { assert!(C < 4 && 4 <= A && A < 6 && 6 <= B && B < 8) };
        for r in 0..16 {
            for c in 0..16 {
                let products = (0..self.depth).map(|k| {
                    let right = self.tiles[B][k / 4][4 * c + k % 4] as i8;
                    left(self.tiles[A][r][k]) * right as i32
                });
                let before = i32::from_ne_bytes(self.tiles[C][r].as_chunks().0[c]);
                let sum = products.fold(before, i32::wrapping_add);
                self.tiles[C][r].as_chunks_mut().0[c] = sum.to_ne_bytes();
            }
        }
    }
}

impl Tiles for Model {
    unsafe fn new(depth: usize) -> Self {
        assert!(matches!(depth, 32 | 64));
        Self { tiles: [[[0; 64]; 16]; 8], depth }
    }

    fn zero<const T: usize>(&mut self) {
        self.tiles[T] = [[0; 64]; 16];
    }

    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        let (rows, bytes) = shape(T, self.depth);
        self.zero::<T>();
        for (r, row) in self.tiles[T][..rows].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { from.add(r * stride).copy_to_nonoverlapping(row.as_mut_ptr(), bytes) };
        }
    }

    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize) {
        let (rows, bytes) = shape(T, self.depth);
        for (r, row) in self.tiles[T][..rows].iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { to.add(r * stride).copy_from_nonoverlapping(row.as_ptr(), bytes) };
        }
    }

    fn dot_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.dot::<C, A, B>(i32::from);
    }

    fn dot_signed<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.dot::<C, A, B>(|byte| byte as i8 as i32);
    }

    fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(C < 4 && 4 <= A && A < 6 && 6 <= B && B < 8) };
        let normal = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
        let half = |line: &[u8; 64], n: usize| {
            normal(f32::from_bits(u32::from_le_bytes([0, 0, line[2 * n], line[2 * n + 1]])))
        };
        for r in 0..16 {
            for c in 0..16 {
                let [even, odd] = [0, 1].map(|place| {
                    (0..self.depth / 4).fold(0.0, |sum, k| {
                        let x = half(&self.tiles[A][r], 2 * k + place);
                        normal(x.mul_add(half(&self.tiles[B][k], 2 * c + place), sum))
                    })
                });
                let before = f32::from_ne_bytes(self.tiles[C][r].as_chunks().0[c]);
                let sum = normal(normal(before) + normal(even + odd));
                self.tiles[C][r].as_chunks_mut().0[c] = sum.to_ne_bytes();
            }
        }
    }
}

macro_rules! models {
    ($($name:ident: $wide:ty;)+) => {$(
        pub struct $name;
        impl Set for $name {
            type Tiles = Model;
            type Lanes = lanes::$name;
            type Wide = $wide;
            type Ints = ints::$name;
        }
    )+};
}

#[cfg(target_arch = "x86_64")]
models! {
    Avx512: std::arch::x86_64::__m512i;
    Avx2: Many<std::arch::x86_64::__m256i, 2>;
}
#[cfg(target_arch = "aarch64")]
models! { Neon: Many<std::arch::aarch64::uint8x16_t, 4>; }
