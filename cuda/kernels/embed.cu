// Rows of an embedding whose table is a matrix of a quantized type, as uploaded for products; a tied head uses the same
// matrix. Every bit is the CPU's (`dequantize_row` of src/kernels/gemm/formats, then times a scale). Tables of single
// elements: `bn_embed` of rows.cu.
//
// Lower bound: the output's bytes, 5.2 MB for 512 rows of 2560, 1.6 us on an H100; the table's rows are at most a third
// of that. A thread has one column at a time, so neighbors read one word and write next to each other.
#include "weights.cuh"

namespace {

// Returns the weight in column `col` of row `row` of a matrix of blocks.
template <class Format>
BN_DEVICE float block_weight(const uint8_t *codes, const uint16_t *scales, const Planes<Format> &planes, int64_t row,
    int col) {
    int b = col / 32, n = col % 32 / 4;
    auto words = [&](int64_t at) { return reinterpret_cast<const uint32_t *>(codes + at); };
    uint32_t low = plane_word<Format, Format::BITS>(words(row * planes.low_row + b * (4 * Format::BITS)), n), high = 0;
    if constexpr (Format::HIGH != 0) {
        high = plane_word<Format, Format::HIGH>(words(planes.high + row * planes.high_row + b * (4 * Format::HIGH)), n);
    }
    uint32_t byte = join<Format>(low, high) >> (col % 4 * 8);
    int code = SIGNED<Format> ? static_cast<int8_t>(byte & 0xff) : static_cast<int>(byte & 0xff) - Format::OFFSET;
    float d, min = 0.0f;
    load_scale<Format>(scales, row * (planes.cols / Format::ELEMENTS) + col / Format::ELEMENTS, d, min);
    if constexpr (Format::GROUP != 0) {
        const uint8_t *groups = codes + planes.groups + row * planes.group_row;
        Group group = group_of<Format>(reinterpret_cast<const uint16_t *>(groups)[b]);
        int half = col % 32 / 16;
        d = mul_rn(d, static_cast<float>(half == 0 ? group.scale[0] : group.scale[1]));
        min = -mul_rn(min, static_cast<float>(half == 0 ? group.min[0] : group.min[1]));
    }
    float weight = mul_rn(d, static_cast<float>(code));
    return Format::MINIMA ? add_rn(weight, min) : weight;
}

// Returns the weight in column `col` of a row with one scale. `row` points to its bytes.
template <class Format>
BN_DEVICE float whole_weight(const uint8_t *row, float scale, int col) {
    int code;
    if (Format::BITS == 8) {
        code = static_cast<int8_t>(row[col]);
    } else {
        code = (row[col / 128 * 32 + col % 32] >> (6 - col % 128 / 32 * 2) & 3) - 1;
    }
    return mul_rn(static_cast<float>(code), scale);
}

} // namespace

// out[r] = table[ids[r]] * scale. codes and scales [rows, cols] as in `Blocks` of products.cuh; ids [n], each below
// rows, out [n, cols]. Grid: n, and any number of blocks that share a row. Block: any.
#define BN_BLOCK_EMBED(name, Format)                                                                                   \
    BN_KERNEL(name##_embed)                                                                                            \
    (const uint8_t *codes, const uint16_t *scales, const uint32_t *ids, float scale, float *out, int rows, int cols) { \
        begin_kernel();                                                                                                \
        Planes<Format> planes(rows, cols);                                                                             \
        float *to = out + static_cast<int64_t>(blockIdx.x) * cols;                                                     \
        int64_t row = ids[blockIdx.x];                                                                                 \
        int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);                                           \
        for (int i = first; i < cols; i += static_cast<int>(gridDim.y * blockDim.x)) {                                 \
            to[i] = mul_rn(block_weight(codes, scales, planes, row, i), scale);                                        \
        }                                                                                                              \
    }
BN_BLOCK_EMBED(q8_0, Q8_0)
BN_BLOCK_EMBED(q4_0, Q4_0)
BN_BLOCK_EMBED(q4_1, Q4_1)
BN_BLOCK_EMBED(q5_0, Q5_0)
BN_BLOCK_EMBED(q5_1, Q5_1)
BN_BLOCK_EMBED(q2_0, Q2_0)
BN_BLOCK_EMBED(q2_0_128, Q2_0_128)
BN_BLOCK_EMBED(q1_0, Q1_0)
BN_BLOCK_EMBED(iq4_nl, IQ4_NL)
BN_BLOCK_EMBED(mxfp4, MXFP4)
BN_BLOCK_EMBED(tq2_0, TQ2_0)
BN_BLOCK_EMBED(q2_k, Q2_K)
BN_BLOCK_EMBED(q3_k, Q3_K)
BN_BLOCK_EMBED(q4_k, Q4_K)
BN_BLOCK_EMBED(q5_k, Q5_K)
BN_BLOCK_EMBED(q6_k, Q6_K)
BN_BLOCK_EMBED(iq4_xs, IQ4_XS)

// The same for weights and scales as in `Whole`, [rows, cols rounded up to a multiple of 128]; out [n, cols]. Grid and
// block: the same.
#define BN_WHOLE_EMBED(name, Format)                                                                                   \
    BN_KERNEL(name##_embed)                                                                                            \
    (const uint8_t *weights, const float *scales, int scale_step, const uint32_t *ids, float scale, float *out,        \
     int cols) {                                                                                                       \
        begin_kernel();                                                                                                \
        int64_t id = ids[blockIdx.x];                                                                                  \
        const uint8_t *row = weights + id * ((cols + 127) / 128 * (16 * Format::BITS));                                \
        float *to = out + static_cast<int64_t>(blockIdx.x) * cols, own = scales[id * scale_step];                      \
        int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);                                           \
        for (int i = first; i < cols; i += static_cast<int>(gridDim.y * blockDim.x)) {                                 \
            to[i] = mul_rn(whole_weight<Format>(row, own, i), scale);                                                  \
        }                                                                                                              \
    }
BN_WHOLE_EMBED(ternary, Ternary)
BN_WHOLE_EMBED(int8, Int8)
