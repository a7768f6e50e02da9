// A strict parser for HTTP/1.1 requests (RFC 9112). It takes bytes and returns a head, pieces of a body, or a status
// that refuses them. It allocates nothing and uses no sockets.
#ifndef BN_SERVER_HTTP1_H
#define BN_SERVER_HTTP1_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HTTP1_FIELDS = 128,      // of a head, trailers not counted
    HTTP1_OVERHEAD = 16384, // bytes of all chunk extensions and trailers of a body
};

// A request. All zero before its first byte. Texts point into the head.
struct http1 {
    const char *method, *path, *fields; // `path` is decoded, without its query; `fields` are names and values in turn
    const char *authority;              // from the target or the field Host; NULL: HTTP/1.0 without one
    uint64_t length;                    // of a body that is not in chunks
    bool one_one;                       // the client speaks HTTP/1.1, not 1.0
    bool closes, chunked, expects;      // Connection: close, the body's form, Expect: 100-continue
    bool has_length, has_host;
    // Progress: parsed bytes of the head, and the state of the body.
    size_t seen, overhead;
    bool started, line, done; // past empty lines; the request line has ended; the body has ended
    int state;
};

// Looks for the end of a head at the start of the received bytes. `*head` is its length, including empty lines before
// it, or 0 if more bytes are needed. A head may have `most` bytes. Returns 0, or the status that refuses it.
unsigned http1_find(struct http1 *h, const char *data, size_t length, size_t most, size_t *head);
// Reads the head that was found, and overwrites it: `h` points into it afterwards. Returns 0, or the status that
// refuses it.
unsigned http1_read(struct http1 *h, char *head, size_t length);
// The value of a field; the first one if there are several, NULL if there is none.
const char *http1_field(const struct http1 *h, const char *name);
// Takes bytes of the body. `*used` were taken, and the last `*piece` of these are content; sets `h->done` at the end.
// It returns at the end of each piece: call it until all bytes are taken or it is done. Returns 0, or the status that
// refuses it.
unsigned http1_body(struct http1 *h, const char *data, size_t length, size_t *used, size_t *piece);

#endif
