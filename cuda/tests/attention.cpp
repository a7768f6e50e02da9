// Rotation, the KV cache's tiles and attention for KV in F32 and int8, compared bit by bit.

#include "attention.h"

TEST(rope_and_kv_write) {
    Random random(1);
    for (int kind : {KV_F32, KV_F16, KV_INT8}) {
        for (int dim : {2, 12, 64, 80, 200, 256}) {
            Shape shape{kind, 4, 2, dim, 16 * (1 + random.below(3)), 0};
            Batch got = batch_of(shape, {{0, 1}, {5, 30}, {47, 3}}, {1, 2, 3}), want = got;
            int pairs = random.below(2) == 0 ? dim / 2 : random.below(dim / 2 + 1);
            Turn turn = turn_of(got, pairs, random.below(2) == 0, random.below(3) > 0, random);
            write(got, turn, 32 * (1 + random.below(5)));
            write_reference(want, turn);
            CHECK(got.keys == want.keys);
            CHECK(got.values == want.values);
            CHECK(same_bits(got.qkv, want.qkv));
        }
    }
}

TEST(kv_write_of_extremes) {
    for (int kind : {KV_F32, KV_F16, KV_INT8}) {
        for (float x : {0.0f, 1e-45f, 3e38f, 1e6f, -65519.9f, INFINITY, NAN}) {
            Shape shape{kind, 1, 1, 8, 16, 0};
            Batch got = batch_of(shape, {{3, 1}}, {1});
            for (size_t i = 8; i < got.qkv.size(); i++) {
                got.qkv[i] = i % 3 == 0 ? x : i % 3 == 1 ? -x : 0.0f;
            }
            Batch want = got;
            Random random(1);
            Turn turn = turn_of(got, 0, false, false, random);
            write(got, turn, 32);
            write_reference(want, turn);
            for (int d = 0; d < 8; d++) {
                for (bool keys : {true, false}) {
                    const Bytes &a = keys ? got.keys : got.values, &b = keys ? want.keys : want.values;
                    float x = value_reference(kind, keys, a.data(), 3, d, 8);
                    float y = value_reference(kind, keys, b.data(), 3, d, 8);
                    CHECK(same_bits(x, y));
                    CHECK(same_bits(scale_reference(kind, a.data(), 3, 8), scale_reference(kind, b.data(), 3, 8)));
                }
            }
        }
    }
}

TEST(attention_has_the_bits_of_the_reference) {
    Random random(2);
    for (int kind : {KV_F32, KV_INT8}) {
        for (int dim : {6, 64, 80, 128, 160, 256}) {
            int kv_heads = 1 + random.below(2), window = random.below(2) == 0 ? 0 : 1 + random.below(400);
            Shape shape{kind, kv_heads * (1 + random.below(5)), kv_heads, dim, 16 * (1 + random.below(4)), window};
            std::vector<Sequence> sequences = {{0, 1 + random.below(20)}, {random.below(600), 1 + random.below(5)},
                {250, 12}, {62, 4}, {random.below(300), 1}};
            Batch batch = written_batch_of(shape, sequences, {1, 2, 3, 4, 5});
            Floats want = attend_reference(batch);
            CHECK(std::none_of(want.begin(), want.end(), [](float x) { return x != x; }));
            int warps = 1 + random.below(4);
            CHECK(same_bits(decode(batch, 4, 16), want));
            CHECK(same_bits(decode(batch, warps, 1 + random.below(4 * warps)), want));
            CHECK(same_bits(prefill(batch, 8), want));
            CHECK(same_bits(prefill(batch, warps), want));
        }
    }
}

TEST(attention_of_a_row_alone_is_that_in_a_batch) {
    for (int kind : {KV_F32, KV_INT8}) {
        Shape shape{kind, 6, 2, 64, 32, 0};
        Batch all = written_batch_of(shape, {{510, 9}, {3, 1}, {100, 30}}, {7, 8, 9});
        Floats out = prefill(all, 8);
        CHECK(same_bits(decode(all, 4, 16), out));
        for (size_t n = 0; n < 3; n++) {
            Batch one = written_batch_of({kind, 6, 2, 64, 64, 0}, {all.sequences[n]}, {7 + static_cast<int>(n)});
            Floats want = rows_of(all, out, n);
            CHECK(same_bits(decode(one, 2, 1), want));
            CHECK(same_bits(prefill(one, 1), want));
        }
    }
}

TEST(attention_of_extremes) {
    Shape shape{KV_F32, 2, 1, 32, 16, 0};
    Batch batch = written_batch_of(shape, {{300, 2}, {70, 1}}, {1, 2});
    // Scores far apart, a NaN in K of one sequence, and an infinity in V of the other, which its first row does not
    // see.
    for (float &x : batch.qkv) {
        x *= 1e3f;
    }
    float nan = NAN, infinity = INFINITY;
    std::memcpy(batch.keys.data() + batch.offset(batch.tables_at[2], 0, 40), &nan, 4);
    std::memcpy(batch.values.data() + batch.offset(batch.tables_at[0], 0, 301) + 301 % 16 * 32 * 4, &infinity, 4);
    Floats want = attend_reference(batch);
    CHECK(std::isfinite(want[0]) && !std::isfinite(want[64]) && want[2 * 64] != want[2 * 64]);
    CHECK(same_bits(decode(batch, 4, 16), want));
    CHECK(same_bits(prefill(batch, 8), want));
}
