// Declarations shared by the server's parts. One thread runs everything here, in one epoll loop (loop.c), except for
// `struct work`.
#ifndef BN_SERVER_H
#define BN_SERVER_H

#include "bn_engine.h"
#include "buffer.h"
#include "options.h"
#include "system.h"

#include <cjson/cJSON.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct exchange;
struct job;
struct model; // models.h
struct client; // connection.h

enum state { LOADING, SERVING, DRAINING, CANCELLING };

// Turns a document and a query into a prompt (pairs.c): the texts before, between and after them.
struct template {
    bn_string parts[3];
    bool query_first;
    bool judges;        // the score is a verdict of two words, not the query's likelihood
    bn_string words[2]; // then
};

// Connections in order of their arrival in the list.
struct clients {
    struct client *first, *last;
    size_t count;
};

struct server {
    struct options options;
    struct template template;
    enum state state;
    struct model *models;     // models.c's
    struct exchange *waiters; // for a model, in order
    bool several;             // models, which are loaded when they are asked for
    int listener; // -1: none any more
    bool local;   // it listens on a loopback address
    int epoll;
    struct clients waiting, answering, lingering; // waiting for a request, or for the client's end
    struct client *again;  // those that have more to do in the next turn
    uint64_t accept_ms;    // time when it accepts again; 0: it does now
    uint64_t end_ms;       // time when a shutdown gives up waiting; 0: none began
    size_t exchanges;      // begun and not over
    size_t working;        // of these, in threads of work.c
    size_t abandoned;      // of these, without a client: nothing waits for them
    atomic_size_t memory;  // bytes that memory.c counts
    uint64_t next_id, seed;
    uint64_t key[2]; // of hashes, which clients never see
    int exit_status;
};

static inline size_t clients_count(const struct server *server) {
    return server->waiting.count + server->lingering.count + server->answering.count;
}

// Position of an exchange in the client's traces; `start_ns` 0: not traced.
struct trace {
    uint8_t trace_id[16], parent_id[8], id[8];
    uint64_t start_ns;
};

// A parsed request: the fields of its body (fields.c).
struct ask {
    bn_request_params params;
    const char *model; // repeated in the answer
    bn_string *texts; // of each prompt; not set for token prompts
    uint32_t *tokens; // prompt i: token_from[i] up to token_from[i + 1]
    size_t *token_from;
    size_t prompts;
    bn_string *queries; // the prompts are documents then: one query for all of them, or one for each
    size_t queries_count;
    struct template template;
    bn_string instruction;     // of pairs
    bn_chat_message *messages; // of pairs with one: three for each
    cJSON *chat; // a conversation
    cJSON *earlier;       // its items that a kept response has (store.c)
    struct buffer items;  // all its items as JSON, if the response is to be kept
    const char *previous; // the id of that response
    bool unkept;          // the request wants nothing kept
    bn_string system;
    bn_string suffix;     // of a completion that fills in the middle
    uint64_t reasoning;   // tokens that it may have
    uint64_t keep_ms;     // how long its model stays after it; UINT64_MAX: as the options say
    bn_string *stops;
    bn_logit_bias *biases;
    struct buffer joined; // pointers to joined texts
    struct buffer kept;   // until the answer, in its style's format
    uint32_t n, best_of;  // `best_of` of `n` samples are kept; 0: all
    uint32_t dimensions, prompt_logprobs, top_n, document_tokens;
    bool generates, stream, include_usage, has_seed, has_max_tokens, has_logprobs, has_prompt_logprobs, base64, has_chat,
        has_tools, has_json_whitespace, return_documents, raw, no_penalties;
    uint8_t mirostat; // Ollama's: 0 if it is not there, 1 for none, 2
};

// Writes an API's answers. A stream is begin, chunk..., end; a whole answer is choice..., whole.
struct style {
    const char *stream_type;
    void (*error)(struct buffer *out, unsigned status, const char *code, const char *message,
                  size_t length); // NULL: OpenAI's
    void (*begin)(struct exchange *ex);
    void (*chunk)(struct exchange *ex, struct job *job, const bn_event *event);
    void (*end)(struct exchange *ex);
    void (*choice)(struct exchange *ex, struct job *job, const bn_event *event); // into job->out
    void (*whole)(struct exchange *ex);
    void (*keep)(struct exchange *ex); // copies data that the answer needs from the body into ask.kept
};

enum {
    FIELDS_COMPLETION = 1,
    FIELDS_CHAT = 2,
    FIELDS_EMBEDDING = 4,
    FIELDS_BATCH = 8,
    FIELDS_TOKENIZE = 16,
    FIELDS_RESPONSE = 32,
    FIELDS_MESSAGE = 64,
    FIELDS_COUNT = 128,
    FIELDS_RERANK = 256,
    FIELDS_SCORE = 512,
    FIELDS_DETOKENIZE = 1024,
    FIELDS_OLLAMA_CHAT = 2048,
    FIELDS_OLLAMA_GENERATE = 4096,
    FIELDS_OLLAMA_EMBED = 8192,
    FIELDS_OLLAMA_VECTOR = 16384,
    FIELDS_OLLAMA_SHOW = 32768,
    FIELDS_OLLAMA_OPTIONS = 65536, // of the object `options` of these
};

struct route {
    const char *method, *path;
    void (*handle)(struct exchange *ex); // with `fields`, the ask is read
    const struct style *style;
    unsigned fields; // FIELDS_* of the body, 0: none is read
    bool begins;     // the path is the beginning of the client's
    bool away;       // reads its body's `root` itself, and no model need be loaded
    bool open;       // needs no key
    bool always;     // works while the model is loading and while the server drains
};

