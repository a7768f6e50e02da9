// Attention for KV in F16 compared with f64, and with itself: the bits are the same however rows are batched.

#include "attention.h"

namespace {

// A query's output in f64, and the permitted deviations from it.
struct Exact {
    std::vector<double> out, bounds;
};

// The bounds are those of the kernels' arithmetic on tensor cores that truncate sums (by 2^-23 of what they add up). A
// score has the error of q's two parts and one per mma; a weight has twice that and the exponential's error; then there
// are 8 mma for each 64 positions, and the rounding errors of merging pieces.
Exact exact_of(const Batch &batch, size_t row, int head) {
    const Shape &s = batch.shape;
    int position = static_cast<int>(batch.positions[row]);
    int first = s.window > 0 ? std::max(position + 1 - s.window, 0) : 0;
    const float *q = batch.qkv.data() + row * static_cast<size_t>(s.width()) + head * s.dim;
    auto value = [&](bool keys, int j, int d) {
        const Bytes &data = keys ? batch.keys : batch.values;
        const unsigned char *tile = data.data() + batch.offset(batch.tables_at[row], head / s.group(), j);
        return static_cast<double>(value_reference(KV_F16, keys, tile, j % 16, d, s.dim));
    };
    std::vector<double> scores;
    double most = 0, high = -INFINITY, largest = 0, sum = 0;
    for (int d = 0; d < s.dim; d++) {
        largest = std::max(largest, std::fabs(static_cast<double>(q[d])));
    }
    for (int j = first; j <= position; j++) {
        double dot = 0, sizes = 0;
        for (int d = 0; d < s.dim; d++) {
            double product = static_cast<double>(q[d]) * value(true, j, d);
            dot += product, sizes += std::fabs(product) + 0x1p-17 * std::fabs(largest * value(true, j, d));
        }
        scores.push_back(dot);
        high = std::max(high, dot), most = std::max(most, sizes);
    }
    double score = (0x1p-22 + s.dim / 16 * 2 * 0x1p-23) * most;
    double relative = 4 * score + 0x1p-19 + (position - first + 64) / 8 * 0x1p-23;
    Exact exact{std::vector<double>(static_cast<size_t>(s.dim)), std::vector<double>(static_cast<size_t>(s.dim))};
    for (int j = first; j <= position; j++) {
        double weight = std::exp(scores[static_cast<size_t>(j - first)] - high);
        sum += weight;
        for (int d = 0; d < s.dim; d++) {
            exact.out[static_cast<size_t>(d)] += weight * value(false, j, d);
            exact.bounds[static_cast<size_t>(d)] += relative * weight * std::fabs(value(false, j, d));
        }
    }
    for (size_t d = 0; d < exact.out.size(); d++) {
        exact.out[d] /= sum, exact.bounds[d] /= sum;
    }
    return exact;
}

// Checks all outputs against f64. Returns the norm of the errors divided by that of the outputs.
double check_all(const Batch &batch, const Floats &out) {
    double errors = 0, sizes = 0;
    size_t at = 0;
    for (size_t row = 0; row < batch.positions.size(); row++) {
        for (int head = 0; head < batch.shape.heads; head++) {
            Exact exact = exact_of(batch, row, head);
            for (size_t d = 0; d < exact.out.size(); d++, at++) {
                double got = static_cast<double>(out[at]);
                CHECK_NEAR(got, exact.out[d], exact.bounds[d]);
                errors += (got - exact.out[d]) * (got - exact.out[d]), sizes += exact.out[d] * exact.out[d];
            }
        }
    }
    return std::sqrt(errors / sizes);
}

// Rows `from..to` of a batch of one sequence, as if the later ones did not exist yet: their positions are filled with
// `rest`, two bytes repeated.
Batch cut(const Batch &all, int from, int to, uint16_t rest) {
    Batch part = all;
    auto begin = static_cast<std::ptrdiff_t>(from), end = static_cast<std::ptrdiff_t>(to);
    part.sequences = {{all.sequences[0].start + from, to - from}};
    part.qkv = Floats(all.qkv.begin() + begin * all.shape.width(), all.qkv.begin() + end * all.shape.width());
    part.positions = {all.positions.begin() + begin, all.positions.begin() + end};
    part.tables_at.resize(static_cast<size_t>(to - from));
    const Shape &s = all.shape;
    int last = static_cast<int>(all.tables.size()) * s.block_size;
    for (int position = all.sequences[0].start + to; position < last; position++) {
        for (int head = 0; head < s.kv_heads; head++) {
            size_t tile = part.offset(0, head, position);
            for (int d = 0; d < s.dim; d++) {
                int key = d * 16 + position % 16, value = position % 16 * s.dim + d;
                std::memcpy(part.keys.data() + tile + 2 * key, &rest, 2);
                std::memcpy(part.values.data() + tile + 2 * value, &rest, 2);
            }
        }
    }
    return part;
}

Floats rows_between(const Batch &batch, const Floats &out, int from, int to) {
    std::ptrdiff_t width = batch.shape.heads * batch.shape.dim;
    return Floats(out.begin() + from * width, out.begin() + to * width);
}

// While one exists, tensor cores truncate sums, which reveals differences in order.
struct Cutting {
    explicit Cutting(bool cuts = true) {
        emulation::cuts_sums = cuts;
    }
    ~Cutting() {
        emulation::cuts_sums = false;
    }
};

// Possible contents of unwritten memory: NaN, infinity, the largest number, 0.
constexpr uint16_t RESTS[] = {0xffff, 0x7c00, 0xfbff, 0};

} // namespace

