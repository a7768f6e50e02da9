// Products of more than 8 rows of activations: prompts and large batches. Any number of rows and of outputs: what a tile
// has behind the last row is computed from that row, and not written. Bits are those of the GEMV, and so the CPU's.
//
// Floor: 2 x tokens x outputs x columns operations over the rate. 512 tokens through 2560 x 6912 ternary weights are 18.1
// GOP, 9.2 us on an H100 at 1979 TOPS of dense int8; mma.sync, which is all that sm_80 has, reaches about 60 % of that.
// Types with scales in blocks add three f32 operations for each 32 columns of an output: 0.85 G for 512 tokens, 25 us at
// 33 T a second. F32 runs on f32 FMA, 67 TFLOPS: 270 us. F16 and bf16: dense.cu.
//
// Registers (at most 128) let an SM of an H100 have two blocks, 16 warps; shared memory (57 KB of a block at most, as
// Q8_0) would do for four. More than 48 KB are to be allowed by the launch (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES).
//
// Grid: x over tiles of tokens, so that those that share weights run together, y over tiles of the outputs of each matrix
// (a sum of `ceil`s); 256 threads.
#include "products.cuh"
#include "tiles.cuh"

namespace {

// Adds 128 columns; I2_S has them in two pieces of a row.
BN_DEVICE void ternary_step(const unsigned char *x, const unsigned char *weights, int (&dots)[LEFTS][RIGHTS][4]) {
    uint32_t words[RIGHTS][2];
    BN_UNROLL
    for (int n = 0; n < RIGHTS; n++) {
        int row = warp_output() + 8 * n + lane() / 4;
        BN_UNROLL
        for (int half = 0; half < 2; half++) {
            words[n][half] = word_at<Ternary::BITS>(weights, row, half, lane() % 4);
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

// The same of int8 weights.
BN_DEVICE void int8_step(const unsigned char *x, const unsigned char *weights, int (&dots)[LEFTS][RIGHTS][4]) {
    BN_UNROLL
    for (int k = 0; k < 4; k++) {
        uint32_t left[LEFTS][4];
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) load_left(x, warp_token() + 16 * m, k, left[m]);
        BN_UNROLL
        for (int n = 0; n < RIGHTS; n++) {
            uint32_t right[2];
            load_bits<8>(weights, warp_output() + 8 * n, k, right);
            BN_UNROLL
            for (int m = 0; m < LEFTS; m++) mma_s8(dots[m][n], left[m], right);
        }
    }
}

template <class Format>
BN_DEVICE void whole_gemm(const Whole &p) {
    constexpr int PIECES = Format::BITS; // of a row's 128 columns
    constexpr int STAGE = LEFT_BYTES + TILE_OUTPUTS * PIECES * 16;
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * TILE_TOKENS, output0 = p.block * TILE_OUTPUTS;
    int steps = p.cols / STEP;
    Source x{reinterpret_cast<const uint8_t *>(p.x), p.cols, token0, p.tokens};
    Source weights{p.weights, static_cast<int64_t>(steps) * PIECES * 16, output0, p.rows};
    auto stage_step = [&](int step) {
        unsigned char *to = memory + step % 2 * STAGE;
        stage<GEMM_THREADS, TILE_TOKENS, STEP_PIECES>(to, x, step * STEP_PIECES);
        stage<GEMM_THREADS, TILE_OUTPUTS, PIECES>(to + LEFT_BYTES, weights, step * PIECES);
        copy_async_commit();
    };
    int dots[LEFTS][RIGHTS][4] = {};
    await_inputs();
    stage_step(0);
    for (int step = 0; step < steps; step++) {
        copy_async_wait<0>();
        // All see the step's columns, and none reads those before them, whose place the next ones take.
        sync_block();
        if (step + 1 < steps) stage_step(step + 1);
        const unsigned char *from = memory + step % 2 * STAGE;
        if constexpr (Format::BITS == 8) {
            int8_step(from, from + LEFT_BYTES, dots);
        } else {
            ternary_step(from, from + LEFT_BYTES, dots);
        }
    }
    each_output(p, token0, output0, [&](int t, int row, int m, int n, int i) {
        write_whole<Format>(p, t, row, dots[m][n][i]);
    });
}

// Scales and sums of a step, for its blocks of 32 columns.
constexpr int STEP_BLOCKS = STEP / 32;
struct Scales {
    float x[STEP_BLOCKS][TILE_TOKENS], weights[STEP_BLOCKS][TILE_OUTPUTS];
    // What sums begin with: the bits of `BIAS`, less what the type's offset takes.
    int start[STEP_BLOCKS][TILE_TOKENS];
};
struct Minima {
    // Scales of activations times their sums.
    float x[STEP_BLOCKS][TILE_TOKENS], weights[STEP_BLOCKS][TILE_OUTPUTS];
};
static_assert(sizeof(Scales) % 16 == 0 && sizeof(Minima) % 16 == 0, "what follows is aligned");

// The bits of the float BIAS plus a dot product are those of the float BIAS + the dot product, since a block's is far
// below 2^22. So the difference to BIAS makes it a float, exactly, without a conversion, which is a slow instruction.
constexpr int BIAS_BITS = 0x4b400000;
constexpr float BIAS = 12582912.0f;

// A thread's share of a step's scales, on its way from global to shared memory.
struct Fetched {
    static constexpr int EACH = STEP_BLOCKS * TILE_OUTPUTS / GEMM_THREADS;
    float x, weights[EACH], low, minima[EACH];
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
    int sum = Format::OFFSET != 0 || Format::MINIMA ? p.x_sums[at] : 0;
    fetched.start = BIAS_BITS - Format::OFFSET * sum;
    fetched.low = mul_rn(fetched.x, static_cast<float>(sum));
    BN_UNROLL
    for (int i = 0; i < Fetched::EACH; i++) {
        int n = thread + i * GEMM_THREADS;
        int64_t row = min(output0 + n / STEP_BLOCKS, p.rows - 1);
        int in_row = block(n % STEP_BLOCKS) / (Format::ELEMENTS / 32);
        int64_t place = row * (p.cols / Format::ELEMENTS) + in_row;
        fetched.minima[i] = 0.0f;
        load_scale<Format>(p.scales, place, fetched.weights[i], fetched.minima[i]);
    }
    return fetched;
}

// Minima stand behind the scales, where the type has some.
BN_DEVICE Minima &minima_of(Scales &scales) {
    return *reinterpret_cast<Minima *>(&scales + 1);
}

template <class Format>
BN_DEVICE void store_scales(Scales &to, const Fetched &fetched) {
    int thread = static_cast<int>(threadIdx.x);
    to.x[thread % STEP_BLOCKS][thread / STEP_BLOCKS] = fetched.x;
    to.start[thread % STEP_BLOCKS][thread / STEP_BLOCKS] = fetched.start;
    BN_UNROLL
    for (int i = 0; i < Fetched::EACH; i++) {
        int n = thread + i * GEMM_THREADS;
        to.weights[n % STEP_BLOCKS][n / STEP_BLOCKS] = fetched.weights[i];
        if (Format::MINIMA) minima_of(to).weights[n % STEP_BLOCKS][n / STEP_BLOCKS] = fetched.minima[i];
    }
    if (Format::MINIMA) minima_of(to).x[thread % STEP_BLOCKS][thread / STEP_BLOCKS] = fetched.low;
}

// Adds block `block` of the step.
template <class Format>
BN_DEVICE void block_step(const unsigned char *x, const unsigned char *codes, Scales &scales, int block, Sums &sums) {
    uint32_t left[LEFTS][4];
    float x_scales[LEFTS][2], lows[LEFTS][2];
    int starts[LEFTS][2];
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        load_left(x, warp_token() + 16 * m, block, left[m]);
        BN_UNROLL
        for (int half = 0; half < 2; half++) {
            x_scales[m][half] = scales.x[block][token_of(m, 2 * half)];
            starts[m][half] = Format::OFFSET != 0 ? scales.start[block][token_of(m, 2 * half)] : BIAS_BITS;
            if (Format::MINIMA) lows[m][half] = minima_of(scales).x[block][token_of(m, 2 * half)];
        }
    }
    BN_UNROLL
    for (int n = 0; n < RIGHTS; n++) {
        uint32_t right[2];
        load_right<Format>(codes, warp_output() + 8 * n, block, right);
        float scale[2], min[2];
        BN_UNROLL
        for (int i = 0; i < 2; i++) {
            scale[i] = scales.weights[block][output_of(n, i)];
            if (Format::MINIMA) min[i] = minima_of(scales).weights[block][output_of(n, i)];
        }
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) {
            int dots[4] = {starts[m][0], starts[m][0], starts[m][1], starts[m][1]};
            mma_s8(dots, left[m], right);
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                float dot = add_rn(__int_as_float(dots[i]), -BIAS);
                sums[m][n][i] = fma_rn(dot, mul_rn(scale[i % 2], x_scales[m][i / 2]), sums[m][n][i]);
                if (Format::MINIMA) sums[m][n][i] = fma_rn(min[i % 2], lows[m][i / 2], sums[m][n][i]);
            }
        }
    }
}

