// Products of F16 and BF16 weights with any number of rows of f32, on tensor cores. F32 weights: gemv.cu, gemm.cu.
//
// Weights are multiplied as they are. An activation is split into two parts of the weights' type, x = high + low with
// high = round(x) and low = round(x - high), so a product takes one mma with the high parts and one with the low ones.
// For bf16 this represents x to 2^-17 of itself, over the range of f32. The range of halves is smaller, so activations
// are first multiplied by a power of two, which decreases when larger ones follow: the rest that is lost is then 2^-23
// of x, or 2^-36 of the largest so far in its segment. (F16 in TF32 needs no power, but twice the mma and registers.) A
// NaN or infinity, or for bf16 a value beyond its largest, makes all outputs of its token NaN or infinity.
//
// Columns of a row are taken 32 at a time (a chunk), in a chain of four mma. Chunks are divided into eight segments by
// their number alone. Each segment is summed by itself, and the eight sums are added in order. A warp of a GEMV has one
// segment. A block of a GEMM has all of them, one after the other, or some, and then another kernel adds them. The sums
// and their order are the same, so a row has the same bits in all of these. They are not the CPU's bits, since an mma
// adds in an order of its own. Segments also keep chains short, as tensor cores may truncate sums where others round.
// The 16 rows of an mma are tokens and its 8 columns are outputs, so the 16 bytes of weights that a lane loads are the
// registers of two mma as they are. (The other way round, every two mma took eight moves.)
//
// GEMV, up to 8 tokens: a block has 16 or 32 rows of weights and its warps share the columns, so each activation is
// read and split once per block, and only the sums of the eight warps meet in shared memory. Lower bound: the bytes of
// the weights over the memory's bandwidth. 2048 x 2048 are 8.4 MB, 2.8 us at an H100's 3.0 TB/s, in 128 blocks. This
// bandwidth needs some 30 KB in flight in each SM. A warp requests 8 KB of weights, a block 64 KB, before it waits for
// the kernel that makes its activations. Per 1 KB of weights a warp has some 75 instructions for bf16 and 120 for f16
// with up to 4 rows (sm_90, counted in the code); an SM that reads 14 bytes a clock could issue 290.
//
// GEMM: a kernel splits all activations once, into mma's operands of 4 bytes each. Then blocks of 32, 64 or 128 tokens
// and 128 rows of weights stage both by asynchronous copies. Each 16 x 8 x 16 multiply-adds take two mma. mma.sync
// reaches about 60 % of a Hopper's peak, so a chunk of 64 tokens (256 mma) takes an SM 410 clocks, while its share of
// the memory's bandwidth takes 600 for the 8 KB of weights: memory is the limit. For 128 tokens the limit is mma with
// 820 clocks, or the L2, which delivers 24 KB for them. If there are few tiles (2048 rows make 16), 2, 4 or 8 blocks
// share the columns of the same rows and leave the sums of their segments in memory: 4 MB for 64 tokens and 2048 rows,
// written to and read from the L2.
#include "products.cuh"

namespace dense {

constexpr int THREADS = 256;
constexpr int SEGMENTS = THREADS / WARP;
// Columns of a chunk, and of a lane. Each of four lanes has eight adjacent columns, 16 bytes of a row of weights. Their
// first two pairs are two columns of an mma, the other two pairs two columns of the next one. Both operands use this
// order.
constexpr int CHUNK = 32, EACH = 8;
// Tokens and outputs of an mma. A lane has tokens g and g + 8, where g = lane() / 4.
constexpr int TILE_TOKENS = 16, TILE_ROWS = 8;

// A lane's activations of a chunk: eight columns of two tokens.
struct Activations {
    float x[2][EACH];
};

// The activations' parts as left operands of mma: first for pairs 0 and 1 of the eight columns, then for pairs 2 and 3.
struct Parts {
    Words4 high[2], low[2];
};

// Loads eight columns of the token at `from` and, with BOTH, of the token 8 rows further on. There are `left` tokens.
// The others may hold anything, since each token has its own sums.
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
            // The subtraction is exact. Infinity minus itself is NaN and stays NaN.
            low = Element::pack(add_rn(first, -Element::value(static_cast<uint16_t>(high & 0xffff))),
                add_rn(second, -Element::value(static_cast<uint16_t>(high >> 16))));
        }
    }
    return parts;
}

