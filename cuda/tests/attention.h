// Batches for the kernels of attention, and plain reference versions of src/kernels/attention and src/ops/attention.rs.
#pragma once

#include "../kernels/attention.cu"
#include "check.h"

#include <algorithm>

namespace paged {

using attention::KV_F16;
using attention::KV_F32;
using attention::KV_INT8;
using Floats = std::vector<float>;
using Bytes = std::vector<unsigned char>;

constexpr int PIECE = 256;

// e^x as in src/kernels/rows/exp.rs.
inline float exp_reference(float x) {
    if (x < -87.0f || x > 88.0f) {
        return x < 0.0f ? 0.0f : INFINITY;
    }
    float n = std::nearbyint(x * 1.44269504088896340736f);
    float r = std::fma(n, 2.1219444e-4f, std::fma(n, -0.6933594f, x));
    float p = 1.9875692e-4f;
    for (float c : {1.3981999e-3f, 8.333452e-3f, 4.1665796e-2f, 1.6666665e-1f, 0.5f}) {
        p = std::fma(p, r, c);
    }
    float y = std::fma(p, r * r, r) + 1.0f;
    return y != y ? y : std::ldexp(y, static_cast<int>(n));
}

inline int element_bytes(int kind) {
    return kind == KV_F32 ? 4 : kind == KV_F16 ? 2 : 1;
}

inline size_t bytes_of_tile(int kind, int dim) {
    return 16 * static_cast<size_t>(dim) * element_bytes(kind) + (kind == KV_INT8 ? 32 : 0);
}

inline float bf16_value(uint16_t bits) {
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
}

// Rounds a positive number to the nearest BF16, ties to even.
inline uint16_t bf16_reference(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint16_t low = static_cast<uint16_t>(bits >> 16), high = static_cast<uint16_t>(low + 1);
    double below = static_cast<double>(x) - bf16_value(low), above = static_cast<double>(bf16_value(high)) - x;
    return below < above || (below == above && low % 2 == 0) ? low : high;
}

// The Walsh-Hadamard transform of heads stored in int8, by the recursive definition of its matrix.
inline void transform_reference(int kind, float *head, int dim) {
    for (int block = 256; kind == KV_INT8 && block > 0; block /= 2) {
        if ((dim & block) == 0) {
            continue;
        }
        for (int half = block / 2; half > 0; half /= 2) {
            for (int i = 0; i < block; i++) {
                if ((i & half) == 0) {
                    float low = head[i], high = head[i + half];
                    head[i] = low + high;
                    head[i + half] = low - high;
                }
            }
        }
        float by = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
        std::for_each(head, head + block, [&](float &x) { x *= by; });
        head += block;
    }
}

// Stores a row as position `at` of a tile.
inline void store_reference(int kind, bool keys, unsigned char *tile, int at, const float *row, int dim) {
    float most = 0.0f;
    bool finite = true;
    for (int d = 0; d < dim; d++) {
        most = std::fabs(row[d]) > most ? std::fabs(row[d]) : most;
        finite = finite && std::isfinite(row[d]);
    }
    uint16_t scale = finite ? bf16_reference(most / 127.0f) : 0x7fc0;
    float inverse = 1.0f / bf16_value(scale);
    for (int d = 0; d < dim; d++) {
        unsigned char *to = tile + (keys ? d * 16 + at : at * dim + d) * element_bytes(kind);
        if (kind == KV_F32) {
            std::memcpy(to, row + d, 4);
        } else if (kind == KV_F16) {
            float clamped = row[d] != row[d] ? row[d] : std::clamp(row[d], -65504.0f, 65504.0f);
            _Float16 half = static_cast<_Float16>(clamped);
            std::memcpy(to, &half, 2);
        } else {
            float code = std::nearbyint(row[d] * inverse);
            *to = static_cast<unsigned char>(static_cast<signed char>(code != code ? 0 : std::clamp(code, -127.0f, 127.0f)));
        }
    }
    if (kind == KV_INT8) {
        std::memcpy(tile + 16 * dim + 2 * at, &scale, 2);
    }
}

inline float value_reference(int kind, bool keys, const unsigned char *tile, int at, int d, int dim) {
    const unsigned char *from = tile + (keys ? d * 16 + at : at * dim + d) * element_bytes(kind);
    if (kind == KV_F32) {
        float x;
        std::memcpy(&x, from, 4);
        return x;
    }
    if (kind == KV_F16) {
        _Float16 half;
        std::memcpy(&half, from, 2);
        return static_cast<float>(half);
    }
    return static_cast<float>(static_cast<signed char>(*from));
}

inline float scale_reference(int kind, const unsigned char *tile, int at, int dim) {
    uint16_t scale = 0x3f80;
    if (kind == KV_INT8) {
        std::memcpy(&scale, tile + 16 * dim + 2 * at, 2);
    }
    return bf16_value(scale);
}

struct Shape {
    int kind, heads, kv_heads, dim, block_size, window;