template <class Format>
BN_DEVICE void block_gemm(const Blocks &p) {
    constexpr int RIGHT = LEFT_BYTES, SCALES = RIGHT + CODES_BYTES<Format>;
    constexpr int STAGE = SCALES + static_cast<int>(sizeof(Scales) + (Format::MINIMA ? sizeof(Minima) : 0));
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * TILE_TOKENS, output0 = p.block * TILE_OUTPUTS;
    int blocks = p.cols / 32, steps = (blocks + STEP_BLOCKS - 1) / STEP_BLOCKS;
    Source x{reinterpret_cast<const uint8_t *>(p.x), p.cols, token0, p.tokens};
    Planes<Format> planes(p.rows, p.cols);
    auto stage_step = [&](int step) {
        unsigned char *to = memory + step % 2 * STAGE;
        stage<GEMM_THREADS, TILE_TOKENS, STEP_PIECES>(to, x, step * STEP_PIECES);
        stage_codes(to + RIGHT, p, planes, output0, step);
        copy_async_commit();
    };
    auto scales = [&](int step) { return reinterpret_cast<Scales *>(memory + step % 2 * STAGE + SCALES); };
    Sums sums = {};
    await_inputs();
    stage_step(0);
    store_scales<Format>(*scales(0), fetch_scales<Format>(p, token0, output0, 0));
    for (int step = 0; step < steps; step++) {
        copy_async_wait<0>();
        sync_block(); // as in `whole_gemm`
        bool more = step + 1 < steps;
        Fetched fetched{};
        if (more) {
            stage_step(step + 1);
            fetched = fetch_scales<Format>(p, token0, output0, step + 1);
        }
        const unsigned char *from = memory + step % 2 * STAGE;
        int count = min(STEP_BLOCKS, blocks - step * STEP_BLOCKS);
        for (int b = 0; b < count; b++) block_step<Format>(from, from + RIGHT, *scales(step), b, sums);
        if (more) store_scales<Format>(*scales(step + 1), fetched);
    }
    write_sums(p, token0, output0, sums);
}

