// What products take, and their last steps, of which GEMV and GEMM have one.
#pragma once

#include "weights.cuh"

// What a ternary product takes; `cols` is a multiple of 128, x and weights are padded to it with zeros.
struct Ternary {
    float *out;
    const int8_t *x;          // [tokens, cols]
    const float *x_scales;    // [tokens]
    const int *x_sums;        // [tokens], of x
    const uint8_t *weights;   // [rows, cols / 4], as I2_S or `Ternary` has them
    const float *scales;      // [rows] where scale_step is 1 (`Ternary`), [1] where it is 0 (I2_S)
    int scale_step, tokens, rows, cols;
    int64_t stride;
};

// What a product with weights in blocks takes; `cols` is a multiple of the type's ELEMENTS.
struct Blocks {
    float *out;
    const int8_t *x;         // [tokens, cols]
    const float *x_scales;   // [tokens, cols / 32]
    const int16_t *x_sums;   // [tokens, cols / 32], of x
    const uint8_t *codes;    // [rows, cols * BITS / 8], of `repack`
    const uint16_t *scales;  // [rows, cols / ELEMENTS], f16
    int tokens, rows, cols;
    int64_t stride;
};

// What an f32 product takes; `cols` is a multiple of 16.
struct Dense {
    float *out;
    const float *x;          // [tokens, cols]
    const uint8_t *weights;  // [rows, cols], of two bytes each
    int tokens, rows, cols;
    int64_t stride;
};

// The CPU's last step of a ternary product; `dot` is of codes 0, 1 and 2, `sum` the row of activations' own.
BN_DEVICE float ternary_value(int dot, int sum, float weight_scale, float scale) {
    return mul_rn(static_cast<float>(dot - sum), div_rn(weight_scale, scale));
}

// The sum of sixteen lanes, of which a thread of four has lanes 4q to 4q + 3: halves added until one is left, as the
// CPU's `tree_sum` does. In all four threads.
BN_DEVICE float quad_sum(float (&lanes)[4]) {
    BN_UNROLL
    for (int mask = 2; mask > 0; mask /= 2) {
        BN_UNROLL
        for (int i = 0; i < 4; i++) lanes[i] = add_rn(lanes[i], shfl_xor(lanes[i], mask));
    }
    return add_rn(add_rn(lanes[0], lanes[2]), add_rn(lanes[1], lanes[3]));
}
