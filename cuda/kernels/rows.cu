// Operations between the products, row by row: embedding, norms, gated activations, residual sums, int8 activations.
// All results have the CPU's bits (src/kernels/rows).
//
// Lower bound: the rows' bytes, 31 KB for one row of 2560 columns that is added, normed and quantized, 2 MB for 64
// rows, 0.7 us on an H100. But a few rows take the sum of their latencies: loads, three or four barriers, and the
// norm's sum. One warp computes that sum, since the CPU too has 32 partial sums, element i in sum i % 32, and adds the
// upper half to the lower one. At 2560 columns this is a chain of 80 fused multiply-adds, 320 cycles, at 6912 one of
// 216.
//
// A block works on one row and keeps it in shared memory. A thread has the same columns in each pass, groups of four
// that lie a block's width apart. It loads `AT_ONCE` groups before it stores one, since the compiler does not move
// loads across stores. With a thread for each 8 columns, all of a row is in flight at once. Weights of norms are
// constant, so the first of them are loaded before the kernel's inputs are ready.

#include "device.cuh"

namespace rows {

// How a gated feed-forward combines gate and up: some of `Activation` of src/ops/types.rs.
enum { SWIGLU = 0, RELU2 = 1, GEGLU = 2, CLAMPED = 3, SCALED = 4, STEEP = 5 };
// Types of an embedding table.
enum { TABLE_F32 = 0, TABLE_F16 = 1, TABLE_BF16 = 2 };

// The most threads of a block.
constexpr int ROW_MOST = 1024;
// Groups of four columns that a thread has in flight.
constexpr int AT_ONCE = 2;
// Elements per lane that a norm's sum has in flight.
constexpr int IN_CHAIN = 16;

// A row in shared memory, and the memory through which its block's warps exchange values.
struct Row {
    float4 *values;
    int cols;
    // Groups of four, with the padding.
    int fours;
    // Whether all addresses and the row's bytes are multiples of 16.
    bool aligned;
    float *norm_scale;
    float *maxima;
    int *sums;
};

// `shared` has `row_bytes(stride)` bytes. `addresses` is the OR of the row's addresses in all arrays.
BN_DEVICE Row shared_row(unsigned char *shared, int cols, int stride, uintptr_t addresses) {
    float *values = reinterpret_cast<float *>(shared), *maxima = values + stride;
    bool aligned = (addresses | static_cast<uintptr_t>(4 * cols)) % 16 == 0;
    return {reinterpret_cast<float4 *>(values), cols,   stride / 4, aligned, maxima + 2 * WARP, maxima,
            reinterpret_cast<int *>(maxima + WARP)};
}

BN_DEVICE uintptr_t address(const void *of) {
    return reinterpret_cast<uintptr_t>(of);
}

// Bytes of shared memory of kernels that keep a row. `stride` is what they write, or the columns rounded up to four.
inline unsigned row_bytes(int stride) {
    return 4u * (static_cast<unsigned>(stride) + 2 * WARP + 4);
}

// A thread's part of a row: groups of four `at`, `at + blockDim.x` and so on.
struct Part {
    float4 x[AT_ONCE];
};

BN_DEVICE int first_part() {
    return static_cast<int>(threadIdx.x);
}

BN_DEVICE int next_part(int at) {
    return at + AT_ONCE * static_cast<int>(blockDim.x);
}

BN_DEVICE int four_at(int at, int n) {
    return at + n * static_cast<int>(blockDim.x);
}

// Loads four columns, with zeros past the row's end.
BN_DEVICE float4 load_four(const float *from, int four, const Row &row) {
    int col = 4 * four;
    float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
    if (row.aligned) {
        if (col < row.cols) {
            x = *reinterpret_cast<const float4 *>(from + col);
        }
        return x;
    }
    x.x = col < row.cols ? from[col] : 0.0f;
    x.y = col + 1 < row.cols ? from[col + 1] : 0.0f;
    x.z = col + 2 < row.cols ? from[col + 2] : 0.0f;
    x.w = col + 3 < row.cols ? from[col + 3] : 0.0f;
    return x;
}

// Stores four columns, except those past the row's end.
BN_DEVICE void store_four(float *to, int four, const Row &row, float4 x) {
    int col = 4 * four;
    if (row.aligned) {
        if (col < row.cols) {
            *reinterpret_cast<float4 *>(to + col) = x;
        }
        return;
    }
    const float all[] = {x.x, x.y, x.z, x.w};
    BN_UNROLL
    for (int i = 0; i < 4; i++) {
        if (col + i < row.cols) {
            to[col + i] = all[i];
        }
    }
}

BN_DEVICE Part load(const float *from, int at, const Row &row) {
    Part part;
    BN_UNROLL
    for (int n = 0; n < AT_ONCE; n++) {
        part.x[n] = load_four(from, four_at(at, n), row);
    }
    return part;
}

BN_DEVICE void store(float *to, int at, const Row &row, const Part &part) {
    BN_UNROLL
    for (int n = 0; n < AT_ONCE; n++) {
        store_four(to, four_at(at, n), row, part.x[n]);
    }
}

// Writes a part to shared memory; `kept` reads it, with zeros past the row's end.
BN_DEVICE void keep(const Row &row, int at, const Part &part) {
    BN_UNROLL
    for (int n = 0; n < AT_ONCE; n++) {
        if (four_at(at, n) < row.fours) {
            row.values[four_at(at, n)] = part.x[n];
        }
    }
}

BN_DEVICE Part kept(const Row &row, int at) {
    Part part;
    BN_UNROLL
    for (int n = 0; n < AT_ONCE; n++) {
        part.x[n] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (four_at(at, n) < row.fours) {
            part.x[n] = row.values[four_at(at, n)];
        }
    }
    return part;
}

template <class Make> BN_DEVICE float4 combined(float4 a, float4 b, Make make) {
    return {make(a.x, b.x), make(a.y, b.y), make(a.z, b.z), make(a.w, b.w)};
}

template <class Make> BN_DEVICE Part combined(const Part &a, const Part &b, Make make) {
    Part part;
    BN_UNROLL
    for (int n = 0; n < AT_ONCE; n++) {
        part.x[n] = combined(a.x[n], b.x[n], make);
    }
    return part;
}

// Loads a lane's elements from element `from` on, `WARP` apart. Zeros from `end` on do not change its sum.
BN_DEVICE void load_chain(float (&to)[IN_CHAIN], const float *x, int from, int end) {
    BN_UNROLL
    for (int n = 0; n < IN_CHAIN; n++) {
        int i = from + n * WARP;
        to[n] = i < end ? x[i] : 0.0f;
    }
}

BN_DEVICE float add_squares(float sum, const float (&x)[IN_CHAIN]) {
    BN_UNROLL
    for (int n = 0; n < IN_CHAIN; n++) {
        sum = fma_rn(x[n], x[n], sum);
    }
    return sum;
}

// One warp computes the factor of a row's norm, without weights: 1 / sqrt(mean(x^2) + eps).
BN_DEVICE float norm_scale(const float *x, int cols, float eps) {
    constexpr int STEP = IN_CHAIN * WARP;
    float sum = 0.0f, some[IN_CHAIN], more[IN_CHAIN];
    // Loads are one step ahead of products.
    load_chain(some, x, lane(), cols);
    for (int from = lane(); from < cols; from += 2 * STEP) {
        load_chain(more, x, from + STEP, cols);
        sum = add_squares(sum, some);
        load_chain(some, x, from + 2 * STEP, cols);
        sum = add_squares(sum, more);
    }
    float mean = div_rn(warp_sum(sum), static_cast<float>(cols));
    return div_rn(1.0f, sqrt_rn(add_rn(mean, eps)));
}

// As `norm_scale` for a block that has just written the row.
BN_DEVICE float row_scale(const Row &row, float eps) {
    sync_block();
    if (warp() == 0) {
        float scale = norm_scale(reinterpret_cast<const float *>(row.values), row.cols, eps);
        if (lane() == 0) {
            *row.norm_scale = scale;
        }
    }
    sync_block();
    return *row.norm_scale;
}

BN_DEVICE float normed(float x, float scale, float weight) {
    return mul_rn(mul_rn(x, scale), weight);
}

// Returns the largest of the block's magnitudes.
BN_DEVICE float block_max(float value, float *maxima) {
    value = warp_most(value);
    if (lane() == 0) {
        maxima[warp()] = value;
    }
    sync_block();
    return warp_most(lane() < static_cast<int>(blockDim.x) / WARP ? maxima[lane()] : 0.0f);
}

// Returns the sum of the block's integers in its first warp.
BN_DEVICE int block_sum(int value, int *sums) {
    value = warp_sum(value);
    if (lane() == 0) {
        sums[warp()] = value;
    }
    sync_block();
    return warp() == 0 ? warp_sum(lane() < static_cast<int>(blockDim.x) / WARP ? sums[lane()] : 0) : 0;
}

// Returns the larger of `most` and |x|. Ignores NaN.
BN_DEVICE float larger_magnitude(float most, float x) {
    return fmaxf(most, fabsf(x));
}

BN_DEVICE float larger_magnitude(float most, float4 x) {
    most = larger_magnitude(larger_magnitude(most, x.x), x.y);
    return larger_magnitude(larger_magnitude(most, x.z), x.w);
}

// Rounds x times the scale, ties to even; NaN becomes 0. The bounds matter if the scale has overflowed.
BN_DEVICE int to_int8(float x, float scale) {
    return min(max(round_even(mul_rn(x, scale)), -127), 127);
}

BN_DEVICE char4 int8s(float4 x, float scale) {
    char4 q;
    q.x = static_cast<signed char>(to_int8(x.x, scale));
    q.y = static_cast<signed char>(to_int8(x.y, scale));
    q.z = static_cast<signed char>(to_int8(x.z, scale));
    q.w = static_cast<signed char>(to_int8(x.w, scale));
    return q;
}

// x += y, where y is normed first if it has a weight and may be null. The sum is kept as the row's values.
BN_DEVICE void add_row(float *x, const float *y, const float *y_weight, float y_eps, const Row &row) {
    bool norms = y != nullptr && y_weight != nullptr;
    float scale = 0.0f;
    if (norms) {
        for (int at = first_part(); at < row.fours; at = next_part(at)) {
            keep(row, at, load(y, at, row));
        }
        scale = row_scale(row, y_eps);
    }
    for (int at = first_part(); at < row.fours; at = next_part(at)) {
        Part sum = load(x, at, row);
        if (y != nullptr) {
            Part addend = load(norms ? y_weight : y, at, row);
            if (norms) {
                addend = combined(kept(row, at), addend, [&](float v, float w) { return normed(v, scale, w); });
            }
            sum = combined(sum, addend, [](float a, float b) { return add_rn(a, b); });
            store(x, at, row, sum);
        }
        keep(row, at, sum);
    }
}

// An activation and its parameters: of SCALED the factors on gate and up, of STEEP alpha, then the limit, which is also
// that of CLAMPED.
struct Activation {
    int kind;
    float first, second;
};

BN_DEVICE float gate_value(float g, int activation) {
    if (activation == RELU2) {
        // fmaxf would hide a NaN.
        g = g < 0.0f ? 0.0f : g;
        return mul_rn(g, g);
    }
    // 2 sqrt(2/pi), and the same times 0.044715: the tanh form of GELU is also g / (1 + e^-2u).
    float exponent = activation == GEGLU ? mul_rn(fma_rn(mul_rn(g, g), 0.071354814f, 1.5957692f), -g) : -g;
    return div_rn(g, add_rn(1.0f, bn_exp(exponent)));
}

// Combines a gate and up.
BN_DEVICE float gated(float g, float u, Activation by) {
    if (by.kind == SCALED) {
        g = mul_rn(g, by.first), u = mul_rn(u, by.second);
    }
    if (by.kind == CLAMPED || by.kind == STEEP) {
        // fminf would hide a NaN.
        g = by.second < g ? by.second : g, u = by.second < u ? by.second : u;
        u = u < -by.second ? -by.second : u;
    }
    if (by.kind == STEEP) {
        return mul_rn(div_rn(g, add_rn(1.0f, bn_exp(mul_rn(g, -by.first)))), add_rn(u, 1.0f));
    }
    return mul_rn(gate_value(g, by.kind), u);
}

// Combines gate and up, which are adjacent, into the row's values.
BN_DEVICE void gated_row(const float *gate_up, Activation activation, const Row &row) {
    for (int at = first_part(); at < row.fours; at = next_part(at)) {
        Part gate = load(gate_up, at, row), up = load(gate_up + row.cols, at, row);
        keep(row, at, combined(gate, up, [&](float g, float u) { return gated(g, u, activation); }));
    }
}

// As `gated_row`, but writes to `out`, by all blocks of the row.
BN_DEVICE void store_gated(const float *gate_up, Activation activation, const Row &row, float *out) {
    int step = static_cast<int>(gridDim.y * blockDim.x);
    for (int at = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x); at < row.fours; at += step) {
        float4 gate = load_four(gate_up, at, row), up = load_four(gate_up + row.cols, at, row);
        float4 x = combined(gate, up, [&](float g, float u) { return gated(g, u, activation); });
        store_four(out, at, row, x);
    }
}

