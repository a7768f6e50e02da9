// Tests of rows.cu: every result has the bits of src/kernels/rows, whose definitions are repeated here.

#include "check.h"

#include "../kernels/rows.cu"

using namespace rows;

namespace {

// Some of the widths are not a multiple of anything; the last ones are those of a model.
const int WIDTHS[] = {1, 3, 31, 32, 33, 100, 192, 257, 1022, 2560, 6912};
const unsigned BLOCKS[] = {32, 96, 320, 864, 1024};
constexpr int BLOCK_SIZES = 5;

float reference_exp(float x) {
    if (x < -87.0f) {
        return 0.0f;
    }
    if (x > 88.0f) {
        return INFINITY;
    }
    const float p[] = {1.9875692e-4f, 1.3981999e-3f, 8.333452e-3f, 4.1665796e-2f, 1.6666665e-1f, 0.5f};
    float n = std::nearbyint(x * 1.44269504088896340736f);
    float r = std::fma(n, 2.1219444e-4f, std::fma(n, -0.6933594f, x)), sum = p[0];
    for (int i = 1; i < 6; i++) {
        sum = std::fma(sum, r, p[i]);
    }
    return x != x ? x : std::ldexp(std::fma(sum, r * r, r) + 1.0f, static_cast<int>(n));
}

void reference_norm(float *x, const float *weight, float eps, int cols) {
    float lanes[32] = {};
    for (int i = 0; i < cols; i++) {
        lanes[i % 32] = std::fma(x[i], x[i], lanes[i % 32]);
    }
    for (int width = 16; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            lanes[i] += lanes[i + width];
        }
    }
    float scale = 1.0f / std::sqrt(lanes[0] / static_cast<float>(cols) + eps);
    for (int i = 0; i < cols; i++) {
        x[i] = x[i] * scale * weight[i];
    }
}

// `Activation`'s parameters in all tests, such that limits and factors matter.
const float FIRST = 1.7f, SECOND = 2.5f;

float reference_gate(float g, int activation) {
    if (activation == RELU2) {
        g = g < 0.0f ? 0.0f : g;
        return g * g;
    }
    float exponent = activation == GEGLU ? std::fma(g * g, 0.071354814f, 1.5957692f) * -g : -g;
    return g / (1.0f + reference_exp(exponent));
}

float reference_gated(float g, float u, int activation) {
    if (activation == CLAMPED || activation == STEEP) {
        g = g > SECOND ? SECOND : g;
        u = u > SECOND ? SECOND : u < -SECOND ? -SECOND : u;
    }
    if (activation == STEEP) return g / (1.0f + reference_exp(g * -FIRST)) * (u + 1.0f);
    if (activation == SCALED) return reference_gate(g * FIRST, activation) * (u * SECOND);
    return reference_gate(g, activation) * u;
}

int8_t reference_int8(float x, float scale) {
    float rounded = std::nearbyint(x * scale);
    return rounded != rounded ? 0 : static_cast<int8_t>(std::min(std::max(rounded, -127.0f), 127.0f));
}

float reference_absmax(const float *x, int cols) {
    float most = 0.0f;
    for (int i = 0; i < cols; i++) {
        most = std::fabs(x[i]) > most ? std::fabs(x[i]) : most;
    }
    return most;
}

// Rows of int8 activations.
struct Quantized {
    std::vector<int8_t> values;
    std::vector<float> scales;
    std::vector<int> sums;

    Quantized(int rows, int stride) : values(size_t(rows) * stride, 99), scales(rows, NAN), sums(rows, -1) {}

    bool operator==(const Quantized &other) const {
        return values == other.values && same_bits(scales, other.scales) && sums == other.sums;
    }
};

// The largest power of two that divides the columns.
int block_of(int cols) {
    return cols & -cols;
}

float factor_of(int block) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
}

void reference_signs(float *x, int cols, int block) {
    for (int i = 0; i < cols; i++) {
        int bits = i % block, ones = 0;
        for (int bit = 0; bit < 30; bit++) ones += (bits >> bit & 3) == 3;
        if (ones % 2 == 1) x[i] = -x[i];
    }
}

