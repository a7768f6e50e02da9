// bn-chat: a chat with a model in the terminal, or with prompts from a pipe, one per line.
#include "../hub/hub.h"
#include "edit.h"
#include "system.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_INTERRUPTED = 128 + SIGINT };

static void warn(uint32_t level, bn_string message, void *context) {
    (void)level, (void)context;
    complain_of(message.data, message.length);
}

static int32_t progress(float fraction, bn_string what, void *terminal) {
    if (terminal != NULL && fraction < 1.0f)
        fprintf(stderr, "\r\033[Kloading: %3d%% %.*s", (int)(fraction * 100), (int)what.length, what.data);
    else if (terminal != NULL)
        fputs("\r\033[K", stderr);
    return interrupted; // a non-zero value ends the load
}

// OWNER/NAME that is no path here.
static bool looks_like_name(const char *path) {
    const char *slash = path != NULL ? strchr(path, '/') : NULL;
    bool one = slash != NULL && slash != path && slash[1] != 0 && strchr(slash + 1, '/') == NULL;
    return one && *path != '.' && *path != '~' && !file_exists(path);
}

// Opens a model; `path` NULL: the one inside the library. Returns the exit code, or -1 to continue.
static int open_model(const char *path, const options *o, bn_model **out) {
    bn_error error = {0};
    bn_model_config model;
    bool terminal = is_terminal_err();
    bn_model_config_init(&model, sizeof model);
    if (path != NULL) model.path = BN_TEXT(path);
    model.threads = o->threads;
    if (path == o->model) model.flags = (o->mtp ? BN_MODEL_MTP : 0) | (o->skip_zeros ? BN_MODEL_SKIP_ZEROS : 0);
    model.log = warn;
    model.progress = progress;
    model.progress_context = terminal ? stderr : NULL;
    bn_status status = bn_model_open(&model, out, &error);
    if (status != BN_OK && terminal) fputs("\r\033[K", stderr);
    if (status == BN_ERR_CANCELLED) return EXIT_INTERRUPTED;
    if (status != BN_OK) {
        complain_of(error.message, strlen(error.message));
        if (status == BN_ERR_IO && hub_knows_names && looks_like_name(path))
            note("A model on Hugging Face's hub: bn-chat hf:%s", path);
        return 1;
    }
    return -1;
}

// Models with names on Hugging Face's hub become paths. Returns the exit code, or -1 to continue.
static int find_models(options *o) {
    int code = hub_get("bn-chat", &o->model, &interrupted);
    if (code == 0) code = hub_get("bn-chat", &o->draft_model, &interrupted);
    return code == 0 ? -1 : code;
}

// Opens the models and starts the engine. Returns the exit code, or -1 to continue.
static int start(chat *c) {
    bn_error error = {0};
    bn_engine_config engine;
    bn_stats stats;
    bn_model *draft = NULL;
    int code = open_model(c->options.model, &c->options, &c->model);
    if (code < 0 && c->options.draft_model != NULL)
        code = open_model(c->options.draft_model, &c->options, &draft);
    if (code >= 0) return code;

    bn_engine_config_init(&engine, sizeof engine);
    engine.model = c->model;
    engine.draft_model = draft;
    engine.threads = c->options.threads;
    if (c->options.device != NULL) engine.device = BN_TEXT(c->options.device);
    engine.context_length = c->options.context;
    engine.max_batch_size = 2; // sessions may hold half of the KV cache: a whole context
    engine.log = warn;
    bn_status status = bn_engine_create(&engine, &c->engine, &error);
    bn_model_free(draft); // the engine has its own reference
    if (status != BN_OK) return complain_of(error.message, strlen(error.message)), 1;
    bn_model_info_init(&c->info, sizeof c->info);
    bn_stats_init(&stats, sizeof stats);
    bn_model_get_info(c->model, &c->info, NULL);
    bn_engine_stats(c->engine, &stats, NULL);
    c->context = stats.context_length;
    return -1;
}

// Describes the model. Returns the exit code, or -1 to continue.
static int introduce(chat *c) {
    const bn_model_info *m = &c->info;
    bn_string name = m->name.length > 0 ? m->name : m->architecture;
    if (!m->has_tokenizer) return complain("the model has no tokenizer that is supported: it cannot chat"), 1;
    if (c->options.system != NULL && !m->has_chat_template)
        return complain("--system: this model has no chat template, so no system prompt"), 1;
    if (c->options.system != NULL)
        history_set_system(&c->history, (bn_string){c->options.system, strlen(c->options.system)});
    if (c->interactive)
        note("%.*s: %.1f million parameters, context of %llu tokens. /help lists commands.", (int)name.length,
             name.data, (double)m->parameters / 1e6, (unsigned long long)c->context);
    if (c->options.model == NULL)
        note("No model was given: this is the small one inside the library. It adds (17+25=), finds a name in a\n"
             "list (Ages: Ada 42, Tom 17, Mia 88. Tom?) and tells stories (Once upon a time). To chat: bn-chat MODEL,\n"
             "with a GGUF file, a Hugging Face folder, or hf:OWNER/NAME for one that is downloaded from there.");
    if (!m->has_chat_template)
        note("The model has no chat template: each line is completed as plain text, and earlier ones are not seen.");
    return -1;
}

static bool blank(bn_string line) {
    for (size_t i = 0; i < line.length; i++)
        if (line.data[i] != ' ' && line.data[i] != '\t') return false;
    return true;
}

// Handles a SIGINT while no answer runs. True if the program ends: at once in a pipe, at the second in a row for a
// person.
static bool ends_at_interrupt(const chat *c, bool again) {
    interrupted = 0;
    if (c->interactive) fputs(again ? "\n" : "\n(Ctrl-C again or Ctrl-D to end)\n", stderr);
    return again || !c->interactive;
}

// Reads and answers until the end. Returns the exit code.
static int run(chat *c) {
    bool again = false; // the last line was a Ctrl-C
    for (;;) {
        bn_string prompt = {0};
        bool block = false;
        line_result result = next_prompt(c, &prompt, &block);
        if (result == LINE_FAILED) return complain("cannot read the input: %s", strerror(errno)), 1;
        if (result == LINE_END) {
            if (c->interactive) putchar('\n');
            return 0;
        }
        if (result == LINE_INTERRUPTED) {
            if (ends_at_interrupt(c, again)) return c->interactive ? 0 : EXIT_INTERRUPTED;
            again = true;
            continue;
        }
        again = false;
        if (result == LINE_DROPPED) interrupted = 0, putchar('\n');
        if (result == LINE_DROPPED || blank(prompt)) continue;
        outcome out = !block && prompt.data[0] == '/' ? command(c, prompt) : turn(c, prompt) ? GO_ON : FAILED;
        if (out == QUIT) return 0;
        if (out == FAILED && !c->interactive) return 1; // later prompts would continue another conversation
    }
}

int main(int count, char **args) {
    static chat c;
    int code = options_parse(&c.options, count, system_start(args));
    if (code < 0) {
        c.terminal_out = is_terminal_out();
        c.interactive = c.terminal_out && is_terminal_in();
        code = find_models(&c.options);
        if (code < 0) code = start(&c);
        if (code < 0) code = introduce(&c);
        if (code < 0 && c.interactive && !edit_start(&c.options)) code = 1;
        if (code < 0) code = run(&c);
        if (c.interactive) edit_stop();
        buffer_free(&c.asked);
        history_drop(&c.history, 0, c.history.count);
        bn_engine_free(c.engine);
        bn_model_free(c.model);
    }
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        complain("cannot write the output: %s", strerror(errno));
        code = 1;
    }
    return code;
}
