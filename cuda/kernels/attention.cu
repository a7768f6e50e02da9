// Paged causal attention with grouped queries. For KV in F16, tensor cores do the arithmetic (`halves.cuh`). For F32
// and int8 the bits are those of src/kernels/attention, where sums follow the order of positions:
//
// A score is a chain of multiply-adds along the head. A softmax step takes the scores of 64 positions and sums their
// weights in 16 lanes, by position modulo 16. After 256 positions (a piece) the softmax starts anew, and the results of
// the pieces are merged in order. Which rows share a block does not change these chains.
//
// A block has up to 4 queries (a query is a q head of a row) per warp, all of one sequence and one KV head, and stages
// 64 positions of K and V for them. A lane computes the scores of 2 positions for all queries of its warp, then 2 of
// every 64 elements of their outputs.

#include "attention_f16.cuh"
#include "rope.cuh"
#include "softmax.cuh"

namespace attention {

template <int KIND, int N> BN_DEVICE Stage stage_of(unsigned char *shared, int head_dim) {
    int queries = static_cast<int>(blockDim.x) / WARP * N;
    Stage stage;
    // Padding shifts the banks of neighbouring tiles of K: a warp reads a line of each.
    stage.key_stride = tile_bytes<KIND>(head_dim) + TILE * ELEMENT_BYTES<KIND>;
    stage.value_stride = tile_bytes<KIND>(head_dim);
    stage.q_stride = (head_dim + 3) / 4 * 4;
    stage.keys = shared;
    stage.values = stage.keys + SPAN_TILES * stage.key_stride;
    stage.q = reinterpret_cast<float *>(stage.values + SPAN_TILES * stage.value_stride);
    float *weights = stage.q + queries * stage.q_stride;
    stage.weights = weights + warp() * SPAN * N;
    stage.positions = reinterpret_cast<int *>(weights + queries * SPAN);
    return stage;
}

// Copies the block's queries, with zeros where a warp has fewer than N.
template <int N> BN_DEVICE void stage_queries(const Work &work, const Stage &stage) {
    int warps = static_cast<int>(blockDim.x) / WARP, dim = work.paging.head_dim;
    for (int n = warp(); n < warps * N; n += warps) {
        int query = work.from + n;
        bool has = query < work.to;
        const float *q = has ? work.q_of(query) : nullptr;
        for (int d = lane(); d < stage.q_stride; d += WARP) {
            stage.q[n * stage.q_stride + d] = has && d < dim ? q[d] : 0.0f;
        }
        if (lane() == 0) {
            stage.positions[n] = has ? work.seen(query).position : -1;
        }
    }
}

// Starts copying the tiles of a span that any of the block's rows sees.
template <int KIND>
BN_DEVICE void request(const Work &work, const unsigned char *data, int span, Seen all, unsigned char *to, int stride) {
    int bytes = tile_bytes<KIND>(work.paging.head_dim), first = span * SPAN_TILES;
    Part seen = tiles_of(all, span);
    for (int t = seen.from; t < seen.to; t++) {
        const unsigned char *tile = data + tile_offset<KIND>(work.paging, work.table, work.kv_head, first + t);
        for (int at = 16 * static_cast<int>(threadIdx.x); at < bytes; at += 16 * static_cast<int>(blockDim.x)) {
            copy_async16(to + t * stride + at, tile + at);
        }
    }
}

// Runs spans `begin..end` and calls `piece(state, index)` after the last span of each piece. The next span's K is
// copied while this span's values are summed, and its V while its scores are computed.
template <int KIND, int N, int D, typename Piece>
BN_DEVICE void attend(const Work &work, const Stage &stage, Seen all, int begin, int end, Piece piece) {
    int dim = work.paging.head_dim;
    State<N, D> state;
    state.clear();
    request<KIND>(work, work.keys, begin, all, stage.keys, stage.key_stride);
    copy_async_commit();
    request<KIND>(work, work.values, begin, all, stage.values, stage.value_stride);
    copy_async_commit();
    stage_queries<N>(work, stage);
    for (int span = begin; span < end; span++) {
        Part parts[N];
        float dots[N][2];
        copy_async_wait<1>();
        sync_block();
        bool sees = false;
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            parts[n] = part_of(seen_from(stage.positions[warp() * N + n], work.window), span * SPAN);
            sees = sees || parts[n].from < parts[n].to;
        }
        if (sees) {
            score<KIND, N>(stage, dim, dots);
        }
        copy_async_wait<0>();
        sync_block();
        if (sees) {
            softmax<KIND, N, D>(stage, dim, parts, dots, state);
        }
        // The K scales of an int8 tile are read up to this point.
        sync_block();
        if (span + 1 < end) {
            request<KIND>(work, work.keys, span + 1, all, stage.keys, stage.key_stride);
        }
        copy_async_commit();
        if (sees) {
            weigh<KIND, N, D>(stage, dim, parts, state);
        }
        sync_block();
        if (span + 1 < end) {
            request<KIND>(work, work.values, span + 1, all, stage.values, stage.value_stride);
        }
        copy_async_commit();
        if ((span + 1) % PIECE_SPANS == 0 || span + 1 == end) {
            piece(state, span / PIECE_SPANS);
            state.clear();
        }
    }
    copy_async_wait<0>();
}

