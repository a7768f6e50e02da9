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
    int first, count;  // the tile's first row, and how many the matrix has; the last stands for those behind it
};

// Begins to copy pieces `from` to `from + PIECES` of ROWS rows, as far as rows have them. By THREADS threads.
template <unsigned THREADS, unsigned ROWS, unsigned PIECES, int TOGETHER = 1>
BN_DEVICE void stage(unsigned char *to, const Source &source, int from) {
    BN_UNROLL
    for (unsigned begin = 0; begin < ROWS * PIECES; begin += THREADS) {
        unsigned i = begin + threadIdx.x, row = i / PIECES, piece = i % PIECES;
        int64_t at = 16 * static_cast<int64_t>(from + static_cast<int>(piece));
        if ((ROWS * PIECES % THREADS != 0 && row >= ROWS) || at >= source.row_bytes) continue;
        int64_t own = min(source.first + static_cast<int>(row), source.count - 1);
        copy_async16(to + place<PIECES, TOGETHER>(row, piece), source.rows + own * source.row_bytes + at);
    }
}

// Word `word` of piece `piece`.
template <int PIECES>
BN_DEVICE uint32_t word_at(const unsigned char *tile, unsigned row, unsigned piece, unsigned word) {
    return reinterpret_cast<const uint32_t *>(tile + place<PIECES>(row, piece))[word];
}

// Columns of a step of the integer products, and what a row of activations has of them.
constexpr int STEP = 128;
constexpr int STEP_PIECES = STEP / 16;

// mma's left operand: rows `row` to `row + 15` and columns 32 `slice` to 32 `slice` + 31 of a tile of activations.
BN_DEVICE void load_left(const unsigned char *tile, unsigned row, unsigned slice, uint32_t (&a)[4]) {
    unsigned own = static_cast<unsigned>(lane());
    BN_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        a[i] = word_at<STEP_PIECES>(tile, row + own / 4 + i % 2 * 8, 2 * slice + i / 2, own % 4);
    }
}

constexpr int GEMM_THREADS = 256;
// Of two blocks, one computes while the other waits.
#define BN_GEMM(name) BN_KERNEL_FOR(GEMM_THREADS, 2, name)
// A block's tile of the integer products, and a warp's.
constexpr int TILE_TOKENS = 64, TILE_OUTPUTS = 128;
constexpr int WARP_TOKENS = 32, WARP_OUTPUTS = 32;
// mma's tiles within a warp's.
constexpr int LEFTS = WARP_TOKENS / 16, RIGHTS = WARP_OUTPUTS / 8;
static_assert(TILE_TOKENS / WARP_TOKENS * (TILE_OUTPUTS / WARP_OUTPUTS) * WARP == GEMM_THREADS, "a warp for each");

constexpr int LEFT_BYTES = TILE_TOKENS * STEP;

// The tile's place of this warp, in tokens and outputs.
BN_DEVICE int warp_token() {
    return warp() / (TILE_OUTPUTS / WARP_OUTPUTS) * WARP_TOKENS;
}

BN_DEVICE int warp_output() {
    return warp() % (TILE_OUTPUTS / WARP_OUTPUTS) * WARP_OUTPUTS;
}

// Token and output within the tile of element i of mma's result for left tile m and right tile n.
BN_DEVICE int token_of(int m, int i) {
    return warp_token() + 16 * m + i / 2 * 8 + lane() / 4;
}

BN_DEVICE int output_of(int n, int i) {
    return warp_output() + 8 * n + lane() % 4 * 2 + i % 2;
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
template <class Format>
constexpr int CODES_BYTES = TILE_OUTPUTS * (Format::BITS + Format::HIGH) * 16;

template <class Format>
BN_DEVICE void stage_codes(unsigned char *to, const Blocks &p, const Planes<Format> &planes, int output0, int step) {
    Source low{p.codes, planes.low_row, output0, p.rows};
    stage<GEMM_THREADS, TILE_OUTPUTS, Format::BITS>(to, low, step * Format::BITS);
    if constexpr (Format::HIGH != 0) {
        Source high{p.codes + planes.high, planes.high_row, output0, p.rows};
        to += TILE_OUTPUTS * Format::BITS * 16;
        stage<GEMM_THREADS, TILE_OUTPUTS, Format::HIGH>(to, high, step * Format::HIGH);
    }
}

template <class Format>
BN_DEVICE void load_right(const unsigned char *tile, int row, int slice, uint32_t (&b)[2]) {
    uint32_t high[2] = {};
    load_bits<Format::BITS>(tile, row, slice, b);
    if constexpr (Format::HIGH != 0) {
        load_bits<Format::HIGH>(tile + TILE_OUTPUTS * Format::BITS * 16, row, slice, high);
    }
    BN_UNROLL
    for (int i = 0; i < 2; i++) b[i] = join<Format>(b[i], high[i]);
}

using Sums = float[LEFTS][RIGHTS][4];

// Calls `what(token, output, m, n, i)` for each element of this thread's tiles that the product has.
template <class Product, class What>
BN_DEVICE void each_output(const Product &p, int token0, int output0, const What &what) {
    BN_UNROLL
    for (int m = 0; m < LEFTS; m++) {
        BN_UNROLL
        for (int n = 0; n < RIGHTS; n++) {
            BN_UNROLL
            for (int i = 0; i < 4; i++) {
                int t = token0 + token_of(m, i), row = output0 + output_of(n, i);
                if (t < p.tokens && row < p.rows) what(t, row, m, n, i);
            }
        }
    }
}

BN_DEVICE void write_sums(const Blocks &p, int token0, int output0, const Sums &sums) {
    each_output(p, token0, output0, [&](int t, int row, int m, int n, int i) {
        write(p, t, row, sums[m][n][i]);
    });
}
