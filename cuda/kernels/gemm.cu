// Products of more than 8 rows of activations: prompts and large batches. Rows and outputs may be any number: a tile
// computes garbage past the last ones and does not write it. The bits are those of the GEMV, and thus of the CPU, for
// every tile shape.
//
// Lower bound: 2 x tokens x outputs x columns operations over the rate. 512 tokens through 2560 x 6912 ternary weights
// are 18.1 GOP, 9.2 us on an H100 at 1979 TOPS of dense int8; mma.sync, which is all that sm_80 has, reaches about 60 %
// of that. Types with scales in blocks add three f32 operations for each 32 columns of an output: 0.85 G for 512
// tokens, 25 us at 33 T a second. F32 runs on f32 FMA, 67 TFLOPS: 270 us. F16 and bf16: dense.cu.
//
// Few tokens: each block reads its tokens' activations from the L2, so tiles of few outputs cost traffic, and tiles of
// many outputs leave multiprocessors idle. 64 tokens through the same weights, 2560 outputs: 35 MB and 6.4 us at 5.5
// TB/s with tiles of 32 outputs (80 blocks), 9 MB with tiles of 128 (20 blocks). The launch chooses
// (`Product::launch`).
//
// Registers (at most 128) allow two blocks, 16 warps, on an SM of an H100, and so does shared memory (at most 96 KB per
// block). For more than 48 KB the launch must set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
//
// Names end with the tokens and outputs of a tile. Grid: x over tiles of tokens, so that blocks with the same weights
// run together, y over tiles of the outputs of each matrix (a sum of `ceil`s). 256 threads.
#include "products.cuh"
#include "tiles.cuh"

namespace {

// A step of the products with one scale per row. Their sums are integers, so warps may share the columns.
template <class Format, class Tile>
struct WholeStep {
    static constexpr int COLUMNS = Tile::GROUPS > 4 ? 256 : 128;
    static constexpr int X_PIECES = COLUMNS / 16, PIECES = COLUMNS / 128 * Format::BITS;
    // Slices of 32 columns, of a warp and of all warps.
    static constexpr int SLICES = COLUMNS / 32 / Tile::GROUPS, ALL_SLICES = COLUMNS / 32;
    static constexpr int X_BYTES = Tile::TOKENS * COLUMNS, BYTES = X_BYTES + Tile::OUTPUTS * PIECES * 16;
};

// Loads the right operands of slice `slice`. I2_S has 128 columns in two pieces of a row; `words` are those of the
// slice.
template <class Format, class Tile>
BN_DEVICE void whole_rights(const unsigned char *weights, int slice, const uint32_t (&words)[Tile::RIGHTS][2],
    uint32_t (&right)[Tile::RIGHTS][2]) {
    constexpr int PIECES = WholeStep<Format, Tile>::PIECES;
    if constexpr (Format::BITS == 8) {
        BN_UNROLL
        for (int n = 0; n < Tile::RIGHTS; n += 2) {
            uint32_t pair[4];
            load_byte_pair<PIECES>(weights, Tile::output() + 8 * n, slice, pair);
            right[n][0] = pair[0], right[n][1] = pair[1], right[n + 1][0] = pair[2], right[n + 1][1] = pair[3];
        }
    } else {
        int shift = 6 - slice % 4 * 2;
        BN_UNROLL
        for (int n = 0; n < Tile::RIGHTS; n++) {
            right[n][0] = words[n][0] >> shift & 0x03030303u, right[n][1] = words[n][1] >> shift & 0x03030303u;
        }
    }
}

// Adds this warp's slices of a step that has `count` slices.
template <class Format, class Tile, int LEFTS>
BN_DEVICE void whole_step(const unsigned char *x, const unsigned char *weights, int count,
    int (&dots)[LEFTS][Tile::RIGHTS][4]) {
    using Step = WholeStep<Format, Tile>;
    int first = Tile::group() * Step::SLICES;
    if (first >= count) return;
    uint32_t words[Tile::RIGHTS][2] = {};
    if constexpr (Format::BITS == 2) {
        BN_UNROLL
        for (int i = 0; i < Tile::RIGHTS * 2; i++) {
            int row = Tile::output() + i / 2 * 8 + lane() / 4;
            words[i / 2][i % 2] = word_at<Step::PIECES>(weights, row, first / 4 * 2 + i % 2, lane() % 4);
        }
    }
    BN_UNROLL
    for (int k = 0; k < Step::SLICES; k++) {
        uint32_t right[Tile::RIGHTS][2];
        whole_rights<Format, Tile>(weights, first + k, words, right);
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) {
            uint32_t left[4];
            load_left<Step::X_PIECES>(x, Tile::token() + 16 * m, first + k, left);
            BN_UNROLL
            for (int n = 0; n < Tile::RIGHTS; n++) mma_s8(dots[m][n], left, right[n]);
        }
    }
}