void reference_transform(float *x, int cols, int block) {
    for (int half = block / 2; half > 0; half /= 2) {
        for (int i = 0; i < cols; i++) {
            if (i / half % 2 == 0) {
                float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
        }
    }
    for (int i = 0; i < cols; i++) x[i] *= factor_of(block);
}

// The rotation of folded weights, by the definition of src/ops/fold.rs.
struct Folded {
    int block = 0, key_heads = 0, value_heads = 0;
    std::vector<float> signs;

    // One that rows of `cols` columns may have.
    static Folded any(Random &random, int cols) {
        Folded fold;
        fold.block = block_of(cols) >> random.below(3);
        fold.block = std::max(fold.block, 1);
        if (random.below(3) > 0) {
            for (int i = 0; i < cols; i++) fold.signs.push_back(random.below(2) == 0 ? 1.0f : -1.0f);
        }
        int heads = cols % 3 == 0 ? 6 : 4;
        if (random.below(2) == 0 && cols % heads == 0) fold.key_heads = 2, fold.value_heads = heads;
        return fold;
    }

    const float *given() const {
        return signs.empty() ? nullptr : signs.data();
    }

    void apply(float *x, int cols) const {
        std::vector<float> from(x, x + cols);
        for (int i = 0; i < cols && value_heads > 0; i++) {
            int width = cols / value_heads, each = value_heads / key_heads, group = i / width / each;
            x[i] = from[static_cast<size_t>((i / width % each * key_heads + group) * width + i % width)];
        }
        for (int i = 0; i < cols && !signs.empty(); i++) x[i] *= signs[static_cast<size_t>(i)];
        reference_transform(x, cols, block);
    }
};

// Rotates in blocks of `rotation` columns, unless that is 1.
Quantized reference_quantize(const std::vector<float> &x, int rows, int cols, int stride, int rotation = 1) {
    Quantized q(rows, stride);
    for (int r = 0; r < rows; r++) {
        std::vector<float> own(x.begin() + long(r) * cols, x.begin() + long(r + 1) * cols);
        float *row = own.data();
        if (rotation > 1) {
            reference_signs(row, cols, rotation);
            reference_transform(row, cols, rotation);
        }
        q.scales[r] = 127.0f / std::max(reference_absmax(row, cols), 1e-5f);
        q.sums[r] = 0;
        for (int i = 0; i < stride; i++) {
            q.values[size_t(r) * stride + i] = i < cols ? reference_int8(row[i], q.scales[r]) : int8_t(0);
            q.sums[r] += q.values[size_t(r) * stride + i];
        }
    }
    return q;
}

// Numbers of all kinds: most are ordinary; some rows have zeros, very large or small numbers, NaN, infinities.
std::vector<float> odd_rows(Random &random, int rows, int cols) {
    const float odd[] = {0.0f, -0.0f, 3e38f, -3e38f, 1e-45f, NAN, INFINITY, -INFINITY, 1e-20f, 0.5f};
    std::vector<float> x = random.normals(size_t(rows) * cols, 3.0f);
    for (int r = 0; r < rows; r++) {
        int kind = random.below(6);
        for (int i = 0; i < cols; i++) {
            float &v = x[size_t(r) * cols + i];
            if (kind == 0) {
                v = 0.0f;
            } else if (kind == 1 && random.below(20) == 0) {
                v = odd[random.below(10)];
            } else if (kind == 2) {
                v *= 1e-12f;
            } else if (kind == 3) {
                v *= 1e17f;
            }
        }
    }
    return x;
}

// The inputs of fused kernels, some of which may be absent, and the results of kernels and references.
struct Case {
    int rows, cols, stride, activation;
    unsigned block;
    std::vector<float> x, y, y_weight, weight, gate_up;

    Case(Random &random, int cols)
        : rows(1 + random.below(4)), cols(cols), stride((cols + 127) / 128 * 128), activation(random.below(6)),
          block(BLOCKS[random.below(BLOCK_SIZES)]), x(odd_rows(random, rows, cols)), y(odd_rows(random, rows, cols)),
          y_weight(random.normals(cols)), weight(random.normals(cols)), gate_up(odd_rows(random, rows, 2 * cols)) {
        if (random.below(2) == 0) {
            stride = (cols + 3) / 4 * 4;
        }
        if (random.below(3) == 0) {
            weight.clear();
        }
        if (random.below(2) == 0) {
            y_weight.clear();
        }
        if (random.below(4) == 0) {
            y.clear();
        }
    }

    static const float *given(const std::vector<float> &v) {
        return v.empty() ? nullptr : v.data();
    }

    // Row `r` of this case alone.
    Case row(int r) const {
        Case one = *this;
        auto cut = [&](std::vector<float> &v, int width) {
            if (!v.empty()) {
                v = {v.begin() + long(r) * width, v.begin() + long(r + 1) * width};
            }
        };
        one.rows = 1;
        cut(one.x, cols);
        cut(one.y, cols);
        cut(one.gate_up, 2 * cols);
        return one;
    }

    void reference_normed(std::vector<float> &out) const {
        for (int r = 0; r < rows && !weight.empty(); r++) {
            reference_norm(out.data() + size_t(r) * cols, weight.data(), 1e-5f, cols);
        }
    }

    std::vector<float> reference_sum() const {
        std::vector<float> sum = x, addend = y;
        for (int r = 0; r < rows && !y.empty() && !y_weight.empty(); r++) {
            reference_norm(addend.data() + size_t(r) * cols, y_weight.data(), 1e-6f, cols);
        }
        for (size_t i = 0; i < addend.size(); i++) {
            sum[i] += addend[i];
        }
        return sum;
    }

    std::vector<float> reference_gated() const {
        std::vector<float> out(size_t(rows) * cols);
        for (int r = 0; r < rows; r++) {
            for (int i = 0; i < cols; i++) {
                const float *gate = gate_up.data() + size_t(r) * 2 * cols + i;
                out[size_t(r) * cols + i] = ::reference_gated(gate[0], gate[cols], activation);
            }
        }
        return out;
    }

    unsigned row_shared() const {
        return row_bytes((cols + 3) / 4 * 4);
    }

    // Replaces x by the sum.
    std::vector<float> add_norm(const Folded &fold = {}) {
        std::vector<float> out(x.size(), NAN);
        launch(bn_add_norm, rows, block, row_shared(), x.data(), given(y), given(y_weight), 1e-6f, given(weight), 1e-5f,
            out.data(), cols, fold.given(), fold.block, factor_of(fold.block), fold.key_heads, fold.value_heads);
        return out;
    }

    Quantized add_norm_quantize(int rotation = 1) {
        Quantized q(rows, stride);
        launch(bn_add_norm_quantize, rows, block, row_bytes(stride), x.data(), given(y), given(y_weight), 1e-6f,
            given(weight), 1e-5f, q.values.data(), q.scales.data(), q.sums.data(), cols, stride, rotation,
            factor_of(rotation));
        return q;
    }

    // Runs `blocks` blocks per row.
    std::vector<float> gated_norm(unsigned blocks = 1, const Folded &fold = {}) const {
        std::vector<float> out(x.size(), NAN);
        unsigned shared = weight.empty() && fold.block == 0 ? 0 : row_shared();
        dim3 grid(static_cast<unsigned>(rows), blocks);
        launch(bn_gated_norm, grid, block, shared, gate_up.data(), activation, FIRST, SECOND, given(weight), 1e-5f,
            out.data(), cols, fold.given(), fold.block, factor_of(fold.block), fold.key_heads, fold.value_heads);
        return out;
    }

    Quantized gated_norm_quantize(int rotation = 1) const {
        Quantized q(rows, stride);
        launch(bn_gated_norm_quantize, rows, block, row_bytes(stride), gate_up.data(), activation, FIRST, SECOND,
            given(weight), 1e-5f, q.values.data(), q.scales.data(), q.sums.data(), cols, stride, rotation, factor_of(rotation));
        return q;
    }
};

// Hashes the bits of floats.
uint64_t hash(const std::vector<float> &x) {
    uint64_t h = 0xcbf29ce484222325;
    for (float v : x) {
        h = (h ^ __float_as_uint(v)) * 0x100000001b3;
    }
    return h;
}

} // namespace

