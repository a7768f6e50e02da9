// Products with super-blocks, the K-quants and IQ4_XS: for 1 to 8 rows of activations as in gemv.cu, for more as in
// gemm.cu.
//
// The 256 columns of a super-block are one integer sum: the products of each group times its scale, minus the offset of
// the codes. One fused multiply-add adds it to the row's sum, a second one the minima. Both integers are exact in any
// order. The first may exceed 2^24 and is rounded when it becomes a float, as on the CPU.
//
// Lower bound: as in gemv.cu. 2560 x 6912 weights are 10.2 MB as Q4_K, 3 us on an H100 at 3.35 TB/s, and 14.5 MB and
// 4.3 us as Q6_K. Per 256 columns these are 2.7 and 4.1 bytes more than in the files, since scales and minima take
// whole bytes. Prompts: one integer multiplication for each 32 columns of an output (two where a group has 16 columns),
// 64 per clock and SM: 0.7 G for 512 tokens of such a product, 50 us at 15 T a second.
#include "products.cuh"
#include "tiles.cuh"

namespace {

// The part of 32 columns in a super-block's sums: products, and sums of activations times minima.
struct alignas(8) Partial {
    int dot, low;
};
// Padded as `SHARES` of gemv.cu.
constexpr int PARTIALS = WARP + 1;
// Blocks of 32 columns in a super-block.
constexpr int SUPER = 8;

// Computes the part of 32 columns; `sums` are the sums of their first sixteen activations and of the others.
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

// Multiplies block `b` of R rows of weights with T rows of x, into this lane's place of `partials[r * T + t]`.
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

// The scales of a super-block for one output of a token.
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

// Adds a super-block to a sum. The offset is already subtracted from `dot`.
template <class Format>
BN_DEVICE float add_super(float sum, int dot, int low, const Ends &ends) {
    sum = fma_rn(static_cast<float>(dot), mul_rn(ends.d, ends.x), sum);
    return Format::MINIMA ? fma_rn(static_cast<float>(low), -mul_rn(ends.min, ends.x), sum) : sum;
}

// T >= tokens rows of x, R rows of weights per warp. Each lane takes one of 32 blocks, so that a warp takes four
// super-blocks. Then one lane per output adds the super-blocks in order.
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
        // Loaded while the products are computed.
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

// Staged for each super-block beside its columns: groups of the outputs, sums of the tokens, and scales.
template <class Tile>
struct Beside {
    unsigned char groups[Tile::OUTPUTS * 16], x_sums[Tile::TOKENS * 32];
    float x[Tile::TOKENS], d[Tile::OUTPUTS], min[Tile::OUTPUTS];
};

// A thread's share of the scales on the way to shared memory: thread i has those of output i and token i, unconverted,
// since the first use waits.
struct RawEnds {
    uint32_t both;
    float x;
};

template <class Format>
BN_DEVICE RawEnds fetch_ends(const Blocks &p, int token0, int output0, int super) {
    int i = static_cast<int>(threadIdx.x);
    int64_t supers = p.cols / 256, at = row_or_last(output0 + i, p.rows) * supers + super;
    float x = p.x_scales[row_or_last(token0 + i, p.tokens) * supers + super];
    return {load_scale_bits<Format>(p.scales, at), x};
}

template <class Tile>
BN_DEVICE void store_ends(Beside<Tile> &to, const RawEnds &ends) {
    unsigned i = threadIdx.x;
    if (i < Tile::TOKENS) to.x[i] = ends.x;
    if (i >= Tile::OUTPUTS) return;
    to.d[i] = half_to_float(static_cast<uint16_t>(ends.both & 0xffff));
    to.min[i] = half_to_float(static_cast<uint16_t>(ends.both >> 16));
}

// Adds the products of block `slice` of a step, which is block `block` of the super-block.
template <class Format, class Tile>
BN_DEVICE void super_step(const unsigned char *x, const unsigned char *codes, const unsigned char *groups, int slice,
    int block, typename Tile::Dots &dots) {
    constexpr int LEFTS = Tile::LEFTS, RIGHTS = Tile::RIGHTS;
    uint32_t left[LEFTS][4], right[RIGHTS][2];
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) load_left<STEP_PIECES>(x, Tile::token() + 16 * m, slice, left[m]);
    load_rights<Format, Tile>(codes, slice, right);
    BN_UNROLL
    for (int n = 0; n < RIGHTS; n++) {
        Group group[2];
        BN_UNROLL
        for (int i = 0; i < 2; i++) {
            group[i] = group_of<Format>(word_at<1>(groups, Tile::output_of(n, i), 0, block / 2) >> (block % 2 * 16));
        }
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) {
            int products[2][4] = {};
            if constexpr (Format::GROUP == 16) {
                mma_s8(products[0], {left[m][0], left[m][1]}, right[n][0]);
                mma_s8(products[1], {left[m][2], left[m][3]}, right[n][1]);
            } else {
                mma_s8(products[0], left[m], right[n], {0, 0, 0, 0});
            }
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                dots[m][n][i] += group[i % 2].scale[0] * products[0][i];
                if (Format::GROUP == 16) dots[m][n][i] += group[i % 2].scale[1] * products[1][i];
            }
        }
    }
}

