#include "system.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_S = 600 }; // tests wait for a state without a limit of their own

bool run_alone(const char *name, void (*run)(void), const char **why) {
    (void)name;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        *why = "fork failed";
        return false;
    }
    if (child == 0) {
        alarm(TIMEOUT_S);
        run();
        exit(0); // lets a leak checker report
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) {
        *why = WTERMSIG(status) == SIGALRM ? "hung" : strsignal(WTERMSIG(status));
        return false;
    }
    *why = WEXITSTATUS(status) == 1 ? "see above" : "a checker complained";
    return WEXITSTATUS(status) == 0;
}

bool make_temporary(char *folder, size_t size) {
    snprintf(folder, size, "/tmp/bn-test-XXXXXX");
    return mkdtemp(folder) != NULL;
}

bool make_directory(const char *path) {
    return mkdir(path, 0700) == 0;
}

bn_status call_for_a_wait(const bn_engine *engine, bn_error *error) {
    return bn_engine_wait_fd(engine, error);
}

bool is_awake(const bn_engine *engine, int timeout_ms) {
    struct pollfd wait = {.fd = bn_engine_wait_fd(engine, NULL), .events = POLLIN};
    return wait.fd >= 0 && poll(&wait, 1, timeout_ms) == 1;
}

bool has_one_wait(const bn_engine *engine) {
    void *handle = NULL;
    int fd = bn_engine_wait_fd(engine, NULL);
    return fd >= 0 && bn_engine_wait_fd(engine, NULL) == fd &&
           bn_engine_wait_handle(engine, &handle, NULL) == BN_ERR_UNSUPPORTED && handle == NULL;
}

uint64_t machine_bytes(void) {
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}
