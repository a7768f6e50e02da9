// Arguments of products, and their last steps, which GEMV and GEMM share.
#pragma once

#include "weights.cuh"

// Arguments of a product whose weights have one scale per row. `cols` is a multiple of 128; x and weights are padded
// with zeros.
struct Whole {
    float *out;
    const float *bias;      // per output, or null
    const int8_t *x;        // [tokens, cols]
    const float *x_scales;  // [tokens]
    const int *x_sums;      // [tokens], sums of x
    const uint8_t *weights; // [rows, cols / 4], as I2_S or `Ternary` has them; for `Int8` [rows, cols]
    const float *scales;    // [rows] where scale_step is 1 (`Ternary`, `Int8`), [1] where it is 0 (I2_S)
    int scale_step, tokens, rows, cols;
    int64_t stride;
    int block;  // this block's number among those that share the rows
    int column; // the first row's column in the output
};

// Arguments of a product with weights in blocks. `cols` is a multiple of the type's ELEMENTS.
struct Blocks {
    float *out;
    const float *bias;
    const int8_t *x;         // [tokens, cols]
    const float *x_scales;   // [tokens, cols / 32], with super-blocks [tokens, cols / 256]
    const int16_t *x_sums;   // [tokens, cols / 32], sums of x, with super-blocks [tokens, cols / 16]
    const uint8_t *codes;    // planes made by `repack`
    const uint16_t *scales;  // [rows, cols / ELEMENTS] f16, pairs of scale and minimum, or exponents of one byte
    int tokens, rows, cols;
    int64_t stride;
    int block, column;
};

// Arguments of a product with weights without scales. `cols` is a multiple of 16, for F16 and BF16 of 8.
struct Dense {
    float *out;
    const float *bias;
    const float *x;          // [tokens, cols]
    const uint8_t *weights;  // [rows, cols], in the element's type
    int tokens, rows, cols;
    int64_t stride;
    int block, column;
};

// The arguments that differ between a product's matrices.
struct WholeMatrix {
    const uint8_t *weights;
    const float *scales;
    int scale_step, rows;
};
struct BlocksMatrix {
    const uint8_t *codes;
    const uint16_t *scales;
    int rows;
};
struct DenseMatrix {
    const uint8_t *weights;
    int rows;
};

// A block's matrix, the block's number among those of the matrix, and the matrix's first output.
template <class Matrix>
struct Turn {
    Matrix matrix;
    int block, column;
};

BN_DEVICE WholeMatrix choose(bool yes, const WholeMatrix &a, const WholeMatrix &b) {
    return {yes ? a.weights : b.weights, yes ? a.scales : b.scales, yes ? a.scale_step : b.scale_step, yes ? a.rows : b.rows};
}

BN_DEVICE BlocksMatrix choose(bool yes, const BlocksMatrix &a, const BlocksMatrix &b) {
    return {yes ? a.codes : b.codes, yes ? a.scales : b.scales, yes ? a.rows : b.rows};
}

BN_DEVICE DenseMatrix choose(bool yes, const DenseMatrix &a, const DenseMatrix &b) {
    return {yes ? a.weights : b.weights, yes ? a.rows : b.rows};
}

// Distributes the blocks of the grid to the matrices in order, with `outputs` rows per block.
template <class Matrix>
BN_DEVICE Turn<Matrix> turn_of(unsigned block, int outputs, const Matrix &first, const Matrix &second, const Matrix &third) {
    int own = static_cast<int>(block);
    int second_at = (first.rows + outputs - 1) / outputs, third_at = second_at + (second.rows + outputs - 1) / outputs;
    bool behind = own >= second_at, last = own >= third_at;
    return {choose(last, third, choose(behind, second, first)), own - (last ? third_at : behind ? second_at : 0),
        last ? first.rows + second.rows : behind ? first.rows : 0};
}

constexpr int GEMV_THREADS = 128;
#define BN_GEMV(name) BN_KERNEL_OF(GEMV_THREADS, name)

// Kernels of products take up to three matrices of one type, whose outputs are adjacent. A matrix of 0 rows is absent.
// Arguments are scalars and pointers, not structs, because that is what a launch passes. `kernel` is BN_GEMV or BN_GEMM
// of a name. Block `index` of the grid has `outputs` rows. The last argument is called with the product of the block's
// matrix.
#define BN_WHOLE_KERNEL(kernel, index, outputs, ...)                                                                   \
    kernel                                                                                                             \
    (float *out, const int8_t *x, const float *x_scales, const int *x_sums, const float *bias, int tokens, int cols,   \
     int64_t stride, const uint8_t *weights0, const float *scales0, int step0, int rows0, const uint8_t *weights1,     \
     const float *scales1, int step1, int rows1, const uint8_t *weights2, const float *scales2, int step2,             \
     int rows2) {                                                                                                      \
        let_next_begin();                                                                                              \
        Turn<WholeMatrix> turn = turn_of<WholeMatrix>(index, outputs, {weights0, scales0, step0, rows0},               \
            {weights1, scales1, step1, rows1}, {weights2, scales2, step2, rows2});                                     \
        __VA_ARGS__({out, bias, x, x_scales, x_sums, turn.matrix.weights, turn.matrix.scales, turn.matrix.scale_step,  \
            tokens, turn.matrix.rows, cols, stride, turn.block, turn.column});                                         \
    }
