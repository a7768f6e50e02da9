// One warp's part of attention: the online softmax of its queries over the positions that its block has staged.
#pragma once

#include "work.cuh"

namespace attention {

// Elements of a head that a warp covers with 2 per lane.
constexpr int COLUMNS = 2 * WARP;

struct alignas(16) Four {
    float x[4];
};

// The block's layout of shared memory.
struct Stage {
    unsigned char *keys;
    unsigned char *values;
    // [warps * N, q_stride]
    float *q;
    int q_stride;
    // [64, N], this warp's part
    float *weights;
    // [warps * N], the position of each query; -1 where a warp has no query
    int *positions;
    int key_stride;
    int value_stride;
};

// The online softmax of a warp's N queries. A lane holds elements 64 i + 2 lane() and the next one of the weighted sum
// of values, and 2 of the 16 sums of weights, starting at 2 (lane() % 8).
template <int N, int D> struct State {
    float values[N][2 * D];
    float sums[N][2];
    float max[N];

    __device__ __forceinline__ void clear() {
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            for (float &value : values[n]) {
                value = 0.0f;
            }
            sums[n][0] = sums[n][1] = 0.0f;
            max[n] = -INFINITY;
        }
    }
};

// Computes the scores of positions 2 lane() and 2 lane() + 1 for each query, also where the query does not see them.
template <int KIND, int N> BN_DEVICE void score(const Stage &stage, int head_dim, float (&dots)[N][2]) {
    constexpr int BYTES = ELEMENT_BYTES<KIND>;
    const unsigned char *key = stage.keys + lane() / 8 * stage.key_stride + 2 * (lane() % 8) * BYTES;
    const float *q = stage.q + warp() * N * stage.q_stride;
    BN_UNROLL
    for (int n = 0; n < N; n++) {
        dots[n][0] = dots[n][1] = 0.0f;
    }
    int d = 0;
    for (; d + 4 <= head_dim; d += 4) {
        Four x[N];
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            x[n] = *reinterpret_cast<const Four *>(q + n * stage.q_stride + d);
        }
        BN_UNROLL
        for (int i = 0; i < 4; i++) {
            Two k = load_two<KIND>(key + (d + i) * TILE * BYTES);
            BN_UNROLL
            for (int n = 0; n < N; n++) {
                dots[n][0] = fma_rn(x[n].x[i], k.x[0], dots[n][0]);
                dots[n][1] = fma_rn(x[n].x[i], k.x[1], dots[n][1]);
            }
        }
    }
    for (; d < head_dim; d++) {
        Two k = load_two<KIND>(key + d * TILE * BYTES);
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            dots[n][0] = fma_rn(q[n * stage.q_stride + d], k.x[0], dots[n][0]);
            dots[n][1] = fma_rn(q[n * stage.q_stride + d], k.x[1], dots[n][1]);
        }
    }
}

// Adds the weights of the span's 4 tiles to the 16 sums. Each lane has 2 weights, 0 for positions that are not seen.
BN_DEVICE void add_weights(float (&sums)[2], float keep, const float (&weights)[2]) {
    BN_UNROLL
    for (int e = 0; e < 2; e++) {
        sums[e] = mul_rn(sums[e], keep);
        BN_UNROLL
        for (int t = 0; t < SPAN_TILES; t++) {
            sums[e] = add_rn(sums[e], shfl(weights[e], 8 * t + lane() % 8));
        }
    }
}

// Turns scores into weights, multiplies them by the scales of an int8 V and stages them.
template <int KIND, int N, int D>
BN_DEVICE void softmax(const Stage &stage, int head_dim, const Part (&parts)[N], const float (&dots)[N][2],
                       State<N, D> &state) {
    int tile = lane() / 8, at = 2 * lane();
    BN_UNROLL
    for (int n = 0; n < N; n++) {
        float weights[2], high = state.max[n];
        bool sees[2];
        BN_UNROLL
        for (int e = 0; e < 2; e++) {
            sees[e] = at + e >= parts[n].from && at + e < parts[n].to;
            weights[e] = dots[n][e];
            if constexpr (KIND == KV_INT8) {
                const unsigned char *keys = stage.keys + tile * stage.key_stride;
                weights[e] = mul_rn(weights[e], tile_scale(keys, at % TILE + e, head_dim));
            }
            // A NaN does not change the maximum. It reaches the output through its weight.
            high = sees[e] && weights[e] > high ? weights[e] : high;
        }
        high = warp_max(high);
        float keep = decay(state.max[n], high);
        state.max[n] = high;
        BN_UNROLL
        for (int e = 0; e < 2; e++) {
            weights[e] = sees[e] ? bn_exp(add_rn(weights[e], -high)) : 0.0f;
        }
        add_weights(state.sums[n], keep, weights);
        for (float &value : state.values[n]) {
            value = mul_rn(value, keep);
        }
        BN_UNROLL
        for (int e = 0; e < 2; e++) {
            if constexpr (KIND == KV_INT8) {
                const unsigned char *values = stage.values + tile * stage.value_stride;
                weights[e] = mul_rn(weights[e], tile_scale(values, at % TILE + e, head_dim));
            }
            stage.weights[(at + e) * N + n] = weights[e];
        }
    }
}

