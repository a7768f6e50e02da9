// A host that loads the DLL at run time and frees it again, many times: it is unloaded each time, and no thread, handle,
// memory or slot for thread-local values is left.
#include "bn_engine.h"
#include "process.h"

#include <stdio.h>
#include <string.h>
#include <windows.h>

static HMODULE library;

#define LOAD(name)                                         \
    FARPROC found_##name = GetProcAddress(library, #name); \
    if (found_##name == NULL) return fail(#name);          \
    __typeof__(&name) p_##name;                            \
    memcpy(&p_##name, &found_##name, sizeof p_##name)

static int fail(const char *what) {
    fprintf(stderr, "unload: %s, error %lu\n", what, GetLastError());
    return 1;
}

#include "unload.h"

static DWORD WINAPI use(void *context) {
    bn_engine *engine = NULL;
    (void)context;
    return create(&engine) != 0 || request(engine) != 0 || destroy(engine) != 0;
}

static int once(const char *path) {
    HANDLE threads[USERS];
    DWORD failures = 0, failed = 0;
    library = LoadLibraryA(path);
    if (library == NULL) return fail(path);
    for (int i = 0; i < USERS; i++) {
        threads[i] = CreateThread(NULL, 0, use, NULL, 0, NULL);
        if (threads[i] == NULL) return fail("thread");
    }
    for (int i = 0; i < USERS; i++) {
        WaitForSingleObject(threads[i], INFINITE);
        if (!GetExitCodeThread(threads[i], &failed)) return fail("no result");
        CloseHandle(threads[i]);
        failures += failed;
    }
    if (failures > 0) return 1;
    if (!FreeLibrary(library)) return fail("FreeLibrary");
    return GetModuleHandleA(path) == NULL ? 0 : fail("still loaded");
}

// Number of slots for thread-local values that the system still has.
static int free_slots(void) {
    static DWORD slots[4096];
    int count = 0;
    while (count < 4096 && (slots[count] = TlsAlloc()) != TLS_OUT_OF_INDEXES) count++;
    for (int i = 0; i < count; i++) TlsFree(slots[i]);
    return count;
}

int main(int argc, char **argv) {
    enum { TIMES = 40, WARM = 10, MOST_KIB = 16384 };
    if (argc != 2) return fail("the library's path?");
    int threads = 0, handles = 0, slots = 0;
    long kib = 0;
    for (int i = 0; i < WARM + TIMES; i++) {
        if (i == WARM) kib = resident_kib(), threads = count_threads(), handles = count_handles(), slots = free_slots();
        model_path = i % 4 == 0 ? NULL : "builtin:echo?us_per_token=100";
        if (once(argv[1]) != 0) return 1;
        if (i < WARM) continue;
        if (count_threads() != threads) return fail("a thread stayed behind");
        if (count_handles() != handles) return fail("a handle stayed behind");
        if (free_slots() != slots) return fail("a slot for thread-local values stayed behind");
    }
    kib = resident_kib() - kib;
    printf("loaded and freed %d times; resident %+ld KiB\n", TIMES, kib);
    return kib <= MOST_KIB ? 0 : fail("memory stayed behind");
}
