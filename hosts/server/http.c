// libmicrohttpd's side: connections, bodies, answers. A connection is suspended while it waits for the engine, and
// libmicrohttpd does not look at its socket then; so the loop watches each socket for a hang-up itself.
#include "fields.h"
#include "server.h"
#include "trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef enum MHD_Result result;

uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// -- answers ----------------------------------------------------------------------------------------

static void add_headers(struct exchange *ex, struct MHD_Response *response) {
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%u", ex->retry_after_s);
    MHD_add_response_header(response, "Content-Type", ex->type);
    if (ex->retry_after_s != 0) MHD_add_response_header(response, "Retry-After", seconds);
    if (ex->status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (ex->streaming) MHD_add_response_header(response, "Cache-Control", "no-cache");
    if (ex->server->state > SERVING) MHD_add_response_header(response, "Connection", "close");
}

static result queue_whole(struct exchange *ex) {
    size_t length = buffer_length(&ex->out);
    struct MHD_Response *response = MHD_create_response_from_buffer(length, ex->out.data, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) return MHD_NO;
    ex->out = (struct buffer){0};
    add_headers(ex, response);
    result queued = MHD_queue_response(ex->connection, ex->status, response);
    MHD_destroy_response(response);
    return queued;
}

static ssize_t read_stream(void *context, uint64_t position, char *out, size_t room) {
    struct exchange *ex = context;
    (void)position;
    if (ex->gone) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (buffer_length(&ex->out) > 0) return (ssize_t)buffer_take(&ex->out, out, room);
    if (ex->finished) return MHD_CONTENT_READER_END_OF_STREAM;
    ex->suspended = true;
    MHD_suspend_connection(ex->connection);
    return 0;
}

static result queue_stream(struct exchange *ex) {
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, ex, NULL);
    if (response == NULL) return MHD_NO;
    ex->type = ex->route->style->stream_type;
    add_headers(ex, response);
    result queued = MHD_queue_response(ex->connection, 200, response);
    MHD_destroy_response(response);
    return queued;
}

void http_wake(struct exchange *ex) {
    if (!ex->suspended || ex->working) return;
    ex->suspended = false;
    MHD_resume_connection(ex->connection);
}

// -- requests ---------------------------------------------------------------------------------------

static bool key_matches(struct exchange *ex) {
    const char *key = ex->server->options.api_key;
    const char *header = MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, "Authorization");
    const char *given = header != NULL && strncmp(header, "Bearer ", 7) == 0
                            ? header + 7
                            : MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, "x-api-key");
    size_t length = strlen(key);
    if (length == 0) return true;
    if (given == NULL) return false;
    // As many steps whatever was given: the time tells nothing about the key.
    size_t given_length = strlen(given);
    unsigned char difference = given_length != length;
    for (size_t i = 0; i < given_length; i++) difference |= (unsigned char)given[i] ^ (unsigned char)key[i % length];
    return difference == 0;
}

// A page of another site must not make its visitors' browsers use this server. Programs send no Origin.
static bool is_foreign(struct exchange *ex) {
    const char *origin = MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, "Origin");
    const char *host = MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, "Host");
    const char *authority = origin != NULL ? strstr(origin, "://") : NULL;
    if (origin == NULL) return false;
    return authority == NULL || host == NULL || strcmp(authority + 3, host) != 0;
}

// Refuses what needs no body to be refused.
static void look_at_head(struct exchange *ex, const char *method, const char *path) {
    const char *length = MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, "Content-Length");
    bool known = false;
    ex->route = route_find(method, path, &known);
    if (ex->route != NULL) ex->rest = path + strlen(ex->route->path);
    if (ex->route == NULL) {
        fail(ex, known ? 405 : 404, known ? "method_not_allowed" : "not_found", "there is no %s %.200s", method, path);
    } else if (is_foreign(ex)) {
        fail(ex, 403, "foreign_origin", "pages of other sites may not use this server");
    } else if (!ex->route->open && !key_matches(ex)) {
        fail(ex, 401, "invalid_api_key", "the API key is missing or wrong");
    } else if (!ex->route->always && ex->server->state != SERVING) {
        fail(ex, 503, "unavailable", "%s",
             ex->server->state == LOADING ? "the model is loading" : "the server is shutting down");
        ex->retry_after_s = ex->server->state == LOADING ? 5 : 1;
    } else if (length != NULL && strtoull(length, NULL, 10) > ex->server->options.max_body) {
        fail(ex, 413, "too_large", "the body has more than %llu bytes", (ull)ex->server->options.max_body);
    }
}

static struct exchange *exchange_new(struct client *client, struct MHD_Connection *connection) {
    struct exchange *ex = must(calloc(1, sizeof *ex));
    ex->server = client->server;
    ex->client = client;
    ex->connection = connection;
    ex->id = ex->server->next_id++;
    ex->created = (uint64_t)time(NULL);
    ex->status = 200;
    ex->type = "application/json";
    client->exchange = ex;
    client->deadline_ms = now_ms() + ex->server->options.receive_timeout_s * 1000;
    ex->server->exchanges++;
    return ex;
}