TEST(rows_add_norm) {
    Random random(11);
    for (int cols : WIDTHS) {
        for (int round = 0; round < 8; round++) {
            Case c(random, cols), whole = c;
            std::vector<float> sum = c.reference_sum(), want = sum;
            c.reference_normed(want);
            std::vector<float> got = whole.add_norm();
            CHECK(same_bits(whole.x, sum));
            CHECK(same_bits(got, want));
            Case quantized = c;
            Quantized q = quantized.add_norm_quantize();
            CHECK(same_bits(quantized.x, sum));
            CHECK(q == reference_quantize(want, c.rows, cols, c.stride));
            Case rotated = c;
            int rotation = block_of(cols);
            CHECK(rotated.add_norm_quantize(rotation) == reference_quantize(want, c.rows, cols, c.stride, rotation));
            // A row alone, with another block size.
            int r = random.below(c.rows);
            Case one = c.row(r);
            one.block = BLOCKS[random.below(BLOCK_SIZES)];
            Case other = one;
            std::vector<float> alone = one.add_norm(), part(got.begin() + long(r) * cols, got.begin() + long(r + 1) * cols);
            CHECK(same_bits(alone, part));
            CHECK(other.add_norm_quantize() == reference_quantize(part, 1, cols, c.stride));
        }
    }
}

