// Products with weights in short blocks with a scale: every bit is the CPU's, for every number of rows.

#include "products.h"

#include "../kernels/embed.cu"

namespace {

// The layout in files.
struct FileBlock {
    int elements, bytes;
    // Weight i of a block is `d * value(block, i)`, plus its minimum, if any, which follows the scale.
    int (*value)(const uint8_t *block, int i);
    bool minima = false, exponent = false;

    // Bytes before the codes, or before their fifth bits.
    int scale_bytes() const { return exponent ? 1 : minima ? 4 : 2; }

    float scale(const uint8_t *b) const {
        return exponent ? std::ldexp(1.0f, b[0] - 128) : half_to_float(static_cast<uint16_t>(b[0] | b[1] << 8));
    }
};

const FileBlock Q8_0_FILE{32, 34, [](const uint8_t *b, int i) { return static_cast<int>(static_cast<int8_t>(b[2 + i])); }};
const FileBlock Q4_0_FILE{32, 18, [](const uint8_t *b, int i) { return (b[2 + i % 16] >> (i / 16 * 4) & 15) - 8; }};
const FileBlock Q4_1_FILE{32, 20, [](const uint8_t *b, int i) { return b[4 + i % 16] >> (i / 16 * 4) & 15; }, true};
const FileBlock Q5_0_FILE{32, 22, [](const uint8_t *b, int i) {
    return ((b[6 + i % 16] >> (i / 16 * 4) & 15) | (b[2 + i / 8] >> (i % 8) & 1) << 4) - 16;
}};
const FileBlock Q5_1_FILE{32, 24, [](const uint8_t *b, int i) {
    return (b[8 + i % 16] >> (i / 16 * 4) & 15) | (b[4 + i / 8] >> (i % 8) & 1) << 4;
}, true};
const FileBlock Q2_0_FILE{64, 18, [](const uint8_t *b, int i) { return (b[2 + i / 4] >> (i % 4 * 2) & 3) - 1; }};
const FileBlock Q2_0_128_FILE{128, 34, [](const uint8_t *b, int i) { return (b[2 + i / 4] >> (i % 4 * 2) & 3) - 1; }};
const FileBlock Q1_0_FILE{128, 18, [](const uint8_t *b, int i) { return (b[2 + i / 8] >> (i % 8) & 1) * 2 - 1; }};
const FileBlock IQ4_NL_FILE{32, 18, [](const uint8_t *b, int i) {
    constexpr int UNEVEN[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return UNEVEN[b[2 + i % 16] >> (i / 16 * 4) & 15];
}};
// Floats with a bit for the sign, two for the exponent and one for the mantissa, doubled.
const FileBlock MXFP4_FILE{32, 17, [](const uint8_t *b, int i) {
    int code = b[1 + i % 16] >> (i / 16 * 4) & 15, exponent = code >> 1 & 3, mantissa = code & 1;
    int doubled = exponent == 0 ? mantissa : (2 + mantissa) << (exponent - 1);
    return code & 8 ? -doubled : doubled;
}, false, true};

template <class Format> struct BlockCase {
    FileBlock file;
    BlockKernels kernels;
    int tokens, rows, cols;
    std::vector<int8_t> x;
    std::vector<float> x_scales;
    std::vector<int16_t> x_sums;
    std::vector<uint8_t> packed, codes;
    std::vector<uint16_t> scales;

    // With `extreme`: values of the largest magnitude, and one byte for all codes.
    BlockCase(const FileBlock &file, const BlockKernels &kernels, Random &random, int tokens, int rows, int cols,
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
            if (file.exponent) d = static_cast<uint16_t>(random.below(5) == 0 ? random.below(3) : 100 + random.below(50));
            packed.push_back(static_cast<uint8_t>(d));
            if (!file.exponent) packed.push_back(static_cast<uint8_t>(d >> 8));
            if (file.minima) {
                uint16_t min = float_to_half(random.normal());
                packed.push_back(static_cast<uint8_t>(min)), packed.push_back(static_cast<uint8_t>(min >> 8));
            }
            for (int i = file.scale_bytes(); i < file.bytes; i++) {
                packed.push_back(static_cast<uint8_t>(extreme >= 0 ? extreme : random.below(256)));
            }
        }
        codes.resize(static_cast<size_t>(Planes<Format>(rows, cols).bytes));
        scales.resize((blocks * static_cast<size_t>(file.scale_bytes()) + 1) / 2);
        repack<Format>(packed.data(), rows, cols, codes.data(), scales.data());
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
            float scale = x_scales[t * (cols / 32) + b];
            total = std::fma(static_cast<float>(dot), file.scale(block) * scale, total);
            if (!file.minima) continue;
            total = std::fma(half(block + 2), scale * static_cast<float>(x_sums[t * (cols / 32) + b]), total);
        }
        return total;
    }

