#include "models.h"
#include "infill.h"

#include <stdio.h>
#include <string.h>

// Control tokens around both texts, by family.
static const struct marks {
    const char *first, *second, *third;
    bool suffix_first;
} families[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false}, // Qwen, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", false},       // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", false},       // SantaCoder
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", false},       // DeepSeek
    {"▁<PRE>", "▁<SUF>", "▁<MID>", false},                         // Code Llama
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", false}, // GLM
    {"[SUFFIX]", "[PREFIX]", "", true},                            // Codestral
};

static bool is_token(const bn_model *model, const char *text) {
    uint32_t ids[2];
    size_t count = 0;
    const uint32_t flags = BN_TOKENIZE_PARSE_SPECIAL;
    if (*text == 0) return true;
    return bn_model_tokenize(model, BN_TEXT(text), flags, ids, 2, &count, NULL) == BN_OK && count == 1;
}

static const struct marks *marks_of(const bn_model *model) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const struct marks *m = &families[i];
        if (is_token(model, m->first) && is_token(model, m->second) && is_token(model, m->third)) return m;
    }
    return NULL;
}

static bn_status add_prompt(struct tokens *t, const bn_model *model, const struct marks *m, bn_string before,
                            bn_string behind, bn_error *error) {
    const bn_string texts[] = {m->suffix_first ? behind : before, m->suffix_first ? before : behind};
    const uint32_t mark = BN_TOKENIZE_PARSE_SPECIAL;
    bn_status status = tokens_add_text(t, model, BN_TEXT(m->first), mark | BN_TOKENIZE_ADD_SPECIAL, error);
    if (status == BN_OK) status = tokens_add_text(t, model, texts[0], 0, error);
    if (status == BN_OK) status = tokens_add_text(t, model, BN_TEXT(m->second), mark, error);
    if (status == BN_OK) status = tokens_add_text(t, model, texts[1], 0, error);
    if (status == BN_OK && *m->third != 0) status = tokens_add_text(t, model, BN_TEXT(m->third), mark, error);
    return status;
}

bn_status infill_fill(const struct exchange *ex, bn_request_params *params, struct tokens *t, bn_error *error) {
    const struct ask *ask = &ex->ask;
    const bn_model *model = ex->model->handle;
    const struct marks *m = marks_of(model);
    bn_status status = BN_OK;
    if (m == NULL) {
        snprintf(error->message, sizeof error->message,
                 "'suffix' is for models with tokens to fill in the middle, which this one lacks");
        return error->status = BN_ERR_UNSUPPORTED;
    }
    for (size_t i = 0; i < ask->prompts && status == BN_OK; i++) {
        size_t begin = t->count;
        status = add_prompt(t, model, m, ask->texts[i], ask->suffix, error);
        for (size_t k = 0; k < ask->n; k++) {
            params[i * ask->n + k].prompt = (bn_string){NULL, 0};
            params[i * ask->n + k].prompt_tokens_count = t->count - begin;
        }
    }
    const uint32_t *next = t->ids;
    for (size_t i = 0; i < ask->prompts && status == BN_OK; next += params[i++ * ask->n].prompt_tokens_count)
        for (size_t k = 0; k < ask->n; k++) params[i * ask->n + k].prompt_tokens = next;
    return status;
}