// Returns the power of two with this exponent field.
BN_DEVICE float power_of(int exponent) {
    return __uint_as_float(static_cast<uint32_t>(exponent) << 23);
}

// The powers of two that scale tokens' activations, as exponent fields of floats, four tokens to a word. Scaled
// activations are at most MOST; when a power is lowered, the largest one becomes at least 2^ROOM. Powers start at
// 2^100.
constexpr uint32_t FIRST_POWERS = 227 * 0x01010101u;
constexpr int ROOM = 11;
constexpr float MOST = 32768.0f;

BN_DEVICE int power_in(uint32_t powers, int which) {
    return static_cast<int>(powers >> (8 * which) & 0xff);
}

// Undoes the scaling for sums of such activations.
BN_DEVICE float scale_in(uint32_t powers, int which) {
    return power_of(254 - power_in(powers, which));
}

// Scales eight columns of a token; four adjacent lanes hold a chunk. Returns whether a power was lowered in the warp.
// Then earlier sums must be multiplied by `factor`, which stays 1 for tokens whose power did not change.
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

// Scales the sums of a lane's two tokens.
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

// Sums this warp's segment of R x 8 rows of weights and 8 tokens.
template <class Element, int R, int AHEAD>
BN_DEVICE void sum_segment(const Dense &p, int row0, int token0, float (&sums)[R][4], uint32_t &powers) {
    int column = EACH * (lane() % 4), chunks = (p.cols + CHUNK - 1) / CHUNK;
    int first = chunks * warp() / SEGMENTS, end = chunks * (warp() + 1) / SEGMENTS;
    // Chunks from `first` on, complete chunks, and whether this lane has columns in an incomplete last chunk.
    int count = end - first, whole = min(end, p.cols / CHUNK) - first;
    bool ragged = CHUNK * end > p.cols && CHUNK * (end - 1) + column < p.cols;
    const uint8_t *matrix = p.weights + 2 * (static_cast<int64_t>(row0) * p.cols + CHUNK * first + column);
    int rows[R]; // bytes from `matrix`
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
    // Weights depend on no other kernel, so they are loaded while earlier kernels still run.
    await_inputs();
    // Activations are loaded one chunk ahead.
    int left = p.tokens - token0 - lane() / 4;
    const float *x = p.x + static_cast<int64_t>(token0 + lane() / 4) * p.cols + CHUNK * first + column;
    Activations slots[2] = {};
    auto load_next = [&](int chunk, Activations &to) {
        if (chunk < whole || (chunk < count && ragged)) {
            load_activations<false>(x + CHUNK * chunk, p.cols, left, to);
        } else if (chunk < count) {
            to = {};
        }
    };
    load_next(0, slots[0]);
    BN_UNROLL_BY(1)
    for (; count > 0; count -= AHEAD, whole -= AHEAD, matrix += 2 * AHEAD * CHUNK, x += AHEAD * CHUNK) {
        BN_UNROLL
        for (int i = 0; i < AHEAD; i++) {
            if (i >= count) break;
            load_next(i + 1, slots[1 - i % 2]);
            Activations &own = slots[i % 2];
            if constexpr (Element::SCALED) {
                float factor = 1.0f;
                if (fit(powers, 0, own.x[0], factor)) scale(sums, factor, 1.0f);
            }
            add_chunk<Element>(sums, split<Element, false>(own), weights[i]);
            load(i + AHEAD, weights[i]);
        }
    }
}

