// Several prompts at once, streamed to the terminal as their tokens arrive, then the engine's statistics.
// On a terminal each answer has a line of its own; otherwise each chunk comes with its prompt's number in
// front, in the order in which the engine makes them.
#include "bn_engine.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef struct {
    const char *prompt;
    float temperature;
    uint32_t max_new_tokens;
} question;

static const question questions[] = {
    {"17+25=", 0.0f, 8},
    {"68+57=", 0.0f, 8},
    {"Ages: Ada 42, Tom 17, Mia 88. Tom?", 0.0f, 8},
    {"Once upon a time", 0.7f, 100},
    {"One day, Ben went fishing", 0.7f, 100},
    {"In a small village, there lived", 0.7f, 100},
};
enum { QUESTIONS = sizeof questions / sizeof *questions };

// Answers so far, for the terminal's lines.
static char answers[QUESTIONS][4096];
static size_t lengths[QUESTIONS];
static bool done[QUESTIONS];
static bool terminal;

static volatile sig_atomic_t interrupted;

static void interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

static void check(bn_status status, const char *what, const char *detail) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s (%s) %s\n", what, bn_status_message(status), bn_status_name(status), detail);
    exit(1);
}

static int32_t show_progress(float fraction, bn_string what, void *context) {
    (void)context;
    int filled = (int)(fraction * 30);
    printf("\r[%.*s%*s] %3d%% %.*s\033[K", filled, "##############################", 30 - filled, "",
            (int)(fraction * 100), (int)what.length, what.data);
    if (fraction >= 1.0f) printf("\r\033[K");
    fflush(stdout);
    return interrupted; // non-zero gives the load up
}

static int columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

// Redraws an answer's line: the prompt, and as much of the answer's end as fits.
static void draw(int i) {
    int up = QUESTIONS - i, room = columns() - (int)strlen(questions[i].prompt) - 6;
    const char *text = answers[i];
    size_t length = lengths[i];
    bool cut = room > 4 && length > (size_t)room;
    if (cut && !done[i]) {
        text += length - (size_t)room;
        while (((unsigned char)*text & 0xc0) == 0x80) text++; // not within a character
    }
    printf("\033[%dA\r\033[K%s \033[1m%s\033[0m%s%.*s\033[%dB\r", up, done[i] ? "*" : ">", questions[i].prompt,
           cut && !done[i] ? "..." : "", room > 4 ? room : 4, text, up);
    fflush(stdout);
}

// Prints a chunk in the order of arrival.
static void tell(int i, const bn_event *event) {
    static int column;
    if (column + (int)event->text.length > 90) {
        printf("\n");
        column = 0;
    }
    column += printf("%d:", i);
    for (size_t k = 0; k < event->text.length; k++) putchar(event->text.data[k] == '\n' ? ' ' : event->text.data[k]);
    column += (int)event->text.length + printf(" ");
}

static void take(const bn_event *event) {
    int i = (int)event->user_data;
    for (size_t k = 0; k < event->text.length && lengths[i] + 1 < sizeof answers[i]; k++) {
        char c = event->text.data[k];
        answers[i][lengths[i]++] = c == '\n' ? ' ' : c;
    }
    done[i] = event->kind == BN_EVENT_COMPLETED;
    if (terminal)
        draw(i);
    else if (event->text.length > 0)
        tell(i, event);
}

static void submit_all(bn_engine *engine) {
    bn_error error = {0};
    bn_request_params params[QUESTIONS];
    const bn_request_params *batch[QUESTIONS];
    bn_request requests[QUESTIONS];
    for (int i = 0; i < QUESTIONS; i++) {
        check(bn_request_params_init(&params[i], sizeof params[i]), "params", "");
        params[i].prompt = BN_TEXT(questions[i].prompt);
        params[i].sampling.temperature = questions[i].temperature;
        params[i].sampling.top_p = 0.95f;
        params[i].max_new_tokens = questions[i].max_new_tokens;
        params[i].sampling.seed = 1;
        params[i].user_data = (uint64_t)i;
        batch[i] = &params[i];
        if (terminal)
            printf("> \033[1m%s\033[0m\n", questions[i].prompt);
        else
            printf("%d: %s\n", i, questions[i].prompt);
    }
    check(bn_submit_batch(engine, batch, QUESTIONS, requests, &error), "submit", error.message);
}

