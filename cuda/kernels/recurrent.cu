// Layers whose past is a state of fixed size (src/ops/{delta,mamba,short_conv}.rs): a short convolution of each channel,
// and the recurrences of Gated DeltaNet and Mamba-2. All results have the CPU's bits (src/kernels/recurrent).
//
// A sequence's state is in a slot, and has the CPU's order: the inputs of the last tokens, [kernel - 1, channels], then
// each head's matrix in tiles of 32 columns, [heads, tiles, keys, 32]. States are updated in place. Where a step asks for
// it, copies of them are saved on the way.
//
// Lower bound of a recurrence: one step reads and writes each state once, 4 MB a sequence and layer for 32 heads of
// 128 x 128, 1.3 us on an H100. A prompt's tokens follow each other in one order, so that a chunk has the bits of its
// tokens one by one. A warp has a tile, and a lane a column, which stays in registers for all tokens of a chunk. Each
// token is two chains of as many fused multiply-adds as there are keys: the column's product with k, which the update
// needs, and that with q, the output. The first chain of a token runs along with the second one of the token before it:
// at 128 keys some 512 cycles a token, or the 740 that sm_90 takes to issue its instructions.

#include "device.cuh"

namespace recurrent {

// Columns of a tile: a lane has one.
constexpr int TILE = WARP;
// Rows of a sequence that one warp convolves. Longer convolutions than this are refused: only the first rows may need
// the state, since their warp updates it.
constexpr int CHUNK = 16;

// Consecutive rows of one sequence, as the host writes them.
struct Span {
    unsigned row;
    // 0: the row is padding, and becomes zeros.
    unsigned rows;
    // Number of rows at the end that do not change the state.
    unsigned drafted;
    unsigned slot;
    // Whether the state before them is zero.
    unsigned fresh;
    // Index of the first drafted row among those of the step.
    unsigned kept;
    // Range of the saves.
    unsigned saves;
    unsigned saves_end;

    __device__ __forceinline__ int certain() const { return static_cast<int>(rows - drafted); }
};

// The slot gets the state after this number of the span's rows.
struct Save {
    unsigned rows;
    unsigned slot;
};

// Rows of a span that a warp convolves, from the row `from` of the span on.
struct Task {
    unsigned span;
    unsigned from;
};

// A short convolution and its part of the states.
struct Conv {
    // Inputs are x[row * stride + channel], times the same of `times` if it is not null.
    const float *x;
    const float *times;
    size_t stride;
    // [kernel, channels], the oldest token first.
    const float *weights;
    float *states;
    size_t slot_stride;
    // Gets the inputs of drafted rows, unless it is null.
    float *kept;
    size_t kept_stride;
    const Save *saves;
    int channels;
    int kernel;

    __device__ __forceinline__ float input(size_t row, int channel) const {
        float value = x[row * stride + channel];
        return times != nullptr ? mul_rn(value, times[row * stride + channel]) : value;
    }

    // The input of the span's row `at`, which may lie before it.
    __device__ __forceinline__ float input_at(const Span &span, int at, int channel) const {
        if (at >= 0) {
            return input(static_cast<size_t>(span.row) + at, channel);
        }
        size_t old = static_cast<size_t>(at + kernel - 1) * channels + channel;
        return span.fresh ? 0.0f : states[span.slot * slot_stride + old];
    }

    // The sum for the span's row `at`.
    __device__ __forceinline__ float sum(const Span &span, int at, int channel) const {
        float sum = 0.0f;
        for (int tap = 0; tap < kernel; tap++) {
            float value = input_at(span, at + tap - (kernel - 1), channel);
            sum = fma_rn(value, weights[static_cast<size_t>(tap) * channels + channel], sum);
        }
        return sum;
    }

    // Keeps the channel's input if the row is drafted.
    __device__ __forceinline__ void keep(const Span &span, int at, int channel) const {
        int drafted = at - span.certain();
        if (kept != nullptr && drafted >= 0) {
            kept[(span.kept + static_cast<size_t>(drafted)) * kept_stride + channel] =
                input(static_cast<size_t>(span.row) + at, channel);
        }
    }

    // Writes the channel's last inputs before the span's row `rows` to a slot. In the span's own slot the input at place
    // tap + rows is read before place tap is written.
    __device__ __forceinline__ void store(const Span &span, int rows, unsigned slot, int channel) const {
        for (int tap = 0; tap < kernel - 1; tap++) {
            float value = input_at(span, rows + tap - (kernel - 1), channel);
            states[slot * slot_stride + static_cast<size_t>(tap) * channels + channel] = value;
        }
    }