    int group() const { return heads / kv_heads; }
    int width() const { return (heads + 2 * kv_heads) * dim; }
};

struct Sequence {
    // Position of the first row, and number of rows.
    int start, rows;
};

// A batch, and a layer's cache with earlier positions already written.
struct Batch {
    Shape shape;
    std::vector<Sequence> sequences;
    Floats qkv;
    std::vector<unsigned> positions, tables, tables_at, of_row;
    Bytes keys, values;

    size_t offset(size_t table, int kv_head, int position) const {
        int tiles = shape.block_size / 16, tile = position / 16;
        size_t block = tables[table + static_cast<size_t>(tile / tiles)];
        return ((block * shape.kv_heads + kv_head) * tiles + tile % tiles) * bytes_of_tile(shape.kind, shape.dim);
    }
};

// The numbers of a sequence do not depend on its batch.
inline Batch batch_of(const Shape &shape, const std::vector<Sequence> &sequences, const std::vector<int> &seeds) {
    Batch batch{shape, sequences, {}, {}, {}, {}, {}, {}, {}};
    unsigned blocks = 0;
    for (const Sequence &s : sequences) {
        blocks += static_cast<unsigned>((s.start + s.rows + shape.block_size - 1) / shape.block_size);
    }
    size_t bytes = blocks * static_cast<size_t>(shape.kv_heads) * (shape.block_size / 16)
        * bytes_of_tile(shape.kind, shape.dim);
    batch.keys.assign(bytes, 0xff); // NaN in unwritten places
    batch.values.assign(bytes, 0xff);
    unsigned next = blocks;
    for (size_t n = 0; n < sequences.size(); n++) {
        const Sequence &s = sequences[n];
        size_t table = batch.tables.size();
        for (int at = 0; at < s.start + s.rows; at += shape.block_size) {
            batch.tables.push_back(--next);
        }
        Random random(static_cast<uint64_t>(seeds[n]));
        for (int position = 0; position < s.start + s.rows; position++) {
            if (position >= s.start) {
                Floats row = random.normals(static_cast<size_t>(shape.width()));
                batch.qkv.insert(batch.qkv.end(), row.begin(), row.end());
                batch.positions.push_back(static_cast<unsigned>(position));
                batch.tables_at.push_back(static_cast<unsigned>(table));
                continue;
            }
            for (int head = 0; head < shape.kv_heads; head++) {
                Floats k = random.normals(static_cast<size_t>(shape.dim)), v = random.normals(static_cast<size_t>(shape.dim));
                size_t at = batch.offset(table, head, position);
                store_reference(shape.kind, true, batch.keys.data() + at, position % 16, k.data(), shape.dim);
                store_reference(shape.kind, false, batch.values.data() + at, position % 16, v.data(), shape.dim);
            }
        }
    }
    return batch;
}

// How heads are normed, rotated and scaled.
struct Turn {
    int pairs;
    bool interleaved, normed;
    float scale;
    Floats table, q_norm, k_norm;
};

inline Turn turn_of(const Batch &batch, int pairs, bool interleaved, bool normed, Random &random) {
    Turn turn{pairs, interleaved, normed, 1.0f / std::sqrt(static_cast<float>(batch.shape.dim)), {}, {}, {}};
    turn.table = random.normals(batch.positions.size() * 2 * static_cast<size_t>(pairs));
    turn.q_norm = random.normals(static_cast<size_t>(batch.shape.dim));
    turn.k_norm = random.normals(static_cast<size_t>(batch.shape.dim));
    return turn;
}

inline void turn_reference(const Turn &turn, size_t row, bool is_q, float *head, int dim) {
    if (turn.normed) {
        float lanes[32] = {};
        for (int i = 0; i < dim; i++) {
            lanes[i % 32] = std::fma(head[i], head[i], lanes[i % 32]);
        }
        for (int width = 16; width > 0; width /= 2) {
            for (int i = 0; i < width; i++) {
                lanes[i] += lanes[i + width];
            }
        }
        float scale = 1.0f / std::sqrt(lanes[0] / static_cast<float>(dim) + (is_q ? 1e-5f : 1e-6f));
        for (int i = 0; i < dim; i++) {
            head[i] = head[i] * scale * (is_q ? turn.q_norm : turn.k_norm)[static_cast<size_t>(i)];
        }
    }
    const float *cos = turn.table.data() + row * 2 * static_cast<size_t>(turn.pairs), *sin = cos + turn.pairs;
    for (int i = 0; i < turn.pairs; i++) {
        float &low = head[turn.interleaved ? 2 * i : i], &high = head[turn.interleaved ? 2 * i + 1 : i + turn.pairs];
        float a = low, b = high;
        low = a * cos[i] - b * sin[i];
        high = b * cos[i] + a * sin[i];
    }
}

inline void write_reference(Batch &batch, const Turn &turn) {
    const Shape &s = batch.shape;
    for (size_t row = 0; row < batch.positions.size(); row++) {
        int position = static_cast<int>(batch.positions[row]);
        for (int n = 0; n < s.heads + 2 * s.kv_heads; n++) {
            float *at = batch.qkv.data() + row * static_cast<size_t>(s.width()) + n * s.dim;
            if (n < s.heads) {
                turn_reference(turn, row, true, at, s.dim);
                std::for_each(at, at + s.dim, [&](float &x) { x *= turn.scale; });
                transform_reference(s.kind, at, s.dim);
                continue;
            }
            bool keys = n < s.heads + s.kv_heads;
            Floats head(at, at + s.dim);
            if (keys) {
                turn_reference(turn, row, false, head.data(), s.dim);
            }
            transform_reference(s.kind, head.data(), s.dim);
            size_t to = batch.offset(batch.tables_at[row], (n - s.heads) % s.kv_heads, position);
            store_reference(s.kind, keys, (keys ? batch.keys : batch.values).data() + to, position % 16, head.data(), s.dim);
        }
    }
}

// Runs the kernel that writes a batch's heads.
inline Batch written_batch_of(const Shape &shape, const std::vector<Sequence> &sequences, const std::vector<int> &seeds) {
    Batch batch = batch_of(shape, sequences, seeds);
    write_reference(batch, {0, false, false, 0.3f, {}, {}, {}});
    return batch;
}

inline void write(Batch &batch, const Turn &turn, int threads) {
    const Shape &s = batch.shape;
    auto kernel = s.kind == KV_F32 ? attention::bn_rope_kv_write_f32
        : s.kind == KV_F16         ? attention::bn_rope_kv_write_f16
                                   : attention::bn_rope_kv_write_int8;
    const float *q_norm = turn.normed ? turn.q_norm.data() : nullptr, *k_norm = turn.normed ? turn.k_norm.data() : nullptr;
    int warps = threads / 32, blocks = (s.heads + 2 * s.kv_heads + warps - 1) / warps;
    dim3 grid(static_cast<unsigned>(batch.positions.size()), static_cast<unsigned>(blocks));
    launch(kernel, grid, dim3(static_cast<unsigned>(threads)),
        static_cast<size_t>(threads) * 32, batch.qkv.data(), batch.keys.data(), batch.values.data(), turn.table.data(),
        batch.tables.data(), batch.tables_at.data(), batch.positions.data(), q_norm, k_norm, 1e-5f, 1e-6f, turn.scale,
        s.heads, s.kv_heads, s.dim, s.block_size, turn.pairs, static_cast<int>(turn.interleaved));
}

struct Softmax {
    Floats values, sums;
    float max;
};

inline float decay_reference(float max, float high) {
    return max == high ? 1.0f : exp_reference(max - high);
}

// One step of a query's softmax: positions `from..to` of the 64 starting at `start`.
inline void span_reference(const Batch &batch, size_t table, int kv_head, const float *q, int start, int from, int to,
    Softmax &state) {
    const Shape &s = batch.shape;
    auto tile = [&](const Bytes &data, int j) { return data.data() + batch.offset(table, kv_head, start + j); };
    float weights[64] = {}, high = state.max;
    for (int j = from; j < to; j++) {
        float dot = 0.0f;
        for (int d = 0; d < s.dim; d++) {
            dot = std::fma(q[d], value_reference(s.kind, true, tile(batch.keys, j), j % 16, d, s.dim), dot);
        }
        weights[j] = dot * scale_reference(s.kind, tile(batch.keys, j), j % 16, s.dim);
        high = weights[j] > high ? weights[j] : high;
    }
    float keep = decay_reference(state.max, high);
    state.max = high;
    for (float &sum : state.sums) {
        sum *= keep;
    }
    for (int j = from; j < to; j++) {
        weights[j] = exp_reference(weights[j] - high);
        state.sums[static_cast<size_t>(j % 16)] += weights[j];
    }
    for (int d = 0; d < s.dim; d++) {
        float sum = state.values[static_cast<size_t>(d)] * keep;
        for (int j = from; j < to; j++) {
            float weight = weights[j] * scale_reference(s.kind, tile(batch.values, j), j % 16, s.dim);
            sum = std::fma(weight, value_reference(s.kind, false, tile(batch.values, j), j % 16, d, s.dim), sum);
        }
        state.values[static_cast<size_t>(d)] = sum;
    }
}

inline void merge_reference(Softmax &total, const Softmax &piece) {
    float high = piece.max > total.max ? piece.max : total.max;
    float a = decay_reference(total.max, high), b = decay_reference(piece.max, high);
    total.max = high;
    for (size_t i = 0; i < total.sums.size(); i++) {
        total.sums[i] = total.sums[i] * a + piece.sums[i] * b;
    }
    for (size_t i = 0; i < total.values.size(); i++) {
        total.values[i] = total.values[i] * a + piece.values[i] * b;
    }
}

// The output of one head of a row, whose q in `qkv` is already rotated and scaled.
inline Floats head_reference(const Batch &batch, size_t row, int head) {
    const Shape &s = batch.shape;
    int position = static_cast<int>(batch.positions[row]);
    int first = s.window > 0 ? std::max(position + 1 - s.window, 0) : 0;
    const float *q = batch.qkv.data() + row * static_cast<size_t>(s.width()) + head * s.dim;
    Softmax total;
    for (int piece = first / PIECE; piece <= position / PIECE; piece++) {
        Softmax state{Floats(static_cast<size_t>(s.dim)), Floats(16), -INFINITY};
        for (int start = piece * PIECE; start < (piece + 1) * PIECE; start += 64) {
            int end = std::clamp(position + 1, start, start + 64), from = std::clamp(first, start, end);
            if (from < end) {
                span_reference(batch, batch.tables_at[row], head / s.group(), q, start, from - start, end - start, state);
            }
        }
        if (piece == first / PIECE) {
            total = state;
        } else {
            merge_reference(total, state);
        }
    }
    float l[8];
    for (size_t i = 0; i < 8; i++) {
        l[i] = total.sums[i] + total.sums[i + 8];
    }
    float inverse = 1.0f / (((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7])));
    for (float &x : total.values) {
        x *= inverse;
    }
    transform_reference(s.kind, total.values.data(), s.dim);
    return total.values;
}

