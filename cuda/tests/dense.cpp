// Products in f32: every bit is the CPU's, at every number of rows.

#include "products.h"

namespace {

using DenseKernel = void (*)(float *, const float *, const float *, int, int, int64_t, const uint8_t *, int,
    const uint8_t *, int, const uint8_t *, int);

struct DenseKernels {
    DenseKernel gemv_1, gemv_2, gemv_4, gemv_8, gemm;
};

#define DENSE_KERNELS(name)                                                                                            \
    DenseKernels{bn_##name##_gemv_1, bn_##name##_gemv_2, bn_##name##_gemv_4, bn_##name##_gemv_8, bn_##name##_gemm}

struct DenseCase {
    DenseKernels kernels;
    int tokens, rows, cols; // cols is a multiple of 16
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

    Out gemv(const Together<DenseCase> &group) const {
        switch (rows_compiled(tokens)) {
        case 1: return group.gemv(kernels.gemv_1, 32, 0);
        case 2: return group.gemv(kernels.gemv_2, 32, 0);
        case 4: return group.gemv(kernels.gemv_4, 64, 0);
        default: return group.gemv(kernels.gemv_8, 64, 0);
        }
    }

    Out gemm(const Together<DenseCase> &group) const {
        return group.gemm(kernels.gemm, 32, 32, 16384 + 4096 * weights.type.bytes);
    }
};

void dense(const Type &type, const DenseKernels &kernels, uint64_t seed) {
    Random random(seed);
    for (int tokens = 1; tokens <= 8; tokens++) {
        both(DenseCase(random, type, kernels, tokens, 1 + random.below(80), 16 * (1 + random.below(20))));
    }
    both(DenseCase(random, type, kernels, 33, 65, 80));
    both(DenseCase(random, type, kernels, 66, 3, 144));
    alone(DenseCase(random, type, kernels, 40, 35, 208));
    for (int tokens : {1, 2, 4, 7, 9}) {
        together(random, tokens, [&](int rows) { return DenseCase(random, type, kernels, tokens, rows, 80); });
    }
    // Values that are no numbers.
    DenseCase c(random, type, kernels, 6, 10, 96);
    c.x[0] = std::numeric_limits<float>::quiet_NaN();
    c.x[96 + 17] = std::numeric_limits<float>::infinity();
    c.x[2 * 96 + 18] = 3e38f;
    both(c);
    c.weights.set(5 * 96 + 7, -std::numeric_limits<float>::infinity());
    both(c);
}

} // namespace

TEST(f32_products) {
    dense(F32_TYPE, DENSE_KERNELS(f32), 9);
}

TEST(f16_products) {
    dense(F16_TYPE, DENSE_KERNELS(f16), 10);
}

TEST(bf16_products) {
    dense(BF16_TYPE, DENSE_KERNELS(bf16), 11);
}