// A block has R x 8 rows of weights and up to TOKENS (at most 8) rows of x. A warp requests AHEAD chunks of weights
// before it uses one.
template <class Element, int R, int TOKENS, int AHEAD>
BN_DEVICE void gemv(const Dense &p) {
    constexpr int ROWS = TILE_ROWS * R, TOGETHER = 8;
    // Padded by eight, so that concurrent writes of a warp go to different banks.
    constexpr int STRIDE = ROWS + 8;
    BN_SHARED(memory);
    float *segments = reinterpret_cast<float *>(memory);
    int row0 = p.block * ROWS, token0 = static_cast<int>(blockIdx.y) * TOKENS;
    float sums[R][4] = {};
    uint32_t powers = FIRST_POWERS;
    // With fewer columns, all of them are loaded at once.
    if (p.cols > SEGMENTS * AHEAD * CHUNK) prefetch_rows(p.weights, 2 * static_cast<int64_t>(p.cols), row0, ROWS, p.rows);
    sum_segment<Element, R, AHEAD>(p, row0, token0, sums, powers);
    if constexpr (Element::SCALED) scale(sums, scale_in(powers, 0), 1.0f);
    BN_UNROLL
    for (int i = 0; i < 2 * R; i++) {
        int token = lane() / 4, row = TILE_ROWS * (i / 2) + 2 * (lane() % 4) + i % 2;
        segments[(warp() * TOGETHER + token) * STRIDE + row] = sums[i / 2][i % 2];
    }
    sync_block();
    for (int i = static_cast<int>(threadIdx.x); i < TOGETHER * ROWS; i += THREADS) {
        int token = i / ROWS, row = i % ROWS;
        if (token >= TOKENS || token0 + token >= p.tokens || row0 + row >= p.rows) continue;
        float sum = 0.0f;
        BN_UNROLL
        for (int s = 0; s < SEGMENTS; s++) sum = add_rn(sum, segments[(s * TOGETHER + token) * STRIDE + row]);
        write(p, token0 + token, row0 + row, sum);
    }
}

// Layout of the split activations that a kernel before the GEMM makes: for each tile of 16 tokens, and in it for each
// chunk, the left operands of mma in the order of the lanes; for f16 followed by eight `Scales`.
struct alignas(16) Scales {
    // For tokens g and g + 8: factors for the sums so far, and scales for the segment's sums if it ends with this
    // chunk.
    float factors[2], scales[2];
};
template <class Element>
constexpr int PARTS_BYTES = 4 * TILE_TOKENS * CHUNK + (Element::SCALED ? 8 * static_cast<int>(sizeof(Scales)) : 0);

// A warp splits a chunk of a tile.
template <class Element>
BN_DEVICE void store_parts(unsigned char *to, Activations &own, uint32_t &powers) {
    if constexpr (Element::SCALED) {
        Scales scales;
        BN_UNROLL
        for (int which = 0; which < 2; which++) {
            scales.factors[which] = 1.0f;
            fit(powers, which, own.x[which], scales.factors[which]);
            scales.scales[which] = scale_in(powers, which);
        }
        if (lane() % 4 == 0) reinterpret_cast<Scales *>(to + 4 * TILE_TOKENS * CHUNK)[lane() / 4] = scales;
    }
    Parts parts = split<Element, true>(own);
    Words4 *words = reinterpret_cast<Words4 *>(to) + lane();
    BN_UNROLL
    for (int half = 0; half < 2; half++) {
        words[WARP * half] = parts.high[half];
        words[WARP * (2 + half)] = parts.low[half];
    }
}

