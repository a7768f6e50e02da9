// Clocks, random bytes and epoll.
#ifndef BN_SERVER_SYSTEM_H
#define BN_SERVER_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t now_ms(void); // since some time in the past
uint64_t unix_ns(void);
bool random_bytes(void *to, size_t count); // false: there were none
// Adds `fd` to the epoll, changes its events or removes it, by EPOLL_CTL_*. `tag` comes back with each event.
bool poll_set(int epoll, int operation, int fd, uint32_t events, void *tag);

#endif
