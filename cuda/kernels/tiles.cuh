// Tiles of the integer products in shared memory. They are staged by asynchronous copies of 16 bytes and read in
// fragments without bank conflicts.
#pragma once

#include "products.cuh"

// Offset of 16-byte piece `piece` of row `row` in a tile with PIECES pieces per row. Pieces of a row are permuted by
// the row's number, so that lanes that read TOGETHER pieces of each of several adjacent rows use different banks.
template <int PIECES, int TOGETHER = 1>
BN_DEVICE unsigned place(unsigned row, unsigned piece) {
    constexpr unsigned ACROSS = PIECES < 8 ? PIECES : 8; // pieces of a row that lie in different banks
    constexpr unsigned TURNS = ACROSS > TOGETHER ? ACROSS / TOGETHER : 1;
    return 16 * (row * PIECES + (piece ^ row * ACROSS / 8 % TURNS * TOGETHER));
}

// Rows of a matrix in global memory that are staged: in each step PIECES pieces of ROWS rows, by THREADS threads. A
// thread copies one piece of each of its rows.
template <unsigned THREADS, unsigned ROWS, unsigned PIECES, int TOGETHER = 1>
struct Staged {
    static_assert(THREADS % PIECES == 0 && THREADS / PIECES % 8 == 0, "all rows of a thread have the piece at one place");
    static constexpr unsigned APART = THREADS / PIECES; // a thread's rows
    const uint8_t *own; // this thread's first piece
    int64_t next;       // bytes from a row of this thread to the next one
    int rows, bytes;    // this thread's rows, and bytes of a row from `own` on
    unsigned to;

    // Stages `count` rows of `row_bytes` bytes, a multiple of 16, from row `first` on.
    BN_DEVICE Staged of(const void *matrix, int64_t row_bytes, int first, int count) {
        unsigned row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        int own = first + static_cast<int>(row), left = min(count, first + static_cast<int>(ROWS)) - own;
        int rows = (left + static_cast<int>(APART) - 1) / static_cast<int>(APART);
        const uint8_t *from = static_cast<const uint8_t *>(matrix) + own * row_bytes + 16 * piece;
        return {from, APART * row_bytes, rows, static_cast<int>(row_bytes - 16 * piece), place<PIECES, TOGETHER>(row, piece)};
    }

    // Starts copying a step, for rows and columns that exist. The rest of the tile keeps its content: results computed
    // from it are not written.
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

// Returns word `word` of piece `piece`.
template <int PIECES>
BN_DEVICE uint32_t word_at(const unsigned char *tile, unsigned row, unsigned piece, unsigned word) {
    return reinterpret_cast<const uint32_t *>(tile + place<PIECES>(row, piece))[word];
}

// Loads mma's left operand: rows `row` (a multiple of 8) to `row + 15` and columns 32 `slice` to 32 `slice` + 31 of a
// tile of activations with PIECES pieces per row.
template <int PIECES>
BN_DEVICE void load_left(const unsigned char *tile, unsigned row, unsigned slice, uint32_t (&a)[4]) {
    unsigned own = static_cast<unsigned>(lane());
    load_matrices(a, tile + place<PIECES>(row + own % 16, 2 * slice + own / 16));
}

// Loads the right operands of rows `row` to `row + 15` of bytes.
template <int PIECES>
BN_DEVICE void load_byte_pair(const unsigned char *tile, unsigned row, unsigned slice, uint32_t (&b)[4]) {
    unsigned own = static_cast<unsigned>(lane());
    load_matrices(b, tile + place<PIECES>(row + own / 16 * 8 + own % 8, 2 * slice + own / 8 % 2));
}

constexpr int GEMM_THREADS = 256;
// An SM holds two blocks: one computes while the other waits.
#define BN_GEMM(name) BN_KERNEL_FOR(GEMM_THREADS, 2, name)
// Columns of a step of the products with scales in blocks, its blocks of 32 columns, its pieces of a row of
// activations.
constexpr int STEP = 128;
constexpr int STEP_BLOCKS = STEP / 32, STEP_PIECES = STEP / 16;

// A block's tile of a product, and how its warps share it. GROUPS warps have the same outputs and divide the columns.
// ALL_STAGES units of steps have a place in shared memory; one of them is in use while the others are copied.
template <int ALL_TOKENS, int ALL_OUTPUTS, int WARP_TOKENS, int WARP_OUTPUTS, int ALL_STAGES, int ALL_GROUPS = 1>
struct Tile {
    static constexpr int TOKENS = ALL_TOKENS, OUTPUTS = ALL_OUTPUTS, GROUPS = ALL_GROUPS;
    // Warps along the outputs, and warps of a group.
    static constexpr int ACROSS = OUTPUTS / WARP_OUTPUTS, WARPS = TOKENS / WARP_TOKENS * ACROSS;
    // mma's tiles within a warp's tile.
    static constexpr int LEFTS = WARP_TOKENS / 16, RIGHTS = WARP_OUTPUTS / 8;
    static constexpr int LEFT_BYTES = TOKENS * STEP;
    // A warp with so few tiles is kept busy only by working on several blocks of columns at once.
    static constexpr bool FEW = LEFTS * RIGHTS < 4;
    // Steps between two barriers, and steps that have a place in shared memory.
    static constexpr int UNIT = FEW ? 2 : 1, STAGES = UNIT * ALL_STAGES;
    static_assert(WARPS * GROUPS * WARP == GEMM_THREADS, "a warp for each");

