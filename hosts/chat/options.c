// The command line, as a table.
#include "system.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    {"--skip-zeros", "0|1", "1: BitNet b1.58 2B-4T reads no weights that meet zeros; takes more memory", WHOLE,
     offsetof(options, skip_zeros), 0, 1, 0},
    {"--device", "NAME", "what computes: cpu (default), or cuda:0 and so on", TEXT, offsetof(options, device), 0, 0, 0},
    {"--history", "FILE", "of earlier prompts, for the arrow keys (see man bn-chat); none: keep none", TEXT,
     offsetof(options, history), 0, 0, 0},
    {"--threads", "N", "compute threads (default: one for each CPU)", WHOLE, offsetof(options, threads), 1, 256, 0},
};
enum { OPTIONS = sizeof table / sizeof *table, LONGEST_ANSWER = 1024 };

static void help(void) {
    printf("usage: bn-chat [OPTIONS] [MODEL]\n\n"
           "Chats with a model: a GGUF file, a Hugging Face folder, hf:OWNER/NAME for one that is downloaded from\n"
           "there, or builtin:echo. Without one, the small model inside the library completes text.\n\n");
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

static options defaults(void) {
    return (options){.max_tokens = LONGEST_ANSWER, .seed = (uint64_t)time(NULL) ^ process_number() << 32};
}

int options_parse(options *out, int count, char **args) {
    *out = defaults();
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

// /set changes what the next request takes.
static bool is_setting(const option *o) {
    return o->field != 0 || o->kind == SEED || o->at == offsetof(options, max_tokens);
}

static void setting_read(const options *from, const option *o, setting *out) {
    static const options usual = {.max_tokens = LONGEST_ANSWER};
    const void *value = (const char *)from + o->at;
    *out = (setting){.field = o->field};
    snprintf(out->name, sizeof out->name, "%s", o->name + strlen("--"));
    for (char *c = out->name; *c != 0; c++)
        if (*c == '-') *c = '_';
    if (o->kind == REAL) snprintf(out->value, sizeof out->value, "%g", (double)*(const float *)value);
    else if (o->kind == SEED) snprintf(out->value, sizeof out->value, "%" PRIu64, *(const uint64_t *)value);
    else snprintf(out->value, sizeof out->value, "%" PRIu32, *(const uint32_t *)value);
    out->usual = o->field != 0 ? (from->given & o->field) == 0 : memcmp(value, (const char *)&usual + o->at, 4) == 0;
}

bool setting_at(const options *o, size_t index, setting *out) {
    for (int i = 0; i < OPTIONS; i++) {
        if (!is_setting(&table[i]) || index-- > 0) continue;
        setting_read(o, &table[i], out);
        return true;
    }
    return false;
}

bool setting_change(options *out, const char *name, const char *value) {
    char option_name[64];
    snprintf(option_name, sizeof option_name, "--%s", name);
    for (char *c = option_name; *c != 0; c++)
        if (*c == '_') *c = '-';
    const option *o = find(option_name);
    if (o == NULL || !is_setting(o)) return false;
    if (value != NULL) return set(out, o, value);
    options usual = defaults();
    size_t size = o->kind == SEED ? sizeof(uint64_t) : sizeof(uint32_t);
    memcpy((char *)out + o->at, (const char *)&usual + o->at, size);
    out->given &= ~o->field;
    return true;
}
