// System functions of the tests themselves: system_posix.c, system_windows.c.
#ifndef SYSTEM_H
#define SYSTEM_H

#include "bn_engine.h"

#include <stdbool.h>
#include <stdint.h>

// Runs `run`, the test `name`, in a process of its own. Returns false if it failed, with the reason.
bool run_alone(const char *name, void (*run)(void), const char **why);

// Makes a new folder for temporary files; `folder` has `size` bytes and gets its path.
bool make_temporary(char *folder, size_t size);
bool make_directory(const char *path);

// bn_engine_wait_fd or bn_engine_wait_handle, whichever this system has.
bn_status call_for_a_wait(const bn_engine *engine, bn_error *error);
// Returns true if the descriptor or handle is set within `timeout_ms`.
bool is_awake(const bn_engine *engine, int timeout_ms);
// Checks that it is the same at each call, and that the other one of the two calls is unsupported on this
// system.
bool has_one_wait(const bn_engine *engine);

uint64_t machine_bytes(void);

#endif
