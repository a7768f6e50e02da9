// Products with weights that have one scale per row: every bit is the CPU's, for every number of rows.

#include "products.h"

namespace {

using WholeKernel = void (*)(float *, const int8_t *, const float *, const int *, const float *, int, int, int64_t,
    const uint8_t *, const float *, int, int, const uint8_t *, const float *, int, int, const uint8_t *, const float *, int,
    int);

struct WholeKernels {
    WholeKernel gemv_1, gemv_2, gemv_4, gemv_8, large, medium, small;
};

#define WHOLE_KERNELS(name)                                                                                            \
    WholeKernels {                                                                                                     \
        bn_##name##_gemv_1, bn_##name##_gemv_2, bn_##name##_gemv_4, bn_##name##_gemv_8, bn_##name##_gemm_128x128,      \
            bn_##name##_gemm_64x128, bn_##name##_gemm_64x32                                                            \
    }

enum Weights { TERNARY, INT8 };

struct WholeCase {
    Weights type;
    int tokens, rows, cols; // cols is a multiple of 128
    std::vector<int8_t> x;
    std::vector<float> x_scales, scales;
    std::vector<int> x_sums;
    std::vector<int> codes; // 0 to 2 for ternary weights
    std::vector<uint8_t> weights;
    int scale_step;

    // With `extreme`: the largest magnitudes, for the largest sums.
    WholeCase(Weights type, Random &random, int tokens, int rows, int cols, bool extreme = false, bool one_scale = false)
        : type(type), tokens(tokens), rows(rows), cols(cols), scale_step(one_scale ? 0 : 1) {
        for (int i = 0; i < tokens * cols; i++) {
            x.push_back(static_cast<int8_t>(extreme ? (i / cols % 2 ? 127 : -127) : random.below(255) - 127));
        }
        for (int i = 0; i < rows * cols; i++) {
            bool ternary = type == TERNARY;
            codes.push_back(ternary ? (extreme ? i / cols % 3 : random.below(3)) : extreme ? 127 : random.below(255) - 127);
        }
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
        if (type == INT8) return weights.assign(codes.begin(), codes.end());
        weights.assign(codes.size() / 4, 0);
        for (size_t i = 0; i < codes.size(); i++) {
            weights[i / 128 * 32 + i % 32] |= static_cast<uint8_t>(codes[i] << (6 - 2 * (i % 128 / 32)));
        }
    }

    // `scalar::run` of src/kernels/gemm/ternary, `reference` of src/kernels/gemm/int8.
    std::vector<float> reference() const {
        std::vector<float> out;
        for (int t = 0; t < tokens; t++) {
            for (int r = 0; r < rows; r++) {
                int dot = 0;
                for (int i = 0; i < cols; i++) dot += codes[r * cols + i] * x[t * cols + i];
                float own = scales[r * scale_step], inverse = 1.0f / x_scales[t];
                out.push_back(type == TERNARY ? static_cast<float>(dot - x_sums[t]) * (own / x_scales[t])
                                              : static_cast<float>(dot) * (own * inverse));
            }
        }
        return out;
    }

    WholeCase only(int first, int count) const {
        WholeCase part = *this;
        part.tokens = count;
        part.x = rows_of(x, first, count, cols);
        part.x_scales = rows_of(x_scales, first, count, 1);
        part.x_sums = rows_of(x_sums, first, count, 1);
        return part;
    }

    void share(const WholeCase &of) {
        x = of.x, x_scales = of.x_scales, x_sums = of.x_sums;
    }

    auto activations() const {
        return std::make_tuple(x.data(), x_scales.data(), x_sums.data());
    }

    auto matrix() const {
        return std::make_tuple(weights.data(), scales.data(), scale_step, rows);
    }

    WholeKernels kernels() const {
        return type == TERNARY ? WHOLE_KERNELS(ternary) : WHOLE_KERNELS(int8);
    }

    Out gemv(const Together<WholeCase> &group) const {
        switch (rows_compiled(tokens)) {
        case 1: return group.gemv(kernels().gemv_1, 8, 0);
        case 2: return group.gemv(kernels().gemv_2, 32, 0);
        case 4: return group.gemv(kernels().gemv_4, 64, 0);
        default: return group.gemv(kernels().gemv_8, 64, 0);
        }
    }

    std::vector<Out> gemms(const Together<WholeCase> &group) const {
        bool ternary = type == TERNARY;
        return {group.gemm(kernels().large, 128, 128, ternary ? 81920 : 98304),
            group.gemm(kernels().medium, 64, 128, 73728), group.gemm(kernels().small, 64, 32, ternary ? 73728 : 98304)};
    }
};

// Whether lanes that read together, `bytes` each from places of a tile, use different banks or the same word.
bool apart(int bytes, unsigned (*place_of)(unsigned lane)) {
    // A read of more than 128 bytes takes several passes of adjacent lanes.
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
    // All groups of four lanes read the same f16 output.
    CHECK(apart(8, [](unsigned lane) { return place<8, 2>(3, 2 + lane % 4 / 2) + lane % 2 * 8; }));
    CHECK(apart(16, [](unsigned lane) { return place<16, 4>(3, 4 + lane % 4); })); // for f32
    CHECK(!apart(4, [](unsigned lane) { return lane / 4 * 128 + lane % 4 * 4; }));
}

namespace {

void whole(Weights type, uint64_t seed) {
    Random random(seed);
    for (int tokens = 1; tokens <= 8; tokens++) {
        both(WholeCase(type, random, tokens, 1 + random.below(150), 128 * (1 + random.below(6))));
    }
    both(WholeCase(type, random, 65, 129, 256));
    both(WholeCase(type, random, 64, 128, 128));
    both(WholeCase(type, random, 131, 5, 384, false, true));
    // Tiles with a few tokens, where some warps have no columns in the last step.
    both(WholeCase(type, random, 16, 70, 1408));
    both(WholeCase(type, random, 17, 31, 1280));
    both(WholeCase(type, random, 47, 33, 128));
    both(WholeCase(type, random, 2, 40, 640, false, true));
    alone(WholeCase(type, random, 70, 33, 384));
    for (int tokens : {1, 2, 4, 7, 9}) {
        // I2_S next to `Ternary`.
        auto make = [&](int rows) { return WholeCase(type, random, tokens, rows, 256, false, random.below(2) == 0); };
        together(random, tokens, make);
    }
}

void whole_extremes(Weights type, uint64_t seed) {
    Random random(seed);
    both(WholeCase(type, random, 4, 7, 6912, true));
    WholeCase zeros(type, random, 3, 20, 256);
    std::fill(zeros.x.begin(), zeros.x.end(), int8_t{0});
    std::fill(zeros.x_sums.begin(), zeros.x_sums.end(), 0);
    zeros.x_scales[1] = 0; // for a row with an infinity: 0 times infinity
    both(zeros);
    CHECK(zeros.gemv({{&zeros}, {}}).at(1, 0) != zeros.gemv({{&zeros}, {}}).at(1, 0));
    WholeCase huge(type, random, 2, 20, 256);
    huge.scales[3] = 3e38f, huge.x_scales[0] = std::numeric_limits<float>::denorm_min();
    both(huge);
}

} // namespace

TEST(ternary_products) {
    whole(TERNARY, 1);
}

TEST(ternary_extremes) {
    whole_extremes(TERNARY, 2);
}

TEST(int8_products) {
    whole(INT8, 3);
}

TEST(int8_extremes) {
    whole_extremes(INT8, 4);
}
