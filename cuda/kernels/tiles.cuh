// Tiles of the integer products in shared memory: staged by asynchronous copies of 16 bytes, read in fragments without bank
// conflicts.
#pragma once

#include "products.cuh"

// Where piece `piece` (16 bytes) of row `row` of a tile lies, whose rows have PIECES of them. The pieces of a row change
// places with each other by its number, so that what lanes read together from neighboring rows, TOGETHER pieces of each,
// lies in different banks.
template <int PIECES, int TOGETHER = 1>
BN_DEVICE unsigned place(unsigned row, unsigned piece) {
    constexpr unsigned ACROSS = PIECES < 8 ? PIECES : 8; // pieces of a row that are all in different banks
    constexpr unsigned TURNS = ACROSS > TOGETHER ? ACROSS / TOGETHER : 1;
    return 16 * (row * PIECES + (piece ^ row * ACROSS / 8 % TURNS * TOGETHER));
}

// Some rows of a matrix in global memory, to be staged: PIECES pieces of ROWS rows in each step, by THREADS threads. A thread
// has one piece of each of its rows.
template <unsigned THREADS, unsigned ROWS, unsigned PIECES, int TOGETHER = 1>
struct Staged {
    static_assert(THREADS % PIECES == 0 && THREADS / PIECES % 8 == 0, "all rows of a thread have the piece at one place");
    static constexpr unsigned APART = THREADS / PIECES; // a thread's rows
    const uint8_t *own; // this thread's first piece
    int64_t next;       // bytes from a row of this thread to the next one
    int rows, bytes;    // rows of this thread that there are, and bytes of a row from `own` on
    unsigned to;

    // Of `count` rows of `row_bytes`, a multiple of 16, from row `first` on.
    BN_DEVICE Staged of(const void *matrix, int64_t row_bytes, int first, int count) {
        unsigned row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        int own = first + static_cast<int>(row), left = min(count, first + static_cast<int>(ROWS)) - own;
        int rows = (left + static_cast<int>(APART) - 1) / static_cast<int>(APART);
        const uint8_t *from = static_cast<const uint8_t *>(matrix) + own * row_bytes + 16 * piece;
        return {from, APART * row_bytes, rows, static_cast<int>(row_bytes - 16 * piece), place<PIECES, TOGETHER>(row, piece)};
    }

    // Begins to copy a step, as far as there are such rows and rows have it. What is behind them keeps what it was: it is
    // computed with, and not written.
    __device__ __forceinline__ void stage(unsigned char *tile, int step) const {
        int at = step * static_cast<int>(16 * PIECES);
        if (at >= bytes) return;
        const uint8_t *from = own + at;
        BN_UNROLL
        for (unsigned i = 0; i < (ROWS + APART - 1) / APART; i++) {
            if (static_cast<int>(i) < rows) copy_async16(tile + to + 16 * THREADS * i, from + i * next);
        }
    }
};

// Word `word` of piece `piece`.
template <int PIECES>
BN_DEVICE uint32_t word_at(const unsigned char *tile, unsigned row, unsigned piece, unsigned word) {
    return reinterpret_cast<const uint32_t *>(tile + place<PIECES>(row, piece))[word];
}

// mma's left operand: rows `row` to `row + 15` (a multiple of 8) and columns 32 `slice` to 32 `slice` + 31 of a tile of
// activations, whose rows have PIECES pieces.
template <int PIECES>
BN_DEVICE void load_left(const unsigned char *tile, unsigned row, unsigned slice, uint32_t (&a)[4]) {
    unsigned own = static_cast<unsigned>(lane());
    load_matrices(a, tile + place<PIECES>(row + own % 16, 2 * slice + own / 16));
}

// The right operands of bytes, of rows `row` to `row + 15`.
template <int PIECES>
BN_DEVICE void load_byte_pair(const unsigned char *tile, unsigned row, unsigned slice, uint32_t (&b)[4]) {
    unsigned own = static_cast<unsigned>(lane());
    load_matrices(b, tile + place<PIECES>(row + own / 16 * 8 + own % 8, 2 * slice + own / 8 % 2));
}

constexpr int GEMM_THREADS = 256;
// Of two blocks, one computes while the other waits.
#define BN_GEMM(name) BN_KERNEL_FOR(GEMM_THREADS, 2, name)
// Columns of a step of the products with scales in blocks, its blocks of 32 columns, and its pieces of a row of activations.
constexpr int STEP = 128;
constexpr int STEP_BLOCKS = STEP / 32, STEP_PIECES = STEP / 16;

