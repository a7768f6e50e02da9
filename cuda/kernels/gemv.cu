// Products of 1 to 8 rows of activations, as in a decode step. Each kernel is compiled for up to 1, 2, 4 and 8 rows
// (the number that ends its name), which share the loads of the weights.
//
// Lower bound: the bytes of the weights over the memory's bandwidth. 2560 x 6912 ternary weights are 4.4 MB, 1.3 us on
// an H100 at 3.35 TB/s; 18.8 MB and 5.6 us as Q8_0, 71 MB and 21 us as f32. F16 and bf16: dense.cu. With 8 rows, dp4a
// at 64 per clock and SM takes longer than loading ternary weights: 2.4 us. int8 tensor cores would not, with the same
// bits.
//
// The registers of sm_90 allow the following numbers of warps on an SM of an H100 for 1, 2, 4 and 8 rows: ternary 40,
// 32, 20 and 12; Q4_0 40, 36, 20 and 16; f32 64, 40, 20 and 12. Shared memory (at most 33 KB per block) is never the
// limit.
//
// All kernels write `out[t * stride + i]` for rows t of x and rows i of the weights, in blocks of 128 threads without
// block barriers. Each value has the bits of the CPU's product: integer sums are exact, and f32 sums follow the CPU's
// order.
#include "products.cuh"