#define BN_BLOCKS_KERNEL(kernel, index, outputs, ...)                                                                  \
    kernel                                                                                                             \
    (float *out, const int8_t *x, const float *x_scales, const int16_t *x_sums, const float *bias, int tokens,         \
     int cols, int64_t stride, const uint8_t *codes0, const uint16_t *scales0, int rows0, const uint8_t *codes1,       \
     const uint16_t *scales1, int rows1, const uint8_t *codes2, const uint16_t *scales2, int rows2) {                  \
        let_next_begin();                                                                                              \
        Turn<BlocksMatrix> turn = turn_of<BlocksMatrix>(index, outputs, {codes0, scales0, rows0},                      \
            {codes1, scales1, rows1}, {codes2, scales2, rows2});                                                       \
        __VA_ARGS__({out, bias, x, x_scales, x_sums, turn.matrix.codes, turn.matrix.scales, tokens, turn.matrix.rows,  \
            cols, stride, turn.block, turn.column});                                                                   \
    }
#define BN_DENSE_KERNEL(kernel, index, outputs, ...)                                                                   \
    kernel                                                                                                             \
    (float *out, const float *x, const float *bias, int tokens, int cols, int64_t stride, const uint8_t *weights0,     \
     int rows0, const uint8_t *weights1, int rows1, const uint8_t *weights2, int rows2) {                              \
        let_next_begin();                                                                                              \
        Turn<DenseMatrix> turn =                                                                                       \
            turn_of<DenseMatrix>(index, outputs, {weights0, rows0}, {weights1, rows1}, {weights2, rows2});             \
        __VA_ARGS__({out, bias, x, turn.matrix.weights, tokens, turn.matrix.rows, cols, stride, turn.block, turn.column});\
    }

// Row t of x, or the last row if there is no row t; results for missing rows are not written.
BN_DEVICE int row_or_last(int t, int rows) {
    return t < rows ? t : rows - 1;
}

// Prefetches `count` rows from `first` on of a matrix of `rows` rows of `bytes` bytes. Weights depend on no other
// kernel, so they are loaded while earlier kernels still run.
BN_DEVICE void prefetch_rows(const void *matrix, int64_t bytes, int first, int count, int rows) {
    count = min(count, rows - first);
    if (threadIdx.x != 0 || count <= 0) return;
    // Scales need not begin or end at multiples of 16 bytes.
    uint64_t begin = reinterpret_cast<uint64_t>(matrix) + first * bytes, end = begin + count * bytes;
    begin = (begin + 15) / 16 * 16;
    end = end / 16 * 16;
    if (begin < end) prefetch_l2(reinterpret_cast<const void *>(begin), static_cast<uint32_t>(end - begin));
}

// Prefetches all parts of weights in blocks.
template <class Format>
BN_DEVICE void prefetch_blocks(const Blocks &p, const Planes<Format> &planes, int first, int count) {
    prefetch_rows(p.codes, static_cast<int64_t>(p.cols) * Format::BITS / 8, first, count, p.rows);
    if (Format::HIGH != 0) prefetch_rows(p.codes + planes.high, planes.high_row, first, count, p.rows);
    if (Format::GROUP != 0) prefetch_rows(p.codes + planes.groups, planes.group_row, first, count, p.rows);
    int64_t scales = p.cols / Format::ELEMENTS * SCALE_BYTES<Format>;
    prefetch_rows(p.scales, scales, first, count, p.rows);
}

// Writes a product's value for token t and row `row`, after adding the bias.
template <class Product>
BN_DEVICE void write(const Product &p, int t, int row, float value) {
    int output = p.column + row;
    p.out[t * p.stride + output] = p.bias != nullptr ? add_rn(value, p.bias[output]) : value;
}

// The CPU's last step of such a product, for row `row` of token t. Ternary codes are 1 too large.
template <class Format>
BN_DEVICE void write_whole(const Whole &p, int t, int row, int dot) {
    float own = p.scales[row * p.scale_step], scale = p.x_scales[t];
    bool ternary = Format::BITS == 2;
    float factor = ternary ? div_rn(own, scale) : mul_rn(own, div_rn(1.0f, scale));
    write(p, t, row, mul_rn(static_cast<float>(ternary ? dot - p.x_sums[t] : dot), factor));
}

// Returns in all four threads the sum of sixteen lanes, of which thread q of four has lanes 4q to 4q + 3. Adds halves
// until one lane is left, as the CPU's `tree_sum` does.
BN_DEVICE float quad_sum(float (&lanes)[4]) {
    BN_UNROLL
    for (int mask = 2; mask > 0; mask /= 2) {
        BN_UNROLL
        for (int i = 0; i < 4; i++) lanes[i] = add_rn(lanes[i], shfl_xor(lanes[i], mask));
    }
    return add_rn(add_rn(lanes[0], lanes[2]), add_rn(lanes[1], lanes[3]));
}
