// The engine beside another event in one WaitForMultipleObjects: each argument is a prompt, answers stream, and
// Ctrl-C ends what runs. event_loop_windows.exe "17+25=" "1+1="
#include "bn_engine.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static HANDLE stop; // set by Ctrl-C

static BOOL WINAPI on_control(DWORD kind) {
    if (kind != CTRL_C_EVENT && kind != CTRL_BREAK_EVENT) return FALSE;
    return SetEvent(stop);
}

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error->message);
    exit(1);
}

static void submit(bn_engine *engine, const char *prompt, uint64_t number) {
    bn_error error = {0};
    bn_request_params params;
    bn_request request;
    check(bn_request_params_init(&params, sizeof params), "params", &error);
    params.prompt = BN_TEXT(prompt);
    params.max_new_tokens = 64;
    params.user_data = number;
    check(bn_submit(engine, &params, &request, &error), prompt, &error);
}

// Takes waiting events. Returns false once no event can come.
static bool take_events(bn_engine *engine) {
    bn_error error = {0};
    bn_event e;
    size_t count = 0;
    bn_status status = bn_poll(engine, BN_ANY, &e, sizeof e, 1, 0, &count, &error);
    if (status == BN_ERR_SHUTDOWN) return false;
    check(status, "poll", &error);
    if (count == 0) return true;
    if (e.text.length > 0) printf("[%d]%.*s\n", (int)e.user_data, (int)e.text.length, e.text.data);
    if (e.kind == BN_EVENT_COMPLETED) printf("[%d] -- %s\n", (int)e.user_data, bn_finish_reason_name(e.finish_reason));
    fflush(stdout);
    if (e.kind == BN_EVENT_COMPLETED) check(bn_request_free(engine, e.request, &error), "release", &error); // frees its events
    else check(bn_events_free(&e, sizeof e, 1), "free", &error);
    return true;
}

int main(int argc, char **argv) {
    bn_error error = {0};
    bn_engine_config config;
    bn_engine *engine = NULL;
    HANDLE events[2];
    check(bn_engine_config_init(&config, sizeof config), "config", &error);
    check(bn_engine_create(&config, &engine, &error), "create", &error);
    check(bn_engine_wait_handle(engine, &events[0], &error), "wait", &error);
    events[1] = stop = CreateEventA(NULL, FALSE, FALSE, NULL);
    if (stop == NULL || !SetConsoleCtrlHandler(on_control, TRUE)) return fputs("no event for Ctrl-C\n", stderr), 1;

    for (int i = 1; i < argc; i++) submit(engine, argv[i], (uint64_t)i);
    check(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, &error), "shutdown", &error); // what was asked is answered
    for (bool running = true; running;) {
        // The engine's event stays set while events wait, so one event per turn is enough.
        DWORD ready = WaitForMultipleObjects(2, events, FALSE, INFINITE);
        if (ready == WAIT_OBJECT_0) running = take_events(engine);
        else if (ready == WAIT_OBJECT_0 + 1) check(bn_engine_shutdown(engine, BN_SHUTDOWN_CANCEL, &error), "cancel", &error);
        else return fputs("cannot wait\n", stderr), 1;
    }
    check(bn_engine_free(engine), "destroy", &error);
    CloseHandle(stop);
    return 0;
}
