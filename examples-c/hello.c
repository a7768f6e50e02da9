// One prompt, one answer: cc hello.c $(pkg-config --cflags --libs bn_engine)
#include <bn_engine.h>
#include <stdio.h>

int main(void) {
    bn_error error = {0};
    bn_engine_config config;
    bn_engine *engine;
    bn_engine_config_init(&config, sizeof config); // the model inside the library
    if (bn_engine_create(&config, &engine, &error)) return fprintf(stderr, "%s\n", error.message), 1;

    bn_request_params params;
    bn_event answer;
    bn_request_params_init(&params, sizeof params);
    params.prompt = BN_STRING("Once upon a time");
    if (bn_generate(engine, &params, &answer, sizeof answer, &error)) return fprintf(stderr, "%s\n", error.message), 1;
    printf("Once upon a time%.*s\n", (int)answer.text.length, answer.text.data);
    bn_events_free(&answer, sizeof answer, 1);
    return bn_engine_free(engine) == BN_OK ? 0 : 1;
}