// A norm's weight, which may be null, and the thread's first part of it.
struct Weight {
    const float *values;
    Part first;
};

BN_DEVICE Weight weight_of(const float *values, const Row &row) {
    Weight weight = {values, {}};
    if (values != nullptr) {
        weight.first = load(values, first_part(), row);
    }
    return weight;
}

// Calls `put` with each part of the row, normed if there is a weight.
template <class Put> BN_DEVICE void norm_row(const Row &row, const Weight &weight, float eps, Put put) {
    float scale = weight.values != nullptr ? row_scale(row, eps) : 0.0f;
    Part weights = weight.first;
    for (int at = first_part(); at < row.fours; at = next_part(at)) {
        Part part = kept(row, at);
        if (weight.values != nullptr) {
            part = combined(part, weights, [&](float v, float w) { return normed(v, scale, w); });
            weights = load(weight.values, next_part(at), row);
        }
        put(at, part);
    }
}

// Writes the row as f32, normed if there is a weight.
BN_DEVICE void store_normed(const Row &row, const Weight &weight, float eps, float *out) {
    norm_row(row, weight, eps, [&](int at, const Part &part) { store(out, at, row, part); });
}

// The transform of blocks of `block` columns, a power of two that divides the row's columns; 1 for no rotation.
// `factor` is 1 / sqrt(block). Int8 rows have the signs of `signed_four` before it (`rotate` of
// src/kernels/rows/hadamard.rs).
struct Rotation {
    int block;
    float factor;
};

