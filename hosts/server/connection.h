// Connections: sockets, their input and output, and deadlines. http.c turns the bytes into exchanges.
#ifndef BN_SERVER_CONNECTION_H
#define BN_SERVER_CONNECTION_H

#include "http1.h"
#include "server.h"

// State of a connection. One that waits for its client may be closed to make room for another; one being answered may
// not.
enum phase { HEAD, BODY, ANSWER, LINGER };

struct client {
    struct server *server;
    struct client *next, *previous, *next_again;
    struct clients *list; // that contains it
    struct exchange *exchange; // NULL between requests
    int fd;                    // -1: closed; freed at the end of the turn
    uint32_t interest;         // of epoll
    enum phase phase;
    struct http1 http;
    struct buffer head;      // of the request: `http` points into it
    struct buffer in;        // bytes received and not parsed yet
    struct buffer out, rest; // bytes to send: `out`, then `rest`
    uint64_t deadline_ms;    // 0: none
    uint64_t listed_ms;      // time when it joined its list
    size_t sent;             // since the deadline was set
    unsigned bucket;         // of its address (work.c)
    bool hung_up;            // it sends nothing more; half-closed connections count too
    bool ended;              // and all of its bytes were read
    bool closes;             // after the answer
    bool extra;              // beyond --max-connections: it may ask for the state alone
    bool again;              // in the line for another turn
};

extern char listener_tag; // of the descriptor in the loop

bool clients_start(struct server *server);
void clients_stop_accepting(struct server *server);
void clients_accept(struct server *server);
// Closes clients whose deadline has passed, and accepts again after a pause. Call it periodically.
void clients_expire(struct server *server, uint64_t now_ms);
// Continues called clients, and frees closed ones. Call it at the end of each turn. Returns true if some have more to
// do.
bool clients_turn(struct server *server);
// Timeout in milliseconds; -1 if nothing is due.
int clients_timeout(const struct server *server);
void clients_close(struct server *server); // all

void client_ready(struct client *client, uint32_t events);
// Schedules the client for the end of the turn.
void client_call(struct client *client);
void client_close(struct client *client);

#endif
