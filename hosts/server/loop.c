// The one loop: signals, the loading thread, the engine's events, connections.
#include "connection.h"
#include "server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "load.h"
#include "models.h"
#include "trace.h"
#include "work.h"

// Tags of epoll events other than clients'.
static char signals_tag;

enum { MANY = 128, PAUSE_MS = 2, CANCEL_MS = 5000 };

// A drain refuses later submissions, so wait for the threads' work first. Work of gone clients is not awaited.
static void stop_engines(struct server *server) {
    bool submitted = server->working == server->abandoned;
    for (struct model *m = server->models; m != NULL; m = m->next) {
        if (m->stage != HERE) continue;
        if (server->state == DRAINING && submitted) bn_engine_shutdown(m->engine, BN_SHUTDOWN_DRAIN, NULL);
        if (server->state == CANCELLING) bn_engine_shutdown(m->engine, BN_SHUTDOWN_CANCEL, NULL);
    }
}

// Each step has an end, whatever clients and threads do: what runs is finished, then cancelled, then left. False: that.
static bool stop(struct server *server, bool signalled) {
    load_cancel();
    models_stop(server);
    bool drains = server->state <= SERVING;
    if (server->state == CANCELLING) {
        fprintf(stderr, "bn-server: leaving what runs: %s\n", signalled ? "another signal" : "cancelling took too long");
        return false;
    }
    if (drains) clients_stop_accepting(server);
    server->state = drains ? DRAINING : CANCELLING;
    server->end_ms = now_ms() + (drains ? server->options.drain_timeout_s * 1000 : CANCEL_MS);
    fprintf(stderr, "bn-server: %s what runs\n", drains ? "finishing (a second signal cancels)" : "cancelling");
    stop_engines(server);
    return true;
}

static void on_work(struct server *server) {
    for (struct exchange *ex; (ex = work_done()) != NULL;) http_worked(ex);
    stop_engines(server);
}

static bool on_signal(struct server *server, int fd) {
    struct signalfd_siginfo info;
    bool goes_on = true;
    while (goes_on && read(fd, &info, sizeof info) == sizeof info) goes_on = stop(server, true);
    return goes_on;
}

static void look_at_engine(struct server *server, struct model *m, bool look) {
    poll_set(server->epoll, EPOLL_CTL_MOD, bn_engine_wait_fd(m->engine, NULL), look ? EPOLLIN : 0, m);
    m->pause_end_ms = look ? 0 : now_ms() + PAUSE_MS;
}

static bool on_engine(struct server *server, struct model *m) {
    size_t taken = 0;
    if (m->stage != HERE) return true; // it was let go in this turn
    if (jobs_poll(m, &taken)) {
        // So many small packets cost more than a fast model does: wait a moment, until each has several tokens.
        if (taken >= MANY) look_at_engine(server, m, false);
        return true;
    }
    // There will be no more events. After a drain this was expected; the descriptor stays readable.
    poll_set(server->epoll, EPOLL_CTL_DEL, bn_engine_wait_fd(m->engine, NULL), 0, NULL);
    uint32_t state;
    if (bn_engine_state(m->engine, &state) != BN_OK || state != BN_STATE_DEAD) return true;
    fprintf(stderr, "bn-server: the engine died\n");
    server->exit_status = 1;
    return false;
}

// Whether an engine is left alone for a moment; those whose time is over are looked at again.
static bool pauses(struct server *server, uint64_t now) {
    bool some = false;
    for (struct model *m = server->models; m != NULL; m = m->next) {
        if (m->pause_end_ms == 0 || m->stage != HERE) continue;
        if (now >= m->pause_end_ms) look_at_engine(server, m, true);
        else some = true;
    }
    return some;
}

static int least(int a, int b) {
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

// Timeout in milliseconds; -1 if nothing can become due.
static int timeout_of(struct server *server) {
    bool ticks = server->state > SERVING || *server->options.otlp_endpoint != 0; // the end of a step, spans
    int most = pauses(server, now_ms()) ? PAUSE_MS : ticks ? 1000 : models_timeout(server);
    if (server->end_ms != 0 && server->end_ms < now_ms() + 1000) most = least(most, 10);
    return least(most, clients_timeout(server));
}

static bool dispatch(struct server *server, const struct epoll_event *event, int signals) {
    void *of = event->data.ptr;
    if (of == &signals_tag) return on_signal(server, signals);
    if (of == &load_tag) return models_loaded(server);
    struct model *model = models_tagged(server, of);
    if (model != NULL) return on_engine(server, model);
    if (of == &work_tag) on_work(server);
    else if (of == &otlp_tag) otlp_ready(server, event->events);
    else if (of == &listener_tag) clients_accept(server);
    else client_ready(of, event->events);
    return true;
}

// Returns true if no client waits for anything.
static bool is_over(const struct server *server) {
    if (server->state <= SERVING || load_busy() || server->exchanges > server->abandoned || server->lingering.count > 0) return false;
    return server->state == CANCELLING || !otlp_busy();
}

// Clients are freed only in clients_turn, so that every entry of `ready` is valid when its turn comes.
static bool turn(struct server *server, int signals) {
    struct epoll_event ready[MANY]; // not more: the engine's events come in between
    static uint64_t looked_ms;
    int count = epoll_wait(server->epoll, ready, MANY, timeout_of(server));
    if (count < 0 && errno != EINTR) {
        perror("bn-server: epoll_wait");
        server->exit_status = 1;
        return false;
    }
    bool running = true;
    for (int i = 0; i < count; i++) running &= dispatch(server, &ready[i], signals);
    uint64_t now = now_ms();
    if (server->end_ms != 0 && now >= server->end_ms) running &= stop(server, false);
    if (now - looked_ms >= 1000 || server->state > SERVING) {
        clients_expire(server, now);
        looked_ms = now;
    }
    clients_turn(server);
    models_turn(server); // after requests have let go of theirs
    otlp_turn(server, now);
    return running && !is_over(server);
}

int loop_run(struct server *server) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    int loaded = load_start(), work = work_start(), epoll = server->epoll;
    if (signals < 0 || loaded < 0 || work < 0 || !poll_set(epoll, EPOLL_CTL_ADD, signals, EPOLLIN, &signals_tag) ||
        !poll_set(epoll, EPOLL_CTL_ADD, loaded, EPOLLIN, &load_tag) ||
        !poll_set(epoll, EPOLL_CTL_ADD, work, EPOLLIN, &work_tag) ||
        (!server->several && !load_begin(server->models))) {
        perror("bn-server: cannot start");
        return 1;
    }
    while (turn(server, signals)) {}
    clients_close(server);
    if (server->exchanges > 0 || load_busy()) {
        fprintf(stderr, "bn-server: ending while a thread is still at work\n");
        _exit(server->exit_status);
    }
    work_stop();
    close(signals);
    close(loaded);
    close(work);
    return server->exit_status;
}
