#include "options.h"

#include "bn_engine.h"
#include "buffer.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WRONG_OPTIONS = 2 };

struct option {
    const char *name, *variable;
    size_t at;
    const char *text; // default of a text; then `high` is 0
    uint64_t number, low, high;
    const char *help;
};

#define AT(field) offsetof(struct options, field)
#define TEXT(name, variable, field, value, help) {name, variable, AT(field), value, 0, 0, 0, help}
#define NUMBER(name, variable, field, value, low, high, help) {name, variable, AT(field), NULL, value, low, high, help}
#define GIB (UINT64_C(1) << 30)

static const struct option table[] = {
    TEXT("--model", "BN_MODEL", model, "", "a GGUF file, a Hugging Face folder or builtin:echo (the demo model)"),
    TEXT("--model-name", "MODEL_NAME", model_name, "", "the name that clients see (the model's own)"),
    TEXT("--adapters", "ADAPTERS", adapters, "", "LoRA adapters, NAME=PATH,...: clients ask for them as models"),
    TEXT("--draft-model", "DRAFT_MODEL", draft_model, "",
         "a small model with the same vocabulary, which drafts tokens for the model"),
    TEXT("--speculation", "SPECULATION", speculation, "",
         "who drafts: off, lookup or draft (draft with a --draft-model, else off)"),
    TEXT("--device", "DEVICE", device, "cpu", "what computes: cpu, cuda:0, or cuda:0,cuda:1 and so on"),
    TEXT("--host", "HOST", host, "127.0.0.1", "address to listen on"),
    NUMBER("--port", "PORT", port, 8080, 0, 65535, "port; 0: any that is free"),
    TEXT("--api-key", "API_KEY", api_key, "",
         "key that clients must send; the variable keeps it from the process list"),
    TEXT("--otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", otlp_endpoint, "",
         "send traces to the collector at http://HOST:PORT"),
    TEXT("--rerank-template", "RERANK_TEMPLATE", rerank_template, "",
         "prompt of a {document} and a {query} to score (README.md)"),
    NUMBER("--threads", "THREADS", threads, 0, 0, 256, "compute threads; 0: one for each CPU"),
    NUMBER("--max-batch", "BATCH_SIZE", max_batch, 32, 1, 4096, "requests in one forward pass"),
    NUMBER("--queue", "MAX_QUEUE_LEN", queue, 1024, 1, 1048576, "unreleased requests; more get status 429"),
    NUMBER("--queue-tokens", "MAX_QUEUE_TOKENS", queue_tokens, 0, 0, UINT64_MAX,
           "prompt tokens in the queue; 0: no bound"),
    NUMBER("--memory-limit", "MEMORY_LIMIT", memory_limit, 0, 0, UINT64_MAX, "bytes for the engine; 0: no limit"),
    NUMBER("--kv-cache", "KV_CACHE", kv_cache, 0, 0, UINT64_MAX, "bytes for the KV cache; 0: what fits"),
    NUMBER("--adapter-bytes", "ADAPTER_BYTES", adapter_bytes, 0, 0, UINT64_MAX,
           "of the memory limit, kept for adapters"),
    NUMBER("--max-sequence", "MAX_SEQUENCE", max_sequence, 0, 0, UINT32_MAX,
           "tokens of a request; 0: the model's context"),
    NUMBER("--target-itl", "TARGET_ITL_MS", target_itl_ms, 0, 0, 60000,
           "milliseconds between two tokens; 0: throughput"),
    NUMBER("--timeout", "REQUEST_TIMEOUT_MS", request_timeout_ms, 0, 0, UINT32_MAX - 1,
           "milliseconds of a request; 0: none"),
    NUMBER("--max-body", "MAX_BODY", max_body, 4 << 20, 1024, GIB, "bytes of a request's body"),
    NUMBER("--max-header", "MAX_HEADER", max_header, 32 << 10, 4096, 1 << 20, "bytes for a request's line and headers"),
    NUMBER("--max-depth", "MAX_DEPTH", max_depth, 32, 4, 512, "nesting of a body's JSON"),
    NUMBER("--max-items", "MAX_ITEMS", max_items, 1 << 18, 64, 1 << 28, "values in a body's JSON, 64 bytes each"),
    NUMBER("--max-connections", "MAX_CONNECTIONS", max_connections, 1024, 1, 65536, "connections at a time"),
    NUMBER("--max-unread", "MAX_UNREAD", max_unread, 1 << 20, 4096, GIB,
           "bytes of a stream that its client may leave unread"),
    NUMBER("--receive-timeout", "RECEIVE_TIMEOUT", receive_timeout_s, 30, 1, 86400,
           "seconds for a whole request to arrive"),
    NUMBER("--idle-timeout", "IDLE_TIMEOUT", idle_timeout_s, 60, 1, 86400, "seconds without progress of a connection"),
};
enum { OPTIONS = sizeof table / sizeof *table };

static void help(void) {
    printf("bn-server serves a model over HTTP, like OpenAI's API.\n\nusage: bn-server [OPTION VALUE]...\n\n");
    for (size_t i = 0; i < OPTIONS; i++) {
        const struct option *o = &table[i];
        printf("  %-18s %-27s %s", o->name, o->variable, o->help);
        if (o->text == NULL && o->number != 0) printf(" (%llu)", (ull)o->number);
        if (o->text != NULL && *o->text != 0) printf(" (%s)", o->text);
        printf("\n");
    }
    printf("  %-18s %-27s %s\n  %-18s %-27s %s\n", "--help, -h", "", "print this", "--version", "", "print the version");
    printf(
        "\nEach option may be given as the environment variable beside it. SIGTERM and SIGINT finish what runs and "
        "end\n"
        "the server; a second one cancels what runs. Exit status: 0, 1 for a failure, 2 for a wrong option, 3 for a\n"
        "model that cannot be loaded.\n");
}

static void set(struct options *options, const struct option *o, const char *from, const char *value) {
    char *field = (char *)options + o->at, *end = NULL;
    if (o->text != NULL) {
        memcpy(field, &value, sizeof value);
        return;
    }
    errno = 0;
    uint64_t number = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != 0 || errno != 0 || number < o->low || number > o->high) {
        fprintf(stderr, "bn-server: %s must be a number from %llu to %llu, not '%s'\n", from, (ull)o->low, (ull)o->high,
                value);
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

int32_t speculation_of(const char *name) {
    static const char *const names[] = {
        [BN_SPECULATION_DEFAULT] = "",
        [BN_SPECULATION_OFF] = "off",
        [BN_SPECULATION_LOOKUP] = "lookup",
        [BN_SPECULATION_DRAFT] = "draft",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) return (int32_t)i;
    return -1;
}

void options_read(struct options *options, int argc, char **argv) {
    for (size_t i = 0; i < OPTIONS; i++) {
        const char *value = getenv(table[i].variable);
        char *field = (char *)options + table[i].at;
        if (table[i].text != NULL) memcpy(field, &table[i].text, sizeof table[i].text);
        else memcpy(field, &table[i].number, sizeof table[i].number);
        if (value != NULL && *value != 0) set(options, &table[i], table[i].variable, value);
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
    if (speculation_of(options->speculation) < 0) {
        fprintf(stderr, "bn-server: --speculation must be off, lookup or draft, not '%s'\n", options->speculation);
        exit(WRONG_OPTIONS);
    }
}
