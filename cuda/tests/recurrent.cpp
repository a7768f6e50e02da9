// Tests of recurrent.cu: every result has the bits of src/ops/{delta,mamba,short_conv}.rs, whose definitions are repeated
// here, token by token.

#include "check.h"

#include "../kernels/recurrent.cu"

#include <functional>

using namespace recurrent;

namespace {

constexpr int CASES = 6;

float reference_silu(float x) {
    return x / (1.0f + bn_exp(-x));
}

// A layer's sizes, in the kernels' terms.
struct Shape {
    int heads;
    int keys;
    int values;
    int groups;
    // 0: heads of a group are `groups` apart.
    int each;
    int kernel;

    int group_of(int head) const { return each > 0 ? head / each : head % groups; }
    int tiles() const { return (values + TILE - 1) / TILE; }
    int matrices() const { return heads * tiles() * keys * TILE; }
};

// Sequences with states in slots.
struct Steps {
    std::vector<Span> spans;
    std::vector<Task> tasks;
    std::vector<Save> saves;
    int rows = 0;
    int drafted = 0;
    unsigned slots = 0;

    // A span of rows; the state is saved after `saved` rows, if any.
    void add(int count, int drafts, bool fresh, std::vector<int> saved = {}) {
        unsigned first = static_cast<unsigned>(saves.size()), slot = slots++;
        for (int after : saved) {
            saves.push_back({static_cast<unsigned>(after), slots++});
        }
        for (int from = 0; from < std::max(count, 1); from += CHUNK) {
            tasks.push_back({static_cast<unsigned>(spans.size()), static_cast<unsigned>(from)});
        }
        auto word = [](int value) { return static_cast<unsigned>(value); };
        spans.push_back({word(rows), word(count), word(drafts), slot, fresh, word(drafted), first,
                         static_cast<unsigned>(saves.size())});
        rows += std::max(count, 1);
        drafted += drafts;
    }
};

// A prompt, a chunk with saves, a decode step, drafted rows alone and behind others, and padding.
Steps some_steps() {
    Steps steps;
    steps.add(35, 0, true, {1, 16, 35});
    steps.add(2, 0, false, {1});
    steps.add(1, 0, false);
    steps.add(3, 3, false);
    steps.add(19, 4, false, {15});
    steps.add(2, 2, true);
    steps.add(0, 0, true);
    steps.add(1, 0, true);
    return steps;
}

// The convolution and the recurrence of one sequence, a token at a time. `Token` runs a token, given its row, through the
// state, and returns its output.
template <class Token>
void reference(const Steps &steps, std::vector<float> &states, size_t slot_floats, int width, std::vector<float> &out,
               Token token) {
    for (const Span &span : steps.spans) {
        std::vector<float> state(states.begin() + span.slot * slot_floats, states.begin() + (span.slot + 1) * slot_floats);
        if (span.fresh) {
            std::fill(state.begin(), state.end(), 0.0f);
        }
        auto store = [&](unsigned slot) { std::copy(state.begin(), state.end(), states.begin() + slot * slot_floats); };
        if (span.rows == 0) {
            std::fill_n(out.begin() + span.row * width, width, 0.0f);
            continue;
        }
        for (unsigned at = 0; at <= span.rows; at++) {
            for (unsigned n = span.saves; n < span.saves_end; n++) {
                if (steps.saves[n].rows == at && at > 0) {
                    store(steps.saves[n].slot);
                }
            }
            if (at == span.rows - span.drafted) {
                store(span.slot);
            }
            if (at < span.rows) {
                std::vector<float> made = token(span.row + at, state);
                std::copy(made.begin(), made.end(), out.begin() + (span.row + at) * width);
            }
        }
    }
}

// Moves the convolution's window by one input and returns the sum of a channel.
float reference_conv(float *window, const float *weights, int channels, int kernel, float input) {
    float sum = 0.0f;
    for (int tap = 0; tap < kernel; tap++) {
        sum = std::fma(tap < kernel - 1 ? window[tap * channels] : input, weights[tap * channels], sum);
    }
    for (int tap = 0; tap + 1 < kernel - 1; tap++) {
        window[tap * channels] = window[(tap + 1) * channels];
    }
    window[(kernel - 2) * channels] = input;
    return sum;
}

// One token of all heads. `row` has q, k and v at these places.
std::vector<float> reference_heads(const Shape &shape, const float *row, const int (&at)[3], const float *gates,
                                   const float *skip, float *matrices) {
    std::vector<float> out(shape.heads * shape.values);
    for (int head = 0; head < shape.heads; head++) {
        const float *q = row + at[0] + shape.group_of(head) * shape.keys, *k = row + at[1] + shape.group_of(head) * shape.keys;
        float decay = gates[2 * head], rate = gates[2 * head + 1];
        for (int column = 0; column < shape.values; column++) {
            float v = row[at[2] + head * shape.values + column], u = 0.0f;
            float *s = matrices + (head * shape.tiles() + column / TILE) * shape.keys * TILE + column % TILE;
            for (int n = 0; skip == nullptr && n < shape.keys; n++) {
                u = std::fma(s[n * TILE] * decay, k[n], u);
            }
            u = skip == nullptr ? (v - u) * rate : v * rate;
            float y = skip == nullptr ? 0.0f : v * skip[head];
            for (int n = 0; n < shape.keys; n++) {
                s[n * TILE] = std::fma(u, k[n], s[n * TILE] * decay);
                y = std::fma(s[n * TILE], q[n], y);
            }
            out[head * shape.values + column] = y;
        }
    }
    return out;
}

float sum_of_squares(const float *x, int count) {
    float lanes[32] = {};
    for (int i = 0; i < count; i++) {
        lanes[i % 32] = std::fma(x[i], x[i], lanes[i % 32]);
    }
    for (int width = 16; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            lanes[i] += lanes[i + width];
        }
    }
    return lanes[0];
}

