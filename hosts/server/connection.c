// Reads a client's bytes while it may send a request, and not while one is being answered: until then they wait in the
// kernel. Every wait for a client has a deadline.
#include "connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

char listener_tag;

enum {
    ACCEPTS = 64,       // in a turn
    EXTRA = 16,         // connections beyond the most, for /health and the like
    FRESH_MS = 20,      // a client is not closed for another this early, as it may be about to send: new ones wait so long
    LINGER_MS = 2000,   // for the client to read the last answer
    READ = 64 << 10,    // bytes read at once
    SEND = 1 << 20,     // bytes sent in a turn
    PROGRESS = 16 << 10 // bytes that a client must read before its deadline
};

// -- lists ------------------------------------------------------------------------------------------

static void unlink_client(struct client *c) {
    struct clients *list = c->list;
    *(c->previous != NULL ? &c->previous->next : &list->first) = c->next;
    *(c->next != NULL ? &c->next->previous : &list->last) = c->previous;
    list->count--;
    c->list = NULL;
}

static void append(struct clients *list, struct client *c) {
    c->list = list;
    c->next = NULL;
    c->previous = list->last;
    *(list->last != NULL ? &list->last->next : &list->first) = c;
    list->last = c;
    list->count++;
}

static struct clients *list_of(struct server *server, enum phase phase) {
    return phase == ANSWER ? &server->answering : phase == LINGER ? &server->lingering : &server->waiting;
}

static void enter(struct client *c, enum phase phase, uint64_t deadline_ms) {
    struct clients *list = list_of(c->server, phase);
    if (list != c->list || phase == HEAD) {
        if (c->list != NULL) unlink_client(c);
        append(list, c);
        c->listed_ms = now_ms();
    }
    c->phase = phase;
    c->deadline_ms = deadline_ms;
    c->sent = 0;
}

// -- epoll ------------------------------------------------------------------------------------------

static bool pending(const struct client *c) {
    return buffer_length(&c->out) + buffer_length(&c->rest) > 0;
}

// A client may send during its answer; EPOLLIN is turned off only once it does. A body waits for its "100 Continue".
static void watch(struct client *c, bool sends) {
    bool answered = c->phase == ANSWER && (sends || (c->interest & EPOLLIN) == 0);
    uint32_t in = c->ended || answered || (c->phase == BODY && pending(c)) ? 0 : EPOLLIN;
    uint32_t wanted = in | (pending(c) ? EPOLLOUT : 0) | (c->hung_up ? 0 : EPOLLRDHUP);
    if (wanted == c->interest) return;
    c->interest = wanted;
    poll_set(c->server->epoll, EPOLL_CTL_MOD, c->fd, wanted, c);
}

static void listen_for(struct server *server, uint32_t events) {
    if (server->listener >= 0) poll_set(server->epoll, EPOLL_CTL_MOD, server->listener, events, &listener_tag);
    server->accept_ms = events != 0 ? 0 : now_ms() + FRESH_MS;
}

void client_call(struct client *c) {
    if (c->again) return;
    c->again = true;
    c->next_again = c->server->again;
    c->server->again = c;
}

// -- the end ----------------------------------------------------------------------------------------

void client_close(struct client *c) {
    if (c->fd < 0) return;
    if (c->exchange != NULL) http_gone(c->exchange);
    c->exchange = NULL;
    close(c->fd); // epoll forgets it, too
    c->fd = -1;
    unlink_client(c);
    buffer_free(&c->head);
    buffer_free(&c->in);
    buffer_free(&c->out);
    buffer_free(&c->rest);
    client_call(c); // an event of this turn may still name it
    if (c->server->accept_ms != 0) listen_for(c->server, EPOLLIN);
}

static struct client *stale(const struct clients *list) {
    return list->first != NULL && now_ms() - list->first->listed_ms >= FRESH_MS ? list->first : NULL;
}

// Closes the longest waiting client to make room. Never closes one that is being answered.
static bool evict(struct server *server) {
    struct client *oldest = stale(&server->lingering);
    if (oldest == NULL) oldest = stale(&server->waiting);
    if (oldest != NULL) client_close(oldest);
    return oldest != NULL;
}

// Waits for a client that is still sending, so that it gets the answer: closing a socket with unread bytes resets it.
static void linger(struct client *c) {
    if (c->ended || (!c->hung_up && shutdown(c->fd, SHUT_WR) != 0)) {
        client_close(c);
        return;
    }
    buffer_free(&c->in);
    enter(c, LINGER, now_ms() + LINGER_MS);
}

// -- bytes ------------------------------------------------------------------------------------------

// The most bytes that may wait to be parsed. After a body, and so while its request is answered, that is one head.
static size_t most_waiting(const struct client *c) {
    uint64_t body = c->phase == BODY ? c->http.length : 0; // at least so much of it is to come
    return (size_t)(c->server->options.max_header + body);
}

