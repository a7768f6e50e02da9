#include "trace.h"

#include <pthread.h>
#include <string.h>

enum { QUEUE = 4096 };

static struct {
    pthread_mutex_t lock; // the engine's thread puts, the loop takes
    struct span spans[QUEUE];
    size_t first, count;
    uint64_t dropped;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

// -- the queue --------------------------------------------------------------------------------------

void trace_put(const struct span *span) {
    pthread_mutex_lock(&queue.lock);
    if (queue.count == QUEUE) queue.dropped++;
    else queue.spans[(queue.first + queue.count++) % QUEUE] = *span;
    pthread_mutex_unlock(&queue.lock);
}

size_t trace_take(struct span *out, size_t room) {
    size_t taken = 0;
    pthread_mutex_lock(&queue.lock);
    for (; queue.count > 0 && taken < room; queue.count--) {
        out[taken++] = queue.spans[queue.first];
        queue.first = (queue.first + 1) % QUEUE;
    }
    pthread_mutex_unlock(&queue.lock);
    return taken;
}

void trace_lose(uint64_t spans) {
    pthread_mutex_lock(&queue.lock);
    queue.dropped += spans;
    pthread_mutex_unlock(&queue.lock);
}

void trace_lose_rest(void) {
    pthread_mutex_lock(&queue.lock);
    queue.dropped += queue.count;
    queue.count = 0;
    pthread_mutex_unlock(&queue.lock);
}

size_t trace_waiting(uint64_t *dropped) {
    pthread_mutex_lock(&queue.lock);
    size_t count = queue.count;
    if (dropped != NULL) *dropped = queue.dropped;
    pthread_mutex_unlock(&queue.lock);
    return count;
}

// -- requests ---------------------------------------------------------------------------------------

// `count` bytes from twice as many lower-case digits, not all zero.
static bool read_hex(const char *text, uint8_t *out, size_t count) {
    uint8_t any = 0;
    for (size_t i = 0; i < 2 * count; i++) {
        const char *digits = "0123456789abcdef", *digit = text[i] == 0 ? NULL : strchr(digits, text[i]);
        if (digit == NULL) return false;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (digit - digits));
        any |= out[i / 2];
    }
    return any != 0;
}

bool traceparent_read(const char *text, struct trace *trace, bool *sampled) {
    enum { LENGTH = 55 }; // 00-<32 digits>-<16 digits>-<2 digits>
    uint8_t version = 0, flags = 0;
    size_t length = strlen(text);
    if (length < LENGTH || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
    bool zero = strncmp(text, "00", 2) == 0, unset = strncmp(text + 53, "00", 2) == 0;
    if ((!zero && !read_hex(text, &version, 1)) || version == 0xff) return false;
    // Later versions may have more fields after another dash.
    if (length > LENGTH && (zero || text[LENGTH] != '-')) return false;
    if (!read_hex(text + 3, trace->trace_id, 16) || !read_hex(text + 36, trace->parent_id, 8)) return false;
    if (!unset && !read_hex(text + 53, &flags, 1)) return false;
    *sampled = flags & 1;
    return true;
}

void trace_begin(struct exchange *ex, const char *traceparent) {
    bool sampled = true;
    if (*ex->server->options.otlp_endpoint == 0) return;
    if (traceparent == NULL || !traceparent_read(traceparent, &ex->trace, &sampled)) {
        random_bytes(ex->trace.trace_id, sizeof ex->trace.trace_id);
        memset(ex->trace.parent_id, 0, sizeof ex->trace.parent_id);
    }
    if (!sampled) return;
    random_bytes(ex->trace.id, sizeof ex->trace.id);
    ex->trace.start_ns = unix_ns();
}

void trace_end(struct exchange *ex) {
    const struct trace *trace = &ex->trace;
    if (trace->start_ns == 0) return;
    struct span span = {.route = ex->route, .status = ex->gone ? 499 : ex->status};
    span.of.start_ns = trace->start_ns;
    span.of.end_ns = unix_ns();
    span.input_tokens = ex->prompt_tokens;
    span.output_tokens = ex->generated_tokens;
    memcpy(span.of.trace.trace_id, trace->trace_id, sizeof trace->trace_id);
    memcpy(span.of.trace.parent_id, trace->parent_id, sizeof trace->parent_id);
    memcpy(span.id, trace->id, sizeof trace->id);
    trace_put(&span);
}

void trace_phase(const bn_span *of, void *context) {
    (void)context;
    if (of->kind < BN_SPAN_QUEUED || of->kind > BN_SPAN_DECODE) return; // a newer library's
    struct span span = {.of = *of};
    random_bytes(span.id, sizeof span.id);
    trace_put(&span);
}
