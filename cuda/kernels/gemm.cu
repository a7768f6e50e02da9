// Products of more than 8 rows of activations: prompts and large batches. Any number of rows and of outputs: what a tile
// has behind the last row is computed from that row, and not written. Bits are those of the GEMV, and so the CPU's.
//
// Floor: 2 x tokens x outputs x columns operations over the rate. 512 tokens through 2560 x 6912 ternary weights are 18.1
// GOP, 9.2 us on an H100 at 1979 TOPS of dense int8; mma.sync, which is all that sm_80 has, reaches about 60 % of that.
// Types with scales in blocks add three f32 operations for each 32 columns of an output: 0.85 G for 512 tokens, 25 us at
// 33 T a second. F16 and bf16 run on f32 FMA, 67 TFLOPS: 270 us.
//
// Registers of sm_90 (at most 124) let an SM of an H100 have two blocks, 16 warps; shared memory (57 KB of a block at most, as
// Q8_0) would do for four. More than 48 KB are to be allowed by the launch (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES).
//
// Grid: x over tiles of tokens, so that those that share weights run together, y over tiles of outputs; 256 threads.
#include "products.cuh"
#include "tiles.cuh"

namespace {

constexpr int GEMM_THREADS = 256;
// A block's tile of the integer products, and a warp's.
constexpr int TILE_TOKENS = 64, TILE_OUTPUTS = 128;
constexpr int WARP_TOKENS = 32, WARP_OUTPUTS = 32;
// mma's tiles within a warp's.
constexpr int LEFTS = WARP_TOKENS / 16, RIGHTS = WARP_OUTPUTS / 8;
static_assert(TILE_TOKENS / WARP_TOKENS * (TILE_OUTPUTS / WARP_OUTPUTS) * WARP == GEMM_THREADS, "a warp for each");

constexpr int LEFT_BYTES = TILE_TOKENS * STEP;

// The tile's place of this warp, in tokens and outputs.
BN_DEVICE int warp_token() {
    return warp() / (TILE_OUTPUTS / WARP_OUTPUTS) * WARP_TOKENS;
}

BN_DEVICE int warp_output() {
    return warp() % (TILE_OUTPUTS / WARP_OUTPUTS) * WARP_OUTPUTS;
}

// Token and output within the tile of element i of mma's result for left tile m and right tile n.
BN_DEVICE int token_of(int m, int i) {
    return warp_token() + 16 * m + i / 2 * 8 + lane() / 4;
}

BN_DEVICE int output_of(int n, int i) {
    return warp_output() + 8 * n + lane() % 4 * 2 + i % 2;
}

// I2_S has 128 columns of a row in two pieces.
constexpr int TERNARY_PIECES = 2;
constexpr int TERNARY_STAGE = LEFT_BYTES + TILE_OUTPUTS * TERNARY_PIECES * 16;

// Adds 128 columns.
BN_DEVICE void ternary_step(const unsigned char *x, const unsigned char *weights, int (&dots)[LEFTS][RIGHTS][4]) {
    uint32_t words[RIGHTS][2];
    BN_UNROLL
    for (int n = 0; n < RIGHTS; n++) {
        int row = warp_output() + 8 * n + lane() / 4;
        BN_UNROLL
        for (int half = 0; half < 2; half++) {
            words[n][half] = word_at<TERNARY_PIECES>(weights, row, half, lane() % 4);
        }
    }
    BN_UNROLL
    for (int k = 0; k < 4; k++) {
        uint32_t left[LEFTS][4];
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) load_left(x, warp_token() + 16 * m, k, left[m]);
        BN_UNROLL
        for (int n = 0; n < RIGHTS; n++) {
            int shift = 6 - 2 * k;
            uint32_t right[2] = {words[n][0] >> shift & 0x03030303u, words[n][1] >> shift & 0x03030303u};
            BN_UNROLL
            for (int m = 0; m < LEFTS; m++) mma_s8(dots[m][n], left[m], right);
        }
    }
}

