// Products against the definitions of src/kernels/gemm: every bit is the CPU's, at every number of rows.

#include "check.h"

#include "../kernels/gemm.cu"
#include "../kernels/gemv.cu"

#include <limits>

namespace {

// What `out` holds where nothing is to be written.
constexpr float UNTOUCHED = -12345.0f;

// A product's output with room beside each row.
struct Out {
    int tokens, rows;
    int64_t stride;
    std::vector<float> values;

    Out(int tokens, int rows)
        : tokens(tokens), rows(rows), stride(rows + 3),
          values(static_cast<size_t>(tokens) * static_cast<size_t>(stride), UNTOUCHED) {}

    float at(int t, int row) const {
        return values[static_cast<size_t>(t * stride + row)];
    }

    // Bits are those of `want` [tokens, rows], and nothing else was written.
    bool is(const std::vector<float> &want) const {
        for (int t = 0; t < tokens; t++) {
            for (int i = 0; i < stride; i++) {
                float expected = i < rows ? want[static_cast<size_t>(t * rows + i)] : UNTOUCHED;
                if (!same_bits(at(t, i), expected)) {
                    std::fprintf(stderr, "  token %d of %d, output %d of %d: %.9g for %.9g\n", t, tokens, i, rows,
                        static_cast<double>(at(t, i)), static_cast<double>(expected));
                    return false;
                }
            }
        }
        return true;
    }
};

unsigned divided(int n, int by) {
    return static_cast<unsigned>((n + by - 1) / by);
}

// The fewest rows of those that a GEMV is compiled for.
int rows_compiled(int tokens) {
    return tokens <= 2 ? tokens : tokens <= 4 ? 4 : 8;
}

// Some of the rows of a larger batch, which begin at `first`.
template <class T> std::vector<T> rows_of(const std::vector<T> &all, int first, int count, int width) {
    return {all.begin() + first * width, all.begin() + (first + count) * width};
}

struct TernaryCase {
    int tokens, rows, cols; // cols is a multiple of 128
    std::vector<int8_t> x;
    std::vector<float> x_scales, scales;
    std::vector<int> x_sums;
    std::vector<uint8_t> codes, weights;
    int scale_step;

    // `extreme`: largest magnitudes, for the largest sums.
    TernaryCase(Random &random, int tokens, int rows, int cols, bool extreme = false, bool one_scale = false)
        : tokens(tokens), rows(rows), cols(cols), scale_step(one_scale ? 0 : 1) {
        for (int i = 0; i < tokens * cols; i++) {
            x.push_back(static_cast<int8_t>(extreme ? (i / cols % 2 ? 127 : -127) : random.below(255) - 127));
        }
        for (int i = 0; i < rows * cols; i++) codes.push_back(extreme ? i / cols % 3 : random.below(3));
        for (int t = 0; t < tokens; t++) {
            x_scales.push_back(127 / (0.01f + 8 * random.uniform()));
            int sum = 0;
            for (int i = 0; i < cols; i++) sum += x[t * cols + i];
            x_sums.push_back(sum);
        }
        for (int r = 0; r < (one_scale ? 1 : rows); r++) scales.push_back(random.normal());
        pack();
    }

    // Byte p of 32 has columns p, p + 32, p + 64 and p + 96, high bits first.
    void pack() {
        weights.assign(codes.size() / 4, 0);
        for (size_t i = 0; i < codes.size(); i++) {
            weights[i / 128 * 32 + i % 32] |= static_cast<uint8_t>(codes[i] << (6 - 2 * (i % 128 / 32)));
        }
    }

    // `scalar::run` of src/kernels/gemm/ternary.
    std::vector<float> reference() const {
        std::vector<float> out;
        for (int t = 0; t < tokens; t++) {
            for (int r = 0; r < rows; r++) {
                int dot = 0;
                for (int i = 0; i < cols; i++) dot += codes[r * cols + i] * x[t * cols + i];
                out.push_back(static_cast<float>(dot - x_sums[t]) * (scales[r * scale_step] / x_scales[t]));
            }
        }
        return out;
    }

    TernaryCase only(int first, int count) const {
        TernaryCase part = *this;
        part.tokens = count;
        part.x = rows_of(x, first, count, cols);
        part.x_scales = rows_of(x_scales, first, count, 1);
        part.x_sums = rows_of(x_sums, first, count, 1);
        return part;
    }