// A warp has one segment of one tile and requests AHEAD chunks before it splits one.
template <class Element>
BN_DEVICE void split_rows(unsigned char *parts, const float *x, int tokens, int cols) {
    constexpr int AHEAD = 8;
    int tile = static_cast<int>(blockIdx.x), segment = static_cast<int>(blockIdx.y), chunks = (cols + CHUNK - 1) / CHUNK;
    int begin = chunks * segment / SEGMENTS, end = chunks * (segment + 1) / SEGMENTS;
    int token = TILE_TOKENS * tile + lane() / 4;
    uint32_t powers = FIRST_POWERS;
    auto load = [&](int chunk, Activations &to) {
        int column = CHUNK * chunk + EACH * (lane() % 4);
        to = {};
        if (chunk >= end || column >= cols) return;
        load_activations<true>(x + (static_cast<int64_t>(token) * cols + column), cols, tokens - token, to);
    };
    Activations slots[AHEAD];
    BN_UNROLL
    for (int i = 0; i < AHEAD; i++) load(begin + i, slots[i]);
    BN_UNROLL_BY(1)
    for (int first = begin; first < end; first += AHEAD) {
        BN_UNROLL
        for (int i = 0; i < AHEAD; i++) {
            int chunk = first + i;
            if (chunk >= end) break;
            unsigned char *to = parts + (static_cast<int64_t>(tile) * chunks + chunk) * PARTS_BYTES<Element>;
            store_parts<Element>(to, slots[i], powers);
            load(chunk + AHEAD, slots[i]);
        }
    }
}

// A GEMM's tile of T tokens and OUTPUTS rows of weights. T / 32 warps lie along its tokens and the others along its
// outputs; each has N x R results of mma. A step is PER chunks; STAGES steps are in use or in flight.
constexpr int OUTPUTS = 128, N = 2;
template <class Element, int T, int PER, int STAGES>
struct Tile {
    static constexpr int ALONG = T / (TILE_TOKENS * N), ACROSS = SEGMENTS / ALONG, R = OUTPUTS / TILE_ROWS / ACROSS;
    static constexpr int WEIGHTS_BYTES = 2 * OUTPUTS * CHUNK * PER;
    static constexpr int STAGE_BYTES = WEIGHTS_BYTES + T / TILE_TOKENS * PER * PARTS_BYTES<Element>;
    static constexpr int PIECES = 4 * PER; // pieces of 16 bytes in a row of weights
    using Sums = float[N][R][4];

    static constexpr int EACH_TILE = PER * PARTS_BYTES<Element> / 16, ALL_PARTS = T / TILE_TOKENS * EACH_TILE;
    static constexpr int WEIGHTS_COPIES = OUTPUTS * PIECES / THREADS, PARTS_COPIES = (ALL_PARTS + THREADS - 1) / THREADS;

    const Dense &p;
    unsigned char *memory;
    int token0, row0, tiles, chunks;
    // Offsets of what this thread copies, from the first chunk of the tile's rows and tokens on; -1 for nothing.
    const uint8_t *weights, *parts;
    int weights_at[WEIGHTS_COPIES], parts_at[PARTS_COPIES];

    __device__ __forceinline__ Tile(const Dense &p, unsigned char *memory)
        : p(p), memory(memory), token0(static_cast<int>(blockIdx.x) * T), row0(p.block * OUTPUTS) {
        tiles = min(T / TILE_TOKENS, (p.tokens - token0 + TILE_TOKENS - 1) / TILE_TOKENS);
        chunks = (p.cols + CHUNK - 1) / CHUNK;
        weights = p.weights + 2 * static_cast<int64_t>(row0) * p.cols;
        parts = reinterpret_cast<const uint8_t *>(p.x);
        parts += static_cast<int64_t>(token0 / TILE_TOKENS) * chunks * PARTS_BYTES<Element>;
        BN_UNROLL
        for (int n = 0; n < WEIGHTS_COPIES; n++) {
            int i = THREADS * n + static_cast<int>(threadIdx.x);
            weights_at[n] = 2 * p.cols * row_or_last(i / PIECES, p.rows - row0) + i % PIECES * 16;
        }
        BN_UNROLL
        for (int n = 0; n < PARTS_COPIES; n++) {
            int i = THREADS * n + static_cast<int>(threadIdx.x), tile = i / EACH_TILE;
            parts_at[n] = tile < tiles ? tile * chunks * PARTS_BYTES<Element> + i % EACH_TILE * 16 : -1;
        }
    }