BN_DEVICE void ternary_write(const Ternary &p, int token0, int output0, const int (&dots)[LEFTS][RIGHTS][4]) {
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        BN_UNROLL
        for (int half = 0; half < 2; half++) {
            int t = token0 + token_of(m, 2 * half);
            if (t >= p.tokens) continue;
            float scale = p.x_scales[t];
            int sum = p.x_sums[t];
            BN_UNROLL
            for (int n = 0; n < RIGHTS; n++) {
                BN_UNROLL
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    int row = output0 + output_of(n, i);
                    if (row >= p.rows) continue;
                    p.out[t * p.stride + row] =
                        ternary_value(dots[m][n][i], sum, p.scales[row * p.scale_step], scale);
                }
            }
        }
    }
}

BN_DEVICE void ternary_gemm(const Ternary &p) {
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * TILE_TOKENS, output0 = static_cast<int>(blockIdx.y) * TILE_OUTPUTS;
    Source x{reinterpret_cast<const uint8_t *>(p.x), p.cols, token0, p.tokens};
    Source weights{p.weights, p.cols / 4, output0, p.rows};
    auto stage_step = [&](int step) {
        unsigned char *to = memory + step % 2 * TERNARY_STAGE;
        stage<GEMM_THREADS, TILE_TOKENS, STEP_PIECES>(to, x, step * STEP_PIECES);
        stage<GEMM_THREADS, TILE_OUTPUTS, TERNARY_PIECES>(to + LEFT_BYTES, weights, step * TERNARY_PIECES);
        copy_async_commit();
    };
    int dots[LEFTS][RIGHTS][4] = {};
    int steps = p.cols / STEP;
    stage_step(0);
    for (int step = 0; step < steps; step++) {
        copy_async_wait<0>();
        // All see the step's columns, and none reads those before them, whose place the next ones take.
        sync_block();
        if (step + 1 < steps) stage_step(step + 1);
        const unsigned char *from = memory + step % 2 * TERNARY_STAGE;
        ternary_step(from, from + LEFT_BYTES, dots);
    }
    ternary_write(p, token0, output0, dots);
}

// Scales and sums of a step, for its blocks of 32 columns.
constexpr int STEP_BLOCKS = STEP / 32;
struct Scales {
    float x[STEP_BLOCKS][TILE_TOKENS], weights[STEP_BLOCKS][TILE_OUTPUTS];
    // What sums begin with: the bits of `BIAS`, less what the type's offset takes.
    int start[STEP_BLOCKS][TILE_TOKENS];
};
static_assert(sizeof(Scales) % 16 == 0, "what follows is aligned");

// The bits of the float BIAS plus a dot product are those of the float BIAS + the dot product, since a block's is far
// below 2^22. So the difference to BIAS makes it a float, exactly, without a conversion, which is a slow instruction.
constexpr int BIAS_BITS = 0x4b400000;
constexpr float BIAS = 12582912.0f;

// A thread's share of a step's scales, on its way from global to shared memory.
struct Fetched {
    static constexpr int EACH = STEP_BLOCKS * TILE_OUTPUTS / GEMM_THREADS;
    float x, weights[EACH];
    int start;
};
static_assert(STEP_BLOCKS * TILE_TOKENS == GEMM_THREADS, "each thread has one of the activations' scales");

template <class Format>
BN_DEVICE Fetched fetch_scales(const Blocks &p, int token0, int output0, int step) {
    int thread = static_cast<int>(threadIdx.x), blocks = p.cols / 32;
    // Blocks behind the last are not computed.
    auto block = [&](int b) { return min(step * STEP_BLOCKS + b, blocks - 1); };
    int64_t t = min(token0 + thread / STEP_BLOCKS, p.tokens - 1);
    int64_t at = t * blocks + block(thread % STEP_BLOCKS);
    Fetched fetched;
    fetched.x = p.x_scales[at];
    fetched.start = BIAS_BITS - (Format::OFFSET == 0 ? 0 : Format::OFFSET * p.x_sums[at]);
    BN_UNROLL
    for (int i = 0; i < Fetched::EACH; i++) {
        int n = thread + i * GEMM_THREADS;
        int64_t row = min(output0 + n / STEP_BLOCKS, p.rows - 1);
        int in_row = block(n % STEP_BLOCKS) / (Format::ELEMENTS / 32);
        fetched.weights[i] = half_to_float(p.scales[row * (p.cols / Format::ELEMENTS) + in_row]);
    }
    return fetched;
}

