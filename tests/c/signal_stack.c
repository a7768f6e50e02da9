/* An engine in a process whose signal stack has no room for matrix tiles must do without them. */
#include <bn_engine.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static char stack[8192];

int main(void) {
    stack_t small = {.ss_sp = stack, .ss_size = sizeof stack};
    if (sigaltstack(&small, NULL)) {
        puts("skipped: a signal stack of 8 KiB is too small for this machine");
        return 0;
    }
    bn_error error = {0};
    bn_engine_config config;
    bn_engine_config_init(&config, sizeof config);
    bn_engine *engine;
    if (bn_engine_create(&config, &engine, &error) != BN_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    bn_engine_free(engine);
    config.instructions = BN_INSTRUCTIONS_AMX;
    if (bn_engine_create(&config, &engine, &error) != BN_ERR_UNSUPPORTED || !strstr(error.message, "amx")) {
        fprintf(stderr, "tiles beside a small signal stack: '%s'\n", error.message);
        return 1;
    }
    puts("an engine beside a small signal stack");
    return 0;
}
