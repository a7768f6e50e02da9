// Products with ternary weights that have a scale for each 256 columns (TQ2_0): every bit is the CPU's, for every
// number of rows.

#include "products.h"

#include "../kernels/scaled.cu"

namespace {

struct ScaledCase {
    int tokens, rows, cols; // cols is a multiple of 256
    std::vector<int8_t> x;
    std::vector<float> x_scales;
    std::vector<uint8_t> packed, codes;
    std::vector<uint16_t> scales;

    // With `extreme`: values of the largest magnitude, and this code.
    ScaledCase(Random &random, int tokens, int rows, int cols, int extreme = -1) : tokens(tokens), rows(rows), cols(cols) {
        for (int i = 0; i < tokens * cols; i++) {
            x.push_back(static_cast<int8_t>(extreme >= 0 ? (i / cols % 2 ? 127 : -127) : random.below(255) - 127));
        }
        for (int t = 0; t < tokens; t++) x_scales.push_back(127 / (0.01f + 8 * random.uniform()));
        for (int b = 0; b < rows * cols / 256; b++) {
            for (int i = 0; i < 64; i++) {
                int byte = 0;
                for (int k = 0; k < 4; k++) byte = 4 * byte + (extreme >= 0 ? extreme : random.below(3));
                packed.push_back(static_cast<uint8_t>(byte));
            }
            uint16_t d = float_to_half(random.normal() * (random.below(5) == 0 ? 1e-6f : 0.1f));
            packed.push_back(static_cast<uint8_t>(d)), packed.push_back(static_cast<uint8_t>(d >> 8));
        }
        pack();
    }

    void pack() {
        codes.resize(static_cast<size_t>(Planes<TQ2_0>(rows, cols).bytes));
        scales.resize(static_cast<size_t>(rows * cols / 256));
        repack<TQ2_0>(packed.data(), rows, cols, codes.data(), scales.data());
    }

    // `dot_scaled` of src/kernels/gemm/ternary.
    float dot(int t, int row) const {
        float total = 0;
        for (int b = 0; b < cols / 256; b++) {
            const uint8_t *block = &packed[static_cast<size_t>((row * (cols / 256) + b) * 66)];
            const int8_t *values = &x[static_cast<size_t>(t * cols + 256 * b)];
            int dot = 0;
            for (int half = 0; half < 2; half++) {
                for (int k = 0; k < 4; k++) {
                    for (int i = 0; i < 32; i++) dot += ((block[32 * half + i] >> (2 * k) & 3) - 1) * *values++;
                }
            }
            float product = static_cast<float>(dot) * half_to_float(static_cast<uint16_t>(block[64] | block[65] << 8));
            total += product;
        }
        return total / x_scales[static_cast<size_t>(t)];
    }

    std::vector<float> reference() const {
        std::vector<float> out;
        for (int t = 0; t < tokens; t++) {
            for (int row = 0; row < rows; row++) out.push_back(dot(t, row));
        }
        return out;
    }

    ScaledCase only(int first, int count) const {
        ScaledCase part = *this;
        part.tokens = count;
        part.x = rows_of(x, first, count, cols);
        part.x_scales = rows_of(x_scales, first, count, 1);
        return part;
    }

    void share(const ScaledCase &of) {
        x = of.x, x_scales = of.x_scales;
    }

    auto activations() const {
        return std::make_tuple(x.data(), x_scales.data(), nullptr);
    }

    auto matrix() const {
        return std::make_tuple(codes.data(), scales.data(), rows);
    }

    Out gemv(const Together<ScaledCase> &group) const {
        int compiled = rows_compiled(tokens);
        return group.gemv(BLOCK_KERNELS(tq2_0).gemv(compiled), 16, 2112 * compiled);
    }

    std::vector<Out> gemms(const Together<ScaledCase> &group) const {
        return BLOCK_KERNELS(tq2_0).gemms(group, 36864, 30720);
    }
};

} // namespace

TEST(tq2_0_products) {
    for (uint64_t seed : {60, 61}) {
        Random random(seed);
        for (int tokens = 1; tokens <= 8; tokens++) {
            both(ScaledCase(random, tokens, 1 + random.below(40), 256 * (1 + random.below(6))));
        }
        // More than four blocks, and edges of tiles.
        both(ScaledCase(random, 3, 5, 256 * 9));
        both(ScaledCase(random, 65, 130, 512));
        both(ScaledCase(random, 130, 7, 256));
        both(ScaledCase(random, 14, 35, 256 * 7));
        both(ScaledCase(random, 33, 31, 1024));
        for (int code : {0, 2}) both(ScaledCase(random, 3, 9, 768, code));
        alone(ScaledCase(random, 66, 20, 768));
        for (int tokens : {1, 2, 4, 7, 9}) {
            together(random, tokens, [&](int rows) { return ScaledCase(random, tokens, rows, 512); });
        }
    }
}

// Zeros have the CPU's sign, and NaN stays in its row.
TEST(tq2_0_extremes) {
    Random random(62);
    ScaledCase c(random, 5, 20, 512);
    std::fill_n(c.x.begin(), 512, int8_t{0});
    c.x_scales[1] = 0;
    c.x_scales[2] = std::numeric_limits<float>::quiet_NaN();
    c.x_scales[3] = std::numeric_limits<float>::denorm_min();
    c.packed[static_cast<size_t>(2 * 7 * 66 + 65)] = 0xfb, c.packed[static_cast<size_t>(2 * 7 * 66 + 64)] = 0xff; // -65504
    c.pack();
    both(c);
    for (const Out &out : c.gemms({{&c}, {}})) {
        for (int t = 0; t < 5; t++) CHECK((out.at(t, 7) != out.at(t, 7)) == (t == 2));
    }
}