    // Brings the channel's part of the states up to date. For the warp of the span's first rows, after its sums.
    __device__ __forceinline__ void update(const Span &span, int channel) const {
        for (unsigned n = span.saves; n < span.saves_end; n++) {
            store(span, static_cast<int>(saves[n].rows), saves[n].slot, channel);
        }
        store(span, span.certain(), span.slot, channel);
    }
};

// Calls `row` with each of the task's rows, the index in the span, and then updates these channels of the states. One warp.
template <class Row>
BN_DEVICE void convolve(const Conv &conv, const Span &span, int from, int channel, int width, Row row) {
    int end = min(from + CHUNK, static_cast<int>(span.rows));
    for (int at = from; at < end; at++) {
        row(at);
        for (int i = lane(); i < width; i += WARP) {
            conv.keep(span, at, channel + i);
        }
    }
    if (from == 0 && span.rows > 0) {
        for (int i = lane(); i < width; i += WARP) {
            conv.update(span, channel + i);
        }
    }
}

// x / (1 + e^-x).
BN_DEVICE float silu(float x) {
    return div_rn(x, add_rn(1.0f, bn_exp(-x)));
}

// e^-x for x from 0 to 104: src/kernels/rows/softplus.rs.
BN_DEVICE double exp_of_negative(double x) {
    const double inverse[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
                              1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800};
    double n = rint(mul_rn(-x, 1.4426950408889634));
    double r = add_rn(add_rn(-x, -mul_rn(n, 0.693147180369123816490)), -mul_rn(n, 1.90821492927058770002e-10));
    double p = inverse[11];
    BN_UNROLL
    for (int i = 10; i >= 0; i--) {
        p = add_rn(mul_rn(p, r), inverse[i]);
    }
    return ldexp(p, static_cast<int>(n));
}

// ln(1 + e^x), with the bits of src/kernels/rows/softplus.rs.
BN_DEVICE float softplus(float x) {
    if (!(x <= 20.0f)) {
        return x;
    }
    if (x < -104.0f) {
        return 0.0f;
    }
    double wide = static_cast<double>(x);
    double t = exp_of_negative(fabs(wide));
    double s = div_rn(t, add_rn(2.0, t)), z = mul_rn(s, s), sum = 0.0;
    BN_UNROLL
    for (int k = 12; k >= 0; k--) {
        sum = add_rn(mul_rn(sum, z), 1.0 / (2 * k + 1));
    }
    double above = wide > 0.0 ? wide : 0.0;
    return static_cast<float>(add_rn(above, mul_rn(mul_rn(2.0, s), sum)));
}

// The factor of a norm of `cols` elements that one warp reads: 1 / sqrt(mean(x^2) + eps).
BN_DEVICE float norm_factor(const float *x, int cols, float eps) {
    float sum = 0.0f;
    for (int i = lane(); i < cols; i += WARP) {
        sum = fma_rn(x[i], x[i], sum);
    }
    return div_rn(1.0f, sqrt_rn(add_rn(div_rn(warp_sum(sum), static_cast<float>(cols)), eps)));
}

// Convolves and normalizes the heads of q, k and v of Gated DeltaNet, and computes decays and rates. x [rows, stride]
// begins with q, k and v; gates [rows, gates_stride]: the logits of the rates, then of the decays, of all value heads;
// weights [kernel, channels]; a, dt_bias [value_heads]; mixed [rows, channels]; steps [rows, value_heads, 2]; kept, if it
// is not null, gets of each drafted row the channels and then the logits. factor: of q; eps: added to sums of squares.
// Grid: tasks, and enough warps in y for the heads of q, k and v and one more. Block: any number of warps.
BN_KERNEL_OF(128, delta_prepare)(const float *x, size_t stride, const float *gates, size_t gates_stride,
    const float *weights, const float *a, const float *dt_bias, const Span *spans, const Task *tasks, const Save *saves,
    float *states, size_t slot_stride, float *kept, float *mixed, float *steps, int key_heads, int value_heads,
    int key_dim, int value_dim, int kernel, float factor, float eps) {
    begin_kernel();
    int unit = static_cast<int>(blockIdx.y * (blockDim.x / WARP)) + warp(), units = 2 * key_heads + value_heads;
    if (unit > units) {
        return; // a whole warp
    }
    Task task = tasks[blockIdx.x];
    Span span = spans[task.span];
    int channels = 2 * key_heads * key_dim + value_heads * value_dim, from = static_cast<int>(task.from);
    size_t kept_stride = static_cast<size_t>(channels) + 2 * value_heads;
    if (unit == units) {
        int end = min(from + CHUNK, static_cast<int>(span.rows));
        for (int at = from; at < end; at++) {
            size_t row = static_cast<size_t>(span.row) + at;
            const float *logits = gates + row * gates_stride;
            for (int head = lane(); head < value_heads; head += WARP) {
                float step = softplus(add_rn(logits[value_heads + head], dt_bias[head]));
                float *to = steps + (row * value_heads + head) * 2;
                to[0] = bn_exp(mul_rn(a[head], step));
                to[1] = div_rn(1.0f, add_rn(1.0f, bn_exp(-logits[head])));
            }
            int drafted = at - span.certain();
            for (int i = lane(); kept != nullptr && drafted >= 0 && i < 2 * value_heads; i += WARP) {
                kept[(span.kept + static_cast<size_t>(drafted)) * kept_stride + channels + i] = logits[i];
            }
        }
        return;
    }
    Conv conv = {x, nullptr, stride, weights, states, slot_stride, kept, kept_stride, saves, channels, kernel};
    bool value = unit >= 2 * key_heads;
    int width = value ? value_dim : key_dim;
    int channel = value ? 2 * key_heads * key_dim + (unit - 2 * key_heads) * value_dim : unit * key_dim;
    convolve(conv, span, from, channel, width, [&](int at) {
        float *out = mixed + (static_cast<size_t>(span.row) + at) * channels + channel;
        float sum = 0.0f;
        for (int i = lane(); i < width; i += WARP) {
            float made = silu(conv.sum(span, at, channel + i));
            out[i] = made;
            sum = fma_rn(made, made, sum);
        }
        if (!value) {
            float scale = div_rn(unit < key_heads ? factor : 1.0f, sqrt_rn(add_rn(warp_sum(sum), eps)));
            for (int i = lane(); i < width; i += WARP) {
                out[i] = mul_rn(out[i], scale);
            }
        }
    });
}

// Convolves x, B and C of Mamba-2, and computes decays and steps. x [rows, stride] begins with x, B and C, which the
// logits of the steps follow; weights [kernel, channels], bias [channels]; a, dt_bias [heads]; mixed [rows, channels]; steps
// [rows, heads, 2]: decay and step; kept, if it is not null, gets of each drafted row the channels and the logits.
// factor: of the logits; least, most: bounds of a step. Grid: tasks, and enough warps in y for each 128 channels and one
// more. Block: any number of warps.
BN_KERNEL_OF(128, mamba_prepare)(const float *x, size_t stride, const float *weights, const float *bias, const float *a,
    const float *dt_bias, const Span *spans, const Task *tasks, const Save *saves, float *states, size_t slot_stride,
    float *kept, float *mixed, float *steps, int channels, int heads, int kernel, float factor, float least,
    float most) {
    begin_kernel();
    constexpr int PIECE = 128;
    int unit = static_cast<int>(blockIdx.y * (blockDim.x / WARP)) + warp(), units = (channels + PIECE - 1) / PIECE;
    if (unit > units) {
        return; // a whole warp
    }
    Task task = tasks[blockIdx.x];
    Span span = spans[task.span];
    int from = static_cast<int>(task.from);
    size_t kept_stride = static_cast<size_t>(channels) + heads;
    Conv conv = {x, nullptr, stride, weights, states, slot_stride, kept, kept_stride, saves, channels, kernel};
    if (unit == units) {
        int end = min(from + CHUNK, static_cast<int>(span.rows));
        for (int at = from; at < end; at++) {
            size_t row = static_cast<size_t>(span.row) + at;
            for (int head = lane(); head < heads; head += WARP) {
                float step = softplus(add_rn(mul_rn(conv.input(row, channels + head), factor), dt_bias[head]));
                step = step < least ? least : step;
                step = step > most ? most : step;
                float *to = steps + (row * heads + head) * 2;
                to[0] = bn_exp(mul_rn(a[head], step));
                to[1] = step;
                conv.keep(span, at, channels + head);
            }
        }
        return;
    }
    int channel = unit * PIECE, width = min(PIECE, channels - channel);
    convolve(conv, span, from, channel, width, [&](int at) {
        float *out = mixed + (static_cast<size_t>(span.row) + at) * channels + channel;
        for (int i = lane(); i < width; i += WARP) {
            out[i] = silu(add_rn(conv.sum(span, at, channel + i), bias[channel + i]));
        }
    });
}

// LFM2's gated short convolution: out = C * conv(B * x). x, times [rows, stride]: B and x; by, of the same stride: C, all
// null for rows whose inputs `x` has as they are, and which only change the states. out [rows, channels]; kept, if it is
// not null, gets the inputs of drafted rows. Grid: tasks, and enough warps in y for each 128 channels. Block: any number
// of warps.
BN_KERNEL_OF(128, short_conv)(const float *x, const float *times, const float *by, size_t stride, const float *weights,
    const Span *spans, const Task *tasks, const Save *saves, float *states, size_t slot_stride, float *kept, float *out,
    int channels, int kernel) {
    begin_kernel();
    constexpr int PIECE = 128;
    int channel = (static_cast<int>(blockIdx.y * (blockDim.x / WARP)) + warp()) * PIECE;
    if (channel >= channels) {
        return; // a whole warp
    }
    Task task = tasks[blockIdx.x];
    Span span = spans[task.span];
    Conv conv = {x, times, stride, weights, states, slot_stride, kept, static_cast<size_t>(channels),
                 saves, channels, kernel};
    int width = min(PIECE, channels - channel);
    if (span.rows == 0) {
        for (int i = lane(); i < width; i += WARP) {
            out[static_cast<size_t>(span.row) * channels + channel + i] = 0.0f;
        }
    }
    convolve(conv, span, static_cast<int>(task.from), channel, width, [&](int at) {
        size_t row = static_cast<size_t>(span.row) + at;
        for (int i = lane(); by != nullptr && i < width; i += WARP) {
            float sum = conv.sum(span, at, channel + i);
            out[row * channels + channel + i] = mul_rn(sum, by[row * stride + channel + i]);
        }
    });
}

// What a warp needs of the heads.
struct Heads {
    // [rows, channels]
    const float *mixed;
    // [rows, heads, 2]: the decay, and the rate or step.
    const float *gates;
    int heads;
    int keys;
    int values;
    int channels;
    // Where q, k and v of the first head begin in a row.
    int q;
    int k;
    int v;
    // Heads with the same q and k: `each` of them side by side, or if it is 0 every `groups`th.
    int groups;
    int each;