    Out run(void (*kernel)(float *, const int8_t *, const float *, const int *, const uint8_t *, const float *, int,
                int, int, int, int64_t),
        dim3 grid, int threads, size_t shared) const {
        Out out(tokens, rows);
        launch(kernel, grid, threads, shared, out.values.data(), x.data(), x_scales.data(), x_sums.data(),
            weights.data(), scales.data(), scale_step, tokens, rows, cols, out.stride);
        return out;
    }

    Out gemv() const {
        switch (rows_compiled(tokens)) {
        case 1: return run(bn_ternary_gemv_1, divided(rows, 16), 128, 0);
        case 2: return run(bn_ternary_gemv_2, divided(rows, 32), 128, 0);
        case 4: return run(bn_ternary_gemv_4, divided(rows, 64), 128, 0);
        default: return run(bn_ternary_gemv_8, divided(rows, 64), 128, 0);
        }
    }

    Out gemm() const {
        return run(bn_ternary_gemm, dim3(divided(tokens, 64), divided(rows, 128)), 256, 24576);
    }
};

// As the file has them.
struct File {
    int elements, bytes;
    // Weight i of a block is `d * value(block, i)`.
    int (*value)(const uint8_t *block, int i);
};

const File Q8_0_FILE{32, 34, [](const uint8_t *b, int i) { return static_cast<int>(static_cast<int8_t>(b[2 + i])); }};
const File Q4_0_FILE{32, 18, [](const uint8_t *b, int i) { return (b[2 + i % 16] >> (i / 16 * 4) & 15) - 8; }};
const File Q2_0_FILE{64, 18, [](const uint8_t *b, int i) { return (b[2 + i / 4] >> (i % 4 * 2) & 3) - 1; }};
const File Q2_0_128_FILE{128, 34, [](const uint8_t *b, int i) { return (b[2 + i / 4] >> (i % 4 * 2) & 3) - 1; }};
const File Q1_0_FILE{128, 18, [](const uint8_t *b, int i) { return (b[2 + i / 8] >> (i % 8) & 1) * 2 - 1; }};

using BlockKernel = void (*)(float *, const int8_t *, const float *, const int16_t *, const uint8_t *, const uint16_t *,
    int, int, int, int64_t);

struct BlockKernels {
    BlockKernel gemv_1, gemv_2, gemv_4, gemv_8, gemm;
};

#define BLOCK_KERNELS(name)                                                                                            \
    BlockKernels{bn_##name##_gemv_1, bn_##name##_gemv_2, bn_##name##_gemv_4, bn_##name##_gemv_8, bn_##name##_gemm}

template <class Format> struct BlockCase {
    File file;
    BlockKernels kernels;
    int tokens, rows, cols;
    std::vector<int8_t> x;
    std::vector<float> x_scales;
    std::vector<int16_t> x_sums;
    std::vector<uint8_t> packed, codes;
    std::vector<uint16_t> scales;

    // `extreme`: values of largest magnitude, and one byte for all codes.
    BlockCase(const File &file, const BlockKernels &kernels, Random &random, int tokens, int rows, int cols,
        int extreme = -1)
        : file(file), kernels(kernels), tokens(tokens), rows(rows), cols(cols) {
        for (int i = 0; i < tokens * cols; i++) {
            x.push_back(static_cast<int8_t>(extreme >= 0 ? (i / cols % 2 ? 127 : -127) : random.below(255) - 127));
        }
        for (int b = 0; b < tokens * cols / 32; b++) {
            int sum = 0;
            for (int i = 0; i < 32; i++) sum += x[b * 32 + i];
            x_sums.push_back(static_cast<int16_t>(sum));
            x_scales.push_back(random.below(9) == 0 ? 0.0f : 3 * random.uniform() / 127);
        }
        size_t blocks = static_cast<size_t>(rows * cols / file.elements);
        for (size_t b = 0; b < blocks; b++) {
            uint16_t d = float_to_half(random.normal() * (random.below(5) == 0 ? 1e-6f : 0.1f));
            packed.push_back(static_cast<uint8_t>(d)), packed.push_back(static_cast<uint8_t>(d >> 8));
            for (int i = 2; i < file.bytes; i++) {
                packed.push_back(static_cast<uint8_t>(extreme >= 0 ? extreme : random.below(256)));
            }
        }
        codes.resize(blocks * static_cast<size_t>(file.bytes - 2));
        scales.resize(blocks);
        repack<Format>(packed.data(), blocks, codes.data(), scales.data());
    }

    // `scalar::add_short` of src/kernels/gemm/quantized, block by block.
    float dot(int t, int row) const {
        float total = 0;
        for (int b = 0; b < cols / 32; b++) {
            const uint8_t *block = &packed[(row * cols + 32 * b) / file.elements * file.bytes];
            int dot = 0;
            for (int i = 0; i < 32; i++) {
                dot += file.value(block, 32 * b % file.elements + i) * x[t * cols + 32 * b + i];
            }
            float d = half_to_float(static_cast<uint16_t>(block[0] | block[1] << 8));
            total = std::fma(static_cast<float>(dot), d * x_scales[t * (cols / 32) + b], total);
        }
        return total;
    }

    std::vector<float> reference() const {
        std::vector<float> out;
        for (int t = 0; t < tokens; t++) {
            for (int row = 0; row < rows; row++) out.push_back(dot(t, row));
        }
        return out;
    }

    BlockCase only(int first, int count) const {
        BlockCase part = *this;
        part.tokens = count;
        part.x = rows_of(x, first, count, cols);
        part.x_scales = rows_of(x_scales, first, count, cols / 32);
        part.x_sums = rows_of(x_sums, first, count, cols / 32);
        return part;
    }

    Out run(BlockKernel kernel, dim3 grid, int threads, size_t shared) const {
        Out out(tokens, rows);
        launch(kernel, grid, threads, shared, out.values.data(), x.data(), x_scales.data(), x_sums.data(),
            codes.data(), scales.data(), tokens, rows, cols, out.stride);
        return out;
    }

    Out gemv() const {
        int compiled = rows_compiled(tokens);
        BlockKernel kernel = compiled == 1 ? kernels.gemv_1
            : compiled == 2                ? kernels.gemv_2
            : compiled == 4                ? kernels.gemv_4
                                           : kernels.gemv_8;
        return run(kernel, divided(rows, 16), 128, static_cast<size_t>(4224 * compiled));
    }

    Out gemm() const {
        return run(kernels.gemm, dim3(divided(tokens, 64), divided(rows, 128)), 256, 24576 + 4096 * Format::BITS);
    }
};

struct DenseCase {
    bool bf16;
    int tokens, rows, cols; // cols is a multiple of 16
    std::vector<float> x;
    std::vector<uint16_t> weights;

    DenseCase(Random &random, bool bf16, int tokens, int rows, int cols)
        : bf16(bf16), tokens(tokens), rows(rows), cols(cols), x(random.normals(tokens * cols)) {
        for (int i = 0; i < rows * cols; i++) {
            float w = random.normal() * (random.below(7) == 0 ? 1e-7f : 1.0f); // some are subnormal halves
            weights.push_back(bf16 ? static_cast<uint16_t>(__float_as_uint(w) >> 16) : float_to_half(w));
        }
    }

    // `dot` of src/kernels/gemm/dense: sixteen lanes, halves added until one is left.
    float dot(int t, int row) const {
        float lanes[16] = {};
        for (int i = 0; i < cols; i++) {
            uint16_t bits = weights[row * cols + i];
            float w = bf16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16) : half_to_float(bits);
            lanes[i % 16] = std::fma(x[t * cols + i], w, lanes[i % 16]);
        }
        for (int width = 8; width > 0; width /= 2) {
            for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
        }
        return lanes[0];
    }

    std::vector<float> reference() const {
        std::vector<float> out;
        for (int t = 0; t < tokens; t++) {
            for (int row = 0; row < rows; row++) out.push_back(dot(t, row));
        }
        return out;
    }

    DenseCase only(int first, int count) const {
        DenseCase part = *this;
        part.tokens = count;
        part.x = rows_of(x, first, count, cols);
        return part;
    }

    Out run(void (*kernel)(float *, const float *, const uint8_t *, int, int, int, int64_t), dim3 grid, int threads,
        size_t shared) const {
        Out out(tokens, rows);
        launch(kernel, grid, threads, shared, out.values.data(), x.data(),
            reinterpret_cast<const uint8_t *>(weights.data()), tokens, rows, cols, out.stride);
        return out;
    }

    Out gemv() const {
        switch (rows_compiled(tokens)) {
        case 1: return run(bf16 ? bn_bf16_gemv_1 : bn_f16_gemv_1, divided(rows, 32), 128, 0);
        case 2: return run(bf16 ? bn_bf16_gemv_2 : bn_f16_gemv_2, divided(rows, 32), 128, 0);
        case 4: return run(bf16 ? bn_bf16_gemv_4 : bn_f16_gemv_4, divided(rows, 64), 128, 0);
        default: return run(bf16 ? bn_bf16_gemv_8 : bn_f16_gemv_8, divided(rows, 64), 128, 0);
        }
    }

    Out gemm() const {
        return run(bf16 ? bn_bf16_gemm : bn_f16_gemm, dim3(divided(tokens, 32), divided(rows, 32)), 256, 24576);
    }
};

// Both kernels give the reference's bits, where a GEMV takes so many rows.
template <class Case> void both(const Case &c) {
    std::vector<float> want = c.reference();
    if (c.tokens <= 8) CHECK(c.gemv().is(want));
    CHECK(c.gemm().is(want));
}

// Rows of a batch, alone and a few at a time, have the bits that they have in it.
template <class Case> void alone(const Case &c) {
    Out batch = c.gemm();
    for (int count : {1, 2, 3, 7}) {
        for (int first : {0, c.tokens / 2, c.tokens - count}) {
            std::vector<float> want;
            for (int t = first; t < first + count; t++) {
                for (int row = 0; row < c.rows; row++) want.push_back(batch.at(t, row));
            }
            Case few = c.only(first, count);
            CHECK(few.gemv().is(want));
            CHECK(few.gemm().is(want));
        }
    }
}

template <class Format> void blocks(const File &file, const BlockKernels &kernels, uint64_t seed) {
    using Case = BlockCase<Format>;
    Random random(seed);
    int least = file.elements;
    for (int tokens = 1; tokens <= 8; tokens++) {
        both(Case(file, kernels, random, tokens, 1 + random.below(40), least * (1 + random.below(640 / least))));
    }
    // More than 32 blocks, a last step that is not whole, edges of tiles.
    both(Case(file, kernels, random, 5, 3, 1024 + 3 * least));
    both(Case(file, kernels, random, 65, 130, 5 * least));
    both(Case(file, kernels, random, 130, 7, 128));
    for (int byte : {0x00, 0x80, 0xff, 0x7f}) both(Case(file, kernels, random, 3, 9, 2 * least, byte));
    alone(Case(file, kernels, random, 66, 20, 4 * least));
}

// Each code of a repacked block is the file's, at its column.
template <class Format> void repacked(const File &file, uint64_t seed) {
    Random random(seed);
    constexpr size_t BLOCKS = 5, BYTES = 4 * Format::BITS; // of 32 columns
    std::vector<uint8_t> packed(BLOCKS * static_cast<size_t>(file.bytes));
    for (uint8_t &byte : packed) byte = static_cast<uint8_t>(random.below(256));
    std::vector<uint8_t> codes(BLOCKS * static_cast<size_t>(file.bytes - 2));
    std::vector<uint16_t> scales(BLOCKS);
    repack<Format>(packed.data(), BLOCKS, codes.data(), scales.data());
    for (size_t b = 0; b < BLOCKS; b++) {
        const uint8_t *block = &packed[b * static_cast<size_t>(file.bytes)];
        CHECK(scales[b] == (block[0] | block[1] << 8));
        for (int i = 0; i < Format::ELEMENTS; i++) {
            uint32_t words[Format::BITS];
            std::memcpy(words, &codes[(b * Format::ELEMENTS + static_cast<size_t>(i)) / 32 * BYTES], BYTES);
            uint32_t four = code_word<Format>(words, i % 32 / 4);
            CHECK(static_cast<int8_t>(four >> (i % 4 * 8)) - Format::OFFSET == file.value(block, i));
        }
    }
}

// Whether what lanes read together, `bytes` each at places of a tile, lies in different banks, or is the same.
bool apart(int bytes, unsigned (*place_of)(unsigned lane)) {
    // A read of more than 128 bytes is made in several goes, of neighboring lanes.
    unsigned together = static_cast<unsigned>(128 / bytes);
    for (unsigned start = 0; start < 32; start += together) {
        long in_bank[32];
        std::fill_n(in_bank, 32, -1L);
        for (unsigned lane = start; lane < std::min(32u, start + together); lane++) {
            for (unsigned at = place_of(lane); at < place_of(lane) + static_cast<unsigned>(bytes); at += 4) {
                long &word = in_bank[at / 4 % 32];
                if (word >= 0 && word != at / 4) return false;
                word = at / 4;
            }
        }
    }
    return true;
}

} // namespace

