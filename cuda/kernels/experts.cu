// Mixtures of experts: the choice of each row's experts, their products, and the sum of their results. The host knows
// none of these choices, so the shape of a launch depends on the number of rows only, and launches can be part of a
// graph.
//
// A pair is a row and one of its `used` experts. `bn_route` chooses the experts. `bn_group` gives the pairs of each
// expert adjacent places and cuts them into tiles, each with pairs of one expert. Products run over tiles: a block
// looks up its tile's expert and pairs, and its matrix in a table. Each pair has the bits that a row has in the
// products of gemv.cu, gemm.cu, supers.cu and dense.cu, whatever other pairs its tile has.
//
// Lower bound: the bytes of the chosen experts' weights over the memory's bandwidth. With 8 of 128 experts of 768 x
// 2048 (gate, up and down) in Q4_0, a row reads 21 MB per layer, 6.3 us on an H100 at 3.35 TB/s. With 512 rows or more,
// all experts are read, 340 MB and 100 us. Routing costs latencies: 20 shuffles per expert that a row uses, and 4
// clocks per expert of the layer, since a softmax adds in the order of experts.
//
// Included after those files, whose products it uses.
#include "tiles.cuh"

namespace experts {

// Pairs of a tile, by their places. A tile of 0 pairs is absent.
struct Tile {
    int expert, first, count;
};

constexpr int GROUP_WARPS = 8;

BN_DEVICE float lowest() {
    return __uint_as_float(0xff800000u);
}

// Computes probabilities from a row's logits: the softmax of src/kernels/rows/softmax.rs, or the logistic function of
// each. A lane sees only the ones it has computed itself until the warp synchronizes.
BN_DEVICE void probabilities(const float *logits, int count, bool logistic, float *to) {
    float most = lowest();
    for (int i = lane(); i < count; i += WARP) {
        to[i] = logits[i];
        most = fmaxf(most, to[i]);
    }
    most = warp_max(most);
    for (int i = lane(); i < count; i += WARP) {
        to[i] = logistic ? div_rn(1.0f, add_rn(1.0f, bn_exp(-to[i]))) : bn_exp(add_rn(to[i], -most));
    }
    if (logistic) return;
    sync_warp();
    float sum = 0.0f;
    BN_UNROLL_BY(8)
    for (int i = 0; i < count; i++) sum = add_rn(sum, to[i]);
    sync_warp();
    for (int i = lane(); i < count; i += WARP) to[i] = div_rn(to[i], sum);
}

// `best` of src/ops/experts.rs: returns the index of the largest score, the lowest among equals, in every lane. Scores
// already taken are -infinity. If the first of the others is NaN, returns that one.
BN_DEVICE int best(const float *scores, int count) {
    float most = lowest();
    int at = count, first = count;
    for (int i = lane(); i < count; i += WARP) {
        float score = scores[i];
        if (score == lowest()) continue;
        first = min(first, i);
        if (score > most) most = score, at = i;
    }
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        float other = shfl_xor(most, mask);
        int its = shfl_xor(at, mask);
        first = min(first, shfl_xor(first, mask));
        if (other > most || (other == most && its < at)) most = other, at = its;
    }
    if (first == count) return 0;
    return scores[first] != scores[first] ? first : at;
}

// A block's tile, one of its expert's two matrices, the block's number in it, and the matrix's first output.
struct Place {
    Tile tile;
    const void *codes, *scales;
    int rows, block, column;
};

BN_DEVICE Tile tile_of(const int *tiles, unsigned slot) {
    const int *own = tiles + 3 * slot;
    return {own[0], own[1], own[2]};
}

// `table`: the addresses of codes and scales of the first matrix of each expert, then those of the second matrices.
BN_DEVICE Place place_of(const Tile &tile, unsigned block, int outputs, const void *const *table, int count, int rows0,
    int rows1) {
    int own = static_cast<int>(block), second_at = (rows0 + outputs - 1) / outputs;
    bool second = own >= second_at;
    const void *const *matrix = table + 2 * ((second ? count : 0) + tile.expert);
    return {tile, matrix[0], matrix[1], second ? rows1 : rows0, second ? own - second_at : own, second ? rows0 : 0};
}

} // namespace experts

