// The engine beside another descriptor in one poll(2) loop: each line on standard input is a prompt, and
// answers stream while you type. `echo 17+25= | event_loop` works too.
#include "bn_engine.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error->message);
    exit(1);
}

// Submits what has been typed up to each newline. False at the end of the input.
static bool read_prompts(bn_engine *engine, int *active) {
    static char line[4096];
    static size_t length;
    ssize_t got = read(STDIN_FILENO, line + length, sizeof line - length);
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    length += (size_t)got;
    char *end = NULL;
    while ((end = memchr(line, '\n', length)) != NULL || (got == 0 && length > 0) || length == sizeof line) {
        static uint64_t number;
        size_t prompt = end != NULL ? (size_t)(end - line) : length;
        bn_error error = {.struct_size = sizeof error};
        bn_request_params params;
        bn_request request;
        check(bn_request_params_init(&params, sizeof params), "params", &error);
        params.prompt = line;
        params.prompt_length = prompt;
        params.max_new_tokens = 64;
        params.error = &error;
        if (prompt > 0) { // an empty line is no prompt
            params.user_data = ++number;
            // A refused prompt is said to be so, and the loop goes on.
            if (bn_submit(engine, &params, &request) == BN_OK) {
                printf("[%llu] %.*s\n", (unsigned long long)number, (int)prompt, line);
                ++*active;
            } else {
                printf("[%llu] refused: %s\n", (unsigned long long)number, error.message);
            }
            fflush(stdout);
        }
        size_t used = end != NULL ? prompt + 1 : prompt;
        length -= used;
        memmove(line, line + used, length);
    }
    return got > 0;
}

static void take_events(bn_engine *engine, int *active) {
    bn_error none = {.struct_size = sizeof none};
    bn_event events[32];
    for (size_t count = 1; count > 0;) {
        check(bn_poll(engine, BN_ANY, events, 32, 0, &count), "poll", &none);
        for (size_t i = 0; i < count; i++) {
            const bn_event *e = &events[i];
            if (e->text_length > 0)
                printf("[%llu]%.*s\n", (unsigned long long)e->user_data, (int)e->text_length, e->text);
            if (e->kind != BN_EVENT_COMPLETED) continue;
            printf("[%llu] -- %s\n", (unsigned long long)e->user_data, bn_finish_reason_name(e->finish_reason));
            check(bn_release(engine, e->request), "release", &none);
            --*active;
        }
    }
    fflush(stdout);
}

int main(void) {
    bn_error error = {.struct_size = sizeof error};
    bn_engine_config config;
    bn_engine *engine = NULL;
    check(bn_engine_config_init(&config, sizeof config), "config", &error);
    check(bn_engine_create(&config, &engine, &error), "create", &error);

    int active = 0;
    bool typing = true;
    while (typing || active > 0) {
        struct pollfd fds[2] = {
            {.fd = bn_engine_wait_fd(engine), .events = POLLIN},
            {.fd = typing ? STDIN_FILENO : -1, .events = POLLIN},
        };
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return perror("poll"), 1;
        if (fds[1].revents != 0) typing = read_prompts(engine, &active);
        if (fds[0].revents != 0) take_events(engine, &active);
    }
    check(bn_engine_destroy(engine), "destroy", &error);
    return 0;
}
