// For separate test programs, which check a whole process.
#ifndef PROGRAM_H
#define PROGRAM_H

#include "bn_engine.h"
#include "process.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

// Not exit: engines are alive.
#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (condition) break;                                                                \
        fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);        \
        fflush(NULL);                                                                        \
        _exit(1);                                                                            \
    } while (0)

#define CHECK_OK(call)                                                                                \
    do {                                                                                              \
        bn_status status_ = (call);                                                                   \
        if (status_ != BN_OK) fprintf(stderr, "%s gave %s\n", #call, bn_status_name(status_));        \
        CHECK(status_ == BN_OK);                                                                      \
    } while (0)

static inline double now(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

#endif
