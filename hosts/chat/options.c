// The command line, as a table.
#include "chat.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef enum { TEXT, WHOLE, REAL, SEED } kind;

typedef struct {
    const char *name, *value, *help;
    kind kind;
    size_t at; // offset in `options`
    double low, high;
    uint32_t field; // BN_SAMPLING_*
} option;

static const option table[] = {
    {"--system", "TEXT", "the system prompt", TEXT, offsetof(options, system), 0, 0, 0},
    {"--temperature", "T", "0 always takes the most likely token", REAL, offsetof(options, temperature), 0, 100,
     BN_SAMPLING_FIELD_TEMPERATURE},
    {"--top-k", "N", "sample from the N most likely tokens; 0: all", WHOLE, offsetof(options, top_k), 0, UINT32_MAX,
     BN_SAMPLING_FIELD_TOP_K},
    {"--top-p", "P", "sample from the tokens that make up probability P", REAL, offsetof(options, top_p), FLT_MIN, 1,
     BN_SAMPLING_FIELD_TOP_P},
    {"--min-p", "P", "drop tokens below P times the most likely one", REAL, offsetof(options, min_p), 0, 1,
     BN_SAMPLING_FIELD_MIN_P},
    {"--repetition-penalty", "R", "above 1: repeat less", REAL, offsetof(options, repetition_penalty), FLT_MIN, 100,
     BN_SAMPLING_FIELD_REPETITION_PENALTY},
    {"--seed", "N", "the same seed gives the same answers (default: a new one)", SEED, offsetof(options, seed), 0, 0,
     0},
    {"--max-tokens", "N", "the longest answer (default 1024); 0: what the context leaves", WHOLE,
     offsetof(options, max_tokens), 0, UINT32_MAX, 0},
    {"--context", "N", "tokens of conversation (default: what the model and memory allow)", WHOLE,
     offsetof(options, context), 2, UINT32_MAX, 0},
    {"--draft-model", "PATH", "a small model with the same vocabulary, which drafts tokens", TEXT,
     offsetof(options, draft_model), 0, 0, 0},
    {"--mtp", "0|1", "1: the model's own block of multi-token prediction drafts tokens", WHOLE, offsetof(options, mtp), 0,
     1, 0},
    {"--device", "NAME", "what computes: cpu (default), or cuda:0 and so on", TEXT, offsetof(options, device), 0, 0, 0},
    {"--threads", "N", "compute threads (default: one for each CPU)", WHOLE, offsetof(options, threads), 1, 256, 0},
};
enum { OPTIONS = sizeof table / sizeof *table };

static void help(void) {
    printf("usage: bn-chat [OPTIONS] [MODEL]\n\n"
           "Chats with a model: a GGUF file, a Hugging Face folder, or builtin:echo. Without one, the small model\n"
           "inside the library completes text.\n\n");
    for (int i = 0; i < OPTIONS; i++)
        printf("  %s %-*s %s\n", table[i].name, 24 - (int)strlen(table[i].name), table[i].value, table[i].help);
    printf("  --help, --version\n\n"
           "Sampling values that are not given are those of the model's authors, else the most likely token is\n"
           "taken. Each line of input is a prompt, or a command; /help lists these.\n");
}

static bool set(options *out, const option *o, const char *value) {
    void *field = (char *)out + o->at;
    char *end = NULL;
    if (o->kind == TEXT) {
        *(const char **)field = value;
        return true;
    }
    if (*value == '\0' || *value == ' ' || (o->kind != REAL && *value == '-')) return false;
    if (o->kind == SEED) {
        *(uint64_t *)field = strtoull(value, &end, 10);
        return *end == '\0';
    }
    double number = o->kind == REAL ? strtod(value, &end) : (double)strtoull(value, &end, 10);
    if (*end != '\0' || !(number >= o->low && number <= o->high)) return false;
    if (o->kind == REAL)
        *(float *)field = (float)number;
    else
        *(uint32_t *)field = (uint32_t)number;
    out->given |= o->field;
    return true;
}

static const option *find(const char *name) {
    for (int i = 0; i < OPTIONS; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

int options_parse(options *out, int count, char **args) {
    *out = (options){.max_tokens = 1024, .seed = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32};
    for (int i = 1; i < count; i++) {
        const option *o = find(args[i]);
        if (strcmp(args[i], "--help") == 0 || strcmp(args[i], "-h") == 0) return help(), 0;
        if (strcmp(args[i], "--version") == 0) return printf("bn-chat %s\n", bn_version()), 0;
        if (o != NULL && i + 1 == count) return complain("%s needs a value", args[i]), 1;
        if (o != NULL) {
            if (!set(out, o, args[++i])) return complain("%s cannot be '%s'", o->name, args[i]), 1;
        } else if (args[i][0] == '-' || args[i][0] == '\0') {
            return complain("there is no option '%s'; bn-chat --help lists them", args[i]), 1;
        } else if (out->model != NULL) {
            return complain("two models: '%s' and '%s'", out->model, args[i]), 1;
        } else {
            out->model = args[i];
        }
    }
    return -1;
}