TEST(rows_gated_norm) {
    Random random(12);
    for (int cols : WIDTHS) {
        for (int round = 0; round < 8; round++) {
            Case c(random, cols);
            std::vector<float> want = c.reference_gated();
            c.reference_normed(want);
            std::vector<float> got = c.gated_norm();
            CHECK(same_bits(got, want));
            if (c.weight.empty()) {
                for (unsigned blocks : {2u, 5u, 64u}) CHECK(same_bits(c.gated_norm(blocks), want));
            }
            CHECK(c.gated_norm_quantize() == reference_quantize(want, c.rows, cols, c.stride));
            int rotation = block_of(cols);
            CHECK(c.gated_norm_quantize(rotation) == reference_quantize(want, c.rows, cols, c.stride, rotation));
            int r = random.below(c.rows);
            Case one = c.row(r);
            one.block = BLOCKS[random.below(BLOCK_SIZES)];
            CHECK(same_bits(one.gated_norm(), {got.begin() + long(r) * cols, got.begin() + long(r + 1) * cols}));
        }
    }
}

TEST(rows_single_steps) {
    Random random(13);
    for (int cols : WIDTHS) {
        Case c(random, cols);
        c.weight = random.normals(cols);
        c.y = odd_rows(random, c.rows, cols);
        c.y_weight = random.normals(cols);
        std::vector<float> normed = c.x, sum = c.x;
        c.reference_normed(normed);
        // In place.
        std::vector<float> got = c.x;
        launch(bn_norm_columns, c.rows, c.block, c.row_shared(), got.data(), c.weight.data(), 1e-5f, cols, cols);
        CHECK(same_bits(got, normed));
        // The same rows between other columns.
        int stride = cols + 5;
        std::vector<float> wide(static_cast<size_t>(c.rows) * static_cast<size_t>(stride), 7.0f), between = wide;
        auto place = [&](std::vector<float> &to, const std::vector<float> &from) {
            for (size_t row = 0; row < static_cast<size_t>(c.rows); row++) {
                std::copy_n(from.begin() + static_cast<long>(row) * cols, cols, to.begin() + static_cast<long>(row) * stride + 3);
            }
        };
        place(wide, c.x);
        place(between, normed);
        launch(bn_norm_columns, c.rows, c.block, c.row_shared(), wide.data() + 3, c.weight.data(), 1e-5f, cols, stride);
        CHECK(same_bits(wide, between));
        got = c.x;
        launch(bn_add_rms_norm, c.rows, c.block, c.row_shared(), got.data(), c.y.data(), c.y_weight.data(), 1e-6f, cols);
        CHECK(same_bits(got, c.reference_sum()));
        got = c.x;
        size_t n = got.size();
        launch(bn_add, static_cast<unsigned>((n + c.block - 1) / c.block), c.block, 0, got.data(), c.y.data(), n);
        c.y_weight.clear();
        CHECK(same_bits(got, c.reference_sum()));
    }
}

TEST(rows_quantize_extremes) {
    // Ties go to even, the largest value to 127.
    std::vector<float> x = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 127.0f, -127.0f};
    auto quantize = [](std::vector<float> x) {
        int cols = static_cast<int>(x.size()), stride = (cols + 3) / 4 * 4;
        Quantized q(1, stride);
        const float *none = nullptr;
        launch(bn_add_norm_quantize, 1, 64, row_bytes(stride), x.data(), none, none, 0.0f, none, 0.0f, q.values.data(),
            q.scales.data(), q.sums.data(), cols, stride, 1, 1.0f);
        return q;
    };
    Quantized q = quantize(x);
    CHECK(q.scales[0] == 1.0f && q.sums[0] == 0);
    CHECK((q.values == std::vector<int8_t>{0, 2, 2, 0, -2, -2, 127, -127}));
    q = quantize(std::vector<float>(40, 0.0f));
    CHECK(q.scales[0] == 127.0f / 1e-5f && q.sums[0] == 0 && q.values == std::vector<int8_t>(40, 0));
    std::vector<float> ones(61, 1.0f);
    ones[3] = ones[40] = NAN;
    q = quantize(ones);
    CHECK(q.scales[0] == 127.0f && q.values[3] == 0 && q.values[40] == 0 && q.values[4] == 127);
    CHECK(q.sums[0] == 59 * 127 && q.values[61] == 0 && q.values[63] == 0);
    ones[5] = INFINITY;
    q = quantize(ones);
    CHECK(q.scales[0] == 0.0f && q.sums[0] == 0);
    // A NaN does not hide earlier values of its thread.
    std::vector<float> hidden(256, 1.0f);
    hidden[5] = 1000.0f, hidden[5 + 64] = NAN;
    CHECK(quantize(hidden).scales[0] == 0.127f);
}