// A block's tile of a product, and its warps'. GROUPS: so many warps have the same outputs, and share the columns.
// ALL_STAGES: units of steps that have a place in shared memory, one of which is computed while the others are on their way.
template <int ALL_TOKENS, int ALL_OUTPUTS, int WARP_TOKENS, int WARP_OUTPUTS, int ALL_STAGES, int ALL_GROUPS = 1>
struct Tile {
    static constexpr int TOKENS = ALL_TOKENS, OUTPUTS = ALL_OUTPUTS, GROUPS = ALL_GROUPS;
    // Warps beside each other along outputs, and all of a group.
    static constexpr int ACROSS = OUTPUTS / WARP_OUTPUTS, WARPS = TOKENS / WARP_TOKENS * ACROSS;
    // mma's tiles within a warp's.
    static constexpr int LEFTS = WARP_TOKENS / 16, RIGHTS = WARP_OUTPUTS / 8;
    static constexpr int LEFT_BYTES = TOKENS * STEP;
    // So few that a warp is busy only with those of several blocks of columns together.
    static constexpr bool FEW = LEFTS * RIGHTS < 4;
    // Steps between two barriers, and those that have a place in shared memory.
    static constexpr int UNIT = FEW ? 2 : 1, STAGES = UNIT * ALL_STAGES;
    static_assert(WARPS * GROUPS * WARP == GEMM_THREADS, "a warp for each");

    using Sums = float[LEFTS][RIGHTS][4];
    using Dots = int[LEFTS][RIGHTS][4];

    BN_DEVICE int group() { return warp() / WARPS; }
    // The tile's place of this warp, in tokens and outputs.
    BN_DEVICE int token() { return warp() % WARPS / ACROSS * WARP_TOKENS; }
    BN_DEVICE int output() { return warp() % ACROSS * WARP_OUTPUTS; }
    // Token and output within the tile of element i of mma's result for left tile m and right tile n.
    BN_DEVICE int token_of(int m, int i) { return token() + 16 * m + i / 2 * 8 + lane() / 4; }
    BN_DEVICE int output_of(int n, int i) { return output() + 8 * n + lane() % 4 * 2 + i % 2; }
};

// Those of the products with scales in blocks. Sums have an order along the columns, so that warps cannot share them: where
// there are few tokens and outputs, small tiles occupy more multiprocessors.
using LargeTile = Tile<64, 128, 32, 32, 3>;
using SmallTile = Tile<32, 32, 16, 8, 3>;

// Runs `compute(step, place)` for each step in order, where what `weights(step, place)` and `inputs(step, place)` have begun
// to copy is there. Weights of the first steps come before the kernel's inputs are there. All threads call it.
template <class Tile, class Weights, class Inputs, class Compute>
BN_DEVICE void pipeline(int steps, const Weights &weights, const Inputs &inputs, const Compute &compute) {
    constexpr int UNIT = Tile::UNIT, STAGES = Tile::STAGES, AHEAD = STAGES - UNIT;
    BN_UNROLL
    for (int s = 0; s < AHEAD; s++) {
        if (s < steps) weights(s, s);
    }
    await_inputs();
    BN_UNROLL
    for (int s = 0; s < AHEAD; s++) {
        if (s < steps) inputs(s, s);
        if (s % UNIT == UNIT - 1) copy_async_commit();
    }
    int place = 0, next = AHEAD;
    BN_UNROLL_BY(1)
    for (int step = 0; step < steps; step += UNIT) {
        copy_async_wait<AHEAD / UNIT - 1>();
        // All see the steps' columns, and none reads those before them, whose place the next ones take.
        sync_block();
        BN_UNROLL
        for (int u = 0; u < UNIT; u++) {
            if (step + AHEAD + u >= steps) continue;
            weights(step + AHEAD + u, next + u);
            inputs(step + AHEAD + u, next + u);
        }
        copy_async_commit();
        BN_UNROLL
        for (int u = 0; u < UNIT; u++) {
            if (step + u < steps) compute(step + u, place + u);
        }
        place = place + UNIT < STAGES ? place + UNIT : 0;
        next = next + UNIT < STAGES ? next + UNIT : 0;
    }
}

// mma's right operand, of a plane of BITS bits: 32 columns of outputs `row` to `row + 7`.
template <int BITS>
BN_DEVICE void load_bits(const unsigned char *tile, int row, int slice, uint32_t (&b)[2]) {
    row += lane() / 4;
    int q = lane() % 4, first = slice * BITS; // in words
    auto word = [&](int w) { return word_at<BITS>(tile, row, (first + w) / 4, (first + w) % 4); };
    if constexpr (BITS == 8) {
        b[0] = word(q), b[1] = word(4 + q);
    } else if constexpr (BITS == 4) {
        uint32_t words[4] = {word(q)};
        b[0] = plane_word<4>(words, 0), b[1] = plane_word<4>(words, 4);
    } else if constexpr (BITS == 2) {
        uint32_t words[2] = {word(0), word(1)};
        b[0] = plane_word<2>(words, q), b[1] = plane_word<2>(words, 4 + q);
    } else {
        uint32_t words[1] = {word(0)};
        b[0] = plane_word<1>(words, q), b[1] = plane_word<1>(words, 4 + q);
    }
}

