#include "system.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t unix_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

// By its number, as glibc before 2.25 has no function for it. Up to 256 bytes it cannot fail but on a kernel without it.
bool random_bytes(void *to, size_t count) {
    bool got = syscall(SYS_getrandom, to, count, 0) == (long)count;
    if (!got) memset(to, 0x5a, count);
    return got;
}

bool poll_set(int epoll, int operation, int fd, uint32_t events, void *tag) {
    struct epoll_event interest = {.events = events, .data.ptr = tag};
    return epoll_ctl(epoll, operation, fd, &interest) == 0;
}
