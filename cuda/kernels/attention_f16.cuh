// The kernels of attention for KV in F16: how `halves.cuh` gets its rows of q, K and V.
//
// Prefill: a block has up to 8 warps of 16 queries, all of one sequence and one KV head, which share spans of K and V.
// A prompt of 2,048 tokens with 20 heads of 128 elements, 5 KV heads and 30 layers has 1,200 spans for each of an
// H200's 132 multiprocessors. A span costs a block of 8 warps
// - 2,048 mma: 2,048 cycles of four tensor cores at 989e12 operations a second, of which mma.sync is said to reach two
//   thirds
// - 8 x 40 KiB from shared memory without bank conflicts (K, V and q for each warp): 2,560 cycles
// - some 1,250 instructions per warp, 650 of them for the softmax (nvcc 13.0 for sm_90): 2,500 cycles of four
//   schedulers.
// These overlap, as warps meet at one barrier per span: 3,300 to 4,500 cycles, 2.3 to 3.1 ms in all.
//
// Decode: a block has up to 16 queries and a piece of 256 positions. Each of its 4 warps computes the scores of one
// span, then a quarter of the columns over all four spans, and copies only what it needs itself. With heads of 128
// elements, each warp has 5 of 6 steps in flight, of 2 KiB of K and later of 1 KiB of V. A multiprocessor has room for
// 3 blocks, so 120 KiB or 60 KiB are in flight. With heads of 64 it has room for 4 blocks with 4 steps each, of two
// tiles of V: 64 KiB or 48 KiB. Reading at 3.0 TB/s with 0.8 us of latency (assumed) takes 18 KiB for each of 132
// multiprocessors. The mma of absent rows cost nothing that matters: 256 per warp, for 128 KiB that take 5.6 us to
// arrive. A short context is a chain of latencies of some 0.3 us each: task, positions, table, K, the products of K (2
// x 8 dependent mma), the softmax, V (2 mma per 16 positions).
#pragma once

#include "halves.cuh"

namespace attention {

BN_DEVICE const unsigned char *tile_at(const Work &work, const unsigned char *data, int index) {
    return data + tile_offset<KV_F16>(work.paging, work.table, work.kv_head, index);
}

// A warp starts copying a tile of K, two pieces per element of the head.
BN_DEVICE void copy_keys(unsigned char *to, const unsigned char *tile, int head_dim) {
    for (int i = lane(); i < 2 * head_dim; i += WARP) {
        copy_async16(to + key_place(i), tile + 16 * i);
    }
}

// A warp starts copying columns `first` to `first + COUNT` of a tile of V, as far as the head has them.
template <int COUNT>
BN_DEVICE void copy_values(unsigned char *to, const unsigned char *tile, int head_dim, int first) {
    constexpr int STRIDE = ROW_BYTES<COUNT>;
    int bytes = 2 * min(head_dim - first, COUNT);
    if (head_dim % 8 == 0) {
        constexpr int PIECES = COUNT / 8;
        for (int i = lane(); i < TILE * PIECES; i += WARP) {
            int row = i / PIECES, at = i % PIECES * 16;
            if (at < bytes) {
                copy_async16(to + row * STRIDE + at, tile + 2 * (row * head_dim + first) + at);
            }
        }
    } else {
        // Rows are aligned to 4 bytes only.
        constexpr int PIECES = COUNT / 2;
        for (int i = lane(); i < TILE * PIECES; i += WARP) {
            int row = i / PIECES, at = i % PIECES * 4;
            if (at < bytes) {
                copy_async4(to + row * STRIDE + at, tile + 2 * (row * head_dim + first) + at);
            }
        }
    }
}

// A warp's queries.
struct Queries {
    int from;
    int to;
    // Positions that at least one query sees, and those that all see.
    Seen any;
    Seen each;
    // Positions that this lane's two rows see. Missing rows repeat the last one.
    Seen of[2];