template <int N, int D> BN_DEVICE void store_state(const State<N, D> &state, int n, int head_dim, float *to) {
    BN_UNROLL
    for (int i = 0; i < D; i++) {
        int d = COLUMNS * i + 2 * lane();
        if (d < head_dim) {
            *reinterpret_cast<Two *>(to + d) = {{state.values[n][2 * i], state.values[n][2 * i + 1]}};
        }
    }
    if (lane() < TILE / 2) {
        *reinterpret_cast<Two *>(to + head_dim + 2 * lane()) = {{state.sums[n][0], state.sums[n][1]}};
    }
    if (lane() == 0) {
        to[head_dim + TILE] = state.max[n];
    }
}

template <int D> BN_DEVICE void load_state(const float *from, int head_dim, State<1, D> &state) {
    BN_UNROLL
    for (int i = 0; i < D; i++) {
        int d = COLUMNS * i + 2 * lane();
        Two values = {{0.0f, 0.0f}};
        if (d < head_dim) {
            values = *reinterpret_cast<const Two *>(from + d);
        }
        state.values[0][2 * i] = values.x[0];
        state.values[0][2 * i + 1] = values.x[1];
    }
    Two sums = *reinterpret_cast<const Two *>(from + head_dim + 2 * (lane() % 8));
    state.sums[0][0] = sums.x[0];
    state.sums[0][1] = sums.x[1];
    state.max[0] = from[head_dim + TILE];
}

// Computes one piece's states for all queries of a block, N per warp.
template <int KIND, int N, int D>
BN_DEVICE void decode_piece(const Work &work, unsigned char *shared, Seen all, int index, int slots, float *states) {
    int dim = work.paging.head_dim, begin = index * PIECE_SPANS, end = begin + PIECE_SPANS;
    begin = all.first / SPAN > begin ? all.first / SPAN : begin;
    end = all.position / SPAN + 1 < end ? all.position / SPAN + 1 : end;
    Stage stage = stage_of<KIND, N>(shared, dim);
    attend<KIND, N, D>(work, stage, all, begin, end, [&](const State<N, D> &state, int) {
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            int query = work.from + warp() * N + n;
            if (query >= work.to) {
                continue;
            }
            Seen seen = work.seen(query);
            int slot = index - seen.first / PIECE;
            if (slot < 0 || index > seen.position / PIECE) {
                continue;
            }
            store_state(state, n, dim, states + (work.number_of(query) * slots + slot) * state_floats(dim));
        }
    });
}

template <int KIND, int D> BN_DEVICE void decode(const Work &work, unsigned char *shared, int slots, float *states) {
    Seen all = seen_by_any(work, work.from, work.to);
    int index = all.first / PIECE + static_cast<int>(blockIdx.z);
    if (index > all.position / PIECE) {
        return;
    }
    int warps = static_cast<int>(blockDim.x) / WARP, queries = work.to - work.from;
    if (queries <= warps) {
        decode_piece<KIND, 1, D>(work, shared, all, index, slots, states);
    } else if (queries <= 2 * warps) {
        decode_piece<KIND, 2, D>(work, shared, all, index, slots, states);
    } else {
        decode_piece<KIND, 4, D>(work, shared, all, index, slots, states);
    }
}

// Undoes the transform of an output that this warp has written.
template <int N> BN_DEVICE void transform_out(float *out, int head_dim) {
    sync_warp();
    Head<N> head = load_head<N>(out, head_dim);
    transform_head(head, head_dim);
    store_head(head, out, head_dim);
}

