// The work of a block of attention, and the units in which its softmax proceeds.
#pragma once

#include "kv.cuh"

namespace attention {

// A span: the positions of one softmax step, and its tiles.
constexpr int SPAN = 64;
constexpr int SPAN_TILES = SPAN / TILE;
// A piece: several spans, after which the softmax starts anew.
constexpr int PIECE_SPANS = 4;
constexpr int PIECE = SPAN * PIECE_SPANS;

struct Seen {
    int first;
    int position;
};

// The positions that a row attends to. `window` 0 means all up to its own.
BN_DEVICE Seen seen_from(int position, int window) {
    int first = position + 1 - window;
    return {window > 0 && first > 0 ? first : 0, position};
}

// A range of positions within a span, counted from the span's start.
struct Part {
    int from;
    int to;
};

BN_DEVICE Part part_of(Seen seen, int start) {
    int from = seen.first - start, to = seen.position + 1 - start;
    from = from > 0 ? from : 0;
    to = to < SPAN ? to : SPAN;
    return {from, to > from ? to : from};
}

// The tiles of a span that contain visible positions.
BN_DEVICE Part tiles_of(Seen all, int span) {
    int begin = all.first / TILE - span * SPAN_TILES, end = all.position / TILE + 1 - span * SPAN_TILES;
    return {begin > 0 ? begin : 0, end < SPAN_TILES ? end : SPAN_TILES};
}

// The work of a block, the same for all its threads.
struct Work {
    const float *qkv;
    const unsigned char *keys;
    const unsigned char *values;
    const unsigned *table;
    const unsigned *positions;
    Paging paging;
    int heads;
    int window;
    // The sequence's first row, and the block's range of queries (row * group + head of the group).
    int row;
    int from;
    int to;
    int kv_head;

    __device__ __forceinline__ int group() const { return heads / paging.kv_heads; }
    __device__ __forceinline__ int row_of(int query) const { return row + query / group(); }
    __device__ __forceinline__ int head_of(int query) const { return kv_head * group() + query % group(); }
    // Index of the query's head among all heads of all rows.
    __device__ __forceinline__ size_t number_of(int query) const {
        return static_cast<size_t>(row_of(query)) * heads + head_of(query);
    }
    __device__ __forceinline__ const float *q_of(int query) const {
        size_t width = static_cast<size_t>(heads + 2 * paging.kv_heads) * paging.head_dim;
        return qkv + row_of(query) * width + head_of(query) * paging.head_dim;
    }
    __device__ __forceinline__ Seen seen(int query) const {
        return seen_from(static_cast<int>(positions[row_of(query)]), window);
    }
};

// Work of task `index`: the sequence's first row, its range of queries, the offset of its block table.
BN_DEVICE Work work_of(const float *qkv, const unsigned char *keys, const unsigned char *values, const unsigned *tasks,
                       unsigned index, const unsigned *tables, const unsigned *positions, int heads, Paging paging,
                       int window) {
    const unsigned *task = tasks + 4 * index;
    return {qkv, keys, values, tables + task[3], positions, paging, heads, window,
            static_cast<int>(task[0]), static_cast<int>(task[1]), static_cast<int>(task[2]), static_cast<int>(blockIdx.y)};
}

// Positions that at least one of several consecutive queries sees.
BN_DEVICE Seen seen_by_any(const Work &work, int from, int to) {
    return {work.seen(from).first, work.seen(to - 1).position};
}

// Positions that all of them see, if any.
BN_DEVICE Seen seen_by_each(const Work &work, int from, int to) {
    return {work.seen(to - 1).first, work.seen(from).position};
}

// The factor for sums relative to `max` once the maximum is `high`.
BN_DEVICE float decay(float max, float high) {
    return max == high ? 1.0f : bn_exp(add_rn(max, -high));
}

// Floats of a query's state, as on the CPU: the weighted sum of values, 16 sums of weights, the largest score.
BN_DEVICE int state_floats(int head_dim) {
    return head_dim + 2 * TILE;
}

} // namespace attention