BN_DEVICE void store_scales(Scales &to, const Fetched &fetched) {
    int thread = static_cast<int>(threadIdx.x);
    to.x[thread % STEP_BLOCKS][thread / STEP_BLOCKS] = fetched.x;
    to.start[thread % STEP_BLOCKS][thread / STEP_BLOCKS] = fetched.start;
    BN_UNROLL
    for (int i = 0; i < Fetched::EACH; i++) {
        int n = thread + i * GEMM_THREADS;
        to.weights[n % STEP_BLOCKS][n / STEP_BLOCKS] = fetched.weights[i];
    }
}

// mma's right operand: 32 columns of outputs `row` to `row + 7`.
template <class Format>
BN_DEVICE void load_right(const unsigned char *tile, int row, int slice, uint32_t (&b)[2]) {
    constexpr int PIECES = Format::BITS;
    row += lane() / 4;
    int q = lane() % 4, first = slice * Format::BITS; // in words
    auto word = [&](int w) { return word_at<PIECES>(tile, row, (first + w) / 4, (first + w) % 4); };
    if constexpr (Format::BITS == 8) {
        b[0] = word(q), b[1] = word(4 + q);
    } else if constexpr (Format::BITS == 4) {
        uint32_t words[4] = {};
        uint32_t own = word(q);
        words[0] = own;
        b[0] = code_word<Format>(words, 0), b[1] = code_word<Format>(words, 4);
    } else if constexpr (Format::BITS == 2) {
        uint32_t words[2] = {word(0), word(1)};
        b[0] = code_word<Format>(words, q), b[1] = code_word<Format>(words, 4 + q);
    } else {
        uint32_t words[1] = {word(0)};
        b[0] = code_word<Format>(words, q), b[1] = code_word<Format>(words, 4 + q);
    }
}

using Sums = float[LEFTS][RIGHTS][4];

// Adds block `block` of the step.
template <class Format>
BN_DEVICE void block_step(const unsigned char *x, const unsigned char *codes, const Scales &scales, int block, Sums &sums) {
    uint32_t left[LEFTS][4];
    float x_scales[LEFTS][2];
    int starts[LEFTS][2];
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        load_left(x, warp_token() + 16 * m, block, left[m]);
        BN_UNROLL
        for (int half = 0; half < 2; half++) {
            x_scales[m][half] = scales.x[block][token_of(m, 2 * half)];
            starts[m][half] = scales.start[block][token_of(m, 2 * half)];
        }
    }
    BN_UNROLL
    for (int n = 0; n < RIGHTS; n++) {
        uint32_t right[2];
        load_right<Format>(codes, warp_output() + 8 * n, block, right);
        float scale[2] = {scales.weights[block][output_of(n, 0)], scales.weights[block][output_of(n, 1)]};
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) {
            int dots[4] = {starts[m][0], starts[m][0], starts[m][1], starts[m][1]};
            mma_s8(dots, left[m], right);
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                float dot = add_rn(__int_as_float(dots[i]), -BIAS);
                sums[m][n][i] = fma_rn(dot, mul_rn(scale[i % 2], x_scales[m][i / 2]), sums[m][n][i]);
            }
        }
    }
}

BN_DEVICE void block_write(const Blocks &p, int token0, int output0, const Sums &sums) {
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        BN_UNROLL
        for (int n = 0; n < RIGHTS; n++) {
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                int t = token0 + token_of(m, i), row = output0 + output_of(n, i);
                if (t < p.tokens && row < p.rows) p.out[t * p.stride + row] = sums[m][n][i];
            }
        }
    }
}

