// Collective operations of a block that draws a token.
#pragma once

#include "argmax.cuh"

namespace sampling {

// Shared memory through which the block's threads exchange values.
struct Board {
    double sums[WARPS];
    double mass;
    float values[WARPS];
    int places[WARPS];
    int found;
    int counts[WARPS];
};

// Returns the sum of all threads' values, in an order fixed by THREADS.
BN_DEVICE double block_sum(Board *board, double value) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        value = add_rn(value, shfl_xor(value, mask));
    }
    sync_block();
    if (lane() == 0) {
        board->sums[warp()] = value;
    }
    sync_block();
    double sum = 0.0;
    for (double part : board->sums) {
        sum = add_rn(sum, part);
    }
    return sum;
}

// Returns thread 0's value in all threads.
template <class T> BN_DEVICE T from_first(T *on_board, T value) {
    sync_block();
    if (threadIdx.x == 0) {
        *on_board = value;
    }
    sync_block();
    return *on_board;
}

// Calls `put(n, at, x)` in parallel for the n-th `at` of `0..count` for which `keep(x, at)` holds, where x is
// `read(at)`. Makes no calls if there are more than `most`. Returns how many there are.
template <class Read, class Keep, class Put>
BN_DEVICE int compact(Board *board, int count, int most, Read read, Keep keep, Put put) {
    int each = ((count + WARPS - 1) / WARPS + WARP - 1) / WARP * WARP;
    int from = warp() * each, to = from + each < count ? from + each : count, own = 0;
    // Several are read before the first is used.
    auto visit = [&](int begin, auto use) {
        constexpr int SOME = 8;
        decltype(read(0)) x[SOME];
        BN_UNROLL
        for (int n = 0; n < SOME; n++) {
            int at = begin + n * WARP + lane();
            x[n] = read(at < to ? at : from);
        }
        BN_UNROLL
        for (int n = 0; n < SOME; n++) {
            int at = begin + n * WARP + lane();
            bool keeps = at < to && keep(x[n], at);
            use(keeps, warp_ballot(keeps), at, x[n]);
        }
        return begin + SOME * WARP;
    };
    for (int at = from; at < to;) {
        at = visit(at, [&](bool, unsigned flags, int, auto) { own += __popc(flags); });
    }
    sync_block();
    if (lane() == 0) {
        board->counts[warp()] = own;
    }
    sync_block();
    int before = 0, all = 0;
    for (int n = 0; n < WARPS; n++) {
        before += n < warp() ? board->counts[n] : 0;
        all += board->counts[n];
    }
    for (int at = from; at < to && all <= most;) {
        at = visit(at, [&](bool keeps, unsigned flags, int own_at, auto x) {
            if (keeps) {
                put(before + __popc(flags & ((1u << lane()) - 1)), own_at, x);
            }
            before += __popc(flags);
        });
    }
    sync_block();
    return all;
}

// One thread calls `use(x[n], n)` for n below `count` in order until it returns false. Reads ahead.
template <class T, class Use> BN_DEVICE void in_order(const T *x, int count, Use use) {
    constexpr int SOME = 8;
    bool goes = true;
    for (int from = 0; from < count && goes; from += SOME) {
        T some[SOME];
        BN_UNROLL
        for (int n = 0; n < SOME; n++) {
            some[n] = x[from + n < count ? from + n : from];
        }
        BN_UNROLL
        for (int n = 0; n < SOME; n++) {
            goes = goes && from + n < count && use(some[n], from + n);
        }
    }
}

} // namespace sampling
