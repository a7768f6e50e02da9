// Products of F16 and BF16 weights with rows of f32, any number of them, on tensor cores. F32 weights: gemv.cu, gemm.cu.
//
// Weights are multiplied as they are. An activation is the sum of two parts in the weights' type, x = high + low with
// high = round(x) and low = round(x - high), so a product is two: one mma with the high parts, and one with the low ones.
// Of bf16 that is x to 2^-17 of it, in the range of f32. Halves have no such range, so activations are first multiplied by a
// power of two that falls with what comes: what is left out of x then is 2^-23 of it, or 2^-36 of the largest so far in
// its segment. (F16 in TF32 needs no power, but twice the mma and registers.) What is no number, or in bf16
// beyond its largest, makes NaN or infinity of all its token's outputs.
//
// Columns of a row are taken by 32 (a chunk), in a chain of four mma. Chunks are cut into eight segments, by their number
// alone; each is summed for itself, and the eight in their order. A warp of a GEMV has one segment, one of a GEMM has them
// all, one after the other: the same sums in the same order, so a row has the same bits in both. They are not the CPU's
// bits: an mma adds in an order of its own. Segments also keep chains short, as tensor cores may cut sums off where others
// round. mma's 16 rows are tokens and its 8 columns are outputs: so a lane's 16 bytes of a row of weights are the registers
// of two mma as they lie. (The other way round, each two mma took eight moves.)
//
// GEMV: a block has 16, 32 or 64 rows of weights, and its warps share their columns, so each activation is read and split
// once for each block, and only the sums of the eight warps meet in shared memory. Floor: the weights' bytes over the
// memory's bandwidth; 2048 x 2048 are 8.4 MB, 1.7 us at an H200's 4.8 TB/s, in 128 blocks. That bandwidth wants some 30 KB
// under way in each SM (0.8 us, assumed): a warp asks for 8 KB of weights before it uses them, a block for 64 KB. For 1 KB
// of weights a warp has some 75 instructions of bf16 and 120 of f16 with up to 4 rows (sm_90, counted in the code); an SM
// that reads 21 bytes a clock could issue 195. Activations come from the L2, 4 bytes for each row of x and column: with 8
// rows half as many bytes as weights, with 64 twice as many, which then take longer than the memory does.
//
// GEMM: two mma for each 16 x 8 x 16 multiply-adds. mma.sync reaches about 60 % of a Hopper's peak, so at most 30 % of 990
// TFLOPS are left: 2048 tokens through 2048 x 2048 are 17.2 GFLOP, 58 us. The L2 is as near, and maybe what limits: 768 bytes
// a column and tile of 128 x 128, 403 MB, 73 us at 5.5 TB/s (assumed).
#include "products.cuh"