TEST(rows_unrotate) {
    Random random(16);
    for (int cols : {2, 12, 24, 32, 80, 192, 512, 576, 2048, 2560}) {
        int rows = 1 + random.below(3), block = block_of(cols);
        std::vector<float> x = random.normals(size_t(rows) * cols), want = x;
        for (int r = 0; r < rows; r++) {
            reference_transform(want.data() + size_t(r) * cols, cols, block);
            reference_signs(want.data() + size_t(r) * cols, cols, block);
        }
        for (float &v : want) v *= 0.7f;
        unsigned threads = BLOCKS[random.below(BLOCK_SIZES)], shared = row_bytes((cols + 3) / 4 * 4);
        launch(bn_unrotate_rows, rows, threads, shared, x.data(), block, factor_of(block), 0.7f, cols);
        CHECK(same_bits(x, want));
    }
}

TEST(rows_fold_and_unfold) {
    Random random(17);
    for (int cols : {1, 2, 6, 12, 24, 32, 33, 80, 192, 512, 576, 1536, 2560}) {
        for (int round = 0; round < 6; round++) {
            Case c(random, cols);
            Folded fold = Folded::any(random, cols);
            std::vector<float> want = c.reference_sum(), gated = c.reference_gated();
            c.reference_normed(want);
            c.reference_normed(gated);
            for (int r = 0; r < c.rows; r++) {
                fold.apply(want.data() + size_t(r) * cols, cols);
                fold.apply(gated.data() + size_t(r) * cols, cols);
            }
            CHECK(same_bits(c.gated_norm(1, fold), gated));
            CHECK(same_bits(c.add_norm(fold), want));
            std::vector<float> x = random.normals(size_t(c.rows) * cols), back = x;
            for (int r = 0; r < c.rows; r++) {
                float *row = back.data() + size_t(r) * cols;
                reference_transform(row, cols, fold.block);
                for (int i = 0; i < cols && !fold.signs.empty(); i++) row[i] *= fold.signs[size_t(i)];
            }
            launch(bn_unfold_rows, c.rows, c.block, c.row_shared(), x.data(), fold.given(), fold.block,
                factor_of(fold.block), cols);
            CHECK(same_bits(x, back));
        }
    }
}

TEST(rows_quantize_blocks) {
    Random random(14);
    for (int width : {32, 256}) {
        auto kernel = width == 32 ? bn_quantize_blocks32 : bn_quantize_blocks256;
        int columns = width == 32 ? 32 : 16; // per sum
        for (int blocks : {1, 2, 7, 64, 131}) {
            std::vector<float> x = odd_rows(random, blocks, width);
            x[0] = 1e-45f; // 127 / absmax is infinite if the block has nothing larger
            std::vector<int8_t> values(x.size(), 99);
            std::vector<float> scales(blocks, NAN);
            std::vector<int16_t> sums(x.size() / columns, -1);
            unsigned block = BLOCKS[random.below(BLOCK_SIZES)], warps = block / 32;
            unsigned grid = (static_cast<unsigned>(blocks) + warps - 1) / warps;
            launch(kernel, grid, block, 0, x.data(), values.data(), scales.data(), sums.data(), size_t(blocks));
            for (int i = 0; i < blocks * width; i++) {
                float most = reference_absmax(&x[i / width * width], width);
                CHECK(values[i] == reference_int8(x[i], most == 0.0f ? 0.0f : 127.0f / most));
                CHECK(same_bits(scales[i / width], most / 127.0f));
                sums[i / columns] = static_cast<int16_t>(sums[i / columns] - values[i]);
            }
            for (int16_t left : sums) CHECK(left == 0);
        }
        // The smallest numbers that exist.
        std::vector<float> x(width, 0.0f), scale(1);
        x[0] = 1e-45f, x[1] = -1e-45f;
        std::vector<int8_t> values(width);
        std::vector<int16_t> sums(width / columns, 1);
        launch(kernel, 1, 32, 0, x.data(), values.data(), scale.data(), sums.data(), size_t(1));
        CHECK(values[0] == 127 && values[1] == -127 && values[2] == 0 && scale[0] == 0.0f && sums[0] == 0);
    }
}

