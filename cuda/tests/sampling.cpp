// Draws of tokens against a plain version of src/sample: sorts, and sums in the order of src/kernels/rows/logits.rs.

#include "../kernels/sampling.cu"
#include "check.h"

#include <algorithm>
#include <cstring>

namespace {

using Floats = std::vector<float>;

float weight_reference(float logit, float max, float temperature) {
    float slope = 1.44269504f / temperature, power = (logit - max) * slope;
    power = power > -127.0f ? power : -127.0f;
    float shifted = power + 12582912.0f, r = power - (shifted - 12582912.0f), p = 1.3264727e-3f;
    for (float c : {9.671513e-3f, 5.5507336e-2f, 2.4022243e-1f, 6.93147e-1f, 1.0f}) {
        p = p * r + c;
    }
    int exponent = static_cast<int>(shifted - 12582912.0f);
    return exponent == -127 ? 0.0f : std::ldexp(p, exponent);
}

// A row's parameters.
struct Params {
    float temperature;
    int top_k = 0;
    float top_p = 1.0f, min_p = 0.0f;
    unsigned long long seed = 0, position = 0;
    float repetition = 1.0f, frequency = 0.0f, presence = 0.0f;
    std::vector<sampling::Edit> edits = {};
    int tops = -1;
    std::vector<unsigned> listed = {};
};

struct Kept {
    float max, temperature;
    // The remaining tokens in ascending order, with their logits.
    std::vector<int> tokens;
    Floats logits;
    std::vector<double> masses;

    float weight(size_t i) const { return weight_reference(logits[i], max, temperature); }

    double mass() {
        masses.clear();
        double all = 0.0;
        for (size_t from = 0; from < logits.size(); from += 256) {
            float lanes[16] = {};
            for (size_t i = from; i < std::min(from + 256, logits.size()); i++) {
                lanes[i % 16] += weight(i);
            }
            double wide[16];
            std::copy(lanes, lanes + 16, wide);
            for (int width = 8; width > 0; width /= 2) {
                for (int i = 0; i < width; i++) {
                    wide[i] += wide[i + width];
                }
            }
            masses.push_back(wide[0]);
            all += wide[0];
        }
        return all;
    }

    // The most likely tokens first, the lower token first among equals.
    std::vector<size_t> sorted() const {
        std::vector<size_t> order(tokens.size());
        for (size_t i = 0; i < order.size(); i++) {
            order[i] = i;
        }
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
        return order;
    }

    void keep(std::vector<size_t> places) {
        std::sort(places.begin(), places.end());
        for (size_t i = 0; i < places.size(); i++) {
            tokens[i] = tokens[places[i]];
            logits[i] = logits[places[i]];
        }
        tokens.resize(places.size());
        logits.resize(places.size());
    }

