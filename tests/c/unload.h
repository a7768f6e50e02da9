// The calls of a program that loads the library at run time. Define before it: `fail`, and LOAD, which finds a
// function.
#ifndef UNLOAD_H
#define UNLOAD_H

#include "bn_engine.h"

enum { USERS = 3 };

static const char *model_path; // NULL: the embedded model

static int create(bn_engine **engine) {
    LOAD(bn_engine_config_init);
    LOAD(bn_engine_create);
    bn_engine_config config;
    if (p_bn_engine_config_init(&config, sizeof config) != BN_OK) return fail("config");
    if (model_path != NULL) config.model_path = BN_TEXT(model_path);
    config.threads = 2;
    return p_bn_engine_create(&config, engine, NULL) == BN_OK ? 0 : fail("create");
}

// A request that ends, and one that does not.
static int request(bn_engine *engine) {
    LOAD(bn_request_params_init);
    LOAD(bn_generate);
    LOAD(bn_events_free);
    LOAD(bn_submit);
    bn_request_params params;
    bn_event answer = {0};
    bn_request unfinished;
    if (p_bn_request_params_init(&params, sizeof params) != BN_OK) return fail("params");
    params.prompt = BN_STRING("17+25=");
    params.max_new_tokens = 2;
    if (p_bn_generate(engine, &params, &answer, sizeof answer, NULL) != BN_OK) return fail("generate");
    if (answer.generated_tokens != 2) return fail("no answer");
    p_bn_events_free(&answer, sizeof answer, 1);
    params.max_new_tokens = 0;
    return p_bn_submit(engine, &params, &unfinished, NULL) == BN_OK ? 0 : fail("submit");
}

static int destroy(bn_engine *engine) {
    LOAD(bn_engine_free);
    return p_bn_engine_free(engine) == BN_OK ? 0 : fail("destroy");
}

#endif
