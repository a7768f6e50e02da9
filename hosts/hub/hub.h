// Models by their names on Hugging Face's hub: found in its cache, or downloaded into it.
#ifndef BN_HUB_H
#define BN_HUB_H

#include <signal.h>
#include <stdbool.h>

// False where models have no names, so that nobody is told to use one.
extern const bool hub_knows_names;

// If `*model` is "hf:OWNER/NAME" or "hf:OWNER/NAME:WHICH", sets it to the path of the model's file or folder in the
// cache, which stays valid; any other one stays as it is. WHICH is a file of the repository, or the type of its GGUF
// file, as Q4_K_M. Progress and errors go to stderr, with the program's name before them. A download ends where `*stop`
// is set; `stop` may be NULL. Returns 0, or the program's exit code: 1, or 130 where it was stopped.
int hub_get(const char *program, const char **model, const volatile sig_atomic_t *stop);

#endif