// Returns the factors of four groups' sums of activations: their minima, or their scales. `bits` belong to two blocks.
template <class Format>
BN_DEVICE uint32_t group_bytes(uint32_t bits) {
    if (!Format::MINIMA) return bits;
    if (Format::GROUP == 16) return bits >> 4 & 0x0f0f0f0fu;
    return (bits >> 8 & 0xff) * 0x0101u | (bits >> 24) * 0x01010000u;
}

// Splits four sums into int8 parts with sum = low + 128 high.
BN_DEVICE void split_sums(Words2 sums, uint32_t &low, uint32_t &high) {
    auto bytes = [](uint32_t a, uint32_t b, uint32_t mask) {
        a &= mask, b &= mask;
        return ((a | a >> 8) & 0xffff) | (b | b >> 8) << 16;
    };
    low = bytes(sums.word[0], sums.word[1], 0x007f007fu);
    high = bytes(sums.word[0] >> 7, sums.word[1] >> 7, 0x00ff00ffu);
}

// Whether sums of activations take part: times minima, or times scales for the offset of the codes.
template <class Format>
constexpr bool SUMMED = Format::MINIMA || Format::OFFSET != 0;

// Adds a super-block to the sums and clears its integers.
template <class Format, class Tile>
BN_DEVICE void end_super(const Beside<Tile> &beside, typename Tile::Dots &dots, typename Tile::Sums &sums) {
    constexpr int LEFTS = Tile::LEFTS;
    unsigned own = static_cast<unsigned>(lane());
    uint32_t low[LEFTS][2] = {}, high[LEFTS][2] = {};
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        BN_UNROLL
        for (int half = 0; SUMMED<Format> && half < 2; half++) {
            const unsigned char *at = beside.x_sums + place<2>(Tile::token_of(m, 2 * half), own % 4 / 2) + own % 2 * 8;
            split_sums(*reinterpret_cast<const Words2 *>(at), low[m][half], high[m][half]);
        }
    }
    BN_UNROLL
    for (int n = 0; n < Tile::RIGHTS; n++) {
        uint32_t right = group_bytes<Format>(word_at<1>(beside.groups, Tile::output() + 8 * n + own / 4, 0, own % 4));
        BN_UNROLL
        for (int m = 0; m < LEFTS; m++) {
            int lows[4] = {}, highs[4] = {};
            if (SUMMED<Format>) mma_s8(lows, low[m], right), mma_s8(highs, high[m], right);
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                int output = Tile::output_of(n, i), sum = lows[i] + 128 * highs[i];
                Ends ends{beside.d[output], beside.min[output], beside.x[Tile::token_of(m, i)]};
                int dot = dots[m][n][i] - Format::OFFSET * sum;
                sums[m][n][i] = add_super<Format>(sums[m][n][i], dot, sum, ends);
                dots[m][n][i] = 0;
            }
        }
    }
}

