#include "options.h"

#include "../hub/naming.h"
#include "bn_engine.h"
#include "buffer.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WRONG_OPTIONS = 2 };

struct option {
    const char *name;
    size_t at;
    const char *text; // default of a text option; `high` is 0 then
    uint64_t number, low, high;
    const char *help;
};

#define AT(field) offsetof(struct options, field)
#define TEXT(name, field, value, help) {name, AT(field), value, 0, 0, 0, help}
#define NUMBER(name, field, value, low, high, help) {name, AT(field), NULL, value, low, high, help}
#define GIB (UINT64_C(1) << 30)

static const struct option table[] = {
    TEXT("--model", model, "", "a GGUF file, a Hugging Face folder, hf:OWNER/NAME or builtin:echo (none: the demo)"),
    TEXT("--model-name", model_name, "", "the name that clients see (the model's own)"),
    TEXT("--models", models, "", "several models: a folder, or a list NAME=PATH;max-batch=4;...,NAME=PATH,... (README.md)"),
    NUMBER("--max-loaded", max_loaded, 0, 0, 4096, "of these, so many loaded at a time; 0: no bound"),
    NUMBER("--models-memory", models_memory, 0, 0, UINT64_MAX, "bytes of all that are loaded; 0: what the machine has"),
    NUMBER("--idle-unload", idle_unload_s, 0, 0, 31536000, "seconds after which an idle model is let go; 0: it stays"),
    NUMBER("--idle-release", idle_release_s, 0, 0, 604800,
           "seconds after which an idle model's mapped weights leave memory; 0: they stay"),
    NUMBER("--any-model", any_model, 0, 0, 1, "1: names that are not there are the model's too; 0: status 404"),
    TEXT("--adapters", adapters, "", "LoRA adapters, NAME=PATH,...: clients ask for them as models"),
    TEXT("--draft-model", draft_model, "", "a small model with the same vocabulary, which drafts tokens for the model"),
    NUMBER("--mtp", mtp, 0, 0, 1, "1: the model's own block of multi-token prediction drafts tokens"),
    NUMBER("--skip-zeros", skip_zeros, 0, 0, 1, "1: BitNet b1.58 2B-4T reads no weights that meet zeros; takes more memory"),
    TEXT("--speculation", speculation, "", "who drafts: off, lookup or draft (draft with --draft-model or --mtp, else lookup)"),
    TEXT("--json-whitespace", json_whitespace, "tight",
         "between JSON's tokens in answers with a schema: compact, tight or flexible"),
    TEXT("--closed-schemas", closed_schemas, "tools",
         "whose objects have no keys but the declared ones, unless they say otherwise: tools, all or none"),
    NUMBER("--reasoning-budget", reasoning_budget, UINT64_MAX, 0, UINT64_MAX,
           "tokens of reasoning in a chat's answer that does not say"),
    TEXT("--device", device, "cpu", "what computes: cpu, cuda:0, or cuda:0,cuda:1 and so on"),
    TEXT("--host", host, "127.0.0.1", "address to listen on"),
    NUMBER("--port", port, 8080, 0, 65535, "port; 0: any that is free"),
    TEXT("--cors", cors, "", "origins of pages that may use the server: https://a.example,... or *"),
    TEXT("--api-key", api_key, "", "key that clients must send; the variable keeps it from the process list"),
    TEXT("--otlp-endpoint", otlp_endpoint, "", "send traces to the collector at http://HOST:PORT"),
    TEXT("--rerank-template", rerank_template, "", "prompt of a {document} and a {query} to score (README.md)"),
    NUMBER("--threads", threads, 0, 0, 256, "compute threads; 0: one for each CPU"),
    NUMBER("--max-batch", max_batch, 32, 1, 4096, "requests in one forward pass"),
    NUMBER("--queue", queue, 1024, 1, 1048576, "unreleased requests; more get status 429"),
    NUMBER("--queue-tokens", queue_tokens, 0, 0, UINT64_MAX, "prompt tokens in the queue; 0: no bound"),
    NUMBER("--memory-limit", memory_limit, 0, 0, UINT64_MAX, "bytes for the engine; 0: no limit"),
    NUMBER("--kv-cache", kv_cache, 0, 0, UINT64_MAX, "bytes for the KV cache; 0: what fits"),
    TEXT("--kv-type", kv_type, "f16", "what keys and values are kept in: f16, f32, int8 or int4"),
    NUMBER("--snapshots", snapshots, 0, 0, 65536, "states kept of models with recurrent layers; 0: as many as run"),
    NUMBER("--snapshot-interval", snapshot_interval, 512, 0, 1 << 24, "prompt tokens between two of them; 0: few"),
    NUMBER("--adapter-bytes", adapter_bytes, 0, 0, UINT64_MAX, "of the memory limit, kept for adapters"),
    NUMBER("--context", context, 0, 0, UINT32_MAX, "tokens of a request; 0: the model's context"),
    NUMBER("--target-itl", target_itl_ms, 0, 0, 60000, "milliseconds between two tokens; 0: throughput"),
    NUMBER("--timeout", request_timeout_ms, 0, 0, UINT32_MAX - 1, "milliseconds of a request; 0: none"),
    NUMBER("--keep-responses", keep_responses, 0, 0, UINT64_MAX >> 1,
           "bytes of responses kept for previous_response_id; 0: none are"),
    NUMBER("--max-body", max_body, 4 << 20, 1024, GIB, "bytes of a request's body"),
    NUMBER("--max-header", max_header, 32 << 10, 4096, 1 << 20, "bytes for a request's line and headers"),
    NUMBER("--max-depth", max_depth, 32, 4, 512, "nesting of a body's JSON"),
    NUMBER("--max-items", max_items, 1 << 18, 64, 1 << 28, "values in a body's JSON, 140 bytes each"),
    NUMBER("--max-connections", max_connections, 1024, 1, 65536, "connections at a time"),
    NUMBER("--max-unread", max_unread, 1 << 20, 4096, GIB, "bytes of a stream that its client may leave unread"),
    NUMBER("--max-memory", max_memory, 256 << 20, 1 << 20, UINT64_MAX >> 1,
           "bytes of all bodies, their values and answers"),
    NUMBER("--receive-timeout", receive_timeout_s, 30, 1, 86400, "seconds for a whole request to arrive"),
    NUMBER("--idle-timeout", idle_timeout_s, 60, 1, 86400, "seconds without progress of a connection"),
    NUMBER("--drain-timeout", drain_timeout_s, 60, 0, 86400, "seconds that a shutdown finishes what runs"),
};
enum { OPTIONS = sizeof table / sizeof *table, LONGEST_VARIABLE = 32 };

