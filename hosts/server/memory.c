// One limit for all memory that clients make the server hold: bodies, the values in them, answers, and unread stream
// output. Bytes are counted before they are written, as accurately as possible at that time. A request that does not
// fit is refused rather than delayed, so that it blocks nothing.
#include "server.h"

bool memory_take(struct exchange *ex, atomic_size_t *of, size_t bytes) {
    size_t before = atomic_fetch_add(&ex->server->memory, bytes), most = (size_t)ex->server->options.max_memory;
    if (before <= most && bytes <= most - before) {
        atomic_fetch_add(of, bytes);
        return true;
    }
    atomic_fetch_sub(&ex->server->memory, bytes);
    return false;
}

void memory_set(struct exchange *ex, atomic_size_t *of, size_t bytes) {
    size_t before = atomic_exchange(of, bytes);
    atomic_fetch_add(&ex->server->memory, bytes - before); // modulo 2^64 if it shrinks
}

// If nothing else is held, the request does not fit at all. A thread may be freeing the input at this moment.
void memory_refuse(struct exchange *ex) {
    size_t own = atomic_load(&ex->input) + atomic_load(&ex->output);
    bool fits = atomic_load(&ex->server->memory) > own;
    if (fits) memory_lacks(ex);
    else fail(ex, 400, "too_large", "this request and its answer need more memory than the server has");
}

void memory_lacks(struct exchange *ex) {
    fail(ex, 503, "out_of_memory", "the server has no memory for this request now: try again later");
    ex->retry_after_s = 1;
}