// Adds up the sums of the warps that have the same outputs and writes them, an equal share per warp.
template <class Format, class Tile, int LEFTS>
BN_DEVICE void write_shared(const Whole &p, int token0, int output0, unsigned char *memory,
    const int (&dots)[LEFTS][Tile::RIGHTS][4]) {
    constexpr int EACH = LEFTS * Tile::RIGHTS * 4, OWN = EACH / Tile::GROUPS;
    int *all = reinterpret_cast<int *>(memory) + lane();
    sync_block(); // no warp still reads the last step's columns, which the sums overwrite
    BN_UNROLL
    for (int i = 0; i < EACH; i++) all[(warp() * EACH + i) * WARP] = dots[i / 4 / Tile::RIGHTS][i / 4 % Tile::RIGHTS][i % 4];
    sync_block();
    BN_UNROLL
    for (int j = 0; j < OWN; j++) {
        int i = Tile::group() * OWN + j, dot = 0;
        BN_UNROLL
        for (int g = 0; g < Tile::GROUPS; g++) dot += all[((g * Tile::WARPS + warp() % Tile::WARPS) * EACH + i) * WARP];
        int t = token0 + Tile::token_of(i / 4 / Tile::RIGHTS, i % 4);
        int row = output0 + Tile::output_of(i / 4 % Tile::RIGHTS, i % 4);
        if (t < p.tokens && row < p.rows) write_whole<Format>(p, t, row, dot);
    }
}

// Computes a tile with LEFTS of mma's tiles along the tokens.
template <class Format, class Tile, int LEFTS>
BN_DEVICE void whole_tile(const Whole &p) {
    using Step = WholeStep<Format, Tile>;
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * Tile::TOKENS, output0 = p.block * Tile::OUTPUTS;
    int slices = p.cols / 32;
    int64_t row_bytes = static_cast<int64_t>(p.cols) / 8 * Format::BITS;
    auto x = Staged<GEMM_THREADS, Tile::TOKENS, Step::X_PIECES>::of(p.x, p.cols, token0, p.tokens);
    auto weights = Staged<GEMM_THREADS, Tile::OUTPUTS, Step::PIECES>::of(p.weights, row_bytes, output0, p.rows);
    int dots[LEFTS][Tile::RIGHTS][4] = {};
    if (Tile::GROUPS > 1 && blockIdx.x == 0) prefetch_rows(p.weights, row_bytes, output0, Tile::OUTPUTS, p.rows);
    pipeline<Tile>(
        (slices + Step::ALL_SLICES - 1) / Step::ALL_SLICES,
        [&](int step, int place) { weights.stage(memory + place * Step::BYTES + Step::X_BYTES, step); },
        [&](int step, int place) { x.stage(memory + place * Step::BYTES, step); },
        [&](int step, int place) {
            const unsigned char *from = memory + place * Step::BYTES;
            whole_step<Format, Tile, LEFTS>(from, from + Step::X_BYTES, slices - step * Step::ALL_SLICES, dots);
        });
    if constexpr (Tile::GROUPS > 1) {
        write_shared<Format, Tile, LEFTS>(p, token0, output0, memory, dots);
    } else {
        each_output<Tile, LEFTS>(p, token0, output0, [&](int t, int row, int m, int n, int i) {
            write_whole<Format>(p, t, row, dots[m][n][i]);
        });
    }
}