    // Whether a query sees any position of a span, and whether all queries see all of it.
    __device__ __forceinline__ bool see(int span) const {
        return any.first < (span + 1) * SPAN && any.position >= span * SPAN;
    }
    __device__ __forceinline__ bool see_all(int span) const {
        return each.first <= span * SPAN && each.position >= (span + 1) * SPAN - 1;
    }
    // Whether all queries see all of a tile, counted from position 0.
    __device__ __forceinline__ bool see_tile(int index) const {
        return each.first <= index * TILE && each.position >= (index + 1) * TILE - 1;
    }
    __device__ __forceinline__ Parts parts(int span) const {
        return {{part_of(of[0], span * SPAN), part_of(of[1], span * SPAN)}};
    }
    // Number of the query in this lane's row; at least `to` if there is none.
    __device__ __forceinline__ int number(int row) const { return from + lane() / 4 + 8 * row; }
};

BN_DEVICE Queries queries_of(const Work &work, int from) {
    constexpr Seen NOTHING = {0, -1};
    Queries queries = {from, min(from + QUERIES, work.to), NOTHING, NOTHING, {NOTHING, NOTHING}};
    if (from >= queries.to) {
        return queries;
    }
    queries.any = seen_by_any(work, from, queries.to);
    queries.each = seen_by_each(work, from, queries.to);
    BN_UNROLL
    for (int r = 0; r < 2; r++) {
        queries.of[r] = work.seen(min(queries.number(r), queries.to - 1));
    }
    return queries;
}

// A prefill block's shared memory: spans of K and V, then for each warp its q, units and totals.
template <int D> struct Prompt {
    // With room for two spans, one is copied while the other is used. With one, K is copied while V is used, and V
    // while K is.
    static constexpr int BUFFERS = D <= 128 ? 2 : 1;
    static constexpr int KEYS = SPAN * 2 * D;
    static constexpr int VALUES = SPAN * ROW_BYTES<D>;
    static constexpr int SPANS = BUFFERS * (KEYS + VALUES);
    static constexpr int Q = QUERIES * Q_BYTES<D>;
    static constexpr int UNITS = QUERIES * 4;
    static constexpr int TOTALS = QUERIES * D * 4;
};

// Starts copying tiles `first` to `last` of a span as far as they are visible. The first four are tiles of K, the
// others of V. Each warp takes whole tiles, since finding one takes a division.
template <int D> BN_DEVICE void request(const Work &work, int span, Seen all, unsigned char *to, int first, int last) {
    Part tiles = tiles_of(all, span);
    for (int n = first + warp(); n < last; n += static_cast<int>(blockDim.x) / WARP) {
        int t = n % SPAN_TILES;
        if (t < tiles.from || t >= tiles.to) {
            continue;
        }
        if (n < SPAN_TILES) {
            copy_keys(to + t * TILE * 2 * D, tile_at(work, work.keys, span * SPAN_TILES + t), work.paging.head_dim);
        } else {
            unsigned char *values = to + Prompt<D>::KEYS + t * TILE * ROW_BYTES<D>;
            copy_values<D>(values, tile_at(work, work.values, span * SPAN_TILES + t), work.paging.head_dim, 0);
        }
    }
}

// The online softmax of a warp's queries over one piece.
template <int D> struct Running {
    Values<D / UNIT> values;
    Pair sums;
    Pair max;

    __device__ __forceinline__ void clear() {
        BN_UNROLL
        for (auto &some : values) {
            some[0] = some[1] = some[2] = some[3] = 0.0f;
        }
        sums = {{0.0f, 0.0f}};
        max = {{-INFINITY, -INFINITY}};
    }
};

// Turns a span's scores into weights, and rescales the sums to the new maximum.
template <int D, bool CHECK>
BN_DEVICE void soften(Scores &scores, const Parts &parts, const Pair &units, Running<D> &running) {
    Pair high = highest<CHECK>(scores, parts, units), keep;
    BN_UNROLL
    for (int r = 0; r < 2; r++) {
        high.of[r] = fmaxf(running.max.of[r], high.of[r]);
        keep.of[r] = decay(running.max.of[r], high.of[r]);
    }
    running.max = high;
    Pair sums = weigh<CHECK>(scores, parts, units, high);
    BN_UNROLL
    for (int r = 0; r < 2; r++) {
        running.sums.of[r] = add_rn(mul_rn(running.sums.of[r], keep.of[r]), sums.of[r]);
    }
    shrink(running.values, keep);
}

// A warp's total over its pieces. The values lie in shared memory: [row of the lane, 8 columns, lane].
template <int D> struct Total {
    Two *values;
    Pair sums;
    Pair max;

    __device__ __forceinline__ Two &at(int row, int n) { return values[(row * (D / 8) + n) * WARP + lane()]; }

    // Adds piece `index` to the rows that see something of it.
    __device__ __forceinline__ void add(const Running<D> &piece, const Queries &queries, int index) {
        BN_UNROLL
        for (int r = 0; r < 2; r++) {
            Seen seen = queries.of[r];
            if (index == seen.first / PIECE) {
                begin(piece, r);
            } else if (index > seen.first / PIECE && index <= seen.position / PIECE) {
                merge(piece, r);
            }
        }
    }

    __device__ __forceinline__ void begin(const Running<D> &piece, int r) {
        max.of[r] = piece.max.of[r];
        sums.of[r] = piece.sums.of[r];
        BN_UNROLL
        for (int n = 0; n < D / 8; n++) {
            at(r, n) = two_of(piece.values, n, r);
        }
    }

    // As `merge` in softmax.cuh.
    __device__ __forceinline__ void merge(const Running<D> &piece, int r) {
        float high = piece.max.of[r] > max.of[r] ? piece.max.of[r] : max.of[r];
        float a = decay(max.of[r], high), b = decay(piece.max.of[r], high);
        max.of[r] = high;
        sums.of[r] = add_rn(mul_rn(sums.of[r], a), mul_rn(piece.sums.of[r], b));
        BN_UNROLL
        for (int n = 0; n < D / 8; n++) {
            Two own = two_of(piece.values, n, r);
            Two &total = at(r, n);
            total.x[0] = add_rn(mul_rn(total.x[0], a), mul_rn(own.x[0], b));
            total.x[1] = add_rn(mul_rn(total.x[1], a), mul_rn(own.x[1], b));
        }
    }

    // As `finish` in softmax.cuh. Only 4 of the 16 sums can be nonzero.
    __device__ __forceinline__ void finish(const Work &work, const Queries &queries, float *out) {
        BN_UNROLL
        for (int r = 0; r < 2; r++) {
            float sum = add_rn(sums.of[r], shfl_xor(sums.of[r], 1));
            float inverse = div_rn(1.0f, add_rn(sum, shfl_xor(sum, 2)));
            if (queries.number(r) >= queries.to) {
                continue;
            }
            float *to = out + work.number_of(queries.number(r)) * work.paging.head_dim;
            BN_UNROLL
            for (int n = 0; n < D / 8; n++) {
                if (position_of(n, 0) < work.paging.head_dim) {
                    Two total = at(r, n);
                    Two own = {{mul_rn(total.x[0], inverse), mul_rn(total.x[1], inverse)}};
                    *reinterpret_cast<Two *>(to + position_of(n, 0)) = own;
                }
            }
        }
    }
};

// Adds the values of a span whose weights are known.
template <int D, bool CHECK>
BN_DEVICE void add_span(Scores &scores, const Parts &parts, const unsigned char *values, Running<D> &running) {
    BN_UNROLL
    for (int t = 0; t < SPAN_TILES; t++) {
        add_values<D / UNIT, CHECK>(running.values, left_of(scores, t), values + t * TILE * ROW_BYTES<D>, ROW_BYTES<D>, parts,
                                    t);
    }
}

// Attends with a block's queries over everything that they see.
template <int D> BN_DEVICE void prefill_halves(const Work &work, unsigned char *shared, float *out) {
    using Block = Prompt<D>;
    unsigned char *q = shared + Block::SPANS + warp() * (Block::Q + Block::UNITS + Block::TOTALS);
    float *units = reinterpret_cast<float *>(q + Block::Q);
    Total<D> total;
    total.values = reinterpret_cast<Two *>(q + Block::Q + Block::UNITS);
    Running<D> running;
    running.clear();
    auto buffer = [&](int span) { return shared + (span % Block::BUFFERS) * (Block::KEYS + Block::VALUES); };
    // Elements past the end of the head, and positions that nobody sees, are 0.
    for (int at = 16 * static_cast<int>(threadIdx.x); at < Block::SPANS; at += 16 * static_cast<int>(blockDim.x)) {
        *reinterpret_cast<uint4 *>(shared + at) = make_uint4(0, 0, 0, 0);
    }
    sync_block();

    Seen all = seen_by_any(work, work.from, work.to);
    int begin = all.first / SPAN, end = all.position / SPAN + 1, steps = (work.paging.head_dim + 15) / 16;
    // With one buffer, values are requested once the block has finished with the previous ones.
    constexpr int AHEAD = Block::BUFFERS == 2 ? 2 * SPAN_TILES : SPAN_TILES;
    request<D>(work, begin, all, buffer(begin), 0, AHEAD);
    copy_async_commit();
    Queries queries = queries_of(work, work.from + warp() * QUERIES);
    Pair unit = {{1.0f, 1.0f}};
    if (queries.from < queries.to) {
        stage_halves<D, QUERIES, 1>(work, queries.from, q, units);
        sync_warp();
        unit = {{units[lane() / 4], units[lane() / 4 + 8]}};
    }
    for (int span = begin; span < end; span++) {
        unsigned char *keys = buffer(span), *values = keys + Block::KEYS;
        copy_async_wait<0>();
        sync_block();
        if constexpr (Block::BUFFERS == 1) {
            request<D>(work, span, all, keys, AHEAD, 2 * SPAN_TILES);
        } else if (span + 1 < end) {
            request<D>(work, span + 1, all, buffer(span + 1), 0, AHEAD);
        }
        copy_async_commit();
        bool sees = queries.see(span), check = sees && !queries.see_all(span);
        Parts parts = queries.parts(span);
        Scores scores;
        if (sees) {
            clear(scores);
            BN_UNROLL_BY(4)
            for (int step = 0; step < steps; step++) {
                add_scores<D>(scores, q + 32 * step, keys + 2 * UNIT * TILE * step, TILE * 2 * D);
            }
            check ? soften<D, true>(scores, parts, unit, running) : soften<D, false>(scores, parts, unit, running);
        }
        if constexpr (Block::BUFFERS == 1) {
            copy_async_wait<0>();
            sync_block();
            if (span + 1 < end) {
                request<D>(work, span + 1, all, keys, 0, AHEAD);
            }
            copy_async_commit();
        }
        if (sees) {
            check ? add_span<D, true>(scores, parts, values, running) : add_span<D, false>(scores, parts, values, running);
        }
        if (queries.from < queries.to && ((span + 1) % PIECE_SPANS == 0 || span + 1 == end)) {
            total.add(running, queries, span / PIECE_SPANS);
            running.clear();
        }
    }
    copy_async_wait<0>();
    if (queries.from < queries.to) {
        total.finish(work, queries, out);
    }
}

// A decode block's shared memory.
template <int D> struct Decode {
    static constexpr int WARPS = PIECE_SPANS;
    // Columns of a warp.
    static constexpr int COLUMNS = D / WARPS;
    // A step: 16 elements of a span's keys, or the warp's columns of TILES tiles of V.
    static constexpr int VALUES = TILE * ROW_BYTES<COLUMNS>;
    static constexpr int STEP = VALUES > SPAN * 2 * UNIT ? VALUES : SPAN * 2 * UNIT;
    static constexpr int TILES = STEP / VALUES;
    // With the narrowest heads, all of K. Then a multiprocessor has room for four blocks, otherwise for three or one.
    static constexpr int STEPS = D <= 64 ? 4 : 6;

    unsigned char *steps;
    unsigned char *q;
    // [16 tiles, 2, 32] of 16 bytes: each lane's `Left`
    uint4 *weights;
    // [16]
    float *units;
    // [4, 16] for each span: the largest scores, the factors for earlier sums, and 4 sums of each row's weights
    float *highs;
    float *keeps;
    float *sums;

    __device__ __forceinline__ explicit Decode(unsigned char *shared) {
        steps = shared + warp() * STEPS * STEP;
        q = shared + WARPS * STEPS * STEP;
        weights = reinterpret_cast<uint4 *>(q + QUERIES * Q_BYTES<D>);
        units = reinterpret_cast<float *>(weights + PIECE_SPANS * SPAN_TILES * 2 * WARP);
        highs = units + QUERIES;
        keeps = highs + PIECE_SPANS * QUERIES;
        sums = keeps + PIECE_SPANS * QUERIES;
    }
};

// The sequence of a warp's copies: keys of its span, then its columns of the piece's visible tiles.
template <int D> struct Steps {
    const Work &work;
    const Decode<D> &block;
    // Offset of tile lane() of the piece in K and V, if visible. The warp looks all of them up at once.
    size_t offset;
    // The first tile of the warp's span in the piece, its visible tiles, and its steps of keys (0 if nobody sees it).
    int span_tile;
    Part tiles;
    int keys;
    // Visible tiles of V, from `tile` of the piece on.
    int tile;
    int count;

    __device__ __forceinline__ Steps(const Work &work, const Decode<D> &block, Seen all, int index, int begin, int end)
        : work(work), block(block) {
        int first = index * PIECE_SPANS * SPAN_TILES, span = index * PIECE_SPANS + warp();
        tile = max(all.first / TILE, begin * SPAN_TILES) - first;
        count = min(all.position / TILE + 1, end * SPAN_TILES) - first - tile;
        offset = 0;
        if (lane() >= tile && lane() < tile + count) {
            offset = tile_offset<KV_F16>(work.paging, work.table, work.kv_head, first + lane());
        }
        bool sees = span >= begin && span < end;
        span_tile = warp() * SPAN_TILES;
        tiles = tiles_of(all, span);
        keys = sees ? (work.paging.head_dim + UNIT - 1) / UNIT : 0;
    }

    __device__ __forceinline__ unsigned char *place(int step) const {
        return block.steps + step % Decode<D>::STEPS * Decode<D>::STEP;
    }

    // Starts a step's copies, if there is such a step, and ends their group.
    __device__ __forceinline__ void request(int step) const {
        if (step < keys) {
            request_key(step);
        } else {
            BN_UNROLL
            for (int n = 0; n < Decode<D>::TILES; n++) {
                int own = (step - keys) * Decode<D>::TILES + n;
                if (own >= count) {
                    break;
                }
                const unsigned char *from = work.values + shfl(offset, tile + own);
                unsigned char *to = place(step) + n * Decode<D>::VALUES;
                copy_values<Decode<D>::COLUMNS>(to, from, work.paging.head_dim, warp() * Decode<D>::COLUMNS);
            }
        }
        copy_async_commit();
    }

    // An element of a tile has 32 bytes. Elements past the end of the head become zeros.
    __device__ __forceinline__ void request_key(int step) const {
        bool has = UNIT * step + lane() / 2 < work.paging.head_dim;
        BN_UNROLL
        for (int t = 0; t < SPAN_TILES; t++) {
            const unsigned char *from = work.keys + shfl(offset, span_tile + t);
            unsigned char *to = place(step) + t * 2 * UNIT * TILE + key_place(lane());
            if (t < tiles.from || t >= tiles.to) {
                continue;
            }
            if (has) {
                copy_async16(to, from + 2 * UNIT * TILE * step + 16 * lane());
            } else {
                *reinterpret_cast<uint4 *>(to) = make_uint4(0, 0, 0, 0);
            }
        }
    }

    // Waits for a step. The STEPS steps from it on have been requested.
    __device__ __forceinline__ const unsigned char *wait(int step) const {
        copy_async_wait<Decode<D>::STEPS - 1>();
        sync_warp();
        return place(step);
    }

    // Called when the warp has used a step: requests the next one into its place.
    __device__ __forceinline__ void next(int step) const {
        sync_warp();
        request(step + Decode<D>::STEPS);
    }
};

// Computes the weights of this warp's span, for all warps. `begin` is the block's first span of the piece.
template <int D, int ROWS>
BN_DEVICE void weigh_span(const Decode<D> &block, Scores &scores, const Queries &queries, int begin, int span, bool sees) {
    int own = warp(), row = lane() / 4;
    Pair units = {{block.units[row], block.units[row + 8]}}, high = {{-INFINITY, -INFINITY}};
    Parts parts = queries.parts(span);
    if (sees) {
        high = highest<true, ROWS>(scores, parts, units);
        BN_UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (lane() % 4 == 0) {
                block.highs[own * QUERIES + row + 8 * r] = high.of[r];
            }
        }
    }
    sync_block();
    if (!sees) {
        return;
    }
    BN_UNROLL
    for (int r = 0; r < ROWS; r++) {
        float before = -INFINITY;
        BN_UNROLL
        for (int s = 0; s < PIECE_SPANS - 1; s++) {
            if (s >= begin % PIECE_SPANS && s < own) {
                before = fmaxf(before, block.highs[s * QUERIES + row + 8 * r]);
            }
        }
        high.of[r] = fmaxf(before, high.of[r]);
        if (lane() % 4 == 0) {
            block.keeps[own * QUERIES + row + 8 * r] = decay(before, high.of[r]);
        }
    }
    Pair sums = weigh<true, ROWS>(scores, parts, units, high);
    BN_UNROLL
    for (int r = 0; r < ROWS; r++) {
        block.sums[(own * QUERIES + row + 8 * r) * 4 + lane() % 4] = sums.of[r];
    }
    BN_UNROLL
    for (int t = 0; t < SPAN_TILES; t++) {
        Left left = left_of<ROWS>(scores, t);
        uint4 *to = block.weights + (own * SPAN_TILES + t) * 2 * WARP + lane();
        to[0] = make_uint4(left.high[0], left.high[1], left.high[2], left.high[3]);
        to[WARP] = make_uint4(left.low[0], left.low[1], left.low[2], left.low[3]);
    }
}

