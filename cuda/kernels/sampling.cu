// From rows of logits to tokens: the draws of src/sample for requests that set no more than temperature, top_k, top_p
// and min_p, which apply in this order.
//
// The filters always keep a prefix of one order: larger logits first, the lower token first among equals. So a limit in
// this order describes what is left. After each filter it is packed from the row again, since sums of weights go by 256
// of the remaining logits (src/kernels/rows/logits.rs).
//
// The sums that decide a draw follow the CPU's order. So do the sums of top_p where the CPU sorts at most `FEW` tokens.
// Otherwise its sums in f64 have another order here, and if a sum is within a rounding error of top_p, one token more
// or less is kept.
//
// The host computes log probabilities, from logits and from the same sum of weights that it would compute itself.

#include "board.cuh"
#include "philox.cuh"

#include <cfloat>
#include <cmath>

namespace sampling {

// Logits that share a maximum, and logits whose weights are summed in f32, in 16 lanes.
constexpr int TOP = 128;
constexpr int PART = 256;
constexpr int LANES = 16;
// The most tokens that are sorted.
constexpr int FEW = 2048;
// This many of the first tokens usually have the wanted share of the mass.
constexpr int GUESS = 256;
// Powers of 2 up to this exponent count as 0.
constexpr float LOWEST = -127.0f;
constexpr float LOG2_E = 1.44269504088896340736f;

// The block's layout of shared memory.
struct Room {
    Board *board;
    // [FEW]
    uint64_t *list;
    float *weights;
    // [count / PART, rounded up]
    double *masses;
};

constexpr size_t LIST_BYTES = FEW * sizeof(uint64_t), WEIGHTS_BYTES = FEW * sizeof(float);

BN_DEVICE Room room_of(unsigned char *shared) {
    return {reinterpret_cast<Board *>(shared + LIST_BYTES + WEIGHTS_BYTES), reinterpret_cast<uint64_t *>(shared),
            reinterpret_cast<float *>(shared + LIST_BYTES),
            reinterpret_cast<double *>(shared + LIST_BYTES + WEIGHTS_BYTES + sizeof(Board))};
}

// Returns a key in the order of likelihood: more likely tokens have smaller keys.
BN_DEVICE uint64_t place_of(float logit, uint32_t at) {
    return static_cast<uint64_t>(~ascending(logit)) << 32 | at;
}

BN_DEVICE float logit_at(uint64_t place) {
    return from_ascending(~static_cast<uint32_t>(place >> 32));
}

constexpr uint64_t NOWHERE = ~static_cast<uint64_t>(0);

// How logits become weights: e^((x - max) / temperature).
struct Scale {
    float max;
    float slope;
};

// Returns 2^x for x from `LOWEST` to 0, with the CPU's bits.
BN_DEVICE float exp2_neg(float x) {
    constexpr float ROUND = 12582912.0f;
    float shifted = add_rn(x, ROUND), r = add_rn(x, -add_rn(shifted, -ROUND));
    float p = 1.3264727e-3f;
    p = add_rn(mul_rn(p, r), 9.671513e-3f);
    p = add_rn(mul_rn(p, r), 5.5507336e-2f);
    p = add_rn(mul_rn(p, r), 2.4022243e-1f);
    p = add_rn(mul_rn(p, r), 6.93147e-1f);
    p = add_rn(mul_rn(p, r), 1.0f);
    return mul_rn(p, __uint_as_float((__float_as_uint(shifted) - __float_as_uint(ROUND) + 127u) << 23));
}

BN_DEVICE float weight_of(Scale scale, float logit) {
    float power = mul_rn(add_rn(logit, -scale.max), scale.slope);
    return exp2_neg(power > LOWEST ? power : LOWEST);
}

// Sorts the first `count` elements of the list and fills it with NOWHERE up to a power of two.
BN_DEVICE void sort(uint64_t *list, int count) {
    int size = 1, own = static_cast<int>(threadIdx.x);
    while (size < count) {
        size *= 2;
    }
    for (int at = count + own; at < size; at += THREADS) {
        list[at] = NOWHERE;
    }
    for (int width = 2; width <= size; width *= 2) {
        for (int distance = width / 2; distance > 0; distance /= 2) {
            sync_block();
            for (int n = own; n < size / 2; n += THREADS) {
                int low = 2 * n - n % distance, high = low + distance;
                uint64_t a = list[low], b = list[high];
                if ((a > b) == ((low & width) == 0)) {
                    list[low] = b;
                    list[high] = a;
                }
            }
        }
    }
    sync_block();
}

// The remaining part of a row: its logits, and their tokens, or null for the whole row.
struct Left {
    const float *logits;
    const uint32_t *tokens;
    int count;
};

// Finds how far down the order a number of tokens or a share of the mass reaches.
struct Search {
    Room room;
    Left left;
    Scale scale;
    // Whether each token weighs 1.
    bool counts;