// Chooses each row's `used` experts with the largest probabilities. `bias` [experts] is added for the choice only, if
// not null. The experts are written in ascending order with their weights. A weight is the probability, with
// `renormalize` divided by the sum of the chosen ones plus `more`, times `scale` and times `scales` [experts] if not
// null. logits [rows, experts], chosen and weights [rows, used]; used is at most 32. Grid: rows. Block: 32. Shared: 8
// bytes per expert.
BN_KERNEL_OF(WARP, route)(const float *logits, const float *bias, const float *scales, int *chosen, float *weights,
    int experts, int used, int logistic, int renormalize, float more, float scale) {
    begin_kernel();
    BN_SHARED(shared);
    float *probabilities = reinterpret_cast<float *>(shared), *scores = probabilities + experts;
    experts::probabilities(logits + static_cast<int64_t>(blockIdx.x) * experts, experts, logistic != 0, probabilities);
    for (int i = lane(); i < experts; i += WARP) {
        scores[i] = bias != nullptr ? add_rn(probabilities[i], bias[i]) : probabilities[i];
    }
    sync_warp();
    int expert = 0;
    float weight = 0.0f, sum = 0.0f;
    for (int n = 0; n < used; n++) {
        int best = experts::best(scores, experts);
        float own = probabilities[best];
        sum = add_rn(sum, own);
        if (lane() == n) expert = best, weight = own;
        sync_warp();
        if (lane() == 0) scores[best] = experts::lowest();
        sync_warp();
    }
    int before = 0;
    for (int n = 0; n < used; n++) {
        int other = shfl(expert, n);
        before += other < expert || (other == expert && n < lane());
    }
    if (lane() >= used) return;
    if (renormalize != 0) weight = div_rn(weight, add_rn(sum, more));
    int64_t at = static_cast<int64_t>(blockIdx.x) * used + before;
    chosen[at] = expert;
    weights[at] = mul_rn(weight, scales != nullptr ? mul_rn(scale, scales[expert]) : scale);
}

// Gives each pair a place, next to the other pairs of its expert. places [pairs]. rows [pairs]: the row of the pair at
// each place. tiles [slots, 3]: at most `tile` pairs of one expert each. With tiles of one pair there are as many slots
// as pairs, otherwise pairs / tile + experts; then expert e, whose places begin at `start`, has the slots from `start /
// tile + e` on, so that no two experts share a slot. Grid: experts. Block: 256.
BN_KERNEL(group)(const int *chosen, int *places, uint32_t *rows, int *tiles, int pairs, int used, int tile, int slots) {
    begin_kernel();
    using experts::GROUP_WARPS;
    BN_SHARED(shared);
    int *counts = reinterpret_cast<int *>(shared); // per warp's share: pairs of lower experts, then of this one
    int own = static_cast<int>(blockIdx.x);
    int share = (pairs + GROUP_WARPS * WARP - 1) / (GROUP_WARPS * WARP) * WARP;
    int begin = min(share * warp(), pairs), end = min(begin + share, pairs);
    int lower = 0, equal = 0;
    BN_UNROLL_BY(8)
    for (int i = begin + lane(); i < end; i += WARP) {
        int expert = chosen[i];
        lower += expert < own, equal += expert == own;
    }
    lower = warp_sum(lower), equal = warp_sum(equal);
    if (lane() == 0) counts[warp()] = lower, counts[GROUP_WARPS + warp()] = equal;
    sync_block();
    int start = 0, count = 0, before = 0;
    for (int w = 0; w < GROUP_WARPS; w++) {
        if (w == warp()) before = count;
        start += counts[w], count += counts[GROUP_WARPS + w];
    }
    int place = start + before;
    BN_UNROLL_BY(8)
    for (int first = begin; first < end; first += WARP) {
        int i = first + lane();
        bool mine = i < end && chosen[i] == own;
        unsigned lanes = warp_ballot(mine);
        if (mine) {
            int at = place + __popc(lanes & ((1u << lane()) - 1));
            places[i] = at;
            rows[at] = static_cast<uint32_t>(i / used);
        }
        place += __popc(lanes);
    }
    bool last = own + 1 == static_cast<int>(gridDim.x);
    int first = tile == 1 ? start : start / tile + own;
    int behind = last ? slots : tile == 1 ? start + count : (start + count) / tile + own + 1;
    for (int slot = first + static_cast<int>(threadIdx.x); slot < behind; slot += static_cast<int>(blockDim.x)) {
        int from = (slot - first) * tile;
        tiles[3 * slot] = own;
        tiles[3 * slot + 1] = start + from;
        tiles[3 * slot + 2] = max(min(tile, count - from), 0);
    }
}

