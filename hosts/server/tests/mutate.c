// Tests the parser with random requests: mutate SEED COUNT. Requests are changed at random, and read once as a whole
// and once in pieces, from blocks of exactly their size, so that a sanitizer detects reads past the end. Both must give
// the same result.
#include "http1.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const seeds[] = {
    "GET /health?x=%20y HTTP/1.1\r\nHost: x\r\nConnection: close, te\r\n\r\n",
    "\r\nPOST /v1/%41 HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b ; c = \"d\\\" e\";f\r\nhello\r\n00A \t;x\r\n0123456789\r\n0\r\nT: u\r\n\r\n",
    "GET http://[1::2:3.4.5.6]:1/c?d HTTP/1.0\r\nHost: \r\n\r\n",
    "GET HTTP://a.b?d HTTP/1.1\r\nHost: a\r\nX: \xff \t\r\nY:\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
};
static const char *const bits[] = {"", "\r", "\n", "\r\n", " ", "\t", ":", ",", ";", "=", "\"", "\\", "[", "]", "v1.", "0", "9", "f", "%", "%4", "/", "http://", "chunked",
                                   "\x7f", "\xff", "\r\n\r\n", "Content-Length: 1\r\n", "fffffffffffffff"};
enum { SEEDS = sizeof seeds / sizeof *seeds, BITS = sizeof bits / sizeof *bits, ROOM = 1024, MOST = 200 };

static uint64_t state;

static size_t below(size_t n) { // xorshift
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (size_t)(state % n);
}

static size_t make(char *data) {
    size_t length = strlen(strcpy(data, seeds[below(SEEDS)]));
    for (size_t changes = below(5); changes > 0; changes--) {
        const char *bit = bits[below(BITS)];
        size_t at = below(length + 1), cut = below(3), more = strlen(bit);
        if (cut > length - at) cut = length - at;
        memmove(data + at + more, data + at + cut, length - at - cut);
        memcpy(data + at, bit, more);
        length += more - cut;
        if (below(20) == 0 && length > 0) data[below(length)] = (char)below(256);
    }
    return length;
}

struct outcome {
    unsigned status;
    bool head, done;
    size_t used, content;
    uint64_t sum; // over all bytes read
};

static void add(struct outcome *o, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) o->sum = (o->sum ^ (unsigned char)text[i]) * 1099511628211u;
}

static void read_head(struct http1 *h, struct outcome *o, const char *data, size_t length) {
    char *head = malloc(length);
    memcpy(head, data, length);
    o->head = true;
    o->used = length;
    o->status = http1_read(h, head, length);
    if (o->status == 0) {
        add(o, h->path, strlen(h->path));
        for (const char *at = h->fields; *at != 0; at += strlen(at) + 1) add(o, at, strlen(at) + 1);
        if (http1_field(h, "no-such-field") != NULL) abort();
        if (h->one_one && h->authority == NULL) abort();
        if (h->chunked && h->has_length) abort();
    }
    free(head);
    h->method = h->path = h->fields = h->authority = NULL;
}

// Parses `step` bytes at a time.
static struct outcome parse(const char *data, size_t length, size_t step) {
    struct http1 h = {0};
    struct outcome o = {0};
    for (size_t end = step; o.status == 0 && !o.done; end += step) {
        if (end > length) end = length;
        char *block = malloc(end + 1 - 1 > 0 ? end : 1);
        memcpy(block, data, end);
        size_t head = 0;
        if (!o.head) o.status = http1_find(&h, block, end, MOST, &head);
        if (head > end) abort();
        if (head > 0) read_head(&h, &o, block, head);
        while (o.head && o.status == 0 && !h.done && o.used < end) {
            size_t used = 0, piece = 0;
            o.status = http1_body(&h, block + o.used, end - o.used, &used, &piece);
            if (used > end - o.used || piece > used || (used == 0 && o.status == 0)) abort();
            o.used += used;
            o.content += piece;
            if (o.status == 0) add(&o, block + o.used - piece, piece);
        }
        o.done = o.head && h.done;
        free(block);
        if (end == length) break;
    }
    return o;
}

static bool same(const struct outcome *a, const struct outcome *b) {
    return a->status == b->status && a->head == b->head && a->done == b->done && a->content == b->content && a->sum == b->sum;
}

int main(int argc, char **argv) {
    size_t count = argc == 3 ? strtoull(argv[2], NULL, 10) : 0, taken = 0;
    state = argc == 3 ? strtoull(argv[1], NULL, 10) * 2 + 1 : 0;
    if (count == 0) return fprintf(stderr, "mutate SEED COUNT\n"), 2;
    for (size_t i = 0; i < count; i++) {
        char data[ROOM];
        size_t length = make(data);
        if (length == 0) continue;
        struct outcome whole = parse(data, length, length), pieces = parse(data, length, 1 + below(7));
        taken += whole.done && whole.status == 0;
        if (same(&whole, &pieces)) continue;
        fprintf(stderr, "request %zu: status %u and %u\n%.*s\n", i, whole.status, pieces.status, (int)length, data);
        return 1;
    }
    printf("%zu of %zu taken\n", taken, count);
    return taken > 0 && taken < count ? 0 : 1;
}
