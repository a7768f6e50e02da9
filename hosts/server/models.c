#include "models.h"

#include "../hub/hub.h"
#include "adapters.h"
#include "connection.h"
#include "fields.h"
#include "load.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>

enum { WRONG_OPTION = 2, NO_MODEL = 3, TICK_MS = 1000 };

// -- the list ---------------------------------------------------------------------------------------

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), own = strlen(end);
    return length >= own && strcmp(text + length - own, end) == 0;
}

static bool in_folder(const char *folder, const char *file, struct stat *out) {
    char path[4096];
    return snprintf(path, sizeof path, "%s/%s", folder, file) < (int)sizeof path && stat(path, out) == 0;
}

// The size of a model's files and when they were written.
static void look_at_files(struct model *m) {
    struct stat s;
    m->created = (uint64_t)time(NULL);
    if (stat(m->options.model, &s) != 0) return;
    m->created = (uint64_t)s.st_mtime;
    m->bytes = (uint64_t)s.st_size;
    DIR *folder = S_ISDIR(s.st_mode) ? opendir(m->options.model) : NULL;
    if (folder == NULL) return;
    m->bytes = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (ends_with(entry->d_name, ".safetensors") && in_folder(m->options.model, entry->d_name, &s))
            m->bytes += (uint64_t)s.st_size;
    closedir(folder);
}

// Downloads the models that are named by a repository on Hugging Face's hub; ends the server where one cannot be had.
static void fetch(struct options *o) {
    if (hub_get("bn-server", &o->model, NULL) != 0 || hub_get("bn-server", &o->draft_model, NULL) != 0) exit(NO_MODEL);
}

// Appends a model. `name` is empty if the model says it itself.
static struct model *add(struct server *server, const char *name, const char *path) {
    struct model **end = &server->models, *m = must(calloc(1, sizeof *m));
    while (*end != NULL) end = &(*end)->next;
    m->name = must(strdup(name));
    m->options = server->options;
    m->options.model = must(strdup(path));
    m->keep_ms = UINT64_MAX;
    fetch(&m->options);
    look_at_files(m);
    return *end = m;
}

