// One warp's part of attention over K and V in F16, on tensor cores. Its 16 queries are the rows of mma's left operand.
//
// K and V are multiplied as they are stored. The other factor is split into two halves, high = f16(x) and low = f16(x -
// high), with one mma each, the high one first. Before that, q is scaled by a power of two that brings its largest
// element to 2^14 to 2^15, and weights (and so their sum) are scaled by 2^15. The error of q is then 2^-22 of an
// element or 2^-39 of the largest one, that of a weight 2^-22 of itself or 2^-40 of the largest.
//
// Sums follow the order of positions. A score adds products of 16 elements of the head at a time. The softmax takes 64
// positions (a span): it rescales the sums so far once, to the largest score that the query sees up to there, and then
// adds products of 16 positions at a time. A lane sums the weights of every fourth pair of the span's positions, so a
// query has four such sums. A position that a query does not see has weight 0. We assume that tensor cores leave a sum
// unchanged by a product with 0 if the other factor is finite; other values are kept away from them (`add_values`). So
// a query's result does not depend on the other queries in its warp, or on how far its block looks ahead.
#pragma once

#include "work.cuh"

namespace attention {

// Queries per warp.
constexpr int QUERIES = 16;
// Columns of V that one ldmatrix loads: two right operands of mma.
constexpr int UNIT = 16;

// Bytes of a staged row of COUNT halves: an odd multiple of 16, so that the 8 consecutive rows that ldmatrix reads
// together lie in different banks.
template <int COUNT> constexpr int ROW_BYTES = 2 * COUNT + 16;

// A row of q: its high parts, then its low parts.
template <int D> constexpr int Q_BYTES = ROW_BYTES<2 * D>;

// Offset of 16-byte piece `piece` of a tile of K, in which each element of the head has two pieces. Every other group
// of four elements has them swapped, so that the first pieces of 8 elements lie in different banks, and so do the
// second ones.
BN_DEVICE int key_place(int piece) {
    return 16 * (piece ^ (piece >> 3 & 1));
}

// Splits x and y into halves and the remainders as halves. x takes the low bits.
BN_DEVICE void split_halves(float x, float y, uint32_t &high, uint32_t &low) {
    high = pack_halves(x, y);
    float left_x = add_rn(x, -half_to_float(static_cast<uint16_t>(high)));
    float left_y = add_rn(y, -half_to_float(static_cast<uint16_t>(high >> 16)));
    low = pack_halves(left_x, left_y);
}

// Stages a query and its unit. A lane holds elements 64 i + 2 lane() and the next one.
template <int D> BN_DEVICE void stage_query(const Two (&x)[D / 64], unsigned char *to, float *unit) {
    float most = 0.0f;
    BN_UNROLL
    for (int i = 0; i < D / 64; i++) {
        most = fmaxf(most, fmaxf(fabsf(x[i].x[0]), fabsf(x[i].x[1])));
    }
    // The exponent of the largest element, at least that of 2^-112, so that both powers of two are normal numbers.
    uint32_t exponent = __float_as_uint(warp_max(most)) >> 23;
    exponent = exponent < 15 ? 15 : exponent > 254 ? 254 : exponent;
    float larger = __uint_as_float((268 - exponent) << 23);
    uint32_t *row = reinterpret_cast<uint32_t *>(to);
    BN_UNROLL
    for (int i = 0; i < D / 64; i++) {
        int at = 32 * i + lane();
        split_halves(mul_rn(x[i].x[0], larger), mul_rn(x[i].x[1], larger), row[at], row[D / 2 + at]);
    }
    if (lane() == 0) {
        *unit = __uint_as_float((exponent - 14) << 23);
    }
}

// A warp stages COUNT queries of the sequence, every STEP-th from `first` on, with zeros where there are none, and for
// each the unit of its scores, a power of two. It loads four before it stages one.
template <int D, int COUNT, int STEP>
BN_DEVICE void stage_halves(const Work &work, int first, unsigned char *to, float *units) {
    constexpr int AT_ONCE = COUNT < 4 ? COUNT : 4;
    int dim = work.paging.head_dim;
    BN_UNROLL_BY(1)
    for (int begin = 0; begin < COUNT; begin += AT_ONCE) {
        Two x[AT_ONCE][D / 64];
        BN_UNROLL
        for (int n = 0; n < AT_ONCE; n++) {
            int query = first + STEP * (begin + n);
            bool has = query < work.to;
            const float *q = has ? work.q_of(query) : nullptr;
            BN_UNROLL
            for (int i = 0; i < D / 64; i++) {
                int d = 64 * i + 2 * lane();
                x[n][i] = {{0.0f, 0.0f}};
                if (has && d < dim) {
                    x[n][i] = *reinterpret_cast<const Two *>(q + d);
                }
            }
        }
        BN_UNROLL
        for (int n = 0; n < AT_ONCE; n++) {
            int row = STEP * (begin + n);
            stage_query<D>(x[n], to + row * Q_BYTES<D>, units + row);
        }
    }
}

// A warp's scores of a span. A lane holds rows lane() / 4 (elements 0 and 1) and lane() / 4 + 8 (2 and 3), and of every
// 8 positions numbers 2 (lane() % 4) and the next.
using Scores = float[SPAN / 8][4];

BN_DEVICE int position_of(int n, int e) {
    return 8 * n + 2 * (lane() % 4) + e;
}

BN_DEVICE void clear(Scores &scores) {
    BN_UNROLL
    for (auto &some : scores) {
        some[0] = some[1] = some[2] = some[3] = 0.0f;
    }
}

// Adds the products of 16 elements of the head, starting at `q` (16 rows) and `keys` (4 tiles, `stride` bytes apart).
template <int D> BN_DEVICE void add_scores(Scores &scores, const unsigned char *q, const unsigned char *keys, int stride) {
    uint32_t high[4], low[4], k[SPAN_TILES][4];
    q += lane() % 16 * Q_BYTES<D> + lane() / 16 * 16;
    keys += key_place(2 * (lane() % 16) + lane() / 16);
    load_matrices(high, q);
    load_matrices(low, q + 2 * D);
    BN_UNROLL
    for (int t = 0; t < SPAN_TILES; t++) {
        load_transposed(k[t], keys + t * stride);
    }
    // These 8 are independent of each other.
    BN_UNROLL
    for (int n = 0; n < SPAN / 8; n++) {
        mma_f16(scores[n], high, {k[n / 2][n % 2 * 2], k[n / 2][n % 2 * 2 + 1]});
    }
    BN_UNROLL
    for (int n = 0; n < SPAN / 8; n++) {
        mma_f16(scores[n], low, {k[n / 2][n % 2 * 2], k[n / 2][n % 2 * 2 + 1]});
    }
}

// A value for each of a lane's two rows.
struct Pair {
    float of[2];
};

struct Parts {
    Part of[2];
};

BN_DEVICE bool sees(const Part &part, int at) {
    return at >= part.from && at < part.to;
}

// Returns the largest score of each row; with CHECK, only of positions that the row sees. Ignores NaN. Here and below,
// ROWS is 1 where a lane's second row is unused.
template <bool CHECK, int ROWS = 2> BN_DEVICE Pair highest(const Scores &scores, const Parts &parts, const Pair &units) {
    Pair high = {{0.0f, 0.0f}};
    BN_UNROLL
    for (int r = 0; r < ROWS; r++) {
        float most = -INFINITY;
        BN_UNROLL
        for (int i = 0; i < SPAN / 4; i++) {
            float score = scores[i / 2][2 * r + i % 2];
            if (!CHECK || sees(parts.of[r], position_of(i / 2, i % 2))) {
                most = fmaxf(most, score);
            }
        }
        most = fmaxf(most, shfl_xor(most, 1));
        high.of[r] = mul_rn(fmaxf(most, shfl_xor(most, 2)), units.of[r]);
    }
    return high;
}

// Returns 2^15 e^x for x <= 0 or NaN; 0 below -87.
BN_DEVICE float weight_of(float x) {
    // An integer in the low bits of 1.5 * 2^23.
    float whole = fma_rn(x, 1.4426950408889634f, 12582912.0f);
    float y = exp_near(x, add_rn(whole, -12582912.0f));
    y = mul_rn(y, __uint_as_float((__float_as_uint(whole) << 23) + ((127u + 15u) << 23)));
    return x < -87.0f ? 0.0f : y;
}

// Turns scores into weights relative to the largest ones. Returns this lane's sums of them.
template <bool CHECK, int ROWS = 2>
BN_DEVICE Pair weigh(Scores &scores, const Parts &parts, const Pair &units, const Pair &high) {
    Pair sums = {{0.0f, 0.0f}};
    BN_UNROLL
    for (int r = 0; r < ROWS; r++) {
        float sum = 0.0f;
        BN_UNROLL
        for (int i = 0; i < SPAN / 4; i++) {
            float &score = scores[i / 2][2 * r + i % 2];
            score = weight_of(fma_rn(score, units.of[r], -high.of[r]));
            if (CHECK && !sees(parts.of[r], position_of(i / 2, i % 2))) {
                score = 0.0f;
            }
            sum = add_rn(sum, score);
        }
        sums.of[r] = sum;
    }
    return sums;
}

// mma's left operand, in two parts.
struct Left {
    uint32_t high[4];
    uint32_t low[4];
};

// Returns the weights of tile `t` of a span. The layout of mma's result is that of its left operand.
template <int ROWS = 2> BN_DEVICE Left left_of(const Scores &weights, int t) {
    Left left;
    BN_UNROLL
    for (int i = 0; i < 4; i++) {
        if (i % 2 >= ROWS) {
            left.high[i] = left.low[i] = 0;
            continue;
        }
        const float (&some)[4] = weights[2 * t + i / 2];
        split_halves(some[i % 2 * 2], some[i % 2 * 2 + 1], left.high[i], left.low[i]);
    }
    return left;
}

// Returns a word with the lowest bit of each half set if the half is not finite.
BN_DEVICE uint32_t not_finite(uint32_t halves) {
    return ((halves & 0x7C007C00u) + 0x04000400u) >> 15 & 0x00010001u;
}

// Makes a left operand with 1 for each position of tile `t` that a row sees.
BN_DEVICE void sight_of(const Parts &parts, int t, uint32_t (&left)[4]) {
    BN_UNROLL
    for (int i = 0; i < 4; i++) {
        int at = position_of(2 * t + i / 2, 0);
        const Part &part = parts.of[i % 2];
        left[i] = (sees(part, at) ? 0x3C00u : 0) | (sees(part, at + 1) ? 0x3C000000u : 0);
    }
}

// A lane's weighted sums of values, for UNITS times 16 columns. Rows are as in `Scores`.
template <int UNITS> using Values = float[2 * UNITS][4];

// Adds the values of a tile of V, whose rows are `stride` bytes apart. With CHECK, some rows may not see some
// positions, and `t` is the tile's number in its span. Values that are not finite are then taken as 0 and afterwards
// make the sums NaN for the rows that see them: for other rows, 0 * NaN would be NaN. (Such values may stand in
// unwritten memory, or beyond the row's position. Stores never write infinity.)
template <int UNITS, bool CHECK>
BN_DEVICE void add_values(Values<UNITS> &sums, const Left &weights, const unsigned char *values, int stride,
                          const Parts &parts, int t) {
    constexpr int AT_ONCE = UNITS < 4 ? UNITS : 4;
    values += lane() % 16 * stride + lane() / 16 * 16;
    BN_UNROLL
    for (int u = 0; u < UNITS; u += AT_ONCE) {
        uint32_t v[AT_ONCE][4], odd[AT_ONCE][4], any = 0;
        BN_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            load_transposed(v[i], values + 2 * UNIT * (u + i));
        }
        if constexpr (CHECK) {
            BN_UNROLL
            for (int i = 0; i < 4 * AT_ONCE; i++) {
                uint32_t &halves = v[i / 4][i % 4], &bits = odd[i / 4][i % 4];
                bits = not_finite(halves);
                halves &= ~(bits * 0xFFFFu);
                any |= bits;
            }
        }
        BN_UNROLL
        for (int n = 0; n < 2 * AT_ONCE; n++) {
            mma_f16(sums[2 * u + n], weights.high, {v[n / 2][n % 2 * 2], v[n / 2][n % 2 * 2 + 1]});
        }
        BN_UNROLL
        for (int n = 0; n < 2 * AT_ONCE; n++) {
            mma_f16(sums[2 * u + n], weights.low, {v[n / 2][n % 2 * 2], v[n / 2][n % 2 * 2 + 1]});
        }
        if (!CHECK || warp_ballot(any != 0) == 0) {
            continue;
        }
        uint32_t sight[4];
        sight_of(parts, t, sight);
        BN_UNROLL
        for (int n = 0; n < 2 * AT_ONCE; n++) {
            float seen[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            const uint32_t (&bits)[4] = odd[n / 2];
            mma_f16(seen, sight, {bits[n % 2 * 2] * 0x3C00u, bits[n % 2 * 2 + 1] * 0x3C00u});
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                sums[2 * u + n][i] = seen[i] > 0.0f ? __uint_as_float(0x7FC00000u) : sums[2 * u + n][i];
            }
        }
    }
}

// Multiplies the sums of a lane's two rows by factors of at most 1.
template <int N> BN_DEVICE void shrink(float (&sums)[N][4], const Pair &by) {
    BN_UNROLL
    for (auto &some : sums) {
        BN_UNROLL
        for (int i = 0; i < 4; i++) {
            some[i] = mul_rn(some[i], by.of[i / 2]);
        }
    }
}

// Returns two of a row's sums at the end of a piece. Zeros become positive: the sign that products with a weight of 0
// leave depends on positions that the query does not see.
template <int N> BN_DEVICE Two two_of(const float (&sums)[N][4], int n, int row) {
    return {{add_rn(sums[n][2 * row], 0.0f), add_rn(sums[n][2 * row + 1], 0.0f)}};
}

} // namespace attention
