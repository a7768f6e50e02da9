// What stands between the products, row by row: embedding, norms, gated activations, residual sums, int8 activations.
// Every result has the CPU's bits (src/kernels/rows).
//
// One block works on one row, which it keeps in shared memory where it needs it twice. A norm's sum is one warp's: the
// CPU has 32 partial sums too, element i in sum i % 32, which are added upper half to lower. At 2560 columns that is
// a chain of 80 fused products in each lane, a fraction of a microsecond.

#include "device.cuh"

// How a gated feed-forward combines gate and up: `Activation` of src/ops/mod.rs, in its order.
enum { SWIGLU = 0, RELU2 = 1, GEGLU = 2 };
// Types of an embedding's table.
enum { TABLE_F32 = 0, TABLE_F16 = 1, TABLE_BF16 = 2 };

// A row in shared memory, and what its block's warps tell each other.
struct Row {
    float *values;
    int cols;
    // Columns with what pads them: a multiple of 4.
    int stride;
    float *norm_scale;
    float *maxima;
    int *sums;
};

// Of `row_bytes(stride)` bytes.
BN_DEVICE Row shared_row(unsigned char *shared, int cols, int stride) {
    float *values = reinterpret_cast<float *>(shared);
    float *maxima = values + stride;
    return {values, cols, stride, maxima + 2 * WARP, maxima, reinterpret_cast<int *>(maxima + WARP)};
}

// Shared memory of the kernels that keep a row: `stride` is what they write, or the columns rounded up to fours.
inline unsigned row_bytes(int stride) {
    return 4u * (static_cast<unsigned>(stride) + 2 * WARP + 4);
}

// What a row is multiplied with before the weights, by one warp: 1 / sqrt(mean(x^2) + eps).
BN_DEVICE float norm_scale(const float *x, int cols, float eps) {
    float sum = 0.0f;
#pragma unroll 8
    for (int i = lane(); i < cols; i += WARP) {
        sum = fma_rn(x[i], x[i], sum);
    }
    float mean = div_rn(warp_sum(sum), static_cast<float>(cols));
    return div_rn(1.0f, sqrt_rn(add_rn(mean, eps)));
}

