// The machine's primitives that kernels use, under one name each for nvcc (sm_80 and newer) and for the emulation that
// tests run on (g++).
//
// Blocks are one-dimensional and consist of whole warps. A function of a warp is called by all its lanes, `sync_block`
// by all threads of the block.
#pragma once

#ifdef __CUDACC__

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Declares a kernel with the maximum number of threads per block, which bounds its registers.
#define BN_KERNEL_OF(threads, name) extern "C" __global__ void __launch_bounds__(threads) bn_##name
// As BN_KERNEL_OF; also bounds the registers so that an SM can hold `blocks` blocks.
#define BN_KERNEL_FOR(threads, blocks, name) extern "C" __global__ void __launch_bounds__(threads, blocks) bn_##name
#define BN_KERNEL(name) BN_KERNEL_OF(256, name)
#define BN_DEVICE static __device__ __forceinline__
// For member functions that run on host and device.
#define BN_MEMBER __host__ __device__ __forceinline__
#define BN_UNROLL _Pragma("unroll")
#define BN_UNROLL_BY(n) BN_PRAGMA(unroll n)
#define BN_PRAGMA(what) _Pragma(#what)
// The block's dynamic shared memory, 16-byte aligned, as `unsigned char *name`.
#define BN_SHARED(name)                                                                                                \
    extern __shared__ uint4 bn_shared_memory[];                                                                        \
    unsigned char *name = reinterpret_cast<unsigned char *>(bn_shared_memory)

// Programmatic dependent launch (sm_90 and newer): once all blocks of a kernel have called this or ended, blocks of the next
// kernel begin where there is room. They must not touch what other kernels write before `await_inputs`.
BN_DEVICE void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before this one, and so all before it, have ended and their results can be read. Each thread of
// each kernel calls it, since the kernel after this one relies on that.
BN_DEVICE void await_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Starts bringing bytes into the L2 cache. Address and size are multiples of 16. Does nothing before sm_90.
BN_DEVICE void prefetch_l2(const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

BN_DEVICE void sync_block() {
    __syncthreads();
}

BN_DEVICE void sync_warp() {
    __syncwarp(0xffffffffu);
}

// Returns the value of another lane. T has 32 or 64 bits.
template <class T> BN_DEVICE T shfl(T value, int lane) {
    return __shfl_sync(0xffffffffu, value, lane);
}

template <class T> BN_DEVICE T shfl_xor(T value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

// Returns the value of lane + delta, or the lane's own if there is no such lane.
template <class T> BN_DEVICE T shfl_down(T value, unsigned delta) {
    return __shfl_down_sync(0xffffffffu, value, delta);
}

// Returns a mask with one bit per lane.
BN_DEVICE unsigned warp_ballot(bool yes) {
    return __ballot_sync(0xffffffffu, yes);
}

// Returns the sum of the warp's integers in every lane.
BN_DEVICE int warp_sum(int value) {
    return __reduce_add_sync(0xffffffffu, value);
}

// Returns the largest of the warp's numbers in every lane.
BN_DEVICE unsigned warp_most(unsigned value) {
    return __reduce_max_sync(0xffffffffu, value);
}

// Returns the largest of the warp's floats. None may be negative or NaN, so that their bits have the same order.
BN_DEVICE float warp_most(float value) {
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(value)));
}

// Returns c plus the dot product of four signed bytes.
BN_DEVICE int dp4a(int a, int b, int c) {
    return __dp4a(a, b, c);
}

