// The engine's requests: submitted for an exchange, found again by user_data, released when they end.
#include "models.h"
#include "connection.h"
#include "fields.h"
#include "grammars.h"
#include "infill.h"
#include "pairs.h"
#include "server.h"
#include "tokens.h"
#include "work.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_PROMPT_ENTRIES = 400000, // of `prompt_logprobs`: each is some 80 bytes of the answer
    FEW_ENTRIES = 2048,           // written by the loop itself: a millisecond
    ENTRY = 64,                   // bytes in an answer, approximately
    LEAST = 12,                   // and the minimum
    NUMBER = 14,                  // and for one number of an embedding
    FEW_BYTES = 256 << 10         // assembled by the loop itself
};

// user_data is a slot and the number of jobs that it has served, so that a late event finds no other's job.
struct slot {
    struct job *job;
    uint32_t round, next_free;
};

static struct {
    struct slot *slots;
    uint32_t count, free; // `free` - 1 is the first free slot
} jobs;

static struct job *job_new(struct exchange *ex, uint32_t index, bool scores) {
    if (jobs.free == 0) {
        uint32_t old = jobs.count, count = old == 0 ? 64 : old * 2;
        jobs.slots = must(realloc(jobs.slots, count * sizeof *jobs.slots));
        for (uint32_t i = old; i < count; i++) jobs.slots[i] = (struct slot){NULL, 0, i + 1 < count ? i + 2 : 0};
        jobs.count = count;
        jobs.free = old + 1;
    }
    struct job *job = must(calloc(1, sizeof *job));
    *job = (struct job){.exchange = ex, .slot = jobs.free - 1, .index = index, .scores = scores};
    jobs.free = jobs.slots[job->slot].next_free;
    jobs.slots[job->slot].job = job;
    jobs.slots[job->slot].round++;
    return job;
}

static uint64_t user_data(const struct job *job) {
    return (uint64_t)jobs.slots[job->slot].round << 32 | job->slot;
}

static struct job *job_find(uint64_t data) {
    const struct slot *slot = &jobs.slots[(uint32_t)data];
    return slot->round == data >> 32 ? slot->job : NULL;
}

static void job_release(struct job *job) {
    struct slot *slot = &jobs.slots[job->slot];
    if (job->request != 0) bn_request_free(job->exchange->model->engine, job->request, NULL); // cancels it if it still runs
    job->request = 0;
    if (slot->job != job) return;
    slot->job = NULL;
    slot->next_free = jobs.free;
    jobs.free = job->slot + 1;
}

void jobs_drop(struct exchange *ex) {
    bool busy = false;
    for (size_t i = 0; i < ex->jobs_count; i++) {
        struct job *job = ex->jobs[i];
        busy |= job != NULL && job->busy;
        if (job == NULL || job->busy) continue;
        job_release(job);
        buffer_free(&job->out);
        free(job);
        ex->jobs[i] = NULL;
    }
    ex->jobs_left = 0;
    if (busy) return;
    free(ex->jobs);
    ex->jobs = NULL;
    ex->jobs_count = 0;
}

// The seed of a request without one: neighbours' seeds must not overlap, as `n` choices use consecutive seeds.
static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

// Requests only the prompt's log probabilities.
static void score_only(const struct ask *ask, bn_request_params *params) {
    const bn_request_params *p = &ask->params;
    bn_request_params_init(params, sizeof *params);
    params->task = BN_TASK_SCORE;
    params->flags = p->flags & (BN_REQUEST_NO_CACHE | BN_REQUEST_DROP_LATE);
    params->top_logprobs = ask->prompt_logprobs;
    params->cache_salt = p->cache_salt;
    params->timeout_ms = p->timeout_ms;
    params->queue_timeout_ms = p->queue_timeout_ms;
    params->priority = p->priority;
    params->adapter = p->adapter;
}

// One request for each prompt and each of `n`, with the same seeds for each prompt.
static void fill(struct exchange *ex, bn_request_params *params, const struct job *job) {
    struct ask *ask = &ex->ask;
    size_t prompt = job->scores ? job->index : job->index / ask->n;
    *params = ask->params;
    if (job->scores) score_only(ask, params);
    else if (ask->generates) params->sampling.seed = (ask->has_seed ? ask->params.sampling.seed : mixed(ex->id)) + job->index % ask->n;
    params->user_data = user_data(job);
    if (ex->trace.start_ns != 0) {
        memcpy(params->trace.trace_id, ex->trace.trace_id, sizeof params->trace.trace_id);
        memcpy(params->trace.parent_id, ex->trace.id, sizeof params->trace.parent_id);
    }
    if (ask->has_chat || ask->queries != NULL) return;
    const size_t *from = &ask->token_from[prompt];
    if (from[0] == from[1]) params->prompt = ask->texts[prompt];
    else params->prompt_tokens = ask->tokens + from[0], params->prompt_tokens_count = from[1] - from[0];
}

// -- submission -------------------------------------------------------------------------------------

