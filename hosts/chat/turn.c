// One turn: the question joins the history; the answer is printed as it arrives and joins the history too. Each request
// has the whole conversation; the engine's session keeps its computed part, so that only new tokens are computed.
#include "chat.h"

#include <stdio.h>
#include <string.h>

// Number of tokens of the whole conversation as a prompt; 0 after an error, which has been reported.
static size_t prompt_tokens(const chat *c) {
    bn_error error = {0};
    size_t count = 0;
    bn_chat talk = {.messages = c->history.messages, .messages_count = c->history.count};
    bn_status status = bn_model_chat_tokenize(c->model, &talk, NULL, 0, &count, &error);
    if (status == BN_OK || status == BN_ERR_BUFFER_TOO_SMALL) return count;
    complain("%s", error.message);
    return 0;
}

// Drops the oldest turns of a conversation that leaves no room for an answer, down to half of the context. A history
// with a new beginning is computed from scratch, so this should not happen in every turn. Returns false after an error.
static bool fit(chat *c) {
    uint64_t quarter = c->context / 4, longest = c->options.max_tokens;
    uint64_t room = longest > 0 && longest < quarter ? longest : quarter;
    uint64_t most = c->context - room;
    size_t dropped = 0, first = history_has_system(&c->history) ? 1 : 0;
    for (;;) {
        size_t tokens = prompt_tokens(c);
        if (tokens == 0) return false;
        if (tokens <= most || c->history.count < first + 3) break; // the question is always kept
        history_drop(&c->history, first, 2);
        dropped++;
        most = c->context / 2;
    }
    if (dropped > 0)
        note("(the conversation has outgrown the context of %llu tokens: the oldest %llu turn%s forgotten)",
             (unsigned long long)c->context, (unsigned long long)dropped, dropped == 1 ? " is" : "s are");
    return true;
}

#define FOR_EACH_FIELD(DO)                          \
    DO(BN_SAMPLING_FIELD_TEMPERATURE, temperature); \
    DO(BN_SAMPLING_FIELD_TOP_K, top_k);             \
    DO(BN_SAMPLING_FIELD_TOP_P, top_p);             \
    DO(BN_SAMPLING_FIELD_MIN_P, min_p);             \
    DO(BN_SAMPLING_FIELD_REPETITION_PENALTY, repetition_penalty)

options sampling_of(const chat *c) {
    options out = c->options;
#define FROM_MODEL(bit, field) \
    if (c->info.sampling_fields & ~out.given & (bit)) out.field = c->info.field
    FOR_EACH_FIELD(FROM_MODEL);
#undef FROM_MODEL
    out.given |= c->info.sampling_fields;
    return out;
}

static void set_sampling(const chat *c, bn_request_params *params) {
    options o = sampling_of(c);
#define SET(bit, field) \
    if (o.given & (bit)) params->sampling.field = o.field
    FOR_EACH_FIELD(SET);
#undef SET
    params->sampling.seed = o.seed + c->turns; // repeating the question gives another answer
    params->max_new_tokens = o.max_tokens;
}

// The length of the control character that `text` begins with, or 0. C0 and C1 except line breaks and tabs, and the
// marks that turn the direction of text behind them: U+202A to U+202E and U+2066 to U+2069.
static size_t control(const unsigned char *text, size_t length) {
    if ((text[0] < 0x20 && text[0] != '\n' && text[0] != '\t') || text[0] == 0x7f) return 1;
    if (text[0] == 0xc2 && length >= 2 && text[1] < 0xa0) return 2;
    if (text[0] != 0xe2 || length < 3) return 0;
    bool turns = (text[1] == 0x80 && text[2] >= 0xaa && text[2] <= 0xae) ||
                 (text[1] == 0x81 && text[2] >= 0xa6 && text[2] <= 0xa9);
    return turns ? 3 : 0;
}

// On a terminal, omits control characters, which could do more than print. `text` is whole characters.
static void print(const chat *c, bn_string text) {
    const unsigned char *data = (const unsigned char *)text.data;
    for (size_t i = 0; i < text.length;) {
        size_t omitted = c->terminal_out ? control(data + i, text.length - i) : 0;
        if (!omitted) putchar(data[i++]);
        i += omitted;
    }
    fflush(stdout);
}

