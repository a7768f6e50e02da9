// Sends spans to a collector: batches of JSON over HTTP/1.1, one connection for each, without blocking. A batch that
// the collector refuses is dropped.
#include "models.h"
#include "trace.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 512, INTERVAL_MS = 1000, TIMEOUT_MS = 5000, STATUS = 12, MOST = 65536 }; // "HTTP/1.1 200"; an answer

char otlp_tag;

static struct {
    char *authority, *path;
    struct addrinfo *addresses, *address; // of its name; the current one
    int fd; // -1: nothing is being sent
    struct buffer out;
    char answer[STATUS + 1];
    size_t got;
    size_t batch; // spans in it
    uint64_t deadline_ms, due_ms, exported;
    uint64_t end_ms; // when a drain has waited long enough; 0: no drain, or requests run
    bool fails; // and the failure was reported
} otlp = {.fd = -1};

// -- the endpoint -----------------------------------------------------------------------------------

static bool wrong_endpoint(const char *why) {
    fprintf(stderr, "bn-server: --otlp-endpoint must be http://HOST:PORT or http://HOST:PORT/PATH: %s\n", why);
    return false;
}

static bool resolve(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int wrong = getaddrinfo(host, port, &hints, &otlp.addresses);
    if (wrong != 0) return fprintf(stderr, "bn-server: --otlp-endpoint: %s: %s\n", host, gai_strerror(wrong)), false;
    otlp.address = otlp.addresses;
    return true;
}

bool otlp_start(struct server *server) {
    const char *url = server->options.otlp_endpoint, *http = "http://";
    if (*url == 0) return true;
    if (strncmp(url, "https://", 8) == 0)
        return wrong_endpoint("this server has no TLS; send to a collector on this machine, which may forward");
    if (strncmp(url, http, strlen(http)) != 0) return wrong_endpoint("it begins with something else");
    if (strpbrk(url, "@?# \t\r\n") != NULL) return wrong_endpoint("it has a user, a query or a space");
    const char *from = url + strlen(http), *slash = strchr(from, '/');
    size_t length = slash != NULL ? (size_t)(slash - from) : strlen(from), path = slash != NULL ? strlen(slash) : 0;
    while (path > 0 && slash[path - 1] == '/') path--;
    otlp.authority = must(strndup(from, length));
    otlp.path = must(strndup(slash != NULL ? slash : "", path));
    char *host = must(strdup(otlp.authority)), *colon = strrchr(host, ':'), *name = host;
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;
    bool found = digits > 0 && digits <= 5 && colon != host && colon[1 + digits] == 0 && atoi(colon + 1) <= 65535;
    if (found) {
        *colon = 0;
        if (*name == '[' && colon[-1] == ']') name++, colon[-1] = 0; // IPv6
        found = resolve(name, colon + 1);
    } else wrong_endpoint("it has no host or no port");
    free(host);
    return found;
}

// -- spans as JSON ----------------------------------------------------------------------------------

static void hex(struct buffer *out, const char *key, const uint8_t *bytes, size_t count) {
    const char *digits = "0123456789abcdef";
    buffer_format(out, "\"%s\":\"", key);
    for (size_t i = 0; i < count; i++) buffer_add(out, (char[]){digits[bytes[i] >> 4], digits[bytes[i] & 15]}, 2);
    buffer_text(out, "\",");
}

static void number(struct buffer *out, const char *key, uint64_t value) {
    buffer_format(out, "{\"key\":\"%s\",\"value\":{\"intValue\":\"%llu\"}}", key, (ull)value);
}

static void text(struct buffer *out, const char *key, const char *value) {
    buffer_format(out, "{\"key\":\"%s\",\"value\":{\"stringValue\":", key);
    buffer_json_text(out, value);
    buffer_text(out, "}}");
}

