#include "hub.h"

#include "parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STOPPED = 128 + SIGINT };

// Lists the files: of the hub, or of the cache where the hub is not asked or not reached (h->offline is set then).
static bool list_files(hub *h, hub_list *list) {
    char why[256] = "HF_HUB_OFFLINE is set";
    bool asked = !h->offline;
    if (asked) {
        remote_result result = remote_list(h, list, why);
        if (result != REMOTE_AWAY) return result == REMOTE_DONE;
        h->offline = true;
    }
    if (hub_stopped(h)) return false;
    list_free(list);
    if (!cache_list(h, list)) return hub_fail(h, "%s is not in the cache %s, and %s", h->repo, h->cache, why);
    if (asked) fprintf(stderr, "%s: %s: what is in the cache is used\n", h->program, why);
    return true;
}

// A folder's index names its weights.
static bool add_shards(const hub *h, const hub_list *list, hub_list *chosen) {
    if (list_find(chosen, INDEX) == NULL) return true;
    if (!h->offline && !cache_fill(h, chosen)) return false;
    char *path = cache_path(h, list->commit, INDEX);
    bool good = choose_shards(h, list, chosen, path);
    free(path);
    return good;
}

static char *find(hub *h, const char *model) {
    hub_list list = {.count = 0}, chosen = {.count = 0};
    const char *entry = "";
    bool good = settings_read(h, model) && list_files(h, &list) && choose(h, &list, &chosen, &entry) &&
                add_shards(h, &list, &chosen) &&
                (h->offline || (cache_fill(h, &chosen) && cache_set_main(h, list.commit)));
    char *path = good ? cache_path(h, list.commit, entry) : NULL;
    list_free(&chosen);
    list_free(&list);
    return path;
}

const bool hub_knows_names = true;

int hub_get(const char *program, const char **model, const volatile sig_atomic_t *stop) {
    hub h = {.program = program, .stop = stop};
    if (*model == NULL || strncmp(*model, "hf:", strlen("hf:")) != 0) return 0;
    char *path = find(&h, *model);
    bool stopped = hub_stopped(&h);
    settings_free(&h);
    if (path == NULL) return stopped ? STOPPED : 1;
    *model = path;
    return 0;
}
