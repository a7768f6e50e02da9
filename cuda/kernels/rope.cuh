// Heads of q and k between product and attention: normed, rotated, and stored.
#pragma once

#include "kv.cuh"

namespace attention {

// The largest head.
constexpr int WIDEST = 256;

// A head of q or k. A lane holds N elements, `lane() + 32 * i`, with zeros past the head's end.
template <int N> struct Head {
    float x[N];
};

template <int N> BN_DEVICE Head<N> load_head(const float *from, int head_dim) {
    Head<N> head;
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        int d = lane() + WARP * i;
        head.x[i] = d < head_dim ? from[d] : 0.0f;
    }
    return head;
}

template <int N> BN_DEVICE void store_head(const Head<N> &head, float *to, int head_dim) {
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        int d = lane() + WARP * i;
        if (d < head_dim) {
            to[d] = head.x[i];
        }
    }
}

// RMSNorm with the bits of src/kernels/rows/norm.rs: squares are added in order in each lane, then by a tree.
template <int N> BN_DEVICE void norm_head(Head<N> &head, int head_dim, const Head<N> &weights, float eps) {
    float squares = 0.0f;
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        squares = fma_rn(head.x[i], head.x[i], squares);
    }
    float mean = div_rn(warp_sum(squares), static_cast<float>(head_dim));
    float scale = div_rn(1.0f, sqrt_rn(add_rn(mean, eps)));
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        // Elements past the head's end stay 0, even if the scale is infinite.
        head.x[i] = lane() + WARP * i < head_dim ? mul_rn(mul_rn(head.x[i], scale), weights.x[i]) : 0.0f;
    }
}

// Cosines and sines that rotate a head, in the layout of its elements. Pairs are (i, i + pairs), or (2i, 2i + 1) if
// `interleaved`.
template <int N> struct Turn {
    int pairs;
    bool interleaved;
    Head<N> cosines, sines;
};

// Loads a row of the table: `pairs` cosines, then sines.
template <int N> BN_DEVICE Turn<N> load_turn(const float *table, int pairs, bool interleaved) {
    Turn<N> turn = {pairs, interleaved, {}, {}};
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        int d = lane() + WARP * i, pair = interleaved ? d / 2 : d < pairs ? d : d - pairs;
        if (d < 2 * pairs) {
            turn.cosines.x[i] = table[pair];
            turn.sines.x[i] = table[pairs + pair];
        }
    }
    return turn;
}

// `swap`: scratch memory for a head.
template <int N> BN_DEVICE void rotate_head(Head<N> &head, const Turn<N> &turn, float *swap) {
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        swap[lane() + WARP * i] = head.x[i];
    }
    sync_warp();
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        int d = lane() + WARP * i;
        bool turns = d < 2 * turn.pairs, second = turn.interleaved ? d % 2 == 1 : d >= turn.pairs;
        int other = turn.interleaved ? d ^ 1 : second ? d - turn.pairs : d + turn.pairs;
        float turned = mul_rn(swap[turns ? other : d], turn.sines.x[i]);
        float sum = add_rn(mul_rn(head.x[i], turn.cosines.x[i]), second ? turned : -turned);
        head.x[i] = turns ? sum : head.x[i];
    }
}

// `turn` of src/kernels/attention/kv.rs: the Walsh-Hadamard transform in blocks, the largest powers of two that fit.
template <int N> BN_DEVICE void transform_head(Head<N> &head, int head_dim) {
    int blocks[N];
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        // An element's block is the highest bit in which its index differs from the head's end.
        int d = lane() + WARP * i;
        blocks[i] = 0;
        BN_UNROLL
        for (int block = 1; block <= WARP * N; block *= 2) {
            blocks[i] = d < head_dim && ((d ^ head_dim) & block) != 0 ? block : blocks[i];
        }
    }
    BN_UNROLL
    for (int half = WARP * N / 2; half > 0; half /= 2) {
        Head<N> other;
        BN_UNROLL
        for (int i = 0; i < N; i++) {
            other.x[i] = half < WARP ? shfl_xor(head.x[i], half) : head.x[i ^ half / WARP];
        }
        BN_UNROLL
        for (int i = 0; i < N; i++) {
            bool low = ((lane() + WARP * i) & half) == 0;
            float sum = low ? add_rn(head.x[i], other.x[i]) : add_rn(other.x[i], -head.x[i]);
            head.x[i] = half < blocks[i] ? sum : head.x[i];
        }
    }
    BN_UNROLL
    for (int i = 0; i < N; i++) {
        // 1 / sqrt(block)
        float by = 1.0f;
        BN_UNROLL
        for (int block = 2; block <= WARP * N; block *= 4) {
            by = blocks[i] == block ? mul_rn(by, 0.70710678f) : blocks[i] > block ? mul_rn(by, 0.5f) : by;
        }
        head.x[i] = mul_rn(head.x[i], by);
    }
}

