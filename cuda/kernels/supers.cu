// Products with super-blocks, the K-quants: of 1 to 8 rows of activations as in gemv.cu, of more as in gemm.cu.
//
// A super-block's 256 columns are one sum of integers: each group's products times its scale, and what the codes are too
// large by. One fused product adds it to the row's sum, a second one the minima. Both integers are exact, in any order; the
// first may be beyond 2^24, and is rounded as it becomes a float, as the CPU's is.
//
// Floor: as there. 2560 x 6912 weights are 10.2 MB as Q4_K, 3 us on an H100 at 3.35 TB/s, and 14.5 MB and 4.3 us as Q6_K; 2.7
// and 4.1 bytes in 256 columns more than their files have, for scales and minima in whole bytes. Prompts: for each 32 columns
// of an output one integer multiplication (two where a group is 16 columns), 64 a clock and SM: 0.7 G for 512 tokens of such
// a product, 50 us at 15 T a second.
#include "products.cuh"
#include "tiles.cuh"

namespace {

// 32 columns' share of a super-block: products, and sums of activations times their minima.
struct alignas(8) Partial {
    int dot, low;
};
// As `SHARES` of gemv.cu.
constexpr int PARTIALS = WARP + 1;
// Blocks of 32 columns in a super-block.
constexpr int SUPER = 8;

// Of 32 columns, with the sums of their first sixteen activations and the others.
template <class Format>
BN_DEVICE Partial partial(const Codes<Format> &codes, const Group &group, const uint32_t (&x)[8], const int (&sums)[2]) {
    int dots[2] = {-Format::OFFSET * sums[0], -Format::OFFSET * sums[1]};
    BN_UNROLL
    for (int n = 0; n < 8; n++) {
        int &dot = dots[Format::GROUP == 16 ? n / 4 : 0];
        dot = dp4a(static_cast<int>(code_word(codes, n)), static_cast<int>(x[n]), dot);
    }
    if constexpr (Format::GROUP == 16) {
        return {group.scale[0] * dots[0] + group.scale[1] * dots[1], group.min[0] * sums[0] + group.min[1] * sums[1]};
    } else {
        static_assert(Format::OFFSET == 0, "one chain has both sixteens");
        return {group.scale[0] * dots[0], group.min[0] * (sums[0] + sums[1])};
    }
}

// Block `b` of R rows of weights with T rows of x, to `partials[r * T + t]`'s place for this lane.
template <class Format, int T, int R>
BN_DEVICE void super_partials(const Blocks &p, const Planes<Format> &planes, int first, int b, Partial *partials) {
    int blocks = p.cols / 32;
    Codes<Format> codes[R];
    Group groups[R];
    BN_UNROLL
    for (int r = 0; r < R; r++) {
        int64_t row = row_or_last(first + r, p.rows);
        codes[r] = load_codes(p.codes, planes, row, b);
        const uint8_t *from = p.codes + planes.groups + row * planes.group_row;
        groups[r] = group_of<Format>(reinterpret_cast<const uint16_t *>(from)[b]);
    }
    BN_UNROLL_BY(2)
    for (int t = 0; t < T; t++) {
        int64_t at = static_cast<int64_t>(row_or_last(t, p.tokens)) * blocks + b;
        uint32_t values[8];
        load_words(reinterpret_cast<const uint8_t *>(p.x) + 32 * at, values);
        uint32_t both = reinterpret_cast<const uint32_t *>(p.x_sums)[at];
        int sums[2] = {static_cast<int16_t>(both & 0xffff), static_cast<int16_t>(both >> 16)};
        BN_UNROLL
        for (int r = 0; r < R; r++) partials[(r * T + t) * PARTIALS] = partial(codes[r], groups[r], values, sums);
    }
}

// The scales of a super-block of an output.
struct Ends {
    float d, min, x;
};

template <class Format>
BN_DEVICE Ends super_ends(const Blocks &p, int t, int row, int super) {
    int64_t supers = p.cols / 256, at = row_or_last(row, p.rows) * supers + super;
    Ends ends{0, 0, p.x_scales[row_or_last(t, p.tokens) * supers + super]};
    load_scale<Format>(p.scales, at, ends.d, ends.min);
    return ends;
}

// Adds a super-block; `dot` has its offset already.
template <class Format>
BN_DEVICE float add_super(float sum, int dot, int low, const Ends &ends) {
    sum = fma_rn(static_cast<float>(dot), mul_rn(ends.d, ends.x), sum);
    return Format::MINIMA ? fma_rn(static_cast<float>(low), -mul_rn(ends.min, ends.x), sum) : sum;
}

// T >= tokens rows of x, R rows of weights for each warp. Each lane takes one of 32 blocks, four super-blocks together; then
// a lane for each output adds those up in their order.
template <class Format, int T, int R>
BN_DEVICE void super_gemv(const Blocks &p) {
    static_assert(T * R <= WARP, "a lane for each output");
    constexpr int SUPERS = WARP / SUPER;
    BN_SHARED(memory);
    Partial *partials = reinterpret_cast<Partial *>(memory) + warp() * R * T * PARTIALS;
    int first = (p.block * (GEMV_THREADS / WARP) + warp()) * R;
    int t = lane() % T, row = first + lane() / T, supers = p.cols / 256;
    Planes<Format> planes(p.rows, p.cols);
    prefetch_blocks(p, planes, p.block * (GEMV_THREADS / WARP) * R, GEMV_THREADS / WARP * R);
    await_inputs();
    float sum = 0.0f;
    for (int start = 0; start < supers; start += SUPERS) {
        int count = min(SUPERS, supers - start);
        // On their way while the products are computed.
        Ends ends[SUPERS];
        BN_UNROLL
        for (int s = 0; s < SUPERS; s++) ends[s] = super_ends<Format>(p, t, row, min(start + s, supers - 1));
        if (lane() < SUPER * count) {
            super_partials<Format, T, R>(p, planes, first, SUPER * start + lane(), partials + lane());
        }
        sync_warp();
        BN_UNROLL
        for (int s = 0; s < SUPERS; s++) {
            if (lane() >= T * R || s >= count) continue;
            const Partial *own = partials + lane() * PARTIALS + SUPER * s;
            int dot = 0, low = 0;
            BN_UNROLL
            for (int b = 0; b < SUPER; b++) dot += own[b].dot, low += own[b].low;
            sum = add_super<Format>(sum, dot, low, ends[s]);
        }
        sync_warp();
    }
    if (lane() < T * R && t < p.tokens && row < p.rows) write(p, t, row, sum);
}

// What is staged of a super-block beside its columns: the groups of outputs, the sums of tokens, and scales.
constexpr int GROUP_BYTES = TILE_OUTPUTS * 16, SUM_BYTES = TILE_TOKENS * 32;
struct Scales256 {
    float x[TILE_TOKENS], d[TILE_OUTPUTS], min[TILE_OUTPUTS];
};
constexpr int SUPER_BYTES = GROUP_BYTES + SUM_BYTES + static_cast<int>(sizeof(Scales256));

// A thread's share of them, on its way to shared memory: thread i has those of output i and token i.
template <class Format>
BN_DEVICE Ends fetch_ends(const Blocks &p, int token0, int output0, int super) {
    int i = static_cast<int>(threadIdx.x);
    return super_ends<Format>(p, token0 + i, output0 + i, super);
}

BN_DEVICE void store_ends(Scales256 &to, const Ends &ends) {
    unsigned i = threadIdx.x;
    if (i < TILE_TOKENS) to.x[i] = ends.x;
    if (i < TILE_OUTPUTS) to.d[i] = ends.d, to.min[i] = ends.min;
}

using Dots = int[LEFTS][RIGHTS][4];

// Adds the products of block `slice` of a step, which is the super-block's `block`.
template <class Format>
BN_DEVICE void super_step(const unsigned char *x, const unsigned char *codes, const unsigned char *groups, int slice,
    int block, Dots &dots) {
    uint32_t left[LEFTS][4];
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) load_left(x, warp_token() + 16 * m, slice, left[m]);
    BN_UNROLL
    for (int n = 0; n < RIGHTS; n++) {
        uint32_t right[2];
        load_right<Format>(codes, warp_output() + 8 * n, slice, right);
        Group group[2];
        BN_UNROLL
        for (int i = 0; i < 2; i++) {
            group[i] = group_of<Format>(word_at<1>(groups, output_of(n, i), 0, block / 2) >> (block % 2 * 16));
        }
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) {
            int products[2][4] = {};
            if constexpr (Format::GROUP == 16) {
                mma_s8(products[0], {left[m][0], left[m][1]}, right[0]);
                mma_s8(products[1], {left[m][2], left[m][3]}, right[1]);
            } else {
                mma_s8(products[0], left[m], right);
            }
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                dots[m][n][i] += group[i % 2].scale[0] * products[0][i];
                if (Format::GROUP == 16) dots[m][n][i] += group[i % 2].scale[1] * products[1][i];
            }
        }
    }
}

