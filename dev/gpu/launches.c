// Counts what a program asks of the NVIDIA driver, where it looks the driver's functions up itself:
//   cc -D_GNU_SOURCE -O2 -fPIC -shared -o launches.so launches.c
//   BN_LAUNCHES=FILE LD_PRELOAD=./launches.so PROGRAM...
// At the end FILE has a line of JSON. A graph's kernels count each time that it is launched.
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRAPHS = 4096 };
static atomic_ullong kernels, graphs, in_graphs, fills, waits, allocations;
static atomic_ullong to_device, to_device_bytes, to_host, to_host_bytes;
static _Thread_local bool capturing;
static _Thread_local unsigned long long captured;
// The number of kernels of a graph. An executable graph has that of its source.
static struct { void *graph; unsigned long long kernels; } known[GRAPHS];
static atomic_uint known_count;

static void learn(void *graph, unsigned long long count) {
    unsigned at = atomic_fetch_add(&known_count, 1);
    known[at % GRAPHS].kernels = count;
    known[at % GRAPHS].graph = graph;
}

// The latest entry with this address, since addresses are reused.
static unsigned long long size_of_graph(void *graph) {
    for (unsigned n = atomic_load(&known_count), i = 0; i < n && i < GRAPHS; i++)
        if (known[(n - 1 - i) % GRAPHS].graph == graph) return known[(n - 1 - i) % GRAPHS].kernels;
    return 0;
}

static int (*launch)(const void *, void *, void **, void **);
static int (*graph_launch)(void *, void *), (*begin)(void *, int), (*end)(void *, void **);
static int (*instantiate)(void **, void *, uint64_t);
static int (*write_)(uint64_t, const void *, size_t, void *), (*read_)(void *, uint64_t, size_t, void *);
static int (*fill)(uint64_t, uint8_t, size_t, void *), (*synchronize)(void *), (*wait_event)(void *);
static int (*alloc)(uint64_t *, size_t);

static int my_launch(const void *config, void *f, void **args, void **extra) {
    if (capturing) captured++;
    else kernels++;
    return launch(config, f, args, extra);
}

static int my_graph_launch(void *graph, void *stream) {
    graphs++;
    in_graphs += size_of_graph(graph);
    return graph_launch(graph, stream);
}

static int my_begin(void *stream, int mode) {
    int code = begin(stream, mode);
    capturing = code == 0;
    captured = 0;
    return code;
}

static int my_end(void *stream, void **graph) {
    int code = end(stream, graph);
    if (code == 0) learn(*graph, captured);
    capturing = false;
    return code;
}

static int my_instantiate(void **made, void *graph, uint64_t flags) {
    int code = instantiate(made, graph, flags);
    if (code == 0) learn(*made, size_of_graph(graph));
    return code;
}

static int my_write(uint64_t to, const void *from, size_t bytes, void *stream) {
    to_device++;
    to_device_bytes += bytes;
    return write_(to, from, bytes, stream);
}

static int my_read(void *to, uint64_t from, size_t bytes, void *stream) {
    to_host++;
    to_host_bytes += bytes;
    return read_(to, from, bytes, stream);
}

static int my_fill(uint64_t at, uint8_t value, size_t bytes, void *stream) {
    fills++;
    return fill(at, value, bytes, stream);
}

static int my_synchronize(void *stream) {
    waits++;
    return synchronize(stream);
}

static int my_wait_event(void *event) {
    waits++;
    return wait_event(event);
}

static int my_alloc(uint64_t *at, size_t bytes) {
    allocations++;
    return alloc(at, bytes);
}

static const struct { const char *name; void *real, *mine; } wrapped[] = {
    {"cuLaunchKernelEx", &launch, my_launch},
    {"cuGraphLaunch", &graph_launch, my_graph_launch},
    {"cuStreamBeginCapture_v2", &begin, my_begin},
    {"cuStreamEndCapture", &end, my_end},
    {"cuGraphInstantiateWithFlags", &instantiate, my_instantiate},
    {"cuMemcpyHtoDAsync_v2", &write_, my_write},
    {"cuMemcpyDtoHAsync_v2", &read_, my_read},
    {"cuMemsetD8Async", &fill, my_fill},
    {"cuStreamSynchronize", &synchronize, my_synchronize},
    {"cuEventSynchronize", &wait_event, my_wait_event},
    {"cuMemAlloc_v2", &alloc, my_alloc},
};

// Replaces libc's dlsym, so that calls are counted whatever path the driver was opened by.
void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (int i = 0; real == NULL && i < 3; i++)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    if (real == NULL) abort();
    void *found = real(handle, name);
    for (size_t i = 0; found != NULL && i < sizeof wrapped / sizeof *wrapped; i++) {
        if (strcmp(name, wrapped[i].name) != 0) continue;
        memcpy(wrapped[i].real, &found, sizeof found);
        return wrapped[i].mine;
    }
    return found;
}

__attribute__((destructor)) static void report(void) {
    if (launch == NULL) return; // as in a shell that starts the program
    const char *path = getenv("BN_LAUNCHES");
    FILE *out = path != NULL ? fopen(path, "w") : stderr;
    if (out == NULL) return;
    fprintf(out,
            "{\"kernels\": %llu, \"graphs\": %llu, \"kernels_in_graphs\": %llu, "
            "\"to_device\": %llu, \"to_device_bytes\": %llu, "
            "\"to_host\": %llu, \"to_host_bytes\": %llu, \"fills\": %llu, \"waits\": %llu, \"allocations\": %llu}\n",
            kernels, graphs, in_graphs, to_device, to_device_bytes, to_host, to_host_bytes, fills, waits, allocations);
    if (out != stderr) fclose(out);
}