// A block's tile; four threads share 4 x 4 of its outputs, each with four lanes of their sums.
constexpr int F32_TOKENS = 32, F32_OUTPUTS = 32, F32_STEP = 64;
constexpr int F32_PIECES = F32_STEP / 4;
constexpr int F32_X_BYTES = F32_TOKENS * F32_PIECES * 16;
// Fours of threads side by side along tokens and along outputs: what one has is so far apart.
constexpr int ACROSS_TOKENS = F32_TOKENS / 4, ACROSS_OUTPUTS = F32_OUTPUTS / 4;
static_assert(4 * ACROSS_TOKENS * ACROSS_OUTPUTS == GEMM_THREADS, "four threads for each 4 x 4 outputs");

using Lanes = float[4][4][4];

// Adds columns 16k to 16k + 15 of the step; token and output are the first of this four's.
BN_DEVICE void f32_step(const unsigned char *stage, int token, int output, int k, Lanes &sums) {
    int part = lane() % 4;
    Floats4 x[4];
    BN_UNROLL
    for (int t = 0; t < 4; t++) {
        x[t] = *reinterpret_cast<const Floats4 *>(stage + place<F32_PIECES, 4>(token + t * ACROSS_TOKENS, 4 * k + part));
    }
    BN_UNROLL
    for (int r = 0; r < 4; r++) {
        int at = place<F32_PIECES, 4>(output + r * ACROSS_OUTPUTS, 4 * k + part);
        Floats4 weights = *reinterpret_cast<const Floats4 *>(stage + F32_X_BYTES + at);
        BN_UNROLL
        for (int t = 0; t < 4; t++) {
            BN_UNROLL
            for (int i = 0; i < 4; i++) sums[t][r][i] = fma_rn(x[t].value[i], weights.value[i], sums[t][r][i]);
        }
    }
}