// Multiplies column `i` of each block by -1 if `i & i >> 1` has an odd number of ones.
BN_DEVICE float4 signed_four(float4 x, int four, int block) {
    float all[] = {x.x, x.y, x.z, x.w};
    BN_UNROLL
    for (int n = 0; n < 4; n++) {
        unsigned i = static_cast<unsigned>((4 * four + n) & (block - 1));
        all[n] = __uint_as_float(__float_as_uint(all[n]) ^ static_cast<uint32_t>(__popc(i & i >> 1)) << 31);
    }
    return {all[0], all[1], all[2], all[3]};
}

BN_DEVICE float4 sum_of(float4 a, float4 b) {
    return combined(a, b, [](float v, float w) { return add_rn(v, w); });
}

BN_DEVICE float4 difference_of(float4 a, float4 b) {
    return combined(a, b, [](float v, float w) { return add_rn(v, -w); });
}

// The steps of the transform within four columns, then the factor.
BN_DEVICE float4 last_steps(float4 x, Rotation rotation) {
    if (rotation.block > 2) {
        x = {add_rn(x.x, x.z), add_rn(x.y, x.w), add_rn(x.x, -x.z), add_rn(x.y, -x.w)};
    }
    if (rotation.block > 1) {
        x = {add_rn(x.x, x.y), add_rn(x.x, -x.y), add_rn(x.z, x.w), add_rn(x.z, -x.w)};
    }
    return {mul_rn(x.x, rotation.factor), mul_rn(x.y, rotation.factor), mul_rn(x.z, rotation.factor), mul_rn(x.w, rotation.factor)};
}

