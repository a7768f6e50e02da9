// How alike are these sentences? Their embeddings, made in one batch, compared pair by pair.
#include "bn_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const sentences[] = {
    "Once upon a time there was a small dog who lived in a village.",
    "One day a little cat lived in a small house by the river.",
    "Ages: Ada 42, Tom 17, Mia 88. Tom?",
    "17+25=",
    "68+57=",
};
enum { SENTENCES = sizeof sentences / sizeof *sentences };

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error->message);
    exit(1);
}

int main(void) {
    bn_error error = {0};
    bn_engine_config config;
    bn_engine *engine = NULL;
    bn_model *model = NULL;
    bn_model_info info;
    check(bn_engine_config_init(&config, sizeof config), "config", &error); // the model inside the library
    check(bn_engine_create(&config, &engine, &error), "create", &error);
    check(bn_engine_model(engine, &model, &error), "model", &error);
    check(bn_model_info_init(&info, sizeof info), "info", &error);
    check(bn_model_get_info(model, &info, &error), "info", &error);
    size_t size = (size_t)info.embedding_size;
    float *vectors = calloc(SENTENCES * size, sizeof *vectors);
    if (vectors == NULL) return 1;

    for (uint64_t i = 0; i < SENTENCES; i++) {
        bn_request_params params;
        bn_request request;
        check(bn_request_params_init(&params, sizeof params), "params", &error);
        params.prompt = BN_TEXT(sentences[i]);
        params.task = BN_TASK_EMBED;
        params.embedding.normalization = BN_NORMALIZATION_UNIT;
        params.embedding.pooling = BN_POOLING_MEAN; // a story teller's last token says little of a sentence
        params.user_data = i;
        check(bn_submit(engine, &params, &request, &error), "submit", &error);
    }
    for (int left = SENTENCES; left > 0; left--) {
        bn_event event;
        size_t count;
        check(bn_poll(engine, BN_ANY, &event, sizeof event, 1, BN_NO_LIMIT, &count, &error), "poll", &error);
        if (event.embedding == NULL) {
            fprintf(stderr, "%.*s\n", (int)event.message.length, event.message.data);
            return 1;
        }
        memcpy(vectors + event.user_data * size, event.embedding, size * sizeof *vectors);
        check(bn_request_free(engine, event.request, &error), "release", &error); // the event goes with it
    }

    // They have length 1, as was asked for, so the dot product is the cosine.
    for (int i = 0; i < SENTENCES; i++) {
        for (int k = 0; k < SENTENCES; k++) {
            double cosine = 0;
            for (size_t j = 0; j < size; j++) cosine += (double)vectors[i * size + j] * vectors[k * size + j];
            printf("%6.2f", cosine);
        }
        printf("  %s\n", sentences[i]);
    }
    free(vectors);
    check(bn_model_free(model), "free", &error);
    check(bn_engine_free(engine), "destroy", &error);
    return 0;
}