BN_DEVICE void f32_gemm(const Dense &p) {
    constexpr int STAGE = F32_X_BYTES + F32_OUTPUTS * F32_PIECES * 16;
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * F32_TOKENS, output0 = p.block * F32_OUTPUTS;
    Source x{reinterpret_cast<const uint8_t *>(p.x), 4 * static_cast<int64_t>(p.cols), token0, p.tokens};
    Source weights{p.weights, 4 * static_cast<int64_t>(p.cols), output0, p.rows};
    auto stage_step = [&](int step) {
        unsigned char *to = memory + step % 2 * STAGE;
        stage<GEMM_THREADS, F32_TOKENS, F32_PIECES, 4>(to, x, step * F32_PIECES);
        stage<GEMM_THREADS, F32_OUTPUTS, F32_PIECES, 4>(to + F32_X_BYTES, weights, step * F32_PIECES);
        copy_async_commit();
    };
    int four = static_cast<int>(threadIdx.x) / 4;
    int token = four % ACROSS_TOKENS, output = four / ACROSS_TOKENS;
    Lanes sums = {};
    int steps = (p.cols + F32_STEP - 1) / F32_STEP;
    await_inputs();
    stage_step(0);
    for (int step = 0; step < steps; step++) {
        copy_async_wait<0>();
        sync_block(); // as in `whole_gemm`
        if (step + 1 < steps) stage_step(step + 1);
        int count = min(F32_STEP, p.cols - step * F32_STEP) / 16;
        BN_UNROLL_BY(1)
        for (int k = 0; k < count; k++) f32_step(memory + step % 2 * STAGE, token, output, k, sums);
    }
    BN_UNROLL
    for (int i = 0; i < 16; i++) {
        float sum = quad_sum(sums[i / 4][i % 4]);
        int t = token0 + token + i / 4 * ACROSS_TOKENS, row = output0 + output + i % 4 * ACROSS_OUTPUTS;
        if (lane() % 4 == 0 && t < p.tokens && row < p.rows) write(p, t, row, sum);
    }
}

} // namespace

// As `bn_ternary_gemv_T` and `bn_int8_gemv_T`, of any number of tokens. Grid: ceil(tokens / 64), ceil(rows / 128); shared
// memory: 16384 bytes and 4096 for each bit of a code.
#define BN_WHOLE_GEMM(name, Format)                                                                                    \
    BN_WHOLE_KERNEL(BN_GEMM(name##_gemm), blockIdx.y, TILE_OUTPUTS, whole_gemm<Format>)
BN_WHOLE_GEMM(ternary, Ternary)
BN_WHOLE_GEMM(int8, Int8)

// As `bn_TYPE_gemv_T`, of any number of tokens. Grid: ceil(tokens / 64), ceil(rows / 128); shared memory: 24576 bytes and
// 4096 for each bit of a code, and 6144 with minima.
#define BN_BLOCK_GEMM(name, Format)                                                                                    \
    BN_BLOCKS_KERNEL(BN_GEMM(name##_gemm), blockIdx.y, TILE_OUTPUTS, block_gemm<Format>)
BN_BLOCK_GEMM(q8_0, Q8_0)
BN_BLOCK_GEMM(q4_0, Q4_0)
BN_BLOCK_GEMM(q4_1, Q4_1)
BN_BLOCK_GEMM(q5_0, Q5_0)
BN_BLOCK_GEMM(q5_1, Q5_1)
BN_BLOCK_GEMM(q2_0, Q2_0)
BN_BLOCK_GEMM(q2_0_128, Q2_0_128)
BN_BLOCK_GEMM(q1_0, Q1_0)

// As `bn_f32_gemv_T`, of any number of tokens. Tensor cores have no arithmetic that keeps the bits of f32.
// Grid: ceil(tokens / 32), ceil(rows / 32); shared memory: 32768 bytes.
BN_DENSE_KERNEL(BN_GEMM(f32_gemm), blockIdx.y, F32_OUTPUTS, f32_gemm)