// What four groups' sums of activations are multiplied with: their minima, or their scales. `bits` are those of two blocks.
template <class Format>
BN_DEVICE uint32_t group_bytes(uint32_t bits) {
    if (!Format::MINIMA) return bits;
    if (Format::GROUP == 16) return bits >> 4 & 0x0f0f0f0fu;
    return (bits >> 8 & 0xff) * 0x0101u | (bits >> 24) * 0x01010000u;
}

// Four sums as int8, of which they are `low + 128 high`.
BN_DEVICE void split_sums(Words2 sums, uint32_t &low, uint32_t &high) {
    auto bytes = [](uint32_t a, uint32_t b, uint32_t mask) {
        a &= mask, b &= mask;
        return ((a | a >> 8) & 0xffff) | (b | b >> 8) << 16;
    };
    low = bytes(sums.word[0], sums.word[1], 0x007f007fu);
    high = bytes(sums.word[0] >> 7, sums.word[1] >> 7, 0x00ff00ffu);
}

// Adds a super-block to the sums, and clears its integers.
template <class Format>
BN_DEVICE void end_super(const unsigned char *groups, const unsigned char *x_sums, const Scales256 &scales, Dots &dots,
    Sums &sums) {
    unsigned own = static_cast<unsigned>(lane());
    uint32_t low[LEFTS][2], high[LEFTS][2];
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        BN_UNROLL
        for (int half = 0; half < 2; half++) {
            const unsigned char *at = x_sums + place<2>(token_of(m, 2 * half), own % 4 / 2) + own % 2 * 8;
            split_sums(*reinterpret_cast<const Words2 *>(at), low[m][half], high[m][half]);
        }
    }
    BN_UNROLL
    for (int n = 0; n < RIGHTS; n++) {
        uint32_t right = group_bytes<Format>(word_at<1>(groups, warp_output() + 8 * n + own / 4, 0, own % 4));
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) {
            int lows[4] = {}, highs[4] = {};
            mma_s8(lows, low[m], right);
            mma_s8(highs, high[m], right);
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                int output = output_of(n, i), sum = lows[i] + 128 * highs[i];
                Ends ends{scales.d[output], scales.min[output], scales.x[token_of(m, i)]};
                int dot = dots[m][n][i] - Format::OFFSET * sum;
                sums[m][n][i] = add_super<Format>(sums[m][n][i], dot, sum, ends);
                dots[m][n][i] = 0;
            }
        }
    }
}

