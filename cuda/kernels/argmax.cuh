// The most likely token of a row of logits, found by one block.
//
// Lower bound: one SM reads the row at 64 bytes a cycle, 8,000 cycles for 128,256 logits or 4.6 us on an H100. So the
// loop has one instruction per logit, a maximum. Its position is found afterwards, in one batch of one thread.
#pragma once

#include "device.cuh"

#include <cmath>

namespace sampling {

// A block's threads. `Search` splits its sums among them.
constexpr int THREADS = 512;
constexpr int WARPS = THREADS / WARP;

// Maps floats to integers of the same order. Both zeros map to one integer.
BN_DEVICE uint32_t ascending(float x) {
    uint32_t bits = __float_as_uint(add_rn(x, 0.0f));
    return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

BN_DEVICE float from_ascending(uint32_t number) {
    return __uint_as_float(number ^ (number >> 31 != 0 ? 0x80000000u : 0xFFFFFFFFu));
}

// Returned instead of a token if the row is not a distribution.
constexpr int HOLDS_NAN = -1;
constexpr int HOLDS_INFINITY = -2;
constexpr int HOLDS_NOTHING = -3;
constexpr int EDITS_LEAVE_NOTHING = -4;

// Groups of four logits that a thread has in flight, 64 KB per block, and as many in the second buffer.
constexpr int AHEAD = 8;

// A row as aligned groups of four logits, plus up to 3 logits at each end.
struct Fours {
    const float *logits;
    int vocab, before, fours;

    // Index of the thread's logit at one of the ends, or `vocab` if it has none.
    __device__ __forceinline__ int edge() const {
        int own = static_cast<int>(threadIdx.x), at = own < before ? own : own + 4 * fours;
        return at < vocab && own < 6 ? at : vocab;
    }

    // Index of the first logit of the thread's `n`-th group in `batch`.
    __device__ __forceinline__ int place(int batch, int n) const {
        return before + 4 * ((batch * AHEAD + n) * THREADS + static_cast<int>(threadIdx.x));
    }

    // Loads -infinity past the last group.
    __device__ __forceinline__ void load(float4 (&x)[AHEAD], int batch) const {
        BN_UNROLL
        for (int n = 0; n < AHEAD; n++) {
            int at = place(batch, n);
            x[n] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
            if (at < before + 4 * fours) {
                x[n] = *reinterpret_cast<const float4 *>(logits + at);
            }
        }
    }
};

BN_DEVICE Fours fours_of(const float *logits, int vocab) {
    int before = static_cast<int>((16 - reinterpret_cast<uintptr_t>(logits) % 16) % 16 / sizeof(float));
    before = before < vocab ? before : vocab;
    return {logits, vocab, before, (vocab - before) / 4};
}

// Returns the largest value, or NaN if there is one.
BN_DEVICE float greatest(const float4 (&x)[AHEAD]) {
    float most[AHEAD];
    BN_UNROLL
    for (int n = 0; n < AHEAD; n++) {
        most[n] = max_nan(max_nan(x[n].x, x[n].y), max_nan(x[n].z, x[n].w));
    }
    BN_UNROLL
    for (int step = AHEAD / 2; step > 0; step /= 2) {
        BN_UNROLL
        for (int n = 0; n < step; n++) {
            most[n] = max_nan(most[n], most[n + step]);
        }
    }
    return most[0];
}

// Returns the block's largest number.
BN_DEVICE unsigned block_most(int *shared, unsigned number) {
    number = warp_most(number);
    if (lane() == 0) {
        shared[warp()] = static_cast<int>(number);
    }
    sync_block();
    return warp_most(lane() < WARPS ? static_cast<unsigned>(shared[lane()]) : 0u);
}

// Returns the first index in a batch, or at the thread's edge, whose logit is `max`, or `vocab`.
BN_DEVICE int first_place(const Fours &row, int batch, float max) {
    int edge = row.edge(), found = edge < row.vocab && row.logits[edge] == max ? edge : row.vocab;
    if (batch >= 0) {
        float4 x[AHEAD];
        row.load(x, batch);
        BN_UNROLL
        for (int n = 0; n < AHEAD; n++) {
            const float four[] = {x[n].x, x[n].y, x[n].z, x[n].w};
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                int at = row.place(batch, n) + i;
                found = four[i] == max && at < found ? at : found;
            }
        }
    }
    return found;
}

// Returns the most likely token, the lowest among equals, or the code of what is wrong with the row. `max` gets its
// logit. `shared` and `more` have WARPS elements.
BN_DEVICE int argmax(int *shared, int *more, const float *logits, int vocab, float &max) {
    Fours row = fours_of(logits, vocab);
    int batches = (row.fours + AHEAD * THREADS - 1) / (AHEAD * THREADS), batch = -1, edge = row.edge();
    float own = edge < vocab ? logits[edge] : -INFINITY, best = -INFINITY;
    float4 x[AHEAD], next[AHEAD];
    auto take = [&](float most, int at) {
        own = max_nan(own, most);
        batch = most > best ? at : batch;
        best = most > best ? most : best;
    };
    row.load(x, 0);
    for (int at = 0; at < batches; at += 2) {
        row.load(next, at + 1);
        take(greatest(x), at);
        row.load(x, at + 2);
        take(greatest(next), at + 1);
    }
    // The number of a NaN is the largest.
    unsigned number = block_most(shared, ascending(own));
    max = from_ascending(number);
    bool holds = max < INFINITY && max > -INFINITY;
    int place = vocab;
    if (holds && ascending(own) == number) {
        place = first_place(row, best == max ? batch : -1, max);
    }
    place = static_cast<int>(~block_most(more, ~static_cast<unsigned>(place)));
    if (holds && max == 0.0f) {
        max = logits[place]; // of either sign
    }
    sync_block();
    return holds ? place : max == INFINITY ? HOLDS_INFINITY : max == -INFINITY ? HOLDS_NOTHING : HOLDS_NAN;
}

} // namespace sampling
