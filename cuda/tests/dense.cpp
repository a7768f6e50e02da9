// Products of weights without scales. For F32 every bit is the CPU's, for every number of rows. For F16 and BF16 the
// values are near those of sums in f64, except for the loss of splitting activations into two parts, and the bits do
// not depend on other rows.

#include "products.h"

#include "../kernels/dense.cu"

namespace {

using DenseKernel = void (*)(float *, const float *, const float *, int, int, int64_t, const uint8_t *, int,
    const uint8_t *, int, const uint8_t *, int);

// A GEMV with its maximum number of rows and its outputs per block.
struct Gemv {
    DenseKernel kernel;
    int tokens, outputs;
};

// A GEMM of halves with its tokens per tile.
struct Tiles {
    DenseKernel kernel;
    int tokens, shared;
};

struct DenseKernels {
    std::vector<Gemv> gemvs;
    DenseKernel gemm;
    void (*split)(unsigned char *, const float *, int, int);
    std::vector<Tiles> tiles;
};

const DenseKernels F32_KERNELS{
    {{bn_f32_gemv_1, 1, 32}, {bn_f32_gemv_2, 2, 32}, {bn_f32_gemv_4, 4, 64}, {bn_f32_gemv_8, 8, 64}}, bn_f32_gemm, nullptr, {}};
const DenseKernels F16_KERNELS{{{bn_f16_gemv_4, 4, 16}, {bn_f16_gemv_8, 8, 32}}, nullptr, bn_f16_split,
    {{bn_f16_gemm_32, 32, 100352}, {bn_f16_gemm_64, 64, 101376}, {bn_f16_gemm_128, 128, 76800}}};
const DenseKernels BF16_KERNELS{{{bn_bf16_gemv_4, 4, 16}, {bn_bf16_gemv_8, 8, 32}}, nullptr, bn_bf16_split,
    {{bn_bf16_gemm_32, 32, 100352}, {bn_bf16_gemm_64, 64, 101376}, {bn_bf16_gemm_128, 128, 76800}}};

struct DenseCase {
    DenseKernels kernels;
    int tokens, rows, cols; // cols is a multiple of 16, for halves of 8
    std::vector<float> x;
    Numbers weights;

    DenseCase(Random &random, const Type &type, const DenseKernels &kernels, int tokens, int rows, int cols)
        : kernels(kernels), tokens(tokens), rows(rows), cols(cols), x(random.normals(tokens * cols)),
          weights(random, type, rows * cols) {}

    std::vector<float> reference() const {
        std::vector<float> out;
        for (int t = 0; t < tokens; t++) {
            for (int row = 0; row < rows; row++) {
                out.push_back(dense_dot(&x[t * cols], &weights.values[row * cols], cols));
            }
        }
        return out;
    }

    DenseCase only(int first, int count) const {
        DenseCase part = *this;
        part.tokens = count;
        part.x = rows_of(x, first, count, cols);
        return part;
    }

    void share(const DenseCase &of) {
        x = of.x;
    }

    auto activations() const {
        return std::make_tuple(x.data());
    }

    auto matrix() const {
        return std::make_tuple(weights.bytes.data(), rows);
    }

    bool f32() const {
        return weights.type.bytes == 4;
    }

    Out gemv(const Together<DenseCase> &group, const Gemv &how) const {
        if (f32()) return group.gemv(how.kernel, how.outputs, 0);
        dim3 grid(group.blocks(how.outputs), divided(tokens, how.tokens));
        return group.run(how.kernel, grid, 256, 256 * (how.outputs + 8));
    }

    // `shares` blocks share the columns of a row.
    Out gemm(const Together<DenseCase> &group, const Tiles &how, unsigned shares) const {
        std::vector<unsigned char> parts(static_cast<size_t>(divided(tokens, 16) * divided(cols, 32) * 2176));
        launch(kernels.split, dim3(divided(tokens, 16), 8), dim3(32), 0, parts.data(), x.data(), tokens, cols);
        Out out(tokens, group.rows());
        std::vector<float> sums(shares == 1 ? 0 : 8 * static_cast<size_t>(tokens * out.rows), UNTOUCHED);
        const float *bias = group.bias.empty() ? nullptr : group.bias.data(), *from = nullptr;
        from = reinterpret_cast<const float *>(parts.data());
        dim3 grid(divided(tokens, how.tokens), group.blocks(128), shares);
        auto run = [&](auto... matrices) {
            launch(how.kernel, grid, dim3(256), static_cast<size_t>(how.shared), shares == 1 ? out.values.data() : sums.data(),
                from, shares == 1 ? bias : nullptr, tokens, cols, shares == 1 ? out.stride : out.rows, matrices...);
        };
        std::apply(run, std::tuple_cat(group.matrix(0), group.matrix(1), group.matrix(2)));
        if (shares > 1) {
            const float *all = sums.data();
            launch(bn_add_segments, dim3(divided(tokens * out.rows, 256)), dim3(256), 0, out.values.data(), all, bias, tokens,
                out.rows, out.stride);
        }
        return out;
    }

