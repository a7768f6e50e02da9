// What the parts of the server share. One thread runs everything here, in one epoll loop (loop.c), but for what
// `struct work` says.
#ifndef BN_SERVER_H
#define BN_SERVER_H

#include "bn_engine.h"
#include "buffer.h"
#include "options.h"

#include <cjson/cJSON.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

struct exchange;
struct job;

enum state { LOADING, SERVING, DRAINING, CANCELLING };

// How a document and a query become a prompt (pairs.c): what stands before, between and behind them.
struct template {
    bn_string parts[3];
    bool query_first;
    bool judges;        // the score is a verdict of two words, not the query's likelihood
    bn_string words[2]; // then
};

struct server {
    struct options options;
    struct template template;
    enum state state;
    bn_model *model;
    bn_engine *engine;
    bn_model_info info;
    const char *name; // of the model, as clients see it
    struct adapter *adapters;
    struct MHD_Daemon *http;
    int listener;
    int epoll;
    struct client *clients;
    size_t exchanges;      // that were begun and are not over
    size_t working;        // of these, that the threads of work.c have
    uint64_t pause_end_ms; // until then the loop does not look at the engine; 0: it does
    uint64_t next_id, seed;
    int exit_status;
};

// A connection, from accept to close.
struct client {
    struct server *server;
    struct client *next, **link;
    struct exchange *exchange; // NULL between two requests
    int fd;
    uint64_t deadline_ms; // for a whole request to arrive; 0: none runs
    bool hung_up;         // it sends nothing more; half-closed connections count too
};

// Where an exchange belongs in the client's traces; `start_ns` 0: it is not traced.
struct trace {
    uint8_t trace_id[16], parent_id[8], id[8];
    uint64_t start_ns;
};

// What a request asks for: the fields of its body (fields.c).
struct ask {
    bn_request_params params;
    const char *model; // the answer names it
    bn_string *texts; // of each prompt; not set where it is tokens
    uint32_t *tokens; // of prompt i: token_from[i] up to token_from[i + 1]
    size_t *token_from;
    size_t prompts;
    bn_string *queries; // the prompts are documents then: one for all of them, or one for each
    size_t queries_count;
    struct template template;
    cJSON *chat; // a conversation
    bn_string system;
    bn_string *stops;
    bn_logit_bias *biases;
    struct buffer joined; // texts that were joined of parts: pointers
    struct buffer kept;   // until the answer, as its style wants it
    uint32_t n, dimensions, prompt_logprobs, top_n, document_tokens;
    bool generates, stream, include_usage, has_seed, has_max_tokens, has_logprobs, has_prompt_logprobs, base64, has_chat,
        has_tools, return_documents;
};

// How an API writes its answers. A stream is begin, chunk..., end; a whole answer is choice..., whole.
struct style {
    const char *stream_type;
    void (*error)(struct buffer *out, unsigned status, const char *code, const char *message,
                  size_t length); // NULL: OpenAI's
    void (*begin)(struct exchange *ex);
    void (*chunk)(struct exchange *ex, struct job *job, const bn_event *event);
    void (*end)(struct exchange *ex);
    void (*choice)(struct exchange *ex, struct job *job, const bn_event *event); // into job->out
    void (*whole)(struct exchange *ex);
    void (*keep)(struct exchange *ex); // into ask.kept, what the answer needs of the body
};

struct route {
    const char *method, *path;
    void (*handle)(struct exchange *ex); // with `fields`, the ask is read
    const struct style *style;
    unsigned fields; // FIELDS_* of the body, 0: none is read
    bool begins;     // the path is the beginning of the client's
    bool open;       // needs no key
    bool always;     // works while the model is loading and while the server drains
};

// What may take long. `run` may be on a thread of its own (work.c): of the exchange, it reads `server`, `route` and
// `ask`, and writes what `data` points to. The loop touches none of these meanwhile. Then it calls `done`.
struct work {
    void (*run)(struct exchange *ex);
    void (*done)(struct exchange *ex); // frees `data`
    void *data;
    struct exchange *next;
};

// One request of the engine's that an exchange waits for.
struct job {
    struct exchange *exchange;
    bn_request request; // 0: over, or being submitted
    uint32_t slot, index; // of the answer, or of the prompt that it scores
    bool scores;          // for `prompt_logprobs`: it generates nothing
    struct buffer out; // its part of a whole answer
    size_t written;    // bytes of text that a stream has had, or where the last block is in `out`
    uint32_t blocks;   // that have been begun
    const char *block; // the type of the last one while it is open
};

// A request over HTTP and its answer.
struct exchange {
    struct server *server;
    struct client *client;
    struct MHD_Connection *connection;
    const struct route *route;
    const char *rest; // of the path, where the route has its beginning
    cJSON *root;      // of the body, which `ask` points into
    struct work work;
    struct buffer body, out, head; // `head` begins each chunk of a stream, or is the open block's text
    bool too_large, suspended, handled, working, streaming, finished, failed, gone;
    unsigned status;
    unsigned retry_after_s;
    const char *type;
    struct ask ask;
    struct job **jobs; // of the answers, then those that score prompts
    size_t jobs_count, jobs_left;
    uint64_t id, created, events; // `events` of a stream, where they are numbered
    uint64_t prompt_tokens, generated_tokens, cached_tokens, drafted_tokens, accepted_tokens;
    uint64_t prompt_entries; // of `prompt_logprobs`, so far
    struct trace trace;
};

// errors.c
void fail(struct exchange *ex, unsigned status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void fail_with(struct exchange *ex, const bn_error *error);
// The error object of the exchange's API, into `ex->out`.
void write_error(struct exchange *ex, unsigned status, const char *code, const char *message, size_t length);
// What an event that ended without success is over HTTP, or 0.
unsigned event_status(const bn_event *event, const char **code);

// routes.c
extern const struct route routes[];
const struct route *route_find(const char *method, const char *path, bool *known_path);
// Answers a request that is complete, or submits what it asks for. `working` says that this takes longer.
void route_run(struct exchange *ex);
// Frees what was needed until the request is submitted.
void route_over(struct exchange *ex);

// http.c
bool http_start(struct server *server);
void http_stop_accepting(struct server *server);
void http_wake(struct exchange *ex);
void http_hang_up(struct client *client); // drops its jobs
void http_cut(struct client *client);     // and closes it
void http_expire(struct server *server, uint64_t now_ms);
uint64_t now_ms(void);

// jobs.c
void jobs_submit(struct exchange *ex); // and begins the stream
void jobs_drop(struct exchange *ex);
// Takes what the engine has, and counts it. False: nothing will ever come.
bool jobs_poll(struct server *server, size_t *taken);

// loop.c
bool loop_watch(struct server *server, int fd, uint32_t events, void *data);
int loop_run(struct server *server);

#endif
