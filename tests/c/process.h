// What this process holds: threads, descriptors and memory. -1 where the system does not say.
#ifndef PROCESS_H
#define PROCESS_H

#include <dirent.h>
#include <stdio.h>
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

static inline int count_threads(void) {
#ifdef __SANITIZE_THREAD__
    return -1; // it has a thread of its own, which begins late
#endif
    return count_entries("/proc/self/task");
}

static inline int count_fds(void) {
    return count_entries("/proc/self/fd");
}

// Without what malloc keeps for later, which depends on how many threads have run at once.
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

// Bytes that malloc has given out. Unlike the resident ones they do not depend on what it keeps for later.
static inline long heap_bytes(void) {
#if defined __GLIBC__ && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    struct mallinfo2 info = mallinfo2();
    return (long)(info.uordblks + info.hblkhd);
#else
    return -1;
#endif
}

#endif
