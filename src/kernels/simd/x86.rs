//! What the kernels for x86-64 share.

use std::arch::asm;
use std::arch::x86_64::*;

/// # Safety
/// 32 bytes at `at` can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load<T>(at: *const T) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// Asks memory for the cache lines of `bytes` at `from`, which need not be anybody's. To the second cache: in the first,
/// loads of activations would wait with them.
#[inline(always)]
#[allow(unused_unsafe)] // newer compilers know a prefetch as safe
pub fn fetch(from: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch accesses nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(64 * line).cast()) };
    }
}

/// The same, in a register. The order of integer additions is free to the compiler, which first adds up the products of
/// several steps, and for them puts the sums on the stack.
#[inline]
#[target_feature(enable = "avx2")]
pub fn pinned(mut v: __m256i) -> __m256i {
    // SAFETY: it does nothing.
    unsafe { asm!("/* {0} */", inout(ymm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}