    __device__ __forceinline__ double weight(float logit) const {
        return counts ? 1.0 : static_cast<double>(weight_of(scale, logit));
    }

    // Returns a logit that at least `guess` logits reach, if that many groups have a possible maximum.
    __device__ __forceinline__ float bar(int guess) const {
        int tops = (left.count + TOP - 1) / TOP;
        for (int n = warp(); n < tops; n += WARPS) {
            float top = -INFINITY;
            for (int at = TOP * n + lane(); at < TOP * (n + 1) && at < left.count; at += WARP) {
                top = left.logits[at] > top ? left.logits[at] : top;
            }
            top = warp_max(top);
            if (lane() == 0) {
                room.list[n] = top > -FLT_MAX ? place_of(top, static_cast<uint32_t>(n)) : NOWHERE;
            }
        }
        sync_block();
        sort(room.list, tops);
        int possible = compact(room.board, tops, -1, [&](int n) { return room.list[n]; },
                               [](uint64_t place, int) { return place != NOWHERE; }, [](int, int, uint64_t) {});
        int last = (guess < possible ? guess : possible) - 1;
        float found = last < 0 ? -FLT_MAX : logit_at(room.list[last]);
        sync_block();
        return found;
    }

    // Returns the first element of the sorted list at which the running sum reaches `wanted`, or NOWHERE.
    __device__ __forceinline__ uint64_t cut(int count, double wanted) const {
        for (int n = static_cast<int>(threadIdx.x); n < count; n += THREADS) {
            room.weights[n] = static_cast<float>(weight(logit_at(room.list[n])));
        }
        sync_block();
        int found = -1;
        if (threadIdx.x == 0) {
            double sum = 0.0;
            for (int n = 0; n < count && found < 0; n++) {
                sum = add_rn(sum, static_cast<double>(room.weights[n]));
                found = sum >= wanted ? n : -1;
            }
        }
        found = from_first(&room.board->found, found);
        return found < 0 ? NOWHERE : room.list[found];
    }

    // Returns the weight of all logits whose number in ascending order is at least `number`. All of them are possible.
    __device__ __forceinline__ double sum_from(uint32_t number) const {
        double sum = 0.0;
        for (int at = static_cast<int>(threadIdx.x); at < left.count; at += THREADS) {
            sum = add_rn(sum, ascending(left.logits[at]) >= number ? weight(left.logits[at]) : 0.0);
        }
        return block_sum(room.board, sum);
    }

    // As `reach`, by bisection over the floats, for cases with too many tokens to sort.
    __device__ __forceinline__ uint64_t narrow(double wanted) const {
        uint32_t low = ascending(-FLT_MAX), high = ascending(scale.max) + 1;
        if (sum_from(low) < wanted) {
            return NOWHERE;
        }
        while (high - low > 1) {
            uint32_t middle = low + (high - low) / 2;
            bool reaches = sum_from(middle) >= wanted;
            low = reaches ? middle : low;
            high = reaches ? high : middle;
        }
        double missing = add_rn(wanted, -sum_from(high)), each = weight(from_ascending(low));
        double needed = each > 0.0 ? ceil(div_rn(missing, each)) : 1.0;
        auto read = [&](int at) { return left.logits[at]; };
        auto equal = [&](float x, int) { return ascending(x) == low; };
        int all = compact(room.board, left.count, -1, read, equal, [](int, int, float) {});
        int nth = needed < all ? static_cast<int>(needed) - 1 : all - 1;
        compact(room.board, left.count, left.count, read, equal, [&](int n, int at, float) {
            if (n == (nth > 0 ? nth : 0)) {
                room.board->found = at;
            }
        });
        return place_of(from_ascending(low), static_cast<uint32_t>(room.board->found));
    }

    // Sorts the logits above a bar that at least `guess` reach, or all possible ones. Returns their number. More than
    // FEW are not sorted.
    __device__ __forceinline__ int first(int guess) const {
        float low = left.count <= FEW ? -FLT_MAX : bar(guess);
        int count = compact(room.board, left.count, FEW, [&](int at) { return left.logits[at]; },
                            [&](float x, int) { return x >= low; },
                            [&](int n, int at, float x) { room.list[n] = place_of(x, static_cast<uint32_t>(at)); });
        if (count <= FEW) {
            sort(room.list, count);
        }
        return count;
    }