// Returns false if the client is closed.
static bool receive(struct client *c) {
    static char data[READ];
    size_t waits = buffer_length(&c->in), most = c->phase == LINGER ? READ : most_waiting(c);
    if (waits >= most) return true; // pipelined requests are handled first
    ssize_t got = recv(c->fd, data, most - waits < READ ? most - waits : READ, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got < 0 || (got == 0 && c->phase == LINGER)) return client_close(c), false;
    c->ended = got == 0;
    c->hung_up |= c->ended;
    if (c->phase == LINGER) return true;
    buffer_grow(&c->in, (size_t)got, most_waiting(c));
    buffer_add(&c->in, data, (size_t)got);
    return true;
}

static void consume(struct buffer *b, size_t *sent) {
    size_t n = *sent < buffer_length(b) ? *sent : buffer_length(b);
    b->start += n;
    *sent -= n;
    if (b->start == b->end) buffer_free(b);
}

// The deadline runs while a client leaves an answer unread. A few bytes do not count as progress.
static void note_progress(struct client *c, size_t sent) {
    if (c->phase != ANSWER) return;
    c->sent += sent;
    bool goes = c->sent >= PROGRESS || c->deadline_ms == 0;
    if (!pending(c)) c->deadline_ms = 0;
    else if (goes) c->deadline_ms = now_ms() + c->server->options.idle_timeout_s * 1000;
    if (goes) c->sent = 0;
}

// Returns false if the client is closed, or the socket accepts no more.
static bool flush(struct client *c) {
    size_t total = 0;
    while (pending(c) && total < SEND) {
        struct iovec parts[] = {{c->out.data + c->out.start, buffer_length(&c->out)},
                                {c->rest.data + c->rest.start, buffer_length(&c->rest)}};
        if (c->out.data == NULL) parts[0] = (struct iovec){NULL, 0};
        if (parts[1].iov_len > SEND) parts[1].iov_len = SEND;
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = c->rest.data == NULL ? 1 : 2};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) return client_close(c), false;
        if (sent < 0) break;
        total += (size_t)sent;
        size_t left = (size_t)sent;
        consume(&c->out, &left);
        consume(&c->rest, &left);
    }
    note_progress(c, total);
    if (total >= SEND) client_call(c);
    return !pending(c);
}

// -- phases -----------------------------------------------------------------------------------------

// Each phase returns true to continue; false if it waits for the client or the engine, or is closed.

static bool on_head(struct client *c) {
    const struct options *o = &c->server->options;
    size_t length = 0;
    if (buffer_length(&c->in) == 0) return c->ended ? (client_close(c), false) : false;
    if (c->http.seen == 0) c->deadline_ms = now_ms() + o->receive_timeout_s * 1000;
    const char *from = c->in.data + c->in.start;
    unsigned wrong = http1_find(&c->http, from, buffer_length(&c->in), o->max_header, &length);
    if (wrong == 0 && length == 0) return c->ended ? (client_close(c), false) : false;
    if (wrong == 0) {
        buffer_add(&c->head, from, length);
        c->in.start += length;
        wrong = http1_read(&c->http, c->head.data, length);
    }
    c->closes = wrong != 0 || c->http.closes || c->extra;
    enter(c, BODY, c->deadline_ms);
    http_begin(c, wrong);
    return true;
}