// Adds up this warp's columns, tile by tile over spans `begin` to `end`.
template <int D, int ROWS>
BN_DEVICE void add_piece(const Decode<D> &block, const Steps<D> &steps, const Queries &queries, int begin, int end,
                         Values<D / 64> &values) {
    constexpr int TILES = Decode<D>::TILES, STRIDE = ROW_BYTES<Decode<D>::COLUMNS>;
    int step = steps.keys, row = lane() / 4, done = 0;
    const unsigned char *at = nullptr;
    for (int span = begin; span < end; span++) {
        const float *keeps = block.keeps + span % PIECE_SPANS * QUERIES;
        shrink(values, {{keeps[row], ROWS > 1 ? keeps[row + 8] : 0.0f}});
        Part tiles = tiles_of(queries.any, span);
        Parts parts = queries.parts(span);
        for (int t = tiles.from; t < tiles.to; t++) {
            const uint4 *from = block.weights + (span % PIECE_SPANS * SPAN_TILES + t) * 2 * WARP + lane();
            uint4 high = from[0], low = from[WARP];
            Left left = {{high.x, high.y, high.z, high.w}, {low.x, low.y, low.z, low.w}};
            at = done % TILES == 0 ? steps.wait(step) : at + Decode<D>::VALUES;
            queries.see_tile(span * SPAN_TILES + t) ? add_values<D / 64, false>(values, left, at, STRIDE, parts, t)
                                                    : add_values<D / 64, true>(values, left, at, STRIDE, parts, t);
            done++;
            if (done % TILES == 0) {
                steps.next(step++);
            }
        }
    }
}

