// bn-server: a model over HTTP. README.md describes its use, server.h its structure.
#include "models.h"
#include "connection.h"
#include "json.h"
#include "pairs.h"
#include "server.h"
#include "trace.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

// Returns a listening socket, or -1 after reporting the error on stderr. Prints the port, which the system may choose.
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

// Returns true if only programs on this machine can connect.
static bool is_loopback(int fd) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } address = {0};
    socklen_t length = sizeof address;
    if (getsockname(fd, &address.any, &length) != 0) return false;
    if (address.any.sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&address.six.sin6_addr);
    return address.any.sa_family == AF_INET && ntohl(address.four.sin_addr.s_addr) >> 24 == 127;
}

// Each connection takes a descriptor. Lowers the connection limit to the system's, so that the model's files and the
// engine never lack descriptors because of clients.
static void fit_connections(struct options *options) {
    enum { OTHERS = 96 };
    struct rlimit limit;
    uint64_t wanted = options->max_connections + OTHERS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= wanted) return;
    options->max_connections = limit.rlim_cur > 2 * OTHERS ? limit.rlim_cur - OTHERS : (limit.rlim_cur + 1) / 2;
    fprintf(stderr, "bn-server: the system allows %llu descriptors: %llu connections at a time\n", (ull)limit.rlim_cur,
            (ull)options->max_connections);
}

static int status;

static void give_up(int signal) {
    (void)signal;
    _exit(status);
}

int main(int argc, char **argv) {
    static struct server server;
    // The library's dependencies would capture a backtrace for each error in a grammar, which takes seconds.
    setenv("RUST_LIB_BACKTRACE", "0", 0);
    json_start();
    options_read(&server.options, argc, argv);
    if (!otlp_start(&server) || !pairs_start(&server) || !models_start(&server)) return 2;
    if (!random_bytes(&server.seed, sizeof server.seed)) server.seed = (uint64_t)getpid();
    if (!random_bytes(server.key, sizeof server.key)) return perror("bn-server: getrandom"), 1;
    server.next_id = server.seed;
    server.epoll = epoll_create1(EPOLL_CLOEXEC);
    server.listener = server.epoll < 0 ? -1 : listen_on(server.options.host, server.options.port);
    if (server.listener < 0) return 1;
    server.local = is_loopback(server.listener);
    fit_connections(&server.options);
    if (!clients_start(&server)) return perror("bn-server: epoll_ctl"), 1;
    status = loop_run(&server);
    // A compilation that does not end must not delay the exit.
    signal(SIGALRM, give_up);
    alarm(5);
    for (struct model *m = server.models; m != NULL; m = m->next) {
        bn_engine_free(m->engine);
        bn_model_free(m->handle);
    }
    return status;
}
