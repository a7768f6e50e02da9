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

// Rows of a matrix in global memory, some columns of which are staged.
struct Source {
    const uint8_t *rows;
    int64_t row_bytes; // a multiple of 16
    int first, count;  // the tile's first row, and how many the matrix has
};

// Begins to copy pieces `from` to `from + PIECES` of ROWS rows, as far as there are such rows and rows have them. What is
// behind them keeps what it was: it is computed with, and not written. By THREADS threads.
template <unsigned THREADS, unsigned ROWS, unsigned PIECES, int TOGETHER = 1>
BN_DEVICE void stage(unsigned char *to, const Source &source, int from) {
    BN_UNROLL
    for (unsigned begin = 0; begin < ROWS * PIECES; begin += THREADS) {
        unsigned i = begin + threadIdx.x, row = i / PIECES, piece = i % PIECES;
        int64_t at = 16 * static_cast<int64_t>(from + static_cast<int>(piece));
        int own = source.first + static_cast<int>(row);
        if ((ROWS * PIECES % THREADS != 0 && row >= ROWS) || own >= source.count || at >= source.row_bytes) continue;
        copy_async16(to + place<PIECES, TOGETHER>(row, piece), source.rows + own * source.row_bytes + at);
    }
}

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
// STAGES: steps that have a place in shared memory, one of which is computed while the others are on their way.
template <int ALL_TOKENS, int ALL_OUTPUTS, int WARP_TOKENS, int WARP_OUTPUTS, int ALL_STAGES, int ALL_GROUPS = 1>
struct Tile {
    static constexpr int TOKENS = ALL_TOKENS, OUTPUTS = ALL_OUTPUTS, STAGES = ALL_STAGES, GROUPS = ALL_GROUPS;
    // Warps beside each other along outputs, and all of a group.
    static constexpr int ACROSS = OUTPUTS / WARP_OUTPUTS, WARPS = TOKENS / WARP_TOKENS * ACROSS;
    // mma's tiles within a warp's.
    static constexpr int LEFTS = WARP_TOKENS / 16, RIGHTS = WARP_OUTPUTS / 8;
    static constexpr int LEFT_BYTES = TOKENS * STEP;
    // Of few tiles, those of several steps of mma together keep a warp busy.
    static constexpr int UNROLL = LEFTS * RIGHTS < 4 ? 4 : 1;
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
using SmallTile = Tile<32, 32, 16, 8, 6>;

// Runs `compute(step, place)` for each step in order, where what `weights(step, place)` and `inputs(step, place)` have begun
// to copy is there. Weights of the first steps come before the kernel's inputs are there. All threads call it.
template <int STAGES, class Weights, class Inputs, class Compute>
BN_DEVICE void pipeline(int steps, const Weights &weights, const Inputs &inputs, const Compute &compute) {
    constexpr int AHEAD = STAGES - 1;
    BN_UNROLL
    for (int s = 0; s < AHEAD; s++) {
        if (s < steps) weights(s, s);
    }
    await_inputs();
    BN_UNROLL
    for (int s = 0; s < AHEAD; s++) {
        if (s < steps) inputs(s, s);
        copy_async_commit();
    }
    int place = 0, next = AHEAD;
    BN_UNROLL_BY(1)
    for (int step = 0; step < steps; step++) {
        copy_async_wait<AHEAD - 1>();
        // All see the step's columns, and none reads those before them, whose place the next ones take.
        sync_block();
        if (step + AHEAD < steps) {
            weights(step + AHEAD, next);
            inputs(step + AHEAD, next);
        }
        copy_async_commit();
        compute(step, place);
        place = place + 1 < STAGES ? place + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
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
BN_DEVICE void stage_codes(unsigned char *to, const Blocks &p, const Planes<Format> &planes, int output0, int step) {
    Source low{p.codes, planes.low_row, output0, p.rows};
    stage<GEMM_THREADS, Tile::OUTPUTS, Format::BITS>(to, low, step * Format::BITS);
    if constexpr (Format::HIGH != 0) {
        Source high{p.codes + planes.high, planes.high_row, output0, p.rows};
        to += Tile::OUTPUTS * Format::BITS * 16;
        stage<GEMM_THREADS, Tile::OUTPUTS, Format::HIGH>(to, high, step * Format::HIGH);
    }
}

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

// Asks for a tile's rows of weights, once for all tokens.
template <class Format, class Tile>
BN_DEVICE void prefetch_tile(const Blocks &p, const Planes<Format> &planes, int output0) {
    if (blockIdx.x == 0) prefetch_blocks(p, planes, output0, Tile::OUTPUTS);
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
