// Which files of a repository a model needs: one GGUF file or all parts of a split one, or what a folder of safetensors
// has. Downloads take no others.
#include "parts.h"

#include "jsondoc.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char INDEX[] = "model.safetensors.index.json";
static const char GGUF[] = ".gguf";

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), size = strlen(end);
    return length >= size && strcasecmp(text + length - size, end) == 0;
}

static bool is_checksum(const char *etag) {
    size_t length = strlen(etag);
    return (length == 0 || length == 40 || length == 64) && strspn(etag, "0123456789abcdef") == length;
}

// No name may lead out of the folder, nor onto a terminal what is no text.
static bool is_safe(const char *name) {
    for (const unsigned char *c = (const unsigned char *)name; *c != 0; c++)
        if (*c < 0x20 || *c == 0x7f || *c == '\\') return false;
    for (const char *part = name;; part++) {
        size_t length = strcspn(part, "/");
        if (length == 0 || (length <= 2 && strncmp(part, "..", length) == 0)) return false;
        part += length;
        if (*part == 0) return true;
    }
}

void list_add(hub_list *list, const char *name, const char *etag, uint64_t size) {
    if (!is_safe(name) || !is_checksum(etag)) return;
    if (list->count == list->room) {
        list->room = 2 * list->room + 16;
        list->files = hub_must(realloc(list->files, list->room * sizeof *list->files));
    }
    hub_file *file = &list->files[list->count++];
    *file = (hub_file){.name = hub_format("%s", name), .size = size};
    strcpy(file->etag, etag);
}

const hub_file *list_find(const hub_list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->files[i].name, name) == 0) return &list->files[i];
    return NULL;
}

static void add_file(hub_list *to, const hub_file *file) {
    if (file != NULL && list_find(to, file->name) == NULL) list_add(to, file->name, file->etag, file->size);
}

void list_free(hub_list *list) {
    for (size_t i = 0; i < list->count; i++) free(list->files[i].name);
    free(list->files);
    *list = (hub_list){.count = 0};
}

// The numbers of a split file's name, NAME-00001-of-00003.gguf. Returns the length of NAME; without numbers, that of
// the name without its end, and both numbers are 1.
static size_t split(const char *name, unsigned *part, unsigned *parts) {
    size_t stem = strlen(name) - strlen(GGUF);
    const size_t numbers = strlen("-00001-of-00003");
    *part = *parts = 1;
    const char *tail = stem > numbers ? name + stem - numbers : "";
    int used = 0;
    if (sscanf(tail, "-%5u-of-%5u%n", part, parts, &used) == 2 && (size_t)used == numbers) return stem - numbers;
    *part = *parts = 1;
    return stem;
}

// Returns true for what stands for a model in a list: a GGUF file, or the first part of one.
static bool is_model(const hub_file *file) {
    unsigned part, parts;
    const char *name = file->name;
    bool other = strcasestr(name, "mmproj") != NULL || strcasestr(name, "imatrix") != NULL;
    if (!ends_with(name, GGUF) || other) return false;
    split(name, &part, &parts);
    return part == 1;
}

// Returns true if a file's name ends with the type, as a word.
static bool has_type(const hub_file *file, const char *type) {
    unsigned part, parts;
    size_t stem = split(file->name, &part, &parts), length = strlen(type);
    if (stem < length || strncasecmp(file->name + stem - length, type, length) != 0) return false;
    return stem == length || strchr("-._/", file->name[stem - length - 1]) != NULL;
}

// Adds all parts of a model. Returns false if one is missing.
static bool add_parts(const hub *h, const hub_list *list, const hub_file *model, hub_list *chosen) {
    unsigned part, parts;
    size_t stem = split(model->name, &part, &parts);
    add_file(chosen, model);
    for (part = 2; part <= parts; part++) {
        char *name = hub_format("%.*s-%05u-of-%05u%s", (int)stem, model->name, part, parts, GGUF);
        const hub_file *file = list_find(list, name);
        if (file == NULL) hub_fail(h, "%s lacks %s", h->repo, name);
        add_file(chosen, file);
        free(name);
        if (file == NULL) return false;
    }
    return true;
}

// Prints what can be asked for. Returns false.
static bool refuse(const hub *h, const hub_list *list, const char *why) {
    enum { MOST = 40 };
    size_t shown = 0;
    char size[16];
    hub_fail(h, "%s%s%s", h->repo, h->offline ? " in the cache" : "", why);
    for (size_t i = 0; i < list->count; i++) {
        const hub_file *file = &list->files[i];
        if (!is_model(file) && !ends_with(file->name, ".safetensors")) continue;
        if (shown++ < MOST) fprintf(stderr, "  %-9s  %s\n", hub_bytes(file->size, size), file->name);
    }
    if (shown > MOST) fprintf(stderr, "  and %zu more\n", shown - MOST);
    if (shown == 0) fputs("  no GGUF and no safetensors files\n", stderr);
    return false;
}

