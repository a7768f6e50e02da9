// A grammar that compiled quickly the last time need not wait after unknown ones. It may be slow again, as the engine
// keeps few compiled grammars. So known ones have a queue of their own, and no grammar is ever in the queue of bodies.
#include "grammars.h"

#include "hash.h"
#include "work.h"

#include <string.h>

enum { GRAMMARS = 1024, QUICK_MS = 20, LONG_GRAMMAR = 64 << 10 };

static uint64_t known[GRAMMARS]; // hashes

static void add_number(struct hash *h, uint64_t number) {
    hash_add(h, &number, sizeof number);
}

static void add_text(struct hash *h, const char *text) {
    size_t length = text != NULL ? strlen(text) : 0;
    add_number(h, length);
    hash_add(h, text, length);
}

// Recursion is bounded by --max-depth. Different values give different byte sequences.
static void add_tree(struct hash *h, const cJSON *value) {
    enum { REFERENCE = cJSON_IsReference | cJSON_StringIsConst };
    const cJSON *item;
    add_number(h, (uint64_t)(value->type & ~REFERENCE));
    hash_add(h, &value->valuedouble, sizeof value->valuedouble);
    add_text(h, value->valuestring);
    add_number(h, (uint64_t)cJSON_GetArraySize(value));
    cJSON_ArrayForEach(item, value) {
        add_text(h, item->string);
        add_tree(h, item);
    }
}

// Hashes everything that decides the grammar, except whether the conversation leaves a thought open.
static uint64_t hash_of(const struct server *server, const struct ask *ask) {
    const bn_constraint *c = &ask->params.constraint;
    const cJSON *field;
    struct hash h;
    hash_begin(&h, server->key);
    add_number(&h, c->kind);
    add_number(&h, c->json_flags);
    add_number(&h, c->text.length);
    hash_add(&h, c->text.data, c->text.length);
    cJSON_ArrayForEach(field, ask->chat) {
        if (strcmp(field->string, "messages") == 0 || strcmp(field->string, "documents") == 0) continue;
        add_text(&h, field->string);
        add_tree(&h, field);
    }
    uint64_t hash = hash_end(&h);
    return hash != 0 ? hash : 1;
}

enum line grammar_line(const struct exchange *ex, uint64_t *grammar) {
    const struct ask *ask = &ex->ask;
    // A short body may have many pairs.
    enum line line = work_line(ask->queries != NULL ? ex->length * ask->prompts : ex->length);
    if (ask->params.constraint.kind == BN_CONSTRAINT_NONE && !ask->has_tools) return line;
    if (ex->length > LONG_GRAMMAR) return GRAMMAR;
    *grammar = hash_of(ex->server, ask);
    return known[*grammar % GRAMMARS] == *grammar ? KNOWN : GRAMMAR;
}

void grammar_took(uint64_t grammar, bool submitted, uint64_t ms) {
    uint64_t *place = &known[grammar % GRAMMARS];
    if (grammar == 0) return;
    if (ms >= QUICK_MS && *place == grammar) *place = 0;
    if (ms < QUICK_MS && submitted) *place = grammar; // a refused one may not have been compiled
}