TEST(products_read_banks_apart) {
    CHECK(apart(4, [](unsigned lane) { return place<8>(lane / 4, 5) + lane % 4 * 4; })); // activations, Q8_0
    CHECK(apart(4, [](unsigned lane) { return place<4>(lane / 4, 3) + lane % 4 * 4; })); // Q4_0
    CHECK(apart(4, [](unsigned lane) { return place<2>(lane / 4, 1) + lane % 4 * 4; })); // ternary
    CHECK(apart(4, [](unsigned lane) { return place<2>(lane / 4, 1) + 8; }));            // Q2_0
    CHECK(apart(4, [](unsigned lane) { return place<1>(lane / 4, 0) + 12; }));           // Q1_0
    CHECK(apart(16, [](unsigned lane) { return place<16, 4>(lane / 4, 8 + lane % 4); })); // f32 activations
    // All fours of a warp have one of f16 outputs.
    CHECK(apart(8, [](unsigned lane) { return place<8, 2>(3, 2 + lane % 4 / 2) + lane % 2 * 8; }));
    CHECK(!apart(4, [](unsigned lane) { return lane / 4 * 128 + lane % 4 * 4; }));
}

TEST(repacked_products_codes) {
    repacked<Q8_0>(Q8_0_FILE, 20);
    repacked<Q4_0>(Q4_0_FILE, 21);
    repacked<Q2_0>(Q2_0_FILE, 22);
    repacked<Q2_0_128>(Q2_0_128_FILE, 23);
    repacked<Q1_0>(Q1_0_FILE, 24);
}