    __device__ __forceinline__ unsigned char *stage(int step) const { return memory + step % STAGES * STAGE_BYTES; }

    // If rows hold two chunks, every other row has them swapped: eight lanes that read together read chunks of two
    // rows.
    BN_MEMBER static int place(int row, int piece) {
        return 16 * (row * PIECES + (PER == 2 ? piece ^ row % 2 * 4 : piece));
    }

    // Starts copying the weights of a step from chunk `first` on, up to chunk `end`.
    __device__ __forceinline__ void stage_weights(int step, int first, int end) const {
        int own = static_cast<int>(threadIdx.x), piece = own % PIECES;
        const uint8_t *from = weights + 2 * CHUNK * first;
        unsigned char *to = stage(step) + place(own / PIECES, piece);
        bool whole = first + PER <= end && CHUNK * (first + PER) <= p.cols;
        if (!whole && first + piece / 4 >= end) return;
        bool has = whole || CHUNK * first + EACH * piece < p.cols;
        BN_UNROLL
        for (int n = 0; n < WEIGHTS_COPIES; n++, to += 16 * THREADS) {
            if (has) {
                copy_async16(to, from + weights_at[n]);
            } else {
                *reinterpret_cast<Words4 *>(to) = Words4{};
            }
        }
    }

    __device__ __forceinline__ void stage_parts(int step, int first, int end) const {
        const uint8_t *from = parts + static_cast<int64_t>(first) * PARTS_BYTES<Element>;
        unsigned char *to = stage(step) + WEIGHTS_BYTES + 16 * threadIdx.x;
        int own = min(PER, end - first) * (PARTS_BYTES<Element> / 16);
        BN_UNROLL
        for (int n = 0; n < PARTS_COPIES; n++, to += 16 * THREADS) {
            bool has = parts_at[n] >= 0;
            if (PER > 1) has &= (THREADS * n + static_cast<int>(threadIdx.x)) % EACH_TILE < own;
            if (has) copy_async16(to, from + parts_at[n]);
        }
    }

    // This warp's first tile of tokens, and its first row.
    __device__ __forceinline__ int warp_tile() const { return warp() / ACROSS * N; }
    __device__ __forceinline__ int warp_row() const { return warp() % ACROSS * (TILE_ROWS * R); }

    __device__ __forceinline__ const unsigned char *parts_of(int step, int c, int n) const {
        return stage(step) + WEIGHTS_BYTES + ((warp_tile() + n) * PER + c) * PARTS_BYTES<Element>;
    }
    __device__ __forceinline__ Scales scales_of(int step, int c, int n) const {
        return reinterpret_cast<const Scales *>(parts_of(step, c, n) + 4 * TILE_TOKENS * CHUNK)[lane() / 4];
    }

