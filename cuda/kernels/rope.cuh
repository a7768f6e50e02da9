// Heads of q and k on their way: normed, rotated, and stored.
#pragma once

#include "kv.cuh"

namespace attention {

// The widest head.
constexpr int WIDEST = 256;

// A head of q or k, of which a lane has elements `lane() + 32 * i`; zeros behind its end.
struct Head {
    float x[WIDEST / WARP];
};

BN_DEVICE Head load_head(const float *from, int head_dim) {
    Head head;
    BN_UNROLL
    for (int i = 0; i < WIDEST / WARP; i++) {
        int d = lane() + WARP * i;
        head.x[i] = d < head_dim ? from[d] : 0.0f;
    }
    return head;
}

// RMSNorm with the bits of src/kernels/rows/norm.rs: a lane's squares in their order, then a tree.
BN_DEVICE void norm_head(Head &head, int head_dim, const float *weight, float eps) {
    float squares = 0.0f;
    BN_UNROLL
    for (int i = 0; i < WIDEST / WARP; i++) {
        squares = fma_rn(head.x[i], head.x[i], squares);
    }
    float mean = div_rn(warp_sum(squares), static_cast<float>(head_dim));
    float scale = div_rn(1.0f, sqrt_rn(add_rn(mean, eps)));
    BN_UNROLL
    for (int i = 0; i < WIDEST / WARP; i++) {
        int d = lane() + WARP * i;
        if (d < head_dim) {
            head.x[i] = mul_rn(mul_rn(head.x[i], scale), weight[d]);
        }
    }
}

// Rotates by a row of the table: `pairs` cosines, then sines. Pairs are (i, i + pairs), or (2i, 2i + 1) where `interleaved`.
// `swap`: room for a head.
BN_DEVICE void rotate_head(Head &head, const float *table, int pairs, bool interleaved, float *swap) {
    BN_UNROLL
    for (int i = 0; i < WIDEST / WARP; i++) {
        swap[lane() + WARP * i] = head.x[i];
    }
    sync_warp();
    BN_UNROLL
    for (int i = 0; i < WIDEST / WARP; i++) {
        int d = lane() + WARP * i;
        if (d >= 2 * pairs) {
            continue;
        }
        int pair = interleaved ? d / 2 : d % pairs;
        bool second = interleaved ? d % 2 == 1 : d >= pairs;
        float other = swap[interleaved ? d ^ 1 : second ? d - pairs : d + pairs];
        float turned = mul_rn(other, table[pairs + pair]);
        head.x[i] = add_rn(mul_rn(head.x[i], table[pair]), second ? turned : -turned);
    }
}

// Norms, rotates and stores one head of a row.
template <int KIND>
BN_DEVICE void write_head(float *qkv, unsigned char *keys, unsigned char *values, const float *turns,
                          const unsigned *tables, const unsigned *tables_at, const unsigned *positions,
                          const float *q_norm, const float *k_norm, float q_eps, float k_eps, float q_scale, int heads,
                          Paging paging, int pairs, int interleaved, float *swap) {
    int row = static_cast<int>(blockIdx.x), dim = paging.head_dim, all = heads + 2 * paging.kv_heads;
    for (int n = warp(); n < all; n += static_cast<int>(blockDim.x) / WARP) {
        float *at = qkv + (static_cast<size_t>(row) * all + n) * dim;
        Head head = load_head(at, dim);
        bool is_q = n < heads, is_k = !is_q && n < heads + paging.kv_heads;
        if (is_q || is_k) {
            if (q_norm != nullptr) {
                norm_head(head, dim, is_q ? q_norm : k_norm, is_q ? q_eps : k_eps);
            }
            rotate_head(head, turns + static_cast<size_t>(row) * 2 * pairs, pairs, interleaved != 0, swap);
            // `swap` is read before the next head is written there.
            sync_warp();
        }
        if (is_q) {
            for (int i = 0; i < WIDEST / WARP; i++) {
                if (lane() + WARP * i < dim) {
                    at[lane() + WARP * i] = mul_rn(head.x[i], q_scale);
                }
            }
            continue;
        }
        int position = static_cast<int>(positions[row]), kv_head = (n - heads) % paging.kv_heads;
        size_t tile = tile_offset<KIND>(paging, tables + tables_at[row], kv_head, position / TILE);
        store_row<KIND>((is_k ? keys : values) + tile, is_k, position % TILE, dim, head.x);
    }
}

} // namespace attention