// A step's codes of a tile's outputs: the low plane, then the high one.
template <class Format, class Tile>
constexpr int CODES_BYTES = Tile::OUTPUTS * (Format::BITS + Format::HIGH) * 16;

template <class Format, class Tile>
struct StagedCodes {
    using Low = Staged<GEMM_THREADS, Tile::OUTPUTS, Format::BITS>;
    using High = Staged<GEMM_THREADS, Tile::OUTPUTS, Format::HIGH != 0 ? Format::HIGH : 1>;
    Low low;
    High high; // of types that have such bits

    BN_DEVICE StagedCodes of(const Blocks &p, const Planes<Format> &planes, int output0) {
        StagedCodes all{Low::of(p.codes, planes.low_row, output0, p.rows), {}};
        if (Format::HIGH != 0) all.high = High::of(p.codes + planes.high, planes.high_row, output0, p.rows);
        return all;
    }

    __device__ __forceinline__ void stage(unsigned char *tile, int step) const {
        low.stage(tile, step);
        if (Format::HIGH != 0) high.stage(tile + Tile::OUTPUTS * Format::BITS * 16, step);
    }
};

// The right operands of all of a warp's outputs.
template <class Format, class Tile>
BN_DEVICE void load_rights(const unsigned char *tile, int slice, uint32_t (&b)[Tile::RIGHTS][2]) {
    if constexpr (Format::BITS == 8 && Tile::RIGHTS % 2 == 0) {
        BN_UNROLL
        for (int n = 0; n < Tile::RIGHTS; n += 2) {
            uint32_t pair[4];
            load_byte_pair<Format::BITS>(tile, Tile::output() + 8 * n, slice, pair);
            b[n][0] = pair[0], b[n][1] = pair[1], b[n + 1][0] = pair[2], b[n + 1][1] = pair[3];
        }
    } else {
        BN_UNROLL
        for (int n = 0; n < Tile::RIGHTS; n++) {
            int row = Tile::output() + 8 * n;
            uint32_t high[2] = {};
            load_bits<Format::BITS>(tile, row, slice, b[n]);
            if constexpr (Format::HIGH != 0) {
                load_bits<Format::HIGH>(tile + Tile::OUTPUTS * Format::BITS * 16, row, slice, high);
            }
            BN_UNROLL
            for (int i = 0; i < 2; i++) b[n][i] = join<Format>(b[n][i], high[i]);
        }
    }
}

// Of all blocks of a step. A warp of 8 outputs has bytes of two blocks in one load.
template <class Format, class Tile>
BN_DEVICE void load_step_rights(const unsigned char *tile, uint32_t (&b)[STEP_BLOCKS][Tile::RIGHTS][2]) {
    if constexpr (Format::BITS == 8 && Tile::RIGHTS == 1) {
        unsigned own = static_cast<unsigned>(lane());
        BN_UNROLL
        for (int n = 0; n < STEP_BLOCKS; n += 2) {
            uint32_t pair[4];
            load_matrices(pair, tile + place<Format::BITS>(Tile::output() + own % 8, 2 * n + own / 8));
            b[n][0][0] = pair[0], b[n][0][1] = pair[1], b[n + 1][0][0] = pair[2], b[n + 1][0][1] = pair[3];
        }
    } else {
        BN_UNROLL
        for (int n = 0; n < STEP_BLOCKS; n++) load_rights<Format, Tile>(tile, n, b[n]);
    }
}

// Asks for a small tile's rows of weights, once for all tokens. Large ones have enough on their way.
template <class Format, class Tile>
BN_DEVICE void prefetch_tile(const Blocks &p, const Planes<Format> &planes, int output0) {
    if (Tile::FEW && blockIdx.x == 0) prefetch_blocks(p, planes, output0, Tile::OUTPUTS);
}

// Calls `what(token, output, m, n, i)` for each element of this thread's tiles that the product has.
template <class Tile, int LEFTS = Tile::LEFTS, class Product, class What>
BN_DEVICE void each_output(const Product &p, int token0, int output0, const What &what) {
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        BN_UNROLL
        for (int n = 0; n < Tile::RIGHTS; n++) {
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                int t = token0 + Tile::token_of(m, i), row = output0 + Tile::output_of(n, i);
                if (t < p.tokens && row < p.rows) what(t, row, m, n, i);
            }
        }
    }
}

template <class Tile>
BN_DEVICE void write_sums(const Blocks &p, int token0, int output0, const typename Tile::Sums &sums) {
    each_output<Tile>(p, token0, output0, [&](int t, int row, int m, int n, int i) {
        write(p, t, row, sums[m][n][i]);
    });
}
