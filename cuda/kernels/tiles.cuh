// Rows of matrices in shared memory: staged by asynchronous copies of 16 bytes, read in fragments without bank conflicts.
#pragma once

#include "weights.cuh"

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
