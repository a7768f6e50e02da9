// Hugging Face's cache: models--OWNER--NAME has blobs (files by their checksums), refs (main has a commit) and
// snapshots (a folder for each commit, whose files are links to blobs). Locks stand beside it, in .locks.
#include "parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// models--OWNER--NAME
static char *folder_name(const hub *h) {
    const char *slash = strchr(h->repo, '/');
    if (slash == NULL) return hub_format("models--%s", h->repo);
    return hub_format("models--%.*s--%s", (int)(slash - h->repo), h->repo, slash + 1);
}

static char *in_model(const hub *h, const char *part, const char *name) {
    char *folder = folder_name(h), *path = hub_format("%s/%s/%s/%s", h->cache, folder, part, name);
    free(folder);
    return path;
}

char *cache_path(const hub *h, const char *commit, const char *name) {
    char *snapshot = in_model(h, "snapshots", commit);
    char *path = *name != 0 ? hub_format("%s/%s", snapshot, name) : hub_format("%s", snapshot);
    free(snapshot);
    return path;
}

// Lists a snapshot's files whose blobs are there.
static void list_folder(hub_list *list, const char *root, const char *inside, int depth) {
    char *path = hub_format("%s%s%s", root, *inside != 0 ? "/" : "", inside);
    DIR *folder = opendir(path);
    struct dirent *file;
    free(path);
    while (folder != NULL && (file = readdir(folder)) != NULL) {
        struct stat about;
        if (strcmp(file->d_name, ".") == 0 || strcmp(file->d_name, "..") == 0) continue;
        if (fstatat(dirfd(folder), file->d_name, &about, 0) != 0) continue;
        char *name = hub_format("%s%s%s", inside, *inside != 0 ? "/" : "", file->d_name);
        if (S_ISREG(about.st_mode)) list_add(list, name, "", (uint64_t)about.st_size);
        else if (S_ISDIR(about.st_mode) && depth > 0) list_folder(list, root, name, depth - 1);
        free(name);
    }
    if (folder != NULL) closedir(folder);
}

bool cache_list(const hub *h, hub_list *list) {
    char *path = in_model(h, "refs", "main");
    FILE *file = fopen(path, "re");
    bool good = file != NULL && fgets(list->commit, sizeof list->commit, file) != NULL;
    if (file != NULL) fclose(file);
    free(path);
    if (!good || strspn(list->commit, "0123456789abcdef") != strlen(list->commit)) return false;
    path = cache_path(h, list->commit, "");
    list_folder(list, path, "", 4);
    free(path);
    return list->count > 0;
}

// Makes the folders that a path leads through.
static bool make_folders(const hub *h, const char *path) {
    char *copy = hub_format("%s", path);
    bool good = true;
    for (char *slash = strchr(copy + 1, '/'); good && slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        good = mkdir(copy, 0777) == 0 || errno == EEXIST;
        if (!good) hub_fail(h, "%s: %s", copy, strerror(errno));
        *slash = '/';
    }
    free(copy);
    return good;
}

bool cache_set_main(const hub *h, const char *commit) {
    char *path = in_model(h, "refs", "main"), *next = hub_format("%s.%d.tmp", path, (int)getpid());
    bool good = make_folders(h, path);
    FILE *file = good ? fopen(next, "we") : NULL;
    if (good) {
        good = file != NULL && fputs(commit, file) >= 0;
        good = file != NULL && fclose(file) == 0 && good && rename(next, path) == 0;
        if (!good) hub_fail(h, "%s: %s", path, strerror(errno));
        if (!good) unlink(next);
    }
    free(next);
    free(path);
    return good;
}

