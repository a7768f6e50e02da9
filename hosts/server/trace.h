// Traces: W3C's traceparent in, OTLP over HTTP out (otlp.c). Does nothing without --otlp-endpoint.
#ifndef BN_SERVER_TRACE_H
#define BN_SERVER_TRACE_H

#include "server.h"

// A span in OTLP's sense: a request over HTTP (`route` is set), or a phase of an engine request.
struct span {
    bn_span of;
    uint8_t id[8];
    const struct route *route;
    unsigned status;
    uint64_t input_tokens, output_tokens;
};

// Reads a traceparent. Returns false if it is not valid.
bool traceparent_read(const char *text, struct trace *trace, bool *sampled);
// The exchange's span begins with its head, which may have a traceparent, and ends with its answer.
void trace_begin(struct exchange *ex, const char *traceparent);
void trace_end(struct exchange *ex);
// The export queue. Any thread may put a span; spans that do not fit are dropped and counted.
void trace_put(const struct span *span);
size_t trace_take(struct span *out, size_t room);
void trace_lose(uint64_t spans);
void trace_lose_rest(void); // the pending spans
size_t trace_waiting(uint64_t *dropped);
// The engine's bn_span_callback.
void trace_phase(const bn_span *span, void *context);

extern char otlp_tag; // of its socket in the loop

// Reads --otlp-endpoint and resolves its address. Returns false after reporting an error on stderr.
bool otlp_start(struct server *server);
// Sends due spans, and gives up on exports that take too long.
void otlp_turn(struct server *server, uint64_t now_ms);
void otlp_ready(struct server *server, uint32_t events);
// Returns true if spans are being sent or are waiting.
bool otlp_busy(void);
void otlp_metrics(struct buffer *out);

#endif