    static float half(const uint8_t *at) {
        return half_to_float(static_cast<uint16_t>(at[0] | at[1] << 8));
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

    void share(const BlockCase &of) {
        x = of.x, x_scales = of.x_scales, x_sums = of.x_sums;
    }

    auto activations() const {
        return std::make_tuple(x.data(), x_scales.data(), x_sums.data());
    }

    auto matrix() const {
        return std::make_tuple(codes.data(), scales.data(), rows);
    }

    Out gemv(const Together<BlockCase> &group) const {
        int compiled = rows_compiled(tokens);
        return group.gemv(kernels.gemv(compiled), 16, file.minima ? 4752 * compiled + 2112 : 4224 * compiled);
    }

    std::vector<Out> gemms(const Together<BlockCase> &group) const {
        int bits = Format::BITS + Format::HIGH;
        int large = 32896 + 6144 * bits + (file.minima ? 6240 : 0);
        return kernels.gemms(group, large, 50176 + 3072 * bits + (file.minima ? 17152 : 0));
    }
};

template <class Format> void blocks(const FileBlock &file, const BlockKernels &kernels, uint64_t seed) {
    using Case = BlockCase<Format>;
    Random random(seed);
    int least = file.elements;
    for (int tokens = 1; tokens <= 8; tokens++) {
        both(Case(file, kernels, random, tokens, 1 + random.below(40), least * (1 + random.below(640 / least))));
    }
    // More than 32 blocks, an incomplete last step, edges of tiles.
    both(Case(file, kernels, random, 5, 3, 1024 + 3 * least));
    both(Case(file, kernels, random, 65, 130, 5 * least));
    both(Case(file, kernels, random, 130, 7, 128));
    // Tiles with a few tokens, and more columns than one fetch of scales covers.
    both(Case(file, kernels, random, 14, 35, 2048 + least));
    both(Case(file, kernels, random, 33, 31, 1024));
    for (int byte : {0x00, 0x80, 0xff, 0x7f}) both(Case(file, kernels, random, 3, 9, 2 * least, byte));
    alone(Case(file, kernels, random, 66, 20, 4 * least));
    for (int tokens : {1, 2, 4, 7, 9}) {
        together(random, tokens, [&](int rows) { return Case(file, kernels, random, tokens, rows, 4 * least); });
    }
}

// Each code of a repacked block equals the file's code in that column.
using Embed = void (*)(const uint8_t *, const uint16_t *, const uint32_t *, float, float *, int, int);

// Each row of a table equals the file's.
template <class Format> void repacked(const FileBlock &file, Embed embed, uint64_t seed) {
    Random random(seed);
    constexpr int ROWS = 3, BLOCKS = 5, COLS = BLOCKS * Format::ELEMENTS;
    std::vector<uint8_t> packed(static_cast<size_t>(ROWS * BLOCKS * file.bytes));
    for (uint8_t &byte : packed) byte = static_cast<uint8_t>(random.below(256));
    Planes<Format> planes(ROWS, COLS);
    std::vector<uint8_t> codes(static_cast<size_t>(planes.bytes));
    size_t each = static_cast<size_t>(file.scale_bytes());
    std::vector<uint16_t> scales((ROWS * BLOCKS * each + 1) / 2);
    repack<Format>(packed.data(), ROWS, COLS, codes.data(), scales.data());
    const uint8_t *repacked_scales = reinterpret_cast<const uint8_t *>(scales.data());
    for (int i = 0; i < ROWS * COLS; i++) {
        int b = i / Format::ELEMENTS;
        const uint8_t *block = &packed[static_cast<size_t>(b * file.bytes)];
        CHECK(std::memcmp(repacked_scales + static_cast<size_t>(b) * each, block, each) == 0);
        uint32_t four = code_word(load_codes(codes.data(), planes, i / COLS, i % COLS / 32), i % 32 / 4);
        CHECK(static_cast<int8_t>(four >> (i % 4 * 8)) - Format::OFFSET == file.value(block, i % Format::ELEMENTS));
    }
    const uint32_t ids[] = {2, 0, 2, 1};
    std::vector<float> out(4 * COLS);
    launch(embed, 4, 96, 0, codes.data(), scales.data(), ids, 1.7f, out.data(), ROWS, COLS);
    for (int i = 0; i < 4 * COLS; i++) {
        int at = static_cast<int>(ids[i / COLS]) * COLS + i % COLS;
        const uint8_t *block = &packed[static_cast<size_t>(at / Format::ELEMENTS * file.bytes)];
        auto half = [](const uint8_t *b) { return half_to_float(static_cast<uint16_t>(b[0] | b[1] << 8)); };
        float want = file.scale(block) * static_cast<float>(file.value(block, at % Format::ELEMENTS));
        if (file.minima) want += half(block + 2);
        CHECK(same_bits(out[static_cast<size_t>(i)], want * 1.7f));
    }
}

} // namespace