// Transforms the row's values: sums and differences of columns half a block apart, then a quarter, and so on. Calls
// `put` with each group of four and its index, in the thread that also has the group in other passes.
template <class Put> BN_DEVICE void transform(const Row &row, Rotation rotation, Put put) {
    int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    float4 *x = row.values;
    // Columns at least four apart: groups lie `half` apart. A pass does two steps.
    int half = rotation.block / 8;
    for (; half >= 2; half /= 4) {
        int quarter = half / 2;
        sync_block();
        for (int n = thread; n < row.cols / 16; n += threads) {
            int at = n / quarter * (4 * quarter) + n % quarter;
            float4 a = x[at], b = x[at + quarter], c = x[at + 2 * quarter], d = x[at + 3 * quarter];
            float4 ac = sum_of(a, c), bd = sum_of(b, d), a_c = difference_of(a, c), b_d = difference_of(b, d);
            x[at] = sum_of(ac, bd), x[at + quarter] = difference_of(ac, bd);
            x[at + 2 * quarter] = sum_of(a_c, b_d), x[at + 3 * quarter] = difference_of(a_c, b_d);
        }
    }
    if (half == 1) {
        sync_block();
        for (int n = thread; n < row.cols / 8; n += threads) {
            float4 a = x[2 * n], b = x[2 * n + 1];
            x[2 * n] = sum_of(a, b), x[2 * n + 1] = difference_of(a, b);
        }
    }
    sync_block();
    for (int four = thread; four < row.fours; four += threads) {
        put(four, last_steps(x[four], rotation));
    }
}

