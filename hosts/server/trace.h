// Traces: W3C's traceparent in, OTLP over HTTP out (otlp.c). Nothing here does anything without --otlp-endpoint.
#ifndef BN_SERVER_TRACE_H
#define BN_SERVER_TRACE_H

#include "server.h"

// What OTLP calls a span: a request over HTTP (`route` is set), or a phase of one of the engine's.
struct span {
    bn_span of;
    uint8_t id[8];
    const struct route *route;
    unsigned status;
    uint64_t input_tokens, output_tokens;
};

uint64_t unix_ns(void);
void random_bytes(void *to, size_t count);
// Reads a traceparent. False: it is not valid.
bool traceparent_read(const char *text, struct trace *trace, bool *sampled);
// The exchange's span begins with its head, and ends with its answer.
void trace_begin(struct exchange *ex);
void trace_end(struct exchange *ex);
// What waits to be exported. Any thread may put; what does not fit is dropped and counted.
void trace_put(const struct span *span);
size_t trace_take(struct span *out, size_t room);
void trace_lose(uint64_t spans);
void trace_lose_rest(void); // what waits
size_t trace_waiting(uint64_t *dropped);
// The engine's bn_span_callback.
void trace_phase(const bn_span *span, void *context);

extern char otlp_tag; // of its socket in the loop

// Reads --otlp-endpoint and finds its address. False: it says on stderr what is wrong.
bool otlp_start(struct server *server);
// Sends what is due, and gives up what takes too long.
void otlp_turn(struct server *server, uint64_t now_ms);
void otlp_ready(struct server *server, uint32_t events);
// Something is being sent or waits for it.
bool otlp_busy(void);
void otlp_metrics(struct buffer *out);

#endif
