// In place of remote.c where there was no libcurl when this was built: what is in the cache can still be used.
#include "parts.h"

#include <stdio.h>

static const char WHY[] = "this program was built without downloads (libcurl)";

remote_result remote_list(const hub *h, hub_list *list, char why[256]) {
    (void)h, (void)list;
    snprintf(why, 256, "%s", WHY);
    return REMOTE_AWAY;
}

bool remote_get(const hub *h, const char *commit, const hub_file *file, const char *path) {
    (void)commit, (void)path;
    return hub_fail(h, "%s: %s", file->name, WHY);
}
