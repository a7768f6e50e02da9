// Shared by tests of products: an output with padding, and parts of a batch.
#pragma once

#include "check.h"

#include "../kernels/gemm.cu"
#include "../kernels/gemv.cu"
#include "../kernels/repack.cuh"

#include <limits>
#include <tuple>

namespace {

// Marks elements of `out` that must not be written.
constexpr float UNTOUCHED = -12345.0f;

// A product's output, with padding after each row.
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

    // Whether the bits are those of `want` [tokens, rows] and nothing else was written.
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

inline unsigned divided(int n, int by) {
    return static_cast<unsigned>((n + by - 1) / by);
}

// `count` rows of a larger batch, starting at `first`.
template <class T> std::vector<T> rows_of(const std::vector<T> &all, int first, int count, int width) {
    return {all.begin() + first * width, all.begin() + (first + count) * width};
}

// Up to three cases whose matrices one launch takes, with the first case's activations, and a bias or none.
template <class Case> struct Together {
    std::vector<const Case *> cases;
    std::vector<float> bias;

    int rows() const {
        int sum = 0;
        for (const Case *c : cases) sum += c->rows;
        return sum;
    }

    unsigned blocks(int outputs) const {
        unsigned sum = 0;
        for (const Case *c : cases) sum += divided(c->rows, outputs);
        return sum;
    }

    auto matrix(size_t i) const {
        return i < cases.size() ? cases[i]->matrix() : decltype(cases[i]->matrix()){};
    }

    template <class Kernel> Out run(Kernel kernel, dim3 grid, int threads, int shared) const {
        const Case &first = *cases[0];
        Out out(first.tokens, rows());
        auto shape = std::make_tuple(bias.empty() ? nullptr : bias.data(), first.tokens, first.cols, out.stride);
        auto all = std::tuple_cat(std::make_tuple(out.values.data()), first.activations(), shape, matrix(0), matrix(1),
            matrix(2));
        auto with = [&](auto... values) { launch(kernel, grid, threads, static_cast<size_t>(shared), values...); };
        std::apply(with, all);
        return out;
    }

    // Blocks have `outputs` rows of weights.
    template <class Kernel> Out gemv(Kernel kernel, int outputs, int shared) const {
        return run(kernel, dim3(blocks(outputs)), 128, shared);
    }

    template <class Kernel> Out gemm(Kernel kernel, int tokens, int outputs, int shared) const {
        return run(kernel, dim3(divided(cases[0]->tokens, tokens), blocks(outputs)), 256, shared);
    }

    std::vector<float> reference() const {
        std::vector<std::vector<float>> each;
        for (const Case *c : cases) each.push_back(c->reference());
        std::vector<float> out;
        for (int t = 0; t < cases[0]->tokens; t++) {
            size_t start = out.size();
            for (size_t i = 0; i < each.size(); i++) {
                std::vector<float> own = rows_of(each[i], t, 1, cases[i]->rows);
                out.insert(out.end(), own.begin(), own.end());
            }
            for (size_t i = 0; i < bias.size(); i++) out[start + i] += bias[i];
        }
        return out;
    }
};

// The smallest number of rows that a GEMV is compiled for and that suffices.
inline int rows_compiled(int tokens) {
    return tokens <= 2 ? tokens : tokens <= 4 ? 4 : 8;
}

// An element type of matrices that are multiplied in f32: its bytes, the bits of a number, and the value of bits.
struct Type {
    int bytes;
    uint32_t (*bits)(float);
    float (*value)(uint32_t);
};

const Type F32_TYPE{4, __float_as_uint, __uint_as_float};
const Type F16_TYPE{2, [](float w) { return static_cast<uint32_t>(float_to_half(w)); },
    [](uint32_t bits) { return half_to_float(static_cast<uint16_t>(bits)); }};
const Type BF16_TYPE{2, [](float w) { return __float_as_uint(w) >> 16; },
    [](uint32_t bits) { return __uint_as_float(bits << 16); }};

// A matrix of such elements, and their values.
struct Numbers {
    Type type;
    std::vector<uint8_t> bytes;
    std::vector<float> values;

    Numbers(Random &random, const Type &type, int count)
        : type(type), bytes(static_cast<size_t>(count * type.bytes)), values(static_cast<size_t>(count)) {
        for (int i = 0; i < count; i++) {
            set(i, random.normal() * (random.below(7) == 0 ? 1e-7f : 1.0f)); // some are subnormal halves
        }
    }