// Attends with a block's queries over everything that they see.
template <int KIND, int D> BN_DEVICE void prefill(const Work &work, unsigned char *shared, float *out) {
    constexpr int N = 4;
    int dim = work.paging.head_dim;
    Seen all = seen_by_any(work, work.from, work.to);
    Stage stage = stage_of<KIND, N>(shared, dim);
    State<N, D> total;
    total.clear();
    int end = all.position / SPAN + 1;
    attend<KIND, N, D>(work, stage, all, all.first / SPAN, end, [&](const State<N, D> &state, int index) {
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            Seen seen = seen_from(stage.positions[warp() * N + n], work.window);
            int first = seen.first / PIECE;
            if (seen.position < 0 || index < first || index > seen.position / PIECE) {
                continue;
            }
            if (index > first) {
                merge(total, state, n, n);
                continue;
            }
            total.max[n] = state.max[n];
            total.sums[n][0] = state.sums[n][0];
            total.sums[n][1] = state.sums[n][1];
            BN_UNROLL
            for (int i = 0; i < 2 * D; i++) {
                total.values[n][i] = state.values[n][i];
            }
        }
    });
    BN_UNROLL
    for (int n = 0; n < N; n++) {
        int query = work.from + warp() * N + n;
        if (query < work.to) {
            finish(total, n, dim, out + work.number_of(query) * dim);
            if constexpr (KIND == KV_INT8) {
                transform_out<2 * D>(out + work.number_of(query) * dim, dim);
            }
        }
    }
}

// Both kernels take `qkv` [T, (heads + 2 kv_heads) * head_dim] with q normed, rotated and scaled; a layer's K and V;
// `tasks` [blocks in x, 4]: a sequence's first row, the range of queries (a query is row * group + head of the group),
// the offset of its block table in `tables`; `positions` [T]; `window`, 0 for none. `head_dim` is even and at most the
// number in the kernel's name. Grid: (tasks, kv_heads), and in z for decode the maximum number of pieces that a task
// sees.
//
// F32 and int8: a task has at most 4 queries per warp. Block: 32 to 512 threads, 256 for prefill. Shared bytes for N
// queries per warp (decode: the smallest of 1, 2 and 4 that suffices; prefill: 4) and E bytes per element:
//     4 * (2 * tile_bytes + 16 * E) + warps * N * 4 * (head_dim rounded up to 4 + 64 + 1)
// F16: a task of decode has at most 16 queries and a block 128 threads. A task of prefill has at most 16 queries per
// warp and a block 32 to 256 threads. Shared bytes of `Decode` and `Prompt`, with W for the number in the kernel's name:
//     decode: S * max(2048, 8 * W + 256) + 64 * W + 18240, where S is 24, or 16 for W = 64
//     prefill: B * (256 * W + 1024) + warps * (128 * W + 320), where B is 2, or 1 for W = 256
#define BN_ATTENTION(kind, width, most, decode, prefill)                                                               \
    /* States [T, heads, slots, head_dim + 32] of a row's pieces, from its first one on; for `bn_attention_merge`. */  \
    BN_KERNEL_OF(most, attention_decode_##kind##_##width)(                                                             \
        float *states, const float *qkv, const unsigned char *keys, const unsigned char *values,                       \
        const unsigned *tasks, const unsigned *tables, const unsigned *positions, int heads, int kv_heads,             \
        int head_dim, int block_size, int window, int slots) {                                                         \
        begin_kernel();                                                                                                \
        BN_SHARED(shared);                                                                                             \
        Work work = work_of(qkv, keys, values, tasks, blockIdx.x, tables, positions, heads,                            \
                            {kv_heads, block_size, head_dim}, window);                                                 \
        decode(work, shared, slots, states);                                                                           \
    }                                                                                                                  \
    /* Out [T, heads, head_dim]. The last rows, which see most, begin first. */                                        \
    BN_KERNEL_OF(256, attention_prefill_##kind##_##width)(                                                             \
        float *out, const float *qkv, const unsigned char *keys, const unsigned char *values, const unsigned *tasks,   \
        const unsigned *tables, const unsigned *positions, int heads, int kv_heads, int head_dim, int block_size,      \
        int window) {                                                                                                  \
        begin_kernel();                                                                                                \
        BN_SHARED(shared);                                                                                             \
        Work work = work_of(qkv, keys, values, tasks, gridDim.x - 1 - blockIdx.x, tables, positions, heads,            \
                            {kv_heads, block_size, head_dim}, window);                                                 \
        prefill(work, shared, out);                                                                                    \
    }