namespace {

// Lanes that share a row of weights with one scale. They read 128 bytes of it at a time, or 256 for one row of x, where
// a step's time is the latency of its loads.
template <int T>
constexpr int WHOLE_LANES = T == 1 ? 16 : 8;

// Multiplies 64 columns of T rows of x, in the order of half an I2_S block, with R rows of weights.
template <int T, int R>
BN_DEVICE void add_ternary(int (&dots)[T][R], const int8_t *x, int cols, int tokens, const Words4 (&weights)[R]) {
    BN_UNROLL
    for (int k = 0; k < 4; k++) {
        uint32_t codes[R][4];
        BN_UNROLL
        for (int r = 0; r < R; r++) {
            BN_UNROLL
            for (int w = 0; w < 4; w++) codes[r][w] = weights[r].word[w] >> (6 - 2 * k) & 0x03030303u;
        }
        BN_UNROLL
        for (int t = 0; t < T; t++) {
            const int8_t *from = x + static_cast<int64_t>(row_or_last(t, tokens)) * cols + 32 * k;
            Words4 values = *reinterpret_cast<const Words4 *>(from);
            BN_UNROLL
            for (int r = 0; r < R; r++) {
                BN_UNROLL
                for (int w = 0; w < 4; w++) {
                    dots[t][r] = dp4a(static_cast<int>(codes[r][w]), static_cast<int>(values.word[w]), dots[t][r]);
                }
            }
        }
    }
}

// Multiplies sixteen columns, in order.
template <int T, int R>
BN_DEVICE void add_int8(int (&dots)[T][R], const int8_t *x, int cols, int tokens, const Words4 (&weights)[R]) {
    BN_UNROLL
    for (int t = 0; t < T; t++) {
        const int8_t *from = x + static_cast<int64_t>(row_or_last(t, tokens)) * cols;
        Words4 values = *reinterpret_cast<const Words4 *>(from);
        BN_UNROLL
        for (int r = 0; r < R; r++) {
            BN_UNROLL
            for (int w = 0; w < 4; w++) {
                dots[t][r] = dp4a(static_cast<int>(weights[r].word[w]), static_cast<int>(values.word[w]), dots[t][r]);
            }
        }
    }
}

// T >= tokens rows of x. WHOLE_LANES lanes have R rows of weights, which are `WARP / WHOLE_LANES` apart.
template <class Format, int T, int R>
BN_DEVICE void whole_gemv(const Whole &p) {
    constexpr int LANES = WHOLE_LANES<T>, GROUPS = WARP / LANES;
    // Pieces of a row that are loaded before one is used, to keep enough loads in flight.
    constexpr int AHEAD = 4 / R;
    int part = lane() % LANES, pieces = p.cols / 128 * Format::BITS;
    int first = (p.block * (GEMV_THREADS / WARP) + warp()) * GROUPS * R + lane() / LANES;
    const Words4 *rows[R];
    BN_UNROLL
    for (int r = 0; r < R; r++) {
        int64_t row = row_or_last(first + r * GROUPS, p.rows);
        rows[r] = reinterpret_cast<const Words4 *>(p.weights + row * 16 * pieces);
    }
    Words4 weights[AHEAD][R];
    auto load = [&](int start) {
        BN_UNROLL
        for (int i = 0; i < AHEAD; i++) {
            BN_UNROLL
            for (int r = 0; r < R; r++) weights[i][r] = rows[r][min(start + i * LANES, pieces - 1)];
        }
    };
    constexpr int ROWS = GEMV_THREADS / LANES * R;
    prefetch_rows(p.weights, 16 * static_cast<int64_t>(pieces), p.block * ROWS, ROWS, p.rows);
    load(part);
    await_inputs();
    int dots[T][R] = {};
    BN_UNROLL_BY(1)
    for (int start = part; start < pieces; start += AHEAD * LANES) {
        if (start != part) load(start);
        BN_UNROLL
        for (int i = 0; i < AHEAD; i++) {
            int piece = start + i * LANES;
            if (piece >= pieces) continue;
            if constexpr (Format::BITS == 8) {
                add_int8<T, R>(dots, p.x + 16 * piece, p.cols, p.tokens, weights[i]);
            } else {
                // Two pieces are a block: bytes 0 to 15 have its columns 32k to 32k + 15, bytes 16 to 31 the next 16
                // columns.
                const int8_t *x = p.x + piece / 2 * 128 + piece % 2 * 16;
                add_ternary<T, R>(dots, x, p.cols, p.tokens, weights[i]);
            }
        }
    }
    BN_UNROLL
    for (int r = 0; r < R; r++) {
        int row = first + r * GROUPS;
        BN_UNROLL
        for (int t = 0; t < T; t++) {
            int dot = dots[t][r];
            BN_UNROLL
            for (int mask = LANES / 2; mask > 0; mask /= 2) dot += shfl_xor(dot, mask);
            if (part == 0 && t < p.tokens && row < p.rows) write_whole<Format>(p, t, row, dot);
        }
    }
}

// A block's contribution to a sum: `sum = fma(dot, scale, sum)`.
struct alignas(8) Share {
    float dot, scale;
};
// One more than a warp's lanes, so that lanes that each read a row of shares use different banks.
constexpr int SHARES = WARP + 1;

// A block of 32 columns of R rows of weights.
template <class Format, int R>
struct RowsOfBlock {
    Codes<Format> codes[R];
    float scales[R], minima[R];
};

template <class Format, int R>
BN_DEVICE RowsOfBlock<Format, R> load_block(const Blocks &p, const Planes<Format> &planes, int first, int b) {
    RowsOfBlock<Format, R> loaded;
    BN_UNROLL
    for (int r = 0; r < R; r++) {
        int64_t row = row_or_last(first + r, p.rows);
        loaded.codes[r] = load_codes(p.codes, planes, row, b);
        int64_t at = row * (p.cols / Format::ELEMENTS) + b / (Format::ELEMENTS / 32);
        load_scale<Format>(p.scales, at, loaded.scales[r], loaded.minima[r]);
    }
    return loaded;
}

// Computes the shares of block `b` of R rows of weights with T rows of x, into this lane's place of `shares[r * T +
// t]`. With MINIMA, stores the minima of rows in `lows[r]` and their factors in `lows[R + t]`.
template <class Format, int T, int R>
BN_DEVICE void block_shares(const Blocks &p, const RowsOfBlock<Format, R> &weights, int b, Share *shares, float *lows) {
    int blocks = p.cols / 32;
    BN_UNROLL
    for (int r = 0; r < R; r++) {
        if (Format::MINIMA) lows[r * SHARES] = weights.minima[r];
    }
    BN_UNROLL
    for (int t = 0; t < T; t++) {
        int64_t at = static_cast<int64_t>(row_or_last(t, p.tokens)) * blocks + b;
        uint32_t values[8];
        load_words(reinterpret_cast<const uint8_t *>(p.x) + 32 * at, values);
        float scale = p.x_scales[at];
        int sum = Format::OFFSET != 0 || Format::MINIMA ? p.x_sums[at] : 0, less = Format::OFFSET * sum;
        if (Format::MINIMA) lows[(R + t) * SHARES] = mul_rn(scale, static_cast<float>(sum));
        BN_UNROLL
        for (int r = 0; r < R; r++) {
            int dot = 0;
            BN_UNROLL
            for (int n = 0; n < 8; n++) {
                dot = dp4a(static_cast<int>(code_word(weights.codes[r], n)), static_cast<int>(values[n]), dot);
            }
            shares[(r * T + t) * SHARES] = {static_cast<float>(dot - less), mul_rn(weights.scales[r], scale)};
        }
    }
}

// T >= tokens rows of x, R rows of weights per warp. Each lane takes one of 32 blocks. Then one lane per output adds
// the shares in order, which is the CPU's order.
template <class Format, int T, int R>
BN_DEVICE void block_gemv(const Blocks &p) {
    static_assert(T * R <= WARP, "a lane for each output");
    BN_SHARED(memory);
    constexpr int WARPS = GEMV_THREADS / WARP;
    Share *shares = reinterpret_cast<Share *>(memory) + warp() * R * T * SHARES;
    // After the shares of all warps.
    float *lows = reinterpret_cast<float *>(memory + WARPS * R * T * SHARES * sizeof(Share)) + warp() * (R + T) * SHARES;
    int first = (p.block * (GEMV_THREADS / WARP) + warp()) * R;
    int blocks = p.cols / 32;
    Planes<Format> planes(p.rows, p.cols);
    prefetch_blocks(p, planes, p.block * (GEMV_THREADS / WARP) * R, GEMV_THREADS / WARP * R);
    RowsOfBlock<Format, R> next = load_block<Format, R>(p, planes, first, min(lane(), blocks - 1));
    await_inputs();
    float sum = 0.0f;
    for (int start = 0; start < blocks; start += WARP) {
        int count = min(WARP, blocks - start);
        // The next blocks' weights are loaded while these are multiplied.
        RowsOfBlock<Format, R> own = next;
        if (start + WARP < blocks) {
            next = load_block<Format, R>(p, planes, first, min(start + WARP + lane(), blocks - 1));
        }
        if (lane() < count) block_shares<Format, T, R>(p, own, start + lane(), shares + lane(), lows + lane());
        sync_warp();
        if (lane() < T * R) {
            const Share *own = shares + lane() * SHARES;
            const float *min = lows + lane() / T * SHARES, *x = lows + (R + lane() % T) * SHARES;
            BN_UNROLL_BY(8)
            for (int b = 0; b < count; b++) {
                sum = fma_rn(own[b].dot, own[b].scale, sum);
                if (Format::MINIMA) sum = fma_rn(min[b], x[b], sum);
            }
        }
        sync_warp();
    }
    int t = lane() % T, row = first + lane() / T;
    if (lane() < T * R && t < p.tokens && row < p.rows) write(p, t, row, sum);
}

// Lanes of a sum, as on the CPU: lane l adds up the columns i with i % 16 = l.
constexpr int SUM_LANES = 16;

// T >= tokens rows of x. Four lanes have R rows of weights, 8 apart, and four lanes of their sums each.
template <int T, int R>
BN_DEVICE void f32_gemv(const Dense &p) {
    constexpr int GROUPS = WARP / 4;
    int part = lane() % 4;
    int first = (p.block * (GEMV_THREADS / WARP) + warp()) * GROUPS * R + lane() / 4;
    const float *matrix = reinterpret_cast<const float *>(p.weights);
    constexpr int ROWS = GEMV_THREADS / 4 * R;
    prefetch_rows(matrix, 4 * static_cast<int64_t>(p.cols), p.block * ROWS, ROWS, p.rows);
    await_inputs();
    float sums[T][R][4] = {};
    BN_UNROLL_BY((T <= 2 ? 8 : 2))
    for (int k = 4 * part; k < p.cols; k += SUM_LANES) {
        Floats4 weights[R];
        BN_UNROLL
        for (int r = 0; r < R; r++) {
            int64_t row = row_or_last(first + r * GROUPS, p.rows);
            weights[r] = *reinterpret_cast<const Floats4 *>(matrix + row * p.cols + k);
        }
        BN_UNROLL
        for (int t = 0; t < T; t++) {
            const float *from = p.x + static_cast<int64_t>(row_or_last(t, p.tokens)) * p.cols + k;
            Floats4 x = *reinterpret_cast<const Floats4 *>(from);
            BN_UNROLL
            for (int r = 0; r < R; r++) {
                BN_UNROLL
                for (int i = 0; i < 4; i++) sums[t][r][i] = fma_rn(x.value[i], weights[r].value[i], sums[t][r][i]);
            }
        }
    }
    BN_UNROLL
    for (int r = 0; r < R; r++) {
        int row = first + r * GROUPS;
        BN_UNROLL
        for (int t = 0; t < T; t++) {
            float sum = quad_sum(sums[t][r]);
            if (part == 0 && t < p.tokens && row < p.rows) write(p, t, row, sum);
        }
    }
}

} // namespace

