// Tests json.c without memory: refuses each allocation of a parse in turn. Linked with --wrap=malloc.
#include "json.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static size_t until; // the allocation that is refused; 0: none

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size) {
    return until > 0 && --until == 0 ? NULL : __real_malloc(size);
}

static cJSON *parse(const char *text, size_t refused, const char **error) {
    *error = NULL;
    until = refused;
    size_t at = 0;
    return json_object(text, strlen(text), error, &at);
}

int main(void) {
    static const char good[] = "{\"a\":[1,\"b\",{\"c\":\"\\u00e9\"}]}";
    const char *error;
    json_start();
    for (size_t refused = 1;; refused++) {
        cJSON *root = parse(good, refused, &error);
        cJSON_Delete(root);
        if (error != NULL) return printf("refused %zu: %s\n", refused, error), 1;
        if (root == NULL) continue;
        if (refused < 8) return printf("not refused %zu\n", refused), 1;
        break;
    }
    if (parse("{", 0, &error) != NULL || error == NULL) return puts("a bad one"), 1;
    until = 1;
    cJSON_CreateObject(); // ends the program
    return puts("went on without memory"), 1;
}