// The rotation of weights that are folded with one (`Fold` of src/ops/fold.rs). `signs` may be null. With
// `value_heads` a row's heads are in turns, and weights want those of each of `key_heads` side by side; 0 for no such
// heads. A block of 0 is no rotation.
struct Fold {
    const float *signs;
    Rotation rotation;
    int key_heads, value_heads;
};

BN_DEVICE Part times(const Part &x, const float *by, int at, const Row &row) {
    return by == nullptr ? x : combined(x, load(by, at, row), [](float v, float w) { return mul_rn(v, w); });
}

// Where weights want column `col` of a row of `cols`.
BN_DEVICE int regrouped(int col, int cols, const Fold &fold) {
    int width = cols / fold.value_heads, each = fold.value_heads / fold.key_heads, head = col / width;
    return (head % fold.key_heads * each + head / fold.key_heads) * width + col % width;
}

// Brings the row's heads, normed if there is a weight, to their places. They go through `out`, since the row's values
// are read in the meantime.
BN_DEVICE void regroup(const Row &row, const Weight &weight, float eps, const Fold &fold, float *out) {
    norm_row(row, weight, eps, [&](int at, const Part &part) {
        BN_UNROLL
        for (int n = 0; n < AT_ONCE; n++) {
            const float all[] = {part.x[n].x, part.x[n].y, part.x[n].z, part.x[n].w};
            int col = 4 * four_at(at, n);
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                if (col + i < row.cols) {
                    out[regrouped(col + i, row.cols, fold)] = all[i];
                }
            }
        }
    });
    sync_block();
    for (int at = first_part(); at < row.fours; at = next_part(at)) {
        keep(row, at, load(out, at, row));
    }
}

// Writes the row as f32, normed if there is a weight, and rotated.
BN_DEVICE void store_folded(const Row &row, const Weight &weight, float eps, const Fold &fold, float *out) {
    Weight by = weight;
    if (fold.value_heads > 0) {
        regroup(row, weight, eps, fold, out);
        by.values = nullptr;
    }
    norm_row(row, by, eps, [&](int at, const Part &part) { keep(row, at, times(part, fold.signs, at, row)); });
    transform(row, fold.rotation, [&](int four, float4 x) { store_four(out, four, row, x); });
}

// As `store_folded`, if there is a rotation.
BN_DEVICE void store_floats(const Row &row, const Weight &weight, float eps, const Fold &fold, float *out) {
    if (fold.rotation.block > 0) {
        store_folded(row, weight, eps, fold, out);
    } else {
        store_normed(row, weight, eps, out);
    }
}

// Packs four int8 into a word. The scale keeps all within 127.
BN_DEVICE uint32_t int8_word(float4 x, float scale) {
    uint32_t low = __byte_perm(static_cast<uint32_t>(round_even(mul_rn(x.x, scale))),
                               static_cast<uint32_t>(round_even(mul_rn(x.y, scale))), 0x0040);
    uint32_t high = __byte_perm(static_cast<uint32_t>(round_even(mul_rn(x.z, scale))),
                                static_cast<uint32_t>(round_even(mul_rn(x.w, scale))), 0x0040);
    return __byte_perm(low, high, 0x5410);
}