static bool is_model(const char *folder, const char *name) {
    struct stat s;
    char path[4096];
    if (*name == '.' || !in_folder(folder, name, &s)) return false;
    if (!S_ISDIR(s.st_mode)) {
        const char *part = strstr(name, "-of-"); // of a file in parts, the first one
        bool later = part != NULL && part - name > 6 && strncmp(part - 6, "-00001", 6) != 0;
        return ends_with(name, ".gguf") && !later && strncmp(name, "mmproj", 6) != 0;
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return in_folder(path, "config.json", &s);
}

static bool add_folder(struct server *server, const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char *name = entries[i]->d_name, path[4096];
        if (is_model(folder, name) && snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path) {
            if (ends_with(name, ".gguf")) name[strlen(name) - strlen(".gguf")] = 0;
            add(server, name, path);
        }
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    if (server->models == NULL) fprintf(stderr, "bn-server: --models: no model is in %s\n", folder);
    return server->models != NULL;
}

// The part of a path that names a model: its last part, without .gguf.
static char *name_of(const char *path) {
    const char *last = strrchr(path, '/');
    char *name = must(strdup(last != NULL && last[1] != 0 ? last + 1 : path));
    if (ends_with(name, ".gguf")) name[strlen(name) - strlen(".gguf")] = 0;
    return name;
}

// `NAME=PATH;option=value;...`, where the name may be missing.
static void add_item(struct server *server, char *item) {
    char *rest = item, *path = strsep(&rest, ";"), *more, *name = NULL;
    size_t plain = strcspn(path, "/:?=");
    if (path[plain] == '=') {
        path[plain] = 0;
        name = must(strdup(path));
        path += plain + 1;
    } else {
        name = name_of(path);
    }
    struct model *m = add(server, name, path);
    free(name);
    while ((more = strsep(&rest, ";")) != NULL)
        if (*more != 0) options_of_model(&m->options, more);
    fetch(&m->options); // a draft model of its own
}

static bool names_differ(const struct server *server) {
    for (const struct model *m = server->models; m != NULL; m = m->next) {
        if (models_find(server, m->name) == m) continue;
        fprintf(stderr, "bn-server: --models: two models are called %s\n", m->name);
        return false;
    }
    return true;
}

bool models_start(struct server *server) {
    const struct options *o = &server->options;
    struct stat s;
    if (*o->models == 0) return add(server, o->model_name, o->model) != NULL;
    server->several = true;
    server->state = SERVING;
    if (*o->model != 0 || *o->model_name != 0) {
        fprintf(stderr, "bn-server: --models has its own models and names: --model and --model-name are for one\n");
        return false;
    }
    if (stat(o->models, &s) == 0 && S_ISDIR(s.st_mode)) return add_folder(server, o->models) && names_differ(server);
    char *copy = must(strdup(o->models)), *rest = copy, *item;
    while ((item = strsep(&rest, ",")) != NULL)
        if (*item != 0) add_item(server, item);
    free(copy);
    return names_differ(server);
}

static struct model *find(const struct server *server, const char *name) {
    struct model *m = server->models;
    while (m != NULL && strcmp(m->name, name) != 0 && !adapters_list(m->options.adapters, name)) m = m->next;
    return m;
}

struct model *models_find(const struct server *server, const char *name) {
    static const char tag[] = ":latest"; // Ollama's clients add it
    struct model *m = find(server, name);
    if (m != NULL || !ends_with(name, tag)) return m;
    char *plain = must(strndup(name, strlen(name) - strlen(tag)));
    m = find(server, plain);
    free(plain);
    return m;
}

struct model *models_tagged(const struct server *server, const void *tag) {
    struct model *m = server->models;
    while (m != NULL && m != tag) m = m->next;
    return m;
}

// -- requests ---------------------------------------------------------------------------------------

static void hold(struct exchange *ex) {
    ex->holds = true;
    ex->model->users++;
}

static bool is_free(const struct model *m) {
    return m->stage == HERE && !m->leaves;
}

void models_take(struct exchange *ex, const char *name) {
    struct server *server = ex->server;
    struct model *m = name == NULL && !server->several ? server->models : NULL;
    if (name != NULL) m = models_find(server, name);
    if (m == NULL && server->options.any_model != 0) m = server->models;
    if (m == NULL && name == NULL) {
        fail(ex, 400, "invalid_request_error", "'model' is missing: this server has several");
        return;
    }
    if (m == NULL) { // another model's answer would pass for its own
        fail(ex, 404, "model_not_found", "there is no model '%.200s' here", name);
        return;
    }
    ex->model = m;
    if (is_free(m)) {
        hold(ex);
        route_go_on(ex);
        return;
    }
    ex->loading_ns = unix_ns();
    struct exchange **end = &server->waiters;
    while (*end != NULL) end = &(*end)->next_waiter;
    *end = ex;
}

static void unlist(struct exchange *ex) {
    for (struct exchange **at = &ex->server->waiters; *at != NULL; at = &(*at)->next_waiter) {
        if (*at != ex) continue;
        *at = ex->next_waiter;
        ex->next_waiter = NULL;
        return;
    }
}

void models_leave(struct exchange *ex) {
    unlist(ex);
    if (ex->holds) ex->model->keep_ms = ex->ask.keep_ms;
    if (ex->holds && --ex->model->users == 0) ex->model->used_ms = now_ms();
    ex->holds = false;
}

static void go_on(struct server *server) {
    for (struct exchange *ex = server->waiters, *next; ex != NULL; ex = next) {
        next = ex->next_waiter;
        if (!is_free(ex->model)) continue;
        unlist(ex);
        hold(ex);
        ex->loading_ns = unix_ns() - ex->loading_ns;
        route_go_on(ex);
        http_wake(ex);
    }
}

// Fails the requests that wait for a model, or for any.
static void fail_waiters(struct server *server, const struct model *m, const char *code, const char *why) {
    for (struct exchange *ex = server->waiters, *next; ex != NULL; ex = next) {
        next = ex->next_waiter;
        if (m != NULL && ex->model != m) continue;
        unlist(ex);
        fail(ex, 503, code, "%s", why);
        route_let_go(ex);
        http_wake(ex);
    }
}

void models_stop(struct server *server) {
    fail_waiters(server, NULL, "unavailable", "the server is shutting down");
}

// -- loading and letting go -------------------------------------------------------------------------

static uint64_t held_by(const struct model *m) {
    bn_stats stats;
    bn_stats_init(&stats, sizeof stats);
    if (m->stage != HERE || bn_engine_stats(m->engine, &stats, NULL) != BN_OK) return m->bytes;
    return stats.memory_used_bytes > m->bytes ? stats.memory_used_bytes : m->bytes;
}

static bool fits(const struct server *server, const struct model *wanted) {
    const struct options *o = &server->options;
    uint64_t bytes = wanted->bytes + wanted->options.kv_cache, count = 1;
    if (wanted->short_of_memory) return false;
    for (const struct model *m = server->models; m != NULL; m = m->next) {
        if (m->stage == AWAY) continue;
        bytes += held_by(m);
        count++;
    }
    return (o->max_loaded == 0 || count <= o->max_loaded) && (o->models_memory == 0 || bytes <= o->models_memory);
}

// The one that was used least lately; those that are in use come last.
static struct model *victim(const struct server *server) {
    struct model *found = NULL;
    for (struct model *m = server->models; m != NULL; m = m->next) {
        if (m->stage != HERE) continue;
        bool better = found == NULL || (m->users == 0) > (found->users == 0) ||
                      ((m->users == 0) == (found->users == 0) && m->used_ms < found->used_ms);
        if (better) found = m;
    }
    return found;
}

static bool begin(struct server *server, struct model *m) {
    bool goes = m->stage == HERE;
    if (goes) poll_set(server->epoll, EPOLL_CTL_DEL, bn_engine_wait_fd(m->engine, NULL), 0, NULL);
    if (load_begin(m)) return true;
    perror("bn-server: no thread for a model");
    if (goes) poll_set(server->epoll, EPOLL_CTL_ADD, bn_engine_wait_fd(m->engine, NULL), EPOLLIN, m);
    return false;
}

static void make_room(struct server *server, struct model *wanted) {
    struct model *m = victim(server);
    if (m == NULL) {
        wanted->short_of_memory = false;
        fail_waiters(server, wanted, "model_unavailable", "the server has no memory for this model");
    } else if (m->users > 0) {
        m->leaves = true; // those that it answers come to their ends first
    } else {
        begin(server, m);
    }
}

uint64_t models_left_ms(const struct server *server, const struct model *m) {
    bool said = server->several && m->keep_ms != UINT64_MAX;
    uint64_t usual = server->options.idle_unload_s > 0 ? server->options.idle_unload_s * 1000 : UINT64_MAX;
    uint64_t stays = said ? m->keep_ms : usual;
    uint64_t idle = m->users > 0 ? 0 : now_ms() - m->used_ms;
    return stays >= UINT64_MAX - 1 ? UINT64_MAX : stays > idle ? stays - idle : 0;
}

static struct model *idle(const struct server *server) {
    for (struct model *m = server->models; m != NULL; m = m->next)
        if (m->stage == HERE && m->users == 0 && models_left_ms(server, m) == 0) return m;
    return NULL;
}

static struct model *wanted_model(const struct server *server) {
    for (const struct exchange *ex = server->waiters; ex != NULL; ex = ex->next_waiter)
        if (ex->model->stage == AWAY) return ex->model;
    return NULL;
}

void models_turn(struct server *server) {
    if (load_busy() || server->state > SERVING) return;
    struct model *wanted = wanted_model(server), *old = wanted == NULL ? idle(server) : NULL;
    if (wanted == NULL) {
        bool changed = false;
        for (struct model *m = server->models; m != NULL; m = m->next) changed |= m->leaves, m->leaves = false;
        if (changed) go_on(server);
        if (old != NULL && old->users == 0) begin(server, old);
    } else if (!fits(server, wanted)) {
        make_room(server, wanted);
    } else if (!begin(server, wanted)) {
        fail_waiters(server, wanted, "model_unavailable", "the server has no thread to load this model");
    }
}

// Whether letting go of another model may help.
static bool lacks_memory(const bn_error *error) {
    return error->status == BN_ERR_MEMORY_LIMIT || error->status == BN_ERR_OUT_OF_MEMORY;
}

static void report(const struct server *server, const struct model *m, bn_status status, const char *message) {
    if (status != BN_ERR_CANCELLED)
        fprintf(stderr, "bn-server: %s%s%s\n", server->several ? m->name : "", server->several ? ": " : "", message);
}

static bool not_loaded(struct server *server, struct model *m, const bn_error *error) {
    char message[sizeof error->message + 64];
    options_name(message, sizeof message, error->message);
    report(server, m, error->status, message);
    if (server->state == LOADING && error->status != BN_ERR_CANCELLED) {
        bool option = strncmp(error->message, "--rerank", strlen("--rerank")) == 0; // it does not fit the model
        server->exit_status = option ? WRONG_OPTION : NO_MODEL;
    }
    if (server->state != SERVING) return server->state != LOADING;
    if (lacks_memory(error) && victim(server) != NULL) m->short_of_memory = true;
    else fail_waiters(server, m, "model_unavailable", message);
    return true;
}

bool models_loaded(struct server *server) {
    bn_error error;
    struct model *m = load_end(&error);
    if (error.status != BN_OK) return not_loaded(server, m, &error);
    if (m->stage == AWAY) {
        fprintf(stderr, "bn-server: %s is let go\n", m->name);
        m->leaves = false;
        for (struct model *other = server->models; other != NULL; other = other->next) other->short_of_memory = false;
        return true;
    }
    if (server->state == LOADING) server->state = SERVING;
    if (server->state != SERVING) return true;
    fprintf(stderr, "bn-server: serving %s\n", m->name);
    m->used_ms = now_ms();
    if (!poll_set(server->epoll, EPOLL_CTL_ADD, bn_engine_wait_fd(m->engine, NULL), EPOLLIN, m)) return false;
    go_on(server);
    return true;
}

int models_timeout(const struct server *server) {
    for (const struct model *m = server->models; m != NULL; m = m->next)
        if (m->stage == HERE && m->users == 0 && models_left_ms(server, m) != UINT64_MAX) return TICK_MS;
    return -1;
}
