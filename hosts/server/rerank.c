// /v1/rerank, as in Cohere's, Jina's and vLLM's APIs, and vLLM's /v1/score.
#include "openai.h"

#include "pairs.h"

#include <stdlib.h>
#include <string.h>

struct result {
    double score;
    size_t index;
    const char *document; // with `return_documents`
};

static int compare(const void *a, const void *b) {
    const struct result *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static void keep(struct exchange *ex) {
    const struct ask *ask = &ex->ask;
    for (size_t i = 0; i < ask->prompts && ask->return_documents; i++)
        buffer_add(&ex->ask.kept, ask->texts[i].data, ask->texts[i].length + 1); // with the NUL
}

// Keeps the raw score: all are sorted together at the end.
static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    double score = pairs_score(ex, event);
    buffer_add(&job->out, &score, sizeof score);
}

static void write_head(struct exchange *ex, const char *kind) {
    buffer_format(&ex->out, "{\"id\":\"%s-%016llx\",\"object\":\"list\",\"created\":%llu,\"model\":", kind, (ull)ex->id,
                  (ull)ex->created);
    buffer_json_text(&ex->out, ex->ask.model);
}

static void write_end(struct exchange *ex) {
    buffer_format(&ex->out, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", (ull)ex->prompt_tokens,
                  (ull)ex->prompt_tokens);
}

static void whole(struct exchange *ex) {
    const struct ask *ask = &ex->ask;
    const char *document = ask->kept.data;
    struct result *results = must(calloc(ex->jobs_count, sizeof *results));
    for (size_t i = 0; i < ex->jobs_count; i++) {
        results[i] = (struct result){0, i, document};
        memcpy(&results[i].score, ex->jobs[i]->out.data, sizeof results[i].score);
        if (ask->return_documents) document += strlen(document) + 1;
    }
    qsort(results, ex->jobs_count, sizeof *results, compare);
    size_t count = ask->top_n != 0 && ask->top_n < ex->jobs_count ? ask->top_n : ex->jobs_count;
    write_head(ex, "rerank");
    buffer_text(&ex->out, ",\"results\":[");
    for (size_t i = 0; i < count; i++) {
        buffer_format(&ex->out, "%s{\"index\":%zu,\"relevance_score\":%.9g", i > 0 ? "," : "", results[i].index,
                      results[i].score);
        if (ask->return_documents) {
            buffer_text(&ex->out, ",\"document\":{\"text\":");
            buffer_json_text(&ex->out, results[i].document);
            buffer_text(&ex->out, "}");
        }
        buffer_text(&ex->out, "}");
    }
    write_end(ex);
    free(results);
}

const struct style rerank_style = {.choice = choice, .whole = whole, .keep = keep};

static void score_choice(struct exchange *ex, struct job *job, const bn_event *event) {
    buffer_format(&job->out, "{\"index\":%u,\"object\":\"score\",\"score\":%.9g}", job->index, pairs_score(ex, event));
}

static void score_whole(struct exchange *ex) {
    write_head(ex, "score");
    buffer_text(&ex->out, ",\"data\":[");
    write_parts(ex);
    write_end(ex);
}

const struct style score_style = {.choice = score_choice, .whole = score_whole};