    // Returns the last place of the shortest prefix that weighs at least `wanted`, or NOWHERE. `guess`: its likely
    // length.
    __device__ __forceinline__ uint64_t reach(double wanted, int guess) const {
        if ((guess < left.count ? guess : left.count) <= FEW) {
            int count = first(guess);
            if (count <= FEW) {
                uint64_t place = cut(count, wanted);
                if (place != NOWHERE) {
                    return place;
                }
            }
        }
        return narrow(wanted);
    }
};

// A row, and the memory where its remaining part is packed.
struct Row {
    Room room;
    const float *logits;
    int vocab;
    float *packed;
    uint32_t *tokens;
};

// Packs the tokens up to place `last`, if that is before `limit`, and lowers `limit` to it. Both are places of tokens.
BN_DEVICE void keep(const Row &row, Left &left, uint64_t last, uint64_t &limit) {
    if (last >= limit) {
        return;
    }
    limit = last;
    float low = logit_at(last);
    uint32_t token = static_cast<uint32_t>(last);
    auto keeps = [&](float x, int at) { return x > low || (x == low && static_cast<uint32_t>(at) <= token); };
    auto read = [&](int at) { return row.logits[at]; };
    int count = compact(row.room.board, row.vocab, row.vocab, read, keeps, [&](int n, int from, float x) {
        row.packed[n] = x;
        row.tokens[n] = static_cast<uint32_t>(from);
    });
    left = {row.packed, row.tokens, count};
}

// Converts a place in `left` to the token's place.
BN_DEVICE uint64_t token_place(const Left &left, uint64_t place) {
    if (place == NOWHERE || left.tokens == nullptr) {
        return place;
    }
    return (place >> 32 << 32) | left.tokens[static_cast<uint32_t>(place)];
}

// Returns the weight of what is left, and stores that of each PART in `masses`: sixteen lanes in f32, then a tree and a
// sum in f64.
BN_DEVICE double weigh(const Room &room, const Left &left, Scale scale) {
    constexpr int EACH = PART / LANES, GROUPS = THREADS / LANES;
    int parts = (left.count + PART - 1) / PART, own = static_cast<int>(threadIdx.x) % LANES;
    auto load = [&](float (&x)[EACH], int part) {
        BN_UNROLL
        for (int n = 0; n < EACH; n++) {
            int at = PART * part + LANES * n + own;
            // -infinity weighs nothing.
            x[n] = at < left.count ? left.logits[at] : -INFINITY;
        }
    };
    float x[EACH], next[EACH];
    int part = static_cast<int>(threadIdx.x) / LANES;
    load(x, part);
    for (int base = 0; base < parts; base += GROUPS) {
        load(next, part + GROUPS);
        float weights = 0.0f;
        BN_UNROLL
        for (int n = 0; n < EACH; n++) {
            weights = add_rn(weights, weight_of(scale, x[n]));
            x[n] = next[n];
        }
        double sum = static_cast<double>(weights);
        for (int mask = LANES / 2; mask > 0; mask /= 2) {
            sum = add_rn(sum, shfl_xor(sum, mask));
        }
        if (own == 0 && part < parts) {
            room.masses[part] = sum;
        }
        part += GROUPS;
    }
    sync_block();
    double mass = 0.0;
    if (threadIdx.x == 0) {
        in_order(room.masses, parts, [&](double x, int) {
            mass = add_rn(mass, x);
            return true;
        });
    }
    return from_first(&room.board->mass, mass);
}

// Returns the first token at which the running sum of weights exceeds `u` of the total; if rounding leaves the sum
// short, the last token with a weight.
BN_DEVICE int draw(const Room &room, const Left &left, Scale scale, double u) {
    double rest = mul_rn(u, weigh(room, left, scale));
    int from = 0, last = 0, parts = (left.count + PART - 1) / PART;
    if (threadIdx.x == 0) {
        in_order(room.masses, parts - 1, [&](double mass, int part) {
            bool passes = rest >= mass;
            rest = passes ? add_rn(rest, -mass) : rest;
            from = passes ? part + 1 : from;
            return passes;
        });
    }
    from = PART * from_first(&room.board->found, from);
    for (bool found = false; from < left.count && !found; from += PART) {
        int count = left.count - from < PART ? left.count - from : PART;
        for (int n = static_cast<int>(threadIdx.x); n < count; n += THREADS) {
            room.weights[n] = weight_of(scale, left.logits[from + n]);
        }
        sync_block();
        if (threadIdx.x == 0) {
            in_order(room.weights, count, [&](float weight, int n) {
                last = weight > 0.0f ? from + n : last;
                rest = add_rn(rest, -static_cast<double>(weight));
                found = weight > 0.0f && rest < 0.0;
                return !found;
            });
        }
        found = from_first(&room.board->found, static_cast<int>(found)) != 0;
    }
    last = from_first(&room.board->found, last);
    return left.tokens != nullptr ? static_cast<int>(left.tokens[last]) : last;
}

// Applies top-k, top-p and min-p to a row.
BN_DEVICE Left filtered(const Row &row, Scale scale, float temperature, int top_k, float top_p, float min_p_log) {
    Left left = {row.logits, nullptr, row.vocab};
    uint64_t limit = NOWHERE;
    if (top_k > 0 && top_k < row.vocab) {
        Search search = {row.room, left, scale, true};
        keep(row, left, token_place(left, search.reach(static_cast<double>(top_k), top_k)), limit);
    }
    if (top_p < 1.0f) {
        Search search = {row.room, left, scale, false};
        double wanted = mul_rn(static_cast<double>(top_p), weigh(row.room, left, scale));
        keep(row, left, token_place(left, search.reach(wanted, GUESS)), limit);
    }
    if (min_p_log > -INFINITY) {
        float floor = add_rn(scale.max, mul_rn(temperature, min_p_log));
        keep(row, left, place_of(floor < scale.max ? floor : scale.max, 0xFFFFFFFFu), limit);
    }
    return left;
}

// A change to the logit of one token.
struct Edit {
    unsigned token;
    // 0: no penalties. Otherwise the token occurs count - 1 times in the output.
    unsigned count;
    float bias;
};

struct Penalties {
    float repetition, frequency, presence;
};

// As in src/sample/adjust.rs.
BN_DEVICE float edited(float logit, const Edit &edit, const Penalties &penalties) {
    logit = fminf(add_rn(logit, edit.bias), FLT_MAX);
    if (edit.count == 0) {
        return logit;
    }
    logit = logit > 0.0f ? div_rn(logit, penalties.repetition) : mul_rn(logit, penalties.repetition);
    if (edit.count > 1) {
        float times = static_cast<float>(edit.count - 1);
        logit = add_rn(logit, -add_rn(mul_rn(times, penalties.frequency), penalties.presence));
    }
    return fminf(logit, FLT_MAX);
}

// How to draw a row's token, and what to report about the row.
struct Draw {
    unsigned long long seed, position;
    // 0: take the most likely token.
    float temperature;
    // 0: no limit.
    int top_k;
    // 1: no limit.
    float top_p;
    // The natural logarithm of min_p in f32; -infinity: no limit.
    float min_p_log;
    Penalties penalties;
    // Range of the row's edits. Each is of a different token below `vocab`.
    unsigned edits, edits_end;
    // The number of most likely tokens to report, at most `THREADS`; below 0: no report.
    int tops;
    // Range of further tokens to report.
    unsigned listed, listed_end;
    // Offset of the report, in `Likely`.
    unsigned report;
};

struct Likely {
    unsigned token;
    float logit;
};

// The data for log probabilities, of the row before edits. Followed by `tops` and then the listed tokens, as `Likely`.
struct Report {
    // The weight of all logits at temperature 1.
    double mass;
    // The largest logit, and the drawn token's logit.
    float max, logit;
};

constexpr unsigned NO_TOKEN = 0xFFFFFFFFu;

// Writes the `count` most likely tokens in order: impossible ones last, then NO_TOKEN if the vocabulary has no more.
BN_DEVICE void report_tops(const Row &row, Scale scale, int count, Likely *to) {
    Search search = {row.room, {row.logits, nullptr, row.vocab}, scale, true};
    int own = static_cast<int>(threadIdx.x), found = search.first(count);
    if (found < count || found > FEW) {
        // Many logits are equal, or some parts of the row contain several of the largest.
        uint64_t last = search.narrow(static_cast<double>(count)), least = place_of(-FLT_MAX, NO_TOKEN);
        last = last < least ? last : least;
        found = compact(row.room.board, row.vocab, FEW,
                        [&](int at) { return place_of(row.logits[at], static_cast<uint32_t>(at)); },
                        [&](uint64_t place, int) { return place <= last; },
                        [&](int n, int, uint64_t place) { row.room.list[n] = place; });
        sort(row.room.list, found);
    }
    found = found < count ? found : count;
    if (own < found) {
        unsigned token = static_cast<unsigned>(row.room.list[own]);
        to[own] = {token, row.logits[token]};
    }
    if (own >= row.vocab && own < count) {
        to[own] = {NO_TOKEN, -INFINITY};
    }
    if (found < count) {
        compact(row.room.board, row.vocab, row.vocab, [&](int at) { return row.logits[at]; },
                [](float x, int) { return x == -INFINITY; }, [&](int n, int at, float) {
                    if (n < count - found) {
                        to[found + n] = {static_cast<unsigned>(at), -INFINITY};
                    }
                });
    }
}

// Writes the report that `draw` asks for. `max` is the row's largest logit.
BN_DEVICE void report(const Row &row, const Draw &draw, float max, int token, const unsigned *listed, Likely *to) {
    Scale scale = {max, LOG2_E};
    double mass = weigh(row.room, {row.logits, nullptr, row.vocab}, scale);
    if (threadIdx.x == 0) {
        *reinterpret_cast<Report *>(to) = {mass, max, row.logits[token]};
    }
    to += sizeof(Report) / sizeof(Likely);
    if (draw.tops > 0) {
        report_tops(row, scale, draw.tops, to);
    }
    to += draw.tops;
    for (unsigned i = draw.listed + threadIdx.x; i < draw.listed_end; i += blockDim.x) {
        float logit = listed[i] < static_cast<unsigned>(row.vocab) ? row.logits[listed[i]] : -INFINITY;
        to[i - draw.listed] = {listed[i], logit};
    }
}

// Draws a token for each row of `logits` [rows, vocab] into `tokens` [rows], as `draws` [rows] say. A token is negative
// if the row holds NaN (-1), +infinity (-2) or only -infinity (-3), or if edits leave only -infinity (-4); then nothing
// is reported. Rows and `edits` may change. `packed` and `packed_tokens` [rows, vocab] are scratch memory. `vocab` is
// at most 262144. Grid: rows. Block: 512. Shared bytes: 24576 + 336 + 8 * (vocab / 256, rounded up).
BN_KERNEL_FOR(512, 1, sample)(int *tokens, Likely *reports, float *logits, float *packed, unsigned *packed_tokens,
                          const Draw *draws, Edit *edits, const unsigned *listed, int vocab) {
    begin_kernel();
    static_assert(sizeof(Board) == 336 && THREADS == 512, "as said above");
    static_assert(sizeof(Draw) == 72 && sizeof(Report) == 2 * sizeof(Likely), "as the host has them");
    BN_SHARED(shared);
    Room room = room_of(shared);
    // Loaded before the row.
    const Draw how = draws[blockIdx.x];
    size_t at = blockIdx.x * static_cast<size_t>(vocab);
    Row row = {room, logits + at, vocab, packed + at, packed_tokens + at};
    float max = 0.0f, raw_max = 0.0f;
    int token;
    bool edits_row = how.edits < how.edits_end, edited_row = false;
    while (true) {
        token = argmax(room.board->places, room.board->counts, row.logits, vocab, max);
        raw_max = edited_row ? raw_max : max;
        if (token < 0 || !edits_row || edited_row) {
            break;
        }
        for (unsigned i = how.edits + threadIdx.x; i < how.edits_end; i += blockDim.x) {
            Edit edit = edits[i];
            // The edit's bias is replaced by the original logit.
            edits[i].bias = logits[at + edit.token];
            logits[at + edit.token] = edited(edits[i].bias, edit, how.penalties);
        }
        edited_row = true;
        sync_block();
    }
    token = edited_row && token < 0 ? EDITS_LEAVE_NOTHING : token;
    if (token >= 0 && how.temperature > 0.0f) {
        float temperature = how.temperature > FLT_MIN ? how.temperature : FLT_MIN;
        Scale scale = {max, div_rn(LOG2_E, temperature)};
        Left left = filtered(row, scale, temperature, how.top_k, how.top_p, how.min_p_log);
        token = draw(room, left, scale, philox::uniform(how.seed, how.position, 0));
    }
    if (threadIdx.x == 0) {
        tokens[blockIdx.x] = token;
    }
    if (token >= 0 && how.tops >= 0) {
        sync_block();
        for (unsigned i = how.edits + threadIdx.x; i < how.edits_end; i += blockDim.x) {
            logits[at + edits[i].token] = edits[i].bias;
        }
        sync_block();
        report(row, how, raw_max, token, listed, reports + how.report);
    }
}

} // namespace sampling
