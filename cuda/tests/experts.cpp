// Mixtures of experts: the choice against one written from the CPU's definition, places and tiles against their
// definition, and products of pairs against the kernels for a single matrix.

#include "products.h"

#include "../kernels/dense.cu"
#include "../kernels/supers.cu"

#include "../kernels/experts.cu"

#include <algorithm>
#include <array>
#include <numeric>

namespace {

struct Choice {
    int experts, used;
    bool logistic, renormalize;
    float more, scale;
    std::vector<float> bias, scales;
};

struct Chosen {
    std::vector<int> experts;
    std::vector<float> weights;
};

// As `Routes::choose` of src/ops/experts.rs, with the same order of a row's entries.
Chosen reference(const Choice &c, std::vector<float> p) {
    float infinity = std::numeric_limits<float>::infinity(), most = -infinity, sum = 0;
    for (float x : p) most = std::fmax(most, x);
    for (float &x : p) x = c.logistic ? 1.0f / (1.0f + bn_exp(-x)) : bn_exp(x - most);
    for (float x : p) sum += x;
    if (!c.logistic) {
        for (float &x : p) x /= sum;
    }
    std::vector<float> scores = p;
    for (size_t i = 0; i < c.bias.size(); i++) scores[i] += c.bias[i];
    std::vector<std::pair<int, float>> own;
    float total = 0;
    for (int n = 0; n < c.used; n++) {
        size_t best = 0;
        for (size_t i = 0; i < scores.size(); i++) {
            if (scores[i] > scores[best] || (scores[best] == -infinity && scores[i] != -infinity)) best = i;
        }
        own.emplace_back(static_cast<int>(best), p[best]);
        total += p[best];
        scores[best] = -infinity;
    }
    std::sort(own.begin(), own.end(), [](const auto &a, const auto &b) { return a.first < b.first; });
    Chosen chosen;
    for (auto [expert, weight] : own) {
        if (c.renormalize) weight /= total + c.more;
        float scale = c.scales.empty() ? c.scale : c.scale * c.scales[static_cast<size_t>(expert)];
        chosen.experts.push_back(expert);
        chosen.weights.push_back(weight * scale);
    }
    return chosen;
}

void route(const Choice &c, const std::vector<float> &logits) {
    size_t rows = logits.size() / static_cast<size_t>(c.experts), pairs = rows * static_cast<size_t>(c.used);
    Chosen got{std::vector<int>(pairs, -1), std::vector<float>(pairs)};
    launch(bn_route, dim3(static_cast<unsigned>(rows)), 32, static_cast<size_t>(8 * c.experts), logits.data(),
        c.bias.empty() ? nullptr : c.bias.data(), c.scales.empty() ? nullptr : c.scales.data(), got.experts.data(),
        got.weights.data(), c.experts, c.used, c.logistic, c.renormalize, c.more, c.scale);
    for (size_t row = 0; row < rows; row++) {
        Chosen want = reference(c, rows_of(logits, static_cast<int>(row), 1, c.experts));
        CHECK(rows_of(got.experts, static_cast<int>(row), 1, c.used) == want.experts);
        CHECK(same_bits(rows_of(got.weights, static_cast<int>(row), 1, c.used), want.weights));
    }
}

TEST(experts_are_those_of_the_cpu) {
    Random random(61);
    for (int experts : {1, 5, 32, 33, 128, 300}) {
        for (int used : {1, 2, 8, 32}) {
            if (used > experts) continue;
            for (int kind = 0; kind < 4; kind++) {
                float more = kind == 3 ? 1e-20f : 0.0f, scale = kind == 2 ? 1.0f : 2.5f;
                Choice c{experts, used, kind % 2 == 1, kind / 2 == 1, more, scale, {}, {}};
                if (kind % 2 == 1) c.bias = random.normals(static_cast<size_t>(experts), 0.3f);
                if (kind == 3) c.scales = random.normals(static_cast<size_t>(experts));
                std::vector<float> logits = random.normals(static_cast<size_t>(5 * experts), 3.0f);
                // Equal logits, and a row of one number.
                for (float &x : logits) x = random.below(3) == 0 ? 1.5f : x;
                std::fill(logits.begin(), logits.begin() + experts, 0.25f);
                route(c, logits);
            }
        }
    }
}

TEST(rows_without_numbers_have_experts_too) {
    Random random(62);
    float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    for (bool logistic : {false, true}) {
        for (float what : {nan, infinity, -infinity}) {
            for (int at : {0, 1, 37, 39}) {
                std::vector<float> logits = random.normals(80);
                logits[static_cast<size_t>(at)] = what;
                logits[60] = what;
                route({40, 6, logistic, true, 0, 1, {}, {}}, logits);
            }
        }
        route({40, 6, logistic, true, 0, 1, {}, {}}, std::vector<float>(40, nan));
    }
}

// Makes pairs of `rows` rows, each with `used` different experts, some of which are more frequent.
std::vector<int> pairs_of(Random &random, int rows, int used, int experts) {
    std::vector<int> chosen;
    for (int row = 0; row < rows; row++) {
        std::vector<int> all(static_cast<size_t>(experts));
        std::iota(all.begin(), all.end(), 0);
        for (int n = 0; n < used; n++) {
            int left = experts - n, at = n + (random.below(2) == 0 ? random.below(left) : random.below(std::min(left, 3)));
            std::swap(all[static_cast<size_t>(n)], all[static_cast<size_t>(at)]);
        }
        std::sort(all.begin(), all.begin() + used);
        chosen.insert(chosen.end(), all.begin(), all.begin() + used);
    }
    return chosen;
}

struct Grouped {
    std::vector<int> places, tiles;
    std::vector<uint32_t> rows;
    int slots;
};

Grouped group(const std::vector<int> &chosen, int used, int experts, int tile) {
    int pairs = static_cast<int>(chosen.size()), slots = tile == 1 ? pairs : pairs / tile + experts;
    Grouped g{std::vector<int>(chosen.size(), -1), std::vector<int>(static_cast<size_t>(3 * slots), -1),
        std::vector<uint32_t>(chosen.size()), slots};
    launch(bn_group, dim3(static_cast<unsigned>(experts)), 256, 64, chosen.data(), g.places.data(), g.rows.data(),
        g.tiles.data(), pairs, used, tile, slots);
    return g;
}

TEST(pairs_of_an_expert_are_in_its_tiles) {
    Random random(63);
    using Sizes = std::array<int, 3>;
    for (auto [rows, used, experts] :
        {Sizes{1, 8, 128}, {3, 2, 5}, {40, 8, 128}, {70, 3, 7}, {333, 4, 32}, {1, 1, 1}, {513, 2, 3}}) {
        std::vector<int> chosen = pairs_of(random, rows, used, experts);
        for (int tile : {1, 4, 32, 64}) {
            Grouped g = group(chosen, used, experts, tile);
            std::vector<int> at(chosen.size(), -1), of(chosen.size(), -1); // by place
            for (size_t i = 0; i < chosen.size(); i++) {
                size_t place = static_cast<size_t>(g.places[i]);
                CHECK(place < chosen.size() && at[place] == -1);
                at[place] = static_cast<int>(i), of[place] = chosen[i];
                CHECK(g.rows[place] == i / static_cast<size_t>(used));
            }
            CHECK(std::is_sorted(at.begin(), at.end(), [&](int a, int b) {
                return std::make_pair(chosen[static_cast<size_t>(a)], a) < std::make_pair(chosen[static_cast<size_t>(b)], b);
            }));
            int seen = 0;
            for (int slot = 0; slot < g.slots; slot++) {
                const int *t = &g.tiles[static_cast<size_t>(3 * slot)];
                CHECK(t[2] >= 0 && t[2] <= tile);
                if (t[2] == 0) continue;
                CHECK(t[1] == seen);
                for (int i = 0; i < t[2]; i++) CHECK(of[static_cast<size_t>(t[1] + i)] == t[0]);
                seen += t[2];
            }
            CHECK(seen == static_cast<int>(chosen.size()));
        }
    }
}

// A type's kernels for experts: rows of weights per block, the threads of the first two kernels, shared memory, the
// pairs per tile of the third kernel here, and whether its blocks are counted in y.
struct Shapes {
    std::array<int, 3> outputs;
    int threads;
    std::array<size_t, 3> shared;
    int most = 32;
    bool in_y = true;
};

// The sizes of the matrices of five experts, two each, and the number of pairs.
constexpr int EXPERTS = 5;
struct Dims {
    int rows0, rows1, cols, pairs;

