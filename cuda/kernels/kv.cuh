// Storage of K and V, as in src/kernels/attention/kv.rs: tiles of 16 positions in f32, F16 or int8 with a scale per
// position and head. A head's tile of K is [head_dim, 16], of V [16, head_dim]. The values of an int8 tile are followed
// by its 16 scales in BF16. Heads are transformed before they are stored in int8 (`transform_head`). The bytes equal
// the CPU's, so blocks can be copied between host and device unchanged.
#pragma once

#include "device.cuh"

#include <cmath>

namespace attention {

// Values of `KvType`.
constexpr int KV_F32 = 0;
constexpr int KV_F16 = 1;
constexpr int KV_INT8 = 2;

// Positions per tile; block sizes are multiples of it.
constexpr int TILE = 16;

template <int KIND> constexpr int ELEMENT_BYTES = KIND == KV_F32 ? 4 : KIND == KV_F16 ? 2 : 1;
template <int KIND> constexpr int SCALES_BYTES = KIND == KV_INT8 ? TILE * 2 : 0;

// Bytes of K or V of one head for 16 positions, a multiple of 16.
template <int KIND> BN_DEVICE int tile_bytes(int head_dim) {
    return TILE * head_dim * ELEMENT_BYTES<KIND> + SCALES_BYTES<KIND>;
}

// One layer's K or V: [blocks, kv_heads, block_size / 16] tiles.
struct Paging {
    int kv_heads;
    int block_size;
    int head_dim;
};

// Offset of tile `index`, counted from position 0, of the sequence with block table `table`.
template <int KIND> BN_DEVICE size_t tile_offset(const Paging &paging, const unsigned *table, int kv_head, int index) {
    int tiles = paging.block_size / TILE;
    size_t of_head = static_cast<size_t>(table[index / tiles]) * paging.kv_heads + kv_head;
    return (of_head * tiles + index % tiles) * tile_bytes<KIND>(paging.head_dim);
}

// Two adjacent floats, loaded together.
struct alignas(8) Two {
    float x[2];
};

// Loads two adjacent elements without applying scales. The first has an even index in its row.
template <int KIND> BN_DEVICE Two load_two(const unsigned char *at) {
    if constexpr (KIND == KV_F32) {
        return *reinterpret_cast<const Two *>(at);
    } else {
        static_assert(KIND == KV_INT8, "halves go to tensor cores");
        // Puts byte + 128 into the low bits of 2^23, which is exact and cheaper than a conversion.
        uint32_t both = *reinterpret_cast<const uint16_t *>(at) ^ 0x8080u;
        float low = __uint_as_float(0x4B000000u | (both & 0xFF)), high = __uint_as_float(0x4B000000u | both >> 8);
        return {{add_rn(low, -8388736.0f), add_rn(high, -8388736.0f)}};
    }
}

// Returns the scale of position `at` (of 16) of an int8 tile.
BN_DEVICE float tile_scale(const unsigned char *tile, int at, int head_dim) {
    return bf16_to_float(reinterpret_cast<const uint16_t *>(tile + TILE * head_dim)[at]);
}

// Rounds a number that is not NaN to the nearest BF16, ties to even.
BN_DEVICE uint16_t bf16_code(float x) {
    uint32_t bits = __float_as_uint(x);
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// Returns the scale of an int8 row in BF16. Lanes hold elements `lane() + 32 * i`. A value that is not finite makes the
// whole row NaN.
template <int COUNT> BN_DEVICE uint16_t int8_scale(const float (&row)[COUNT]) {
    float most = 0.0f;
    int odd = 0;
    for (int i = 0; i < COUNT; i++) {
        float size = row[i] < 0.0f ? -row[i] : row[i];
        most = size > most ? size : most;
        odd += !(size < INFINITY);
    }
    most = warp_max(most);
    if (warp_sum(odd) > 0) {
        return 0x7FC0;
    }
    return bf16_code(div_rn(most, 127.0f));
}

// If the scale is 0, the inverse is infinite and 0 * infinity is NaN, which gets the code 0.
BN_DEVICE signed char int8_code(float x, float inverse) {
    float code = mul_rn(x, inverse);
    code = code > 127.0f ? 127.0f : code;
    code = code < -127.0f ? -127.0f : code;
    return code == code ? static_cast<signed char>(round_even(code)) : 0;
}

// Values beyond the range of halves become the largest half; NaN stays NaN.
BN_DEVICE uint16_t half_code(float x) {
    x = x > 65504.0f ? 65504.0f : x;
    return float_to_half(x < -65504.0f ? -65504.0f : x);
}

// Stores a row as position `at` of a tile of K (`keys`) or V. A lane holds elements `lane() + 32 * i`, with zeros past
// the end of the head.
template <int KIND, int COUNT>
BN_DEVICE void store_row(unsigned char *tile, bool keys, int at, int head_dim, const float (&row)[COUNT]) {
    float inverse = 0.0f;
    if constexpr (KIND == KV_INT8) {
        uint16_t scale = int8_scale(row);
        inverse = div_rn(1.0f, bf16_to_float(scale));
        if (lane() == 0) {
            reinterpret_cast<uint16_t *>(tile + TILE * head_dim)[at] = scale;
        }
    }
    BN_UNROLL
    for (int i = 0; i < COUNT; i++) {
        int d = lane() + WARP * i;
        if (d >= head_dim) {
            break;
        }
        int to = keys ? d * TILE + at : at * head_dim + d;
        if constexpr (KIND == KV_F32) {
            reinterpret_cast<float *>(tile)[to] = row[i];
        } else if constexpr (KIND == KV_F16) {
            reinterpret_cast<uint16_t *>(tile)[to] = half_code(row[i]);
        } else {
            reinterpret_cast<signed char *>(tile)[to] = int8_code(row[i], inverse);
        }
    }
}

} // namespace attention