template <class Format>
BN_DEVICE void super_gemm(const Blocks &p) {
    constexpr int STAGE = LEFT_BYTES + CODES_BYTES<Format>;
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * TILE_TOKENS, output0 = p.block * TILE_OUTPUTS;
    Planes<Format> planes(p.rows, p.cols);
    Source x{reinterpret_cast<const uint8_t *>(p.x), p.cols, token0, p.tokens};
    Source groups{p.codes + planes.groups, planes.group_row, output0, p.rows};
    Source x_sums{reinterpret_cast<const uint8_t *>(p.x_sums), p.cols / 8, token0, p.tokens};
    // Two steps are a super-block. What it has beside its columns comes with the first of them.
    auto beside = [&](int super) { return memory + 2 * STAGE + super % 2 * SUPER_BYTES; };
    auto scales = [&](int super) {
        return reinterpret_cast<Scales256 *>(beside(super) + GROUP_BYTES + SUM_BYTES);
    };
    auto stage_step = [&](int step) {
        unsigned char *to = memory + step % 2 * STAGE;
        stage<GEMM_THREADS, TILE_TOKENS, STEP_PIECES>(to, x, step * STEP_PIECES);
        stage_codes(to + LEFT_BYTES, p, planes, output0, step);
        if (step % 2 == 0) {
            stage<GEMM_THREADS, TILE_OUTPUTS, 1>(beside(step / 2), groups, step / 2);
            stage<GEMM_THREADS, TILE_TOKENS, 2>(beside(step / 2) + GROUP_BYTES, x_sums, step);
        }
        copy_async_commit();
    };
    Dots dots = {};
    Sums sums = {};
    int steps = p.cols / STEP;
    await_inputs();
    stage_step(0);
    store_ends(*scales(0), fetch_ends<Format>(p, token0, output0, 0));
    for (int step = 0; step < steps; step++) {
        copy_async_wait<0>();
        sync_block(); // as in `whole_gemm`
        bool last = step % 2 == 1, more = step + 1 < steps;
        Ends ends{};
        if (more) stage_step(step + 1);
        if (last && more) ends = fetch_ends<Format>(p, token0, output0, step / 2 + 1);
        const unsigned char *from = memory + step % 2 * STAGE, *own = beside(step / 2);
        BN_UNROLL_BY(1)
        for (int b = 0; b < STEP / 32; b++) {
            super_step<Format>(from, from + LEFT_BYTES, own, b, step % 2 * (STEP / 32) + b, dots);
        }
        if (last) end_super<Format>(own, own + GROUP_BYTES, *scales(step / 2), dots, sums);
        if (last && more) store_ends(*scales(step / 2 + 1), ends);
    }
    write_sums(p, token0, output0, sums);
}

} // namespace