TEST(ternary_products) {
    Random random(1);
    for (int tokens = 1; tokens <= 8; tokens++) {
        both(TernaryCase(random, tokens, 1 + random.below(150), 128 * (1 + random.below(6))));
    }
    both(TernaryCase(random, 65, 129, 256));
    both(TernaryCase(random, 64, 128, 128));
    both(TernaryCase(random, 131, 5, 384, false, true));
    both(TernaryCase(random, 2, 40, 640, false, true));
}

TEST(ternary_extremes) {
    Random random(2);
    both(TernaryCase(random, 4, 7, 6912, true));
    TernaryCase zeros(random, 3, 20, 256);
    std::fill(zeros.x.begin(), zeros.x.end(), int8_t{0});
    std::fill(zeros.x_sums.begin(), zeros.x_sums.end(), 0);
    zeros.x_scales[1] = 0; // of a row with an infinity: 0 times infinity
    both(zeros);
    CHECK(zeros.gemv().at(1, 0) != zeros.gemv().at(1, 0));
    TernaryCase huge(random, 2, 20, 256);
    huge.scales[3] = 3e38f, huge.x_scales[0] = std::numeric_limits<float>::denorm_min();
    both(huge);
}

TEST(ternary_rows_alone) {
    Random random(3);
    alone(TernaryCase(random, 70, 33, 384));
}

