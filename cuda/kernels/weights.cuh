// The layout of weights in device memory, and how their codes are unpacked.
//
// I2_S and `Ternary` are kept as they are: 128 columns in 32 bytes, where byte p has columns p, p + 32, p + 64 and p +
// 96, high bits first. A word shifted right by 6, 4, 2 or 0 and masked has the codes of four adjacent columns, one per
// byte, as dp4a and mma take them.
//
// `Int8` is stored row after row; the CPU's panels are undone at upload.
//
// Types with blocks are split into planes at upload (`repack`), since files place scales between the codes, which
// leaves no block aligned. `Planes` has the planes of a matrix, one after the other. Each has rows of a multiple of 16
// bytes:
// - BITS bits of each code, 32 columns in BITS words, from which `plane_word` makes eight words of four codes. With four
//   bits, the codes of columns 4n to 4n + 3 and of the columns 16 further share word n: one in each half of a byte, or
//   with a TABLE the first four in the word's lower half
// - HIGH further bits, in the same way
// - for super-blocks, two bytes for each 32 columns, which `group_of` reads.
// The scales of blocks, f16 or exponents of one byte, are an array of their own. If the type has MINIMA, each scale is
// followed by its minimum.
#pragma once

#include "device.cuh"

#include <cstddef>
#include <cstring>

// Types with one scale per row.
struct Ternary {
    static constexpr int BITS = 2;
};
struct Int8 {
    static constexpr int BITS = 8;
};

// Weights are `d * (code - OFFSET)`, or `d * code + min`, with a scale `d` for each `ELEMENTS` columns. With a TABLE, a
// code stands for one of sixteen int8 numbers, FIRST and LAST, which `plane_word` puts in its place. Scales that are an
// EXPONENT are `2^(e - 128)`.
struct Plain {
    static constexpr int HIGH = 0, OFFSET = 0, GROUP = 0;
    static constexpr bool MINIMA = false, TABLE = false, EXPONENT = false;
};
// The 8-bit codes are signed.
struct Q8_0 : Plain {
    static constexpr int BITS = 8, ELEMENTS = 32;
};
struct Q4_0 : Plain {
    static constexpr int BITS = 4, OFFSET = 8, ELEMENTS = 32;
};
struct Q4_1 : Plain {
    static constexpr int BITS = 4, ELEMENTS = 32;
    static constexpr bool MINIMA = true;
};
struct Q5_0 : Plain {
    static constexpr int BITS = 4, HIGH = 1, OFFSET = 16, ELEMENTS = 32;
};
struct Q5_1 : Plain {
    static constexpr int BITS = 4, HIGH = 1, ELEMENTS = 32;
    static constexpr bool MINIMA = true;
};
struct Q2_0 : Plain {
    static constexpr int BITS = 2, OFFSET = 1, ELEMENTS = 64;
};
// Q2_0 of an older fork, with a scale for each 128 columns.
struct Q2_0_128 : Plain {
    static constexpr int BITS = 2, OFFSET = 1, ELEMENTS = 128;
};
// Codes become 0 and 2, so that OFFSET is 1 here too.
struct Q1_0 : Plain {
    static constexpr int BITS = 1, OFFSET = 1, ELEMENTS = 128;
};

// Returns the bytes of int8 numbers, the first one lowest.
template <class... Numbers>
constexpr uint64_t bytes_of(Numbers... numbers) {
    uint64_t all = 0;
    int shift = 0;
    ((all |= static_cast<uint64_t>(static_cast<uint8_t>(numbers)) << shift, shift += 8), ...);
    return all;
}

struct Uneven : Plain {
    static constexpr int BITS = 4;
    static constexpr bool TABLE = true;
    static constexpr uint64_t FIRST = bytes_of(-127, -104, -83, -65, -49, -35, -22, -10);
    static constexpr uint64_t LAST = bytes_of(1, 13, 25, 38, 53, 69, 89, 113);
};
struct IQ4_NL : Uneven {
    static constexpr int ELEMENTS = 32;
};
// Twice the floats that codes stand for, and half the powers of two.
struct MXFP4 : Plain {
    static constexpr int BITS = 4, ELEMENTS = 32;
    static constexpr bool TABLE = true, EXPONENT = true;
    static constexpr uint64_t FIRST = bytes_of(0, 1, 2, 3, 4, 6, 8, 12);
    static constexpr uint64_t LAST = bytes_of(0, -1, -2, -3, -4, -6, -8, -12);
};