TEST(repacked_products_codes) {
    repacked<Q8_0>(Q8_0_FILE, bn_q8_0_embed, 20);
    repacked<Q4_0>(Q4_0_FILE, bn_q4_0_embed, 21);
    repacked<Q4_1>(Q4_1_FILE, bn_q4_1_embed, 25);
    repacked<Q5_0>(Q5_0_FILE, bn_q5_0_embed, 26);
    repacked<Q5_1>(Q5_1_FILE, bn_q5_1_embed, 27);
    repacked<Q2_0>(Q2_0_FILE, bn_q2_0_embed, 22);
    repacked<Q2_0_128>(Q2_0_128_FILE, bn_q2_0_128_embed, 23);
    repacked<Q1_0>(Q1_0_FILE, bn_q1_0_embed, 24);
    repacked<IQ4_NL>(IQ4_NL_FILE, bn_iq4_nl_embed, 28);
    repacked<MXFP4>(MXFP4_FILE, bn_mxfp4_embed, 29);
}

TEST(q8_0_products) {
    blocks<Q8_0>(Q8_0_FILE, BLOCK_KERNELS(q8_0), 4);
}

TEST(q4_0_products) {
    blocks<Q4_0>(Q4_0_FILE, BLOCK_KERNELS(q4_0), 5);
}

TEST(q4_1_products) {
    blocks<Q4_1>(Q4_1_FILE, BLOCK_KERNELS(q4_1), 12);
}

TEST(q5_products) {
    blocks<Q5_0>(Q5_0_FILE, BLOCK_KERNELS(q5_0), 13);
    blocks<Q5_1>(Q5_1_FILE, BLOCK_KERNELS(q5_1), 14);
}

TEST(q2_0_products) {
    blocks<Q2_0>(Q2_0_FILE, BLOCK_KERNELS(q2_0), 6);
    blocks<Q2_0_128>(Q2_0_128_FILE, BLOCK_KERNELS(q2_0_128), 7);
}

TEST(q1_0_products) {
    blocks<Q1_0>(Q1_0_FILE, BLOCK_KERNELS(q1_0), 8);
}

TEST(iq4_nl_products) {
    blocks<IQ4_NL>(IQ4_NL_FILE, BLOCK_KERNELS(iq4_nl), 15);
}

TEST(mxfp4_products) {
    blocks<MXFP4>(MXFP4_FILE, BLOCK_KERNELS(mxfp4), 16);
}

// An infinite scale and a NaN affect only their own row, whatever its products are.
TEST(block_scales_that_are_no_numbers) {
    Random random(9);
    BlockCase<Q4_0> c(Q4_0_FILE, BLOCK_KERNELS(q4_0), random, 5, 20, 160);
    c.x_scales[5] = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 32; i++) c.x[160 + i] = 0;
    c.x_sums[5] = 0;
    c.x_scales[2 * 5 + 4] = std::numeric_limits<float>::quiet_NaN();
    both(c);
    for (const Out &out : c.gemms({{&c}, {}})) {
        for (int t = 0; t < 5; t++) CHECK((out.at(t, 7) != out.at(t, 7)) == (t == 1 || t == 2));
    }
}