template <class Format, class Tile>
BN_DEVICE void whole_gemm(const Whole &p) {
    static_assert(WholeStep<Format, Tile>::BYTES * Tile::STAGES >= (Tile::GROUPS > 1 ? Tile::LEFTS * Tile::RIGHTS * 4096 : 0),
        "all warps' sums have room");
    if constexpr (Tile::TOKENS == 64) {
        int tokens = p.tokens - static_cast<int>(blockIdx.x) * Tile::TOKENS;
        if (tokens <= 16) return whole_tile<Format, Tile, 1>(p);
        if (tokens <= 32) return whole_tile<Format, Tile, 2>(p);
    }
    whole_tile<Format, Tile, Tile::LEFTS>(p);
}

// Steps whose scales are fetched together while earlier steps are computed. The more, the less each takes.
template <class Tile>
constexpr int SPAN = Tile::FEW ? 8 : 1;

// The scales and sums of blocks of 32 columns. Rows are padded, so that stores have few bank conflicts.
template <class Tile>
struct Scales {
    static constexpr int BLOCKS = STEP_BLOCKS * SPAN<Tile>;
    float x[BLOCKS][Tile::TOKENS + 1], weights[BLOCKS][Tile::OUTPUTS + 2];
    // Start values of integer sums: the bits of `BIAS`, minus the correction for the type's offset.
    int start[BLOCKS][Tile::TOKENS + 1];
};
template <class Tile>
struct Minima {
    static constexpr int BLOCKS = STEP_BLOCKS * SPAN<Tile>;
    // Scales of activations times their sums.
    float x[BLOCKS][Tile::TOKENS + 1], weights[BLOCKS][Tile::OUTPUTS + 2];
};

// Adding a dot product to the bits of the float BIAS gives the bits of the float BIAS + the dot product, since a
// block's dot product is far below 2^22. Subtracting BIAS then gives it as a float, exactly, and avoids the slow
// conversion.
constexpr int BIAS_BITS = 0x4b400000;
constexpr float BIAS = 12582912.0f;

// A thread's share of a span's scales on the way from global to shared memory, unconverted, since the first use waits.
template <class Tile>
struct Fetched {
    static constexpr int BLOCKS = Scales<Tile>::BLOCKS;
    static constexpr int LEFTS = BLOCKS * Tile::TOKENS / GEMM_THREADS, RIGHTS = BLOCKS * Tile::OUTPUTS / GEMM_THREADS;
    static_assert(LEFTS * GEMM_THREADS == BLOCKS * Tile::TOKENS, "all have as many of the activations' scales");
    static_assert(RIGHTS * GEMM_THREADS == BLOCKS * Tile::OUTPUTS, "and of the weights'");
    float x[LEFTS];
    int sums[LEFTS];
    uint32_t weights[RIGHTS]; // with the minima, if the type has them
};

template <class Format, class Tile>
BN_DEVICE void fetch_scales(const Blocks &p, int token0, int output0, int span, Fetched<Tile> &fetched) {
    constexpr int BLOCKS = Fetched<Tile>::BLOCKS;
    int blocks = p.cols / 32;
    // Blocks and rows past the last are not used.
    auto block = [&](int n) { return min(span * BLOCKS + n % BLOCKS, blocks - 1); };
    BN_UNROLL
    for (int i = 0; i < Fetched<Tile>::LEFTS; i++) {
        int n = static_cast<int>(threadIdx.x) + i * GEMM_THREADS;
        int64_t at = static_cast<int64_t>(min(token0 + n / BLOCKS, p.tokens - 1)) * blocks + block(n);
        fetched.x[i] = p.x_scales[at];
        fetched.sums[i] = Format::OFFSET != 0 || Format::MINIMA ? p.x_sums[at] : 0;
    }
    BN_UNROLL
    for (int i = 0; i < Fetched<Tile>::RIGHTS; i++) {
        int n = static_cast<int>(threadIdx.x) + i * GEMM_THREADS;
        int64_t row = min(output0 + n / BLOCKS, p.rows - 1);
        int64_t at = row * (p.cols / Format::ELEMENTS) + block(n) / (Format::ELEMENTS / 32);
        fetched.weights[i] = load_scale_bits<Format>(p.scales, at);
    }
}