// Ternary codes with a scale for each 256 columns, multiplied by activations with a scale per row.
struct TQ2_0 : Plain {
    static constexpr int BITS = 2, OFFSET = 1, ELEMENTS = 256;
};

// Super-blocks: weights are `d * scale * (code - OFFSET)`, or `d * scale * code - min * minimum`, with a scale and a
// minimum for each GROUP columns.
struct Super : Plain {
    static constexpr int ELEMENTS = 256;
};
struct Q2_K : Super {
    static constexpr int BITS = 2, GROUP = 16;
    static constexpr bool MINIMA = true;
};
struct Q3_K : Super {
    static constexpr int BITS = 2, HIGH = 1, OFFSET = 4, GROUP = 16;
};
struct Q4_K : Super {
    static constexpr int BITS = 4, GROUP = 32;
    static constexpr bool MINIMA = true;
};
struct Q5_K : Super {
    static constexpr int BITS = 4, HIGH = 1, GROUP = 32;
    static constexpr bool MINIMA = true;
};
struct Q6_K : Super {
    static constexpr int BITS = 4, HIGH = 2, OFFSET = 32, GROUP = 16;
};

// Its scales are signed, and stored twice.
struct IQ4_XS : Uneven {
    static constexpr int ELEMENTS = 256, GROUP = 32;
};

// Whether codes are int8.
template <class Format>
constexpr bool SIGNED = Format::BITS == 8 || Format::TABLE;

// Loaded by one instruction each.
struct alignas(16) Words4 {
    uint32_t word[4];
};
struct alignas(16) Floats4 {
    float value[4];
};
struct alignas(8) Words2 {
    uint32_t word[2];
};

// Offsets of a matrix's planes, and the bytes of a row of each. Rows of the low plane are multiples of 16 bytes without
// padding.
template <class Format>
struct Planes {
    int cols;
    int64_t low_row, high_row, group_row, high, groups, bytes;

    // cols is a multiple of ELEMENTS.
    BN_MEMBER Planes(int rows, int cols) : cols(cols) {
        low_row = row_of(Format::BITS, cols), high_row = row_of(Format::HIGH, cols);
        group_row = Format::GROUP != 0 ? cols / 16 : 0;
        high = rows * low_row;
        groups = high + rows * high_row;
        bytes = groups + rows * group_row;
    }

    BN_MEMBER static int64_t row_of(int bits, int cols) {
        return (static_cast<int64_t>(cols) * bits / 8 + 15) / 16 * 16;
    }
};

// Returns the numbers of the four codes in the lower half of a word (`half` 0) or in its upper half (1).
template <class Format>
BN_DEVICE uint32_t look_up(uint32_t codes, int half) {
    // A permutation takes one of eight bytes for each four bits. The highest of these must be 0: it would repeat the
    // byte's sign.
    uint32_t within = (codes & 0x77777777u) >> (16 * half);
    uint32_t first = __byte_perm(static_cast<uint32_t>(Format::FIRST), static_cast<uint32_t>(Format::FIRST >> 32), within);
    uint32_t last = __byte_perm(static_cast<uint32_t>(Format::LAST), static_cast<uint32_t>(Format::LAST >> 32), within);
    return __byte_perm(first, last, ((codes >> 1 & 0x44444444u) | 0x32103210u) >> (16 * half));
}

// Returns the bits of columns 4n to 4n + 3 of a group of 32, one column per byte, or the numbers that they stand for.
template <class Format, int BITS>
BN_DEVICE uint32_t plane_word(const uint32_t *words, int n) {
    if constexpr (BITS == 8) {
        return words[n];
    } else if constexpr (BITS == 4 && Format::TABLE) {
        return look_up<Format>(words[n & 3], n / 4);
    } else if constexpr (BITS == 4) {
        return words[n & 3] >> (n & 4) & 0x0f0f0f0fu;
    } else if constexpr (BITS == 2) {
        return words[n >> 2] >> (2 * (n & 3)) & 0x03030303u;
    } else {
        return words[0] >> n & 0x01010101u;
    }
}

// Joins four codes from the words of both planes.
template <class Format>
BN_DEVICE uint32_t join(uint32_t low, uint32_t high) {
    if (Format::HIGH != 0) return low | high << Format::BITS;
    return Format::BITS == 1 ? low << 1 : low;
}

// The codes of 32 columns of a row.
template <class Format>
struct Codes {
    uint32_t low[Format::BITS], high[Format::HIGH != 0 ? Format::HIGH : 1];
};