// d += a b for a 16 x 32 and b 32 x 8, int8. Fragments are laid out as the PTX ISA says for mma.m16n8k32.
BN_DEVICE void mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// As above, but d = c + a b, which leaves c unchanged and saves a copy.
BN_DEVICE void mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// As above for 16 columns of a: mma.m16n8k16.
BN_DEVICE void mma_s8(int (&d)[4], const uint32_t (&a)[2], uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

// d += a b for a 16 x 16 and b 16 x 8, f16, summed in f32 in an order that NVIDIA does not document.
BN_DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// As `mma_f16` for bf16.
BN_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Copies sixteen bytes to shared memory; both addresses are 16-byte aligned. This thread sees them after
// `copy_async_wait`, other threads after a barrier that follows it.
BN_DEVICE void copy_async16(void *shared, const void *global) {
    uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// As `copy_async16` for 4 bytes.
BN_DEVICE void copy_async4(void *shared, const void *global) {
    uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
}

// Ends a group of copies.
BN_DEVICE void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most the last N groups are in flight.
template <int N> BN_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Loads four matrices of 8 x 8 halves from shared memory. Lane l passes the address of row l % 8 of matrix l / 8 (16
// bytes) and gets, of each matrix, elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
BN_DEVICE void load_matrices(uint32_t (&to)[4], const void *row) {
    uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// As `load_matrices`, transposed: a lane gets rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4.
BN_DEVICE void load_transposed(uint32_t (&to)[4], const void *row) {
    uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// These round to nearest. The compiler does not fuse them with other operations.
BN_DEVICE float fma_rn(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}

BN_DEVICE float mul_rn(float a, float b) {
    return __fmul_rn(a, b);
}

BN_DEVICE float add_rn(float a, float b) {
    return __fadd_rn(a, b);
}

BN_DEVICE float div_rn(float a, float b) {
    return __fdiv_rn(a, b);
}

BN_DEVICE float sqrt_rn(float a) {
    return __fsqrt_rn(a);
}

BN_DEVICE double fma_rn(double a, double b, double c) {
    return __fma_rn(a, b, c);
}

BN_DEVICE double mul_rn(double a, double b) {
    return __dmul_rn(a, b);
}

BN_DEVICE double add_rn(double a, double b) {
    return __dadd_rn(a, b);
}

BN_DEVICE double div_rn(double a, double b) {
    return __ddiv_rn(a, b);
}

// Returns the larger one, or NaN if either is NaN.
BN_DEVICE float max_nan(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

// Rounds to the nearest integer, ties to even. NaN becomes 0; values that are too large become the largest int.
BN_DEVICE int round_even(float a) {
    return __float2int_rn(a);
}

BN_DEVICE float half_to_float(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}

BN_DEVICE uint16_t float_to_half(float a) {
    return __half_as_ushort(__float2half_rn(a));
}

// Returns an undefined word, at no cost.
BN_DEVICE uint32_t any_word() {
    uint32_t word;
    asm("" : "=r"(word));
    return word;
}

// Rounds two floats to 16 bits each and packs them into a word.
BN_DEVICE uint32_t pack_halves(float low, float high) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

BN_DEVICE uint32_t pack_bf16(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

#else
#include "../emulation/emulation.h"
#define BN_MEMBER
#define BN_UNROLL
#define BN_UNROLL_BY(n)
#endif

// Begins a kernel that reads nothing before its inputs are ready.
BN_DEVICE void begin_kernel() {
    let_next_begin();
    await_inputs();
}

constexpr int WARP = 32;

BN_DEVICE int lane() {
    return static_cast<int>(threadIdx.x % WARP);
}

BN_DEVICE int warp() {
    return static_cast<int>(threadIdx.x / WARP);
}

// Returns the same sum in every lane, adding the upper half to the lower one as the CPU's `tree_sum` does with 32
// values.
BN_DEVICE float warp_sum(float value) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        value = add_rn(value, shfl_xor(value, mask));
    }
    return value;
}

// Ignores NaN.
BN_DEVICE float warp_max(float value) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        value = fmaxf(value, shfl_xor(value, mask));
    }
    return value;
}

BN_DEVICE float bf16_to_float(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// Returns e^(x - n ln 2), where n is the integer nearest to x / ln 2.
BN_DEVICE float exp_near(float x, float n) {
    float r = fma_rn(n, 2.1219444e-4f, fma_rn(n, -0.6933594f, x));
    float p = 1.9875692e-4f;
    p = fma_rn(p, r, 1.3981999e-3f);
    p = fma_rn(p, r, 8.333452e-3f);
    p = fma_rn(p, r, 4.1665796e-2f);
    p = fma_rn(p, r, 0.16666665f);
    p = fma_rn(p, r, 0.5f);
    return add_rn(fma_rn(p, mul_rn(r, r), r), 1.0f);
}

// Returns e^x with the same bits as the CPU's `exp` (src/kernels/rows/exp.rs): 0 below -87, infinity above 88, NaN for
// NaN.
BN_DEVICE float bn_exp(float x) {
    if (x < -87.0f) {
        return 0.0f;
    }
    if (x > 88.0f) {
        return __uint_as_float(0x7f800000u);
    }
    float n = rintf(mul_rn(x, 1.4426950408889634f));
    // n lies between -126 and 127 (0 for NaN), so the exponent bits are those of a normal number.
    return mul_rn(exp_near(x, n), __uint_as_float(static_cast<uint32_t>(round_even(n) + 127) << 23));
}
