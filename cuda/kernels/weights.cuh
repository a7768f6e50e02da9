// How weights lie in device memory, and how their codes are unpacked.
//
// I2_S and `Ternary` are kept as they are: 128 columns in 32 bytes, byte p with columns p, p + 32, p + 64 and p + 96, high
// bits first. A word of it shifted by 6, 4, 2, 0 has the codes of four neighboring columns, one in each byte, so dp4a and mma
// take them after one mask.
//
// Types of blocks behind an f16 scale become two planes at upload (`repack`): files have scales between the codes, where no
// block is aligned. The codes of 32 columns are `BITS` words, of which `code_word` makes eight words of four int8.
#pragma once

#include "device.cuh"

#include <cstddef>
#include <cstring>

// Weights are `d * (code - OFFSET)`, with a scale `d` for each `ELEMENTS` columns. Codes of 8 bits are signed.
struct Q8_0 {
    static constexpr int BITS = 8, OFFSET = 0, ELEMENTS = 32;
};
struct Q4_0 {
    static constexpr int BITS = 4, OFFSET = 8, ELEMENTS = 32;
};
struct Q2_0 {
    static constexpr int BITS = 2, OFFSET = 1, ELEMENTS = 64;
};
// An older fork's Q2_0, with a scale for each 128.
struct Q2_0_128 {
    static constexpr int BITS = 2, OFFSET = 1, ELEMENTS = 128;
};
// Codes are 0 and 2, so that this type too is 1 less.
struct Q1_0 {
    static constexpr int BITS = 1, OFFSET = 1, ELEMENTS = 128;
};

// What one instruction loads.
struct alignas(16) Words4 {
    uint32_t word[4];
};
struct alignas(16) Floats4 {
    float value[4];
};
struct alignas(8) Words2 {
    uint32_t word[2];
};

// `blocks` blocks of a file, in order, to a plane of codes (`ELEMENTS * BITS / 8` bytes each) and one of f16 scales.
// On the host, once at upload.
template <class Format>
inline void repack(const uint8_t *from, size_t blocks, uint8_t *codes, uint16_t *scales) {
    constexpr size_t BYTES = Format::ELEMENTS * Format::BITS / 8, GROUP = 4 * Format::BITS;
    for (size_t b = 0; b < blocks; b++, from += 2 + BYTES, codes += BYTES) {
        std::memcpy(&scales[b], from, 2);
        if (Format::BITS >= 4) { // As the file has them: four bits have columns 0 to 15 in the low halves.
            std::memcpy(codes, from + 2, BYTES);
            continue;
        }
        // A file has neighboring columns in one byte; here they go to the neighboring bytes of a word.
        std::memset(codes, 0, BYTES);
        constexpr int IN_BYTE = 8 / Format::BITS, MASK = (1 << Format::BITS) - 1;
        for (int i = 0; i < Format::ELEMENTS; i++) {
            int code = from[2 + i / IN_BYTE] >> (i % IN_BYTE * Format::BITS) & MASK;
            int group = i / 32, word = i % 32 / (4 * IN_BYTE), place = i % 32 / 4 % IN_BYTE;
            codes[group * GROUP + 4 * word + i % 4] |= static_cast<uint8_t>(code << (place * Format::BITS));
        }
    }
}

// Codes of columns 4n to 4n + 3 of the 32 whose words these are.
template <class Format>
BN_DEVICE uint32_t code_word(const uint32_t *words, int n) {
    if constexpr (Format::BITS == 8) {
        return words[n];
    } else if constexpr (Format::BITS == 4) {
        return words[n & 3] >> (n & 4) & 0x0f0f0f0fu;
    } else if constexpr (Format::BITS == 2) {
        return words[n >> 2] >> (2 * (n & 3)) & 0x03030303u;
    } else {
        return (words[0] >> n & 0x01010101u) << 1;
    }
}

// The words of 32 columns, in one load or two.
template <class Format>
BN_DEVICE void load_words(const uint8_t *from, uint32_t (&words)[Format::BITS]) {
    if constexpr (Format::BITS >= 4) {
        BN_UNROLL
        for (int i = 0; i < Format::BITS / 4; i++) {
            Words4 four = reinterpret_cast<const Words4 *>(from)[i];
            BN_UNROLL
            for (int w = 0; w < 4; w++) words[4 * i + w] = four.word[w];
        }
    } else if constexpr (Format::BITS == 2) {
        Words2 two = *reinterpret_cast<const Words2 *>(from);
        words[0] = two.word[0], words[1] = two.word[1];
    } else {
        words[0] = *reinterpret_cast<const uint32_t *>(from);
    }
}

// Elements of matrices that are multiplied in f32: four neighboring ones as floats.
struct F16 {
    BN_DEVICE float value(uint16_t bits) { return half_to_float(bits); }
};
struct BF16 {
    BN_DEVICE float value(uint16_t bits) { return bf16_to_float(bits); }
};

template <class Element>
BN_DEVICE void load_four(const uint8_t *from, float (&to)[4]) {
    Words2 two = *reinterpret_cast<const Words2 *>(from);
    BN_UNROLL
    for (int i = 0; i < 4; i++) to[i] = Element::value(static_cast<uint16_t>(two.word[i / 2] >> (16 * (i % 2))));
}
