#include "system.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <time.h>

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

void random_bytes(void *to, size_t count) {
    if (getrandom(to, count, 0) != (ssize_t)count) memset(to, 0x5a, count); // up to 256 bytes it cannot fail
}

bool poll_set(int epoll, int operation, int fd, uint32_t events, void *tag) {
    struct epoll_event interest = {.events = events, .data.ptr = tag};
    return epoll_ctl(epoll, operation, fd, &interest) == 0;
}
