// Products of int8 activations with one scale per row and ternary weights with a scale for each 256 columns (TQ2_0):
// for 1 to 8 rows of activations as in gemv.cu, for more as in gemm.cu.
//
// A block of 256 columns is one exact sum of integers. It is multiplied by its scale and added to the row's sum, with
// two roundings, as in `dot_scaled` of src/kernels/gemm/ternary. In the end the sum is divided by the activations'
// scale.
//
// Lower bound: as in gemv.cu. 2560 x 6912 weights are 4.6 MB, 1.4 us on an H100 at 3.35 TB/s.
#include "products.cuh"
#include "tiles.cuh"

namespace {

// Groups of 32 columns in a block, and the stride of sums, padded as `SHARES` of gemv.cu.
constexpr int SCALED_PARTS = 8, SCALED_SUMS = WARP + 1;

// Converts four codes to weights of -1 to 1.
BN_DEVICE uint32_t less_one(uint32_t codes) {
    return (codes + 0x7f7f7f7fu) ^ 0x80808080u;
}

// Returns the scale of block `block` of row `row`, or of the last row.
BN_DEVICE uint16_t scale_of(const Blocks &p, int row, int block) {
    return p.scales[static_cast<int64_t>(row_or_last(row, p.rows)) * (p.cols / 256) + block];
}

BN_DEVICE void write_scaled(const Blocks &p, int t, int row, float sum) {
    write(p, t, row, div_rn(sum, p.x_scales[t]));
}

// Multiplies 32 columns of R rows of weights with T rows of x, into this lane's place of `sums[r * T + t]`.
template <int T, int R>
BN_DEVICE void scaled_sums(const Blocks &p, const Planes<TQ2_0> &planes, int first, int b, int *sums) {
    Codes<TQ2_0> codes[R];
    BN_UNROLL
    for (int r = 0; r < R; r++) codes[r] = load_codes(p.codes, planes, row_or_last(first + r, p.rows), b);
    BN_UNROLL
    for (int t = 0; t < T; t++) {
        uint32_t values[8];
        int64_t at = static_cast<int64_t>(row_or_last(t, p.tokens)) * p.cols + 32 * b;
        load_words(reinterpret_cast<const uint8_t *>(p.x) + at, values);
        BN_UNROLL
        for (int r = 0; r < R; r++) {
            int dot = 0;
            BN_UNROLL
            for (int n = 0; n < 8; n++) {
                dot = dp4a(static_cast<int>(less_one(code_word(codes[r], n))), static_cast<int>(values[n]), dot);
            }
            sums[(r * T + t) * SCALED_SUMS] = dot;
        }
    }
}

// T >= tokens rows of x, R rows of weights per warp. Each lane takes 32 columns, so that a warp takes four blocks. Then
// one lane per output adds the blocks in order.
template <int T, int R>
BN_DEVICE void scaled_gemv(const Blocks &p) {
    static_assert(T * R <= WARP, "a lane for each output");
    BN_SHARED(memory);
    int *sums = reinterpret_cast<int *>(memory) + warp() * R * T * SCALED_SUMS;
    int first = (p.block * (GEMV_THREADS / WARP) + warp()) * R;
    int t = lane() % T, row = first + lane() / T, blocks = p.cols / 256;
    Planes<TQ2_0> planes(p.rows, p.cols);
    prefetch_blocks(p, planes, p.block * (GEMV_THREADS / WARP) * R, GEMV_THREADS / WARP * R);
    await_inputs();
    float sum = 0.0f;
    for (int start = 0; start < blocks; start += WARP / SCALED_PARTS) {
        int count = min(WARP / SCALED_PARTS, blocks - start);
        if (lane() < SCALED_PARTS * count) {
            scaled_sums<T, R>(p, planes, first, SCALED_PARTS * start + lane(), sums + lane());
        }
        sync_warp();
        for (int b = 0; b < count && lane() < T * R; b++) {
            const int *own = sums + lane() * SCALED_SUMS + SCALED_PARTS * b;
            int dot = 0;
            BN_UNROLL
            for (int i = 0; i < SCALED_PARTS; i++) dot += own[i];
            sum = add_rn(sum, mul_rn(static_cast<float>(dot), half_to_float(scale_of(p, row, start + b))));
        }
        sync_warp();
    }
    if (lane() < T * R && t < p.tokens && row < p.rows) write_scaled(p, t, row, sum);
}

// Adds the 128 columns of a step.
template <class Tile>
BN_DEVICE void scaled_step(const unsigned char *x, const unsigned char *codes, typename Tile::Dots &dots) {
    BN_UNROLL
    for (int k = 0; k < STEP_BLOCKS; k++) {
        uint32_t right[Tile::RIGHTS][2];
        load_rights<TQ2_0, Tile>(codes, k, right);
        BN_UNROLL
        for (int n = 0; n < Tile::RIGHTS; n++) {
            for (uint32_t &word : right[n]) word = less_one(word);
        }
        BN_UNROLL
        for (int m = 0; m < Tile::LEFTS; m++) {
            uint32_t left[4];
            load_left<STEP_PIECES>(x, Tile::token() + 16 * m, k, left);
            BN_UNROLL
            for (int n = 0; n < Tile::RIGHTS; n++) mma_s8(dots[m][n], left, right[n]);
        }
    }
}

// Adds a block of 256 columns to the sums and clears its integers.
template <class Tile>
BN_DEVICE void end_scaled(const uint16_t (&scales)[Tile::RIGHTS * 2], typename Tile::Dots &dots,
    typename Tile::Sums &sums) {
    BN_UNROLL
    for (int i = 0; i < Tile::RIGHTS * 2; i++) {
        int n = i / 2;
        float scale = half_to_float(scales[i]);
        BN_UNROLL
        for (int at = 0; at < Tile::LEFTS * 2; at++) {
            int m = at / 2, own = at % 2 * 2 + i % 2;
            sums[m][n][own] = add_rn(sums[m][n][own], mul_rn(static_cast<float>(dots[m][n][own]), scale));
            dots[m][n][own] = 0;
        }
    }
}

template <class Tile>
BN_DEVICE void scaled_gemm(const Blocks &p) {
    constexpr int STAGE = Tile::LEFT_BYTES + CODES_BYTES<TQ2_0, Tile>;
    BN_SHARED(memory);
    int token0 = static_cast<int>(blockIdx.x) * Tile::TOKENS, output0 = p.block * Tile::OUTPUTS;
    Planes<TQ2_0> planes(p.rows, p.cols);
    auto x = Staged<GEMM_THREADS, Tile::TOKENS, STEP_PIECES>::of(p.x, p.cols, token0, p.tokens);
    auto codes = StagedCodes<TQ2_0, Tile>::of(p, planes, output0);
    typename Tile::Dots dots = {};
    typename Tile::Sums sums = {};
    // Two steps are a block. The scales are loaded while the block is computed.
    uint16_t scales[Tile::RIGHTS * 2] = {};
    prefetch_tile<TQ2_0, Tile>(p, planes, output0);
    pipeline<Tile>(
        p.cols / STEP,
        [&](int step, int place) { codes.stage(memory + place * STAGE + Tile::LEFT_BYTES, step); },
        [&](int step, int place) { x.stage(memory + place * STAGE, step); },
        [&](int step, int place) {
            if (step % 2 == 0) {
                BN_UNROLL
                for (int i = 0; i < Tile::RIGHTS * 2; i++) {
                    scales[i] = scale_of(p, output0 + Tile::output_of(i / 2, i % 2), step / 2);
                }
            }
            const unsigned char *from = memory + place * STAGE;
            scaled_step<Tile>(from, from + Tile::LEFT_BYTES, dots);
            if (step % 2 == 1) end_scaled<Tile>(scales, dots, sums);
        });
    each_output<Tile>(p, token0, output0, [&](int t, int row, int m, int n, int i) {
        write_scaled(p, t, row, sums[m][n][i]);
    });
}

} // namespace

// `bn_tq2_0_gemv_T`: at most T rows of int8 with a scale each, times TQ2_0 (`Blocks` with x_scales [tokens]; x_sums is
// not read). Block: 128. Grid: ceil(rows / 16) for each matrix. Shared memory: 2112 T bytes.
#define BN_SCALED_GEMV(T) BN_BLOCKS_KERNEL(BN_GEMV(tq2_0_gemv_##T), blockIdx.x, 16, scaled_gemv<T, 4>)
BN_SCALED_GEMV(1)
BN_SCALED_GEMV(2)
BN_SCALED_GEMV(4)
BN_SCALED_GEMV(8)

// `bn_tq2_0_gemm`: the same for any number of tokens, by tiles as in gemm.cu. Shared memory: 36864 bytes for 64 x 128,
// 30720 for 32 x 32.
BN_BLOCKS_KERNEL(BN_GEMM(tq2_0_gemm_64x128), blockIdx.y, LargeTile::OUTPUTS, scaled_gemm<LargeTile>)
BN_BLOCKS_KERNEL(BN_GEMM(tq2_0_gemm_32x32), blockIdx.y, SmallTile::OUTPUTS, scaled_gemm<SmallTile>)