    // Adds chunk `c` of a step.
    __device__ __forceinline__ void add(Sums &sums, int step, int c) const {
        Words4 weights[R];
        BN_UNROLL
        for (int r = 0; r < R; r++) {
            int at = place(warp_row() + TILE_ROWS * r + lane() / 4, 4 * c + lane() % 4);
            weights[r] = *reinterpret_cast<const Words4 *>(stage(step) + at);
        }
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            if (warp_tile() + n >= tiles) continue;
            if constexpr (Element::SCALED) {
                Scales own = scales_of(step, c, n);
                if (own.factors[0] != 1.0f || own.factors[1] != 1.0f) scale(sums[n], own.factors[0], own.factors[1]);
            }
            const Words4 *words = reinterpret_cast<const Words4 *>(parts_of(step, c, n)) + lane();
            Parts parts = {{words[0], words[WARP]}, {words[2 * WARP], words[3 * WARP]}};
            add_chunk<Element>(sums[n], parts, weights);
        }
    }

    // Calls `what(n, i, token, row)` for each of this lane's results that exists in the product.
    template <class What>
    __device__ __forceinline__ void each(const What &what) const {
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            BN_UNROLL
            for (int i = 0; i < 4 * R; i++) {
                int t = token0 + TILE_TOKENS * (warp_tile() + n) + lane() / 4 + i % 4 / 2 * 8;
                int row = row0 + warp_row() + TILE_ROWS * (i / 4) + 2 * (lane() % 4) + i % 2;
                if (t < p.tokens && row < p.rows) what(n, i, t, row);
            }
        }
    }

    // Ends a segment with chunk `c` of a step. Adds it to the total, or writes it if several blocks share the rows.
    __device__ __forceinline__ void end_segment(Sums &total, Sums &sums, int step, int c, int segment) const {
        if constexpr (Element::SCALED) {
            BN_UNROLL
            for (int n = 0; n < N; n++) {
                if (warp_tile() + n >= tiles) continue;
                Scales own = scales_of(step, c, n);
                scale(sums[n], own.scales[0], own.scales[1]);
            }
        }
        if (gridDim.z > 1) {
            each([&](int n, int i, int t, int row) {
                p.out[(static_cast<int64_t>(segment) * p.tokens + t) * p.stride + p.column + row] = sums[n][i / 4][i % 4];
            });
        }
        BN_UNROLL
        for (int n = 0; n < N; n++) {
            BN_UNROLL
            for (int i = 0; i < 4 * R; i++) {
                total[n][i / 4][i % 4] = add_rn(total[n][i / 4][i % 4], sums[n][i / 4][i % 4]);
                sums[n][i / 4][i % 4] = 0.0f;
            }
        }
    }
};

template <class Element, int T, int PER, int STAGES>
BN_DEVICE void gemm(const Dense &p) {
    using Own = Tile<Element, T, PER, STAGES>;
    BN_SHARED(memory);
    Own tile(p, memory);
    int chunks = tile.chunks;
    // This block's range of segments.
    int share = static_cast<int>(blockIdx.z), shares = static_cast<int>(gridDim.z);
    int segment = SEGMENTS * share / shares, begin = chunks * segment / SEGMENTS;
    int end = chunks * (SEGMENTS * (share + 1) / shares) / SEGMENTS, steps = (end - begin + PER - 1) / PER;
    // Weights depend on no other kernel.
    for (int step = 0; step < STAGES - 1 && step < steps; step++) tile.stage_weights(step, begin + PER * step, end);
    await_inputs();
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) tile.stage_parts(step, begin + PER * step, end);
        copy_async_commit();
    }
    typename Own::Sums total = {}, sums = {};
    BN_UNROLL_BY(1)
    for (int step = 0; step < steps; step++) {
        copy_async_wait<STAGES - 2>();
        // Now all threads see the step, and none still reads the previous one, which the next step overwrites.
        sync_block();
        int next = step + STAGES - 1;
        if (next < steps) {
            tile.stage_weights(next, begin + PER * next, end);
            tile.stage_parts(next, begin + PER * next, end);
        }
        copy_async_commit();
        BN_UNROLL
        for (int c = 0; c < PER; c++) {
            int chunk = begin + PER * step + c;
            if (chunk >= end) break;
            tile.add(sums, step, c);
            // With few chunks, some segments are empty.
            while (segment < SEGMENTS - 1 && chunks * (segment + 1) / SEGMENTS <= chunk) segment++;
            if (chunks * (segment + 1) / SEGMENTS == chunk + 1) tile.end_segment(total, sums, step, c, segment);
        }
    }
    copy_async_wait<0>();
    if (shares == 1) tile.each([&](int n, int i, int t, int row) { write(p, t, row, total[n][i / 4][i % 4]); });
}

