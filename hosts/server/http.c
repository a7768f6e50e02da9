// Exchanges: parses requests over HTTP, and sends their answers.
#include "models.h"
#include "connection.h"
#include "fields.h"
#include "server.h"
#include "trace.h"
#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

// -- answers ----------------------------------------------------------------------------------------

static const char *reason(unsigned status) {
    static const struct {
        unsigned status;
        const char *reason;
    } reasons[] = {{200, "OK"}, {204, "No Content"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"},
                   {405, "Method Not Allowed"}, {413, "Content Too Large"}, {414, "URI Too Long"},
                   {417, "Expectation Failed"}, {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"}, {501, "Not Implemented"}, {503, "Service Unavailable"},
                   {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "";
}

static const char *date(void) {
    static char text[40];
    static time_t at;
    time_t now = time(NULL);
    struct tm utc;
    if (now != at) strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &utc));
    at = now;
    return text;
}

static bool has_chunks(const struct exchange *ex) {
    return ex->streaming && ex->client->http.one_one;
}

static void write_head(struct exchange *ex, struct buffer *out) {
    struct client *client = ex->client;
    client->closes |= ex->server->state > SERVING;
    ex->headed = true;
    if (ex->streaming) ex->type = ex->route->style->stream_type;
    buffer_format(out, "HTTP/1.1 %u %s\r\nDate: %s\r\n", ex->status, reason(ex->status), date());
    if (ex->status != 204) buffer_format(out, "Content-Type: %s\r\n", ex->type);
    if (has_chunks(ex)) buffer_text(out, "Transfer-Encoding: chunked\r\n");
    else if (!ex->streaming && ex->status != 204) buffer_format(out, "Content-Length: %zu\r\n", buffer_length(&ex->out));
    if (ex->streaming) buffer_text(out, "Cache-Control: no-cache\r\n");
    if (ex->retry_after_s != 0) buffer_format(out, "Retry-After: %u\r\n", ex->retry_after_s);
    if (ex->origin != NULL) buffer_format(out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", ex->origin);
    if (ex->status == 204)
        buffer_text(out, "Access-Control-Allow-Methods: GET, HEAD, POST, DELETE\r\n"
                         "Access-Control-Allow-Headers: *, Authorization\r\nAccess-Control-Max-Age: 86400\r\n");
    if (ex->status == 401) buffer_text(out, "WWW-Authenticate: Bearer\r\n");
    if (ex->status == 405) buffer_format(out, "Allow: %s\r\n", ex->allow);
    if (client->closes) buffer_text(out, "Connection: close\r\n");
    buffer_text(out, "\r\n");
}

// Sends the stream's pending bytes as one chunk.
static void write_chunk(struct exchange *ex, struct buffer *out) {
    size_t length = buffer_length(&ex->out);
    if (length == 0) return;
    if (has_chunks(ex)) buffer_format(out, "%zx\r\n", length);
    buffer_add(out, ex->out.data + ex->out.start, length);
    if (has_chunks(ex)) buffer_text(out, "\r\n");
    buffer_clear(&ex->out);
}

enum sending http_answer(struct exchange *ex, struct buffer *out, struct buffer *rest) {
    bool head_only = ex->client->http.method != NULL && strcmp(ex->client->http.method, "HEAD") == 0;
    if (ex->working || (!ex->finished && !ex->streaming)) return ANSWER_WAITS;
    if (ex->finished && ex->jobs_left == 0) models_leave(ex);
    if (ex->ended) return ANSWER_SENT;
    if (!ex->headed) write_head(ex, out);
    if (ex->streaming) write_chunk(ex, out);
    else if (!head_only) *rest = ex->out, ex->out = (struct buffer){0};
    ex->ended = ex->finished;
    if (ex->ended && has_chunks(ex)) buffer_text(out, "0\r\n\r\n");
    return buffer_length(out) > 0 ? ANSWER_GOES : ANSWER_WAITS;
}

void http_wake(struct exchange *ex) {
    if (ex->client != NULL && !ex->working) client_call(ex->client);
}

// -- requests ---------------------------------------------------------------------------------------

static bool key_matches(const struct exchange *ex) {
    const char *key = ex->server->options.api_key;
    const char *header = http1_field(&ex->client->http, "Authorization");
    const char *given = header != NULL && strncmp(header, "Bearer ", 7) == 0 ? header + 7 : http1_field(&ex->client->http, "x-api-key");
    size_t length = strlen(key);
    if (length == 0) return true;
    if (given == NULL) return false;
    // Always takes the same number of steps, so that the time reveals nothing about the key.
    size_t given_length = strlen(given);
    unsigned char difference = given_length != length;
    for (size_t i = 0; i < given_length; i++) difference |= (unsigned char)given[i] ^ (unsigned char)key[i % length];
    return difference == 0;
}

// "localhost" or an address, with or without a port.
static bool names_this_machine(const char *authority) {
    size_t length = strcspn(authority, ":");
    if (*authority == '[' || (length == 9 && strncasecmp(authority, "localhost", 9) == 0)) return true;
    return strspn(authority, "0123456789.") == length;
}

// The Origin of a page that --cors lists, NULL for others and for programs.
static const char *listed_origin(const struct exchange *ex) {
    const char *origin = http1_field(&ex->client->http, "Origin"), *list = ex->server->options.cors;
    size_t length = origin != NULL ? strlen(origin) : 0;
    if (length == 0 || strcmp(list, "*") == 0) return length == 0 ? NULL : origin;
    while (*list != 0) {
        size_t own = strcspn(list, ",");
        if (own == length && strncasecmp(list, origin, own) == 0) return origin;
        list += own + (list[own] == ',');
    }
    return NULL;
}

// Another site's page must not make its visitors' browsers use this server, even if that site's name resolves to this
// machine (DNS rebinding). Programs send no Origin.
static bool is_foreign(const struct exchange *ex) {
    const char *origin = http1_field(&ex->client->http, "Origin"), *host = ex->client->http.authority;
    const char *authority = origin != NULL ? strstr(origin, "://") : NULL;
    if (origin == NULL || ex->origin != NULL) return false;
    if (authority == NULL || host == NULL || strcmp(authority + 3, host) != 0) return true;
    return ex->server->local && *ex->server->options.api_key == 0 && !names_this_machine(host);
}

static void refuse_size(struct exchange *ex) {
    fail(ex, 413, "too_large", "the body has more than %llu bytes", (ull)ex->server->options.max_body);
}

static void refuse_form(struct exchange *ex, unsigned status) {
    static const struct {
        unsigned status;
        const char *words;
    } all[] = {{414, "the request line is too long"}, {417, "no other expectation than 100-continue is known"},
               {431, "the header fields are too many or too long"}, {501, "no other transfer coding than chunked is known"},
               {505, "HTTP/1.1 and HTTP/1.0 are known"}};
    const char *words = "the request is not valid HTTP/1.1";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].status == status) words = all[i].words;
    fail(ex, status, "invalid_http", "%s", words);
}

// Refuses requests that can be refused without their body.
static void look_at_head(struct exchange *ex) {
    const struct client *client = ex->client;
    const struct http1 *http = &client->http;
    enum state state = ex->server->state;
    ex->route = route_find(http->method, http->path, &ex->allow);
    if (ex->route != NULL) ex->rest = http->path + strlen(ex->route->path);
    ex->origin = listed_origin(ex);
    if (ex->origin != NULL && strcmp(http->method, "OPTIONS") == 0) {
        ex->status = 204; // what a browser asks before it sends a page's request
        ex->finished = true;
    } else if (ex->route == NULL) {
        bool known = ex->allow != NULL;
        fail(ex, known ? 405 : 404, known ? "method_not_allowed" : "not_found", "there is no %.40s %.200s", http->method,
             http->path);
    } else if (is_foreign(ex)) {
        fail(ex, 403, "foreign_origin", "pages of other sites may not use this server");
    } else if (!ex->route->open && !key_matches(ex)) {
        fail(ex, 401, "invalid_api_key", "the API key is missing or wrong");
    } else if (!ex->route->always && (state != SERVING || client->extra)) {
        fail(ex, 503, "unavailable", "%s",
             state == LOADING    ? "the model is loading"
             : state == SERVING ? "the server has as many connections as it takes"
                                 : "the server is shutting down");
        ex->retry_after_s = state == LOADING ? 5 : 1;
    } else if (!http->chunked && http->length > ex->server->options.max_body) {
        refuse_size(ex);
    }
}

void http_begin(struct client *client, unsigned wrong) {
    struct exchange *ex = must(calloc(1, sizeof *ex));
    ex->server = client->server;
    ex->client = client;
    ex->bucket = client->bucket;
    ex->id = ex->server->next_id++;
    ex->created = (uint64_t)time(NULL);
    ex->status = 200;
    ex->ask.keep_ms = UINT64_MAX;
    ex->type = "application/json";
    client->exchange = ex;
    ex->server->exchanges++;
    if (wrong != 0) refuse_form(ex, wrong);
    else look_at_head(ex);
    if (ex->route != NULL && ex->route->handle == jobs_submit) trace_begin(ex, http1_field(&client->http, "traceparent"));
}

bool http_refused(const struct exchange *ex) {
    return ex->finished;
}

// The body's buffer grows up to the length in its head, and is counted as it grows. One more byte is for cJSON's NUL.
void http_receive(struct exchange *ex, const char *data, size_t length) {
    const struct http1 *http = &ex->client->http;
    size_t held = buffer_length(&ex->body) + length, most = ex->server->options.max_body;
    if (length == 0) return;
    bool fits = held <= most;
    if (fits && !http->chunked) most = held + http->length;
    size_t more = buffer_capacity(&ex->body, length + 1, most + 1) - ex->body.capacity;
    if (!fits) refuse_size(ex);
    else if (!memory_take(ex, &ex->input, more)) memory_refuse(ex);
    else buffer_grow(&ex->body, length + 1, most + 1);
    if (!ex->finished) buffer_add(&ex->body, data, length);
    else buffer_free(&ex->body), memory_set(ex, &ex->input, 0);
}

void http_handle(struct exchange *ex, unsigned wrong) {
    if (wrong != 0) refuse_form(ex, wrong);
    if (!ex->finished) route_run(ex);
}

// -- the end ----------------------------------------------------------------------------------------

void http_end(struct exchange *ex) {
    jobs_drop(ex);
    models_leave(ex);
    trace_end(ex);
    ask_over(ex);
    ex->server->exchanges--;
    memory_set(ex, &ex->input, 0);
    memory_set(ex, &ex->output, 0);
    buffer_free(&ex->ask.kept);
    buffer_free(&ex->ask.items);
    buffer_free(&ex->out);
    buffer_free(&ex->head);
    free(ex);
}

void http_gone(struct exchange *ex) {
    ex->gone = !ex->ended; // for the trace
    if (ex->working) ex->gone = true;
    ex->client = NULL;
    jobs_drop(ex);
    if (ex->working) work_abandon(ex, ask_let_go); // http_end follows once its thread is done
    else http_end(ex);
}

void http_worked(struct exchange *ex) {
    if (ex->working > 0) return;
    if (!ex->gone) {
        http_wake(ex);
        return;
    }
    ex->server->abandoned--;
    http_end(ex);
}