#define BN_ATTENTION_FMA(kind, KIND, width)                                                                            \
    BN_ATTENTION(kind, width, 512, (decode<KIND, width / COLUMNS>), (prefill<KIND, width / COLUMNS>))
#define BN_ATTENTION_MMA(width) BN_ATTENTION(f16, width, 128, decode_halves<width>, prefill_halves<width>)

BN_ATTENTION_FMA(f32, KV_F32, 64)
BN_ATTENTION_FMA(f32, KV_F32, 128)
BN_ATTENTION_FMA(f32, KV_F32, 256)
BN_ATTENTION_FMA(int8, KV_INT8, 64)
BN_ATTENTION_FMA(int8, KV_INT8, 128)
BN_ATTENTION_FMA(int8, KV_INT8, 256)
BN_ATTENTION_MMA(64)
BN_ATTENTION_MMA(128)
BN_ATTENTION_MMA(256)

// Pieces that `bn_attention_merge` loads together.
constexpr int MERGED = 4;

// Merges the pieces of `states` in order into `out` [T, heads, head_dim]. `transformed`: V was stored transformed. One
// warp per head, of which there are `count` = T * heads. Grid: enough blocks for them. Block: any.
BN_KERNEL(attention_merge)(float *out, const float *states, const unsigned *positions, int count, int heads, int head_dim,
                           int window, int slots, int transformed) {
    begin_kernel();
    constexpr int D = WIDEST / COLUMNS;
    int head = static_cast<int>(blockIdx.x * (blockDim.x / WARP)) + warp();
    if (head >= count) {
        return;
    }
    Seen seen = seen_from(static_cast<int>(positions[head / heads]), window);
    const float *from = states + static_cast<size_t>(head) * slots * state_floats(head_dim);
    State<1, D> total, some[MERGED];
    // The first slot is filled for every position.
    load_state(from, head_dim, total);
    int pieces = seen.position / PIECE - seen.first / PIECE + 1;
    for (int slot = 1; slot < pieces; slot += MERGED) {
        BN_UNROLL
        for (int n = 0; n < MERGED; n++) {
            if (slot + n < pieces) {
                load_state(from + (slot + n) * state_floats(head_dim), head_dim, some[n]);
            }
        }
        BN_UNROLL
        for (int n = 0; n < MERGED; n++) {
            if (slot + n < pieces) {
                merge(total, some[n], 0, 0);
            }
        }
    }
    finish(total, 0, head_dim, out + static_cast<size_t>(head) * head_dim);
    if (transformed != 0) {
        transform_out<2 * D>(out + static_cast<size_t>(head) * head_dim, head_dim);
    }
}

// Norms (if there are weights), rotates and scales the q heads of `qkv` [T, (heads + 2 kv_heads) * head_dim] in place.
// Stores k, normed and rotated, and v in a layer's tiles. For int8, q, k and v are transformed after that. `turns` [T,
// 2 pairs]: cosines, then sines. `tables_at` [T]: offset in `tables` of the block table of a row's sequence, or NO_TABLE.
// `positions` [T]. `q_norm` and `k_norm` [head_dim], or both null. `head_dim` is at most 256. Grid: T, and enough
// blocks for a warp per head of q, k and v. Block: any number of whole warps, each with 1024 bytes of shared memory.
#define BN_ROPE_KV_WRITE(kind, KIND)                                                                                   \
    BN_KERNEL(rope_kv_write_##kind)(float *qkv, unsigned char *keys, unsigned char *values, const float *turns,        \
                                    const unsigned *tables, const unsigned *tables_at, const unsigned *positions,      \
                                    const float *q_norm, const float *k_norm, float q_eps, float k_eps,                \
                                    float q_scale, int heads, int kv_heads, int head_dim, int block_size, int pairs,   \
                                    int interleaved) {                                                                 \
        let_next_begin();                                                                                              \
        BN_SHARED(shared);                                                                                             \
        Rope rope = {turns,  tables, tables_at, positions, q_norm, k_norm,                                             \
                     q_eps,  k_eps,  q_scale,   heads,     pairs,  interleaved != 0};                                  \
        write_heads<KIND>(qkv, keys, values, rope, {kv_heads, block_size, head_dim},                                   \
                          reinterpret_cast<float *>(shared) + warp() * WIDEST);                                        \
    }

BN_ROPE_KV_WRITE(f32, KV_F32)
BN_ROPE_KV_WRITE(f16, KV_F16)
BN_ROPE_KV_WRITE(int8, KV_INT8)

} // namespace attention
