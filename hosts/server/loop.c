// The one loop: signals, the loading thread, the engine's events, hang-ups, and libmicrohttpd.
#include "server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "load.h"
#include "trace.h"
#include "work.h"

// What an epoll event belongs to, besides a client.
static char signals_tag, engine_tag;

enum { MANY = 128, PAUSE_MS = 2 };

bool loop_watch(struct server *server, int fd, uint32_t events, void *data) {
    struct epoll_event interest = {.events = events, .data.ptr = data};
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &interest) == 0;
}

// A drain refuses what is submitted after it: what the threads have, was there before.
static void stop_engine(struct server *server) {
    if (server->engine == NULL) return;
    if (server->state == DRAINING && server->working == 0) bn_engine_shutdown(server->engine, BN_SHUTDOWN_DRAIN, NULL);
    if (server->state == CANCELLING) bn_engine_shutdown(server->engine, BN_SHUTDOWN_CANCEL, NULL);
}

static void stop(struct server *server) {
    if (server->state == LOADING) {
        load_cancel();
        server->state = DRAINING;
        return;
    }
    bool drains = server->state == SERVING;
    server->state = drains ? DRAINING : CANCELLING;
    if (drains) http_stop_accepting(server);
    fprintf(stderr, "bn-server: %s what runs\n", drains ? "finishing (a second signal cancels)" : "cancelling");
    stop_engine(server);
}

// What the threads have done goes on here.
static void on_work(struct server *server) {
    struct exchange *ex;
    while ((ex = work_done(server)) != NULL) {
        route_over(ex);
        if (ex->gone || ex->streaming || ex->finished) http_wake(ex);
    }
    stop_engine(server);
}

static void on_signal(struct server *server, int fd) {
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof info) == sizeof info) stop(server);
}

// The model is loaded, or cannot be.
static bool on_loaded(struct server *server) {
    int status = load_finish(server);
    if (status != 0 || server->state != LOADING) {
        server->exit_status = server->state == LOADING ? status : 0;
        return false;
    }
    server->state = SERVING;
    fprintf(stderr, "bn-server: serving %s\n", server->name);
    return loop_watch(server, bn_engine_wait_fd(server->engine, NULL), EPOLLIN, &engine_tag);
}

static void look_at_engine(struct server *server, bool look) {
    struct epoll_event interest = {.events = look ? EPOLLIN : 0, .data.ptr = &engine_tag};
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, bn_engine_wait_fd(server->engine, NULL), &interest);
    server->pause_end_ms = look ? 0 : now_ms() + PAUSE_MS;
}

static bool on_engine(struct server *server) {
    size_t taken = 0;
    if (jobs_poll(server, &taken)) {
        // So many small packets cost more than a fast model does: a moment later, each has several tokens.
        if (taken >= MANY) look_at_engine(server, false);
        return true;
    }
    // Nothing will ever come. After a drain that is what was waited for; the descriptor stays readable.
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, bn_engine_wait_fd(server->engine, NULL), NULL);
    if (bn_engine_state(server->engine) != BN_STATE_DEAD) return true;
    fprintf(stderr, "bn-server: the engine died\n");
    server->exit_status = 1;
    return false;
}

static int timeout_of(struct server *server) {
    ull http = 0;
    bool ticks = server->clients != NULL || *server->options.otlp_endpoint != 0;
    int most = server->pause_end_ms != 0 ? PAUSE_MS : ticks ? 1000 : -1; // a second: the deadlines of clients, spans
    if (MHD_get_timeout(server->http, &http) != MHD_YES) return most;
    return most < 0 || http < (ull)most ? (int)http : most;
}

static bool dispatch(struct server *server, const struct epoll_event *event, int signals, int loaded) {
    void *of = event->data.ptr;
    if (of == &signals_tag) on_signal(server, signals);
    else if (of == &load_tag) {
        epoll_ctl(server->epoll, EPOLL_CTL_DEL, loaded, NULL);
        return on_loaded(server);
    } else if (of == &engine_tag) return on_engine(server);
    else if (of == &work_tag) on_work(server);
    else if (of == &otlp_tag) otlp_ready(server, event->events);
    else if (of != server->http) http_hang_up(of);
    return true;
}

// Clients are freed in MHD_run alone, so that none of `ready` is gone when its turn comes.
static bool turn(struct server *server, int signals, int loaded) {
    struct epoll_event ready[256];
    static uint64_t looked_ms;
    int count = epoll_wait(server->epoll, ready, 256, timeout_of(server));
    if (count < 0 && errno != EINTR) {
        perror("bn-server: epoll_wait");
        server->exit_status = 1;
        return false;
    }
    bool running = true;
    for (int i = 0; i < count; i++) running &= dispatch(server, &ready[i], signals, loaded);
    uint64_t now = now_ms();
    if (server->pause_end_ms != 0 && now >= server->pause_end_ms) look_at_engine(server, true);
    if (now - looked_ms >= 1000) {
        http_expire(server, now);
        looked_ms = now;
    }
    MHD_run(server->http);
    otlp_turn(server, now);
    bool over = server->state > SERVING && server->engine != NULL && server->exchanges == 0;
    return running && !(over && (server->state == CANCELLING || !otlp_busy()));
}

int loop_run(struct server *server) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    int loaded = load_start(server), work = work_start();
    if (signals < 0 || loaded < 0 || work < 0 || !loop_watch(server, signals, EPOLLIN, &signals_tag) ||
        !loop_watch(server, loaded, EPOLLIN, &load_tag) || !loop_watch(server, work, EPOLLIN, &work_tag)) {
        perror("bn-server: cannot start");
        return 1;
    }
    while (turn(server, signals, loaded)) {}
    work_stop();
    on_work(server);
    close(signals);
    close(loaded);
    close(work);
    return server->exit_status;
}