// Reports an unusual end of an answer in a line. Returns false if the answer failed.
static bool tell_end(const chat *c, const bn_event *end) {
    switch (end->finish_reason) {
    case BN_FINISH_FAILED:
        complain_of(end->message.data, end->message.length);
        return false;
    case BN_FINISH_CANCELLED:
        note("(cancelled)");
        return true;
    case BN_FINISH_LENGTH:
        if (c->interactive) note("(cut after %u tokens; see --max-tokens and --context)", end->generated_tokens);
        return true;
    default: return true;
    }
}

// Prints a request's events until the last one and gathers the text. A SIGINT cancels it.
static bool stream(chat *c, bn_request request, buffer *answer) {
    bn_error error = {0};
    bool cancelled = false, good = true;
    for (bool over = false; !over;) {
        bn_event event;
        size_t count = 0;
        if (bn_poll(c->engine, request, &event, sizeof event, 1, 50, &count, &error) != BN_OK)
            return complain_of(error.message, strlen(error.message)), false;
        if (interrupted && !cancelled) {
            bn_cancel(c->engine, request, NULL);
            cancelled = true;
        }
        if (count == 0) continue;
        print(c, event.text);
        buffer_add(answer, event.text.data, event.text.length);
        over = event.kind == BN_EVENT_COMPLETED;
        if (over) {
            c->last = (timing){event.prompt_tokens, event.cached_tokens, event.generated_tokens, event.first_token_ns,
                               event.decode_ns};
            if (answer->length == 0 || answer->data[answer->length - 1] != '\n') print(c, BN_STRING("\n"));
            good = tell_end(c, &event);
        }
        bn_events_free(&event, sizeof event, 1);
    }
    interrupted = 0;
    return good;
}

static bool answered(chat *c, bn_request_params *params, buffer *answer) {
    bn_error error = {0};
    bn_request request;
    set_sampling(c, params);
    c->turns++;
    if (bn_submit(c->engine, params, &request, &error) != BN_OK)
        return complain_of(error.message, strlen(error.message)), false;
    bool good = stream(c, request, answer);
    bn_request_free(c->engine, request, NULL);
    return good;
}

// A model without a chat template completes the prompt.
static bool completed(chat *c) {
    bn_request_params params;
    buffer answer = {0};
    bn_request_params_init(&params, sizeof params);
    params.prompt = (bn_string){c->asked.data, c->asked.length};
    bool good = answered(c, &params, &answer);
    buffer_free(&answer);
    return good;
}

// Answers the question at the end of the history. Returns false if that failed.
static bool reply(chat *c, buffer *answer) {
    bn_request_params params;
    if (!fit(c)) return false;
    bn_request_params_init(&params, sizeof params);
    params.chat.messages = c->history.messages;
    params.chat.messages_count = c->history.count;
    params.session = SESSION;
    return answered(c, &params, answer);
}

bool turn(chat *c, bn_string text) {
    if (!c->info.has_chat_template) {
        c->asked.length = 0;
        buffer_add(&c->asked, text.data, text.length);
        return completed(c);
    }
    conversation *h = &c->history;
    buffer answer = {0};
    history_add(h, "user", text);
    bool good = reply(c, &answer);
    // Without an answer, drop the question: templates want users and assistants to take turns.
    if (good && answer.length > 0)
        history_add(h, "assistant", (bn_string){answer.data, answer.length});
    else
        history_drop(h, h->count - 1, 1);
    buffer_free(&answer);
    return good;
}

bool turn_again(chat *c) {
    conversation *h = &c->history;
    bool none = c->info.has_chat_template ? h->count < 2 : c->asked.length == 0;
    if (none) return complain("there is no answer yet that another one could replace"), false;
    if (!c->info.has_chat_template) return completed(c);
    buffer old = {0}, answer = {0};
    bn_string last = h->messages[h->count - 1].content;
    buffer_add(&old, last.data, last.length);
    history_drop(h, h->count - 1, 1);
    bool good = reply(c, &answer);
    const buffer *kept = good && answer.length > 0 ? &answer : &old;
    history_add(h, "assistant", (bn_string){kept->data, kept->length});
    buffer_free(&old);
    buffer_free(&answer);
    return good;
}
