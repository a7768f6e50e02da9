// Products with super-blocks: every bit is the CPU's, for every number of rows.

#include "products.h"

#include "../kernels/supers.cu"

namespace {

// A super-block's integers, as in `Codes` of src/kernels/gemm/formats/decode.rs.
struct Decoded {
    int values[256], scales[16], mins[16] = {};
};

// A super-block in a file, and its decoder, written as in ggml-quants.c with advancing pointers.
struct SuperFile {
    int bytes, d, min; // offsets of its f16 values; min is -1 if there is none
    Decoded (*decode)(const uint8_t *block);
};

Decoded decode_q2_k(const uint8_t *b) {
    Decoded to;
    const uint8_t *q = b + 16;
    int *y = to.values;
    for (int n = 0; n < 256; n += 128, q += 32) {
        for (int shift = 0; shift < 8; shift += 2) {
            for (int l = 0; l < 32; l++) *y++ = q[l] >> shift & 3;
        }
    }
    for (int i = 0; i < 16; i++) to.scales[i] = b[i] & 15, to.mins[i] = b[i] >> 4;
    return to;
}

Decoded decode_q3_k(const uint8_t *b) {
    Decoded to;
    const uint8_t *q = b + 32, *packed = b + 96;
    int *y = to.values, mask = 1;
    for (int n = 0; n < 256; n += 128, q += 32) {
        for (int shift = 0; shift < 8; shift += 2, mask *= 2) {
            for (int l = 0; l < 32; l++) *y++ = (q[l] >> shift & 3) - (b[l] & mask ? 0 : 4);
        }
    }
    uint32_t aux[4];
    std::memcpy(aux, packed, 12);
    uint32_t high = aux[2], ones = 0x03030303, halves = 0x0f0f0f0f;
    aux[2] = (aux[0] >> 4 & halves) | (high >> 4 & ones) << 4;
    aux[3] = (aux[1] >> 4 & halves) | (high >> 6 & ones) << 4;
    aux[0] = (aux[0] & halves) | (high & ones) << 4;
    aux[1] = (aux[1] & halves) | (high >> 2 & ones) << 4;
    for (int i = 0; i < 16; i++) to.scales[i] = static_cast<int>(aux[i / 4] >> (i % 4 * 8) & 255) - 32;
    return to;
}

void six_bits(const uint8_t *q, Decoded &to) {
    for (int i = 0; i < 16; i++) {
        int j = i / 2;
        to.scales[i] = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | q[j - 4] >> 6 << 4;
        to.mins[i] = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | q[j] >> 6 << 4;
    }
}

Decoded decode_q4_k(const uint8_t *b) {
    Decoded to;
    const uint8_t *q = b + 16;
    int *y = to.values;
    for (int n = 0; n < 256; n += 64, q += 32) {
        for (int l = 0; l < 32; l++) *y++ = q[l] & 15;
        for (int l = 0; l < 32; l++) *y++ = q[l] >> 4;
    }
    six_bits(b + 4, to);
    return to;
}

Decoded decode_q5_k(const uint8_t *b) {
    Decoded to;
    const uint8_t *q = b + 48, *high = b + 16;
    int *y = to.values, mask = 1;
    for (int n = 0; n < 256; n += 64, q += 32) {
        for (int l = 0; l < 32; l++) *y++ = (q[l] & 15) + (high[l] & mask ? 16 : 0);
        mask *= 2;
        for (int l = 0; l < 32; l++) *y++ = (q[l] >> 4) + (high[l] & mask ? 16 : 0);
        mask *= 2;
    }
    six_bits(b + 4, to);
    return to;
}

Decoded decode_q6_k(const uint8_t *b) {
    Decoded to;
    const uint8_t *low = b, *high = b + 128;
    int *y = to.values;
    for (int n = 0; n < 256; n += 128, y += 128, low += 64, high += 32) {
        for (int l = 0; l < 32; l++) {
            y[l] = ((low[l] & 15) | (high[l] & 3) << 4) - 32;
            y[l + 32] = ((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4) - 32;
            y[l + 64] = (low[l] >> 4 | (high[l] >> 4 & 3) << 4) - 32;
            y[l + 96] = (low[l + 32] >> 4 | (high[l] >> 6 & 3) << 4) - 32;
        }
    }
    for (int i = 0; i < 16; i++) to.scales[i] = static_cast<int8_t>(b[192 + i]);
    return to;
}

Decoded decode_iq4_xs(const uint8_t *b) {
    constexpr int UNEVEN[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    Decoded to;
    const uint8_t *q = b + 8;
    int *y = to.values, high = b[2] | b[3] << 8;
    for (int n = 0; n < 8; n++, y += 32, q += 16) {
        for (int l = 0; l < 16; l++) y[l] = UNEVEN[q[l] & 15], y[l + 16] = UNEVEN[q[l] >> 4];
        int low = n % 2 == 0 ? b[4 + n / 2] & 15 : b[4 + n / 2] >> 4;
        to.scales[2 * n] = to.scales[2 * n + 1] = (low | (high >> 2 * n & 3) << 4) - 32;
    }
    return to;
}

const SuperFile Q2_K_FILE{84, 80, 82, decode_q2_k}, Q3_K_FILE{110, 108, -1, decode_q3_k};
const SuperFile Q4_K_FILE{144, 0, 2, decode_q4_k}, Q5_K_FILE{176, 0, 2, decode_q5_k};
const SuperFile Q6_K_FILE{210, 208, -1, decode_q6_k}, IQ4_XS_FILE{136, 0, -1, decode_iq4_xs};

template <class Format> struct SuperCase {
    SuperFile file;
    BlockKernels kernels;
    int tokens, rows, cols; // cols is a multiple of 256
    std::vector<int8_t> x;
    std::vector<float> x_scales;
    std::vector<int16_t> x_sums;
    std::vector<uint8_t> packed, codes;
    std::vector<uint16_t> scales;

    // With `extreme`: values of the largest magnitude, and one byte for all codes and scales.
    SuperCase(const SuperFile &file, const BlockKernels &kernels, Random &random, int tokens, int rows, int cols,
        int extreme = -1)
        : file(file), kernels(kernels), tokens(tokens), rows(rows), cols(cols) {
        for (int i = 0; i < tokens * cols; i++) {
            x.push_back(static_cast<int8_t>(extreme >= 0 ? (i / cols % 2 ? 127 : -127) : random.below(255) - 127));
        }
        for (int b = 0; b < tokens * cols / 256; b++) {
            x_scales.push_back(random.below(9) == 0 ? 0.0f : 3 * random.uniform() / 127);
        }
        for (int b = 0; b < tokens * cols / 16; b++) {
            int sum = 0;
            for (int i = 0; i < 16; i++) sum += x[b * 16 + i];
            x_sums.push_back(static_cast<int16_t>(sum));
        }
        packed.resize(static_cast<size_t>(rows * cols / 256 * file.bytes));
        for (uint8_t &byte : packed) byte = static_cast<uint8_t>(extreme >= 0 ? extreme : random.below(256));
        for (int b = 0; b < rows * cols / 256; b++) {
            for (int at : {file.d, file.min}) {
                if (at >= 0) set_half(b, at, float_to_half(random.normal() * (random.below(5) == 0 ? 1e-6f : 0.1f)));
            }
        }
        pack();
    }

    void set_half(int block, int at, uint16_t bits) {
        std::memcpy(&packed[static_cast<size_t>(block * file.bytes + at)], &bits, 2);
    }

    void pack() {
        codes.resize(static_cast<size_t>(Planes<Format>(rows, cols).bytes));
        scales.resize(static_cast<size_t>(rows * cols / 256 * (file.min >= 0 ? 2 : 1)));
        repack<Format>(packed.data(), rows, cols, codes.data(), scales.data());
    }

    // `scalar::add_long` of src/kernels/gemm/quantized, super-block by super-block.
    std::vector<float> reference() const {
        std::vector<float> out(static_cast<size_t>(tokens * rows));
        for (int b = 0; b < rows * cols / 256; b++) {
            const uint8_t *block = &packed[static_cast<size_t>(b * file.bytes)];
            Decoded w = file.decode(block);
            int row = b / (cols / 256), n = b % (cols / 256);
            for (int t = 0; t < tokens; t++) {
                int dots = 0, lows = 0;
                for (int i = 0; i < 256; i++) {
                    int v = x[static_cast<size_t>(t * cols + 256 * n + i)];
                    dots += w.scales[i / 16] * w.values[i] * v, lows += w.mins[i / 16] * v;
                }
                float &total = out[static_cast<size_t>(t * rows + row)];
                float scale = x_scales[static_cast<size_t>(t * (cols / 256) + n)];
                total = std::fma(static_cast<float>(dots), half(block, file.d) * scale, total);
                if (file.min < 0) continue;
                total = std::fma(static_cast<float>(lows), -(half(block, file.min) * scale), total);
            }
        }
        return out;
    }

    static float half(const uint8_t *block, int at) {
        return half_to_float(static_cast<uint16_t>(block[at] | block[at + 1] << 8));
    }

    SuperCase only(int first, int count) const {
        SuperCase part = *this;
        part.tokens = count;
        part.x = rows_of(x, first, count, cols);
        part.x_scales = rows_of(x_scales, first, count, cols / 256);
        part.x_sums = rows_of(x_sums, first, count, cols / 16);
        return part;
    }

    void share(const SuperCase &of) {
        x = of.x, x_scales = of.x_scales, x_sums = of.x_sums;
    }

    auto activations() const {
        return std::make_tuple(x.data(), x_scales.data(), x_sums.data());
    }

    auto matrix() const {
        return std::make_tuple(codes.data(), scales.data(), rows);
    }

    Out gemv(const Together<SuperCase> &group) const {
        int compiled = rows_compiled(tokens);
        return group.gemv(kernels.gemv(compiled), 16, 4224 * compiled);
    }

    std::vector<Out> gemms(const Together<SuperCase> &group) const {
        int bits = Format::BITS + Format::HIGH;
        return kernels.gemms(group, 35328 + 6144 * bits, 32256 + 3072 * bits);
    }
};

template <class Format> void supers(const SuperFile &file, const BlockKernels &kernels, uint64_t seed) {
    using Case = SuperCase<Format>;
    Random random(seed);
    for (int tokens = 1; tokens <= 8; tokens++) {
        both(Case(file, kernels, random, tokens, 1 + random.below(40), 256 * (1 + random.below(4))));
    }
    // More than four super-blocks, and edges of tiles.
    both(Case(file, kernels, random, 3, 5, 256 * 9));
    both(Case(file, kernels, random, 65, 130, 512));
    both(Case(file, kernels, random, 130, 7, 256));
    both(Case(file, kernels, random, 14, 35, 256 * 7));
    both(Case(file, kernels, random, 33, 31, 1024));
    for (int byte : {0x00, 0x80, 0xff, 0x7f}) both(Case(file, kernels, random, 3, 9, 512, byte));
    alone(Case(file, kernels, random, 66, 20, 768));
    for (int tokens : {1, 2, 4, 7, 9}) {
        together(random, tokens, [&](int rows) { return Case(file, kernels, random, tokens, rows, 512); });
    }
}

} // namespace

TEST(q4_k_products) {
    supers<Q4_K>(Q4_K_FILE, BLOCK_KERNELS(q4_k), 30);
}

TEST(q6_k_products) {
    supers<Q6_K>(Q6_K_FILE, BLOCK_KERNELS(q6_k), 31);
}

TEST(q5_k_products) {
    supers<Q5_K>(Q5_K_FILE, BLOCK_KERNELS(q5_k), 32);
}

TEST(q2_k_products) {
    supers<Q2_K>(Q2_K_FILE, BLOCK_KERNELS(q2_k), 33);
}

TEST(q3_k_products) {
    supers<Q3_K>(Q3_K_FILE, BLOCK_KERNELS(q3_k), 34);
}

TEST(iq4_xs_products) {
    supers<IQ4_XS>(IQ4_XS_FILE, BLOCK_KERNELS(iq4_xs), 36);
}

// Infinite scales and a NaN stay in their row and column.
TEST(super_scales_that_are_no_numbers) {
    Random random(35);
    SuperCase<Q4_K> c(Q4_K_FILE, BLOCK_KERNELS(q4_k), random, 5, 20, 512);
    c.x_scales[2] = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 256; i++) c.x[512 + i] = 0;
    for (int i = 0; i < 16; i++) c.x_sums[32 + i] = 0;
    c.x_scales[2 * 2 + 1] = std::numeric_limits<float>::quiet_NaN();
    c.set_half(2 * 7 + 1, 2, 0x7c00);
    c.pack();
    both(c);
    for (const Out &out : c.gemms({{&c}, {}})) {
        for (int t = 0; t < 5; t++) CHECK((out.at(t, 6) != out.at(t, 6)) == (t == 1 || t == 2));
    }
}