// Makes the snapshot's link to the blob.
static bool link_file(const hub *h, const char *commit, const hub_file *file) {
    char *path = cache_path(h, commit, file->name), *to = hub_format("../../blobs/%s", file->etag);
    for (const char *slash = strchr(file->name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        char *deeper = hub_format("../%s", to);
        free(to);
        to = deeper;
    }
    // By a rename: another process may have made it, and look through it now.
    char *next = hub_format("%s.%d.tmp", path, (int)getpid());
    bool made = make_folders(h, path), good = made && symlink(to, next) == 0 && rename(next, path) == 0;
    if (made && !good) hub_fail(h, "%s: %s", path, strerror(errno));
    free(next);
    free(to);
    free(path);
    return good;
}

static bool has_size(const char *path, uint64_t size) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) && (uint64_t)about.st_size == size;
}

// Takes the lock of a file, as huggingface_hub does. Returns -1 after an error.
static int lock_file(const hub *h, const hub_file *file) {
    char *folder = folder_name(h), *path = hub_format("%s/.locks/%s/%s.lock", h->cache, folder, file->etag);
    int fd = make_folders(h, path) ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0664) : -2;
    bool told = false;
    if (fd == -1) hub_fail(h, "%s: %s", path, strerror(errno));
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && !hub_stopped(h)) {
        if (!told) fprintf(stderr, "%s: another process downloads %s: waiting for it\n", h->program, file->name);
        told = true;
        usleep(100000);
    }
    free(path);
    free(folder);
    return fd;
}

static bool fill_locked(const hub *h, const char *commit, const hub_file *file) {
    char *blob = in_model(h, "blobs", file->etag), *part = hub_format("%s.incomplete", blob);
    bool good = has_size(blob, file->size);
    if (!good && !hub_stopped(h)) {
        good = make_folders(h, blob) && remote_get(h, commit, file, part);
        if (good && rename(part, blob) != 0) good = hub_fail(h, "%s: %s", blob, strerror(errno));
    }
    free(part);
    free(blob);
    return good && link_file(h, commit, file);
}

static bool is_there(const hub *h, const char *commit, const hub_file *file) {
    char *path = cache_path(h, commit, file->name);
    bool there = has_size(path, file->size);
    free(path);
    return there;
}

// Bytes of a file that are still to come.
static uint64_t missing(const hub *h, const char *commit, const hub_file *file) {
    struct stat about;
    char *blob = in_model(h, "blobs", file->etag), *part = hub_format("%s.incomplete", blob);
    uint64_t bytes = is_there(h, commit, file) || has_size(blob, file->size) ? 0 : file->size;
    if (bytes > 0 && stat(part, &about) == 0 && (uint64_t)about.st_size < bytes) bytes -= (uint64_t)about.st_size;
    free(part);
    free(blob);
    return bytes;
}

// Says before a long download that the disk is too small for it.
static bool has_room(const hub *h, const hub_list *files) {
    uint64_t bytes = 0;
    struct statvfs disk;
    char needed[16], free_bytes[16];
    for (size_t i = 0; i < files->count; i++) bytes += missing(h, files->commit, &files->files[i]);
    char *folder = hub_format("%s/", h->cache);
    bool known = bytes > 0 && make_folders(h, folder) && statvfs(h->cache, &disk) == 0;
    free(folder);
    uint64_t room = known ? (uint64_t)disk.f_bavail * disk.f_frsize : UINT64_MAX;
    if (bytes <= room) return true;
    return hub_fail(h, "%s: no space left: %s are to be downloaded, %s are free", h->cache, hub_bytes(bytes, needed),
                    hub_bytes(room, free_bytes));
}

bool cache_fill(const hub *h, const hub_list *files) {
    if (!has_room(h, files)) return false;
    for (size_t i = 0; i < files->count; i++) {
        const hub_file *file = &files->files[i];
        if (is_there(h, files->commit, file)) continue;
        if (*file->etag == 0) return hub_fail(h, "%s lists no checksum of %s", h->endpoint, file->name);
        int lock = lock_file(h, file);
        bool good = lock >= 0 && fill_locked(h, files->commit, file);
        if (lock >= 0) close(lock);
        if (!good) return false;
    }
    return true;
}
