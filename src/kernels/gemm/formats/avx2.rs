//! Weights of the types that are multiplied in f32 in registers, sixteen at a time, with AVX2 and F16C: the bits of `rows` and `quants`,
//! where the layouts are told. Every float operation is theirs, in their order.

use crate::kernels::DType;
use std::arch::x86_64::*;

/// Weights n..n + 8 and n + 8..n + 16 of a row.
pub type Sixteen = [__m256; 2];

/// A type whose rows are whole blocks of a multiple of 16 elements.
pub trait Packed {
    /// Elements and bytes of a block.
    const ELEMENTS: usize;
    const BYTES: usize;
    /// What all weights of a block are scaled by.
    type Scales;

    /// # Safety
    /// The machine has AVX2, FMA and F16C; BYTES bytes can be read at `block`.
    unsafe fn scales(block: *const u8) -> Self::Scales;

    /// Weights 16n.. of the block.
    ///
    /// # Safety
    /// As for `scales`, which were this block's; 16n < ELEMENTS.
    unsafe fn sixteen(block: *const u8, scales: &Self::Scales, n: usize) -> Sixteen;
}

/// `$call` with the `Packed` of a dense type for `$p`, or None for a type that has none.
macro_rules! with_packed {
    ($dtype:expr, $p:ident => $call:expr) => {{
        use crate::kernels::gemm::formats::avx2::*;
        macro_rules! some {
            ($t:ty) => {{
                type $p = $t;
                Some($call)
            }};
        }
        match $dtype {
            DType::F32 => some!(F32),
            DType::F16 => some!(F16),
            DType::BF16 => some!(BF16),
            _ => None,
        }
    }};
}
pub(in crate::kernels) use with_packed;

/// `$body` for each `$n` of a `Packed` block's sixteens, up to eight written out: shifts are constants then.
macro_rules! each_sixteen {
    ($p:ident, $n:ident, $body:block) => {
        for eight in (0..$p::ELEMENTS / 16).step_by(8) {
            each_sixteen!(@ $p, eight, $n, $body, 0 1 2 3 4 5 6 7);
        }
    };
    (@ $p:ident, $eight:ident, $n:ident, $body:block, $($i:literal)*) => {
        $(if $i < $p::ELEMENTS / 16 {
            let $n = $eight + $i;
            $body
        })*
    };
}
pub(in crate::kernels) use each_sixteen;

/// Decodes a row's packed bytes to `out`, or does nothing and returns false where the type is no `Packed` one.
///
/// # Safety
/// The machine has AVX2, FMA and F16C. Panics unless `source` is as long as `out` asks.
pub unsafe fn row(dtype: DType, source: &[u8], out: &mut [f32]) -> bool {
    // SAFETY: the caller's promise.
    with_packed!(dtype, P => unsafe { row_of::<P>(source, out, source.as_ptr()) }).is_some()
}

/// As `row`, and fetches as many bytes at `next` to the cache, which need not be anybody's.
///
/// # Safety
/// As for `row`.
pub unsafe fn row_and_fetch(dtype: DType, source: &[u8], out: &mut [f32], next: *const u8) -> bool {
    // SAFETY: the caller's promise.
    with_packed!(dtype, P => unsafe { row_of::<P>(source, out, next) }).is_some()
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row_of<P: Packed>(source: &[u8], out: &mut [f32], next: *const u8) {
    let (blocks, rest) = (out.len() / P::ELEMENTS, out.len() % P::ELEMENTS);
    assert_eq!(
        source.len(),
        blocks * P::BYTES + rest * P::BYTES / P::ELEMENTS,
        "a row as long as its elements"
    );
    // SAFETY: block b and its elements lie in `source` and `out`, as just checked.
    unsafe {
        for b in 0..blocks {
            let block = source.as_ptr().add(b * P::BYTES);
            fetch::<P>(next.wrapping_add(b * P::BYTES));
            let scales = P::scales(block);
            each_sixteen!(P, n, {
                let values = P::sixteen(block, &scales, n);
                let out = out.as_mut_ptr().add(b * P::ELEMENTS + 16 * n);
                _mm256_storeu_ps(out, values[0]);
                _mm256_storeu_ps(out.add(8), values[1]);
            });
        }
        if rest > 0 {
            let tail = tail::<P>(&source[blocks * P::BYTES..]);
            out[blocks * P::ELEMENTS..].copy_from_slice(&tail[..rest]);
        }
    }
}

/// The elements of a row's end that is no whole block, of the types of single elements; 0 behind them.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn tail<P: Packed>(source: &[u8]) -> [f32; 16] {
    assert!(P::ELEMENTS == 16 && P::BYTES <= 64, "only rows of single elements end within a block");
    let (mut block, mut out) = ([0; 64], [0.0; 16]);
    block[..source.len()].copy_from_slice(source);
    // SAFETY: the block has 64 bytes; `out` is two times eight floats.
    unsafe {
        let values = P::sixteen(block.as_ptr(), &P::scales(block.as_ptr()), 0);
        _mm256_storeu_ps(out.as_mut_ptr(), values[0]);
        _mm256_storeu_ps(out.as_mut_ptr().add(8), values[1]);
    }
    out
}

/// Fetches a block's bytes to the cache; they need not be anybody's.
#[inline]
#[allow(unused_unsafe)] // newer compilers know a prefetch as safe
#[target_feature(enable = "avx2")]
pub fn fetch<P: Packed>(block: *const u8) {
    for line in 0..P::BYTES.div_ceil(64) {
        // SAFETY: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(64 * line).cast()) };
    }
}

/// # Safety
/// Sixteen bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes(at: *const u8) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm_loadu_si128(at.cast()) }
}

/// A `Packed` of `$elements` in `$bytes` bytes: its scales at `$block`, then its sixteen number `$n` with `$scales`.
macro_rules! packed {
    ($(#[$doc:meta])* $name:ident, $elements:literal, $bytes:literal, $s:ty,
     |$block:ident| $make:expr, |$scales:ident, $n:ident| $sixteen:expr) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)] // the names that files and their users know
        pub struct $name;
        impl Packed for $name {
            const ELEMENTS: usize = $elements;
            const BYTES: usize = $bytes;
            type Scales = $s;

            #[inline]
            #[allow(unused_unsafe)] // some types read nothing
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales($block: *const u8) -> $s {
                // SAFETY: what is read lies in the block's BYTES bytes.
                unsafe { $make }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn sixteen($block: *const u8, $scales: &$s, $n: usize) -> Sixteen {
                // SAFETY: what is read lies in the block's BYTES bytes, as 16n < ELEMENTS.
                unsafe { $sixteen }
            }
        }
    };
}

packed!(F32, 16, 64, (), |_block| (), |_s, _n| {
    [0, 8].map(|i| _mm256_loadu_ps(_block.cast::<f32>().add(i)))
});
packed!(F16, 16, 32, (), |_block| (), |_s, _n| [0, 16].map(|i| _mm256_cvtph_ps(bytes(_block.add(i)))));
packed!(BF16, 16, 32, (), |_block| (), |_s, _n| {
    [0, 16].map(|i| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bytes(_block.add(i))))))
});