TEST(attention_f16_is_near_that_in_f64) {
    Random random(3);
    for (int dim : {2, 6, 24, 64, 72, 80, 128, 160, 256}) {
        bool cuts = dim % 10 != 0;
        Cutting cutting(cuts);
        int kv_heads = 1 + random.below(2), window = random.below(2) == 0 ? 0 : 1 + random.below(400);
        Shape shape{KV_F16, kv_heads * (1 + random.below(5)), kv_heads, dim, 16 * (1 + random.below(4)), window};
        std::vector<Sequence> sequences = {{0, 1 + random.below(20)}, {random.below(300), 1 + random.below(3)},
            {252, 7}, {62, 4}, {random.below(600), 1}};
        Batch batch = written_batch_of(shape, sequences, {1, 2, 3, 4, 5});
        Floats out = prefill(batch, 8);
        CHECK(check_all(batch, out) < (cuts ? 3e-6 : 5e-7));
        CHECK(same_bits(decode(batch, 4, 16), out));
        CHECK(same_bits(decode(batch, 4, 1 + random.below(16)), out));
        CHECK(same_bits(prefill(batch, 1 + random.below(7)), out));
    }
}

TEST(attention_f16_of_all_groups) {
    Cutting cutting;
    for (int group = 1; group <= 16; group++) {
        Shape shape{KV_F16, 2 * group, 2, 64, 32, group % 3 == 0 ? 70 : 0};
        Batch batch = written_batch_of(shape, {{60, 5}, {0, 1}, {127, 2}}, {1, 2, 3});
        Floats out = prefill(batch, 2);
        CHECK(check_all(batch, out) < 3e-6);
        CHECK(same_bits(decode(batch, 4, 16), out));
        for (size_t n = 0; n < 3; n++) {
            Batch one = written_batch_of(shape, {batch.sequences[n]}, {1 + static_cast<int>(n)});
            CHECK(same_bits(decode(one, 4, group), rows_of(batch, out, n)));
        }
    }
}

TEST(attention_f16_of_a_row_alone_is_that_in_a_batch) {
    Cutting cutting;
    for (int window : {0, 100}) {
        Shape shape{KV_F16, 3, 1, 96, 32, window};
        Batch all = written_batch_of(shape, {{251, 9}, {3, 1}, {100, 17}}, {7, 8, 9});
        Floats out = prefill(all, 8);
        CHECK(same_bits(decode(all, 4, 16), out));
        for (size_t n = 0; n < 3; n++) {
            shape.block_size = 64;
            Batch one = written_batch_of(shape, {all.sequences[n]}, {7 + static_cast<int>(n)});
            Floats want = rows_of(all, out, n);
            CHECK(same_bits(decode(one, 4, 1), want));
            CHECK(same_bits(prefill(one, 1), want));
        }
    }
}

