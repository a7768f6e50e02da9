// Repacks weights in blocks from the order of their files into planes (weights.cuh), on the host, once at upload.
// Scales and minima between the codes move to places of their own, and bits that a file spreads over a block are
// joined. The value of a code does not change.
#pragma once

#include "weights.cuh"

// Layout of a type's block in files (github.com/ggml-org/ggml, ggml-quants.c): its bytes, the offsets of its scale and
// minimum, its code in each column, and the argument of `group_of` for the n-th 32 columns. This general case has a
// scale followed by the codes.
template <class Format>
struct File {
    static constexpr int D = 0, MIN = 2, CODES = 2 - Format::EXPONENT + 2 * Format::MINIMA + 4 * Format::HIGH;
    static constexpr int BYTES = CODES + Format::ELEMENTS * Format::BITS / 8;

    static int code(const uint8_t *b, int i) {
        constexpr int IN_BYTE = 8 / Format::BITS, MASK = (1 << Format::BITS) - 1;
        int fifth = Format::HIGH != 0 ? b[CODES - 4 + i / 8] >> (i % 8) & 1 : 0;
        // Codes of four bits: columns 0 to 15 are the low halves of bytes. Smaller codes: adjacent columns share a
        // byte.
        bool halves = Format::BITS == 4;
        int byte = halves ? i % 16 : i / IN_BYTE, shift = halves ? i / 16 * 4 : i % IN_BYTE * Format::BITS;
        return (b[CODES + byte] >> shift & MASK) | fifth << Format::BITS;
    }
};

