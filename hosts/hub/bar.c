// How far a download is: a line that is drawn again on a terminal, else one line at its beginning.
#include "parts.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static bool drawn;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void bar_start(bar *b, const hub *h, const hub_file *file) {
    char size[16];
    const char *slash = strrchr(file->name, '/');
    *b = (bar){.name = slash != NULL ? slash + 1 : file->name, .size = file->size, .began = now()};
    b->terminal = isatty(STDERR_FILENO);
    b->first = UINT64_MAX;
    if (!b->terminal) fprintf(stderr, "%s: downloading %s (%s)\n", h->program, file->name, hub_bytes(file->size, size));
}

static int columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

void bar_show(bar *b, uint64_t done) {
    enum { WIDTH = 20 };
    char of[16], size[16], speed[16], left[32] = "", marks[WIDTH + 1], line[256];
    double time = now();
    if (b->first == UINT64_MAX) b->first = done;
    if (!b->terminal || (time - b->shown < 0.1 && done < b->size)) return;
    b->shown = time;
    double share = b->size > 0 ? (double)done / (double)b->size : 1;
    double rate = time > b->began && done > b->first ? (double)(done - b->first) / (time - b->began) : 0;
    int filled = share < 1 ? (int)(share * WIDTH) : WIDTH;
    memset(marks, '#', WIDTH);
    memset(marks + filled, '.', (size_t)(WIDTH - filled));
    marks[WIDTH] = 0;
    unsigned long seconds = rate > 0 ? (unsigned long)((double)(b->size - done) / rate) : 0;
    if (seconds > 0) snprintf(left, sizeof left, ", %lu:%02lu left", seconds / 60, seconds % 60);
    snprintf(line, sizeof line, "%.32s %3d%% [%s] %s of %s, %s/s%s", b->name, (int)(share * 100), marks,
             hub_bytes(done, of), hub_bytes(b->size, size), hub_bytes((uint64_t)rate, speed), left);
    fprintf(stderr, "\r\033[K%.*s", columns() - 1, line);
    fflush(stderr);
    drawn = true;
}

void bar_end(void) {
    if (drawn) fputc('\n', stderr);
    drawn = false;
}