// Writes the row, normed if there is a weight, and rotated, as int8 with one scale, 127 / max(absmax, 1e-5), and zeros
// past its columns; and the sum of its integers.
BN_DEVICE void store_quantized(const Row &row, const Weight &weight, float eps, Rotation rotation, int8_t *values,
    float *scale, int *sum) {
    float most = 0.0f;
    bool rotates = rotation.block > 1;
    norm_row(row, weight, eps, [&](int at, Part part) {
        if (rotates) {
            BN_UNROLL
            for (int n = 0; n < AT_ONCE; n++) {
                part.x[n] = signed_four(part.x[n], four_at(at, n), rotation.block);
            }
        }
        keep(row, at, part);
        BN_UNROLL
        for (float4 x : part.x) {
            most = larger_magnitude(most, x);
        }
    });
    if (rotates) {
        most = 0.0f;
        transform(row, rotation, [&](int four, float4 x) {
            row.values[four] = x;
            most = larger_magnitude(most, x);
        });
    }
    float row_scale = div_rn(127.0f, fmaxf(block_max(most, row.maxima), 1e-5f));
    int total = 0;
    for (int at = first_part(); at < row.fours; at = next_part(at)) {
        Part part = kept(row, at);
        BN_UNROLL
        for (int n = 0; n < AT_ONCE; n++) {
            uint32_t word = int8_word(part.x[n], row_scale);
            total = dp4a(static_cast<int>(word), 0x01010101, total);
            if (four_at(at, n) < row.fours) {
                reinterpret_cast<uint32_t *>(values)[four_at(at, n)] = word;
            }
        }
    }
    total = block_sum(total, row.sums);
    if (threadIdx.x == 0) {
        *scale = row_scale;
        *sum = total;
    }
}

BN_DEVICE size_t row_at(int width) {
    return static_cast<size_t>(blockIdx.x) * static_cast<size_t>(width);
}

BN_DEVICE float table_value(const void *table, int type, size_t i) {
    if (type == TABLE_F32) {
        return static_cast<const float *>(table)[i];
    }
    uint16_t bits = static_cast<const uint16_t *>(table)[i];
    return type == TABLE_F16 ? half_to_float(bits) : bf16_to_float(bits);
}

// Calls `put(i)` for each column of the row that this thread has, among all blocks of the row.
template <class Put> BN_DEVICE void each_column(int cols, Put put) {
    int step = static_cast<int>(gridDim.y * blockDim.x);
    for (int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x); i < cols; i += step) {
        put(i);
    }
}

// out[r] = table[ids[r]] * scale. table [vocab, cols] of `type`, ids [rows], each below vocab, out [rows, cols].
// Grid: rows, and any number of blocks that share a row. Block: any.
BN_KERNEL(embed)(const void *table, int type, const uint32_t *ids, float scale, float *out, int cols) {
    begin_kernel();
    size_t from = static_cast<size_t>(ids[blockIdx.x]) * static_cast<size_t>(cols);
    each_column(cols, [&](int i) { out[row_at(cols) + i] = mul_rn(table_value(table, type, from + i), scale); });
}

// out[r] = x[rows[r]]. x [any, cols], rows [n], out [n, cols]. Grid: n, and any number of blocks that share a row.
// Block: any.
BN_KERNEL(gather_rows)(const float *x, const uint32_t *rows, float *out, int cols) {
    begin_kernel();
    const float *from = x + static_cast<size_t>(rows[blockIdx.x]) * static_cast<size_t>(cols);
    each_column(cols, [&](int i) { out[row_at(cols) + i] = from[i]; });
}

// x += y, n elements each. Grid: enough blocks for one thread per element. Block: any.
BN_KERNEL(add)(float *x, const float *y, size_t n) {
    begin_kernel();
    size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] = add_rn(x[i], y[i]);
    }
}

// x += norm(y, weight). x, y [rows, cols], weight [cols]. Grid: rows. Block: any, best with a thread for each 8
// columns. Shared: row_bytes(cols rounded up to four).
BN_KERNEL_OF(ROW_MOST, add_rms_norm)(float *x, const float *y, const float *weight, float eps, int cols) {
    begin_kernel();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4, address(x) | address(y) | address(weight));
    add_row(x + row_at(cols), y + row_at(cols), weight, eps, row);
}

// x = norm(x, weight) in place, for `cols` columns of rows of `stride`. x points at the first of these columns; weight
// [cols]. Grid, block and shared: as bn_add_rms_norm.
BN_KERNEL_OF(ROW_MOST, norm_columns)(float *x, const float *weight, float eps, int cols, int stride) {
    let_next_begin();
    BN_SHARED(shared);
    float *at = x + row_at(stride);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4, address(at) | address(weight));
    Weight by = weight_of(weight, row);
    await_inputs();
    add_row(at, nullptr, nullptr, 0.0f, row);
    store_normed(row, by, eps, at);
}

