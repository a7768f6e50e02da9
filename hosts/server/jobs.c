// The engine's requests: submitted for an exchange, found again by user_data, released when they end.
#include "pairs.h"
#include "server.h"
#include "tokens.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PROMPT_ENTRIES = 400000 }; // of `prompt_logprobs`: each is some 80 bytes of the answer

// user_data is a slot and the number of jobs that it has had, so that a late event finds no other's job.
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
    if (job->request != 0) bn_release(job->exchange->server->engine, job->request, NULL); // cancels what still runs
    job->request = 0;
    if (slot->job != job) return;
    slot->job = NULL;
    slot->next_free = jobs.free;
    jobs.free = job->slot + 1;
}

void jobs_drop(struct exchange *ex) {
    for (size_t i = 0; i < ex->jobs_count; i++) {
        job_release(ex->jobs[i]);
        buffer_free(&ex->jobs[i]->out);
        free(ex->jobs[i]);
    }
    free(ex->jobs);
    ex->jobs = NULL;
    ex->jobs_count = ex->jobs_left = 0;
}

// The seed of a request that sets none: neighbors' must not overlap, as `n` seeds follow each other.
static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

// The prompt's log probabilities alone.
static void score_only(const struct ask *ask, bn_request_params *params) {
    const bn_request_params *p = &ask->params;
    bn_request_params_init(params, sizeof *params);
    params->flags = BN_REQUEST_SCORE | BN_REQUEST_LOGPROBS | (p->flags & (BN_REQUEST_NO_CACHE | BN_REQUEST_DROP_LATE));
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
    else if (ask->generates) params->seed = (ask->has_seed ? ask->params.seed : mixed(ex->id)) + job->index % ask->n;
    params->user_data = user_data(job);
    if (ex->trace.start_ns != 0) {
        memcpy(params->trace_id, ex->trace.trace_id, sizeof params->trace_id);
        memcpy(params->parent_id, ex->trace.id, sizeof params->parent_id);
    }
    if (ask->has_chat || ask->queries != NULL) return;
    const size_t *from = &ask->token_from[prompt];
    if (from[0] == from[1]) params->prompt = ask->texts[prompt];
    else params->prompt_tokens = ask->tokens + from[0], params->prompt_tokens_count = from[1] - from[0];
}

struct submission {
    size_t count;
    bn_request_params *params;
    const bn_request_params **pointers;
    bn_request *requests;
    struct tokens tokens; // of a conversation that is scored, or of pairs
    bn_status status;
    bn_error error;
};

static void submit(struct exchange *ex) {
    struct submission *s = ex->work.data;
    const struct ask *ask = &ex->ask;
    s->error.struct_size = sizeof s->error;
    if (ask->queries != NULL) s->status = pairs_fill(ex, s->params, &s->tokens, &s->error);
    if (ask->has_chat && ask->has_prompt_logprobs) {
        s->status = tokens_add_chat(&s->tokens, ex->server->model, ask->params.chat_json, &s->error);
        s->params[s->count - 1].prompt_tokens = s->tokens.ids;
        s->params[s->count - 1].prompt_tokens_count = s->tokens.count;
    }
    if (s->status == BN_OK)
        s->status = bn_submit_batch(ex->server->engine, s->pointers, s->count, s->requests, &s->error);
}

// Events may have come before: jobs that have had their last one are released now, as are those of a client that is
// gone.
static void submitted(struct exchange *ex) {
    struct submission *s = ex->work.data;
    for (size_t i = 0; i < s->count && s->status == BN_OK; i++) {
        bool waits = i < ex->jobs_count && jobs.slots[ex->jobs[i]->slot].job == ex->jobs[i];
        if (waits) ex->jobs[i]->request = s->requests[i];
        else bn_release(ex->server->engine, s->requests[i], NULL);
    }
    if (s->status != BN_OK && !ex->gone) {
        jobs_drop(ex);
        ex->streaming = false;
        fail_with(ex, &s->error);
    }
    free(s->tokens.ids);
    free(s->requests);
    free(s->pointers);
    free(s->params);
    free(s);
}

void jobs_submit(struct exchange *ex) {
    struct server *server = ex->server;
    size_t answers = ex->ask.prompts * ex->ask.n;
    size_t count = answers + (ex->ask.has_prompt_logprobs ? ex->ask.prompts : 0);
    if (count > server->options.queue) {
        fail(ex, 400, "invalid_request_error", "this server takes at most %llu prompts at a time",
             (ull)server->options.queue);
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
    if (ex->route->style->keep != NULL) ex->route->style->keep(ex);
    ex->streaming = ex->ask.stream;
    if (ex->streaming) ex->route->style->begin(ex);
    work_do(ex, (struct work){submit, submitted, s, NULL});
}

static void finish(struct exchange *ex) {
    if (ex->streaming) ex->route->style->end(ex);
    else ex->route->style->whole(ex);
    ex->finished = true;
}

static void give_up(struct exchange *ex) {
    jobs_drop(ex);
    http_wake(ex);
}

static void on_event(struct job *job, const bn_event *event) {
    struct exchange *ex = job->exchange;
    bool last = event->kind == BN_EVENT_COMPLETED;
    const char *code = NULL;
    unsigned status = event_status(event, &code);
    if (last) ex->jobs_left--;
    if (last && !job->scores) {
        ex->prompt_tokens += job->index % ex->ask.n == 0 ? event->prompt_tokens : 0; // once for each prompt
        ex->generated_tokens += event->generated_tokens;
        ex->cached_tokens += event->cached_tokens;
        ex->drafted_tokens += event->drafted_tokens;
        ex->accepted_tokens += event->accepted_tokens;
    }
    if (!ex->streaming && status != 0) { // one failed, so all did
        fail(ex, status, code, "%.*s", (int)event->message.length, event->message.data);
        give_up(ex);
        return;
    }
    if (job->scores) ex->prompt_entries += event->logprobs_count;
    if (ex->prompt_entries > MOST_PROMPT_ENTRIES) {
        fail(ex, 400, "invalid_request_error", "'prompt_logprobs' would have more than %d entries", MOST_PROMPT_ENTRIES);
        give_up(ex);
        return;
    }
    ex->failed |= status != 0;
    if (ex->streaming) ex->route->style->chunk(ex, job, event);
    else ex->route->style->choice(ex, job, event);
    if (last) job_release(job); // its events go with it
    if (last && ex->jobs_left == 0) finish(ex);
    if (!ex->finished && buffer_length(&ex->out) > ex->server->options.max_unread) http_cut(ex->client);
    else if (ex->streaming || ex->finished) http_wake(ex);
}

bool jobs_poll(struct server *server, size_t *taken) {
    enum { ROOM = 256, MOST = 4096 };
    static bn_event events[ROOM];
    size_t count = ROOM;
    for (*taken = 0; count == ROOM && *taken < MOST; *taken += count) {
        bn_status status = bn_poll(server->engine, BN_ANY, events, sizeof *events, ROOM, 0, &count, NULL);
        if (status != BN_OK) return status != BN_ERR_SHUTDOWN && status != BN_ERR_ENGINE_DEAD;
        for (size_t i = 0; i < count; i++) {
            struct job *job = job_find(events[i].user_data);
            if (job != NULL) on_event(job, &events[i]);
        }
        bn_events_free(server->engine, events, sizeof *events, count);
    }
    return true;
}