    __device__ __forceinline__ int group_of(int head) const { return each > 0 ? head / each : head % groups; }
};

// A lane's column of a tile, in registers: exactly KEYS keys, and rows that begin at multiples of 16 bytes.
template <int KEYS> struct InRegisters {
    float s[KEYS];

    __device__ __forceinline__ explicit InRegisters(unsigned char *) {}

    // Calls `key` with the column's element of each key, and with the elements of a, b and c.
    template <class Key>
    __device__ __forceinline__ void each(int, const float *a, const float *b, const float *c, Key key) {
        BN_UNROLL
        for (int n = 0; n < KEYS; n += 4) {
            const float4 x = *reinterpret_cast<const float4 *>(a + n), y = *reinterpret_cast<const float4 *>(b + n),
                         z = *reinterpret_cast<const float4 *>(c + n);
            key(s[n], x.x, y.x, z.x);
            key(s[n + 1], x.y, y.y, z.y);
            key(s[n + 2], x.z, y.z, z.z);
            key(s[n + 3], x.w, y.w, z.w);
        }
    }

    __device__ __forceinline__ void load(const float *from, int) {
        BN_UNROLL
        for (int n = 0; n < KEYS; n++) {
            s[n] = from != nullptr ? from[n * TILE + lane()] : 0.0f;
        }
    }

    __device__ __forceinline__ void store(float *to, int) const {
        BN_UNROLL
        for (int n = 0; n < KEYS; n++) {
            to[n * TILE + lane()] = s[n];
        }
    }
};

// The same in shared memory, for any number of keys.
struct InShared {
    float *s;