struct submission {
    size_t count;
    bn_request_params *params;
    const bn_request_params **pointers;
    bn_request *requests;
    struct tokens tokens; // of a conversation that is scored, or of pairs
    bn_status status;
    bn_error error;
    bool begun; // not left out
    uint64_t grammar; // its hash, 0: there is none
};

static void submit(struct work *w) {
    struct exchange *ex = w->exchange;
    struct submission *s = w->data;
    const struct ask *ask = &ex->ask;
    if (ask->queries != NULL) s->status = pairs_fill(ex, s->params, &s->tokens, &s->error);
    if (ask->suffix.data != NULL) s->status = infill_fill(ex, s->params, &s->tokens, &s->error);
    if (ask->has_chat && ask->has_prompt_logprobs) {
        s->status = tokens_add_chat(&s->tokens, ex->model->handle, &ask->params.chat, &s->error);
        s->params[s->count - 1].prompt_tokens = s->tokens.ids;
        s->params[s->count - 1].prompt_tokens_count = s->tokens.count;
    }
    if (s->status == BN_OK)
        s->status = bn_submit_batch(ex->model->engine, s->pointers, s->count, s->requests, &s->error);
    s->begun = true;
    free(s->tokens.ids);
    ask_over(ex);
}

// Events may have come earlier: releases jobs that have had their last one, and those of a client that is gone.
static void submitted(struct work *w) {
    struct exchange *ex = w->exchange;
    struct submission *s = w->data;
    if (s->begun) grammar_took(s->grammar, s->status == BN_OK, w->took_ms);
    for (size_t i = 0; i < s->count && s->begun && s->status == BN_OK; i++) {
        struct job *job = i < ex->jobs_count ? ex->jobs[i] : NULL;
        if (job != NULL && jobs.slots[job->slot].job == job) job->request = s->requests[i];
        else bn_request_free(ex->model->engine, s->requests[i], NULL);
    }
    if (s->status != BN_OK && !ex->gone) {
        jobs_drop(ex);
        ex->streaming = false;
        fail_with(ex, &s->error);
    }
    free(s->requests);
    free(s->pointers);
    free(s->params);
    free(s);
}

void jobs_submit(struct exchange *ex) {
    size_t answers = ex->ask.prompts * ex->ask.n;
    size_t count = answers + (ex->ask.has_prompt_logprobs ? ex->ask.prompts : 0);
    if (count > ex->model->options.queue) {
        fail(ex, 400, "invalid_request_error", "this server takes at most %llu prompts at a time",
             (ull)ex->model->options.queue);
        return;
    }
    struct submission *s = must(calloc(1, sizeof *s));
    s->count = count;
    s->params = must(calloc(count, sizeof *s->params));
    s->pointers = must(calloc(count, sizeof *s->pointers));
    s->requests = must(calloc(count, sizeof *s->requests));
    ex->jobs = must(calloc(count, sizeof *ex->jobs));
    for (; ex->jobs_count < count; ex->jobs_count++) {
        size_t i = ex->jobs_count;
        bool scores = i >= answers;
        ex->jobs[i] = job_new(ex, (uint32_t)(scores ? i - answers : i), scores);
        fill(ex, &s->params[i], ex->jobs[i]);
        s->pointers[i] = &s->params[i];
    }
    ex->jobs_left = count;
    ex->streaming = ex->ask.stream;
    if (ex->streaming) ex->route->style->begin(ex);
    ex->work = (struct work){submit, submitted, ex, s};
    work_do(&ex->work, grammar_line(ex, &s->grammar), ex->length);
}

// -- events -----------------------------------------------------------------------------------------

static void whole(struct work *w) {
    w->exchange->route->style->whole(w->exchange);
}

static void whole_done(struct work *w) {
    struct exchange *ex = w->exchange;
    for (size_t i = 0; i < ex->jobs_count; i++) ex->jobs[i]->busy = false;
    jobs_drop(ex);
    memory_set(ex, &ex->output, ex->out.capacity);
    ex->finished = true;
}

static void give_up(struct exchange *ex) {
    jobs_drop(ex);
    http_wake(ex);
}

static void finish(struct exchange *ex) {
    size_t total = 0;
    if (ex->streaming) {
        ex->route->style->end(ex);
        ex->finished = true;
        return;
    }
    for (size_t i = 0; i < ex->jobs_count; i++) total += buffer_length(&ex->jobs[i]->out);
    if (!memory_take(ex, &ex->output, total)) {
        memory_refuse(ex);
        give_up(ex);
        return;
    }
    if (buffer_length(&ex->out) == 0) buffer_reserve(&ex->out, total + total / 8 + 1024);
    for (size_t i = 0; i < ex->jobs_count; i++) ex->jobs[i]->busy = true;
    ex->writing = (struct work){whole, whole_done, ex, NULL};
    work_do(&ex->writing, total < FEW_BYTES ? AT_ONCE : SLOW, 0);
}