template <>
struct File<TQ2_0> {
    static constexpr int D = 64, MIN = 0, BYTES = 66;
    static int code(const uint8_t *b, int i) { return b[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }
};

template <>
struct File<Q2_K> {
    static constexpr int D = 80, MIN = 82, BYTES = 84;
    static int code(const uint8_t *b, int i) { return b[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }
    static int group(const uint8_t *b, int n) { return b[2 * n] | b[2 * n + 1] << 8; }
};

template <>
struct File<Q3_K> {
    static constexpr int D = 108, MIN = 0, BYTES = 110;
    static int code(const uint8_t *b, int i) {
        return (b[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) | (b[i % 32] >> (i / 32) & 1) << 2;
    }
    // The low halves of the sixteen scales are followed by the high two bits of each. Scales are stored plus 32.
    static int scale(const uint8_t *b, int group) {
        int low = b[96 + group % 8] >> (group / 8 * 4) & 15, high = b[104 + group % 4] >> (group / 4 * 2) & 3;
        return (low | high << 4) - 32;
    }
    static int group(const uint8_t *b, int n) { return (scale(b, 2 * n) & 0xff) | (scale(b, 2 * n + 1) & 0xff) << 8; }
};

template <>
struct File<Q4_K> {
    static constexpr int D = 0, MIN = 2, BYTES = 144;
    static int code(const uint8_t *b, int i) { return b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15; }
    // Scales and minima have six bits. The first four are whole; their bytes also hold the high bits of the others.
    static int group(const uint8_t *b, int n) {
        if (n < 4) return (b[4 + n] & 63) | (b[8 + n] & 63) << 8;
        int scale = (b[8 + n] & 15) | b[n] >> 6 << 4, min = b[8 + n] >> 4 | b[4 + n] >> 6 << 4;
        return scale | min << 8;
    }
};

template <>
struct File<Q5_K> {
    static constexpr int D = 0, MIN = 2, BYTES = 176;
    static int code(const uint8_t *b, int i) { // as Q4_K, after 32 bytes of fifth bits
        return File<Q4_K>::code(b + 32, i) | (b[16 + i % 32] >> (i / 32) & 1) << 4;
    }
    static int group(const uint8_t *b, int n) { return File<Q4_K>::group(b, n); }
};

template <>
struct File<Q6_K> {
    static constexpr int D = 208, MIN = 0, BYTES = 210;
    static int code(const uint8_t *b, int i) {
        int low = b[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
        return low | (b[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) << 4;
    }
    static int group(const uint8_t *b, int n) { return b[192 + 2 * n] | b[193 + 2 * n] << 8; }
};

template <>
struct File<IQ4_XS> {
    static constexpr int D = 0, MIN = 0, BYTES = 136;
    static int code(const uint8_t *b, int i) { return b[8 + i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15; }
    // Scales of six bits, stored plus 32: the high two bits of all, then the low halves.
    static int group(const uint8_t *b, int n) {
        int scale = (b[4 + n / 2] >> (n % 2 * 4) & 15) | (b[2 + n / 4] >> (n % 4 * 2) & 3) << 4;
        return ((scale - 32) & 0xff) * 0x101;
    }
};

// Unpacks `Int8` from the CPU's panels (src/kernels/gemm/formats/panels.rs) into `rows` rows of `cols`, rounded up to a
// multiple of 128, and their scales. A panel consists of lines of 64 bytes: four columns of each of sixteen rows, and
// at the end their scales.
inline void unpack_panels(const uint8_t *from, int rows, int cols, uint8_t *weights, float *scales) {
    size_t width = static_cast<size_t>((cols + 127) / 128 * 128);
    for (size_t row = 0; row < static_cast<size_t>(rows); row++, weights += width) {
        const uint8_t *panel = from + row / 16 * (width / 4 + 1) * 64 + row % 16 * 4;
        for (size_t i = 0; i < width; i += 4) std::memcpy(weights + i, panel + i * 16, 4);
        std::memcpy(&scales[row], panel + width * 16, 4);
    }
}

// Puts the bits of column i into the words of its 32 columns, where `plane_word` reads them.
template <class Format, int BITS>
inline void put_bits(uint8_t *words, int i, int code) {
    constexpr int IN_BYTE = 8 / BITS;
    int word = i / (4 * IN_BYTE), byte = i % 4, place = i / 4 % IN_BYTE;
    if (BITS == 4) word = i / 4 % 4, place = i / 16;
    if (BITS == 4 && Format::TABLE) byte = i / 16 * 2 + i % 4 / 2, place = i % 2;
    words[4 * word + byte] |= static_cast<uint8_t>(code << (place * BITS));
}

// Repacks a file's `[rows, cols]` into `Planes::bytes` of codes and the scales of its blocks, each followed by its
// minimum if the type has MINIMA.
template <class Format>
inline void repack(const uint8_t *from, int rows, int cols, uint8_t *codes, uint16_t *scales) {
    Planes<Format> planes(rows, cols);
    uint8_t *to_scales = reinterpret_cast<uint8_t *>(scales);
    std::memset(codes, 0, static_cast<size_t>(planes.bytes));
    for (int row = 0; row < rows; row++) {
        for (int col = 0; col < cols; col += Format::ELEMENTS, from += File<Format>::BYTES) {
            std::memcpy(to_scales, from + File<Format>::D, Format::EXPONENT ? 1 : 2);
            if (Format::MINIMA) std::memcpy(to_scales + 2, from + File<Format>::MIN, 2);
            to_scales += SCALE_BYTES<Format>;
            for (int i = 0; i < Format::ELEMENTS; i++) {
                int code = File<Format>::code(from, i), b = (col + i) / 32;
                uint8_t *low = codes + row * planes.low_row + b * (4 * Format::BITS);
                put_bits<Format, Format::BITS>(low, i % 32, code & ((1 << Format::BITS) - 1));
                if constexpr (Format::HIGH != 0) {
                    uint8_t *high = codes + planes.high + row * planes.high_row + b * (4 * Format::HIGH);
                    put_bits<Format, Format::HIGH>(high, i % 32, code >> Format::BITS);
                }
            }
            if constexpr (Format::GROUP != 0) {
                for (int n = 0; n < 8; n++) {
                    int group = File<Format>::group(from, n);
                    uint8_t *to = codes + planes.groups + row * planes.group_row + (col / 32 + n) * 2;
                    to[0] = static_cast<uint8_t>(group), to[1] = static_cast<uint8_t>(group >> 8);
                }
            }
        }
    }
}