static void receive(struct exchange *ex, const char *data, size_t length) {
    if (ex->finished || ex->too_large) return;
    ex->too_large = buffer_length(&ex->body) + length > ex->server->options.max_body;
    if (ex->too_large) buffer_free(&ex->body);
    else buffer_add(&ex->body, data, length);
}

// MHD_NO closes the connection; on_completed drops the jobs.
static result answer(struct exchange *ex) {
    bool whole = ex->finished && !ex->streaming;
    if (ex->gone || (ex->client->hung_up && !whole)) return MHD_NO;
    if (whole) return queue_whole(ex);
    return ex->streaming ? queue_stream(ex) : MHD_NO;
}

// The request is complete: it is answered now, streams, or waits.
static result handle(struct exchange *ex) {
    ex->handled = true;
    ex->client->deadline_ms = 0;
    if (!ex->finished && ex->too_large)
        fail(ex, 413, "too_large", "the body has more than %llu bytes", (ull)ex->server->options.max_body);
    if (!ex->finished) route_run(ex);
    if (ex->working) ex->gone |= ex->client->hung_up;
    else if (ex->streaming || ex->finished || ex->client->hung_up) return answer(ex);
    ex->suspended = true;
    MHD_suspend_connection(ex->connection);
    return MHD_YES;
}

static result on_request(void *context, struct MHD_Connection *connection, const char *path, const char *method,
                         const char *version, const char *data, size_t *length, void **slot) {
    struct exchange *ex = *slot;
    (void)context, (void)version;
    if (ex == NULL) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        *slot = ex = exchange_new(info->socket_context, connection);
        look_at_head(ex, method, path);
        trace_begin(ex);
        // A body that is refused is not read: the connection is closed after the answer.
        return ex->finished && strcmp(method, "POST") == 0 ? handle(ex) : MHD_YES;
    }
    if (*length > 0) {
        receive(ex, data, *length);
        *length = 0;
        return MHD_YES;
    }
    if (!ex->handled) return handle(ex);
    return answer(ex); // resumed
}

static void on_completed(void *context, struct MHD_Connection *connection, void **slot,
                         enum MHD_RequestTerminationCode code) {
    struct exchange *ex = *slot;
    (void)context, (void)connection, (void)code;
    if (ex == NULL) return;
    jobs_drop(ex);
    trace_end(ex);
    route_over(ex);
    ex->client->exchange = NULL;
    ex->client->deadline_ms = now_ms() + ex->server->options.idle_timeout_s * 1000; // for the next request's head
    ex->server->exchanges--;
    buffer_free(&ex->ask.kept);
    buffer_free(&ex->out);
    buffer_free(&ex->head);
    free(ex);
    *slot = NULL;
}

// -- connections ------------------------------------------------------------------------------------

static void on_connection(void *context, struct MHD_Connection *connection, void **slot,
                          enum MHD_ConnectionNotificationCode code) {
    struct server *server = context;
    struct client *client = *slot;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        client = must(calloc(1, sizeof *client));
        client->server = server;
        client->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        client->deadline_ms = now_ms() + server->options.receive_timeout_s * 1000;
        client->next = server->clients;
        client->link = &server->clients;
        if (client->next != NULL) client->next->link = &client->next;
        server->clients = client;
        loop_watch(server, client->fd, EPOLLRDHUP | EPOLLET, client);
        *slot = client;
        return;
    }
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, client->fd, NULL);
    *client->link = client->next;
    if (client->next != NULL) client->next->link = client->link;
    free(client);
}

// Nobody reads the answer any more: the engine need not go on with it.
void http_hang_up(struct client *client) {
    struct exchange *ex = client->exchange;
    client->hung_up = true;
    if (ex == NULL || !ex->handled || ex->finished) return;
    ex->gone = true; // what a thread has goes on until it is done
    jobs_drop(ex);
    http_wake(ex);
}

void http_cut(struct client *client) {
    shutdown(client->fd, SHUT_RDWR); // libmicrohttpd may wait for it to be writable
    http_hang_up(client);
}

// Shuts the sockets of clients that are too slow to send a request, or gone before they did: libmicrohttpd may have read
// the last bytes without seeing the end behind them. It sees this one, and closes them. While the server drains, also
// those of clients that have not sent theirs or are gone.
void http_expire(struct server *server, uint64_t now) {
    for (struct client *client = server->clients; client != NULL; client = client->next) {
        const struct exchange *ex = client->exchange;
        bool late = client->deadline_ms != 0 && client->deadline_ms <= now;
        bool waits = ex == NULL || !ex->handled, drains = server->state > SERVING && ex != NULL;
        bool useless = waits ? client->hung_up || drains : client->hung_up && drains;
        if (late || useless) shutdown(client->fd, SHUT_RDWR);
    }
}

bool http_start(struct server *server) {
    const struct options *o = &server->options;
    server->http = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET,
        server->listener, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, server, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)o->max_header, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)o->max_connections, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)o->idle_timeout_s,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    if (server->http == NULL) return false;
    int fd = MHD_get_daemon_info(server->http, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    return loop_watch(server, fd, EPOLLIN, server->http);
}

void http_stop_accepting(struct server *server) {
    int fd = MHD_quiesce_daemon(server->http);
    if (fd >= 0) close(fd);
}