// Columns of tiles that no head has stay zero.
std::vector<float> some_states(Random &random, const Shape &shape, int convolution, unsigned slots) {
    size_t floats = convolution + shape.matrices();
    std::vector<float> states = random.normals(slots * floats);
    for (size_t i = 0; i < states.size(); i++) {
        size_t at = i % floats;
        int column = static_cast<int>(at - convolution) / (shape.keys * TILE) % shape.tiles() * TILE + static_cast<int>(at - convolution) % TILE;
        if (at >= static_cast<size_t>(convolution) && column >= shape.values) {
            states[i] = 0.0f;
        }
    }
    return states;
}

unsigned warps(int units) {
    return static_cast<unsigned>((units + 3) / 4);
}

// The rows of `of` that are drafted.
std::vector<float> drafted(const Steps &steps, const std::vector<float> &of, int stride, int from, int width) {
    std::vector<float> kept;
    for (const Span &span : steps.spans) {
        for (unsigned at = span.rows - span.drafted; at < span.rows; at++) {
            auto begin = of.begin() + (span.row + at) * stride + from;
            kept.insert(kept.end(), begin, begin + width);
        }
    }
    return kept;
}

// Accepts the first of the drafted rows of each span, `most` at most: the steps of `advance`, whose rows are those kept.
Steps accepted(const Steps &steps, unsigned most) {
    Steps again;
    for (const Span &span : steps.spans) {
        if (span.drafted > 0) {
            again.add(static_cast<int>(std::min(most, span.drafted)), 0, false);
            again.spans.back().row = span.kept;
            again.spans.back().slot = span.slot;
        }
    }
    return again;
}

// The same steps, had these rows not been drafted.
Steps not_drafted(Steps steps, unsigned most) {
    for (Span &span : steps.spans) {
        span.drafted -= std::min(most, span.drafted);
    }
    return steps;
}

using Token = std::function<std::vector<float>(unsigned row, std::vector<float> &state)>;
// Runs the kernels: with inputs of the step and somewhere to keep drafted rows, or again with what was kept.
using Run = std::function<void(const Steps &steps, bool again, float *states, float *kept, float *out)>;

