#include "store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct kept {
    struct kept *next; // younger
    char id[STORE_ID];
    struct buffer response, items;
};

static struct {
    pthread_mutex_t lock;
    struct kept *oldest;
    uint64_t bytes;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t size_of(const struct kept *kept) {
    return sizeof *kept + kept->response.capacity + kept->items.capacity;
}

static struct kept **find(const char *id) {
    struct kept **at = &store.oldest;
    while (*at != NULL && strcmp((*at)->id, id) != 0) at = &(*at)->next;
    return at;
}

static void drop(struct kept **at) {
    struct kept *kept = *at;
    *at = kept->next;
    store.bytes -= size_of(kept);
    buffer_free(&kept->response);
    buffer_free(&kept->items);
    free(kept);
}

static void copy(struct buffer *to, const struct buffer *from) {
    if (to != NULL) buffer_add(to, from->data + from->start, from->end - from->start);
}

bool store_put(const struct server *server, const char *id, const struct buffer *response, const struct buffer *items) {
    struct kept *kept = must(calloc(1, sizeof *kept));
    strncpy(kept->id, id, STORE_ID - 1);
    copy(&kept->response, response);
    copy(&kept->items, items);
    buffer_trim(&kept->response);
    buffer_trim(&kept->items);
    uint64_t size = size_of(kept), most = server->options.keep_responses;
    bool fits = size <= most;
    if (!fits) {
        buffer_free(&kept->response);
        buffer_free(&kept->items);
        free(kept);
        return false;
    }
    pthread_mutex_lock(&store.lock);
    while (store.bytes + size > most) drop(&store.oldest);
    struct kept **end = &store.oldest;
    while (*end != NULL) end = &(*end)->next;
    *end = kept;
    store.bytes += size;
    pthread_mutex_unlock(&store.lock);
    return true;
}

bool store_get(const char *id, struct buffer *response, struct buffer *items) {
    pthread_mutex_lock(&store.lock);
    struct kept *kept = *find(id);
    if (kept != NULL) copy(response, &kept->response);
    if (kept != NULL) copy(items, &kept->items);
    pthread_mutex_unlock(&store.lock);
    return kept != NULL;
}

bool store_drop(const char *id) {
    pthread_mutex_lock(&store.lock);
    struct kept **at = find(id);
    bool found = *at != NULL;
    if (found) drop(at);
    pthread_mutex_unlock(&store.lock);
    return found;
}