    // The GEMV for the fewest rows that suffices, otherwise the GEMM.
    Out gemv(const Together<DenseCase> &group) const {
        for (const Gemv &how : kernels.gemvs) {
            if (tokens <= how.tokens) return gemv(group, how);
        }
        return gemm(group);
    }

    Out gemm(const Together<DenseCase> &group) const {
        if (f32()) return group.gemm(kernels.gemm, 32, 32, 32768);
        const Tiles &how = kernels.tiles[tokens <= 32 ? 0 : tokens <= 64 ? 1 : 2];
        return gemm(group, how, cols < 256 ? 1 : 8);
    }
};

void f32(uint64_t seed) {
    Random random(seed);
    for (int tokens = 1; tokens <= 8; tokens++) {
        both(DenseCase(random, F32_TYPE, F32_KERNELS, tokens, 1 + random.below(80), 16 * (1 + random.below(20))));
    }
    both(DenseCase(random, F32_TYPE, F32_KERNELS, 33, 65, 80));
    both(DenseCase(random, F32_TYPE, F32_KERNELS, 66, 3, 144));
    alone(DenseCase(random, F32_TYPE, F32_KERNELS, 40, 35, 208));
    for (int tokens : {1, 2, 4, 7, 9}) {
        together(random, tokens, [&](int rows) { return DenseCase(random, F32_TYPE, F32_KERNELS, tokens, rows, 80); });
    }
    // NaN and infinities.
    DenseCase c(random, F32_TYPE, F32_KERNELS, 6, 10, 96);
    c.x[0] = std::numeric_limits<float>::quiet_NaN();
    c.x[96 + 17] = std::numeric_limits<float>::infinity();
    c.x[2 * 96 + 18] = 3e38f;
    both(c);
    c.weights.set(5 * 96 + 7, -std::numeric_limits<float>::infinity());
    both(c);
}

// F16 and BF16 -------------------------------------------------------------------------------------------------------------

const Type &type_of(bool bf16) {
    return bf16 ? BF16_TYPE : F16_TYPE;
}

DenseCase halves(Random &random, bool bf16, int tokens, int rows, int cols) {
    return DenseCase(random, type_of(bf16), bf16 ? BF16_KERNELS : F16_KERNELS, tokens, rows, cols);
}

// Checks a product against f64. An activation loses 2^-17 of itself as parts in bf16, as halves 2^-23 or 2^-36 of the
// largest. Sums in f32 lose the rest: in the emulation, one rounding error per product of a segment at most.
void near(const DenseCase &c, const Out &out) {
    bool bf16 = c.weights.type.value == BF16_TYPE.value;
    double sums = (c.cols / 4 + 72) * 0x1p-24, own = bf16 ? 0x1p-17 : 0x1p-23;
    for (int t = 0; t < c.tokens; t++) {
        double most = 0;
        for (int i = 0; i < c.cols; i++) most = std::max(most, std::fabs(static_cast<double>(c.x[t * c.cols + i])));
        for (int row = 0; row < c.rows; row++) {
            double want = 0, size = 0, weights = 0;
            for (int i = 0; i < c.cols; i++) {
                double weight = static_cast<double>(c.weights.values[row * c.cols + i]);
                double product = static_cast<double>(c.x[t * c.cols + i]) * weight;
                want += product;
                size += std::fabs(product);
                weights += std::fabs(weight);
            }
            CHECK_NEAR(out.at(t, row), want, size * (own + sums) + (bf16 ? 0 : weights * most * 0x1p-36));
        }
        for (int row = c.rows; row < out.stride; row++) CHECK(out.at(t, row) == UNTOUCHED);
    }
}

// Checks that every kernel gives the same bits, and returns the result.
Out all_kernels(const DenseCase &c) {
    Out want = c.gemv({{&c}, {}}, c.kernels.gemvs[0]);
    CHECK(same_bits(c.gemv({{&c}, {}}, c.kernels.gemvs[1]).values, want.values));
    for (const Tiles &how : c.kernels.tiles) {
        for (unsigned shares = 1; shares <= (c.cols < 256 ? 1 : 8); shares *= 2) {
            CHECK(same_bits(c.gemm({{&c}, {}}, how, shares).values, want.values));
        }
    }
    return want;
}

void half_products(bool bf16, uint64_t seed) {
    Random random(seed);
    for (int tokens : {1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 40}) {
        DenseCase c = halves(random, bf16, tokens, 1 + random.below(80), 8 * (1 + random.below(60)));
        near(c, all_kernels(c));
    }
    // More than one tile of a GEMM in each direction, and segments of several chunks.
    DenseCase large = halves(random, bf16, 131, 140, 104);
    near(large, all_kernels(large));
    DenseCase wide = halves(random, bf16, 20, 17, 2200);
    near(wide, all_kernels(wide));
    alone(halves(random, bf16, 70, 35, 616));
}

// Up to three adjacent matrices have the bits that each has alone, with the bias added at the end.
void half_matrices(bool bf16, uint64_t seed) {
    Random random(seed);
    for (int tokens : {1, 6, 20, 65}) {
        std::vector<DenseCase> cases;
        for (int i = 0; i < 3; i++) {
            cases.push_back(halves(random, bf16, tokens, 1 + random.below(150), 264));
            cases[static_cast<size_t>(i)].share(cases[0]);
        }
        Together<DenseCase> group{{&cases[0], &cases[1], &cases[2]}, {}};
        group.bias = random.normals(static_cast<size_t>(group.rows()));
        std::vector<float> want;
        std::vector<Out> each;
        for (const DenseCase &c : cases) each.push_back(c.gemv({{&c}, {}}));
        for (int t = 0; t < tokens; t++) {
            for (size_t i = 0, at = 0; i < 3; i++) {
                for (int row = 0; row < cases[i].rows; row++, at++) want.push_back(each[i].at(t, row) + group.bias[at]);
            }
        }
        CHECK(cases[0].gemv(group).is(want));
        for (const Tiles &how : cases[0].kernels.tiles) {
            for (unsigned shares : {1, 2, 8}) CHECK(cases[0].gemm(group, how, shares).is(want));
        }
    }
}

// NaN and infinity affect their own row and no other.
void half_exceptions(bool bf16, uint64_t seed) {
    Random random(seed);
    for (int tokens : {5, 40}) {
        DenseCase c = halves(random, bf16, tokens, 18, 600);
        Out before = all_kernels(c);
        c.x[0] = std::numeric_limits<float>::quiet_NaN();
        c.x[600 + 311] = std::numeric_limits<float>::infinity();
        c.x[2 * 600 + 599] = -std::numeric_limits<float>::infinity();
        c.weights.set(7 * 600 + 30, std::numeric_limits<float>::infinity());
        Out out = all_kernels(c);
        for (int t = 0; t < tokens; t++) {
            for (int row = 0; row < c.rows; row++) {
                if (t < 3 || row == 7) {
                    CHECK(!std::isfinite(out.at(t, row)));
                } else {
                    CHECK(same_bits(out.at(t, row), before.at(t, row)));
                }
            }
        }
    }
}

// Activations of any size, also mixed within a row, where precision is relative to the largest.
void half_range(bool bf16, uint64_t seed) {
    Random random(seed);
    DenseCase c = halves(random, bf16, 24, 20, 520);
    const float sizes[] = {1e-30f, 1e-9f, 1e6f, 1e12f, 1e30f, 70000.0f};
    for (int t = 0; t < c.tokens; t++) {
        for (int i = 0; i < c.cols; i++) {
            // One size, an increasing one, a decreasing one, or all of them.
            int which = t % 8 < 5 ? t % 6 : t % 8 == 5 ? i / 90 : t % 8 == 6 ? 5 - i / 90 : random.below(6);
            c.x[t * c.cols + i] *= sizes[which % 6];
        }
    }
    near(c, all_kernels(c));
    // Large activations with zero weights in some segments do not reduce the precision of later segments: the first 3
    // segments have 6 of 17 chunks.
    const int large = 6 * 32;
    for (int i = 0; i < c.cols; i++) {
        c.x[i] = random.normal() * (i < large ? 1e30f : 1e-9f);
        for (int row = 0; i < large && row < c.rows; row++) c.weights.set(row * c.cols + i, 0.0f);
    }
    Out small = all_kernels(c);
    for (int i = 0; i < large; i++) c.x[i] = 0.0f;
    CHECK(same_bits(small.values, all_kernels(c).values));
    // All zeros except for the last.
    for (int i = 0; i < c.cols; i++) c.x[i] = i + 1 == c.cols ? 2e5f : 0.0f;
    near(c, all_kernels(c));
}

} // namespace

TEST(f32_products) {
    f32(9);
}

TEST(half_products) {
    half_products(false, 10);
    half_products(true, 11);
}

TEST(half_matrices_beside_each_other) {
    half_matrices(false, 12);
    half_matrices(true, 13);
}

TEST(half_products_of_what_is_no_number) {
    half_exceptions(false, 14);
    half_exceptions(true, 15);
}

TEST(half_products_of_any_size) {
    half_range(false, 16);
    half_range(true, 17);
}