// As `norm_scale`, by a block, once it has written the row.
BN_DEVICE float row_scale(const Row &row, float eps) {
    sync_block();
    if (warp() == 0) {
        float scale = norm_scale(row.values, row.cols, eps);
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

// The largest of a block's values; NaN is passed over.
BN_DEVICE float block_max(float value, float *maxima) {
    value = warp_max(value);
    if (lane() == 0) {
        maxima[warp()] = value;
    }
    sync_block();
    return warp_max(lane() < static_cast<int>(blockDim.x) / WARP ? maxima[lane()] : 0.0f);
}

// The sum of a block's integers, in its first warp.
BN_DEVICE int block_sum(int value, int *sums) {
    value = warp_sum(value);
    if (lane() == 0) {
        sums[warp()] = value;
    }
    sync_block();
    return warp() == 0 ? warp_sum(lane() < static_cast<int>(blockDim.x) / WARP ? sums[lane()] : 0) : 0;
}

// The larger of `most` and |x|; NaN is passed over.
BN_DEVICE float larger_magnitude(float most, float x) {
    return fabsf(x) > most ? fabsf(x) : most;
}

// x times the scale, halves to the even side; NaN becomes 0. The bounds are for a scale that has overflowed.
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

BN_DEVICE void load_row(const float *from, const Row &row) {
    for (int i = static_cast<int>(threadIdx.x); i < row.cols; i += static_cast<int>(blockDim.x)) {
        row.values[i] = from[i];
    }
}

// x += y, y normed first where it has a weight, nothing where there is no y; the row's values are the sum.
BN_DEVICE void add_row(float *x, const float *y, const float *y_weight, float y_eps, const Row &row) {
    if (y == nullptr) {
        load_row(x, row);
        return;
    }
    load_row(y, row);
    float scale = y_weight != nullptr ? row_scale(row, y_eps) : 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < row.cols; i += static_cast<int>(blockDim.x)) {
        float addend = y_weight != nullptr ? normed(row.values[i], scale, y_weight[i]) : row.values[i];
        row.values[i] = x[i] = add_rn(x[i], addend);
    }
}

BN_DEVICE float gate_value(float g, int activation) {
    if (activation == RELU2) {
        // Not fmaxf, which would hide a NaN.
        g = g < 0.0f ? 0.0f : g;
        return mul_rn(g, g);
    }
    // 2 sqrt(2/pi), and that times 0.044715: GELU in its tanh form is g / (1 + e^-2u) too.
    float exponent = activation == SWIGLU ? -g : mul_rn(fma_rn(mul_rn(g, g), 0.071354814f, 1.5957692f), -g);
    return div_rn(g, add_rn(1.0f, bn_exp(exponent)));
}

// The row's values are gate and up, side by side, combined.
BN_DEVICE void gated_row(const float *gate_up, int activation, const Row &row) {
    for (int i = static_cast<int>(threadIdx.x); i < row.cols; i += static_cast<int>(blockDim.x)) {
        row.values[i] = mul_rn(gate_value(gate_up[i], activation), gate_up[row.cols + i]);
    }
}

// Norms the row where there is a weight.
BN_DEVICE void norm_row(const Row &row, const float *weight, float eps) {
    if (weight == nullptr) {
        return;
    }
    float scale = row_scale(row, eps);
    for (int i = static_cast<int>(threadIdx.x); i < row.cols; i += static_cast<int>(blockDim.x)) {
        row.values[i] = normed(row.values[i], scale, weight[i]);
    }
}

// The row as f32. Each thread stores what it has written itself.
BN_DEVICE void store_row(const Row &row, float *out) {
    for (int i = static_cast<int>(threadIdx.x); i < row.cols; i += static_cast<int>(blockDim.x)) {
        out[i] = row.values[i];
    }
}

// The row as int8 of one scale, 127 / max(absmax, 1e-5), zeros behind its columns; and the sum of its integers.
BN_DEVICE void quantize_row(const Row &row, int8_t *values, float *scale, int *sum) {
    int step = static_cast<int>(blockDim.x);
    float most = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < row.stride; i += step) {
        if (i >= row.cols) {
            row.values[i] = 0.0f;
        }
        most = larger_magnitude(most, row.values[i]);
    }
    // The barrier within completes the row too.
    float row_scale = div_rn(127.0f, fmaxf(block_max(most, row.maxima), 1e-5f));
    int total = 0;
    for (int i = static_cast<int>(threadIdx.x); i < row.stride / 4; i += step) {
        char4 q = int8s(reinterpret_cast<const float4 *>(row.values)[i], row_scale);
        reinterpret_cast<char4 *>(values)[i] = q;
        total += q.x + q.y + q.z + q.w;
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

// out[r] = table[ids[r]] * scale. table [vocab, cols] of `type`, ids [rows], each below vocab, out [rows, cols].
// Grid: rows. Block: any.
BN_KERNEL(embed)(const void *table, int type, const uint32_t *ids, float scale, float *out, int cols) {
    begin_kernel();
    size_t from = static_cast<size_t>(ids[blockIdx.x]) * static_cast<size_t>(cols);
    for (int i = static_cast<int>(threadIdx.x); i < cols; i += static_cast<int>(blockDim.x)) {
        out[row_at(cols) + i] = mul_rn(table_value(table, type, from + i), scale);
    }
}

// out[r] = x[rows[r]]. x [any, cols], rows [n], out [n, cols]. Grid: n. Block: any.
BN_KERNEL(gather_rows)(const float *x, const uint32_t *rows, float *out, int cols) {
    begin_kernel();
    const float *from = x + static_cast<size_t>(rows[blockIdx.x]) * static_cast<size_t>(cols);
    for (int i = static_cast<int>(threadIdx.x); i < cols; i += static_cast<int>(blockDim.x)) {
        out[row_at(cols) + i] = from[i];
    }
}

// x += y. n elements of each. Grid: enough blocks for a thread each. Block: any.
BN_KERNEL(add)(float *x, const float *y, size_t n) {
    begin_kernel();
    size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] = add_rn(x[i], y[i]);
    }
}

// x += norm(y, weight). x, y [rows, cols], weight [cols]. Grid: rows. Block: any. Shared: row_bytes of cols in fours.
BN_KERNEL(add_rms_norm)(float *x, const float *y, const float *weight, float eps, int cols) {
    begin_kernel();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4);
    add_row(x + row_at(cols), y + row_at(cols), weight, eps, row);
}