// out[r] = the sum of a row's pairs times their weights, by fused multiply-adds in order. If `shared` [rows, cols] is
// not null, it is added at the end, times the logistic function of `gate` [rows] if that is not null. y [pairs, cols],
// by places; places and weights [rows, used]. Grid: rows, ceil(cols / 256). Block: 256.
BN_KERNEL(mix)(const float *y, const int *places, const float *weights, const float *shared, const float *gate, float *out,
    int used, int cols) {
    begin_kernel();
    int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    if (column >= cols) return;
    int64_t row = blockIdx.x;
    float sum = 0.0f;
    BN_UNROLL_BY(8)
    for (int n = 0; n < used; n++) {
        int64_t place = places[row * used + n];
        sum = fma_rn(y[place * cols + column], weights[row * used + n], sum);
    }
    if (shared != nullptr) {
        float own = shared[row * cols + column];
        bool weighed = gate != nullptr;
        sum = weighed ? fma_rn(own, div_rn(1.0f, add_rn(1.0f, bn_exp(-gate[row]))), sum) : add_rn(sum, own);
    }
    out[row * cols + column] = sum;
}

// Products of pairs with one matrix of their experts, or with two whose outputs are adjacent: the kernels of
// products.cuh's macros, with `tiles` and a `table` of the matrices of `experts` experts (`place_of`). A second matrix
// of 0 rows is absent. x, its scales and sums, and out have a row per pair, by places. Grid: (slots, 1, blocks of one
// tile as there); for a GEMM (1, such blocks, slots). Block and shared memory: as there.
#define BN_EXPERTS_PLACE(index, slot, outputs)                                                                         \
    let_next_begin();                                                                                                  \
    await_inputs();                                                                                                    \
    experts::Tile tile = experts::tile_of(tiles, slot);                                                                \
    if (tile.count == 0) return;                                                                                       \
    experts::Place own = experts::place_of(tile, index, outputs, table, count, rows0, rows1);                          \
    int64_t first = tile.first
#define BN_EXPERTS_WHOLE(kernel, index, slot, outputs, ...)                                                            \
    kernel                                                                                                             \
    (float *out, const int8_t *x, const float *x_scales, const int *x_sums, const int *tiles, const void *const *table,\
     int count, int step, int cols, int64_t stride, int rows0, int rows1) {                                            \
        BN_EXPERTS_PLACE(index, slot, outputs);                                                                        \
        __VA_ARGS__({out + first * stride, nullptr, x + first * cols, x_scales + first, x_sums + first,                \
            static_cast<const uint8_t *>(own.codes), static_cast<const float *>(own.scales), step, tile.count,         \
            own.rows, cols, stride, own.block, own.column});                                                           \
    }
// x has a scale for each `each` columns and a sum for each `sums`.
#define BN_EXPERTS_BLOCKS(kernel, index, slot, outputs, each, sums, ...)                                               \
    kernel                                                                                                             \
    (float *out, const int8_t *x, const float *x_scales, const int16_t *x_sums, const int *tiles,                      \
     const void *const *table, int count, int cols, int64_t stride, int rows0, int rows1) {                            \
        BN_EXPERTS_PLACE(index, slot, outputs);                                                                        \
        __VA_ARGS__({out + first * stride, nullptr, x + first * cols, x_scales + first * (cols / each),                \
            x_sums + first * (cols / sums), static_cast<const uint8_t *>(own.codes),                                   \
            static_cast<const uint16_t *>(own.scales), tile.count, own.rows, cols, stride, own.block, own.column});    \
    }
#define BN_EXPERTS_DENSE(kernel, index, slot, outputs, ...)                                                            \
    kernel                                                                                                             \
    (float *out, const float *x, const int *tiles, const void *const *table, int count, int cols, int64_t stride,      \
     int rows0, int rows1) {                                                                                           \
        BN_EXPERTS_PLACE(index, slot, outputs);                                                                        \
        __VA_ARGS__({out + first * stride, nullptr, x + first * cols, static_cast<const uint8_t *>(own.codes),         \
            tile.count, own.rows, cols, stride, own.block, own.column});                                               \
    }