// Adds the segments of an output.
BN_DEVICE void add_segments(float *out, const float *sums, const float *bias, int tokens, int rows, int64_t stride) {
    int64_t all = static_cast<int64_t>(tokens) * rows, i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= all) return;
    float own[SEGMENTS], sum = 0.0f;
    BN_UNROLL
    for (int s = 0; s < SEGMENTS; s++) own[s] = sums[s * all + i];
    BN_UNROLL
    for (int s = 0; s < SEGMENTS; s++) sum = add_rn(sum, own[s]);
    int row = static_cast<int>(i % rows);
    out[i / rows * stride + row] = bias != nullptr ? add_rn(sum, bias[row]) : sum;
}

} // namespace dense

// `bn_f16_gemv_T`, `bn_bf16_gemv_T`: at most T rows of f32 per block, times weights of that type (`Dense`), whose rows
// are multiples of 8 columns. Grid: ceil(rows / (8 R)) for each matrix, ceil(tokens / T). 256 threads. Shared memory:
// 256 (8 R + 8) bytes. R is 2 for 4 tokens, 4 for 8.
#define BN_DENSE_GEMV(name, Element, T, R, AHEAD, BLOCKS)                                                              \
    BN_DENSE_KERNEL(BN_KERNEL_FOR(dense::THREADS, BLOCKS, name##_gemv_##T), blockIdx.x, 8 * R,                         \
        dense::gemv<Element, R, T, AHEAD>)
// `bn_f16_split`, `bn_bf16_split`: split rows of f32 into the parts that a GEMM takes. ceil(tokens / 16) x ceil(cols /
// 32) x 2176 bytes suffice. Grid: ceil(tokens / 16), 8. 32 threads, no shared memory.
// `bn_f16_gemm_T`, `bn_bf16_gemm_T`: multiply the parts (as `x`). Grid: ceil(tokens / T), ceil(rows / 128) for each
// matrix, 1. With at least 256 columns, 2, 4 or 8 blocks in z may share the columns. Then `out` [8, tokens, stride] has
// the sums of the segments without bias, for `bn_add_segments`. 256 threads. Shared memory: STAGES * PER * (8192 + 136
// T) bytes, for bf16 8192 + 128 T suffice: 100352 for 32 tokens, 101376 for 64, 76800 for 128.
#define BN_DENSE_GEMM(name, Element, T, PER, STAGES, BLOCKS)                                                           \
    BN_DENSE_KERNEL(BN_KERNEL_FOR(dense::THREADS, BLOCKS, name##_gemm_##T), blockIdx.y, dense::OUTPUTS,                \
        dense::gemm<Element, T, PER, STAGES>)
#define BN_DENSE_KERNELS(name, Element)                                                                                \
    BN_DENSE_GEMV(name, Element, 4, 2, 8, 2)                                                                           \
    BN_DENSE_GEMV(name, Element, 8, 4, 4, 2)                                                                           \
    BN_KERNEL_OF(WARP, name##_split)(unsigned char *parts, const float *x, int tokens, int cols) {                     \
        begin_kernel();                                                                                                \
        dense::split_rows<Element>(parts, x, tokens, cols);                                                            \
    }                                                                                                                  \
    BN_DENSE_GEMM(name, Element, 32, 2, 4, 2)                                                                          \
    BN_DENSE_GEMM(name, Element, 64, 2, 3, 2)                                                                          \
    BN_DENSE_GEMM(name, Element, 128, 1, 3, 1)
BN_DENSE_KERNELS(f16, F16)
BN_DENSE_KERNELS(bf16, BF16)

// Adds the segments' sums that blocks of a GEMM left in `sums` [8, tokens, rows], and the bias, if any, into the first
// `rows` columns of `out` [tokens, stride]. Grid: ceil(tokens * rows / block). Block: any.
BN_KERNEL(add_segments)(float *out, const float *sums, const float *bias, int tokens, int rows, int64_t stride) {
    begin_kernel();
    dense::add_segments(out, sums, bias, tokens, rows, stride);
}