// Adds the weighted values of positions `from..to`. With CHECK, only for queries that see the position, since unwritten
// memory may hold NaN.
template <int KIND, int N, int D, bool CHECK>
BN_DEVICE void add_values(const Stage &stage, int head_dim, Part at, const Part (&parts)[N], State<N, D> &state) {
    constexpr int BYTES = ELEMENT_BYTES<KIND>;
    for (int j = at.from; j < at.to; j++) {
        const unsigned char *row = stage.values + j / TILE * stage.value_stride + j % TILE * head_dim * BYTES;
        float weights[N];
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            weights[n] = stage.weights[j * N + n];
        }
        BN_UNROLL
        for (int i = 0; i < D; i++) {
            int d = COLUMNS * i + 2 * lane();
            if (d >= head_dim) {
                continue;
            }
            Two value = load_two<KIND>(row + d * BYTES);
            BN_UNROLL
            for (int n = 0; n < N; n++) {
                if (!CHECK || (j >= parts[n].from && j < parts[n].to)) {
                    float (&sums)[2 * D] = state.values[n];
                    sums[2 * i] = fma_rn(weights[n], value.x[0], sums[2 * i]);
                    sums[2 * i + 1] = fma_rn(weights[n], value.x[1], sums[2 * i + 1]);
                }
            }
        }
    }
}

// Adds the weighted values of a span. Only positions at the edges, which not all queries see, need checks.
template <int KIND, int N, int D>
BN_DEVICE void weigh(const Stage &stage, int head_dim, const Part (&parts)[N], State<N, D> &state) {
    Part all = {SPAN, 0}, common = {0, SPAN};
    BN_UNROLL
    for (int n = 0; n < N; n++) {
        bool sees = parts[n].from < parts[n].to;
        all.from = sees && parts[n].from < all.from ? parts[n].from : all.from;
        all.to = sees && parts[n].to > all.to ? parts[n].to : all.to;
        common.from = parts[n].from > common.from ? parts[n].from : common.from;
        common.to = parts[n].to < common.to ? parts[n].to : common.to;
    }
    if (common.from >= common.to) {
        add_values<KIND, N, D, true>(stage, head_dim, all, parts, state);
        return;
    }
    add_values<KIND, N, D, true>(stage, head_dim, {all.from, common.from}, parts, state);
    add_values<KIND, N, D, false>(stage, head_dim, common, parts, state);
    add_values<KIND, N, D, true>(stage, head_dim, {common.to, all.to}, parts, state);
}

// Merges the next piece into a query's total.
template <int N, int D, int M> BN_DEVICE void merge(State<N, D> &total, const State<M, D> &piece, int n, int m) {
    float high = piece.max[m] > total.max[n] ? piece.max[m] : total.max[n];
    float a = decay(total.max[n], high), b = decay(piece.max[m], high);
    total.max[n] = high;
    BN_UNROLL
    for (int e = 0; e < 2; e++) {
        total.sums[n][e] = add_rn(mul_rn(total.sums[n][e], a), mul_rn(piece.sums[m][e], b));
    }
    BN_UNROLL
    for (int i = 0; i < 2 * D; i++) {
        total.values[n][i] = add_rn(mul_rn(total.values[n][i], a), mul_rn(piece.values[m][i], b));
    }
}

// Writes a query's output.
template <int N, int D> BN_DEVICE void finish(const State<N, D> &state, int n, int head_dim, float *out) {
    // Lanes 4 apart hold sums that are 8 apart.
    float low = add_rn(state.sums[n][0], shfl_xor(state.sums[n][0], 4));
    float high = add_rn(state.sums[n][1], shfl_xor(state.sums[n][1], 4));
    float total = add_rn(low, high);
    total = add_rn(total, shfl_xor(total, 1));
    total = add_rn(total, shfl_xor(total, 2));
    float inverse = div_rn(1.0f, total);
    BN_UNROLL
    for (int i = 0; i < D; i++) {
        int d = COLUMNS * i + 2 * lane();
        if (d < head_dim) {
            Two both = {{mul_rn(state.values[n][2 * i], inverse), mul_rn(state.values[n][2 * i + 1], inverse)}};
            *reinterpret_cast<Two *>(out + d) = both;
        }
    }
}

} // namespace attention
