// A host that loads the library at run time and closes it again, many times: it is unmapped each time, no
// thread, descriptor or memory is left, and fork keeps working. Code that still needs the library keeps it
// mapped.
#include "bn_engine.h"
#include "process.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *library;
static pthread_barrier_t barrier;

#define LOAD(name)                                       \
    __typeof__(&name) p_##name;                          \
    *(void **)&p_##name = dlsym(library, #name);         \
    if (p_##name == NULL) return fail(dlerror())

static int fail(const char *what) {
    fprintf(stderr, "unload: %s\n", what);
    return 1;
}

#include "unload.h"

// NULL: all went well.
static void *use(void *context) {
    static char failed;
    bn_engine *engine = NULL;
    (void)context;
    return create(&engine) != 0 || request(engine) != 0 || destroy(engine) != 0 ? &failed : NULL;
}

static void *use_and_stay(void *context) {
    void *failed = use(context);
    pthread_barrier_wait(&barrier); // it has used the library
    pthread_barrier_wait(&barrier); // it may end
    return failed;
}

static int mapped(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int found = 0;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) found |= strstr(line, "/libbn_engine.so") != NULL;
    if (maps != NULL) fclose(maps);
    return found;
}

static int in_thread(void *(*run)(void *), void *context) {
    pthread_t thread;
    void *failed = NULL;
    if (pthread_create(&thread, NULL, run, context) != 0 || pthread_join(thread, &failed) != 0) return fail("thread");
    return failed != NULL;
}

static int open_library(const char *path) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fail(dlerror());
    return mapped() ? 0 : fail("not in the maps");
}

// A thread that has used the library keeps it mapped while it lives (its thread-local values have destructors), so the
// users are threads that end first.
static int once(const char *path) {
    pthread_t threads[USERS];
    void *failed = NULL;
    int failures = open_library(path);
    if (failures != 0) return 1;
    for (int i = 0; i < USERS; i++)
        if (pthread_create(&threads[i], NULL, use, NULL) != 0) return fail("thread");
    for (int i = 0; i < USERS; i++) {
        if (pthread_join(threads[i], &failed) != 0) return fail("join");
        failures += failed != NULL;
    }
    if (failures > 0) return 1;
    if (dlclose(library) != 0) return fail("dlclose");
    if (mapped()) return fail("still mapped after dlclose");
    return dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL ? 0 : fail("still loaded after dlclose");
}

static int a_living_thread_keeps_it(const char *path) {
    pthread_t thread;
    void *failed = NULL;
    if (open_library(path) != 0 || pthread_barrier_init(&barrier, NULL, 2) != 0) return 1;
    if (pthread_create(&thread, NULL, use_and_stay, NULL) != 0) return fail("thread");
    pthread_barrier_wait(&barrier);
    if (dlclose(library) != 0) return fail("dlclose");
    if (!mapped()) return fail("unmapped under a thread");
    pthread_barrier_wait(&barrier);
    if (pthread_join(thread, &failed) != 0 || failed != NULL) return fail("the thread that stayed");
    return once(path);
}

static bn_engine *left;

static void *leave_an_engine(void *context) {
    return create(&left) == 0 && request(left) == 0 ? NULL : context;
}

static void *destroy_what_was_left(void *context) {
    return destroy(left) == 0 ? NULL : context;
}

// This is not allowed, but must not crash: the engine's threads keep the library mapped.
static int a_live_engine_keeps_it(const char *path) {
    if (open_library(path) != 0 || in_thread(leave_an_engine, &left) != 0) return 1;
    if (dlclose(library) != 0) return fail("dlclose");
    if (!mapped()) return fail("unmapped under an engine");
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); // it runs on
    if (open_library(path) != 0 || in_thread(destroy_what_was_left, &left) != 0) return 1;
    if (dlclose(library) != 0) return fail("dlclose");
    return mapped() ? fail("still mapped without its engine") : once(path);
}

// Number of keys for thread-local values that the system still has.
static int free_keys(void) {
    static pthread_key_t keys[4096];
    int count = 0;
    while (count < 4096 && pthread_key_create(&keys[count], NULL) == 0) count++;
    for (int i = 0; i < count; i++) pthread_key_delete(keys[i]);
    return count;
}

static int fork_works(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv) {
    enum { TIMES = 200, WARM = 20, LEFT = 1024, MOST_KIB = 16384 }; // LEFT: bytes kept by the library's static values
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 1); // others grow depending on how threads happen to overlap
#endif
    if (argc != 2) return fail("the library's path?");
    int threads = count_threads(), fds = count_fds();
    int keys = free_keys();
    long kib = 0, heap = 0;
    for (int i = 0; i < WARM + TIMES; i++) {
        if (i == WARM) kib = resident_kib(), heap = heap_bytes();
        model_path = i % 4 == 0 ? NULL : "builtin:echo?us_per_token=100";
        if (once(argv[1]) != 0) return 1;
        if (count_threads() != threads) return fail("a thread stayed behind");
        if (count_fds() != fds) return fail("a descriptor stayed behind");
        if (free_keys() != keys) return fail("a key of thread-local values stayed behind");
        if (i < 5 && !fork_works()) return fail("fork after dlclose");
    }
    heap = heap_bytes() - heap;
    kib = resident_kib() - kib;
    printf("loaded and closed %d times; heap %+ld bytes, resident %+ld KiB\n", TIMES, heap, kib);
    if (a_living_thread_keeps_it(argv[1]) != 0 || a_live_engine_keeps_it(argv[1]) != 0) return 1;
    return heap <= LEFT * TIMES && kib <= MOST_KIB ? 0 : fail("memory stayed behind");
}
