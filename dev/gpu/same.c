// One prompt's answer alone and among others, on a device: the tokens, and the bits of their log probabilities.
//   same DEVICE SEQUENCES NEW [model.gguf]
// Prints a hash for each company; exits with 1 where they differ.
#include "bn_engine.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 64, MOST = 256 };

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error != NULL ? error->message : "");
    exit(2);
}

static uint32_t vocabulary(bn_engine *engine) {
    bn_model *model = NULL;
    bn_model_info info;
    check(bn_engine_model(engine, &model, NULL), "model", NULL);
    check(bn_model_info_init(&info, sizeof info), "info", NULL);
    check(bn_model_get_info(model, &info, NULL), "info", NULL);
    check(bn_model_free(model), "free", NULL);
    return (uint32_t)info.vocab_size;
}

// Only request 0 is compared. The others differ from it in length and tokens.
static void submit(bn_engine *engine, uint32_t i, uint32_t new_tokens, uint32_t words) {
    bn_error error = {0};
    bn_request_params params;
    bn_request request;
    uint32_t ids[2 * PROMPT], count = i == 0 ? PROMPT : 1 + i * 37 % (2 * PROMPT);
    for (uint32_t k = 0; k < count; k++) ids[k] = (uint32_t)((1 + i * UINT64_C(104729) + k * UINT64_C(7919)) % words);
    check(bn_request_params_init(&params, sizeof params), "params", NULL);
    params.prompt_tokens = ids;
    params.prompt_tokens_count = count;
    params.max_new_tokens = new_tokens;
    params.flags = BN_REQUEST_IGNORE_EOS | BN_REQUEST_NO_CACHE | BN_REQUEST_LOGPROBS;
    params.user_data = i;
    check(bn_submit(engine, &params, &request, &error), "submit", &error);
}

// FNV-1a.
static uint64_t mixed(uint64_t hash, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(1099511628211);
    return hash;
}

static uint64_t take(const bn_event *e, uint64_t hash) {
    if (e->kind == BN_EVENT_COMPLETED && e->finish_reason != BN_FINISH_LENGTH) {
        fprintf(stderr, "a request ended as %s %.*s\n", bn_finish_reason_name(e->finish_reason), (int)e->message.length,
                e->message.data);
        exit(2);
    }
    if (e->user_data != 0) return hash;
    for (size_t i = 0; i < e->logprobs_count; i++) {
        hash = mixed(hash, &e->logprobs[i].token, sizeof e->logprobs[i].token);
        hash = mixed(hash, &e->logprobs[i].logprob, sizeof e->logprobs[i].logprob);
    }
    return hash;
}

static uint64_t answer(bn_engine *engine, uint32_t sequences, uint32_t new_tokens, uint32_t words) {
    uint64_t hash = UINT64_C(14695981039346656037), nothing = hash;
    for (uint32_t i = sequences; i-- > 0;) submit(engine, i, new_tokens, words);
    for (uint32_t left = sequences; left > 0;) {
        bn_event events[MOST];
        size_t count = 0;
        check(bn_poll(engine, BN_ANY, events, sizeof *events, MOST, BN_NO_LIMIT, &count, NULL), "poll", NULL);
        for (size_t i = 0; i < count; i++) {
            hash = take(&events[i], hash);
            if (events[i].kind != BN_EVENT_COMPLETED) continue;
            check(bn_request_free(engine, events[i].request, NULL), "release", NULL);
            left--;
        }
        check(bn_events_free(events, sizeof *events, count), "events", NULL);
    }
    if (hash == nothing) exit((fprintf(stderr, "no log probabilities came\n"), 2));
    return hash;
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "same DEVICE SEQUENCES NEW [model.gguf]\n"), 2;
    uint32_t sequences = (uint32_t)atoi(argv[2]), new_tokens = (uint32_t)atoi(argv[3]);
    if (sequences < 2 || sequences > MOST || new_tokens < 1) return fprintf(stderr, "2 to %d sequences\n", MOST), 2;
    bn_error error = {0};
    bn_engine_config config;
    bn_engine *engine = NULL;
    check(bn_engine_config_init(&config, sizeof config), "config", NULL);
    if (argc > 4) config.model_path = BN_TEXT(argv[4]);
    config.device = BN_TEXT(argv[1]);
    config.max_batch_size = sequences;
    config.context_length = 2 * PROMPT + new_tokens + 1;
    check(bn_engine_create(&config, &engine, &error), "create", &error);
    uint32_t words = vocabulary(engine);
    uint64_t alone = answer(engine, 1, new_tokens, words), among = answer(engine, sequences, new_tokens, words);
    printf("%s: %u tokens and the bits of their log probabilities: alone %016llx, among %u sequences %016llx: %s\n",
           argc > 4 ? argv[4] : "the demo model", new_tokens, (unsigned long long)alone, sequences, (unsigned long long)among,
           alone == among ? "the same" : "DIFFERENT");
    check(bn_engine_free(engine), "destroy", NULL);
    return alone != among;
}