    void set(int i, float value) {
        uint32_t bits = type.bits(value);
        std::memcpy(&bytes[static_cast<size_t>(i * type.bytes)], &bits, static_cast<size_t>(type.bytes));
        values[static_cast<size_t>(i)] = type.value(bits);
    }
};

// As `dot` of src/kernels/gemm/dense: sixteen lanes; halves are added until one is left.
inline float dense_dot(const float *x, const float *w, int cols) {
    float lanes[16] = {};
    for (int i = 0; i < cols; i++) lanes[i % 16] = std::fma(x[i], w[i], lanes[i % 16]);
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    }
    return lanes[0];
}

// The outputs of the GEMM for each shape of tiles that it has; most have one.
template <class Case> auto gemms(const Case &c, const Together<Case> &group, int) -> decltype(c.gemms(group)) {
    return c.gemms(group);
}

template <class Case> std::vector<Out> gemms(const Case &c, const Together<Case> &group, long) {
    return {c.gemm(group)};
}

// Checks that all of them have these bits.
template <class Case> void check_gemms(const Case &c, const Together<Case> &group, const std::vector<float> &want) {
    for (const Out &out : gemms(c, group, 0)) CHECK(out.is(want));
}

// Checks that all kernels give the reference's bits, the GEMV if it takes that many rows.
template <class Case> void both(const Case &c) {
    std::vector<float> want = c.reference();
    if (c.tokens <= 8) CHECK(c.gemv({{&c}, {}}).is(want));
    check_gemms<Case>(c, {{&c}, {}}, want);
}

// Checks that rows of a batch have the same bits alone and a few at a time.
template <class Case> void alone(const Case &c) {
    Out batch = gemms<Case>(c, {{&c}, {}}, 0)[0];
    for (int count : {1, 2, 3, 7}) {
        for (int first : {0, c.tokens / 2, c.tokens - count}) {
            std::vector<float> want;
            for (int t = first; t < first + count; t++) {
                for (int row = 0; row < c.rows; row++) want.push_back(batch.at(t, row));
            }
            Case few = c.only(first, count);
            CHECK(few.gemv({{&few}, {}}).is(want));
            check_gemms<Case>(few, {{&few}, {}}, want);
        }
    }
}

// Checks that one to three matrices in a launch have the bits that each has alone, with the bias added at the end.
// `make` makes a case with a number of rows.
template <class Make> void together(Random &random, int tokens, const Make &make) {
    using Case = decltype(make(1));
    std::vector<Case> cases;
    for (int i = 0; i < 3; i++) {
        cases.push_back(make(1 + random.below(150)));
        cases[static_cast<size_t>(i)].share(cases[0]);
    }
    for (size_t count = 1; count <= 3; count++) {
        Together<Case> group;
        for (size_t i = 0; i < count; i++) group.cases.push_back(&cases[i]);
        if (count > 1) group.bias = random.normals(static_cast<size_t>(group.rows()));
        std::vector<float> want = group.reference();
        if (tokens <= 8) CHECK(cases[0].gemv(group).is(want));
        else check_gemms(cases[0], group, want);
    }
}

using BlockKernel = void (*)(float *, const int8_t *, const float *, const int16_t *, const float *, int, int, int64_t,
    const uint8_t *, const uint16_t *, int, const uint8_t *, const uint16_t *, int, const uint8_t *, const uint16_t *, int);

struct BlockKernels {
    BlockKernel gemv_1, gemv_2, gemv_4, gemv_8, large, small;

    BlockKernel gemv(int rows) const {
        return rows == 1 ? gemv_1 : rows == 2 ? gemv_2 : rows == 4 ? gemv_4 : gemv_8;
    }

    // With large tiles and with small ones, and their shared memory.
    template <class Case> std::vector<Out> gemms(const Together<Case> &group, int of_large, int of_small) const {
        return {group.gemm(large, 64, 128, of_large), group.gemm(small, 32, 32, of_small)};
    }
};

#define BLOCK_KERNELS(name)                                                                                            \
    BlockKernels {                                                                                                     \
        bn_##name##_gemv_1, bn_##name##_gemv_2, bn_##name##_gemv_4, bn_##name##_gemv_8, bn_##name##_gemm_64x128,       \
            bn_##name##_gemm_32x32                                                                                     \
    }

} // namespace
