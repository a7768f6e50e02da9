// The model's name, and the environment variables that huggingface_hub reads too.
#include "parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void *hub_must(void *memory) {
    if (memory != NULL) return memory;
    fputs("out of memory\n", stderr);
    exit(1);
}

char *hub_format(const char *format, ...) {
    char *out = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&out, format, args) < 0) out = NULL;
    va_end(args);
    return hub_must(out);
}

bool hub_fail(const hub *h, const char *format, ...) {
    va_list args;
    bar_end();
    fprintf(stderr, "%s: ", h->program);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return false;
}

bool hub_stopped(const hub *h) {
    return h->stop != NULL && *h->stop != 0;
}

const char *hub_bytes(uint64_t bytes, char out[16]) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) value /= 1024, unit++;
    snprintf(out, 16, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

// The value of a variable, or NULL: an empty one is not set.
static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value != NULL && *value != 0 ? value : NULL;
}

static bool is_true(const char *name) {
    const char *value = variable(name);
    return value != NULL && (strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0 ||
                             strcasecmp(value, "yes") == 0 || strcasecmp(value, "on") == 0);
}

// A path from a variable, with the home folder for ~. NULL if it is not set.
static char *path_from(const char *name) {
    const char *value = variable(name), *home = variable("HOME");
    if (value == NULL) return NULL;
    bool in_home = value[0] == '~' && (value[1] == '/' || value[1] == 0) && home != NULL;
    if (in_home) return hub_format("%s%s", home, value + 1);
    return hub_format("%s", value);
}

static char *home_folder(void) {
    char *home = path_from("HF_HOME"), *cache = path_from("XDG_CACHE_HOME");
    const char *user = variable("HOME");
    if (home == NULL && cache != NULL) home = hub_format("%s/huggingface", cache);
    if (home == NULL) home = hub_format("%s/.cache/huggingface", user != NULL ? user : "/tmp");
    free(cache);
    return home;
}

// A token as huggingface_hub's login leaves it, or from the environment.
static char *read_token(const char *home) {
    char *path = path_from("HF_TOKEN_PATH");
    char text[1024] = "";
    const char *given = variable("HF_TOKEN");
    if (given == NULL) given = variable("HUGGING_FACE_HUB_TOKEN");
    if (path == NULL) path = hub_format("%s/token", home);
    FILE *file = given == NULL && !is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") ? fopen(path, "re") : NULL;
    if (given != NULL) snprintf(text, sizeof text, "%s", given);
    if (file != NULL && fgets(text, sizeof text, file) == NULL) *text = 0;
    if (file != NULL) fclose(file);
    free(path);
    text[strcspn(text, " \t\r\n")] = 0;
    return *text != 0 ? hub_format("%s", text) : NULL;
}

// A repository's name: one or two parts of letters, digits and any of "-_." that do not begin with a dot.
static bool is_repo(const char *name) {
    size_t parts = 1, length = 0;
    for (const char *c = name;; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (letter || *c == '-' || *c == '_' || (*c == '.' && length > 0)) {
            length++;
        } else if (length > 0 && (*c == '/' || *c == 0)) {
            if (*c == 0) return parts <= 2;
            parts++;
            length = 0;
        } else {
            return false;
        }
    }
}

bool settings_read(hub *h, const char *model) {
    const char *name = model + strlen("hf:"), *colon = strchr(name, ':');
    const char *endpoint = variable("HF_ENDPOINT");
    h->repo = hub_format("%.*s", colon != NULL ? (int)(colon - name) : (int)strlen(name), name);
    if (colon != NULL && colon[1] != 0) h->which = hub_format("%s", colon + 1);
    if (!is_repo(h->repo))
        return hub_fail(h, "'%s' is no name on the hub: hf:OWNER/NAME, or hf:OWNER/NAME:Q4_K_M", model);
    h->endpoint = hub_format("%s", endpoint != NULL ? endpoint : "https://huggingface.co");
    for (size_t end = strlen(h->endpoint); end > 0 && h->endpoint[end - 1] == '/';) h->endpoint[--end] = 0;
    char *home = home_folder();
    h->cache = path_from("HF_HUB_CACHE");
    if (h->cache == NULL) h->cache = path_from("HUGGINGFACE_HUB_CACHE");
    if (h->cache == NULL) h->cache = hub_format("%s/hub", home);
    h->token = read_token(home);
    h->offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
    free(home);
    return true;
}

void settings_free(hub *h) {
    free(h->repo);
    free(h->which);
    free(h->endpoint);
    free(h->cache);
    free(h->token);
}