// Minima, if the type has them, follow the scales.
template <class Tile>
BN_DEVICE Minima<Tile> &minima_of(Scales<Tile> &scales) {
    return *reinterpret_cast<Minima<Tile> *>(&scales + 1);
}

template <class Format, class Tile>
BN_DEVICE void store_scales(Scales<Tile> &to, const Fetched<Tile> &fetched) {
    constexpr int BLOCKS = Fetched<Tile>::BLOCKS;
    BN_UNROLL
    for (int i = 0; i < Fetched<Tile>::LEFTS; i++) {
        int n = static_cast<int>(threadIdx.x) + i * GEMM_THREADS, block = n % BLOCKS, token = n / BLOCKS;
        to.x[block][token] = fetched.x[i];
        if (Format::OFFSET != 0) to.start[block][token] = BIAS_BITS - Format::OFFSET * fetched.sums[i];
        if (Format::MINIMA) {
            minima_of(to).x[block][token] = mul_rn(fetched.x[i], static_cast<float>(fetched.sums[i]));
        }
    }
    BN_UNROLL
    for (int i = 0; i < Fetched<Tile>::RIGHTS; i++) {
        int n = static_cast<int>(threadIdx.x) + i * GEMM_THREADS, block = n % BLOCKS, output = n / BLOCKS;
        to.weights[block][output] = scale_of_bits<Format>(fetched.weights[i]);
        if (Format::MINIMA) {
            minima_of(to).weights[block][output] = half_to_float(static_cast<uint16_t>(fetched.weights[i] >> 16));
        }
    }
}

// Adds block `slice` of a step, which is block `block` of the span.
template <class Format, class Tile>
BN_DEVICE void block_step(const unsigned char *x, const uint32_t (&right)[Tile::RIGHTS][2], int slice, Scales<Tile> &scales,
    int block, typename Tile::Sums &sums) {
    constexpr int LEFTS = Tile::LEFTS, RIGHTS = Tile::RIGHTS;
    uint32_t left[LEFTS][4];
    float x_scales[LEFTS][2], lows[LEFTS][2];
    int starts[LEFTS][4];
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        load_left<STEP_PIECES>(x, Tile::token() + 16 * m, slice, left[m]);
        BN_UNROLL
        for (int half = 0; half < 2; half++) {
            int token = Tile::token_of(m, 2 * half);
            x_scales[m][half] = scales.x[block][token];
            int start = Format::OFFSET != 0 ? scales.start[block][token] : BIAS_BITS;
            starts[m][2 * half] = start, starts[m][2 * half + 1] = start;
            if (Format::MINIMA) lows[m][half] = minima_of(scales).x[block][token];
        }
    }
    BN_UNROLL
    for (int n = 0; n < RIGHTS; n++) {
        float scale[2], min[2];
        BN_UNROLL
        for (int i = 0; i < 2; i++) {
            scale[i] = scales.weights[block][Tile::output_of(n, i)];
            if (Format::MINIMA) min[i] = minima_of(scales).weights[block][Tile::output_of(n, i)];
        }
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) {
            int dots[4];
            mma_s8(dots, left[m], right[n], starts[m]);
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                float dot = add_rn(__int_as_float(dots[i]), -BIAS);
                sums[m][n][i] = fma_rn(dot, mul_rn(scale[i % 2], x_scales[m][i / 2]), sums[m][n][i]);
                if (Format::MINIMA) sums[m][n][i] = fma_rn(min[i % 2], lows[m][i / 2], sums[m][n][i]);
            }
        }
    }
}