// x += y, with y normed first if y_weight is not null; y may be null. out = norm(x, weight), or x if weight is null,
// rotated (see `Fold`). x, y, out [rows, cols], weights and signs [cols]. Grid, block and shared: as bn_add_rms_norm.
BN_KERNEL_OF(ROW_MOST, add_norm)(float *x, const float *y, const float *y_weight, float y_eps, const float *weight,
    float eps, float *out, int cols, const float *signs, int rotation, float factor, int key_heads, int value_heads) {
    let_next_begin();
    BN_SHARED(shared);
    uintptr_t addresses = address(x) | address(y) | address(y_weight) | address(weight) | address(out) | address(signs);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4, addresses);
    Weight by = weight_of(weight, row);
    await_inputs();
    add_row(x + row_at(cols), y == nullptr ? y : y + row_at(cols), y_weight, y_eps, row);
    store_floats(row, by, eps, {signs, {rotation, factor}, key_heads, value_heads}, out + row_at(cols));
}

// As bn_add_norm, with the result rotated in blocks of `rotation` columns with `factor` (see `Rotation`), as int8:
// values [rows, stride] with zeros from cols on, stride a multiple of 4; scales and sums [rows]. Grid and block: as
// bn_add_rms_norm. Shared: row_bytes(stride).
BN_KERNEL_OF(ROW_MOST, add_norm_quantize)(float *x, const float *y, const float *y_weight, float y_eps,
    const float *weight, float eps, int8_t *values, float *scales, int *sums, int cols, int stride, int rotation,
    float factor) {
    let_next_begin();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, stride, address(x) | address(y) | address(y_weight) | address(weight));
    Weight by = weight_of(weight, row);
    await_inputs();
    add_row(x + row_at(cols), y == nullptr ? y : y + row_at(cols), y_weight, y_eps, row);
    store_quantized(row, by, eps, {rotation, factor}, values + row_at(stride), scales + blockIdx.x, sums + blockIdx.x);
}

// out = act(gate) * up, normed if weight is not null, and rotated. gate_up [rows, 2 cols], gate first, out
// [rows, cols]; activation, first and second as in `Activation`, the rest as for bn_add_norm. Grid: rows, and with
// neither norm nor rotation any number of blocks that share a row. Block and shared: as bn_add_rms_norm; with neither
// no shared memory.
BN_KERNEL_OF(ROW_MOST, gated_norm)(const float *gate_up, int activation, float first, float second, const float *weight,
    float eps, float *out, int cols, const float *signs, int rotation, float factor, int key_heads, int value_heads) {
    let_next_begin();
    BN_SHARED(shared);
    uintptr_t addresses = address(gate_up) | address(weight) | address(out) | address(signs);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4, addresses);
    Weight by = weight_of(weight, row);
    await_inputs();
    gate_up += row_at(2 * cols);
    out += row_at(cols);
    if (weight == nullptr && rotation == 0) {
        store_gated(gate_up, {activation, first, second}, row, out);
        return;
    }
    gated_row(gate_up, {activation, first, second}, row);
    store_floats(row, by, eps, {signs, {rotation, factor}, key_heads, value_heads}, out);
}

// As bn_gated_norm, as int8, one block per row. Values, scales, sums, block and shared: as bn_add_norm_quantize.
BN_KERNEL_OF(ROW_MOST, gated_norm_quantize)(const float *gate_up, int activation, float first, float second,
    const float *weight, float eps, int8_t *values, float *scales, int *sums, int cols, int stride, int rotation,
    float factor) {
    let_next_begin();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, stride, address(gate_up) | address(weight));
    Weight by = weight_of(weight, row);
    await_inputs();
    gated_row(gate_up + row_at(2 * cols), {activation, first, second}, row);
    store_quantized(row, by, eps, {rotation, factor}, values + row_at(stride), scales + blockIdx.x, sums + blockIdx.x);
}