// `bn_TYPE_gemv_T`: at most T rows of int8 with a scale for each 256 columns and a sum for each 16, times super-blocks
// (`Blocks`). Block: 128, grid: ceil(rows / 16) of each matrix, shared memory: 4224 T bytes.
#define BN_SUPER_GEMV(name, Format, T)                                                                                 \
    BN_BLOCKS_KERNEL(BN_GEMV(name##_gemv_##T), blockIdx.x, 16, super_gemv<Format, T, 4>)
// `bn_TYPE_gemm`: the same, of any number of tokens. Block: 256, grid: ceil(tokens / 64), ceil(rows / 128); shared memory:
// 27136 bytes and 4096 for each bit of a code.
#define BN_SUPERS(name, Format)                                                                                        \
    BN_SUPER_GEMV(name, Format, 1)                                                                                     \
    BN_SUPER_GEMV(name, Format, 2)                                                                                     \
    BN_SUPER_GEMV(name, Format, 4)                                                                                     \
    BN_SUPER_GEMV(name, Format, 8)                                                                                     \
    BN_BLOCKS_KERNEL(BN_GEMM(name##_gemm), blockIdx.y, TILE_OUTPUTS, super_gemm<Format>)
BN_SUPERS(q2_k, Q2_K)
BN_SUPERS(q3_k, Q3_K)
BN_SUPERS(q4_k, Q4_K)
BN_SUPERS(q5_k, Q5_K)
BN_SUPERS(q6_k, Q6_K)