// Adds `count` blocks of a step; the first one is block `first` of the span.
template <class Format, class Tile>
BN_DEVICE void add_blocks(const unsigned char *x, const unsigned char *codes, Scales<Tile> &scales, int first, int count,
    typename Tile::Sums &sums) {
    if (Tile::FEW && count == STEP_BLOCKS) {
        uint32_t right[STEP_BLOCKS][Tile::RIGHTS][2];
        load_step_rights<Format, Tile>(codes, right);
        BN_UNROLL
        for (int b = 0; b < STEP_BLOCKS; b++) block_step<Format, Tile>(x, right[b], b, scales, first + b, sums);
        return;
    }
    BN_UNROLL_BY(1)
    for (int b = 0; b < count; b++) {
        uint32_t right[Tile::RIGHTS][2];
        load_rights<Format, Tile>(codes, b, right);
        block_step<Format, Tile>(x, right, b, scales, first + b, sums);
    }
}

template <class Format, class Tile>
BN_DEVICE void block_gemm(const Blocks &p) {
    constexpr int STAGE = Tile::LEFT_BYTES + CODES_BYTES<Format, Tile>;
    constexpr int SCALES = static_cast<int>(sizeof(Scales<Tile>) + (Format::MINIMA ? sizeof(Minima<Tile>) : 0));
    constexpr int STEPS = SPAN<Tile>; // steps of a span
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * Tile::TOKENS, output0 = p.block * Tile::OUTPUTS;
    int blocks = p.cols / 32, steps = (blocks + STEP_BLOCKS - 1) / STEP_BLOCKS;
    // Results for tokens past the last are not written.
    bool idle = token0 + Tile::token() >= p.tokens;
    Planes<Format> planes(p.rows, p.cols);
    auto x = Staged<GEMM_THREADS, Tile::TOKENS, STEP_PIECES>::of(p.x, p.cols, token0, p.tokens);
    auto codes = StagedCodes<Format, Tile>::of(p, planes, output0);
    auto scales = [&](int span) -> Scales<Tile> & {
        return *reinterpret_cast<Scales<Tile> *>(memory + Tile::STAGES * STAGE + span % 2 * SCALES);
    };
    Fetched<Tile> fetched{};
    typename Tile::Sums sums = {};
    prefetch_tile<Format, Tile>(p, planes, output0);
    pipeline<Tile>(
        steps,
        [&](int step, int place) { codes.stage(memory + place * STAGE + Tile::LEFT_BYTES, step); },
        [&](int step, int place) {
            x.stage(memory + place * STAGE, step);
            if (step == 0) fetch_scales<Format>(p, token0, output0, 0, fetched);
        },
        [&](int step, int place) {
            int span = step / STEPS;
            if (step == 0) {
                store_scales<Format>(scales(0), fetched);
                sync_block();
            }
            bool more = (span + 1) * STEPS < steps;
            if (more && step % STEPS == 0) fetch_scales<Format>(p, token0, output0, span + 1, fetched);
            const unsigned char *from = memory + place * STAGE;
            int first = step % STEPS * STEP_BLOCKS, count = idle ? 0 : min(STEP_BLOCKS, blocks - step * STEP_BLOCKS);
            add_blocks<Format, Tile>(from, from + Tile::LEFT_BYTES, scales(span), first, count, sums);
            if (more && step % STEPS == STEPS - 1) store_scales<Format>(scales(span + 1), fetched);
        });
    write_sums<Tile>(p, token0, output0, sums);
}

// A block's tile. Four threads share 4 x 4 of its outputs; each has four lanes of their sums.
constexpr int F32_TOKENS = 32, F32_OUTPUTS = 32, F32_STEP = 64;
constexpr int F32_PIECES = F32_STEP / 4;
constexpr int F32_X_BYTES = F32_TOKENS * F32_PIECES * 16;
// Groups of four threads along tokens and along outputs. A thread's tokens and outputs are so far apart.
constexpr int ACROSS_TOKENS = F32_TOKENS / 4, ACROSS_OUTPUTS = F32_OUTPUTS / 4;
static_assert(4 * ACROSS_TOKENS * ACROSS_OUTPUTS == GEMM_THREADS, "four threads for each 4 x 4 outputs");