static void request_attributes(struct buffer *out, const struct span *span) {
    text(out, "http.request.method", span->route->method);
    buffer_text(out, ",");
    text(out, "url.path", span->route->path);
    buffer_text(out, ",");
    number(out, "http.response.status_code", span->status);
    buffer_text(out, ",");
    number(out, "gen_ai.usage.input_tokens", span->input_tokens);
    buffer_text(out, ",");
    number(out, "gen_ai.usage.output_tokens", span->output_tokens);
}

static void phase_attributes(struct buffer *out, const struct span *span) {
    number(out, "bn.tokens", span->of.tokens);
    buffer_text(out, ",");
    number(out, "bn.cached_tokens", span->of.cached_tokens);
    buffer_text(out, ",");
    text(out, "bn.finish_reason", bn_finish_reason_name(span->of.finish_reason));
}

static void write_span(struct buffer *out, const struct span *span) {
    static const char *const phases[] = {"", "queued", "prefill", "decode"};
    static const uint8_t none[8];
    bool failed = span->route != NULL ? span->status >= 500 : span->of.finish_reason == BN_FINISH_FAILED;
    buffer_text(out, "{");
    hex(out, "traceId", span->of.trace.trace_id, sizeof span->of.trace.trace_id);
    hex(out, "spanId", span->id, sizeof span->id);
    if (memcmp(span->of.trace.parent_id, none, sizeof none) != 0) hex(out, "parentSpanId", span->of.trace.parent_id, sizeof none);
    if (span->route != NULL) buffer_format(out, "\"name\":\"%s %s\"", span->route->method, span->route->path);
    else buffer_format(out, "\"name\":\"%s\"", phases[span->of.kind]);
    buffer_format(out, ",\"kind\":%d,\"startTimeUnixNano\":\"%llu\",\"endTimeUnixNano\":\"%llu\",\"attributes\":[",
                  span->route != NULL ? 2 : 1, (ull)span->of.start_ns, (ull)span->of.end_ns); // SERVER, INTERNAL
    if (span->route != NULL) request_attributes(out, span);
    else phase_attributes(out, span);
    buffer_format(out, "],\"status\":{%s}}", failed ? "\"code\":2" : "");
}

static void write_batch(struct buffer *out, const struct server *server, const struct span *spans, size_t count) {
    buffer_text(out, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    text(out, "service.name", "bn-server");
    if (!server->several) {
        buffer_text(out, ",");
        text(out, "gen_ai.request.model", server->models->name);
    }
    buffer_format(out, "]},\"scopeSpans\":[{\"scope\":{\"name\":\"bn_engine\",\"version\":\"%s\"},\"spans\":[",
                  bn_version());
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buffer_text(out, ",");
        write_span(out, &spans[i]);
    }
    buffer_text(out, "]}]}]}");
}

// -- the connection ---------------------------------------------------------------------------------

// Ends the batch. Only the first of consecutive failures is reported. After a failure, the name's next address is
// tried.
static void finish(struct server *server, const char *wrong) {
    poll_set(server->epoll, EPOLL_CTL_DEL, otlp.fd, 0, NULL);
    close(otlp.fd);
    otlp.fd = -1;
    buffer_free(&otlp.out);
    if (wrong == NULL) otlp.exported += otlp.batch;
    else {
        trace_lose(otlp.batch);
        otlp.address = otlp.address->ai_next != NULL ? otlp.address->ai_next : otlp.addresses;
    }
    bool fails = wrong != NULL;
    if (otlp.fails != fails)
        fprintf(stderr, "bn-server: traces to %s: %s\n", otlp.authority, fails ? wrong : "they are taken again");
    otlp.fails = fails;
}

