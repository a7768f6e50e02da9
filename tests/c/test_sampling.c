// The samplers: each field has its stated effect, is refused by name out of its range, and gives the same in
// any batch.
#include "harness.h"

#include <math.h>

static bn_request_params story(uint64_t seed) {
    bn_request_params params = ask("Once upon a time");
    params.sampling.temperature = 1.2f;
    params.sampling.seed = seed;
    params.max_new_tokens = 24;
    params.flags = BN_REQUEST_NO_STREAM | BN_REQUEST_IGNORE_EOS;
    return params;
}

static const uint32_t REVERSED[] = {BN_SAMPLER_XTC,  BN_SAMPLER_MIN_P,       BN_SAMPLER_TOP_P,      BN_SAMPLER_TYPICAL_P,
                                   BN_SAMPLER_TOP_K, BN_SAMPLER_TOP_N_SIGMA, BN_SAMPLER_TEMPERATURE};
static const bn_string BREAKER[] = {BN_STRING_INIT(".")};
static const bn_string WORDS[] = {BN_STRING_INIT("the"), BN_STRING_INIT("a")};
static const bn_logit_bias BIAS[] = {{5, 50.0f}, {6, -INFINITY}};

static void set_temperature_range(bn_request_params *p) { p->sampling.temperature_range = 1.0f; }
static void set_exponent(bn_request_params *p) { p->sampling.temperature_range = 1.0f, p->sampling.temperature_exponent = 3.0f; }
static void set_typical(bn_request_params *p) { p->sampling.typical_p = 0.5f; }
static void set_sigma(bn_request_params *p) { p->sampling.top_n_sigma = 1.0f; }
static void set_xtc(bn_request_params *p) { p->sampling.xtc_probability = 1.0f; }
static void set_mirostat(bn_request_params *p) { p->sampling.mirostat_tau = 1.0f, p->sampling.mirostat_eta = 0.5f; }
static void set_order(bn_request_params *p) {
    p->sampling.samplers = REVERSED, p->sampling.samplers_count = 7;
    p->sampling.min_p = 0.02f, p->sampling.temperature = 3.0f;
}
static void set_window(bn_request_params *p) { p->sampling.presence_penalty = -50.0f, p->sampling.penalty_window = 2; }
static void set_dry(bn_request_params *p) { p->sampling.dry_multiplier = 50.0f, p->sampling.dry_allowed_length = 1; }
static void set_breakers(bn_request_params *p) { set_dry(p), p->sampling.dry_breakers = BREAKER, p->sampling.dry_breakers_count = 1; }
static void set_words(bn_request_params *p) { p->sampling.bad_words = WORDS, p->sampling.bad_words_count = 2; }
static void set_bias(bn_request_params *p) { p->sampling.logit_bias = BIAS, p->sampling.logit_bias_count = 2; }

typedef void (*setter)(bn_request_params *);
static const setter SETTERS[] = {set_temperature_range, set_exponent, set_typical,  set_sigma, set_xtc,      set_mirostat,
                                 set_order,             set_window,   set_dry,      set_words, set_breakers, set_bias};
enum { SETS = sizeof SETTERS / sizeof *SETTERS, SEEDS = 6 };

static bn_request_params before(int set, uint64_t seed) {
    bn_request_params params = story(seed);
    // Lets the text repeat itself.
    if (SETTERS[set] == set_dry || SETTERS[set] == set_breakers) params.prompt = BN_STRING("1+1=2\n1+1=2\n1+1=");
    return params;
}

static bn_request_params with(int set, uint64_t seed) {
    bn_request_params params = before(set, seed);
    SETTERS[set](&params);
    return params;
}