    // Keeps all if fewer are possible.
    void keep_reaching(double wanted, bool counts) {
        std::vector<size_t> order = sorted();
        double sum = 0.0;
        for (size_t n = 0; n < order.size() && logits[order[n]] > -INFINITY; n++) {
            sum += counts ? 1.0 : static_cast<double>(weight(order[n]));
            if (sum >= wanted) {
                order.resize(n + 1);
                keep(order);
                return;
            }
        }
    }
};

double uniform_reference(unsigned long long seed, unsigned long long position) {
    uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t left = uint64_t{c[0]} * 0xD2511F53u, right = uint64_t{c[2]} * 0xCD9E8D57u;
        uint32_t next[4] = {static_cast<uint32_t>(right >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(right),
            static_cast<uint32_t>(left >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(left)};
        std::copy(next, next + 4, c);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return static_cast<double>((uint64_t{c[0]} << 32 | c[1]) >> 11) / 9007199254740992.0;
}

int draw_reference(Kept &kept, double u) {
    double left = u * kept.mass();
    size_t from = 0, last = 0;
    for (size_t part = 0; part + 1 < kept.masses.size() && left >= kept.masses[part]; part++) {
        left -= kept.masses[part];
        from += 256;
    }
    for (size_t i = from; i < kept.logits.size(); i++) {
        double weight = static_cast<double>(kept.weight(i));
        last = weight > 0.0 ? i : last;
        left -= weight;
        if (weight > 0.0 && left < 0.0) {
            break;
        }
    }
    return kept.tokens[last];
}

// As in src/sample/adjust.rs.
Floats edited_reference(Floats logits, const Params &p) {
    for (const sampling::Edit &edit : p.edits) {
        float &logit = logits[edit.token];
        logit = std::min(logit + edit.bias, 3.40282347e38f);
        if (edit.count > 0) {
            logit = logit > 0.0f ? logit / p.repetition : logit * p.repetition;
        }
        if (edit.count > 1) {
            float penalty = static_cast<float>(edit.count - 1) * p.frequency;
            penalty += p.presence;
            logit -= penalty;
        }
        logit = std::min(logit, 3.40282347e38f);
    }
    return logits;
}

int sample_reference(const Floats &given, const Params &p) {
    Params plain = p;
    plain.edits.clear();
    if (!p.edits.empty()) {
        // Defects of the row before edits come first.
        plain.temperature = 0.0f;
        int raw = sample_reference(given, plain);
        plain.temperature = p.temperature;
        int token = raw < 0 ? raw : sample_reference(edited_reference(given, p), plain);
        return raw >= 0 && token < 0 ? -4 : token;
    }
    const Floats &logits = given;
    float max = -INFINITY;
    for (float x : logits) {
        if (x != x) {
            return -1;
        }
        max = std::max(max, x);
    }
    if (!std::isfinite(max)) {
        return max > 0.0f ? -2 : -3;
    }
    if (p.temperature == 0.0f) {
        return static_cast<int>(std::find(logits.begin(), logits.end(), max) - logits.begin());
    }
    Kept kept{max, std::max(p.temperature, 1.17549435e-38f), {}, logits, {}};
    for (size_t i = 0; i < logits.size(); i++) {
        kept.tokens.push_back(static_cast<int>(i));
    }
    if (p.top_k > 0 && static_cast<size_t>(p.top_k) < logits.size()) {
        kept.keep_reaching(p.top_k, true);
    }
    if (p.top_p < 1.0f) {
        kept.keep_reaching(static_cast<double>(p.top_p) * kept.mass(), false);
    }
    if (p.min_p > 0.0f) {
        float floor = std::min(max + kept.temperature * std::log(p.min_p), max);
        std::vector<size_t> places;
        for (size_t i = 0; i < kept.logits.size(); i++) {
            if (kept.logits[i] >= floor) {
                places.push_back(i);
            }
        }
        kept.keep(places);
    }
    return draw_reference(kept, uniform_reference(p.seed, p.position));
}

// A token, and the report about its row.
struct Drawn {
    int token;
    sampling::Report report = {};
    std::vector<sampling::Likely> likely = {};
};

// Tokens by likelihood, the lower token first among equals; none past the end of the vocabulary.
Drawn reported_reference(const Floats &logits, const Params &p) {
    Drawn drawn{sample_reference(logits, p)};
    if (drawn.token < 0 || p.tops < 0) {
        return drawn;
    }
    Kept all{*std::max_element(logits.begin(), logits.end()), 1.0f, std::vector<int>(logits.size()), logits, {}};
    drawn.report = {all.mass(), all.max, logits[static_cast<size_t>(drawn.token)]};
    std::vector<size_t> order = all.sorted();
    for (size_t n = 0; n < static_cast<size_t>(p.tops); n++) {
        bool is = n < order.size();
        drawn.likely.push_back({is ? static_cast<unsigned>(order[n]) : ~0u, is ? logits[order[n]] : -INFINITY});
    }
    for (unsigned token : p.listed) {
        drawn.likely.push_back({token, token < logits.size() ? logits[token] : -INFINITY});
    }
    return drawn;
}

// Runs the kernel on rows of one length.
std::vector<Drawn> sample(const std::vector<Floats> &rows, const std::vector<Params> &params) {
    size_t count = rows.size(), vocab = rows[0].size();
    Floats logits, packed(count * vocab);
    std::vector<int> tokens(count, -9);
    std::vector<unsigned> packed_tokens(count * vocab), listed;
    std::vector<sampling::Draw> draws;
    std::vector<sampling::Edit> edits;
    std::vector<sampling::Likely> reports;
    for (size_t n = 0; n < count; n++) {
        const Params &p = params[n];
        logits.insert(logits.end(), rows[n].begin(), rows[n].end());
        sampling::Draw draw = {p.seed, p.position, p.temperature, p.top_k, p.top_p, std::log(p.min_p),
            {p.repetition, p.frequency, p.presence}, static_cast<unsigned>(edits.size()), 0, p.tops,
            static_cast<unsigned>(listed.size()), 0, static_cast<unsigned>(reports.size())};
        edits.insert(edits.end(), p.edits.begin(), p.edits.end());
        listed.insert(listed.end(), p.listed.begin(), p.listed.end());
        draw.edits_end = static_cast<unsigned>(edits.size());
        draw.listed_end = static_cast<unsigned>(listed.size());
        draws.push_back(draw);
        reports.resize(reports.size() + (p.tops < 0 ? 0 : 2 + static_cast<size_t>(p.tops) + p.listed.size()));
    }
    size_t shared = 24576 + 336 + 8 * ((vocab + 255) / 256);
    launch(sampling::bn_sample, dim3(static_cast<unsigned>(count)), dim3(512), shared, tokens.data(), reports.data(),
        logits.data(), packed.data(), packed_tokens.data(), draws.data(), edits.data(), listed.data(),
        static_cast<int>(vocab));
    std::vector<Drawn> drawn;
    for (size_t n = 0; n < count; n++) {
        Drawn row{tokens[n]};
        if (tokens[n] >= 0 && params[n].tops >= 0) {
            auto from = reports.begin() + draws[n].report, likely = from + 2;
            std::memcpy(static_cast<void *>(&row.report), &*from, sizeof row.report);
            row.likely.assign(likely, likely + params[n].tops + static_cast<int>(params[n].listed.size()));
        }
        drawn.push_back(row);
    }
    return drawn;
}

// Rows that are hard to divide.
Floats some_row(int kind, size_t vocab, Random &random) {
    Floats row(vocab);
    for (float &x : row) {
        float u = random.uniform();
        x = kind == 0   ? 3.0f * random.normal()
            : kind == 1 ? 7.0f
            : kind == 2 ? std::floor(3.0f * u)
            : kind == 3 ? std::exp2(80.0f * u - 40.0f)
            : kind == 4 ? (u < 0.9f ? -INFINITY : u)
            : kind == 5 ? (u < 0.7f ? -3.40282347e38f : u)
            : kind == 6 ? 1e-3f * u
            : kind == 7 ? (u < 0.5f ? -0.0f : 0.0f)
                        : 20.0f * u;
    }
    return row;
}

// Compares to the last bit: the host's log probabilities are exact if the report is.
void compare(const Drawn &got, const Drawn &want) {
    CHECK_NEAR(got.token, want.token, 0);
    CHECK_NEAR(got.report.mass, want.report.mass, 0);
    CHECK(same_bits(got.report.max, want.report.max) && same_bits(got.report.logit, want.report.logit));
    CHECK(got.likely.size() == want.likely.size());
    for (size_t i = 0; i < std::min(got.likely.size(), want.likely.size()); i++) {
        CHECK_NEAR(got.likely[i].token, want.likely[i].token, 0);
        CHECK(same_bits(got.likely[i].logit, want.likely[i].logit));
    }
}

void compare(const std::vector<Floats> &rows, const std::vector<Params> &params) {
    std::vector<Drawn> got = sample(rows, params);
    for (size_t n = 0; n < rows.size(); n++) {
        compare(got[n], reported_reference(rows[n], params[n]));
    }
}

void ask_for_report(Params &p, size_t vocab, Random &random) {
    p.tops = random.below(4) == 0 ? 0 : random.below(33);
    for (int n = random.below(4) * random.below(80); n > 0; n--) {
        p.listed.push_back(static_cast<unsigned>(random.below(static_cast<int>(vocab) + 3)));
    }
}

Params some_params(Random &random) {
    Params p{random.below(8) == 0 ? 1.0f : 0.2f + 2.0f * random.uniform()};
    p.top_k = random.below(2) == 0 ? 0 : 1 + random.below(random.below(2) == 0 ? 50 : 4000);
    p.top_p = random.below(2) == 0 ? 1.0f : 0.01f + 0.98f * random.uniform();
    p.min_p = random.below(2) == 0 ? 0.0f : 0.5f * random.uniform() * random.uniform();
    p.seed = random.next();
    p.position = random.below(3) == 0 ? random.next() : static_cast<uint64_t>(random.below(5000));
    return p;
}

} // namespace

TEST(philox_known_answers) {
    const uint32_t kat[3][10] = {{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
            0x24126ea1}};
    for (const uint32_t(&k)[10] : kat) {
        philox::Words words = philox::philox4x32({{k[0], k[1], k[2], k[3]}}, k[4], k[5]);
        for (int i = 0; i < 4; i++) {
            CHECK(words.x[i] == k[6 + i]);
        }
    }
}

TEST(sample_greedy_and_what_is_no_distribution) {
    Params greedy{0.0f}, drawn{1.0f};
    auto one = [](Floats row, Params p) { return sample({row}, {p})[0].token; };
    for (const Params &p : {greedy, drawn}) {
        CHECK(one({0.0f, NAN, INFINITY}, p) == -1);
        CHECK(one({-INFINITY, -INFINITY, -INFINITY}, p) == -3);
        CHECK(one({0.0f, INFINITY, 1.0f}, p) == -2);
    }
    CHECK(one({1.0f, 5.0f, 2.0f, 5.0f}, greedy) == 1);
    CHECK(one({-0.0f, 0.0f}, greedy) == 0);
    CHECK(one({-INFINITY, -8.0f}, greedy) == 1);
    CHECK(one({-INFINITY, -8.0f}, drawn) == 1);
    Random random(1);
    for (size_t vocab : {1, 31, 1000, 2500}) {
        for (int kind = 0; kind < 9; kind++) {
            compare({some_row(kind, vocab, random)}, {greedy});
        }
    }
}

// Rows begin at any multiple of 4 bytes. The largest logits stand at the ends, and where batches meet.
TEST(sample_greedy_wherever_the_greatest_is) {
    Random random(8);
    for (size_t vocab : {1, 2, 3, 5, 6, 7, 8, 2047, 4098, 16385, 33003}) {
        std::vector<Floats> rows;
        std::vector<Params> params;
        std::vector<int> want;
        for (size_t place : {size_t(0), size_t(1), size_t(3), vocab / 2, vocab - 1, size_t(16383), size_t(16384)}) {
            Floats row = some_row(0, vocab, random);
            place = std::min(place, vocab - 1);
            row[place] = 100.0f;
            // Equal logits after it.
            for (size_t at : {place + 1, place + 4, place + 2048, vocab - 1}) {
                if (at > place && at < vocab) row[at] = 100.0f;
            }
            int kind = random.below(4);
            if (kind == 0) row[static_cast<size_t>(random.below(static_cast<int>(vocab)))] = NAN;
            if (kind == 1) row[vocab - 1] = INFINITY;
            rows.push_back(row);
            params.push_back({0.0f});
            want.push_back(kind == 0 ? -1 : kind == 1 ? -2 : static_cast<int>(place));
        }
        std::vector<Drawn> got = sample(rows, params);
        for (size_t n = 0; n < rows.size(); n++) CHECK_NEAR(got[n].token, want[n], 0);
    }
}

TEST(sample_draws_what_the_reference_draws) {
    Random random(2);
    for (int n = 0; n < 60; n++) {
        size_t vocab = 1 + static_cast<size_t>(random.below(n % 3 == 0 ? 9000 : 700));
        int kind = random.below(9);
        compare({some_row(kind, vocab, random), some_row(kind, vocab, random)}, {some_params(random), some_params(random)});
    }
}

TEST(sample_after_bias_and_penalties) {
    Random random(7);
    for (int n = 0; n < 40; n++) {
        size_t vocab = 1 + static_cast<size_t>(random.below(n % 3 == 0 ? 9000 : 700));
        std::vector<Params> params = {some_params(random), some_params(random), some_params(random)};
        for (Params &p : params) {
            p.temperature = random.below(3) == 0 ? 0.0f : p.temperature;
            p.repetition = random.below(3) == 0 ? 1.0f : 0.5f + random.uniform();
            p.frequency = random.below(3) == 0 ? 0.0f : 4.0f * random.uniform() - 2.0f;
            p.presence = random.below(3) == 0 ? 0.0f : 4.0f * random.uniform() - 2.0f;
            for (size_t token = 0; token < vocab; token += 1 + static_cast<size_t>(random.below(9))) {
                float bias = random.below(3) == 0 ? 20.0f * random.uniform() - 10.0f : 0.0f;
                bias = random.below(50) == 0 ? -INFINITY : bias;
                p.edits.push_back({static_cast<unsigned>(token), static_cast<unsigned>(random.below(4)), bias});
            }
            ask_for_report(p, vocab, random);
        }
        params[1].edits.clear();
        params[2].tops = -1;
        compare(std::vector<Floats>(3, some_row(random.below(9), vocab, random)), params);
    }
    Params none{0.0f};
    none.edits = {{0, 0, -INFINITY}, {1, 0, -INFINITY}};
    CHECK(sample({{1.0f, 2.0f}}, {none})[0].token == -4);
    CHECK(sample({{1.0f, NAN}}, {none})[0].token == -1);
    none.edits.pop_back();
    CHECK(sample({{1.0f, -8.0f}}, {none})[0].token == 1);
}

TEST(sample_of_flat_rows_too_long_to_sort) {
    Random random(3);
    for (int kind = 0; kind < 9; kind++) {
        std::vector<Floats> rows(3, some_row(kind, 5000 + static_cast<size_t>(random.below(1000)), random));
        Params p{5.0f}, q{0.9f}, r{3.0f};
        p.top_p = 0.9f, p.seed = random.next();
        q.top_k = 3000, q.top_p = 0.99f, q.seed = random.next();
        r.top_k = 2048, r.min_p = 0.3f, r.seed = random.next();
        compare(rows, {p, q, r});
    }
}

TEST(sample_reports_what_log_probabilities_are_made_of) {
    Random random(8);
    for (size_t vocab : {1, 2, 31, 33, 300, 2048, 2049, 4100, 9001}) {
        for (int kind = 0; kind < 9; kind++) {
            std::vector<Params> params = {Params{0.0f}, some_params(random), some_params(random)};
            std::vector<Floats> rows(3, some_row(kind, vocab, random));
            ask_for_report(params[0], vocab, random);
            params[0].tops = 32;
            ask_for_report(params[2], vocab, random);
            compare(rows, params);
        }
    }
    // All of the most likely tokens in one part of the row, and then as many parts as tokens that are asked for.
    Floats row(32 * 128, 0.0f);
    for (size_t i = 0; i < 40; i++) {
        row[1000 + i] = static_cast<float>(1 + i % 7);
    }
    Params p{0.0f};
    p.tops = 32;
    compare({row}, {p});
    row.assign(5000, -INFINITY);
    row[7] = row[4000] = -2.0f, row[4999] = -1.0f;
    compare({row}, {p});
    row = some_row(0, 128256, random);
    p.listed = {128255, 128256, 0};
    compare({row}, {p});
    Floats wrong = {0.0f, NAN};
    compare({wrong}, {p});
}

TEST(sample_of_a_row_alone_is_that_in_a_batch) {
    Random random(4);
    std::vector<Floats> rows;
    std::vector<Params> params;
    for (int n = 0; n < 5; n++) {
        rows.push_back(some_row(n == 2 ? 8 : 0, 3000, random));
        params.push_back(some_params(random));
        ask_for_report(params.back(), 3000, random);
    }
    std::vector<Drawn> together = sample(rows, params);
    for (size_t n = 0; n < rows.size(); n++) {
        compare(sample({rows[n]}, {params[n]})[0], together[n]);
    }
}

TEST(sample_follows_the_distribution) {
    Floats row = {0.0f, std::log(2.0f), std::log(3.0f), -INFINITY, std::log(4.0f)};
    std::vector<Params> params(200, Params{1.0f});
    for (size_t n = 0; n < params.size(); n++) {
        params[n].position = n;
    }
    std::vector<int> counts(5);
    for (const Drawn &drawn : sample(std::vector<Floats>(params.size(), row), params)) {
        counts[static_cast<size_t>(drawn.token)]++;
    }
    // Expected are 20, 40, 60 and 80, with standard deviations of 4 to 7.
    const int want[5] = {20, 40, 60, 0, 80};
    for (size_t i = 0; i < 5; i++) {
        CHECK_NEAR(counts[i], want[i], want[i] == 0 ? 0 : 25);
    }
}