static void begin(struct server *server, uint64_t now) {
    static struct span spans[BATCH];
    struct buffer body = {0};
    otlp.batch = trace_take(spans, BATCH);
    otlp.got = 0;
    otlp.deadline_ms = now + TIMEOUT_MS;
    write_batch(&body, server, spans, otlp.batch);
    buffer_format(&otlp.out,
                  "POST %s/v1/traces HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                  "Connection: close\r\n\r\n",
                  otlp.path, otlp.authority, buffer_length(&body));
    buffer_add(&otlp.out, body.data, buffer_length(&body));
    buffer_free(&body);
    const struct addrinfo *to = otlp.address;
    otlp.fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (otlp.fd < 0) finish(server, strerror(errno));
    else if (connect(otlp.fd, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS)
        finish(server, strerror(errno));
    else poll_set(server->epoll, EPOLL_CTL_ADD, otlp.fd, EPOLLOUT, &otlp_tag);
}

static void send_more(struct server *server) {
    while (buffer_length(&otlp.out) > 0) {
        ssize_t sent = send(otlp.fd, otlp.out.data + otlp.out.start, buffer_length(&otlp.out), MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (sent < 0) {
            finish(server, strerror(errno));
            return;
        }
        otlp.out.start += (size_t)sent;
    }
    poll_set(server->epoll, EPOLL_CTL_MOD, otlp.fd, EPOLLIN, &otlp_tag);
}

// Called when the connection ends: the status decides if it was received; otherwise the error is `wrong`.
static void answered(struct server *server, const char *wrong) {
    const char *a = otlp.answer;
    bool http = strncmp(a, "HTTP/1.", 7) == 0 && strspn(a + 7, "01") == 1 && a[8] == ' ' &&
                strspn(a + 9, "0123456789") == STATUS - 9;
    if (otlp.got >= STATUS) wrong = !http ? "the collector does not speak HTTP/1" : a[9] == '2' ? NULL : a;
    finish(server, wrong);
}

static void receive(struct server *server) {
    char rest[4096];
    bool begins = otlp.got < STATUS; // reads past the status, so that the collector sees a clean end
    ssize_t got = recv(otlp.fd, begins ? otlp.answer + otlp.got : rest, begins ? STATUS - otlp.got : sizeof rest, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    otlp.got += got > 0 ? (size_t)got : 0;
    if (got <= 0 || otlp.got >= MOST)
        answered(server, got < 0 ? strerror(errno) : "the collector closed the connection");
}

void otlp_ready(struct server *server, uint32_t events) {
    if (otlp.fd < 0) return;
    int error = 0;
    socklen_t size = sizeof error;
    if ((events & EPOLLERR) != 0 && getsockopt(otlp.fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0)
        finish(server, strerror(error));
    else if (buffer_length(&otlp.out) > 0) send_more(server);
    else receive(server);
}

void otlp_turn(struct server *server, uint64_t now) {
    if (otlp.authority == NULL) return;
    if (otlp.fd >= 0 && now >= otlp.deadline_ms) answered(server, "the collector takes too long");
    size_t waiting = trace_waiting(NULL);
    bool drains = server->state > SERVING;
    if (drains && server->exchanges == 0 && otlp.end_ms == 0) otlp.end_ms = now + TIMEOUT_MS;
    if (drains && (otlp.fails || (otlp.end_ms != 0 && now >= otlp.end_ms))) { // the drain stops waiting for it
        trace_lose_rest();
        return;
    }
    if (otlp.fd >= 0 || waiting == 0 || (now < otlp.due_ms && waiting < BATCH && !drains)) return;
    otlp.due_ms = now + INTERVAL_MS;
    begin(server, now);
}

bool otlp_busy(void) {
    return otlp.authority != NULL && (otlp.fd >= 0 || trace_waiting(NULL) > 0);
}

void otlp_metrics(struct buffer *out) {
    uint64_t dropped = 0;
    trace_waiting(&dropped);
    buffer_format(out,
                  "# HELP bn_server_spans_exported_total Spans that the collector took.\n"
                  "# TYPE bn_server_spans_exported_total counter\nbn_server_spans_exported_total %llu\n"
                  "# HELP bn_server_spans_dropped_total Spans that it did not take, or that were too many.\n"
                  "# TYPE bn_server_spans_dropped_total counter\nbn_server_spans_dropped_total %llu\n",
                  (ull)otlp.exported, (ull)dropped);
}