using Lanes = float[4][4][4];

// Adds columns 16k to 16k + 15 of the step; token and output are the first of this group of four threads.
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
    int64_t row_bytes = 4 * static_cast<int64_t>(p.cols);
    auto x = Staged<GEMM_THREADS, F32_TOKENS, F32_PIECES, 4>::of(p.x, row_bytes, token0, p.tokens);
    auto weights = Staged<GEMM_THREADS, F32_OUTPUTS, F32_PIECES, 4>::of(p.weights, row_bytes, output0, p.rows);
    auto stage_step = [&](int step) {
        unsigned char *to = memory + step % 2 * STAGE;
        x.stage(to, step);
        weights.stage(to + F32_X_BYTES, step);
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
        sync_block(); // as in `pipeline`
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

// As `bn_ternary_gemv_T` and `bn_int8_gemv_T` for any number of tokens, by tiles of tokens x outputs. A step is 128
// columns, or 256 for 64 x 32. Shared memory: per step one byte for each token and column and BITS / 8 for each output
// and column, times the stages.
#define BN_WHOLE_GEMM(name, Format, tokens, outputs, groups, stages)                                                   \
    BN_WHOLE_KERNEL(BN_GEMM(name##_gemm_##tokens##x##outputs), blockIdx.y, outputs,                                    \
        whole_gemm<Format, Tile<tokens, outputs, 64, 32, stages, groups>>)
BN_WHOLE_GEMM(ternary, Ternary, 128, 128, 1, 4)
BN_WHOLE_GEMM(ternary, Ternary, 64, 128, 2, 6)
BN_WHOLE_GEMM(ternary, Ternary, 64, 32, 8, 4)
BN_WHOLE_GEMM(int8, Int8, 128, 128, 1, 3)
BN_WHOLE_GEMM(int8, Int8, 64, 128, 2, 3)
BN_WHOLE_GEMM(int8, Int8, 64, 32, 8, 4)

// As `bn_TYPE_gemv_T` for any number of tokens. Shared memory, per bit of a code plus a constant: for 64 x 128 6144 and
// 32896 bytes, with minima 39136; for 32 x 32 3072 and 50176, with minima 67328.
#define BN_BLOCK_GEMM(name, Format)                                                                                    \
    BN_BLOCKS_KERNEL(BN_GEMM(name##_gemm_64x128), blockIdx.y, LargeTile::OUTPUTS, block_gemm<Format, LargeTile>)       \
    BN_BLOCKS_KERNEL(BN_GEMM(name##_gemm_32x32), blockIdx.y, SmallTile::OUTPUTS, block_gemm<Format, SmallTile>)
BN_BLOCK_GEMM(q8_0, Q8_0)
BN_BLOCK_GEMM(q4_0, Q4_0)
BN_BLOCK_GEMM(q4_1, Q4_1)
BN_BLOCK_GEMM(q5_0, Q5_0)
BN_BLOCK_GEMM(q5_1, Q5_1)
BN_BLOCK_GEMM(q2_0, Q2_0)
BN_BLOCK_GEMM(q2_0_128, Q2_0_128)
BN_BLOCK_GEMM(q1_0, Q1_0)
BN_BLOCK_GEMM(iq4_nl, IQ4_NL)
BN_BLOCK_GEMM(mxfp4, MXFP4)

// As `bn_f32_gemv_T` for any number of tokens. Tensor cores have no arithmetic that keeps the bits of f32.
// Grid: ceil(tokens / 32), ceil(rows / 32). Shared memory: 32768 bytes.
BN_DENSE_KERNEL(BN_GEMM(f32_gemm), blockIdx.y, F32_OUTPUTS, f32_gemm)
