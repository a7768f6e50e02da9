// The parts of the hub: the environment (settings.c), which files a model needs (choose.c), the cache's layout
// (cache.c), the hub itself (remote.c, or without.c where there was no libcurl), checksums (digest.c), a progress bar
// (bar.c), and hub.c, which puts them together.
#ifndef BN_HUB_PARTS_H
#define BN_HUB_PARTS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *program;
    const volatile sig_atomic_t *stop;
    char *repo;  // OWNER/NAME
    char *which; // a file or a type, or NULL
    char *endpoint, *cache;
    char *token; // or NULL
    bool offline;
} hub;

typedef struct {
    char *name;     // with its folders
    char etag[65];  // SHA-256, or git's SHA-1 for small files; empty in a list of the cache's
    uint64_t size;
} hub_file;

typedef struct {
    char commit[41];
    hub_file *files;
    size_t count, room;
} hub_list;

void *hub_must(void *memory);
char *hub_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Prints an error; returns false.
bool hub_fail(const hub *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool hub_stopped(const hub *h);
// Writes a number of bytes as people read it.
const char *hub_bytes(uint64_t bytes, char out[16]);

// Reads the name and the environment. Returns false after an error.
bool settings_read(hub *h, const char *model);
void settings_free(hub *h);

// Adds a file. A name that leads out of its folder, or a checksum that is none, is passed over.
void list_add(hub_list *list, const char *name, const char *etag, uint64_t size);
const hub_file *list_find(const hub_list *list, const char *name);
void list_free(hub_list *list);

// Chooses the files of a model: copies them to `chosen`. `*entry` is the one that is opened, or "" for the folder.
// Returns false after an error, which has a list of what there is.
bool choose(const hub *h, const hub_list *list, hub_list *chosen, const char **entry);
// Adds the safetensors files that an index names. Returns false after an error.
bool choose_shards(const hub *h, const hub_list *list, hub_list *chosen, const char *index_path);
extern const char INDEX[];

// Lists the newest files of the model that the cache has. Returns false if it has none.
bool cache_list(const hub *h, hub_list *list);
// The path of a file, or with "" of the folder, in the cache.
char *cache_path(const hub *h, const char *commit, const char *name);
// Downloads what is missing of the files. Returns false after an error.
bool cache_fill(const hub *h, const hub_list *files);
// Writes that this is the newest commit.
bool cache_set_main(const hub *h, const char *commit);

typedef enum { REMOTE_DONE, REMOTE_FAILED, REMOTE_AWAY } remote_result;
// Asks the hub for a model's files. REMOTE_AWAY: it was not reached; `why` has the reason and nothing was printed.
remote_result remote_list(const hub *h, hub_list *list, char why[256]);
// Downloads a file to `path`, where a part of it may already be, and compares size and checksum.
bool remote_get(const hub *h, const char *commit, const hub_file *file, const char *path);

typedef struct {
    uint32_t state[8];
    uint64_t length;
    unsigned char block[64];
    bool is_256;
} digest;
void digest_start(digest *d, bool is_256);
void digest_add(digest *d, const void *data, size_t size);
void digest_end(digest *d, char hex[65]);

typedef struct {
    const char *name;
    uint64_t size, first; // `first`: bytes of an earlier download
    double began, shown;
    bool terminal;
} bar;
void bar_start(bar *b, const hub *h, const hub_file *file);
void bar_show(bar *b, uint64_t done);
// Ends the line, if there is one.
void bar_end(void);

#endif