// Stands in `tables_at` for a row whose K and V are not kept.
constexpr unsigned NO_TABLE = ~0u;

// Inputs of `write_head` besides the heads.
struct Rope {
    const float *turns;
    const unsigned *tables, *tables_at, *positions;
    const float *q_norm, *k_norm;
    float q_eps, k_eps, q_scale;
    int heads, pairs;
    bool interleaved;
};

// Norms, rotates and stores one head of a row, that of the warp's number. A warp without a head only waits.
template <int KIND, int N>
BN_DEVICE void write_head(float *qkv, unsigned char *keys, unsigned char *values, const Rope &rope, Paging paging,
                          float *swap) {
    int row = static_cast<int>(blockIdx.x), dim = paging.head_dim, all = rope.heads + 2 * paging.kv_heads;
    int n = static_cast<int>(blockIdx.y * (blockDim.x / WARP)) + warp();
    bool is_q = n < rope.heads, is_k = !is_q && n < rope.heads + paging.kv_heads;
    Head<N> weights = {};
    if ((is_q || is_k) && rope.q_norm != nullptr) {
        weights = load_head<N>(is_q ? rope.q_norm : rope.k_norm, dim);
    }
    await_inputs();
    // A row of padding writes nothing: another row has its place, and in a model with states other K and V.
    if (n >= all || (!is_q && rope.tables_at[row] == NO_TABLE)) {
        return;
    }
    // All loads start before anything waits for one.
    float *at = qkv + (static_cast<size_t>(row) * all + n) * dim;
    int position = static_cast<int>(rope.positions[row]);
    Head<N> head = load_head<N>(at, dim);
    Turn<N> turn = {};
    if (is_q || is_k) {
        size_t turns = static_cast<size_t>(row) * 2 * static_cast<size_t>(rope.pairs);
        turn = load_turn<N>(rope.turns + turns, rope.pairs, rope.interleaved);
    }
    size_t tile = 0;
    if (!is_q) {
        int kv_head = n - rope.heads - (is_k ? 0 : paging.kv_heads);
        const unsigned *table = rope.tables + rope.tables_at[row];
        tile = tile_offset<KIND>(paging, table, kv_head, position / TILE);
    }
    if (is_q || is_k) {
        if (rope.q_norm != nullptr) {
            norm_head(head, dim, weights, is_q ? rope.q_eps : rope.k_eps);
        }
        rotate_head(head, turn, swap);
    }
    if (is_q) {
        BN_UNROLL
        for (int i = 0; i < N; i++) {
            head.x[i] = mul_rn(head.x[i], rope.q_scale);
        }
    }
    if constexpr (KIND == KV_INT8) {
        transform_head(head, dim);
    }
    if (is_q) {
        store_head(head, at, dim);
        return;
    }
    store_row<KIND>((is_k ? keys : values) + tile, is_k, position % TILE, dim, head.x);
}

// Picks the fewest elements per lane that suffice.
template <int KIND>
BN_DEVICE void write_heads(float *qkv, unsigned char *keys, unsigned char *values, const Rope &rope, Paging paging,
                           float *swap) {
    if (paging.head_dim <= 2 * WARP) {
        write_head<KIND, 2>(qkv, keys, values, rope, paging, swap);
    } else if (paging.head_dim <= 4 * WARP) {
        write_head<KIND, 4>(qkv, keys, values, rope, paging, swap);
    } else {
        write_head<KIND, WIDEST / WARP>(qkv, keys, values, rope, paging, swap);
    }
}

} // namespace attention