static const hub_file *shortest_of_type(const hub_list *list, const char *type) {
    const hub_file *best = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const hub_file *file = &list->files[i];
        if (!is_model(file) || !has_type(file, type)) continue;
        if (best == NULL || strlen(file->name) < strlen(best->name)) best = file;
    }
    return best;
}

// The file or type that was asked for, or NULL.
static const hub_file *asked_for(const hub *h, const hub_list *list) {
    unsigned part, parts;
    char *with_end = hub_format("%s%s", h->which, GGUF);
    const hub_file *file = list_find(list, h->which);
    if (file == NULL) file = list_find(list, with_end);
    free(with_end);
    if (file == NULL || !ends_with(file->name, GGUF)) return shortest_of_type(list, h->which);
    size_t stem = split(file->name, &part, &parts);
    if (part == 1) return file;
    char *first = hub_format("%.*s-%05u-of-%05u%s", (int)stem, file->name, 1, parts, GGUF);
    file = list_find(list, first);
    free(first);
    return file;
}

// Where nothing was asked for: the only one, or Q4_K_M, or the smallest of a ternary or binary type; NULL for none.
static const hub_file *usual(const hub_list *list) {
    static const char *const types[] = {"I2_S",  "TQ2_0",  "TQ1_0",  "Q1_0",  "Q2_0",
                                        "PQ2_0", "PTQ1_0", "IQ1_BN", "IQ2_BN"};
    const hub_file *only = NULL, *best = shortest_of_type(list, "Q4_K_M");
    size_t models = 0;
    for (size_t i = 0; i < list->count; i++)
        if (is_model(&list->files[i])) only = &list->files[i], models++;
    if (models == 1) return only;
    if (best != NULL) return best;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const hub_file *file = shortest_of_type(list, types[i]);
        if (file != NULL && (best == NULL || file->size < best->size)) best = file;
    }
    return best;
}

// Files beside the weights: at the top, and those of a sentence-transformers module (1_Pooling, 2_Dense).
static bool belongs(const char *name) {
    const char *slash = strchr(name, '/');
    if (slash == NULL) return ends_with(name, ".json") || ends_with(name, ".jinja");
    bool module = isdigit((unsigned char)*name) && name[strspn(name, "0123456789")] == '_';
    return module && (strcmp(slash, "/config.json") == 0 || strcmp(slash, "/model.safetensors") == 0);
}

static bool choose_folder(const hub *h, const hub_list *list, hub_list *chosen) {
    const hub_file *single = list_find(list, "model.safetensors");
    bool index = list_find(list, INDEX) != NULL;
    if (list_find(list, "config.json") == NULL || (single == NULL && !index))
        return refuse(h, list, " has neither one GGUF file of the usual types nor config.json with model.safetensors. "
                               "Add a file or its type, as hf:OWNER/NAME:Q8_0. It has:");
    for (size_t i = 0; i < list->count; i++)
        if (belongs(list->files[i].name)) add_file(chosen, &list->files[i]);
    if (!index) add_file(chosen, single);
    return true;
}

bool choose(const hub *h, const hub_list *list, hub_list *chosen, const char **entry) {
    const hub_file *model = h->which != NULL ? asked_for(h, list) : usual(list);
    memcpy(chosen->commit, list->commit, sizeof list->commit);
    *entry = "";
    if (model == NULL && h->which != NULL) {
        char *why = hub_format(" has no GGUF file or type '%s'. It has:", h->which);
        refuse(h, list, why);
        free(why);
        return false;
    }
    if (model == NULL) return choose_folder(h, list, chosen);
    *entry = model->name;
    return add_parts(h, list, model, chosen);
}

bool choose_shards(const hub *h, const hub_list *list, hub_list *chosen, const char *index_path) {
    FILE *file = fopen(index_path, "re");
    char *text = NULL;
    size_t room = 0;
    ssize_t length = file != NULL ? getdelim(&text, &room, EOF, file) : -1;
    jsondoc *json = length > 0 ? jsondoc_parse(text, (size_t)length) : NULL;
    const jsondoc *map = jsondoc_member(json, "weight_map");
    bool good = map != NULL && map->kind == JSON_OBJECT;
    if (!good) hub_fail(h, "%s: no list of safetensors files", index_path);
    for (const jsondoc *m = good ? map->child : NULL; good && m != NULL; m = m->next) {
        const hub_file *shard = m->kind == JSON_STRING ? list_find(list, m->text) : NULL;
        good = shard != NULL;
        const char *name = m->kind == JSON_STRING ? m->text : INDEX;
        if (good) add_file(chosen, shard);
        else hub_fail(h, "%s%s lacks %s", h->repo, h->offline ? " in the cache" : "", name);
    }
    jsondoc_free(json);
    free(text);
    if (file != NULL) fclose(file);
    return good;
}
