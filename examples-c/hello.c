// One prompt, one answer: cc hello.c $(pkg-config --cflags --libs bn_engine)
#include <bn_engine.h>
#include <stdio.h>

int main(void) {
    bn_error error = {.struct_size = sizeof error};
    bn_engine_config config;
    bn_engine *engine;
    bn_engine_config_init(&config, sizeof config); // the model inside the library
    if (bn_engine_create(&config, &engine, &error) != BN_OK) return fprintf(stderr, "%s\n", error.message), 1;

    bn_request_params params;
    bn_completion *completion;
    bn_request_params_init(&params, sizeof params);
    params.prompt = "Once upon a time";
    params.prompt_length = 16;
    if (bn_generate(engine, &params, &completion, &error) != BN_OK) return fprintf(stderr, "%s\n", error.message), 1;
    printf("Once upon a time%.*s\n", (int)completion->event.text_length, completion->event.text);
    bn_completion_free(completion);
    return bn_engine_destroy(engine) == BN_OK ? 0 : 1;
}
