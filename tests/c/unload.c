// A host that loads the library at run time and closes it again, many times: no thread, descriptor or memory stays
// behind, and fork goes on working.
#include "bn_engine.h"
#include "process.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOAD(name)                                       \
    __typeof__(&name) p_##name;                          \
    *(void **)&p_##name = dlsym(library, #name);         \
    if (p_##name == NULL) return fail(dlerror()), &failed

static int fail(const char *what) {
    fprintf(stderr, "unload: %s\n", what);
    return 1;
}

// An engine that is destroyed with a request on its way. NULL: all went well.
static void *use(void *library) {
    static char failed;
    LOAD(bn_engine_config_init);
    LOAD(bn_engine_create);
    LOAD(bn_request_params_init);
    LOAD(bn_submit);
    LOAD(bn_engine_destroy);
    bn_engine_config config;
    bn_request_params params;
    bn_engine *engine = NULL;
    bn_request request;
    if (p_bn_engine_config_init(&config, sizeof config) != BN_OK) return fail("config"), &failed;
    config.model_path = BN_TEXT("builtin:echo?us_per_token=100");
    if (p_bn_engine_create(&config, &engine, NULL) != BN_OK) return fail("create"), &failed;
    if (p_bn_request_params_init(&params, sizeof params) != BN_OK) return fail("params"), &failed;
    params.prompt = BN_STRING("unfinished");
    if (p_bn_submit(engine, &params, &request, NULL) != BN_OK) return fail("submit"), &failed;
    if (p_bn_engine_destroy(engine) != BN_OK) return fail("destroy"), &failed;
    return NULL;
}

// The library stays loaded as long as a thread lives that has used it (its thread-local values have destructors), so
// that thread ends first.
static int once(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *failed = NULL;
    pthread_t thread;
    if (library == NULL) return fail(dlerror());
    if (pthread_create(&thread, NULL, use, library) != 0 || pthread_join(thread, &failed) != 0) return fail("thread");
    if (failed != NULL) return 1;
    if (dlclose(library) != 0) return fail("dlclose");
    return dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL ? 0 : fail("still loaded after dlclose");
}

static int fork_works(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv) {
    enum { TIMES = 200, WARM = 20, LEFT = 1024, MOST_KIB = 65536 }; // LEFT: bytes that the library's static values keep
    if (argc != 2) return fail("the library's path?");
    int threads = count_threads(), fds = count_fds();
    long kib = 0, heap = 0;
    for (int i = 0; i < WARM + TIMES; i++) {
        if (i == WARM) kib = resident_kib(), heap = heap_bytes();
        if (once(argv[1]) != 0) return 1;
        if (count_threads() != threads) return fail("a thread stayed behind");
        if (count_fds() != fds) return fail("a descriptor stayed behind");
        if (i < 5 && !fork_works()) return fail("fork after dlclose");
    }
    heap = heap_bytes() - heap;
    kib = resident_kib() - kib;
    printf("loaded and closed %d times; heap %+ld bytes, resident %+ld KiB\n", TIMES, heap, kib);
    return heap <= LEFT * TIMES && kib <= MOST_KIB ? 0 : fail("memory stayed behind");
}