#define BN_WHOLE_EXPERTS(name, Format, stages)                                                                         \
    BN_EXPERTS_WHOLE(BN_GEMV(name##_experts_1), blockIdx.z, blockIdx.x, GEMV_THREADS / WHOLE_LANES<1>,                 \
        whole_gemv<Format, 1, 1>)                                                                                      \
    BN_EXPERTS_WHOLE(BN_GEMV(name##_experts_4), blockIdx.z, blockIdx.x, 64, whole_gemv<Format, 4, 4>)                  \
    BN_EXPERTS_WHOLE(BN_GEMM(name##_experts_gemm), blockIdx.y, blockIdx.z, 128,                                        \
        whole_gemm<Format, Tile<64, 128, 64, 32, stages, 2>>)
#define BN_BLOCK_EXPERTS(name, Format)                                                                                 \
    BN_EXPERTS_BLOCKS(BN_GEMV(name##_experts_1), blockIdx.z, blockIdx.x, 16, 32, 32, block_gemv<Format, 1, 4>)         \
    BN_EXPERTS_BLOCKS(BN_GEMV(name##_experts_4), blockIdx.z, blockIdx.x, 16, 32, 32, block_gemv<Format, 4, 4>)         \
    BN_EXPERTS_BLOCKS(BN_GEMM(name##_experts_gemm), blockIdx.y, blockIdx.z, LargeTile::OUTPUTS, 32, 32,                \
        block_gemm<Format, LargeTile>)
#define BN_SUPER_EXPERTS(name, Format)                                                                                 \
    BN_EXPERTS_BLOCKS(BN_GEMV(name##_experts_1), blockIdx.z, blockIdx.x, 16, 256, 16, super_gemv<Format, 1, 4>)        \
    BN_EXPERTS_BLOCKS(BN_GEMV(name##_experts_4), blockIdx.z, blockIdx.x, 16, 256, 16, super_gemv<Format, 4, 4>)        \
    BN_EXPERTS_BLOCKS(BN_GEMM(name##_experts_gemm), blockIdx.y, blockIdx.z, LargeTile::OUTPUTS, 256, 16,               \
        super_gemm<Format, LargeTile>)
// F16 and BF16 have no kernel for a single row, and no GEMM that takes rows starting anywhere.
#define BN_HALF_EXPERTS(name, Element)                                                                                 \
    BN_EXPERTS_DENSE(BN_KERNEL_FOR(dense::THREADS, 2, name##_experts_4), blockIdx.z, blockIdx.x, 16,                   \
        dense::gemv<Element, 2, 4, 8>)                                                                                 \
    BN_EXPERTS_DENSE(BN_KERNEL_FOR(dense::THREADS, 2, name##_experts_8), blockIdx.z, blockIdx.x, 32,                   \
        dense::gemv<Element, 4, 8, 4>)
BN_WHOLE_EXPERTS(ternary, Ternary, 6)
BN_WHOLE_EXPERTS(int8, Int8, 3)
BN_BLOCK_EXPERTS(q8_0, Q8_0)
BN_BLOCK_EXPERTS(q4_0, Q4_0)
BN_BLOCK_EXPERTS(iq4_nl, IQ4_NL)
BN_BLOCK_EXPERTS(mxfp4, MXFP4)
BN_SUPER_EXPERTS(q4_k, Q4_K)
BN_SUPER_EXPERTS(q6_k, Q6_K)
BN_SUPER_EXPERTS(iq4_xs, IQ4_XS)
BN_EXPERTS_DENSE(BN_GEMV(f32_experts_1), blockIdx.z, blockIdx.x, 32, f32_gemv<1, 1>)
BN_EXPERTS_DENSE(BN_GEMV(f32_experts_4), blockIdx.z, blockIdx.x, 64, f32_gemv<4, 2>)
BN_EXPERTS_DENSE(BN_GEMM(f32_experts_gemm), blockIdx.y, blockIdx.z, F32_OUTPUTS, f32_gemm)
BN_HALF_EXPERTS(f16, F16)
BN_HALF_EXPERTS(bf16, BF16)
