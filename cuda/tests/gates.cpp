// Tests of gates.cu against src/ops/rows.rs, whose definitions are repeated here.

#include "check.h"

#include "../kernels/rows.cu"

#include "../kernels/gates.cu"

using namespace rows;

namespace {

std::vector<float> with_extremes(Random &random, size_t n) {
    const float odd[] = {0.0f, -0.0f, 90.0f, -90.0f, 1e-45f, NAN, INFINITY, -INFINITY};
    std::vector<float> x = random.normals(n, 4.0f);
    for (float &v : x) {
        if (random.below(9) == 0) v = odd[random.below(8)];
    }
    return x;
}

dim3 blocks(Random &random, int rows) {
    return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(1 + random.below(3)));
}

} // namespace

TEST(gates_split) {
    Random random(21);
    const int shapes[][3] = {{1, 1, 2}, {3, 10, 20}, {6, 32, 128}, {2, 256, 512}};
    for (auto [heads, dim, kv] : shapes) {
        int rows = 1 + random.below(3), gates = heads * dim, width = 2 * gates + kv;
        std::vector<float> x = random.normals(size_t(rows) * width), qkv, gate;
        for (int r = 0; r < rows; r++) {
            auto at = x.begin() + long(r) * width;
            for (int head = 0; head < heads; head++, at += 2 * dim) {
                qkv.insert(qkv.end(), at, at + dim);
                gate.insert(gate.end(), at + dim, at + 2 * dim);
            }
            qkv.insert(qkv.end(), at, at + kv);
        }
        std::vector<float> got(qkv.size(), NAN), got_gate(gate.size(), NAN);
        launch(bn_split_gate, blocks(random, rows), 64, 0, x.data(), got.data(), got_gate.data(), heads, dim, kv);
        CHECK(same_bits(got, qkv) && same_bits(got_gate, gate));
    }
}

TEST(gates_logistic) {
    Random random(22);
    const int shapes[][2] = {{1, 1}, {96, 96}, {96, 3}, {1000, 1000}, {1536, 6}, {7, 1}};
    for (auto [cols, gates] : shapes) {
        int rows = 1 + random.below(3);
        std::vector<float> x = with_extremes(random, size_t(rows) * cols), want = x, got(x.size(), NAN);
        std::vector<float> gate = with_extremes(random, size_t(rows) * gates);
        for (size_t i = 0; i < x.size(); i++) {
            float below = 1.0f + bn_exp(-gate[i / (cols / gates)]), by = 1.0f / below;
            want[i] = gates == cols ? x[i] / below : x[i] * by;
        }
        launch(bn_gate, blocks(random, rows), 64, 0, x.data(), gate.data(), got.data(), cols, gates);
        CHECK(same_bits(got, want));
    }
    // sigma(0), and gates that are closed and open.
    std::vector<float> x = {3.0f, 3.0f, 3.0f}, gate = {0.0f, -100.0f, 100.0f}, out(3);
    launch(bn_gate, 1, 32, 0, x.data(), gate.data(), out.data(), 3, 3);
    CHECK((out == std::vector<float>{1.5f, 0.0f, 3.0f}));
}

TEST(gates_scale) {
    Random random(23);
    std::vector<float> x = with_extremes(random, 300), want = x;
    for (float &v : want) v *= 0.3f;
    launch(bn_scale, 3, 128, 0, x.data(), 0.3f, x.size());
    CHECK(same_bits(x, want));
}