// Writes the environment variable of an option: BN_MAX_BATCH for --max-batch.
static const char *variable_of(const struct option *o, char variable[LONGEST_VARIABLE]) {
    snprintf(variable, LONGEST_VARIABLE, "BN_%s", o->name + strlen("--"));
    for (char *c = variable; *c != 0; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    return variable;
}

static void help(void) {
    printf("bn-server serves a model over HTTP, like OpenAI's API.\n\nusage: bn-server [OPTION VALUE]...\n\n");
    for (size_t i = 0; i < OPTIONS; i++) {
        const struct option *o = &table[i];
        char variable[LONGEST_VARIABLE];
        printf("  %-18s %-19s %s", o->name, variable_of(o, variable), o->help);
        if (o->text == NULL && o->number == UINT64_MAX) printf(" (no bound)");
        else if (o->text == NULL && o->number != 0) printf(" (%llu)", (ull)o->number);
        if (o->text != NULL && *o->text != 0) printf(" (%s)", o->text);
        printf("\n");
    }
    printf("  %-18s %-19s %s\n", "--help, -h", "", "print this");
    printf("  %-18s %-19s %s\n", "--version", "", "print the version");
    printf("\nEach option may be given as the environment variable beside it. SIGTERM and SIGINT finish what runs and\n"
           "end the server; a second one cancels what runs, a third one ends it at once. Exit status: 0, 1 for a\n"
           "failure, 2 for a wrong option, 3 for a model that cannot be loaded.\n");
}

// What a letter behind a number multiplies it with: 8G is 8 GiB. Moves `end` behind the letter.
static uint64_t unit_of(char **end) {
    static const char letters[] = "KMGT";
    const char *found = **end == 0 ? NULL : strchr(letters, toupper((unsigned char)**end));
    if (found == NULL) return 1;
    ++*end;
    if (strcmp(*end, "iB") == 0) *end += strlen("iB");
    return UINT64_C(1) << 10 * (found - letters + 1);
}

static void set(struct options *options, const struct option *o, const char *from, const char *value) {
    char *field = (char *)options + o->at, *end = NULL;
    if (o->text != NULL) {
        memcpy(field, &value, sizeof value);
        return;
    }
    errno = 0;
    uint64_t number = strtoull(value, &end, 10), unit = unit_of(&end);
    bool fits = errno == 0 && *end == 0 && number <= UINT64_MAX / unit;
    number *= unit;
    if (*value < '0' || *value > '9' || !fits || number < o->low || number > o->high) {
        const char *units = o->high >> 20 > 0 ? ", maybe with K, M, G or T behind it" : "";
        fprintf(stderr, "bn-server: %s must be a number from %llu to %llu%s, not '%s'\n", from, (ull)o->low,
                (ull)o->high, units, value);
        exit(WRONG_OPTIONS);
    }
    memcpy(field, &number, sizeof number);
}

static const struct option *find(const char *name) {
    for (size_t i = 0; i < OPTIONS; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    fprintf(stderr, "bn-server: unknown option '%s'; --help lists them\n", name);
    exit(WRONG_OPTIONS);
}

int64_t json_whitespace_of(const char *name) {
    if (*name == 0 || strcmp(name, "tight") == 0) return 0;
    if (strcmp(name, "compact") == 0) return BN_JSON_COMPACT;
    if (strcmp(name, "flexible") == 0) return BN_JSON_FLEXIBLE;
    return -1;
}

// The place of `name` among `count` names, or -1.
static int place_of(const char *const *names, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return (int)i;
    return -1;
}

int closed_schemas_of(const char *name) {
    static const char *const names[] = {"none", "tools", "all"};
    return place_of(names, sizeof names / sizeof *names, name);
}

void options_name(char *out, size_t room, const char *message) {
    static const field_option names[] = {{"context_length", "--context"},
                                         {"memory_limit_bytes", "--memory-limit"},
                                         {"kv_cache_bytes", "--kv-cache"},
                                         {"kv_type", "--kv-type"},
                                         {"max_batch_size", "--max-batch"},
                                         {"queue_capacity", "--queue"},
                                         {"queue_token_capacity", "--queue-tokens"},
                                         {"adapter_bytes", "--adapter-bytes"},
                                         {"snapshot_interval", "--snapshot-interval"},
                                         {"target_itl_ms", "--target-itl"},
                                         {"default_timeout_ms", "--timeout"},
                                         {"draft_model", "--draft-model"}};
    fields_as_options(out, room, message, strlen(message), names, sizeof names / sizeof *names);
}

int32_t speculation_of(const char *name) {
    static const char *const names[] = {
        [BN_SPECULATION_DEFAULT] = "",
        [BN_SPECULATION_OFF] = "off",
        [BN_SPECULATION_LOOKUP] = "lookup",
        [BN_SPECULATION_DRAFT] = "draft",
    };
    return place_of(names, sizeof names / sizeof *names, name);
}

int32_t kv_type_of(const char *name) {
    static const char *const names[] = {
        [BN_KV_TYPE_F16] = "f16",
        [BN_KV_TYPE_F32] = "f32",
        [BN_KV_TYPE_INT8] = "int8",
        [BN_KV_TYPE_INT4] = "int4",
    };
    return place_of(names, sizeof names / sizeof *names, name);
}

static void check_names(const struct options *options);

void options_of_model(struct options *options, char *item) {
    static const char *const names[] = {
        "adapters",     "draft-model",   "mtp",        "speculation",       "json-whitespace", "closed-schemas", "device",
        "threads",      "max-batch",     "queue",      "queue-tokens",      "memory-limit",    "kv-cache",       "snapshots",
        "adapter-bytes", "context",  "target-itl", "snapshot-interval", "timeout",         "reasoning-budget",
        "idle-release",  "kv-type",      "skip-zeros"};
    char *value = strchr(item, '='), name[LONGEST_VARIABLE];
    if (value != NULL) *value++ = 0;
    snprintf(name, sizeof name, "--%s", item);
    for (size_t i = 0; i < sizeof names / sizeof *names && value != NULL; i++) {
        if (strcmp(names[i], item) != 0) continue;
        const struct option *o = find(name);
        set(options, o, name, o->text != NULL ? must(strdup(value)) : value);
        check_names(options);
        return;
    }
    fprintf(stderr, "bn-server: --models: '%s' is no option of a model, like max-batch=4\n", item);
    exit(WRONG_OPTIONS);
}

static void check_names(const struct options *options) {
    if (json_whitespace_of(options->json_whitespace) < 0) {
        fprintf(stderr, "bn-server: --json-whitespace must be compact, tight or flexible, not '%s'\n",
                options->json_whitespace);
        exit(WRONG_OPTIONS);
    }
    if (closed_schemas_of(options->closed_schemas) < 0) {
        fprintf(stderr, "bn-server: --closed-schemas must be tools, all or none, not '%s'\n", options->closed_schemas);
        exit(WRONG_OPTIONS);
    }
    if (speculation_of(options->speculation) < 0) {
        fprintf(stderr, "bn-server: --speculation must be off, lookup or draft, not '%s'\n", options->speculation);
        exit(WRONG_OPTIONS);
    }
    if (kv_type_of(options->kv_type) < 0) {
        fprintf(stderr, "bn-server: --kv-type must be f16, f32, int8 or int4, not '%s'\n", options->kv_type);
        exit(WRONG_OPTIONS);
    }
}

void options_read(struct options *options, int argc, char **argv) {
    for (size_t i = 0; i < OPTIONS; i++) {
        char variable[LONGEST_VARIABLE];
        const char *value = getenv(variable_of(&table[i], variable));
        char *field = (char *)options + table[i].at;
        if (table[i].text != NULL) memcpy(field, &table[i].text, sizeof table[i].text);
        else memcpy(field, &table[i].number, sizeof table[i].number);
        if (value != NULL && *value != 0) set(options, &table[i], variable, value);
    }
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) exit((help(), 0));
        if (strcmp(argv[i], "--version") == 0) exit((printf("bn-server %s\n", bn_version()), 0));
        const struct option *o = find(argv[i]);
        if (i + 1 == argc) {
            fprintf(stderr, "bn-server: %s needs a value\n", argv[i]);
            exit(WRONG_OPTIONS);
        }
        set(options, o, argv[i], argv[i + 1]);
    }
    check_names(options);
}