TEST(rows_embed_and_gather) {
    Random random(15);
    for (int cols : {1, 33, 640}) {
        int vocab = 50, rows = 1 + random.below(6);
        std::vector<float> table = random.normals(size_t(vocab) * cols), out(size_t(rows) * cols);
        std::vector<uint16_t> halves, bf16s;
        for (float v : table) {
            halves.push_back(float_to_half(v));
            bf16s.push_back(static_cast<uint16_t>(__float_as_uint(v) >> 16));
        }
        std::vector<uint32_t> ids;
        for (int r = 0; r < rows; r++) {
            ids.push_back(static_cast<uint32_t>(r == 0 ? vocab - 1 : random.below(vocab)));
        }
        const void *tables[] = {table.data(), halves.data(), bf16s.data()};
        for (int type : {TABLE_F32, TABLE_F16, TABLE_BF16}) {
            dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(1 + type));
            launch(bn_embed, grid, 64, 0, tables[type], type, ids.data(), 1.7f, out.data(), cols);
            for (size_t i = 0; i < out.size(); i++) {
                size_t at = size_t(ids[i / cols]) * cols + i % cols;
                const float want[] = {table[at], half_to_float(halves[at]), bf16_to_float(bf16s[at])};
                CHECK(same_bits(out[i], want[type] * 1.7f));
            }
        }
        launch(bn_gather_rows, dim3(static_cast<unsigned>(rows), 3), 64, 0, table.data(), ids.data(), out.data(), cols);
        for (size_t i = 0; i < out.size(); i++) {
            CHECK(out[i] == table[size_t(ids[i / cols]) * cols + i % cols]);
        }
    }
}

// Hashes of the results of the scalar functions of src/kernels/rows, compiled from there.
TEST(rows_have_the_bits_of_the_rust_code) {
    std::vector<float> x, exponentials, gate_up;
    for (int i = 0; i < 180000; i++) {
        x.push_back(static_cast<float>(i - 90000) * 1.003e-3f);
        exponentials.push_back(bn_exp(x.back()));
    }
    CHECK(hash(exponentials) == 0x26a0bd6d6fb2534c);
    for (int i = 0; i < 180000; i += 1000) {
        gate_up.insert(gate_up.end(), x.begin() + i, x.begin() + i + 1000);
        for (int k = i; k < i + 1000; k++) {
            gate_up.push_back(static_cast<float>(k % 7) * 0.3f - 0.9f);
        }
    }
    const float *none = nullptr;
    const uint64_t gates[] = {0xbb553a7db5b7f4da, 0, 0x1f79e393c64c93d0};
    for (int activation : {SWIGLU, GEGLU}) {
        launch(bn_gated_norm, 180, 256, row_bytes(1000), gate_up.data(), activation, 0.0f, 0.0f, none, 0.0f, x.data(),
            1000, none, 0, 0.0f, 0, 0);
        CHECK(hash(x) == gates[activation]);
    }
    for (int cols : {33, 2560}) {
        std::vector<float> row, weight;
        for (int i = 0; i < cols; i++) {
            row.push_back(static_cast<float>((i * 37 + 11) % 101) * 0.31f - 15.0f);
            weight.push_back(0.5f + static_cast<float>(i % 13) * 0.1f);
        }
        launch(bn_norm_columns, 1, 256, row_bytes((cols + 3) / 4 * 4), row.data(), weight.data(), 1e-5f, cols, cols);
        CHECK(hash(row) == (cols == 33 ? 0x5a369dcfa9a51633 : 0xefaa8bc807ce6a72));
    }
    CHECK(bn_exp(0.0f) == 1.0f && bn_exp(-INFINITY) == 0.0f && bn_exp(INFINITY) == INFINITY && bn_exp(NAN) != bn_exp(NAN));
}