// Returns the codes of columns 4n to 4n + 3.
template <class Format>
BN_DEVICE uint32_t code_word(const Codes<Format> &codes, int n) {
    uint32_t high = 0;
    if constexpr (Format::HIGH != 0) high = plane_word<Format, Format::HIGH>(codes.high, n);
    return join<Format>(plane_word<Format, Format::BITS>(codes.low, n), high);
}

// Loads the words of 32 columns in one or two loads.
template <int BITS>
BN_DEVICE void load_words(const uint8_t *from, uint32_t (&words)[BITS]) {
    if constexpr (BITS >= 4) {
        BN_UNROLL
        for (int i = 0; i < BITS / 4; i++) {
            Words4 four = reinterpret_cast<const Words4 *>(from)[i];
            BN_UNROLL
            for (int w = 0; w < 4; w++) words[4 * i + w] = four.word[w];
        }
    } else if constexpr (BITS == 2) {
        Words2 two = *reinterpret_cast<const Words2 *>(from);
        words[0] = two.word[0], words[1] = two.word[1];
    } else {
        words[0] = *reinterpret_cast<const uint32_t *>(from);
    }
}

// Loads the codes of columns 32b to 32b + 31 of row `row`.
template <class Format>
BN_DEVICE Codes<Format> load_codes(const uint8_t *codes, const Planes<Format> &planes, int64_t row, int b) {
    Codes<Format> loaded{};
    load_words(codes + (row * (planes.cols / 32) + b) * (4 * Format::BITS), loaded.low);
    if constexpr (Format::HIGH != 0) {
        load_words(codes + planes.high + row * planes.high_row + b * (4 * Format::HIGH), loaded.high);
    }
    return loaded;
}

// Bytes of a block's scale, and its minimum if the type has MINIMA.
template <class Format>
constexpr int SCALE_BYTES = Format::EXPONENT ? 1 : Format::MINIMA ? 4 : 2;

// Loads these bytes of a matrix's block `at`.
template <class Format>
BN_DEVICE uint32_t load_scale_bits(const uint16_t *scales, int64_t at) {
    if constexpr (Format::EXPONENT) {
        return reinterpret_cast<const uint8_t *>(scales)[at];
    } else if constexpr (Format::MINIMA) {
        return reinterpret_cast<const uint32_t *>(scales)[at];
    } else {
        return scales[at];
    }
}

// Returns the scale in these bytes.
template <class Format>
BN_DEVICE float scale_of_bits(uint32_t bits) {
    if constexpr (Format::EXPONENT) {
        // The two smallest are subnormal.
        int e = static_cast<int>(bits);
        return __int_as_float(max((e - 1) * (1 << 23), (e + 1) * (1 << 21)));
    } else {
        return half_to_float(static_cast<uint16_t>(bits & 0xffff));
    }
}

// Loads the scale of a matrix's block `at`, and its minimum if the type has MINIMA.
template <class Format>
BN_DEVICE void load_scale(const uint16_t *scales, int64_t at, float &d, float &min) {
    uint32_t bits = load_scale_bits<Format>(scales, at);
    d = scale_of_bits<Format>(bits);
    if (Format::MINIMA) min = half_to_float(static_cast<uint16_t>(bits >> 16));
}

// The scales and minima of 32 columns, for each half of them.
struct Group {
    int scale[2], min[2];
};

template <class Format>
BN_DEVICE Group group_of(uint32_t bits) {
    int low = static_cast<int>(bits & 0xff), high = static_cast<int>(bits >> 8 & 0xff);
    if constexpr (Format::GROUP == 32 && Format::MINIMA) {
        return {{low, low}, {high, high}};
    } else if constexpr (Format::MINIMA) {
        return {{low & 15, high & 15}, {low >> 4, high >> 4}};
    } else {
        return {{static_cast<int8_t>(low), static_cast<int8_t>(high)}, {0, 0}};
    }
}

// Element types of matrices without scales.
struct F32 {
    static constexpr int BYTES = 4;
};
struct F16 {
    static constexpr int BYTES = 2;
    // Whether activations must be scaled into the type's range.
    static constexpr bool SCALED = true;
    BN_DEVICE float value(uint16_t bits) { return half_to_float(bits); }
    BN_DEVICE uint32_t pack(float low, float high) { return pack_halves(low, high); }
    BN_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_f16(d, a, b); }
};
struct BF16 {
    static constexpr int BYTES = 2;
    static constexpr bool SCALED = false;
    BN_DEVICE float value(uint16_t bits) { return bf16_to_float(bits); }
    BN_DEVICE uint32_t pack(float low, float high) { return pack_bf16(low, high); }
    BN_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_bf16(d, a, b); }
};