    __device__ __forceinline__ explicit InShared(unsigned char *shared) : s(reinterpret_cast<float *>(shared)) {}

    template <class Key>
    __device__ __forceinline__ void each(int keys, const float *a, const float *b, const float *c, Key key) {
        for (int n = 0; n < keys; n++) {
            key(s[n * TILE + lane()], a[n], b[n], c[n]);
        }
    }

    __device__ __forceinline__ void load(const float *from, int keys) {
        for (int n = 0; n < keys; n++) {
            s[n * TILE + lane()] = from != nullptr ? from[n * TILE + lane()] : 0.0f;
        }
    }

    __device__ __forceinline__ void store(float *to, int keys) const {
        for (int n = 0; n < keys; n++) {
            to[n * TILE + lane()] = s[n * TILE + lane()];
        }
    }
};

// Runs a span's rows through a tile of a head's state. `skip` is Mamba-2's D of the heads, and null for the gated delta
// rule. `states` begins at the heads' part of the first slot. out [rows, heads * values], or null.
template <class State, bool DELTA>
BN_DEVICE void recur(State state, const Heads &of, const float *skip, const Span &span, const Save *saves, float *states,
                     size_t slot_stride, float *out) {
    int tiles = (of.values + TILE - 1) / TILE, head = static_cast<int>(blockIdx.y) / tiles;
    int column = static_cast<int>(blockIdx.y) % tiles * TILE + lane();
    size_t width = static_cast<size_t>(of.heads) * of.values;
    bool own = column < of.values;
    if (out != nullptr) {
        out += static_cast<size_t>(span.row) * width + head * of.values + column;
    }
    if (span.rows == 0) {
        if (own && out != nullptr) {
            *out = 0.0f;
        }
        return;
    }
    size_t tile = static_cast<size_t>(blockIdx.y) * of.keys * TILE;
    auto place = [&](unsigned slot) { return states + slot * slot_stride + tile; };
    state.load(span.fresh ? nullptr : place(span.slot), of.keys);
    const float *row = of.mixed + static_cast<size_t>(span.row) * of.channels;
    const float *gates = of.gates + (static_cast<size_t>(span.row) * of.heads + head) * 2;
    int group = of.group_of(head) * of.keys, rows = static_cast<int>(span.rows), certain = span.certain();
    float u = 0.0f;
    if (DELTA) {
        const float *k = row + of.k + group;
        float decay = gates[0];
        state.each(of.keys, k, k, k, [&](float &s, float x, float, float) { u = fma_rn(mul_rn(s, decay), x, u); });
    }
    unsigned save = span.saves;
    if (certain == 0) {
        state.store(place(span.slot), of.keys);
    }
    for (int at = 0; at < rows; at++) {
        float decay = gates[0], rate = gates[1], v = own ? row[of.v + head * of.values + column] : 0.0f;
        const float *q = row + of.q + group, *k = row + of.k + group, *next_k = k;
        float next_decay = decay, next = 0.0f, y = 0.0f;
        if (at + 1 < rows) {
            row += of.channels;
            gates += 2 * of.heads;
            next_k = row + of.k + group;
            next_decay = gates[0];
        }
        if (DELTA) {
            u = mul_rn(add_rn(v, -u), rate);
            state.each(of.keys, k, q, next_k, [&](float &s, float k, float q, float next_k) {
                s = fma_rn(u, k, mul_rn(s, decay));
                y = fma_rn(s, q, y);
                next = fma_rn(mul_rn(s, next_decay), next_k, next);
            });
            u = next;
        } else {
            u = mul_rn(v, rate);
            y = mul_rn(v, skip[head]);
            state.each(of.keys, k, q, q, [&](float &s, float k, float q, float) {
                s = fma_rn(u, k, mul_rn(s, decay));
                y = fma_rn(s, q, y);
            });
        }
        if (own && out != nullptr) {
            out[static_cast<size_t>(at) * width] = y;
        }
        for (; save < span.saves_end && static_cast<int>(saves[save].rows) == at + 1; save++) {
            state.store(place(saves[save].slot), of.keys);
        }
        if (at + 1 == certain) {
            state.store(place(span.slot), of.keys);
        }
    }
}

// The gated delta rule. mixed [rows, channels] and gates [rows, heads, 2] as bn_delta_prepare makes them; `states` begins
// at the heads' part of the first slot; out [rows, heads * values], or null. q, k, v: where those of the first head begin
// in a row; groups, each: see `Heads`. Grid: spans, and tiles of all heads in y. Block: one warp. No shared memory;
// exactly 128 keys, and channels, q and k are multiples of 4.
#define RECURRENT_ARGUMENTS                                                                                            \
    const float *mixed, const float *gates, const float *skip, const Span *spans, const Save *saves, float *states,    \
        size_t slot_stride, float *out, int heads, int keys, int values, int channels, int q, int k, int v,            \
        int groups, int each
#define RECURRENT_BODY(State, delta, shared)                                                                           \
    begin_kernel();                                                                                                    \
    Heads of = {mixed, gates, heads, keys, values, channels, q, k, v, groups, each};                                   \
    recur<State, delta>(State(shared), of, skip, spans[blockIdx.x], saves, states, slot_stride, out)

BN_KERNEL_FOR(32, 8, delta_recur_128)(RECURRENT_ARGUMENTS) {
    RECURRENT_BODY(InRegisters<128>, true, nullptr);
}

// As bn_delta_recur_128, for any number of keys and any channels. Shared: 128 bytes for each key.
BN_KERNEL_OF(32, delta_recur)(RECURRENT_ARGUMENTS) {
    BN_SHARED(shared);
    RECURRENT_BODY(InShared, true, shared);
}

// As bn_delta_recur_128, for Mamba-2: q is C, k is B, v is x, and skip is D.
BN_KERNEL_FOR(32, 12, mamba_recur_128)(RECURRENT_ARGUMENTS) {
    RECURRENT_BODY(InRegisters<128>, false, nullptr);
}

// As bn_mamba_recur_128, for any number of keys and any channels. Shared: as bn_delta_recur.
BN_KERNEL_OF(32, mamba_recur)(RECURRENT_ARGUMENTS) {
    BN_SHARED(shared);
    RECURRENT_BODY(InShared, false, shared);
}

// Norms the heads of y [rows, heads, dim] and multiplies them by SiLU of the gate, gate[row * stride + head * dim + i].
// weight [dim], out as y. Grid: enough warps for rows * heads. Block: any number of warps.
BN_KERNEL_OF(128, delta_norm)(const float *y, const float *gate, size_t stride, const float *weight, float eps,
    float *out, size_t all, int heads, int dim) {
    begin_kernel();
    size_t n = static_cast<size_t>(blockIdx.x) * (blockDim.x / WARP) + static_cast<size_t>(warp());
    if (n >= all) {
        return; // a whole warp
    }
    gate += n / heads * stride + n % heads * dim;
    y += n * dim;
    out += n * dim;
    float scale = norm_factor(y, dim, eps);
    for (int i = lane(); i < dim; i += WARP) {
        out[i] = mul_rn(silu(gate[i]), mul_rn(mul_rn(y[i], scale), weight[i]));
    }
}

enum { NORM_NEVER = 0, NORM_BEFORE = 1, NORM_AFTER = 2 };

// Multiplies y [rows, groups * width] by SiLU of the gate, gate[row * stride + i], and norms each group before or after
// that. by_gate, by_out: factors on the gate and on the output; weight [groups * width]; out as y. Grid: rows, groups.
// Block: any number of warps. Shared: width floats.
BN_KERNEL_OF(1024, mamba_gate)(const float *y, const float *gate, size_t stride, const float *weight, float eps, int norm,
    float by_gate, float by_out, float *out, int width) {
    begin_kernel();
    BN_SHARED(shared);
    float *made = reinterpret_cast<float *>(shared);
    size_t first = static_cast<size_t>(blockIdx.y) * width, at = static_cast<size_t>(blockIdx.x) * gridDim.y * width + first;
    y += at;
    out += at;
    gate += blockIdx.x * stride + first;
    weight += weight != nullptr ? first : 0;
    auto gated = [&](float g, float y) { return mul_rn(silu(mul_rn(g, by_gate)), mul_rn(y, by_out)); };
    int begin = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
    for (int i = begin; i < width; i += step) {
        made[i] = norm == NORM_BEFORE ? y[i] : gated(gate[i], y[i]);
    }
    float scale = 1.0f;
    if (norm != NORM_NEVER) {
        sync_block();
        // Each warp computes it for itself.
        scale = norm_factor(made, width, eps);
    }
    for (int i = begin; i < width; i += step) {
        float x = norm == NORM_NEVER ? made[i] : mul_rn(mul_rn(made[i], scale), weight[i]);
        out[i] = norm == NORM_BEFORE ? gated(gate[i], x) : x;
    }
}

} // namespace recurrent