inline Floats attend_reference(const Batch &batch) {
    Floats out;
    for (size_t row = 0; row < batch.positions.size(); row++) {
        for (int head = 0; head < batch.shape.heads; head++) {
            Floats one = head_reference(batch, row, head);
            out.insert(out.end(), one.begin(), one.end());
        }
    }
    return out;
}

using Decode = void (*)(float *, const float *, const unsigned char *, const unsigned char *, const unsigned *,
    const unsigned *, const unsigned *, int, int, int, int, int, int);
using Prefill = void (*)(float *, const float *, const unsigned char *, const unsigned char *, const unsigned *,
    const unsigned *, const unsigned *, int, int, int, int, int);

#define BN_OF_WIDTH(kernel) {kernel##_64, kernel##_128, kernel##_256}
inline const Decode decodes[3][3] = {BN_OF_WIDTH(attention::bn_attention_decode_f32),
    BN_OF_WIDTH(attention::bn_attention_decode_f16), BN_OF_WIDTH(attention::bn_attention_decode_int8)};
inline const Prefill prefills[3][3] = {BN_OF_WIDTH(attention::bn_attention_prefill_f32),
    BN_OF_WIDTH(attention::bn_attention_prefill_f16), BN_OF_WIDTH(attention::bn_attention_prefill_int8)};