static void poll_until_done(bn_engine *engine) {
    bn_error error = {0};
    bool cancelled = false;
    for (int left = QUESTIONS; left > 0;) {
        bn_event events[64];
        size_t count = 0;
        check(bn_poll(engine, BN_ANY, events, sizeof *events, 64, 100, &count, &error), "poll", error.message);
        for (size_t i = 0; i < count; i++) {
            take(&events[i]);
            if (events[i].kind != BN_EVENT_COMPLETED) continue;
            if (events[i].finish_reason == BN_FINISH_FAILED)
                fprintf(stderr, "failed: %.*s\n", (int)events[i].message.length, events[i].message.data);
            check(bn_request_free(engine, events[i].request, &error), "release", error.message);
            left--;
        }
        check(bn_events_free(events, sizeof *events, count), "events", "");
        if (interrupted && !cancelled) {
            check(bn_cancel(engine, BN_ANY, &error), "cancel", error.message); // every request still gets its last event
            cancelled = true;
        }
    }
}

static void print_answers(void) {
    printf(terminal ? "\n" : "\n\n");
    for (int i = 0; i < QUESTIONS; i++)
        printf("%s%.*s\n\n", questions[i].prompt, (int)lengths[i], answers[i]);
}

static void print_stats(bn_engine *engine) {
    bn_stats s;
    check(bn_stats_init(&s, sizeof s), "stats", "");
    check(bn_engine_stats(engine, &s, NULL), "stats", "");
    printf("%-28s %10llu\n", "requests", (unsigned long long)s.accepted);
    printf("%-28s %10llu\n", "prompt tokens", (unsigned long long)s.prompt_tokens);
    printf("%-28s %10llu\n", "generated tokens", (unsigned long long)s.generated_tokens);
    double seconds = (double)(s.prefill_ns + s.decode_ns) / 1e9;
    printf("%-28s %10.1f\n", "generated tokens/s", seconds > 0 ? (double)s.generated_tokens / seconds : 0);
    printf("%-28s %10llu\n", "forward passes", (unsigned long long)s.steps);
    printf("%-28s %10.2f\n", "requests per pass, mean", s.steps > 0 ? (double)s.batched_requests / (double)s.steps : 0);
    printf("%-28s %10.1f\n", "first token, p50 ms", (double)s.time_to_first_token.p50_ns / 1e6);
    printf("%-28s %10.2f\n", "between tokens, p50 ms", (double)s.inter_token.p50_ns / 1e6);
    printf("%-28s %10.1f\n", "end to end, p99 ms", (double)s.end_to_end.p99_ns / 1e6);
    printf("%-28s %10.1f\n", "memory set aside, MiB", (double)s.memory_peak_bytes / (1 << 20));
}

int main(void) {
    terminal = isatty(STDOUT_FILENO);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGINT, interrupt);

    bn_error error = {0};
    bn_model_config model_config;
    bn_model *model = NULL;
    check(bn_model_config_init(&model_config, sizeof model_config), "config", "");
    if (terminal) model_config.progress = show_progress;
    check(bn_model_open(&model_config, &model, &error), "open", error.message);

    bn_engine_config config;
    bn_engine *engine = NULL;
    check(bn_engine_config_init(&config, sizeof config), "config", "");
    config.model = model;
    check(bn_engine_create(&config, &engine, &error), "create", error.message);
    check(bn_model_free(model), "free", ""); // the engine keeps it

    submit_all(engine);
    poll_until_done(engine);
    print_answers();
    print_stats(engine);
    check(bn_engine_free(engine), "destroy", "");
    return 0;
}