TEST(q8_0_products) {
    blocks<Q8_0>(Q8_0_FILE, BLOCK_KERNELS(q8_0), 4);
}

TEST(q4_0_products) {
    blocks<Q4_0>(Q4_0_FILE, BLOCK_KERNELS(q4_0), 5);
}

TEST(q2_0_products) {
    blocks<Q2_0>(Q2_0_FILE, BLOCK_KERNELS(q2_0), 6);
    blocks<Q2_0_128>(Q2_0_128_FILE, BLOCK_KERNELS(q2_0_128), 7);
}

TEST(q1_0_products) {
    blocks<Q1_0>(Q1_0_FILE, BLOCK_KERNELS(q1_0), 8);
}

// An infinite scale and a NaN stay in their row, whatever its products are.
TEST(block_scales_that_are_no_numbers) {
    Random random(9);
    BlockCase<Q4_0> c(Q4_0_FILE, BLOCK_KERNELS(q4_0), random, 5, 20, 160);
    c.x_scales[5] = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 32; i++) c.x[160 + i] = 0;
    c.x_sums[5] = 0;
    c.x_scales[2 * 5 + 4] = std::numeric_limits<float>::quiet_NaN();
    both(c);
    Out out = c.gemm();
    for (int t = 0; t < 5; t++) CHECK((out.at(t, 7) != out.at(t, 7)) == (t == 1 || t == 2));
}

TEST(dense_products) {
    Random random(10);
    for (bool bf16 : {false, true}) {
        for (int tokens = 1; tokens <= 8; tokens++) {
            both(DenseCase(random, bf16, tokens, 1 + random.below(80), 16 * (1 + random.below(20))));
        }
        both(DenseCase(random, bf16, 33, 65, 80));
        both(DenseCase(random, bf16, 66, 3, 144));
        alone(DenseCase(random, bf16, 40, 35, 208));
    }
}

TEST(dense_values_that_are_no_numbers) {
    Random random(11);
    DenseCase c(random, false, 6, 10, 96);
    c.x[0] = std::numeric_limits<float>::quiet_NaN();
    c.x[96 + 17] = std::numeric_limits<float>::infinity();
    c.x[2 * 96 + 18] = 3e38f;
    both(c);
    c.weights[5 * 96 + 7] = 0xfc00; // minus infinity
    both(c);
}