template <class Format>
BN_DEVICE void block_gemm(const Blocks &p) {
    constexpr int PIECES = Format::BITS; // of a row's 128 columns
    constexpr int RIGHT = LEFT_BYTES, SCALES = RIGHT + TILE_OUTPUTS * PIECES * 16;
    constexpr int STAGE = SCALES + static_cast<int>(sizeof(Scales));
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * TILE_TOKENS, output0 = static_cast<int>(blockIdx.y) * TILE_OUTPUTS;
    int blocks = p.cols / 32, steps = (blocks + STEP_BLOCKS - 1) / STEP_BLOCKS;
    Source x{reinterpret_cast<const uint8_t *>(p.x), p.cols, token0, p.tokens};
    Source codes{p.codes, static_cast<int64_t>(p.cols) * Format::BITS / 8, output0, p.rows};
    auto stage_step = [&](int step) {
        unsigned char *to = memory + step % 2 * STAGE;
        stage<GEMM_THREADS, TILE_TOKENS, STEP_PIECES>(to, x, step * STEP_PIECES);
        stage<GEMM_THREADS, TILE_OUTPUTS, PIECES>(to + RIGHT, codes, step * PIECES);
        copy_async_commit();
    };
    auto scales = [&](int step) { return reinterpret_cast<Scales *>(memory + step % 2 * STAGE + SCALES); };
    Sums sums = {};
    stage_step(0);
    store_scales(*scales(0), fetch_scales<Format>(p, token0, output0, 0));
    for (int step = 0; step < steps; step++) {
        copy_async_wait<0>();
        sync_block(); // as in `ternary_gemm`
        bool more = step + 1 < steps;
        Fetched fetched{};
        if (more) {
            stage_step(step + 1);
            fetched = fetch_scales<Format>(p, token0, output0, step + 1);
        }
        const unsigned char *from = memory + step % 2 * STAGE;
        int count = min(STEP_BLOCKS, blocks - step * STEP_BLOCKS);
        for (int b = 0; b < count; b++) block_step<Format>(from, from + RIGHT, *scales(step), b, sums);
        if (more) store_scales(*scales(step + 1), fetched);
    }
    block_write(p, token0, output0, sums);
}

// A block's tile; four threads share 4 x 4 of its outputs, each with four lanes of their sums.
constexpr int DENSE_TOKENS = 32, DENSE_OUTPUTS = 32, DENSE_STEP = 64;
constexpr int DENSE_X_PIECES = DENSE_STEP / 4, DENSE_W_PIECES = DENSE_STEP / 8;
constexpr int DENSE_X_BYTES = DENSE_TOKENS * DENSE_X_PIECES * 16;
constexpr int DENSE_STAGE = DENSE_X_BYTES + DENSE_OUTPUTS * DENSE_W_PIECES * 16;
// Fours of threads side by side along tokens and along outputs: what one has is so far apart.
constexpr int ACROSS_TOKENS = DENSE_TOKENS / 4, ACROSS_OUTPUTS = DENSE_OUTPUTS / 4;
static_assert(4 * ACROSS_TOKENS * ACROSS_OUTPUTS == GEMM_THREADS, "four threads for each 4 x 4 outputs");

using Lanes = float[4][4][4];

// Adds columns 16k to 16k + 15 of the step; token and output are the first of this four's.
template <class Element>
BN_DEVICE void dense_step(const unsigned char *stage, int token, int output, int k, Lanes &sums) {
    int part = lane() % 4;
    float x[4][4];
    BN_UNROLL
    for (int t = 0; t < 4; t++) {
        int at = place<DENSE_X_PIECES, 4>(token + t * ACROSS_TOKENS, 4 * k + part);
        Floats4 four = *reinterpret_cast<const Floats4 *>(stage + at);
        BN_UNROLL
        for (int i = 0; i < 4; i++) x[t][i] = four.value[i];
    }
    BN_UNROLL
    for (int r = 0; r < 4; r++) {
        float weights[4];
        int at = place<DENSE_W_PIECES, 2>(output + r * ACROSS_OUTPUTS, 2 * k + part / 2) + part % 2 * 8;
        load_four<Element>(stage + DENSE_X_BYTES + at, weights);
        BN_UNROLL
        for (int t = 0; t < 4; t++) {
            BN_UNROLL
            for (int i = 0; i < 4; i++) sums[t][r][i] = fma_rn(x[t][i], weights[i], sums[t][r][i]);
        }
    }
}

