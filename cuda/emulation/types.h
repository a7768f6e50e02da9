// The CUDA types and intrinsics that kernels use, in plain C++.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__ inline
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The alignment of a vector is its size, so that -fsanitize=undefined finds misaligned loads.
#define BN_VECTORS(name, type)                                                                                         \
    struct alignas(2 * sizeof(type)) name##2 {                                                                         \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct alignas(4 * sizeof(type)) name##4 {                                                                         \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    static inline name##2 make_##name##2(type x, type y) {                                                             \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    static inline name##4 make_##name##4(type x, type y, type z, type w) {                                             \
        return {x, y, z, w};                                                                                           \
    }
BN_VECTORS(char, signed char)
BN_VECTORS(uchar, unsigned char)
BN_VECTORS(short, short)
BN_VECTORS(ushort, unsigned short)
BN_VECTORS(int, int)
BN_VECTORS(uint, unsigned)
BN_VECTORS(float, float)
#undef BN_VECTORS

using std::max;
using std::min;

namespace emulation {
template <class To, class From> To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of one size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
} // namespace emulation

static inline unsigned __float_as_uint(float a) {
    return emulation::same_bits<unsigned>(a);
}

static inline int __float_as_int(float a) {
    return emulation::same_bits<int>(a);
}

static inline float __uint_as_float(unsigned a) {
    return emulation::same_bits<float>(a);
}

static inline float __int_as_float(int a) {
    return emulation::same_bits<float>(a);
}

static inline int __popc(unsigned a) {
    return __builtin_popcount(a);
}

static inline int __clz(int a) {
    return a == 0 ? 32 : __builtin_clz(static_cast<unsigned>(a));
}

static inline int __ffs(int a) {
    return __builtin_ffs(a);
}

static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}

// Selects four of the eight bytes of (b, a) by the low three bits of each digit of `order`.
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned order) {
    uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned digit = order >> (4 * i) & 15;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (digit & 7))) & 255;
        // The fourth bit replicates the byte's sign.
        result |= ((digit & 8) != 0 ? (byte >> 7) * 255u : byte) << (8 * i);
    }
    return result;
}

template <class T> static inline T __ldg(const T *from) {
    return *from;
}

static inline float fma_rn(float a, float b, float c) {
    return std::fma(a, b, c);
}

static inline float mul_rn(float a, float b) {
    return a * b;
}

static inline float add_rn(float a, float b) {
    return a + b;
}

static inline float div_rn(float a, float b) {
    return a / b;
}

static inline float max_nan(float a, float b) {
    return a != a || b != b ? __uint_as_float(0x7fffffffu) : std::fmax(a, b);
}

static inline float sqrt_rn(float a) {
    return std::sqrt(a);
}

static inline double fma_rn(double a, double b, double c) {
    return std::fma(a, b, c);
}

static inline double mul_rn(double a, double b) {
    return a * b;
}

static inline double add_rn(double a, double b) {
    return a + b;
}

static inline double div_rn(double a, double b) {
    return a / b;
}

static inline int round_even(float a) {
    if (a != a) {
        return 0;
    }
    if (a >= 2147483648.0f) {
        return INT32_MAX;
    }
    return a < -2147483648.0f ? INT32_MIN : static_cast<int>(std::nearbyint(a));
}

static inline float half_to_float(uint16_t bits) {
    unsigned sign = static_cast<unsigned>(bits & 0x8000) << 16, exponent = bits >> 10 & 31, rest = bits & 1023;
    if (exponent == 31) {
        return __uint_as_float(rest != 0 ? 0x7fffffffu : sign | 0x7f800000u);
    }
    if (exponent == 0) {
        float value = static_cast<float>(rest) * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    return __uint_as_float(sign | (exponent + 112) << 23 | rest << 13);
}

static inline uint16_t float_to_half(float a) {
    unsigned bits = __float_as_uint(a), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return 0x7fff;
    }
    if (magnitude >= 0x477ff000) { // 65520, halfway between the largest half and the next power of two
        return static_cast<uint16_t>(sign | 0x7c00);
    }
    if (magnitude < 0x38800000) { // 2^-14; the unit of subnormals is 2^-24
        return static_cast<uint16_t>(sign | static_cast<unsigned>(std::nearbyint(std::fabs(a) * 0x1p24f)));
    }
    unsigned rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | (rounded - (112u << 23)) >> 13);
}

// Two halves or bf16 that are NaN.
static inline uint32_t any_word() {
    return 0xffffffff;
}

static inline uint32_t pack_halves(float low, float high) {
    return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}

static inline uint32_t pack_bf16(float low, float high) {
    auto rounded = [](float a) {
        unsigned bits = __float_as_uint(a);
        return a != a ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return rounded(low) | rounded(high) << 16;
}

static inline int dp4a(int a, int b, int c) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8) {
        int x = static_cast<int8_t>(static_cast<unsigned>(a) >> i);
        int y = static_cast<int8_t>(static_cast<unsigned>(b) >> i);
        sum += x * y;
    }
    return static_cast<int>(static_cast<unsigned>(c) + static_cast<unsigned>(sum));
}
