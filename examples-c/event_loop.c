// The engine beside another descriptor in one epoll loop: each line on standard input is a prompt, and
// answers stream while you type. `echo 17+25= | event_loop` works too.
#include "bn_engine.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error->message);
    exit(1);
}

static void submit(bn_engine *engine, bn_string prompt) {
    static uint64_t number;
    bn_error error = {0};
    bn_request_params params;
    bn_request request;
    if (prompt.length == 0) return; // an empty line is no prompt
    check(bn_request_params_init(&params, sizeof params), "params", &error);
    params.prompt = prompt;
    params.max_new_tokens = 64;
    params.user_data = ++number;
    // Report a refused prompt, and go on.
    if (bn_submit(engine, &params, &request, &error) == BN_OK)
        printf("[%llu] %.*s\n", (unsigned long long)number, (int)prompt.length, prompt.data);
    else
        printf("[%llu] refused: %s\n", (unsigned long long)number, error.message);
    fflush(stdout);
}

// Submits what has been typed up to each newline. False at the end of the input.
static bool read_prompts(bn_engine *engine) {
    static char line[4096];
    static size_t length;
    ssize_t got = read(STDIN_FILENO, line + length, sizeof line - length);
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    length += (size_t)got;
    char *end = NULL;
    while ((end = memchr(line, '\n', length)) != NULL || (got == 0 && length > 0) || length == sizeof line) {
        size_t prompt = end != NULL ? (size_t)(end - line) : length;
        submit(engine, (bn_string){line, prompt});
        length -= end != NULL ? prompt + 1 : prompt;
        memmove(line, line + (end != NULL ? prompt + 1 : prompt), length);
    }
    return got > 0;
}

static void print(const bn_event *e) {
    if (e->text.length > 0)
        printf("[%llu]%.*s\n", (unsigned long long)e->user_data, (int)e->text.length, e->text.data);
    if (e->kind == BN_EVENT_COMPLETED)
        printf("[%llu] -- %s\n", (unsigned long long)e->user_data, bn_finish_reason_name(e->finish_reason));
}

// Takes all waiting events, as an edge-triggered loop must. Returns false once no event can come.
static bool take_events(bn_engine *engine) {
    enum { ROOM = 32 };
    bn_error error = {0};
    bn_event events[ROOM];
    size_t count = ROOM;
    while (count == ROOM) {
        bn_status status = bn_poll(engine, BN_ANY, events, sizeof *events, ROOM, 0, &count, &error);
        if (status == BN_ERR_SHUTDOWN) return false;
        check(status, "poll", &error);
        for (size_t i = 0; i < count; i++) print(&events[i]);
        check(bn_events_free(events, sizeof *events, count), "free", &error);
        for (size_t i = 0; i < count; i++)
            if (events[i].kind == BN_EVENT_COMPLETED) check(bn_request_free(engine, events[i].request, &error), "release", &error);
    }
    fflush(stdout);
    return true;
}

static void watch(int epoll, int fd, uint32_t events) {
    struct epoll_event interest = {.events = events, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &interest) == 0) return;
    perror("epoll_ctl: standard input must be a terminal or a pipe");
    exit(1);
}

int main(void) {
    bn_error error = {0};
    bn_engine_config config;
    bn_engine *engine = NULL;
    check(bn_engine_config_init(&config, sizeof config), "config", &error);
    check(bn_engine_create(&config, &engine, &error), "create", &error);

    int epoll = epoll_create1(EPOLL_CLOEXEC);
    watch(epoll, bn_engine_wait_fd(engine, &error), EPOLLIN | EPOLLET);
    watch(epoll, STDIN_FILENO, EPOLLIN);
    for (bool running = true; running;) {
        struct epoll_event ready;
        int n = epoll_wait(epoll, &ready, 1, -1);
        if (n < 0 && errno != EINTR) return perror("epoll_wait"), 1;
        if (n < 1) continue;
        if (ready.data.fd != STDIN_FILENO) {
            running = take_events(engine);
        } else if (!read_prompts(engine)) {
            epoll_ctl(epoll, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
            check(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, &error), "shutdown", &error); // what was asked is answered
        }
    }
    close(epoll);
    check(bn_engine_free(engine), "destroy", &error);
    return 0;
}