// Compares a layer with its tokens. `kept`: what is to be kept of drafted rows.
void check_layer(const std::vector<float> &initial, size_t floats, int width, const std::vector<float> &kept, const Token &token,
                 const Run &run) {
    Steps steps = some_steps();
    std::vector<float> states = initial, want_states = initial, want(steps.rows * width), out(want.size(), NAN);
    std::vector<float> keeps(kept.size(), NAN);
    reference(steps, want_states, floats, width, want, token);
    run(steps, false, states.data(), keeps.data(), out.data());
    for (const Span &span : steps.spans) {
        // Padding is zero, of whichever sign.
        for (int i = 0; span.rows == 0 && i < width; i++) {
            CHECK(out[span.row * width + i] == 0.0f);
            out[span.row * width + i] = 0.0f;
        }
    }
    CHECK(same_bits(out, want));
    CHECK(same_bits(states, want_states));
    CHECK(same_bits(keeps, kept));
    for (unsigned most : {1u, 2u, 4u}) {
        std::vector<float> before = states, after = initial;
        reference(not_drafted(steps, most), after, floats, width, want, token);
        run(accepted(steps, most), true, before.data(), keeps.data(), nullptr);
        CHECK(same_bits(before, after));
    }
}

const Shape SHAPES[CASES] = {
    {4, 128, 40, 2, 2, 4}, {4, 128, 32, 2, 0, 2}, {3, 20, 33, 3, 1, 3}, {6, 7, 5, 2, 0, 5}, {2, 64, 64, 1, 2, 4}, {1, 300, 70, 1, 1, 17},
};

} // namespace

TEST(softplus_is_the_formula) {
    for (int i = -110000; i < 25000; i++) {
        float x = static_cast<float>(i) * 1e-3f;
        double want = x > 20.0f ? x : std::log1p(std::exp(static_cast<double>(x)));
        CHECK_NEAR(static_cast<double>(recurrent::softplus(x)), want, want * 6e-8 + 1e-45);
    }
    CHECK(std::isnan(recurrent::softplus(NAN)) && recurrent::softplus(INFINITY) == INFINITY && recurrent::softplus(-INFINITY) == 0.0f);
}

TEST(delta_nets_have_the_bits_of_their_tokens) {
    for (int n = 0; n < CASES; n++) {
        const Shape &shape = SHAPES[n];
        Random random(n + 1);
        Steps steps = some_steps();
        int keys = shape.groups * shape.keys, values = shape.heads * shape.values, channels = 2 * keys + values;
        int convolution = (shape.kernel - 1) * channels, stride = channels + values, heads = shape.heads;
        size_t floats = convolution + shape.matrices();
        std::vector<float> x = random.normals(steps.rows * stride), logits = random.normals(steps.rows * 2 * heads, 4.0f);
        std::vector<float> weights = random.normals(shape.kernel * channels), bias = random.normals(heads);
        std::vector<float> a = random.normals(heads), norm = random.normals(shape.values);
        for (float &value : a) {
            value = -std::fabs(value);
        }
        float factor = 1.0f / std::sqrt(static_cast<float>(shape.keys)), eps = 1e-6f;
        const int at[] = {0, keys, 2 * keys};
        auto token = [&](unsigned row, std::vector<float> &state) {
            std::vector<float> mixed(channels), gates(2 * heads);
            for (int c = 0; c < channels; c++) {
                float sum = reference_conv(&state[c], &weights[c], channels, shape.kernel, x[row * stride + c]);
                mixed[c] = reference_silu(sum);
            }
            for (int head = 0; head < 2 * shape.groups; head++) {
                float *own = &mixed[head * shape.keys];
                float scale = (head < shape.groups ? factor : 1.0f) / std::sqrt(sum_of_squares(own, shape.keys) + eps);
                for (int i = 0; i < shape.keys; i++) {
                    own[i] *= scale;
                }
            }
            for (int head = 0; head < heads; head++) {
                const float *own = &logits[row * 2 * heads];
                gates[2 * head] = bn_exp(a[head] * recurrent::softplus(own[heads + head] + bias[head]));
                gates[2 * head + 1] = 1.0f / (1.0f + bn_exp(-own[head]));
            }
            std::vector<float> y = reference_heads(shape, mixed.data(), at, gates.data(), nullptr, &state[convolution]);
            for (int i = 0; i < values; i++) {
                float *own = &y[i];
                if (i % shape.values == 0) {
                    float scale = 1.0f / std::sqrt(sum_of_squares(own, shape.values) / static_cast<float>(shape.values) + eps);
                    for (int j = 0; j < shape.values; j++) {
                        own[j] = own[j] * scale * norm[j];
                    }
                }
                *own *= reference_silu(x[row * stride + channels + i]);
            }
            return y;
        };
        int width = channels + 2 * heads;
        auto run = [&](const Steps &of, bool again, float *states, float *kept, float *out) {
            std::vector<float> mixed(steps.rows * channels, NAN), gates(steps.rows * 2 * heads, NAN), y(steps.rows * values, NAN);
            dim3 blocks(static_cast<unsigned>(of.tasks.size()), warps(2 * shape.groups + heads + 1));
            launch(bn_delta_prepare, blocks, 128, 0, again ? kept : x.data(), again ? width : stride,
                   again ? kept + channels : logits.data(), again ? width : 2 * heads, weights.data(), a.data(), bias.data(),
                   of.spans.data(), of.tasks.data(), of.saves.data(), states, floats, again ? nullptr : kept, mixed.data(),
                   gates.data(), shape.groups, heads, shape.keys, shape.values, shape.kernel, factor, eps);
            dim3 tiles(static_cast<unsigned>(of.spans.size()), static_cast<unsigned>(heads * shape.tiles()));
            auto kernel = shape.keys == 128 && channels % 4 == 0 ? bn_delta_recur_128 : bn_delta_recur;
            launch(kernel, tiles, 32, shape.keys * 128, mixed.data(), gates.data(), nullptr, of.spans.data(), of.saves.data(),
                   states + convolution, floats, again ? nullptr : y.data(), heads, shape.keys, shape.values, channels, at[0],
                   at[1], at[2], shape.groups, shape.each);
            if (!again) {
                launch(bn_delta_norm, warps(steps.rows * heads), 128, 0, y.data(), x.data() + channels, stride, norm.data(), eps,
                       out, steps.rows * heads, heads, shape.values);
            }
        };
        std::vector<float> kept, inputs = drafted(steps, x, stride, 0, channels), own = drafted(steps, logits, 2 * heads, 0, 2 * heads);
        for (int row = 0; row < steps.drafted; row++) {
            kept.insert(kept.end(), inputs.begin() + row * channels, inputs.begin() + (row + 1) * channels);
            kept.insert(kept.end(), own.begin() + row * 2 * heads, own.begin() + (row + 1) * 2 * heads);
        }
        check_layer(some_states(random, shape, convolution, steps.slots), floats, values, kept, token, run);
    }
}