namespace dense {

constexpr int THREADS = 256;
constexpr int SEGMENTS = THREADS / WARP;
// Columns of a chunk. Four lanes have eight neighboring ones each: of a row of weights 16 bytes, whose first two pairs are
// two of an mma's columns, and the others two of the next one's. Both operands have them in this order.
constexpr int CHUNK = 32, EACH = 8;
// Tokens and outputs of an mma. A lane has tokens g and g + 8, with g its number / 4.
constexpr int TILE_TOKENS = 16, TILE_ROWS = 8;

// The chunk behind the segment that has `chunk`.
BN_DEVICE int segment_end(int chunks, int chunk) {
    BN_UNROLL_BY(1)
    for (int s = 1; s < SEGMENTS; s++) {
        if (chunks * s / SEGMENTS > chunk) return chunks * s / SEGMENTS;
    }
    return chunks;
}

// A lane's activations of a chunk: of two tokens, eight columns.
struct Activations {
    float x[2][EACH];
};

// Their parts as mma's left operand, for the first two pairs of each eight, and for the others.
struct Parts {
    Words4 high[2], low[2];
};

// Eight columns of a token, which `from` points to, and where BOTH of the one 8 rows behind it; of `left` tokens that there
// are: of others anything does, as each has its own sums.
template <bool BOTH>
BN_DEVICE void load_activations(const float *from, int cols, int left, Activations &to) {
    BN_UNROLL
    for (int which = 0; which < (BOTH ? 2 : 1); which++) {
        if (left <= 8 * which) continue;
        BN_UNROLL
        for (int half = 0; half < 2; half++) {
            Floats4 four = reinterpret_cast<const Floats4 *>(from + static_cast<int64_t>(8 * which) * cols)[half];
            BN_UNROLL
            for (int i = 0; i < 4; i++) to.x[which][4 * half + i] = four.value[i];
        }
    }
}

template <class Element, bool BOTH>
BN_DEVICE Parts split(const Activations &a) {
    Parts parts;
    BN_UNROLL
    for (int pair = 0; pair < 4; pair++) {
        BN_UNROLL
        for (int which = 0; which < 2; which++) {
            uint32_t &high = parts.high[pair / 2].word[pair % 2 * 2 + which];
            uint32_t &low = parts.low[pair / 2].word[pair % 2 * 2 + which];
            if (!BOTH && which == 1) {
                high = low = any_word();
                continue;
            }
            float first = a.x[which][2 * pair], second = a.x[which][2 * pair + 1];
            high = Element::pack(first, second);
            // What is taken off is exact. Infinity less itself is NaN, and stays one.
            low = Element::pack(add_rn(first, -Element::value(static_cast<uint16_t>(high & 0xffff))),
                add_rn(second, -Element::value(static_cast<uint16_t>(high >> 16))));
        }
    }
    return parts;
}

// The power of two that has this exponent in its bits.
BN_DEVICE float power_of(int exponent) {
    return __uint_as_float(static_cast<uint32_t>(exponent) << 23);
}

// What a token's activations are multiplied with, as the exponent in a float's bits: so that they are MOST at most, and
// where that makes it smaller, the largest is 2^ROOM or more. Four tokens share a word. It begins as 2^100.
constexpr uint32_t FIRST_POWERS = 227 * 0x01010101u;
constexpr int ROOM = 11;
constexpr float MOST = 32768.0f;

BN_DEVICE int power_in(uint32_t powers, int which) {
    return static_cast<int>(powers >> (8 * which) & 0xff);
}

// What brings sums of such activations back.
BN_DEVICE float scale_in(uint32_t powers, int which) {
    return power_of(254 - power_in(powers, which));
}

// Multiplies eight columns of a token, of which four neighboring lanes have a chunk. Whether a power fell in the warp: then
// sums of the columns before are to be multiplied with `factor`, which is 1 before and where it did not.
BN_DEVICE bool fit(uint32_t &powers, int which, float (&x)[EACH], float &factor) {
    int before = power_in(powers, which);
    float own[EACH], power = power_of(before), most = 0.0f;
    BN_UNROLL
    for (int i = 0; i < EACH; i++) {
        own[i] = mul_rn(x[i], power);
        most = fmaxf(most, fabsf(own[i]));
    }
    bool fell = warp_ballot(most > MOST) != 0;
    if (fell) {
        most = 0.0f;
        BN_UNROLL
        for (int i = 0; i < EACH; i++) most = fmaxf(most, fabsf(x[i]));
        BN_UNROLL
        for (int mask = 1; mask < 4; mask *= 2) most = fmaxf(most, shfl_xor(most, mask));
        if (mul_rn(most, power) > MOST) {
            int after = 127 + 127 + ROOM - static_cast<int>(__float_as_uint(most) >> 23);
            factor = power_of(max(127 + after - before, 0));
            power = power_of(after);
            powers += static_cast<uint32_t>(after - before) << (8 * which);
        }
        BN_UNROLL
        for (int i = 0; i < EACH; i++) own[i] = mul_rn(x[i], power);
    }
    BN_UNROLL
    for (int i = 0; i < EACH; i++) x[i] = own[i];
    return fell;
}

// Multiplies sums of a lane's two tokens.
template <int R>
BN_DEVICE void scale(float (&sums)[R][4], float first, float second) {
    BN_UNROLL
    for (int r = 0; r < R; r++) {
        BN_UNROLL
        for (int i = 0; i < 4; i++) sums[r][i] = mul_rn(sums[r][i], i < 2 ? first : second);
    }
}

// Adds a chunk of 16 tokens and R x 8 rows of weights.
template <class Element, int R>
BN_DEVICE void add_chunk(float (&sums)[R][4], const Parts &parts, const Words4 (&weights)[R]) {
    BN_UNROLL
    for (int half = 0; half < 2; half++) {
        BN_UNROLL
        for (int part = 0; part < 2; part++) {
            BN_UNROLL
            for (int r = 0; r < R; r++) {
                uint32_t right[2] = {weights[r].word[2 * half], weights[r].word[2 * half + 1]};
                Element::mma(sums[r], part == 0 ? parts.high[half].word : parts.low[half].word, right);
            }
        }
    }
}

// Tiles of tokens that a GEMV for so many has.
template <int TOKENS>
constexpr int TILES = (TOKENS + TILE_TOKENS - 1) / TILE_TOKENS;

// This warp's segment of R x 8 rows of weights.
template <class Element, int R, int TOKENS, int AHEAD>
BN_DEVICE void sum_segment(const Dense &p, int row0, int token0, float (&sums)[TILES<TOKENS>][R][4],
    uint32_t (&powers)[(TILES<TOKENS> + 1) / 2]) {
    constexpr bool BOTH = TOKENS > 8;
    int column = EACH * (lane() % 4), chunks = (p.cols + CHUNK - 1) / CHUNK;
    int first = chunks * warp() / SEGMENTS, end = chunks * (warp() + 1) / SEGMENTS;
    // Chunks from there, those of them that have all columns, and whether this lane has some in the last.
    int count = end - first, whole = min(end, p.cols / CHUNK) - first;
    bool ragged = CHUNK * end > p.cols && CHUNK * (end - 1) + column < p.cols;
    const uint8_t *matrix = p.weights + 2 * (static_cast<int64_t>(row0) * p.cols + CHUNK * first + column);
    int rows[R]; // bytes from there
    BN_UNROLL
    for (int r = 0; r < R; r++) rows[r] = 2 * p.cols * row_or_last(TILE_ROWS * r + lane() / 4, p.rows - row0);
    auto load = [&](int chunk, Words4 (&weights)[R]) {
        if (chunk >= count) return;
        BN_UNROLL
        for (int r = 0; r < R; r++) {
            const uint8_t *from = matrix + rows[r] + 2 * CHUNK * chunk;
            weights[r] = chunk < whole || ragged ? *reinterpret_cast<const Words4 *>(from) : Words4{};
        }
    };
    Words4 weights[AHEAD][R] = {};
    BN_UNROLL
    for (int i = 0; i < AHEAD; i++) load(i, weights[i]);
    // Activations are loaded while those before them are multiplied.
    int left = p.tokens - token0 - lane() / 4, tiles = 1;
    if (TILES<TOKENS> > 1) tiles = min(TILES<TOKENS>, (p.tokens - token0 + TILE_TOKENS - 1) / TILE_TOKENS);
    const float *x = p.x + static_cast<int64_t>(token0 + lane() / 4) * p.cols + CHUNK * first + column;
    Activations slots[2] = {};
    auto load_next = [&](int chunk, int tile, Activations &to) {
        const float *from = x + (static_cast<int64_t>(TILE_TOKENS * tile) * p.cols + CHUNK * chunk);
        if (chunk < whole || (chunk < count && ragged)) {
            load_activations<BOTH>(from, p.cols, left - TILE_TOKENS * tile, to);
        } else if (chunk < count) {
            to = {};
        }
    };
    load_next(0, 0, slots[0]);
    BN_UNROLL_BY(1)
    for (; count > 0; count -= AHEAD, whole -= AHEAD, matrix += 2 * AHEAD * CHUNK, x += AHEAD * CHUNK) {
        BN_UNROLL
        for (int i = 0; i < AHEAD; i++) {
            if (i >= count) break;
            BN_UNROLL
            for (int n = 0; n < TILES<TOKENS>; n++) {
                if (n >= tiles) break;
                // Of several tiles the next activations are loaded behind the split: registers are few, and products many.
                constexpr bool EARLY = TILES<TOKENS> == 1;
                Activations &own = slots[EARLY ? i % 2 : 0], &next = slots[EARLY ? 1 - i % 2 : 0];
                auto go_on = [&] { n + 1 == tiles ? load_next(i + 1, 0, next) : load_next(i, n + 1, next); };
                if constexpr (EARLY) go_on();
                if constexpr (Element::SCALED) {
                    float factors[2] = {1.0f, 1.0f};
                    bool fell = fit(powers[n / 2], n % 2 * 2, own.x[0], factors[0]);
                    if constexpr (BOTH) fell |= fit(powers[n / 2], n % 2 * 2 + 1, own.x[1], factors[1]);
                    if (fell) scale(sums[n], factors[0], factors[1]);
                }
                Parts parts = split<Element, BOTH>(own);
                if constexpr (!EARLY) go_on();
                add_chunk<Element>(sums[n], parts, weights[i]);
            }
            load(i + AHEAD, weights[i]);
        }
    }
}

// R x 8 rows of weights for each block, and up to TOKENS rows of x; a warp asks for AHEAD chunks of its weights before it
// uses one.
template <class Element, int R, int TOKENS, int AHEAD>
BN_DEVICE void gemv(const Dense &p) {
    constexpr int ROWS = TILE_ROWS * R, TOGETHER = TOKENS > 8 ? 16 : 8;
    // Eight more than there are, so that what a warp writes at a time lies in different banks.
    constexpr int STRIDE = ROWS + 8;
    BN_SHARED(memory);
    float *segments = reinterpret_cast<float *>(memory);
    int row0 = p.block * ROWS, token0 = static_cast<int>(blockIdx.y) * TOKENS;
    float sums[TILES<TOKENS>][R][4] = {};
    uint32_t powers[(TILES<TOKENS> + 1) / 2];
    BN_UNROLL
    for (uint32_t &four : powers) four = FIRST_POWERS;
    prefetch_rows(p.weights, 2 * static_cast<int64_t>(p.cols), row0, ROWS, p.rows);
    await_inputs();
    sum_segment<Element, R, TOKENS, AHEAD>(p, row0, token0, sums, powers);
    BN_UNROLL
    for (int n = 0; n < TILES<TOKENS>; n++) {
        int first = token0 + TILE_TOKENS * n;
        if (TILES<TOKENS> > 1 && first >= p.tokens) break;
        if constexpr (Element::SCALED) {
            scale(sums[n], scale_in(powers[n / 2], n % 2 * 2), scale_in(powers[n / 2], n % 2 * 2 + 1));
        }
        if (n > 0) sync_block(); // all have read the tile before this one
        BN_UNROLL
        for (int i = 0; i < 4 * R; i++) {
            int token = lane() / 4 + i % 4 / 2 * 8, row = TILE_ROWS * (i / 4) + 2 * (lane() % 4) + i % 2;
            if (token < TOGETHER) segments[(warp() * TOGETHER + token) * STRIDE + row] = sums[n][i / 4][i % 4];
        }
        sync_block();
        for (int i = static_cast<int>(threadIdx.x); i < TOGETHER * ROWS; i += THREADS) {
            int token = i / ROWS, row = i % ROWS;
            if (first + token >= p.tokens || row0 + row >= p.rows) continue;
            float sum = 0.0f;
            BN_UNROLL
            for (int s = 0; s < SEGMENTS; s++) sum = add_rn(sum, segments[(s * TOGETHER + token) * STRIDE + row]);
            write(p, first + token, row0 + row, sum);
        }
    }
}

// A GEMM's tile; warps stand four along its tokens and two along its outputs, with N x R of mma's results each.
constexpr int TOKENS = 128, OUTPUTS = 128, N = 2, R = 8;
constexpr int WARP_TOKENS = TILE_TOKENS * N, WARP_OUTPUTS = TILE_ROWS * R;
static_assert(TOKENS / WARP_TOKENS * (OUTPUTS / WARP_OUTPUTS) == THREADS / WARP, "a warp for each");
static_assert(TOKENS / TILE_TOKENS == THREADS / WARP, "each warp splits a tile's tokens");
// Chunks whose weights are used, or on their way to shared memory. Activations have two places; they go through registers.
constexpr int STAGES = 4;
constexpr int WEIGHTS_BYTES = 2 * OUTPUTS * CHUNK, PARTS_BYTES = 4 * TOKENS * CHUNK;
// Of tokens g and g + 8 of a tile: what the sums before are multiplied with, and what the segment's, if it ends here.
struct alignas(16) Scales {
    float factors[2], scales[2];
};
constexpr int ACTIVATIONS_BYTES = PARTS_BYTES + TOKENS / 2 * static_cast<int>(sizeof(Scales));
static_assert(STAGES * WEIGHTS_BYTES + 2 * ACTIVATIONS_BYTES == 67584, "what launches give");

using Sums = float[N][R][4];

// This thread's share of a chunk of activations, of the warp's tile.
struct Share {
    Activations activations;
    uint32_t powers;
};

BN_DEVICE void load_share(const Dense &p, int token0, int chunk, Share &share) {
    int token = token0 + TILE_TOKENS * warp() + lane() / 4, column = CHUNK * chunk + EACH * (lane() % 4);
    if (column < p.cols) {
        const float *from = p.x + (static_cast<int64_t>(token) * p.cols + column);
        load_activations<true>(from, p.cols, p.tokens - token, share.activations);
    } else {
        share.activations = {};
    }
}

// Splits it to the place of the chunk's activations: as mma's lanes have them, tile by tile, and behind all the scales.
template <class Element>
BN_DEVICE void store_share(unsigned char *to, Share &share) {
    if constexpr (Element::SCALED) {
        Scales own;
        BN_UNROLL
        for (int which = 0; which < 2; which++) {
            own.factors[which] = 1.0f;
            fit(share.powers, which, share.activations.x[which], own.factors[which]);
            own.scales[which] = scale_in(share.powers, which);
        }
        if (lane() % 4 == 0) reinterpret_cast<Scales *>(to + PARTS_BYTES)[threadIdx.x / 4] = own;
    }
    Parts parts = split<Element, true>(share.activations);
    Words4 *words = reinterpret_cast<Words4 *>(to) + 4 * WARP * warp() + lane();
    BN_UNROLL
    for (int half = 0; half < 2; half++) {
        words[WARP * half] = parts.high[half];
        words[WARP * (2 + half)] = parts.low[half];
    }
}

// Begins to copy a chunk of the tile's weights. Eight lanes that read together have two rows' chunks, all banks once.
BN_DEVICE void stage_weights(unsigned char *to, const Dense &p, int row0, int chunk) {
    BN_UNROLL
    for (int begin = 0; begin < OUTPUTS * 4; begin += THREADS) {
        int i = begin + static_cast<int>(threadIdx.x), column = CHUNK * chunk + EACH * (i % 4);
        int64_t row = row_or_last(row0 + i / 4, p.rows);
        if (column < p.cols) {
            copy_async16(to + 16 * i, p.weights + 2 * (row * p.cols + column));
        } else {
            reinterpret_cast<Words4 *>(to)[i] = Words4{};
        }
    }
}

// The first of this warp's tiles of tokens, and of rows.
BN_DEVICE int warp_tile() {
    return warp() / (OUTPUTS / WARP_OUTPUTS) * N;
}

BN_DEVICE int warp_row() {
    return warp() % (OUTPUTS / WARP_OUTPUTS) * WARP_OUTPUTS;
}

BN_DEVICE Scales scales_of(const unsigned char *activations, int n) {
    return reinterpret_cast<const Scales *>(activations + PARTS_BYTES)[8 * (warp_tile() + n) + lane() / 4];
}

// Adds a chunk to tile n of the warp's.
template <class Element>
BN_DEVICE void add_tile(Sums &sums, const unsigned char *activations, int n, const Words4 (&weights)[R]) {
    if constexpr (Element::SCALED) {
        Scales own = scales_of(activations, n);
        if (own.factors[0] != 1.0f || own.factors[1] != 1.0f) scale(sums[n], own.factors[0], own.factors[1]);
    }
    const Words4 *words = reinterpret_cast<const Words4 *>(activations) + 4 * WARP * (warp_tile() + n) + lane();
    Parts parts = {{words[0], words[WARP]}, {words[2 * WARP], words[3 * WARP]}};
    add_chunk<Element>(sums[n], parts, weights);
}

// Ends a segment.
template <class Element>
BN_DEVICE void add_segment(Sums &total, Sums &sums, const unsigned char *activations) {
    BN_UNROLL
    for (int n = 0; n < N; n++) {
        if constexpr (Element::SCALED) {
            Scales own = scales_of(activations, n);
            scale(sums[n], own.scales[0], own.scales[1]);
        }
        BN_UNROLL
        for (int i = 0; i < 4 * R; i++) {
            total[n][i / 4][i % 4] = add_rn(total[n][i / 4][i % 4], sums[n][i / 4][i % 4]);
            sums[n][i / 4][i % 4] = 0.0f;
        }
    }
}

BN_DEVICE void write_tile(const Dense &p, int row0, int token0, const Sums &total) {
    BN_UNROLL
    for (int n = 0; n < N; n++) {
        BN_UNROLL
        for (int i = 0; i < 4 * R; i++) {
            int t = token0 + TILE_TOKENS * (warp_tile() + n) + lane() / 4 + i % 4 / 2 * 8;
            int row = row0 + warp_row() + TILE_ROWS * (i / 4) + 2 * (lane() % 4) + i % 2;
            if (t < p.tokens && row < p.rows) write(p, t, row, total[n][i / 4][i % 4]);
        }
    }
}

template <class Element>
BN_DEVICE void gemm(const Dense &p) {
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * TOKENS, row0 = p.block * OUTPUTS;
    int chunks = (p.cols + CHUNK - 1) / CHUNK;
    auto weights_at = [&](int chunk) { return memory + chunk % STAGES * WEIGHTS_BYTES; };
    auto activations_at = [&](int chunk) {
        return memory + STAGES * WEIGHTS_BYTES + chunk % 2 * ACTIVATIONS_BYTES;
    };
    await_inputs();
    for (int chunk = 0; chunk < STAGES - 1; chunk++) {
        if (chunk < chunks) stage_weights(weights_at(chunk), p, row0, chunk);
        copy_async_commit();
    }
    Share share = {};
    share.powers = FIRST_POWERS;
    load_share(p, token0, 0, share);
    store_share<Element>(activations_at(0), share);
    load_share(p, token0, 1, share);
    Sums total = {}, sums = {};
    int end = segment_end(chunks, 0);
    BN_UNROLL_BY(1)
    for (int chunk = 0; chunk < chunks; chunk++) {
        copy_async_wait<STAGES - 2>();
        // All see the chunk, and none reads the one before it, whose places the next ones take.
        sync_block();
        if (chunk + STAGES - 1 < chunks) stage_weights(weights_at(chunk + STAGES - 1), p, row0, chunk + STAGES - 1);
        copy_async_commit();
        const unsigned char *activations = activations_at(chunk);
        const Words4 *from = reinterpret_cast<const Words4 *>(weights_at(chunk)) + 4 * warp_row() + lane();
        Words4 weights[R];
        BN_UNROLL
        for (int r = 0; r < R; r++) weights[r] = from[WARP * r];
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            if (token0 + TILE_TOKENS * (warp_tile() + n) < p.tokens) add_tile<Element>(sums, activations, n, weights);
            // The next chunk is split while products of this one are under way.
            if (n > 0 || chunk + 1 == chunks) continue;
            if (chunk + 1 == end) share.powers = FIRST_POWERS;
            store_share<Element>(activations_at(chunk + 1), share);
            load_share(p, token0, chunk + 2, share);
        }
        if (chunk + 1 == end) {
            add_segment<Element>(total, sums, activations);
            end = segment_end(chunks, end);
        }
    }
    write_tile(p, row0, token0, total);
}

} // namespace dense

