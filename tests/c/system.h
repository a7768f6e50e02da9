// What the tests ask of the system in their own name: system_posix.c, system_windows.c.
#ifndef SYSTEM_H
#define SYSTEM_H

#include "bn_engine.h"

#include <stdbool.h>
#include <stdint.h>

// Runs `run`, the test `name`, in a process of its own. Returns false if it failed, and why.
bool run_alone(const char *name, void (*run)(void), const char **why);

// Makes a new folder for temporary files; `folder` has `size` bytes and gets its path.
bool make_temporary(char *folder, size_t size);
bool make_directory(const char *path);

// bn_engine_wait_fd or bn_engine_wait_handle, whichever this system has.
bn_status call_for_a_wait(const bn_engine *engine, bn_error *error);
// What it gives is set, at the latest after `timeout_ms`.
bool is_awake(const bn_engine *engine, int timeout_ms);
// It is the same at each call, and the other one of the two calls says that this system does not have it.
bool has_one_wait(const bn_engine *engine);

uint64_t machine_bytes(void);

#endif
