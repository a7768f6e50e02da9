// Measures the server's cost per token: load PORT STREAMS TOKENS starts that many streams at once and reads them to
// their ends. With builtin:echo the model costs nothing, so the rest is the engine, HTTP, JSON and this client. With
// builtin:echo?us_per_token=N, the times between two reads of a stream show how evenly tokens come.
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LAST_CHUNK "0\r\n\r\n"
enum { TAIL = sizeof LAST_CHUNK - 1 };

struct stream {
    int fd;
    char tail[TAIL]; // the last bytes that came
    double last;     // when they came
};

struct gaps {
    double *all;
    size_t count, room;
};

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(bool ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

static void note(struct gaps *gaps, double gap) {
    if (gaps->count == gaps->room) {
        gaps->room = gaps->room ? 2 * gaps->room : 1024;
        gaps->all = realloc(gaps->all, gaps->room * sizeof *gaps->all);
        must(gaps->all != NULL, "realloc");
    }
    gaps->all[gaps->count++] = gap;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const struct gaps *gaps, size_t of_hundred) {
    return gaps->count > 0 ? gaps->all[(gaps->count - 1) * of_hundred / 100] : 0;
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    return fd;
}

static void ask(int fd, int number, int tokens) {
    char body[256], request[512];
    int length = snprintf(body, sizeof body, "{\"prompt\":\"prompt number %d\",\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":0,\"stream\":true}", number, tokens);
    length = snprintf(request, sizeof request, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", length, body);
    must(write(fd, request, (size_t)length) == length, "write");
}

// Returns true when the answer has ended.
static bool take(struct stream *stream, size_t *bytes) {
    static char data[TAIL + (1 << 16)];
    memcpy(data, stream->tail, TAIL);
    ssize_t got = read(stream->fd, data + TAIL, sizeof data - TAIL);
    must(got > 0, "the server closed the connection");
    *bytes += (size_t)got;
    memcpy(stream->tail, data + got, TAIL);
    return memcmp(stream->tail, LAST_CHUNK, TAIL) == 0;
}

int main(int argc, char **argv) {
    int port = argc == 4 ? atoi(argv[1]) : 0, count = argc == 4 ? atoi(argv[2]) : 0, tokens = argc == 4 ? atoi(argv[3]) : 0;
    if (port <= 0 || count <= 0 || tokens <= 0) return fprintf(stderr, "load PORT STREAMS TOKENS\n"), 2;
    struct stream *streams = calloc((size_t)count, sizeof *streams);
    int epoll = epoll_create1(0), left = count;
    size_t bytes = 0, reads = 0;
    struct gaps gaps = {0};
    must(streams != NULL && epoll >= 0, "start");
    for (int i = 0; i < count; i++) {
        struct epoll_event interest = {.events = EPOLLIN, .data.ptr = &streams[i]};
        streams[i].fd = connect_to(port);
        must(epoll_ctl(epoll, EPOLL_CTL_ADD, streams[i].fd, &interest) == 0, "epoll_ctl");
    }
    double begin = seconds();
    for (int i = 0; i < count; i++) ask(streams[i].fd, i, tokens);
    while (left > 0) {
        struct epoll_event ready[256];
        int n = epoll_wait(epoll, ready, 256, -1);
        for (int i = 0; i < n; i++, reads++) {
            struct stream *stream = ready[i].data.ptr;
            double now = seconds();
            if (stream->last > 0) note(&gaps, now - stream->last);
            stream->last = now;
            if (!take(stream, &bytes)) continue;
            close(stream->fd);
            left--;
        }
    }
    double took = seconds() - begin, all = (double)count * tokens;
    printf("%d streams of %d tokens: %.2f us a token, %.0f tokens/s, %.1f bytes a token, %.1f tokens a read\n", count, tokens,
           took * 1e6 / all, all / took, (double)bytes / all, all / (double)reads);
    qsort(gaps.all, gaps.count, sizeof *gaps.all, ascending);
    printf("between reads of a stream: median %.0f us, 99%% %.0f us\n", percentile(&gaps, 50) * 1e6, percentile(&gaps, 99) * 1e6);
    free(gaps.all);
    free(streams);
    return 0;
}