// Undoes the rotation of rows of an embedding and multiplies them by a scale, in place. x [rows, cols]; rotation and
// factor as for bn_add_norm_quantize, with rotation at least 2. Grid, block and shared: as bn_add_rms_norm.
BN_KERNEL_OF(ROW_MOST, unrotate_rows)(float *x, int rotation, float factor, float scale, int cols) {
    begin_kernel();
    BN_SHARED(shared);
    x += row_at(cols);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4, address(x));
    for (int at = first_part(); at < row.fours; at = next_part(at)) {
        keep(row, at, load(x, at, row));
    }
    transform(row, {rotation, factor}, [&](int four, float4 v) {
        v = signed_four(v, four, rotation);
        store_four(x, four, row, {mul_rn(v.x, scale), mul_rn(v.y, scale), mul_rn(v.z, scale), mul_rn(v.w, scale)});
    });
}

// Undoes the rotation of folded rows of an embedding, in place. x [rows, cols]; signs, which may be null, rotation and
// factor as in `Fold`. Grid, block and shared: as bn_add_rms_norm.
BN_KERNEL_OF(ROW_MOST, unfold_rows)(float *x, const float *signs, int rotation, float factor, int cols) {
    begin_kernel();
    BN_SHARED(shared);
    x += row_at(cols);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4, address(x) | address(signs));
    for (int at = first_part(); at < row.fours; at = next_part(at)) {
        keep(row, at, load(x, at, row));
    }
    transform(row, {rotation, factor}, [&](int four, float4 v) {
        if (signs != nullptr) {
            v = combined(v, load_four(signs, four, row), [](float a, float b) { return mul_rn(a, b); });
        }
        store_four(x, four, row, v);
    });
}

// int8 with a scale for each 32 columns: scale = absmax / 127, value = x * (127 / absmax) rounded, 0 for NaN and if
// absmax is 0. x, values [blocks, 32], scales and sums [blocks]. Rows are contiguous, so their number does not matter.
// Grid: enough blocks for one warp per 32 columns. Block: any.
BN_KERNEL(quantize_blocks32)(const float *x, int8_t *values, float *scales, int16_t *sums, size_t blocks) {
    begin_kernel();
    size_t block = static_cast<size_t>(blockIdx.x) * (blockDim.x / WARP) + static_cast<size_t>(warp());
    if (block >= blocks) {
        return; // a whole warp
    }
    float value = x[block * WARP + lane()];
    float most = warp_max(larger_magnitude(0.0f, value));
    // The inverse is infinite if the block's largest magnitude is a tiny subnormal number.
    float inverse = most == 0.0f ? 0.0f : div_rn(127.0f, most);
    int rounded = to_int8(value, inverse);
    values[block * WARP + lane()] = static_cast<int8_t>(rounded);
    int sum = warp_sum(rounded);
    if (lane() == 0) {
        scales[block] = div_rn(most, 127.0f);
        sums[block] = static_cast<int16_t>(sum);
    }
}

// As bn_quantize_blocks32, with a scale for each 256 columns and a sum for each 16. x, values [blocks, 256], scales
// [blocks], sums [blocks, 16].
BN_KERNEL(quantize_blocks256)(const float *x, int8_t *values, float *scales, int16_t *sums, size_t blocks) {
    begin_kernel();
    size_t block = static_cast<size_t>(blockIdx.x) * (blockDim.x / WARP) + static_cast<size_t>(warp());
    if (block >= blocks) {
        return; // a whole warp
    }
    // Each lane has eight columns.
    size_t at = block * WARP + static_cast<size_t>(lane());
    const float4 *from = reinterpret_cast<const float4 *>(x) + 2 * at;
    const float4 halves[] = {from[0], from[1]};
    float most = 0.0f;
    for (float4 v : halves) {
        most = larger_magnitude(most, v);
    }
    most = warp_max(most);
    float inverse = most == 0.0f ? 0.0f : div_rn(127.0f, most);
    int sum = 0;
    for (int half = 0; half < 2; half++) {
        char4 q = int8s(halves[half], inverse);
        reinterpret_cast<char4 *>(values)[2 * at + static_cast<size_t>(half)] = q;
        sum += q.x + q.y + q.z + q.w;
    }
    sum += shfl_xor(sum, 1);
    if (lane() % 2 == 0) {
        sums[at / 2] = static_cast<int16_t>(sum);
    }
    if (lane() == 0) {
        scales[block] = div_rn(most, 127.0f);
    }
}

} // namespace rows