// `bn_ternary_gemv_T`, `bn_int8_gemv_T`: at most T rows of int8 with a scale and a sum each, times weights with a scale
// per row (arguments: `Whole`). Grid: ceil(rows / (16 R)) for each matrix, for T = 1 ceil(rows / 8). Shared memory:
// none.
// value = (dot - sum) * (weight scale / scale); for int8 weights, which need no sums, dot * (weight scale * (1 /
// scale)).
#define BN_WHOLE_GEMV(name, Format, T, R)                                                                              \
    BN_WHOLE_KERNEL(                                                                                                   \
        BN_GEMV(name##_gemv_##T), blockIdx.x, GEMV_THREADS / WHOLE_LANES<T> * R, whole_gemv<Format, T, R>)
#define BN_WHOLE_GEMVS(name, Format)                                                                                   \
    BN_WHOLE_GEMV(name, Format, 1, 1)                                                                                  \
    BN_WHOLE_GEMV(name, Format, 2, 2)                                                                                  \
    BN_WHOLE_GEMV(name, Format, 4, 4)                                                                                  \
    BN_WHOLE_GEMV(name, Format, 8, 4)
BN_WHOLE_GEMVS(ternary, Ternary)
BN_WHOLE_GEMVS(int8, Int8)

// `bn_TYPE_gemv_T`: at most T rows of int8 with scales and sums for each 32 columns, times weights in blocks
// (`Blocks`). Grid: ceil(rows / 16) for each matrix. Shared memory: 4224 T bytes, 4752 T + 2112 with minima. Block by
// block, sum = fma(dot, weight scale * scale, sum), then sum = fma(minimum, scale * sum of x, sum).
#define BN_BLOCK_GEMV(name, Format, T)                                                                                 \
    BN_BLOCKS_KERNEL(BN_GEMV(name##_gemv_##T), blockIdx.x, 16, block_gemv<Format, T, 4>)
#define BN_BLOCK_GEMVS(name, Format)                                                                                   \
    BN_BLOCK_GEMV(name, Format, 1)                                                                                     \
    BN_BLOCK_GEMV(name, Format, 2)                                                                                     \
    BN_BLOCK_GEMV(name, Format, 4)                                                                                     \
    BN_BLOCK_GEMV(name, Format, 8)
BN_BLOCK_GEMVS(q8_0, Q8_0)
BN_BLOCK_GEMVS(q4_0, Q4_0)
BN_BLOCK_GEMVS(q4_1, Q4_1)
BN_BLOCK_GEMVS(q5_0, Q5_0)
BN_BLOCK_GEMVS(q5_1, Q5_1)
BN_BLOCK_GEMVS(q2_0, Q2_0)
BN_BLOCK_GEMVS(q2_0_128, Q2_0_128)
BN_BLOCK_GEMVS(q1_0, Q1_0)
BN_BLOCK_GEMVS(iq4_nl, IQ4_NL)
BN_BLOCK_GEMVS(mxfp4, MXFP4)

// `bn_f32_gemv_T`: at most T rows of f32, times weights of f32 (`Dense`). Rows are multiples of 16 columns. Grid:
// ceil(rows / (32 R)) for each matrix. Shared memory: none. Sixteen running sums by fma; halves are added until one is
// left.
#define BN_F32_GEMV(T, R) BN_DENSE_KERNEL(BN_GEMV(f32_gemv_##T), blockIdx.x, 32 * R, f32_gemv<T, R>)
BN_F32_GEMV(1, 1)
BN_F32_GEMV(2, 1)
BN_F32_GEMV(4, 2)
BN_F32_GEMV(8, 2)
