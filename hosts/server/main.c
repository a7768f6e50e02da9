// bn-server: a model over HTTP. README.md says how it is used, server.h how it is made.
#include "pairs.h"
#include "server.h"
#include "trace.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

// A socket that listens, or -1 and what is wrong on stderr. It prints the port, which may be any.
static int listen_on(const char *host, uint64_t port) {
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    snprintf(service, sizeof service, "%u", (unsigned)port);
    int wrong = getaddrinfo(host, service, &hints, &found);
    if (wrong != 0) return fprintf(stderr, "bn-server: %s: %s\n", host, gai_strerror(wrong)), -1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1024) != 0) {
        fprintf(stderr, "bn-server: cannot listen on %s port %s: %s\n", host, service, strerror(errno));
        freeaddrinfo(found);
        if (fd >= 0) close(fd);
        return -1;
    }
    freeaddrinfo(found);
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &length);
    getnameinfo((struct sockaddr *)&address, length, NULL, 0, service, sizeof service, NI_NUMERICSERV);
    fprintf(stderr, "bn-server: listening on %s port %s\n", host, service);
    return fd;
}

// Each connection is a descriptor.
static void raise_limit(uint64_t connections) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= connections + 64) return;
    limit.rlim_cur = limit.rlim_max < connections + 64 ? limit.rlim_max : connections + 64;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < connections + 64)
        fprintf(stderr, "bn-server: the system allows %llu descriptors, too few for %llu connections\n",
                (ull)limit.rlim_cur, (ull)connections);
}

int main(int argc, char **argv) {
    static struct server server = {.name = ""};
    options_read(&server.options, argc, argv);
    raise_limit(server.options.max_connections);
    if (!otlp_start(&server) || !pairs_start(&server)) return 2;
    if (getrandom(&server.seed, sizeof server.seed, 0) != sizeof server.seed) server.seed = (uint64_t)getpid();
    server.next_id = server.seed;
    server.epoll = epoll_create1(EPOLL_CLOEXEC);
    server.listener = server.epoll < 0 ? -1 : listen_on(server.options.host, server.options.port);
    if (server.listener < 0) return 1;
    if (!http_start(&server)) return fprintf(stderr, "bn-server: libmicrohttpd does not start\n"), 1;
    int status = loop_run(&server);
    // A loop that ended by a failure may leave exchanges.
    for (struct client *client = server.clients; client != NULL; client = client->next) http_hang_up(client);
    MHD_stop_daemon(server.http);
    bn_engine_destroy(server.engine);
    bn_model_free(server.model);
    return status;
}