TEST(mamba_has_the_bits_of_its_tokens) {
    for (int n = 0; n < CASES; n++) {
        const Shape &shape = SHAPES[n];
        if (shape.each == 0) {
            continue; // heads of a group follow each other
        }
        Random random(n + 1);
        Steps steps = some_steps();
        int inner = shape.heads * shape.values, vectors = shape.groups * shape.keys, channels = inner + 2 * vectors;
        int convolution = (shape.kernel - 1) * channels, heads = shape.heads, stride = inner + channels + heads;
        int group = inner / shape.groups, norms = n % 3;
        size_t floats = convolution + shape.matrices();
        std::vector<float> x = random.normals(steps.rows * stride, 2.0f), weights = random.normals(shape.kernel * channels);
        std::vector<float> conv_bias = random.normals(channels), bias = random.normals(heads), skip = random.normals(heads);
        std::vector<float> a = random.normals(heads), norm = random.normals(inner);
        for (float &value : a) {
            value = -std::fabs(value);
        }
        float by_step = 0.7f, least = 0.2f, most = 1.5f, by_gate = 0.9f, by_out = 1.25f, eps = 1e-5f;
        const int at[] = {inner + vectors, inner, 0};
        auto normed = [&](std::vector<float> &y) {
            for (int g = 0; g < shape.groups; g++) {
                float *own = &y[g * group];
                float scale = 1.0f / std::sqrt(sum_of_squares(own, group) / static_cast<float>(group) + eps);
                for (int i = 0; i < group; i++) {
                    own[i] = own[i] * scale * norm[g * group + i];
                }
            }
        };
        auto token = [&](unsigned row, std::vector<float> &state) {
            const float *own = &x[row * stride + inner];
            std::vector<float> mixed(channels), gates(2 * heads);
            for (int c = 0; c < channels; c++) {
                float sum = reference_conv(&state[c], &weights[c], channels, shape.kernel, own[c]);
                mixed[c] = reference_silu(sum + conv_bias[c]);
            }
            for (int head = 0; head < heads; head++) {
                float step = recurrent::softplus(own[channels + head] * by_step + bias[head]);
                step = std::min(std::max(step, least), most);
                gates[2 * head] = bn_exp(a[head] * step);
                gates[2 * head + 1] = step;
            }
            std::vector<float> y = reference_heads(shape, mixed.data(), at, gates.data(), skip.data(), &state[convolution]);
            if (norms == NORM_BEFORE) {
                normed(y);
            }
            for (int i = 0; i < inner; i++) {
                y[i] = reference_silu(x[row * stride + i] * by_gate) * (y[i] * by_out);
            }
            if (norms == NORM_AFTER) {
                normed(y);
            }
            return y;
        };
        int width = channels + heads;
        auto run = [&](const Steps &of, bool again, float *states, float *kept, float *out) {
            std::vector<float> mixed(steps.rows * channels, NAN), gates(steps.rows * 2 * heads, NAN), y(steps.rows * inner, NAN);
            dim3 blocks(static_cast<unsigned>(of.tasks.size()), warps((channels + 127) / 128 + 1));
            launch(bn_mamba_prepare, blocks, 128, 0, again ? kept : x.data() + inner, again ? width : stride, weights.data(),
                   conv_bias.data(), a.data(), bias.data(), of.spans.data(), of.tasks.data(), of.saves.data(), states, floats,
                   again ? nullptr : kept, mixed.data(), gates.data(), channels, heads, shape.kernel, by_step, least, most);
            dim3 tiles(static_cast<unsigned>(of.spans.size()), static_cast<unsigned>(heads * shape.tiles()));
            auto kernel = shape.keys == 128 && channels % 4 == 0 ? bn_mamba_recur_128 : bn_mamba_recur;
            launch(kernel, tiles, 32, shape.keys * 128, mixed.data(), gates.data(), skip.data(), of.spans.data(),
                   of.saves.data(), states + convolution, floats, again ? nullptr : y.data(), heads, shape.keys, shape.values,
                   channels, at[0], at[1], at[2], shape.groups, shape.each);
            if (!again) {
                dim3 rows(static_cast<unsigned>(steps.rows), static_cast<unsigned>(shape.groups));
                launch(bn_mamba_gate, rows, 64, group * 4, y.data(), x.data(), stride, norms == NORM_NEVER ? nullptr : norm.data(),
                       eps, norms, by_gate, by_out, out, group);
            }
        };
        check_layer(some_states(random, shape, convolution, steps.slots), floats, inner, drafted(steps, x, stride, inner, width),
                    token, run);
    }
}

