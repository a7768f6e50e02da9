// /save and /load: the messages as JSON, which others can read, and beside them what was computed of the conversation,
// in FILE.kv. Only the messages are needed: without the rest, the first turn computes it again.
#include "system.h"

#include "../hub/jsondoc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The library takes 64 MiB of messages; JSON may spell a byte by six. A session has tokens and recurrent states beside its
// share of the KV cache.
static const uint64_t MOST_TEXT = 6 * 64 << 20, BESIDE_KV = 1 << 30;

char *path_of(bn_string text) {
    const char *home = home_folder();
    bool in_home = home != NULL && text.length > 1 && text.data[0] == '~' && is_separator(text.data[1]);
    if (in_home) text = (bn_string){text.data + 1, text.length - 1};
    return format_text("%s%.*s", in_home ? home : "", (int)text.length, text.data);
}

static void add_string(buffer *out, bn_string text) {
    buffer_add(out, "\"", 1);
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = (unsigned char)text.data[i];
        char escape[8];
        if (c == '"' || c == '\\') snprintf(escape, sizeof escape, "\\%c", c);
        else if (c == '\n') snprintf(escape, sizeof escape, "\\n");
        else if (c < 0x20) snprintf(escape, sizeof escape, "\\u%04x", c);
        else snprintf(escape, sizeof escape, "%c", c);
        buffer_add(out, escape, strlen(escape));
    }
    buffer_add(out, "\"", 1);
}

static void add_text(buffer *out, const char *text) {
    buffer_add(out, text, strlen(text));
}

static void write_messages(const conversation *h, buffer *out) {
    add_text(out, "{\"messages\": [");
    for (size_t i = 0; i < h->count; i++) {
        add_text(out, i > 0 ? ",\n  {\"role\": " : "\n  {\"role\": ");
        add_string(out, (bn_string){h->messages[i].role.data, strlen(h->messages[i].role.data)});
        add_text(out, ", \"content\": ");
        add_string(out, h->messages[i].content);
        add_text(out, "}");
    }
    add_text(out, "\n]}\n");
}

// Writes what was computed. Returns its size, 0 if nothing was, or an error has been reported.
static size_t save_session(const chat *c, const char *path) {
    bn_error error = {0};
    size_t size = 0;
    bn_status status = bn_session_save(c->engine, SESSION, NULL, 0, &size, &error);
    if (status == BN_ERR_NOT_FOUND) return remove_file(path), 0; // an older one would be of another conversation
    uint8_t *data = status == BN_OK || status == BN_ERR_BUFFER_TOO_SMALL ? must(malloc(size + 1)) : NULL;
    if (data != NULL) status = bn_session_save(c->engine, SESSION, data, size, &size, &error);
    const char *wrong = status != BN_OK ? error.message : write_file(path, (const char *)data, size);
    if (wrong != NULL) complain("%s: %s", path, wrong);
    free(data);
    return wrong == NULL ? size : 0;
}

outcome command_save(chat *c, bn_string rest) {
    if (rest.length == 0) return complain("/save needs the name of a file"), FAILED;
    if (c->history.count == 0) return complain("there is nothing to save yet"), FAILED;
    char *path = path_of(rest), *computed = format_text("%s.kv", path);
    buffer text = {0};
    write_messages(&c->history, &text);
    const char *wrong = write_file(path, text.data, text.length);
    bool good = wrong == NULL;
    if (!good) complain("%s: %s", path, wrong);
    size_t size = good ? save_session(c, computed) : 0;
    unsigned long long count = c->history.count;
    if (good && c->interactive && size > 0)
        note("(saved: %llu messages in %s; what was computed of them, %.1f MiB, in %s)", count, path,
             (double)size / (1 << 20), computed);
    else if (good && c->interactive)
        note("(saved: %llu messages in %s)", count, path);
    buffer_free(&text);
    free(computed);
    free(path);
    return good ? GO_ON : FAILED;
}

// Returns NULL, or what is wrong: after a system message, users and assistants must take turns.
static const char *take_messages(const jsondoc *list, conversation *out) {
    if (list == NULL || list->kind != JSON_ARRAY) return "no conversation in JSON: it lacks a list \"messages\"";
    size_t place = 0;
    for (const jsondoc *m = list->child; m != NULL; m = m->next) {
        const char *role = jsondoc_string(m, "role");
        const jsondoc *content = jsondoc_member(m, "content");
        if (role == NULL || content == NULL || content->kind != JSON_STRING)
            return "a message lacks \"role\" or \"content\", or its content is no text";
        bool system = strcmp(role, "system") == 0 && m == list->child;
        const char *wanted = place % 2 == 0 ? "user" : "assistant";
        if (!system && strcmp(role, wanted) != 0)
            return "its messages do not take turns: system (if any), then user, assistant and so on";
        if (!system) place++;
        history_add(out, system ? "system" : wanted, (bn_string){content->text, content->size});
    }
    return place % 2 != 0 ? "its last message has no answer" : NULL;
}

// Takes up what was computed. Returns false if there is nothing that fits this model: the messages are enough.
static bool load_session(const chat *c, const char *path) {
    if (!file_exists(path)) return false;
    buffer data = {0};
    bn_error error = {0};
    bn_stats stats;
    bn_stats_init(&stats, sizeof stats);
    bn_engine_stats(c->engine, &stats, NULL);
    const char *wrong = read_file(path, stats.kv_bytes + BESIDE_KV, &data);
    bool good = wrong == NULL;
    if (!good) note("(%s: %s)", path, wrong);
    if (good) {
        good = bn_session_restore(c->engine, SESSION, (const uint8_t *)data.data, data.length, &error) == BN_OK;
        if (!good) note("(%s is left out: %s)", path, error.message);
    }
    buffer_free(&data);
    return good;
}

outcome command_load(chat *c, bn_string rest) {
    if (rest.length == 0) return complain("/load needs the name of a file"), FAILED;
    if (!c->info.has_chat_template) return complain("this model has no chat template, so no conversation"), FAILED;
    char *path = path_of(rest), *computed = format_text("%s.kv", path);
    buffer text = {0};
    conversation loaded = {0};
    const char *wrong = read_file(path, MOST_TEXT, &text);
    jsondoc *json = wrong == NULL ? jsondoc_parse(text.data, text.length) : NULL;
    if (wrong == NULL) wrong = take_messages(jsondoc_member(json, "messages"), &loaded);
    jsondoc_free(json);
    buffer_free(&text);
    if (wrong == NULL) {
        conversation old = c->history;
        c->history = loaded;
        loaded = old;
        bn_session_free(c->engine, SESSION, NULL); // there may be none
        bool whole = load_session(c, computed);
        if (c->interactive)
            note("(%llu messages%s)", (unsigned long long)c->history.count,
                 whole ? "" : "; the next answer computes them first");
    } else {
        complain("%s: %s", path, wrong);
    }
    history_drop(&loaded, 0, loaded.count);
    free(loaded.messages);
    free(computed);
    free(path);
    return wrong == NULL ? GO_ON : FAILED;
}