// Wherever the prompt is cut, and whatever follows it in memory.
TEST(attention_f16_of_a_prompt_in_parts) {
    Cutting cutting;
    Random random(4);
    for (int dim : {20, 64, 256}) {
        int rows = dim == 64 ? 150 : 70, window = dim == 20 ? 33 : 0;
        Batch all = written_batch_of({KV_F16, 3, 1, dim, 16, window}, {{dim == 256 ? 0 : 200, rows}}, {11});
        Floats out = prefill(all, 8);
        for (int from = 0; from < rows;) {
            int to = std::min(rows, from + 1 + random.below(random.below(2) == 0 ? 3 : 70));
            Batch part = cut(all, from, to, RESTS[random.below(4)]);
            CHECK(same_bits(prefill(part, 1 + random.below(8)), rows_between(all, out, from, to)));
            CHECK(same_bits(decode(part, 4, 16), rows_between(all, out, from, to)));
            from = to;
        }
    }
}

TEST(attention_f16_of_queries_large_and_small) {
    Cutting cutting;
    for (float q : {1e-38f, 1e-6f, 1e3f, 3e5f, 1e10f}) {
        Shape shape{KV_F16, 2, 1, 64, 16, 0};
        Batch batch = batch_of(shape, {{0, 30}}, {5});
        for (size_t i = 0; i < batch.qkv.size(); i++) {
            // Queries beyond the range of halves, with keys that compensate as far as possible; one element is much
            // larger.
            int column = static_cast<int>(i) % shape.width();
            if (column < 128) {
                batch.qkv[i] *= q * (column % 64 == 5 ? 300.0f : 1.0f);
            } else if (column < 192) {
                batch.qkv[i] *= std::min(1.0f, 0.05f / q);
            }
        }
        write_reference(batch, {0, false, false, 0.3f, {}, {}, {}});
        Floats out = prefill(batch, 2);
        if (q < 1e6f) {
            check_all(batch, out);
        } else {
            // A single position has all the weight.
            CHECK(std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }));
        }
        CHECK(same_bits(decode(batch, 4, 16), out));
    }
}

// Sums that underflow from below become 0 without a sign, whatever follows that nobody sees.
TEST(attention_f16_of_zeros) {
    Cutting cutting;
    Batch batch = written_batch_of({KV_F16, 1, 1, 16, 16, 0}, {{0, 192}}, {7});
    for (int j = 0; j < 192; j++) {
        // Scores of 0, 80 and 160, values of -2^-24, -0, -0 and -1.
        float k[16] = {static_cast<float>(j / 64) * 80.0f}, v[16];
        std::fill_n(v, 16, j < 64 ? -0x1p-24f : j < 140 ? -0.0f : -1.0f);
        store_reference(KV_F16, true, batch.keys.data() + batch.offset(0, 0, j), j % 16, k, 16);
        store_reference(KV_F16, false, batch.values.data() + batch.offset(0, 0, j), j % 16, v, 16);
        batch.qkv[static_cast<size_t>(48 * j)] = 1.0f;
    }
    Floats out = prefill(batch, 8);
    for (int row : {131, 138, 139}) {
        Batch one = cut(batch, row, row + 1, 0);
        CHECK(same_bits(prefill(one, 1), rows_between(batch, out, row, row + 1)));
        CHECK(same_bits(decode(one, 4, 1), rows_between(batch, out, row, row + 1)));
    }
}

// A NaN in K or V reaches the queries that see it, and no others.
TEST(attention_f16_of_nan) {
    Cutting cutting;
    for (bool keys : {true, false}) {
        for (int window : {0, 20}) {
            Shape shape{KV_F16, 2, 1, 64, 16, window};
            Batch clean = written_batch_of(shape, {{40, 90}}, {6}), odd = clean;
            uint16_t nan = 0x7e00;
            int at = 77, d = 9;
            Bytes &data = keys ? odd.keys : odd.values;
            std::memcpy(data.data() + odd.offset(0, 0, at) + 2 * (keys ? d * 16 + at % 16 : at % 16 * 64 + d), &nan, 2);
            Floats want = prefill(clean, 8), out = prefill(odd, 8);
            CHECK(same_bits(decode(odd, 4, 16), out));
            for (size_t i = 0; i < out.size(); i++) {
                int position = 40 + static_cast<int>(i) / 128, column = static_cast<int>(i) % 64;
                bool seen = position >= at && (window == 0 || position < at + window) && (keys || column == d);
                CHECK(seen ? out[i] != out[i] : same_bits(out[i], want[i]));
            }
            for (int row : {36, 37, 38, 89}) {
                Batch one = cut(odd, row, row + 1, 0);
                CHECK(same_bits(decode(one, 4, 2), rows_between(odd, out, row, row + 1)));
            }
        }
    }
}
