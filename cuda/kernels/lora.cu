// Low-rank updates of a product, y += s B (A x) for some of its rows (src/kernels/gemm/lora). `bn_gather_rows` gathers
// x, and `bn_TYPE_gemv_T` or `bn_TYPE_gemm` multiplies it with A [ranks, cols]. This file does the rest.
//
// Lower bound: the bytes of B, and of y twice: 0.2 MB and 0.05 MB for a row, 16 ranks and 6912 columns, less than a
// launch takes.
#include "weights.cuh"

namespace {

// Rows that share the loads of B.
constexpr int LORA_ROWS = 4;

// Arguments of an update.
struct LoraUp {
    float *y;             // the matrix's first column
    const float *between; // [count, between_stride], A x
    const uint8_t *b;     // [ranks, width]: B's transpose
    const uint32_t *rows; // [count], of y
    float scale;
    int count, ranks, width, between_stride;
    int64_t stride; // of y
};

template <class Element>
BN_DEVICE float element_at(const uint8_t *from, int64_t i) {
    if constexpr (Element::BYTES == 4) {
        return reinterpret_cast<const float *>(from)[i];
    } else {
        return Element::value(reinterpret_cast<const uint16_t *>(from)[i]);
    }
}

// A thread has one column of four rows: `sum = fma(s t, b, sum)` in the order of ranks, then y + sum.
template <class Element>
BN_DEVICE void lora_up(const LoraUp &p) {
    int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    int first = static_cast<int>(blockIdx.y) * LORA_ROWS;
    if (column >= p.width) return;
    const float *between[LORA_ROWS];
    BN_UNROLL
    for (int n = 0; n < LORA_ROWS; n++) {
        between[n] = p.between + static_cast<int64_t>(min(first + n, p.count - 1)) * p.between_stride;
    }
    float sums[LORA_ROWS] = {};
    BN_UNROLL_BY(4)
    for (int k = 0; k < p.ranks; k++) {
        float weight = element_at<Element>(p.b, static_cast<int64_t>(k) * p.width + column);
        BN_UNROLL
        for (int n = 0; n < LORA_ROWS; n++) sums[n] = fma_rn(mul_rn(between[n][k], p.scale), weight, sums[n]);
    }
    BN_UNROLL
    for (int n = 0; n < LORA_ROWS; n++) {
        if (first + n >= p.count) continue;
        float *y = p.y + p.rows[first + n] * p.stride + column;
        *y = add_rn(*y, sums[n]);
    }
}

} // namespace

// `bn_lora_up_TYPE`: y[rows[n]] += s between[n] B for n below count (arguments: `LoraUp`). Rows are distinct. The scale
// is the adapter's times the pair's. Grid: ceil(width / block), ceil(count / 4). Block: any.
#define BN_LORA_UP(name, Element)                                                                                      \
    BN_KERNEL(lora_up_##name)                                                                                          \
    (float *y, const float *between, const uint8_t *b, const uint32_t *rows, float scale, int count, int ranks,        \
     int width, int between_stride, int64_t stride) {                                                                  \
        begin_kernel();                                                                                                \
        lora_up<Element>({y, between, b, rows, scale, count, ranks, width, between_stride, stride});                   \
    }
BN_LORA_UP(f32, F32)
BN_LORA_UP(f16, F16)
BN_LORA_UP(bf16, BF16)