// x = norm(x, weight) of `cols` columns of rows of `stride`, in place. x points at the first of these columns, weight [cols].
// Grid, block and shared: as bn_add_rms_norm.
BN_KERNEL(norm_columns)(float *x, const float *weight, float eps, int cols, int stride) {
    begin_kernel();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4);
    load_row(x + row_at(stride), row);
    norm_row(row, weight, eps);
    store_row(row, x + row_at(stride));
}

// x += y, y normed first where y_weight is not null, nothing where y is null; out = norm(x, weight), x itself where
// weight is null. x, y, out [rows, cols], weights [cols]. Grid, block and shared: as bn_add_rms_norm.
BN_KERNEL(add_norm)(float *x, const float *y, const float *y_weight, float y_eps, const float *weight, float eps,
    float *out, int cols) {
    begin_kernel();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4);
    add_row(x + row_at(cols), y == nullptr ? y : y + row_at(cols), y_weight, y_eps, row);
    norm_row(row, weight, eps);
    store_row(row, out + row_at(cols));
}

// As bn_add_norm, as int8: values [rows, stride], zeros from cols on, stride a multiple of 4; scales and sums [rows].
// Grid: rows. Block: any. Shared: row_bytes(stride).
BN_KERNEL(add_norm_quantize)(float *x, const float *y, const float *y_weight, float y_eps, const float *weight,
    float eps, int8_t *values, float *scales, int *sums, int cols, int stride) {
    begin_kernel();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, stride);
    add_row(x + row_at(cols), y == nullptr ? y : y + row_at(cols), y_weight, y_eps, row);
    norm_row(row, weight, eps);
    quantize_row(row, values + row_at(stride), scales + blockIdx.x, sums + blockIdx.x);
}

// out = act(gate) * up, normed where weight is not null. gate_up [rows, 2 cols], gate first, out [rows, cols].
// Grid, block and shared: as bn_add_rms_norm.
BN_KERNEL(gated_norm)(const float *gate_up, int activation, const float *weight, float eps, float *out, int cols) {
    begin_kernel();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, (cols + 3) / 4 * 4);
    gated_row(gate_up + row_at(2 * cols), activation, row);
    norm_row(row, weight, eps);
    store_row(row, out + row_at(cols));
}

// As bn_gated_norm, as int8: values, scales, sums, grid, block and shared as bn_add_norm_quantize.
BN_KERNEL(gated_norm_quantize)(const float *gate_up, int activation, const float *weight, float eps, int8_t *values,
    float *scales, int *sums, int cols, int stride) {
    begin_kernel();
    BN_SHARED(shared);
    Row row = shared_row(shared, cols, stride);
    gated_row(gate_up + row_at(2 * cols), activation, row);
    norm_row(row, weight, eps);
    quantize_row(row, values + row_at(stride), scales + blockIdx.x, sums + blockIdx.x);
}

// int8 with a scale for each 32 columns: scale = absmax / 127, value = x * (127 / absmax) rounded, 0 for NaN and where
// absmax is 0. x, values [blocks, 32], scales and sums [blocks]; rows follow each other, so their number is of no
// matter. Grid: enough blocks for a warp each. Block: any.
BN_KERNEL(quantize_blocks32)(const float *x, int8_t *values, float *scales, int16_t *sums, size_t blocks) {
    begin_kernel();
    size_t block = static_cast<size_t>(blockIdx.x) * (blockDim.x / WARP) + static_cast<size_t>(warp());
    if (block >= blocks) {
        return; // a whole warp
    }
    float value = x[block * WARP + lane()];
    float most = warp_max(larger_magnitude(0.0f, value));
    // A subnormal block's is infinite.
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
    // Eight columns for each lane.
    size_t at = block * WARP + static_cast<size_t>(lane());
    const float4 *from = reinterpret_cast<const float4 *>(x) + 2 * at;
    const float4 halves[] = {from[0], from[1]};
    float most = 0.0f;
    for (float4 v : halves) {
        most = larger_magnitude(larger_magnitude(most, v.x), v.y);
        most = larger_magnitude(larger_magnitude(most, v.z), v.w);
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