template <class Format, class Tile>
BN_DEVICE void super_gemm(const Blocks &p) {
    constexpr int STAGE = Tile::LEFT_BYTES + CODES_BYTES<Format, Tile>;
    // Super-blocks of two steps each that have a step in shared memory.
    constexpr int SUPERS = Tile::STAGES / 2 + 1;
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * Tile::TOKENS, output0 = p.block * Tile::OUTPUTS;
    Planes<Format> planes(p.rows, p.cols);
    auto x = Staged<GEMM_THREADS, Tile::TOKENS, STEP_PIECES>::of(p.x, p.cols, token0, p.tokens);
    auto x_sums = Staged<GEMM_THREADS, Tile::TOKENS, 2>::of(p.x_sums, p.cols / 8, token0, p.tokens);
    auto codes = StagedCodes<Format, Tile>::of(p, planes, output0);
    auto groups = Staged<GEMM_THREADS, Tile::OUTPUTS, 1>::of(p.codes + planes.groups, planes.group_row, output0, p.rows);
    auto beside = [&](int super) -> Beside<Tile> & {
        return reinterpret_cast<Beside<Tile> *>(memory + Tile::STAGES * STAGE)[super % SUPERS];
    };
    typename Tile::Dots dots = {};
    typename Tile::Sums sums = {};
    RawEnds ends{};
    int steps = p.cols / STEP;
    prefetch_tile<Format, Tile>(p, planes, output0);
    // The data beside a super-block's columns is staged with its first step, except for scales.
    pipeline<Tile>(
        steps,
        [&](int step, int place) {
            codes.stage(memory + place * STAGE + Tile::LEFT_BYTES, step);
            if (step % 2 == 0) groups.stage(beside(step / 2).groups, step / 2);
        },
        [&](int step, int place) {
            x.stage(memory + place * STAGE, step);
            if (SUMMED<Format> && step % 2 == 0) x_sums.stage(beside(step / 2).x_sums, step / 2);
            if (step == 0) ends = fetch_ends<Format>(p, token0, output0, 0);
        },
        [&](int step, int place) {
            bool last = step % 2 == 1;
            // Other threads use them in the next step. It begins with a barrier only if units have one step.
            if (step == 0) {
                store_ends(beside(0), ends);
                if (Tile::UNIT > 1) sync_block();
            }
            if (!last && step + 2 < steps) ends = fetch_ends<Format>(p, token0, output0, step / 2 + 1);
            const unsigned char *from = memory + place * STAGE;
            Beside<Tile> &own = beside(step / 2);
            BN_UNROLL_BY((Tile::FEW ? 4 : 1))
            for (int b = 0; b < STEP_BLOCKS; b++) {
                int block = step % 2 * STEP_BLOCKS + b;
                super_step<Format, Tile>(from, from + Tile::LEFT_BYTES, own.groups, b, block, dots);
            }
            if (last) end_super<Format, Tile>(own, dots, sums);
            if (last && step + 1 < steps) store_ends(beside(step / 2 + 1), ends);
        });
    write_sums<Tile>(p, token0, output0, sums);
}

} // namespace

// `bn_TYPE_gemv_T`: at most T rows of int8 with a scale for each 256 columns and a sum for each 16, times super-blocks
// (`Blocks`). Block: 128. Grid: ceil(rows / 16) for each matrix. Shared memory: 4224 T bytes.
#define BN_SUPER_GEMV(name, Format, T)                                                                                 \
    BN_BLOCKS_KERNEL(BN_GEMV(name##_gemv_##T), blockIdx.x, 16, super_gemv<Format, T, 4>)
// `bn_TYPE_gemm`: the same for any number of tokens, by tiles as in gemm.cu. Shared memory, per bit of a code plus a
// constant: for 64 x 128 6144 and 35328 bytes, for 32 x 32 3072 and 32256.
#define BN_SUPERS(name, Format)                                                                                        \
    BN_SUPER_GEMV(name, Format, 1)                                                                                     \
    BN_SUPER_GEMV(name, Format, 2)                                                                                     \
    BN_SUPER_GEMV(name, Format, 4)                                                                                     \
    BN_SUPER_GEMV(name, Format, 8)                                                                                     \
    BN_BLOCKS_KERNEL(BN_GEMM(name##_gemm_64x128), blockIdx.y, LargeTile::OUTPUTS, super_gemm<Format, LargeTile>)       \
    BN_BLOCKS_KERNEL(BN_GEMM(name##_gemm_32x32), blockIdx.y, SmallTile::OUTPUTS, super_gemm<Format, SmallTile>)
BN_SUPERS(q2_k, Q2_K)
BN_SUPERS(q3_k, Q3_K)
BN_SUPERS(q4_k, Q4_K)
BN_SUPERS(q5_k, Q5_K)
BN_SUPERS(q6_k, Q6_K)
BN_SUPERS(iq4_xs, IQ4_XS)
