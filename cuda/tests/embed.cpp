// Tables of every type against the reference tensors of tests/golden/quants, which another program has written and
// read: repacked and then read by the kernels, they have the same bits.

#include "check.h"

#include "../kernels/embed.cu"
#include "../kernels/repack.cuh"

#include <fstream>

namespace {

// Reads a tensor's file: its bytes, then its elements as f32, or as int8 to be multiplied by a scale.
std::vector<uint8_t> tensor(const char *name) {
    std::ifstream file(std::string("tests/golden/quants/") + name + ".bin", std::ios::binary);
    std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    CHECK(!bytes.empty()); // tests run in the repository's root
    return bytes;
}

const uint32_t IDS[] = {2, 0, 1};
constexpr int ROWS = 3;

template <class Format>
void same_blocks(const char *name,
    void (*embed)(const uint8_t *, const uint16_t *, const uint32_t *, float, float *, int, int), int cols) {
    std::vector<uint8_t> bytes = tensor(name);
    size_t blocks = static_cast<size_t>(ROWS * cols / Format::ELEMENTS), packed = blocks * File<Format>::BYTES;
    size_t numbers = static_cast<size_t>(ROWS * cols);
    CHECK(bytes.size() == packed + 4 * numbers);
    if (bytes.size() != packed + 4 * numbers) return;
    std::vector<uint8_t> codes(static_cast<size_t>(Planes<Format>(ROWS, cols).bytes));
    std::vector<uint16_t> scales((blocks * SCALE_BYTES<Format> + 1) / 2);
    repack<Format>(bytes.data(), ROWS, cols, codes.data(), scales.data());
    std::vector<float> want(numbers), out(numbers);
    std::memcpy(want.data(), &bytes[packed], 4 * numbers);
    for (float scale : {1.0f, 0.3f}) {
        launch(embed, 3, 64, 0, codes.data(), scales.data(), IDS, scale, out.data(), ROWS, cols);
        for (int i = 0; i < ROWS * cols; i++) {
            size_t at = IDS[i / cols] * static_cast<size_t>(cols) + static_cast<size_t>(i % cols);
            CHECK(same_bits(out[static_cast<size_t>(i)], want[at] * scale));
        }
    }
}

} // namespace

TEST(embed_blocks) {
    same_blocks<Q4_0>("q4_0", bn_q4_0_embed, 224);
    same_blocks<Q4_1>("q4_1", bn_q4_1_embed, 224);
    same_blocks<Q5_0>("q5_0", bn_q5_0_embed, 224);
    same_blocks<Q5_1>("q5_1", bn_q5_1_embed, 224);
    same_blocks<Q8_0>("q8_0", bn_q8_0_embed, 224);
    same_blocks<Q2_0>("q2_0", bn_q2_0_embed, 320);
    same_blocks<Q1_0>("q1_0", bn_q1_0_embed, 384);
    same_blocks<IQ4_NL>("iq4_nl", bn_iq4_nl_embed, 224);
    same_blocks<MXFP4>("mxfp4", bn_mxfp4_embed, 224);
}

TEST(embed_supers) {
    same_blocks<TQ2_0>("tq2_0", bn_tq2_0_embed, 512);
    same_blocks<Q2_K>("q2_k", bn_q2_k_embed, 512);
    same_blocks<Q3_K>("q3_k", bn_q3_k_embed, 512);
    same_blocks<Q4_K>("q4_k", bn_q4_k_embed, 512);
    same_blocks<Q5_K>("q5_k", bn_q5_k_embed, 512);
    same_blocks<Q6_K>("q6_k", bn_q6_k_embed, 512);
    same_blocks<IQ4_XS>("iq4_xs", bn_iq4_xs_embed, 512);
}

TEST(embed_ternary) {
    constexpr int COLS = 256, CODES = ROWS * COLS / 4;
    std::vector<uint8_t> bytes = tensor("i2_s");
    CHECK(bytes.size() == CODES + 32 + ROWS * COLS);
    if (bytes.size() != CODES + 32 + ROWS * COLS) return;
    float scale;
    std::memcpy(&scale, &bytes[CODES], 4);
    std::vector<float> scales{scale, 2 * scale, -scale};
    // A common scale, and rows that end within a block.
    for (int cols : {256, 250, 129}) {
        for (int step : {0, 1}) {
            std::vector<float> out(static_cast<size_t>(ROWS * cols));
            launch(bn_ternary_embed, 3, 32, 0, bytes.data(), scales.data(), step, IDS, 0.3f, out.data(), cols);
            for (int i = 0; i < ROWS * cols; i++) {
                int id = static_cast<int>(IDS[i / cols]);
                auto value = static_cast<int8_t>(bytes[static_cast<size_t>(CODES + 32 + id * COLS + i % cols)]);
                CHECK(same_bits(out[i], static_cast<float>(value) * scales[id * step] * 0.3f));
            }
        }
    }
}

TEST(embed_int8_panels) {
    Random random(40);
    constexpr int COUNT = 21, COLS = 150, WIDTH = 256, LINES = WIDTH / 4 + 1; // two panels
    std::vector<int8_t> values(COUNT * COLS);
    for (int8_t &v : values) v = static_cast<int8_t>(random.below(255) - 127);
    std::vector<float> own = random.normals(COUNT);
    std::vector<uint8_t> panels(2 * LINES * 64);
    for (int i = 0; i < COUNT * COLS; i++) { // as `int8::pack` writes them
        int row = i / COLS, col = i % COLS;
        panels[(row / 16 * LINES + col / 4) * 64 + row % 16 * 4 + col % 4] = static_cast<uint8_t>(values[i]);
    }
    for (int row = 0; row < COUNT; row++) {
        std::memcpy(&panels[(row / 16 * LINES + LINES - 1) * 64 + row % 16 * 4], &own[row], 4);
    }
    std::vector<uint8_t> weights(COUNT * WIDTH, 99);
    std::vector<float> scales(COUNT), out(3 * COLS);
    unpack_panels(panels.data(), COUNT, COLS, weights.data(), scales.data());
    for (int i = 0; i < COUNT * WIDTH; i++) {
        CHECK(static_cast<int8_t>(weights[i]) == (i % WIDTH < COLS ? values[i / WIDTH * COLS + i % WIDTH] : 0));
    }
    const uint32_t ids[] = {20, 0, 16};
    launch(bn_int8_embed, 3, 64, 0, weights.data(), scales.data(), 1, ids, 0.3f, out.data(), COLS);
    for (int i = 0; i < 3 * COLS; i++) {
        size_t id = ids[i / COLS];
        CHECK(same_bits(out[i], static_cast<float>(values[id * COLS + i % COLS]) * own[id] * 0.3f));
    }
}