// Stores this warp's columns of the states of piece `index`. The first warp also stores sums and maxima.
template <int D, int ROWS>
BN_DEVICE void store_states(const Work &work, const Decode<D> &block, const Queries &queries, int begin, int end, int index,
                            const Values<D / 64> &values, int slots, float *states) {
    int dim = work.paging.head_dim;
    BN_UNROLL
    for (int r = 0; r < ROWS; r++) {
        Seen seen = queries.of[r];
        int slot = index - seen.first / PIECE, row = lane() / 4 + 8 * r;
        if (queries.number(r) >= queries.to || slot < 0 || index > seen.position / PIECE) {
            continue;
        }
        float *to = states + (work.number_of(queries.number(r)) * slots + slot) * state_floats(dim);
        BN_UNROLL
        for (int n = 0; n < 2 * (D / 64); n++) {
            int d = warp() * Decode<D>::COLUMNS + position_of(n, 0);
            if (d < dim) {
                *reinterpret_cast<Two *>(to + d) = two_of(values, n, r);
            }
        }
        if (warp() > 0) {
            continue;
        }
        float sum = 0.0f, high = -INFINITY;
        for (int span = begin; span < end; span++) {
            int at = span % PIECE_SPANS * QUERIES + row;
            sum = add_rn(mul_rn(sum, block.keeps[at]), block.sums[4 * at + lane() % 4]);
            high = fmaxf(high, block.highs[at]);
        }
        to[dim + lane() % 4] = sum;
        BN_UNROLL
        for (int i = 4; i < TILE; i += 4) {
            to[dim + i + lane() % 4] = 0.0f;
        }
        if (lane() % 4 == 0) {
            to[dim + TILE] = high;
        }
    }
}

