// Resources of this process: threads, descriptors and memory. The results are -1 if the system does not
// report them.
#ifndef PROCESS_H
#define PROCESS_H

#ifdef _WIN32 // process_windows.c
int count_threads(void);
int count_fds(void);
int count_handles(void); // whatever the process has open
int thread_number(void);
int sleeps(int thread);
long resident_kib(void);
long heap_bytes(void);
#else

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#if defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#elif defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED
#endif

static inline int count_entries(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) return -1;
    int count = 0;
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    return count - 2;
}

// Reads a thread's state and flags, proc_pid_stat(5). Returns false if it has ended.
static inline int read_thread(const char *thread, char *state, unsigned *flags) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", thread);
    FILE *stat = fopen(path, "r");
    if (stat == NULL) return 0;
    const char *read = fgets(line, sizeof line, stat), *name_end = read != NULL ? strrchr(line, ')') : NULL;
    fclose(stat);
    return name_end != NULL && sscanf(name_end, ") %c %*d %*d %*d %*d %*d %u", state, flags) == 2;
}

// Returns true if a thread runs that is not about to end: joined threads may be listed for a moment.
static inline int lives(const char *thread) {
    enum { EXITING = 4 }; // PF_EXITING
    char state;
    unsigned flags;
    return read_thread(thread, &state, &flags) && (flags & EXITING) == 0;
}

static inline int thread_number(void) {
    return gettid();
}

// Returns true if the thread of this number waits for something.
static inline int sleeps(int thread) {
    char name[16], state = 0;
    unsigned flags;
    snprintf(name, sizeof name, "%d", thread);
    return read_thread(name, &state, &flags) && state == 'S';
}

static inline int count_threads(void) {
#ifdef __SANITIZE_THREAD__
    return -1; // it has a thread of its own, which begins late
#endif
    DIR *folder = opendir("/proc/self/task");
    if (folder == NULL) return -1;
    int count = 0;
    for (struct dirent *e; (e = readdir(folder)) != NULL;) count += e->d_name[0] != '.' && lives(e->d_name);
    closedir(folder);
    return count;
}

static inline int count_fds(void) {
    return count_entries("/proc/self/fd");
}

static inline int count_handles(void) {
    return count_fds();
}

// Resident bytes without the memory that malloc keeps for reuse, which depends on how many threads have run
// at once.
static inline long resident_kib(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    FILE *status = fopen("/proc/self/status", "r");
    char line[128];
    long kib = -1;
    if (status == NULL) return kib;
    while (kib < 0 && fgets(line, sizeof line, status) != NULL) sscanf(line, "VmRSS: %ld kB", &kib);
    fclose(status);
    return kib;
}

// Bytes that malloc has given out. Unlike resident bytes, they exclude the memory that it keeps for reuse.
static inline long heap_bytes(void) {
#if defined __GLIBC__ && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    struct mallinfo2 info = mallinfo2();
    return (long)(info.uordblks + info.hblkhd);
#else
    return -1;
#endif
}

#endif
#endif