inline int width_class(int dim) {
    return dim <= 64 ? 0 : dim <= 128 ? 1 : 2;
}

// Tasks of at most `most` queries.
inline std::vector<unsigned> tasks_of(const Batch &batch, int most) {
    std::vector<unsigned> tasks;
    unsigned row = 0;
    for (const Sequence &s : batch.sequences) {
        int queries = s.rows * batch.shape.group();
        for (int from = 0; from < queries; from += most) {
            unsigned to = static_cast<unsigned>(std::min(from + most, queries));
            tasks.insert(tasks.end(), {row, static_cast<unsigned>(from), to, batch.tables_at[row]});
        }
        row += static_cast<unsigned>(s.rows);
    }
    return tasks;
}

// The formula is in the comment of the kernels.
inline size_t shared_bytes(const Shape &s, int warps, int queries) {
    size_t bytes = 2 * bytes_of_tile(s.kind, s.dim) + 16 * static_cast<size_t>(element_bytes(s.kind));
    return 4 * bytes + static_cast<size_t>(warps * queries) * 4 * static_cast<size_t>((s.dim + 3) / 4 * 4 + 64 + 1);
}

inline size_t decode_bytes(const Shape &s, int warps, int queries) {
    size_t width = size_t(64) << width_class(s.dim);
    return s.kind == KV_F16 ? (width == 64 ? 16 : 24) * std::max<size_t>(2048, 8 * width + 256) + 64 * width + 18240
                            : shared_bytes(s, warps, queries);
}