TEST(each_sampler_matters_and_is_the_same_in_any_batch) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    static answer *alone[SETS][SEEDS];
    for (int set = 0; set < SETS; set++) {
        int other = 0;
        for (int seed = 0; seed < SEEDS; seed++) {
            bn_request_params params = with(set, (uint64_t)seed), plain = before(set, (uint64_t)seed);
            answer *a = alone[set][seed] = run(engine, &params), *b = run(engine, &plain);
            CHECK(a->tokens_count > 0);
            other += a->tokens_count != b->tokens_count || memcmp(a->tokens, b->tokens, 4 * a->tokens_count) != 0;
            free(b);
        }
        if (other == 0) test_fail(__FILE__, __LINE__, "set %d changes nothing", set);
    }
    bn_request ids[SETS][SEEDS];
    for (int set = 0; set < SETS; set++)
        for (int seed = 0; seed < SEEDS; seed++) {
            bn_request_params params = with(set, (uint64_t)seed);
            params.flags |= BN_REQUEST_POLL_BY_ID;
            ids[set][seed] = submit(engine, &params);
        }
    for (int set = 0; set < SETS; set++)
        for (int seed = 0; seed < SEEDS; seed++) {
            answer *together = finish(engine, ids[set][seed]), *a = alone[set][seed];
            CHECK_EQ(together->tokens_count, a->tokens_count);
            if (memcmp(together->tokens, a->tokens, 4 * a->tokens_count) != 0)
                test_fail(__FILE__, __LINE__, "set %d, seed %d differs in a batch", set, seed);
            free(together);
            free(a);
        }
    stop(engine);
}

TEST(bad_words_and_forbidden_tokens_do_not_come) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_request_params params = story(1);
    answer *first = run(engine, &params);
    // Forbids each sampled token in turn.
    bn_logit_bias bias[64];
    size_t n = 0;
    for (size_t i = 0; i < first->tokens_count; i++) bias[n++] = (bn_logit_bias){first->tokens[i], -INFINITY};
    params.sampling.logit_bias = bias;
    params.sampling.logit_bias_count = n;
    answer *second = run(engine, &params);
    for (size_t i = 0; i < second->tokens_count; i++)
        for (size_t k = 0; k < n; k++) CHECK(second->tokens[i] != bias[k].token);
    // A bias of 100 wins over everything.
    bn_logit_bias sure = {first->tokens[0], 100.0f};
    params.sampling.logit_bias = &sure;
    params.sampling.logit_bias_count = 1;
    answer *third = run(engine, &params);
    for (size_t i = 0; i < third->tokens_count; i++) CHECK_EQ(third->tokens[i], first->tokens[0]);
    free(first), free(second), free(third);
    stop(engine);
}

TEST(an_output_is_as_long_as_min_new_tokens_says) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_request_params params = ask("2+3=");
    params.flags = BN_REQUEST_NO_STREAM;
    params.max_new_tokens = 24;
    answer *shortly = run(engine, &params);
    CHECK(shortly->tokens_count < 12);
    params.min_new_tokens = 16;
    answer *longer = run(engine, &params);
    CHECK(longer->tokens_count >= 16);
    uint32_t stops[] = {longer->tokens[1]};
    params.stop_tokens = stops;
    params.stop_tokens_count = 1;
    answer *no_stop = run(engine, &params);
    for (size_t i = 0; i < 15; i++) CHECK(no_stop->tokens[i] != stops[0]);
    free(shortly), free(longer), free(no_stop);
    stop(engine);
}