// `bn_f16_gemv_T`, `bn_bf16_gemv_T`: rows of f32, at most T for each block, times weights of that type (`Dense`), whose rows
// are multiples of 8 columns. Grid: ceil(rows / (8 R)) of each matrix, ceil(tokens / T); 256 threads; shared memory:
// 256 (8 R + 8) bytes, twice as many where T is above 8. R is 2 for 4 tokens, 4 for 8 and 32, 8 for 64.
#define BN_DENSE_GEMV(name, Element, T, R, AHEAD, BLOCKS)                                                              \
    BN_DENSE_KERNEL(BN_KERNEL_FOR(dense::THREADS, BLOCKS, name##_gemv_##T), blockIdx.x, 8 * R,                         \
        dense::gemv<Element, R, T, AHEAD>)
// `bn_f16_gemm`, `bn_bf16_gemm`: the same. Grid: ceil(tokens / 128), ceil(rows / 128) of each matrix; 256 threads; shared
// memory: 67584 bytes.
#define BN_DENSE_KERNELS(name, Element)                                                                                \
    BN_DENSE_GEMV(name, Element, 4, 2, 8, 2)                                                                           \
    BN_DENSE_GEMV(name, Element, 8, 4, 4, 2)                                                                           \
    BN_DENSE_GEMV(name, Element, 32, 4, 4, 1)                                                                          \
    BN_DENSE_GEMV(name, Element, 64, 8, 2, 1)                                                                          \
    BN_DENSE_KERNEL(BN_KERNEL_FOR(dense::THREADS, 1, name##_gemm), blockIdx.y, dense::OUTPUTS, dense::gemm<Element>)
BN_DENSE_KERNELS(f16, F16)
BN_DENSE_KERNELS(bf16, BF16)
