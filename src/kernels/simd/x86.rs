//! Functions that the kernels for x86-64 share.

use std::arch::asm;
use std::arch::x86_64::*;

/// # Safety
/// 32 bytes at `at` can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn load<T>(at: *const T) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// Prefetches the cache lines of `bytes` bytes at `from`; any address is allowed. They go to the L2 cache,
/// because prefetches into L1 would delay loads of activations.
#[inline(always)]
#[allow(unused_unsafe)] // newer compilers know a prefetch as safe
pub(crate) fn fetch(from: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch accesses nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(64 * line).cast()) };
    }
}

/// Returns `v`, kept in a register. The compiler may reorder integer additions: without this it first adds up the
/// products of several steps, and to make room for them it moves the sums to the stack.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn pinned(mut v: __m256i) -> __m256i {
    // SAFETY: the instruction sequence is empty.
    unsafe { asm!("/* {0} */", inout(ymm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}
