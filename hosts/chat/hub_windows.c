// In place of hosts/hub on Windows, where this program has no downloads and no cache of Hugging Face's.
#include "../hub/hub.h"

#include <stdio.h>
#include <string.h>

const bool hub_knows_names = false;

int hub_get(const char *program, const char **model, const volatile sig_atomic_t *stop) {
    (void)stop;
    if (*model == NULL || strncmp(*model, "hf:", strlen("hf:")) != 0) return 0;
    fprintf(stderr, "%s: '%s': on Windows, models have no names here yet: download it and give its path\n", program,
            *model);
    return 1;
}