static bool on_body(struct client *c) {
    struct exchange *ex = c->exchange;
    bool waits = c->http.expects && c->http.one_one && !c->http.done && !http_refused(ex);
    unsigned wrong = 0;
    c->http.expects = false;
    if (waits && buffer_length(&c->in) == 0) {
        buffer_text(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        return true;
    }
    while (!http_refused(ex) && !c->http.done && buffer_length(&c->in) > 0) {
        size_t used = 0, piece = 0;
        wrong = http1_body(&c->http, c->in.data + c->in.start, buffer_length(&c->in), &used, &piece);
        c->in.start += used;
        if (wrong != 0) break;
        http_receive(ex, c->in.data + c->in.start - piece, piece);
    }
    buffer_trim(&c->in);
    if (wrong == 0 && !http_refused(ex) && !c->http.done) return c->ended ? (client_close(c), false) : false;
    c->closes |= wrong != 0 || !c->http.done;
    if (c->closes) buffer_free(&c->in); // later bytes are no request
    enter(c, ANSWER, 0);
    http_handle(ex, wrong);
    return c->fd >= 0;
}

// Pipelined requests are answered one by one, one per turn.
static void next_request(struct client *c) {
    http_end(c->exchange);
    c->exchange = NULL;
    c->http = (struct http1){0};
    buffer_free(&c->head);
    if (c->closes) {
        linger(c);
        return;
    }
    enter(c, HEAD, now_ms() + c->server->options.idle_timeout_s * 1000);
    if (buffer_length(&c->in) > 0 || c->ended) client_call(c);
}

static bool on_answer(struct client *c) {
    enum sending next = http_answer(c->exchange, &c->out, &c->rest);
    if (next == ANSWER_WAITS && c->hung_up) client_close(c); // the client reads no more: cancel the answer
    if (next == ANSWER_SENT) next_request(c);
    return next == ANSWER_GOES;
}

static bool on_linger(struct client *c) {
    (void)c;
    return false;
}

static void go(struct client *c) {
    static bool (*const phases[])(struct client *c) = {[HEAD] = on_head, [BODY] = on_body, [ANSWER] = on_answer, [LINGER] = on_linger};
    while (c->fd >= 0 && flush(c) && phases[c->phase](c)) {}
    if (c->fd >= 0) watch(c, false);
}

void client_ready(struct client *c, uint32_t events) {
    if (c->fd < 0) return;
    if ((events & EPOLLERR) != 0 || ((events & EPOLLHUP) != 0 && c->phase != LINGER)) {
        client_close(c);
        return;
    }
    c->hung_up |= (events & EPOLLRDHUP) != 0;
    if ((events & EPOLLIN) != 0 && c->phase == ANSWER) watch(c, true);
    else if ((events & (EPOLLIN | EPOLLHUP)) != 0 && !receive(c)) return;
    go(c);
}

// -- all of them ------------------------------------------------------------------------------------

// Clients of one address share a bucket in the queues of work.c; for IPv6, clients of one network.
static unsigned bucket_of(const struct sockaddr_storage *address) {
    const unsigned char *bytes = (const unsigned char *)&((const struct sockaddr_in *)address)->sin_addr;
    size_t count = 4;
    unsigned hash = 2166136261u;
    if (address->ss_family == AF_INET6) bytes = ((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr, count = 8;
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

static void add(struct server *server, int fd, const struct sockaddr_storage *address) {
    struct client *c = must(calloc(1, sizeof *c));
    int yes = 1;
    *c = (struct client){.server = server, .fd = fd, .interest = EPOLLIN | EPOLLRDHUP, .bucket = bucket_of(address)};
    c->extra = clients_count(server) >= server->options.max_connections;
    enter(c, HEAD, now_ms() + server->options.receive_timeout_s * 1000);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); // a token does not wait for the one before it to be received
    if (!poll_set(server->epoll, EPOLL_CTL_ADD, fd, c->interest, c)) client_close(c);
    else client_ready(c, EPOLLIN); // it may have sent its request while it waited
}

static bool is_short(int error) { // of descriptors or memory
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

void clients_accept(struct server *server) {
    uint64_t most = server->options.max_connections;
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage address = {0};
        socklen_t size = sizeof address;
        bool room = clients_count(server) < most + EXTRA || evict(server);
        int fd = room ? accept4(server->listener, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
        if (fd >= 0) {
            if (clients_count(server) >= most) evict(server);
            add(server, fd, &address);
        } else if (room && errno == EAGAIN) {
            return;
        } else if (!room || (is_short(errno) && !evict(server))) {
            listen_for(server, 0);
            return;
        }
    }
}

static void expire(struct server *server, const struct clients *list, uint64_t now) {
    for (struct client *c = list->first, *next; c != NULL; c = next) {
        next = c->next;
        bool drained = server->state > SERVING && c->phase == BODY;
        if (drained || (c->deadline_ms != 0 && c->deadline_ms <= now)) client_close(c);
    }
}

void clients_expire(struct server *server, uint64_t now) {
    expire(server, &server->waiting, now);
    expire(server, &server->answering, now);
    expire(server, &server->lingering, now);
}

bool clients_turn(struct server *server) {
    struct client *c = server->again, *next;
    if (server->accept_ms != 0 && now_ms() >= server->accept_ms) listen_for(server, EPOLLIN);
    for (server->again = NULL; c != NULL; c = next) {
        next = c->next_again;
        c->again = false;
        if (c->fd < 0) free(c);
        else go(c);
    }
    return server->again != NULL;
}

int clients_timeout(const struct server *server) {
    if (server->again != NULL) return 0;
    if (server->accept_ms != 0) return FRESH_MS;
    return clients_count(server) > 0 ? 1000 : -1; // deadlines are looked at once a second
}

bool clients_start(struct server *server) {
    return poll_set(server->epoll, EPOLL_CTL_ADD, server->listener, EPOLLIN, &listener_tag);
}

void clients_stop_accepting(struct server *server) {
    close(server->listener);
    server->listener = -1;
}

void clients_close(struct server *server) {
    struct clients *lists[] = {&server->waiting, &server->answering, &server->lingering};
    for (int i = 0; i < 3; i++)
        while (lists[i]->first != NULL) client_close(lists[i]->first);
    while (clients_turn(server)) {}
}