    int rows_of(int matrix) const { return matrix < EXPERTS ? rows0 : rows1; }
    unsigned blocks(int outputs) const { return divided(rows0, outputs) + divided(rows1, outputs); }
};

using Addresses = std::vector<const void *>;

template <class Format> struct BlockExperts {
    static constexpr int EACH = Format::GROUP != 0 ? 256 : 32, SUMS = Format::GROUP != 0 ? 16 : 32;
    Dims dims;
    std::vector<std::vector<uint8_t>> codes;
    std::vector<std::vector<uint16_t>> scales;
    std::vector<int8_t> x;
    std::vector<float> x_scales;
    std::vector<int16_t> x_sums;
    Addresses table;

    BlockExperts(Random &random, const Dims &dims) : dims(dims) {
        for (int i = 0; i < 2 * EXPERTS; i++) {
            int rows = dims.rows_of(i);
            codes.emplace_back(static_cast<size_t>(Planes<Format>(rows, dims.cols).bytes));
            for (uint8_t &c : codes.back()) c = static_cast<uint8_t>(random.below(256));
            // The scales and minima of Q4_K have six bits.
            size_t groups = static_cast<size_t>(Planes<Format>(rows, dims.cols).groups);
            for (size_t i = groups; Format::MINIMA && i < codes.back().size(); i++) codes.back()[i] &= 63;
            scales.emplace_back(static_cast<size_t>((rows * dims.cols / Format::ELEMENTS * SCALE_BYTES<Format> + 1) / 2));
            for (uint16_t &s : scales.back()) s = float_to_half(random.normal() * 0.1f);
        }
        for (size_t i = 0; i < codes.size(); i++) table.push_back(codes[i].data()), table.push_back(scales[i].data());
        int count = dims.pairs * dims.cols;
        for (int i = 0; i < count; i++) x.push_back(static_cast<int8_t>(random.below(255) - 127));
        for (int i = 0; i < count / EACH; i++) x_scales.push_back(random.uniform() / 50);
        for (int i = 0; i < count / SUMS; i++) {
            auto from = x.begin() + i * SUMS;
            x_sums.push_back(static_cast<int16_t>(std::accumulate(from, from + SUMS, 0)));
        }
    }

    template <class Kernel> void alone(Kernel kernel, const Shapes &of, int place, size_t expert, Out &out) const {
        size_t other = expert + EXPERTS, at = static_cast<size_t>(place * dims.cols);
        launch(kernel, dim3(dims.blocks(of.outputs[0])), of.threads, of.shared[0], out.values.data(), x.data() + at,
            x_scales.data() + at / EACH, x_sums.data() + at / SUMS, nullptr, 1, dims.cols, out.stride,
            codes[expert].data(), scales[expert].data(), dims.rows0, codes[other].data(), scales[other].data(), dims.rows1,
            nullptr, nullptr, 0);
    }

    template <class Kernel>
    void run(Kernel kernel, dim3 grid, int threads, size_t shared, const Grouped &g, Out &out) const {
        launch(kernel, grid, threads, shared, out.values.data(), x.data(), x_scales.data(), x_sums.data(), g.tiles.data(),
            table.data(), EXPERTS, dims.cols, out.stride, dims.rows0, dims.rows1);
    }
};

// Weights with one scale per row; BITS = 2 is ternary.
template <int BITS> struct WholeExperts {
    Dims dims;
    std::vector<std::vector<uint8_t>> codes;
    std::vector<std::vector<float>> scales;
    std::vector<int8_t> x;
    std::vector<float> x_scales;
    std::vector<int> x_sums;
    Addresses table;

    WholeExperts(Random &random, const Dims &dims) : dims(dims) {
        for (int i = 0; i < 2 * EXPERTS; i++) {
            int rows = dims.rows_of(i);
            codes.emplace_back(static_cast<size_t>(rows * dims.cols * BITS / 8));
            for (uint8_t &c : codes.back()) c = static_cast<uint8_t>(random.below(256));
            scales.push_back(random.normals(static_cast<size_t>(rows)));
        }
        for (size_t i = 0; i < codes.size(); i++) table.push_back(codes[i].data()), table.push_back(scales[i].data());
        for (int i = 0; i < dims.pairs * dims.cols; i++) x.push_back(static_cast<int8_t>(random.below(255) - 127));
        for (int i = 0; i < dims.pairs; i++) {
            auto from = x.begin() + i * dims.cols;
            x_scales.push_back(1 + random.uniform());
            x_sums.push_back(std::accumulate(from, from + dims.cols, 0));
        }
    }

    template <class Kernel> void alone(Kernel kernel, const Shapes &of, int place, size_t expert, Out &out) const {
        size_t other = expert + EXPERTS;
        launch(kernel, dim3(dims.blocks(of.outputs[0])), of.threads, of.shared[0], out.values.data(),
            x.data() + place * dims.cols, x_scales.data() + place, x_sums.data() + place, nullptr, 1, dims.cols, out.stride,
            codes[expert].data(), scales[expert].data(), 1, dims.rows0, codes[other].data(), scales[other].data(), 1,
            dims.rows1, nullptr, nullptr, 0, 0);
    }

    template <class Kernel>
    void run(Kernel kernel, dim3 grid, int threads, size_t shared, const Grouped &g, Out &out) const {
        launch(kernel, grid, threads, shared, out.values.data(), x.data(), x_scales.data(), x_sums.data(), g.tiles.data(),
            table.data(), EXPERTS, 1, dims.cols, out.stride, dims.rows0, dims.rows1);
    }
};

struct DenseExperts {
    Dims dims;
    std::vector<Numbers> matrices;
    std::vector<float> x;
    Addresses table;

