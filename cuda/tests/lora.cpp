// Low-rank updates. For F32 every bit is that of src/kernels/gemm/lora; for other types A x is rounded differently
// (dense.cu). The bits do not depend on other rows.

#include "products.h"

#include "../kernels/dense.cu"
#include "../kernels/lora.cu"
#include "../kernels/rows.cu"

namespace {

using Down = void (*)(float *, const float *, const float *, int, int, int64_t, const uint8_t *, int, const uint8_t *, int,
    const uint8_t *, int);
using Up = void (*)(float *, const float *, const uint8_t *, const uint32_t *, float, int, int, int, int, int64_t);

struct Kernels {
    Type type;
    void (*split)(unsigned char *, const float *, int, int);
    Down down;
    Up up;
    // tokens and outputs of a block of `down`, and its shared memory
    int tokens, outputs, shared;

    dim3 grid(int count, int ranks) const {
        return dim3(divided(count, tokens), divided(ranks, outputs));
    }
};

const Kernels KERNELS[] = {
    {F32_TYPE, nullptr, bn_f32_gemm, bn_lora_up_f32, 32, 32, 32768},
    {F16_TYPE, bn_f16_split, bn_f16_gemm_32, bn_lora_up_f16, 32, 128, 100352},
    {BF16_TYPE, bn_bf16_split, bn_bf16_gemm_32, bn_lora_up_bf16, 32, 128, 100352},
};

// A pair's columns, beside those of another matrix, in some rows of y.
struct LoraCase {
    Kernels kernels;
    int cols, ranks, width, stride;
    float scale;
    std::vector<uint32_t> rows;
    Numbers a, b;
    std::vector<float> x, y;

    LoraCase(Random &random, const Kernels &kernels, int cols, int ranks, int width, std::vector<uint32_t> rows)
        : kernels(kernels), cols(cols), ranks(ranks), width(width), stride(width + 5), scale(random.normal()),
          rows(std::move(rows)), a(random, kernels.type, ranks * cols), b(random, kernels.type, ranks * width),
          x(random.normals(static_cast<size_t>(12 * cols))), y(random.normals(static_cast<size_t>(12 * stride))) {}

    // `up_in_scalars` of src/kernels/gemm/lora.
    std::vector<float> reference() const {
        std::vector<float> out = y;
        for (uint32_t row : rows) {
            for (int j = 0; j < width; j++) {
                float sum = 0.0f;
                for (int k = 0; k < ranks; k++) {
                    const float *from = &x[row * static_cast<size_t>(cols)], *w = &a.values[static_cast<size_t>(k * cols)];
                    float t = dense_dot(from, w, cols) * scale;
                    sum = std::fma(t, b.values[static_cast<size_t>(k * width + j)], sum);
                }
                out[row * static_cast<size_t>(stride) + 2 + static_cast<size_t>(j)] += sum;
            }
        }
        return out;
    }

    std::vector<float> run(const std::vector<uint32_t> &rows) const {
        int count = static_cast<int>(rows.size()), between_stride = ranks + 3;
        std::vector<float> inputs(rows.size() * static_cast<size_t>(cols)), out = y;
        std::vector<float> between(rows.size() * static_cast<size_t>(between_stride), UNTOUCHED);
        launch(rows::bn_gather_rows, rows.size(), 64, 0, x.data(), rows.data(), inputs.data(), cols);
        std::vector<unsigned char> parts(static_cast<size_t>(divided(count, 16) * divided(cols, 32) * 2176));
        const float *x_of_down = inputs.data();
        if (kernels.split != nullptr) {
            launch(kernels.split, dim3(divided(count, 16), 8), 32, 0, parts.data(), inputs.data(), count, cols);
            x_of_down = reinterpret_cast<const float *>(parts.data());
        }
        launch(kernels.down, kernels.grid(count, ranks), 256, static_cast<size_t>(kernels.shared), between.data(),
            x_of_down, nullptr, count, cols, between_stride, a.bytes.data(), ranks, nullptr, 0, nullptr, 0);
        launch(kernels.up, dim3(divided(width, 64), divided(count, 4)), 64, 0, &out[2], between.data(), b.bytes.data(),
            rows.data(), scale, count, ranks, width, between_stride, stride);
        return out;
    }
};

} // namespace

TEST(lora_updates) {
    Random random(50);
    for (const Kernels &kernels : KERNELS) {
        for (std::vector<uint32_t> rows : {std::vector<uint32_t>{3}, {0, 1, 11}, {1, 2, 4, 5, 6, 9, 10}}) {
            LoraCase c(random, kernels, 16 * (1 + random.below(12)), 1 + random.below(20), 1 + random.below(150), rows);
            std::vector<float> together = c.run(rows), want = c.reference();
            if (kernels.type.bytes == 4) CHECK(same_bits(together, want));
            for (size_t i = 0; i < want.size(); i++) CHECK_NEAR(together[i], want[i], 1e-3 * (1 + std::fabs(want[i])));
            // Row by row, the results are the same.
            std::vector<float> all = c.y;
            for (uint32_t row : rows) {
                std::vector<float> one = c.run({row});
                std::copy_n(&one[row * static_cast<size_t>(c.stride)], c.stride, &all[row * static_cast<size_t>(c.stride)]);
            }
            CHECK(same_bits(all, together));
        }
    }
}