    using Sums = float[LEFTS][RIGHTS][4];
    using Dots = int[LEFTS][RIGHTS][4];

    BN_DEVICE int group() { return warp() / WARPS; }
    // First token and output of this warp within the tile.
    BN_DEVICE int token() { return warp() % WARPS / ACROSS * WARP_TOKENS; }
    BN_DEVICE int output() { return warp() % ACROSS * WARP_OUTPUTS; }
    // Token and output, within the tile, of element i of mma's result for left tile m and right tile n.
    BN_DEVICE int token_of(int m, int i) { return token() + 16 * m + i / 2 * 8 + lane() / 4; }
    BN_DEVICE int output_of(int n, int i) { return output() + 8 * n + lane() % 4 * 2 + i % 2; }
};

// Tiles of the products with scales in blocks. Their sums have an order along the columns, so warps cannot share them.
// For few tokens and outputs, small tiles occupy more multiprocessors.
using LargeTile = Tile<64, 128, 32, 32, 3>;
using SmallTile = Tile<32, 32, 16, 8, 3>;

// Calls `compute(step, place)` for each step in order, once the copies that `weights(step, place)` and `inputs(step,
// place)` started have arrived. The first weights are requested before the kernel's inputs are ready. Called by all
// threads.
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
        // Now all threads see the steps, and none still reads the previous ones, which the next steps overwrite.
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

// Loads mma's right operand from a plane of BITS bits: 32 columns of outputs `row` to `row + 7`.
template <class Format, int BITS>
BN_DEVICE void load_bits(const unsigned char *tile, int row, int slice, uint32_t (&b)[2]) {
    row += lane() / 4;
    int q = lane() % 4, first = slice * BITS; // in words
    auto word = [&](int w) { return word_at<BITS>(tile, row, (first + w) / 4, (first + w) % 4); };
    if constexpr (BITS == 8) {
        b[0] = word(q), b[1] = word(4 + q);
    } else if constexpr (BITS == 4) {
        uint32_t words[4] = {word(q)};
        b[0] = plane_word<Format, 4>(words, 0), b[1] = plane_word<Format, 4>(words, 4);
    } else if constexpr (BITS == 2) {
        uint32_t words[2] = {word(0), word(1)};
        b[0] = plane_word<Format, 2>(words, q), b[1] = plane_word<Format, 2>(words, 4 + q);
    } else {
        uint32_t words[1] = {word(0)};
        b[0] = plane_word<Format, 1>(words, q), b[1] = plane_word<Format, 1>(words, 4 + q);
    }
}

// Bytes of a step's codes of a tile's outputs: the low plane, then the high one.
template <class Format, class Tile>
constexpr int CODES_BYTES = Tile::OUTPUTS * (Format::BITS + Format::HIGH) * 16;

template <class Format, class Tile>
struct StagedCodes {
    using Low = Staged<GEMM_THREADS, Tile::OUTPUTS, Format::BITS>;
    using High = Staged<GEMM_THREADS, Tile::OUTPUTS, Format::HIGH != 0 ? Format::HIGH : 1>;
    Low low;
    High high; // only for types with high bits

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

// Loads the right operands of all of a warp's outputs.
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
            load_bits<Format, Format::BITS>(tile, row, slice, b[n]);
            if constexpr (Format::HIGH != 0) {
                load_bits<Format, Format::HIGH>(tile + Tile::OUTPUTS * Format::BITS * 16, row, slice, high);
            }
            BN_UNROLL
            for (int i = 0; i < 2; i++) b[n][i] = join<Format>(b[n][i], high[i]);
        }
    }
}

// Loads the right operands of all blocks of a step. For a warp of 8 outputs, one load has the bytes of two blocks.
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

// Prefetches a small tile's rows of weights, once for all tokens. Large tiles have enough loads in flight.
template <class Format, class Tile>
BN_DEVICE void prefetch_tile(const Blocks &p, const Planes<Format> &planes, int output0) {
    if (Tile::FEW && blockIdx.x == 0) prefetch_blocks(p, planes, output0, Tile::OUTPUTS);
}

// Calls `what(token, output, m, n, i)` for each element of this thread's tiles that exists in the product.
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