// Computes one piece's states for all queries of a block, at most 8 x ROWS.
template <int D, int ROWS>
BN_DEVICE void decode_piece(const Work &work, unsigned char *shared, const Queries &queries, int index, int slots, float *states) {
    Decode<D> block(shared);
    Seen all = queries.any;
    int begin = max(all.first / SPAN, index * PIECE_SPANS), end = min(all.position / SPAN + 1, (index + 1) * PIECE_SPANS);
    Steps<D> steps(work, block, all, index, begin, end);
    BN_UNROLL
    for (int step = 0; step < Decode<D>::STEPS; step++) {
        steps.request(step);
    }
    constexpr int WARPS = Decode<D>::WARPS;
    stage_halves<D, QUERIES / WARPS, WARPS>(work, work.from + warp(), block.q + warp() * Q_BYTES<D>, block.units + warp());
    sync_block();
    Scores scores;
    clear(scores);
    for (int step = 0; step < steps.keys; step++) {
        add_scores<D>(scores, block.q + 2 * UNIT * step, steps.wait(step), 2 * UNIT * TILE);
        steps.next(step);
    }
    weigh_span<D, ROWS>(block, scores, queries, begin, index * PIECE_SPANS + warp(), steps.keys > 0);
    sync_block();
    Values<D / 64> values;
    BN_UNROLL
    for (auto &some : values) {
        some[0] = some[1] = some[2] = some[3] = 0.0f;
    }
    add_piece<D, ROWS>(block, steps, queries, begin, end, values);
    store_states<D, ROWS>(work, block, queries, begin, end, index, values, slots, states);
    copy_async_wait<0>();
}

template <int D> BN_DEVICE void decode_halves(const Work &work, unsigned char *shared, int slots, float *states) {
    Queries queries = queries_of(work, work.from);
    int index = queries.any.first / PIECE + static_cast<int>(blockIdx.z);
    if (index > queries.any.position / PIECE) {
        return;
    }
    // Most blocks have one row's heads of a group, and then half of the rows of the softmax are unused.
    if (queries.to - queries.from <= 8) {
        decode_piece<D, 1>(work, shared, queries, index, slots, states);
    } else {
        decode_piece<D, 2>(work, shared, queries, index, slots, states);
    }
}

} // namespace attention