TEST(short_convolutions_have_the_bits_of_their_tokens) {
    for (int channels : {1, 33, 128, 300}) {
        for (int kernel : {2, 3, 9}) {
            Random random(channels + kernel);
            Steps steps = some_steps();
            int stride = 3 * channels;
            size_t floats = (kernel - 1) * channels;
            std::vector<float> x = random.normals(steps.rows * stride), weights = random.normals(kernel * channels);
            std::vector<float> products(steps.rows * channels);
            for (size_t i = 0; i < products.size(); i++) {
                size_t at = i / channels * stride + i % channels;
                products[i] = x[at] * x[at + 2 * channels];
            }
            auto token = [&](unsigned row, std::vector<float> &state) {
                std::vector<float> y(channels);
                for (int c = 0; c < channels; c++) {
                    float sum = reference_conv(&state[c], &weights[c], channels, kernel, products[row * channels + c]);
                    y[c] = sum * x[row * stride + channels + c];
                }
                return y;
            };
            auto run = [&](const Steps &of, bool again, float *states, float *kept, float *out) {
                dim3 blocks(static_cast<unsigned>(of.tasks.size()), warps((channels + 127) / 128));
                launch(bn_short_conv, blocks, 128, 0, again ? kept : x.data(), again ? nullptr : x.data() + 2 * channels,
                       again ? nullptr : x.data() + channels, again ? channels : stride, weights.data(), of.spans.data(),
                       of.tasks.data(), of.saves.data(), states, floats, again ? nullptr : kept, out, channels, kernel);
            };
            check_layer(random.normals(steps.slots * floats), floats, channels, drafted(steps, products, channels, 0, channels),
                        token, run);
        }
    }
}