template <class Element>
BN_DEVICE void dense_gemm(const Dense &p) {
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * DENSE_TOKENS, output0 = static_cast<int>(blockIdx.y) * DENSE_OUTPUTS;
    Source x{reinterpret_cast<const uint8_t *>(p.x), 4 * static_cast<int64_t>(p.cols), token0, p.tokens};
    Source weights{p.weights, 2 * static_cast<int64_t>(p.cols), output0, p.rows};
    auto stage_step = [&](int step) {
        unsigned char *to = memory + step % 2 * DENSE_STAGE;
        stage<GEMM_THREADS, DENSE_TOKENS, DENSE_X_PIECES, 4>(to, x, step * DENSE_X_PIECES);
        stage<GEMM_THREADS, DENSE_OUTPUTS, DENSE_W_PIECES, 2>(to + DENSE_X_BYTES, weights, step * DENSE_W_PIECES);
        copy_async_commit();
    };
    int four = static_cast<int>(threadIdx.x) / 4;
    int token = four % ACROSS_TOKENS, output = four / ACROSS_TOKENS;
    Lanes sums = {};
    int steps = (p.cols + DENSE_STEP - 1) / DENSE_STEP;
    stage_step(0);
    for (int step = 0; step < steps; step++) {
        copy_async_wait<0>();
        sync_block(); // as in `ternary_gemm`
        if (step + 1 < steps) stage_step(step + 1);
        int count = min(DENSE_STEP, p.cols - step * DENSE_STEP) / 16;
        BN_UNROLL_BY(1)
        for (int k = 0; k < count; k++) dense_step<Element>(memory + step % 2 * DENSE_STAGE, token, output, k, sums);
    }
    BN_UNROLL
    for (int i = 0; i < 16; i++) {
        float sum = quad_sum(sums[i / 4][i % 4]);
        int t = token0 + token + i / 4 * ACROSS_TOKENS, row = output0 + output + i % 4 * ACROSS_OUTPUTS;
        if (lane() % 4 == 0 && t < p.tokens && row < p.rows) p.out[t * p.stride + row] = sum;
    }
}

} // namespace

// As `bn_ternary_gemv_T`, of any number of tokens. Grid: ceil(tokens / 64), ceil(rows / 128); shared memory: 24576 bytes.
BN_KERNEL_OF(GEMM_THREADS, ternary_gemm)
(float *out, const int8_t *x, const float *x_scales, const int *x_sums, const uint8_t *weights, const float *scales,
 int scale_step, int tokens, int rows, int cols, int64_t stride) {
    ternary_gemm({out, x, x_scales, x_sums, weights, scales, scale_step, tokens, rows, cols, stride});
}

// As `bn_TYPE_gemv_T`, of any number of tokens. Grid: ceil(tokens / 64), ceil(rows / 128); shared memory: 24576 bytes and
// 4096 for each bit of a code.
#define BN_BLOCK_GEMM(name, Format)                                                                                    \
    BN_KERNEL_OF(GEMM_THREADS, name##_gemm)                                                                            \
    (float *out, const int8_t *x, const float *x_scales, const int16_t *x_sums, const uint8_t *codes,                  \
     const uint16_t *scales, int tokens, int rows, int cols, int64_t stride) {                                         \
        block_gemm<Format>({out, x, x_scales, x_sums, codes, scales, tokens, rows, cols, stride});                     \
    }
BN_BLOCK_GEMM(q8_0, Q8_0)
BN_BLOCK_GEMM(q4_0, Q4_0)
BN_BLOCK_GEMM(q2_0, Q2_0)
BN_BLOCK_GEMM(q2_0_128, Q2_0_128)
BN_BLOCK_GEMM(q1_0, Q1_0)

// As `bn_f16_gemv_T` and `bn_bf16_gemv_T`, of any number of tokens: sixteen running sums for each output. Tensor cores
// would be about 15 times as fast, but round activations to 16 bits and add up in an order of their own, other
// than a GEMV's on FMA: a row's bits would depend on how many others there are.
// Grid: ceil(tokens / 32), ceil(rows / 32); shared memory: 24576 bytes.
#define BN_DENSE_GEMM(name, Element)                                                                                   \
    BN_KERNEL_OF(GEMM_THREADS, name##_gemm)                                                                            \
    (float *out, const float *x, const uint8_t *weights, int tokens, int rows, int cols, int64_t stride) {             \
        dense_gemm<Element>({out, x, weights, tokens, rows, cols, stride});                                            \
    }
BN_DENSE_GEMM(f16, F16)
BN_DENSE_GEMM(bf16, BF16)