inline size_t prefill_bytes(const Shape &s, int warps) {
    size_t width = size_t(64) << width_class(s.dim), buffers = width == 256 ? 1 : 2;
    return s.kind == KV_F16 ? buffers * (256 * width + 1024) + static_cast<size_t>(warps) * (128 * width + 320)
                            : shared_bytes(s, warps, 4);
}

// With `warps` warps, or 4 for KV in F16.
inline Floats decode(const Batch &batch, int warps, int most) {
    const Shape &s = batch.shape;
    warps = s.kind == KV_F16 ? 4 : warps;
    std::vector<unsigned> tasks = tasks_of(batch, most);
    unsigned longest = *std::max_element(batch.positions.begin(), batch.positions.end());
    int slots = static_cast<int>(longest) / PIECE + 1, each = most <= warps ? 1 : most <= 2 * warps ? 2 : 4;
    size_t heads = batch.positions.size() * static_cast<size_t>(s.heads);
    Floats states(heads * static_cast<size_t>(slots * (s.dim + 32)), NAN), out(heads * static_cast<size_t>(s.dim), NAN);
    launch(decodes[s.kind][width_class(s.dim)],
        dim3(static_cast<unsigned>(tasks.size() / 4), static_cast<unsigned>(s.kv_heads), static_cast<unsigned>(slots)),
        dim3(static_cast<unsigned>(32 * warps)), decode_bytes(s, warps, each), states.data(), batch.qkv.data(),
        batch.keys.data(), batch.values.data(), tasks.data(), batch.tables.data(), batch.positions.data(), s.heads,
        s.kv_heads, s.dim, s.block_size, s.window, slots);
    launch(attention::bn_attention_merge, dim3(static_cast<unsigned>((heads + 3) / 4)), dim3(128), 0, out.data(),
        states.data(), batch.positions.data(), static_cast<int>(heads), s.heads, s.dim, s.window, slots,
        static_cast<int>(s.kind == KV_INT8));
    return out;
}

// With `warps` warps, or as many as shared memory allows.
inline Floats prefill(const Batch &batch, int warps) {
    const Shape &s = batch.shape;
    while (prefill_bytes(s, warps) > 227 * 1024) {
        warps--;
    }
    std::vector<unsigned> tasks = tasks_of(batch, (s.kind == KV_F16 ? 16 : 4) * warps);
    Floats out(batch.positions.size() * static_cast<size_t>(s.heads * s.dim), NAN);
    launch(prefills[s.kind][width_class(s.dim)],
        dim3(static_cast<unsigned>(tasks.size() / 4), static_cast<unsigned>(s.kv_heads)),
        dim3(static_cast<unsigned>(32 * warps)), prefill_bytes(s, warps), out.data(), batch.qkv.data(),
        batch.keys.data(), batch.values.data(), tasks.data(), batch.tables.data(), batch.positions.data(), s.heads,
        s.kv_heads, s.dim, s.block_size, s.window);
    return out;
}

// The output rows of one sequence of a batch.
inline Floats rows_of(const Batch &batch, const Floats &out, size_t sequence) {
    size_t row = 0, width = static_cast<size_t>(batch.shape.heads * batch.shape.dim);
    for (size_t i = 0; i < sequence; i++) {
        row += static_cast<size_t>(batch.sequences[i].rows);
    }
    auto from = out.begin() + static_cast<std::ptrdiff_t>(row * width);
    return Floats(from, from + static_cast<std::ptrdiff_t>(static_cast<size_t>(batch.sequences[sequence].rows) * width));
}

} // namespace paged

using namespace paged;

