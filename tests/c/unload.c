// A host that loads the library at run time and closes it again: no thread stays behind, and fork goes on
// working.
#include "bn_engine.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOAD(name)                                       \
    __typeof__(&name) p_##name;                          \
    *(void **)&p_##name = dlsym(library, #name);         \
    if (p_##name == NULL) return fail(dlerror())

static int fail(const char *what) {
    fprintf(stderr, "unload: %s\n", what);
    return 1;
}

static int threads(void) {
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    if (folder == NULL) return 0;
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    return count;
}

static int once(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fail(dlerror());
    LOAD(bn_engine_config_init);
    LOAD(bn_engine_create);
    LOAD(bn_request_params_init);
    LOAD(bn_submit);
    LOAD(bn_engine_destroy);
    bn_engine_config config;
    bn_request_params params;
    bn_engine *engine = NULL;
    bn_request request;
    if (p_bn_engine_config_init(&config, sizeof config) != BN_OK) return fail("config");
    config.model_path = BN_TEXT("builtin:echo?us_per_token=100");
    if (p_bn_engine_create(&config, &engine, NULL) != BN_OK) return fail("create");
    if (p_bn_request_params_init(&params, sizeof params) != BN_OK) return fail("params");
    params.prompt = BN_STRING("unfinished");
    if (p_bn_submit(engine, &params, &request, NULL) != BN_OK) return fail("submit");
    if (p_bn_engine_destroy(engine) != BN_OK) return fail("destroy");
    return dlclose(library) == 0 ? 0 : fail("dlclose");
}

int main(int argc, char **argv) {
    if (argc != 2) return fail("the library's path?");
    int before = threads();
    for (int i = 0; i < 5; i++) {
        if (once(argv[1]) != 0) return 1;
        if (threads() != before) return fail("a thread stayed behind");
        pid_t child = fork();
        if (child == 0) _exit(0);
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return fail("fork after dlclose");
    }
    puts("loaded and closed five times, nothing stays behind");
    return 0;
}