TEST(log_probabilities_of_chosen_tokens_and_of_the_chain) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    uint32_t chosen[] = {7, 9, 11};
    bn_request_params params = story(3);
    params.flags |= BN_REQUEST_LOGPROBS;
    params.top_logprobs = 2;
    params.sampling.top_k = 2;
    params.logprob_tokens = chosen;
    params.logprob_tokens_count = 3;
    for (int chain = 0; chain < 2; chain++) {
        if (chain) params.flags |= BN_REQUEST_CHAIN_LOGPROBS;
        bn_request request = submit(engine, &params);
        bn_event event = poll_one(engine, request);
        CHECK_EQ(event.logprobs_per_token, 6);
        CHECK_EQ(event.logprobs_count, 6 * event.tokens_count);
        for (size_t i = 0; i < event.tokens_count; i++) {
            const bn_logprob *p = event.logprobs + 6 * i;
            CHECK_EQ(p[0].token, event.tokens[i]);
            for (int k = 0; k < 3; k++) CHECK_EQ(p[3 + k].token, chosen[k]);
            float sum = expf(p[1].logprob) + expf(p[2].logprob);
            // Two tokens are left, and their probabilities add up to 1.
            CHECK(chain ? fabsf(sum - 1.0f) < 1e-4f : sum < 0.99999f || p[3].logprob < -5.0f);
            for (int k = 0; chain && k < 3; k++)
                CHECK(isinf(p[3 + k].logprob) || p[3 + k].token == p[1].token || p[3 + k].token == p[2].token);
        }
        give_back(&event);
        CHECK_OK(bn_request_free(engine, request, NULL));
    }
    stop(engine);
}

static void refused(bn_engine *engine, const bn_request_params *params, const char *words) {
    bn_error error;
    bn_request request;
    CHECK_STATUS(bn_submit(engine, params, &request, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, words);
}

TEST(mistakes_are_named) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_request_params params = story(0);
#define REFUSED(change, words) (params = story(0), change, refused(engine, &params, words))
    REFUSED(params.sampling.temperature_range = -1, "temperature_range");
    REFUSED(params.sampling.typical_p = 0, "typical_p");
    REFUSED(params.sampling.top_n_sigma = NAN, "top_n_sigma");
    REFUSED(params.sampling.xtc_probability = 1.5f, "xtc_probability");
    REFUSED(params.sampling.dry_base = 0.5f, "dry_base");
    REFUSED((params.sampling.mirostat_tau = 3, params.sampling.top_k = 4), "mirostat is alone");
    uint32_t twice[] = {BN_SAMPLER_TOP_K, BN_SAMPLER_TOP_K}, unknown[] = {99};
    REFUSED((params.sampling.samplers = twice, params.sampling.samplers_count = 2, params.sampling.temperature = 1), "twice");
    REFUSED((params.sampling.samplers = unknown, params.sampling.samplers_count = 1), "BN_SAMPLER");
    REFUSED((params.sampling.samplers = twice, params.sampling.samplers_count = 1), "temperature is set, and samplers leaves it out");
    REFUSED((params.sampling.logit_bias = BIAS, params.sampling.logit_bias_count = 5000), "logit_bias_count");
    REFUSED(params.sampling.logit_bias_count = 1, "logit_bias is NULL");
    bn_logit_bias far[] = {{1, 1}, {1u << 30, 1}}, strong = {1, 101};
    REFUSED((params.sampling.logit_bias = far, params.sampling.logit_bias_count = 2), "index 1 of logit_bias");
    REFUSED((params.sampling.logit_bias = &strong, params.sampling.logit_bias_count = 1), "token 1");
    bn_string empty = BN_STRING_INIT("");
    REFUSED((params.sampling.bad_words = &empty, params.sampling.bad_words_count = 1), "bad_words[0]");
    REFUSED((params.sampling.dry_multiplier = 1, params.sampling.dry_breakers = &empty, params.sampling.dry_breakers_count = 1), "dry_breakers[0]");
    uint32_t one = 1;
    REFUSED((params.logprob_tokens = &one, params.logprob_tokens_count = 1), "needs BN_REQUEST_LOGPROBS");
    REFUSED(params.flags |= BN_REQUEST_CHAIN_LOGPROBS, "needs BN_REQUEST_LOGPROBS");
    // A request that leaves no token fails, and no other.
    params = story(0);
    params.sampling.bad_words = WORDS;
    params.sampling.bad_words_count = 1;
    answer *fine = run(engine, &params);
    CHECK_EQ(fine->last.status, BN_OK);
    free(fine);
    stop(engine);
}