// Work that may take long. `run` may be on a thread (work.c): of the exchange, it reads `server` and `route`, and owns
// `ask`, `root`, `body` and the answer; the loop touches none of these meanwhile. Then the loop calls `done`, even if
// `run` was skipped because the client is gone.
struct work {
    void (*run)(struct work *work);
    void (*done)(struct work *work); // frees `data`
    struct exchange *exchange;
    void *data;
    // work.c's
    struct work *next;
    unsigned bucket;
    size_t bytes;
    uint64_t since_ms, took_ms;
};

enum line { AT_ONCE = -1, QUICK, SLOW, KNOWN, GRAMMAR }; // the last two have grammars, which may take seconds

// A request in the engine that an exchange waits for.
struct job {
    struct exchange *exchange;
    bn_request request; // 0: over, or being submitted
    uint32_t slot, index; // of the answer, or of the prompt that it scores
    bool scores;          // for `prompt_logprobs`: it generates nothing
    struct buffer out; // its part of a whole answer
    size_t written;    // bytes of text sent by a stream, or the start of the last block in `out`
    double rank;       // of a sample among those of which the best are kept
    uint32_t blocks;   // number begun so far
    const char *block; // the type of the last one while it is open
    struct work work;  // for the last event of a large answer
    bool busy;         // with it
};

// A request over HTTP and its answer.
struct exchange {
    struct server *server;
    struct client *client;
    const struct route *route;
    struct model *model;          // NULL: none is chosen
    struct exchange *next_waiter; // for a model
    bool holds;                   // the model, which stays loaded
    const char *allow; // of status 405
    const char *origin; // of the page that asks, if --cors lists it
    const char *rest; // the path after the route's prefix
    cJSON *root;      // of the body, which `ask` points into
    struct work work;    // for the request
    struct work writing; // and for the answer, whose events may arrive before a submission returns
    size_t length; // of the body
    struct buffer body, out, head; // `head` begins each chunk of a stream, or holds the open block's text
    bool streaming, finished, failed, gone;
    unsigned working; // number of works in threads
    unsigned bucket;  // of its client
    bool headed, ended; // the answer's head and the end of a stream have been queued
    atomic_size_t input, output; // bytes of both that memory.c counts
    unsigned status;
    unsigned retry_after_s;
    const char *type;
    struct ask ask;
    struct job **jobs; // of the answers, then those that score prompts; NULL: dropped
    size_t jobs_count, jobs_left;
    uint64_t id, created, events; // `events` of a stream, if they are numbered
    uint64_t prompt_tokens, generated_tokens, cached_tokens, drafted_tokens, accepted_tokens, reasoning_tokens;
    uint64_t loading_ns, longest_ns; // the wait for the model, and of several requests the longest
    uint64_t prompt_entries; // of `prompt_logprobs`, so far
    struct trace trace;
};

// errors.c
void fail(struct exchange *ex, unsigned status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void fail_with(struct exchange *ex, const bn_error *error);
// Writes the error object of the exchange's API into `ex->out`.
void write_error(struct exchange *ex, unsigned status, const char *code, const char *message, size_t length);
// The HTTP status of an event that ended without success, or 0.
unsigned event_status(const bn_event *event, const char **code);

// routes.c
extern const struct route routes[];
// Returns NULL if there is none, and perhaps sets `*allow`, the methods that the path has.
const struct route *route_find(const char *method, const char *path, const char **allow);
// How errors look on a path that is no route; NULL for OpenAI's way.
const struct style *style_of(const char *path);
// Answers a complete request, or submits it to the engine. `working` counts the work that takes longer.
void route_run(struct exchange *ex);
void route_go_on(struct exchange *ex); // the model for it is there
void route_let_go(struct exchange *ex); // it has failed: frees its body

// http.c: requests and answers of a client.
enum sending { ANSWER_WAITS, ANSWER_GOES, ANSWER_SENT };
void http_begin(struct client *client, unsigned wrong); // the head has come; a status refuses it
bool http_refused(const struct exchange *ex);           // no more of the body is wanted
void http_receive(struct exchange *ex, const char *data, size_t length);
void http_handle(struct exchange *ex, unsigned wrong); // the body has come
// Adds the next bytes to send, once all earlier ones were sent.
enum sending http_answer(struct exchange *ex, struct buffer *out, struct buffer *rest);
void http_end(struct exchange *ex);
void http_gone(struct exchange *ex); // its client is
void http_wake(struct exchange *ex); // there is more of the answer
void http_worked(struct exchange *ex); // a thread has finished work of it

// memory.c: limits the memory that clients make the server hold, --max-memory in all. Counts `bytes` more in
// `ex->input` or `ex->output`.
bool memory_take(struct exchange *ex, atomic_size_t *of, size_t bytes); // false: it is too much; nothing is counted
void memory_set(struct exchange *ex, atomic_size_t *of, size_t bytes);  // sets the bytes held now
void memory_refuse(struct exchange *ex);
void memory_lacks(struct exchange *ex); // the same for lack of system memory

// jobs.c
void jobs_submit(struct exchange *ex); // and begins the stream
void jobs_drop(struct exchange *ex); // except for those in threads: call it again later
// Takes the engine's events, and counts them. Returns false if there will never be more.
bool jobs_poll(struct model *model, size_t *taken);

// loop.c
int loop_run(struct server *server);

#endif