// A stream's bytes are counted twice: they are also queued for the socket.
static size_t held_by(const struct exchange *ex, const struct job *job) {
    return job->out.capacity + ex->head.capacity + ex->out.capacity * (ex->streaming ? 2 : 1);
}

static void write_event(struct job *job, const bn_event *event) {
    struct exchange *ex = job->exchange;
    if (ex->streaming) ex->route->style->chunk(ex, job, event);
    else ex->route->style->choice(ex, job, event);
}

// The event has been written to the answer.
static void event_over(struct job *job, bool last) {
    struct exchange *ex = job->exchange;
    if (last) {
        ex->jobs_left--;
        job_release(job); // its events go with it
    }
    if (last && ex->jobs_left == 0) finish(ex);
    if (ex->streaming && ex->finished && ex->working == 0) models_leave(ex); // its client may take long to read
    // Only for a stream: a thread may be writing a whole answer now.
    bool unread = ex->streaming && buffer_length(&ex->out) > ex->server->options.max_unread;
    if (unread && !ex->finished) client_close(ex->client);
    else if (ex->streaming || ex->finished) http_wake(ex);
}

static void write_part(struct work *w) {
    struct job *job = (struct job *)((char *)w - offsetof(struct job, work));
    write_event(job, w->data);
}

static void part_written(struct work *w) {
    struct job *job = (struct job *)((char *)w - offsetof(struct job, work));
    struct exchange *ex = job->exchange;
    free(w->data);
    job->busy = false;
    if (ex->gone || ex->finished) jobs_drop(ex); // the remaining ones
    else event_over(job, true);
}

// Returns true if a thread writes the event, which must stay until its request is released.
static bool takes_long(struct job *job, const bn_event *event) {
    if (job->exchange->streaming || event->logprobs_count < FEW_ENTRIES) return false;
    bn_event *kept = must(malloc(sizeof *kept));
    *kept = *event;
    job->busy = true;
    job->work = (struct work){write_part, part_written, job->exchange, kept};
    work_do(&job->work, work_line(event->logprobs_count * ENTRY), 0);
    return true;
}

static void count(struct exchange *ex, const struct job *job, const bn_event *event) {
    ex->prompt_tokens += job->index % ex->ask.n == 0 ? event->prompt_tokens : 0; // once for each prompt
    ex->generated_tokens += event->generated_tokens;
    ex->cached_tokens += event->cached_tokens;
    ex->drafted_tokens += event->drafted_tokens;
    ex->accepted_tokens += event->accepted_tokens;
    ex->reasoning_tokens += event->reasoning_tokens;
}

// Returns true if the event must not be given back.
static bool on_event(struct job *job, const bn_event *event) {
    struct exchange *ex = job->exchange;
    bool last = event->kind == BN_EVENT_COMPLETED;
    const char *code = NULL;
    unsigned status = event_status(event, &code);
    size_t before = held_by(ex, job);
    size_t more = event->logprobs_count * ENTRY + event->embedding_count * NUMBER + event->text.length;
    if (last && !job->scores) count(ex, job, event);
    if (!ex->streaming && status != 0) { // one failed, so the whole answer failed
        fail(ex, status, code, "%.*s", (int)event->message.length, event->message.data);
        give_up(ex);
        return false;
    }
    if (job->scores) ex->prompt_entries += event->logprobs_count;
    if (ex->prompt_entries > MOST_PROMPT_ENTRIES) {
        fail(ex, 400, "invalid_request_error", "'prompt_logprobs' would have more than %d entries", MOST_PROMPT_ENTRIES);
        give_up(ex);
        return false;
    }
    ex->failed |= status != 0;
    bool unreadable = ex->streaming && event->logprobs_count * LEAST > ex->server->options.max_unread;
    if (unreadable || !memory_take(ex, &ex->output, more)) {
        if (ex->streaming) client_close(ex->client);
        else memory_refuse(ex), give_up(ex);
        return false;
    }
    if (last && takes_long(job, event)) return true;
    write_event(job, event);
    memory_set(ex, &ex->output, ex->output - more + held_by(ex, job) - before);
    event_over(job, last);
    return false;
}

bool jobs_poll(struct model *model, size_t *taken) {
    enum { ROOM = 64, MOST = 4096, MOST_MS = 4 }; // then other clients get their turn
    static bn_event events[ROOM];
    size_t count = ROOM;
    uint64_t end = now_ms() + MOST_MS;
    for (*taken = 0; count == ROOM && *taken < MOST && now_ms() < end; *taken += count) {
        size_t given = 0;
        bn_status status = bn_poll(model->engine, BN_ANY, events, sizeof *events, ROOM, 0, &count, NULL);
        if (status != BN_OK) return status != BN_ERR_SHUTDOWN && status != BN_ERR_ENGINE_DEAD;
        for (size_t i = 0; i < count; i++) {
            struct job *job = job_find(events[i].user_data);
            if (job == NULL || !on_event(job, &events[i])) events[given++] = events[i];
        }
        bn_events_free(events, sizeof *events, given);
    }
    return true;
}