    DenseExperts(Random &random, const Dims &dims, const Type &type) : dims(dims) {
        for (int i = 0; i < 2 * EXPERTS; i++) matrices.emplace_back(random, type, dims.rows_of(i) * dims.cols);
        for (const Numbers &matrix : matrices) table.push_back(matrix.bytes.data()), table.push_back(nullptr);
        x = random.normals(static_cast<size_t>(dims.pairs * dims.cols));
    }

    template <class Kernel> void alone(Kernel kernel, const Shapes &of, int place, size_t expert, Out &out) const {
        launch(kernel, dim3(dims.blocks(of.outputs[0])), of.threads, of.shared[0], out.values.data(),
            x.data() + place * dims.cols, nullptr, 1, dims.cols, out.stride, matrices[expert].bytes.data(), dims.rows0,
            matrices[expert + EXPERTS].bytes.data(), dims.rows1, nullptr, 0);
    }

    template <class Kernel>
    void run(Kernel kernel, dim3 grid, int threads, size_t shared, const Grouped &g, Out &out) const {
        launch(kernel, grid, threads, shared, out.values.data(), x.data(), g.tiles.data(), table.data(), EXPERTS, dims.cols,
            out.stride, dims.rows0, dims.rows1);
    }
};

// Each pair's outputs equal those of its row and its expert alone, by `one`, in tiles of all sizes.
template <class One, class Kernel, class Make>
void same_as_alone(const Shapes &of, One one, const std::array<Kernel, 3> &kernels, int cols, const Make &make) {
    Random random(64);
    for (auto [rows, used, rows0, rows1] : {std::array{1, 2, 33, 17}, {9, 3, 16, 0}, {40, 2, 130, 20}}) {
        std::vector<int> chosen = pairs_of(random, rows, used, EXPERTS);
        auto all = make(random, Dims{rows0, rows1, cols, rows * used});
        for (int tile : {1, 4, of.most}) {
            Grouped g = group(chosen, used, EXPERTS, tile);
            std::vector<float> want(chosen.size() * static_cast<size_t>(rows0 + rows1));
            for (size_t i = 0; i < chosen.size(); i++) {
                Out own(1, rows0 + rows1);
                all.alone(one, of, g.places[i], static_cast<size_t>(chosen[i]), own);
                std::copy(own.values.begin(), own.values.begin() + rows0 + rows1,
                    want.begin() + g.places[i] * (rows0 + rows1));
            }
            size_t which = tile == 1 ? 0 : tile == 4 ? 1 : 2;
            unsigned blocks = all.dims.blocks(of.outputs[which]), slots = static_cast<unsigned>(g.slots);
            Out out(rows * used, rows0 + rows1);
            dim3 grid = which == 2 && of.in_y ? dim3(1, blocks, slots) : dim3(slots, 1, blocks);
            all.run(kernels[which], grid, which == 2 ? 256 : of.threads, of.shared[which], g, out);
            CHECK(out.is(want));
        }
    }
}

// The third kernel of each type is launched with 256 threads.
#define THIRD_TAKES(kernel) static_assert(kernel##_threads == 256)
THIRD_TAKES(bn_q8_0_experts_gemm);
THIRD_TAKES(bn_q4_0_experts_gemm);
THIRD_TAKES(bn_iq4_nl_experts_gemm);
THIRD_TAKES(bn_mxfp4_experts_gemm);
THIRD_TAKES(bn_iq4_xs_experts_gemm);
THIRD_TAKES(bn_q4_k_experts_gemm);
THIRD_TAKES(bn_q6_k_experts_gemm);
THIRD_TAKES(bn_ternary_experts_gemm);
THIRD_TAKES(bn_int8_experts_gemm);
THIRD_TAKES(bn_f32_experts_gemm);
THIRD_TAKES(bn_f16_experts_8);
THIRD_TAKES(bn_bf16_experts_8);

#define EXPERT_KERNELS(name) std::array{bn_##name##_experts_1, bn_##name##_experts_4, bn_##name##_experts_gemm}

template <class Format, class Kernel>
void block_experts(BlockKernel one, const std::array<Kernel, 3> &kernels, size_t gemm, int cols) {
    Shapes of{{16, 16, 128}, 128, {4224, 4 * 4224, gemm}};
    same_as_alone(of, one, kernels, cols, [](Random &random, const Dims &dims) { return BlockExperts<Format>(random, dims); });
}

TEST(experts_in_blocks_have_the_bits_of_a_row_alone) {
    block_experts<Q8_0>(bn_q8_0_gemv_1, EXPERT_KERNELS(q8_0), 32896 + 8 * 6144, 96);
    block_experts<Q4_0>(bn_q4_0_gemv_1, EXPERT_KERNELS(q4_0), 32896 + 4 * 6144, 160);
    block_experts<IQ4_NL>(bn_iq4_nl_gemv_1, EXPERT_KERNELS(iq4_nl), 32896 + 4 * 6144, 96);
    block_experts<MXFP4>(bn_mxfp4_gemv_1, EXPERT_KERNELS(mxfp4), 32896 + 4 * 6144, 160);
    block_experts<IQ4_XS>(bn_iq4_xs_gemv_1, EXPERT_KERNELS(iq4_xs), 35328 + 4 * 6144, 512);
    block_experts<Q4_K>(bn_q4_k_gemv_1, EXPERT_KERNELS(q4_k), 35328 + 4 * 6144, 512);
    block_experts<Q6_K>(bn_q6_k_gemv_1, EXPERT_KERNELS(q6_k), 35328 + 6 * 6144, 256);
}

TEST(experts_with_a_scale_a_row_have_the_bits_of_a_row_alone) {
    Shapes of{{8, 64, 128}, 128, {0, 0, (64 + 128 / 4) * 128 * 6}}, bytes = of;
    bytes.shared[2] = (64 + 128) * 128 * 3;
    same_as_alone(of, bn_ternary_gemv_1, EXPERT_KERNELS(ternary), 256,
        [](Random &random, const Dims &dims) { return WholeExperts<2>(random, dims); });
    same_as_alone(bytes, bn_int8_gemv_1, EXPERT_KERNELS(int8), 128,
        [](Random &random, const Dims &dims) { return WholeExperts<8>(random, dims); });
}

TEST(dense_experts_have_the_bits_of_a_row_alone) {
    auto of = [](const Type &type) {
        return [&type](Random &random, const Dims &dims) { return DenseExperts(random, dims, type); };
    };
    same_as_alone({{32, 64, 32}, 128, {0, 0, 32768}}, bn_f32_gemv_1, EXPERT_KERNELS(f32), 80, of(F32_TYPE));
    Shapes halves{{16, 16, 32}, 256, {6144, 6144, 10240}, 8, false};
    auto f16 = std::array{bn_f16_experts_4, bn_f16_experts_4, bn_f16_experts_8};
    auto bf16 = std::array{bn_bf16_experts_4, bn_bf16_experts_4, bn_bf16_experts_8};
    same_as_alone(halves, bn_f16_gemv_4, f16, 264, of(F16_TYPE));
    same_as_alone(halves, bn_bf16_gemv_4, bf16, 72, of(BF16_TYPE));
}

TEST(pairs_are_added_by_their_weights) {
    Random random(65);
    for (auto [rows, used, cols] : {std::array{1, 8, 300}, {5, 2, 256}, {3, 1, 7}}) {
        size_t pairs = static_cast<size_t>(rows * used), all = static_cast<size_t>(rows * cols);
        Grouped g = group(pairs_of(random, rows, used, 9), used, 9, 4);
        std::vector<float> y = random.normals(pairs * static_cast<size_t>(cols)), weights = random.normals(pairs);
        std::vector<float> shared = random.normals(all), gate = random.normals(static_cast<size_t>(rows));
        for (int kind = 0; kind < 3; kind++) {
            std::vector<float> out(all), want(all);
            launch(bn_mix, dim3(static_cast<unsigned>(rows), divided(cols, 256)), 256, 0, y.data(), g.places.data(),
                weights.data(), kind > 0 ? shared.data() : nullptr, kind > 1 ? gate.data() : nullptr, out.data(), used, cols);
            for (int i = 0; i < rows * cols; i++) {
                float &sum = want[static_cast<size_t>(i)], own = shared[static_cast<size_t>(i)];
                int row = i / cols;
                for (int pair = row * used; pair < (row + 1) * used; pair++) {
                    size_t n = static_cast<size_t>(pair), at = static_cast<size_t>(g.places[n] * cols + i % cols);
                    sum = std::fma(y[at], weights[n], sum);
                }
                float factor = 1.0f / (1.0f + bn_exp(-gate[static_cast<size_t>(row)]));
                if (kind > 0) sum = kind > 1 ? std::fma(own, factor, sum) : sum + own;
            }
            CHECK(same_bits(out, want));
        }
    }
}

} // namespace
