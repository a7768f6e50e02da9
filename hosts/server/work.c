#include "work.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    SHORT = 4 << 10,  // bytes of text that the loop reads and tokenizes itself: some 0.5 ms
    LONG = 256 << 10, // longer ones use the queue of long texts: 30 ms
    BUCKETS = 256,    // of clients' addresses
    MS_OF_KIB = 64,   // a client waits this much longer for each KiB that it sent
    NICENESS = 10     // of threads that may run for seconds beside the engine's
};

char work_tag;

static struct queue {
    int threads, niceness;
    pthread_cond_t more;
    struct work *first;
} lines[] = {
    [QUICK] = {2, 0, PTHREAD_COND_INITIALIZER, NULL},
    [SLOW] = {2, NICENESS, PTHREAD_COND_INITIALIZER, NULL},
    [KNOWN] = {2, 0, PTHREAD_COND_INITIALIZER, NULL},
    [GRAMMAR] = {2, NICENESS, PTHREAD_COND_INITIALIZER, NULL},
};
enum { LINES = sizeof lines / sizeof *lines, THREADS = 8 };

static struct {
    pthread_t threads[THREADS];
    int started, ready;
    pthread_mutex_t lock; // for the fields below, and for the queues
    struct work *done;
    bool stops;
    uint64_t used_ms[BUCKETS], halved_ms; // of the threads, lately
} work = {.lock = PTHREAD_MUTEX_INITIALIZER};

// -- lines ------------------------------------------------------------------------------------------

static int64_t score(const struct work *w, uint64_t now) {
    return (int64_t)work.used_ms[w->bucket % BUCKETS] + (int64_t)(w->bytes >> 10) * MS_OF_KIB - (int64_t)(now - w->since_ms);
}

// Recorded use decays by half each second.
static void forget_use(uint64_t now) {
    uint64_t seconds = (now - work.halved_ms) / 1000;
    if (seconds == 0) return;
    work.halved_ms = now;
    for (int i = 0; i < BUCKETS; i++) work.used_ms[i] = seconds < 64 ? work.used_ms[i] >> seconds : 0;
}

static void put(struct work **first, struct work *w) {
    while (*first != NULL) first = &(*first)->next;
    w->next = NULL;
    *first = w;
}

static struct work *take(struct queue *line) {
    struct work **best = &line->first, *w;
    uint64_t now = now_ms();
    forget_use(now);
    for (struct work **at = &line->first; *at != NULL; at = &(*at)->next)
        if (score(*at, now) < score(*best, now)) best = at;
    if ((w = *best) != NULL) *best = w->next;
    return w;
}

// Returns once it is told to stop and no work is left.
static void *run(void *context) {
    struct queue *line = context;
    uint64_t one = 1;
    if (line->niceness > 0) setpriority(PRIO_PROCESS, 0, line->niceness); // of this thread, on Linux
    pthread_mutex_lock(&work.lock);
    for (;;) {
        struct work *w = take(line);
        if (w == NULL && work.stops) break;
        if (w == NULL) {
            pthread_cond_wait(&line->more, &work.lock);
            continue;
        }
        pthread_mutex_unlock(&work.lock);
        uint64_t begin = now_ms();
        w->run(w);
        w->took_ms = now_ms() - begin;
        pthread_mutex_lock(&work.lock);
        work.used_ms[w->bucket % BUCKETS] += w->took_ms;
        put(&work.done, w);
        if (write(work.ready, &one, sizeof one) != sizeof one) perror("bn-server: eventfd");
    }
    pthread_mutex_unlock(&work.lock);
    return NULL;
}

// -- the loop's side --------------------------------------------------------------------------------

int work_start(void) {
    work.ready = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (work.ready < 0) return -1;
    for (int l = 0; l < LINES; l++)
        for (int i = 0; i < lines[l].threads; i++, work.started++)
            if (pthread_create(&work.threads[work.started], NULL, run, &lines[l]) != 0) return -1;
    return work.ready;
}

enum line work_line(size_t bytes) {
    return bytes < SHORT ? AT_ONCE : bytes < LONG ? QUICK : SLOW;
}

void work_do(struct work *w, enum line line, size_t bytes) {
    if (line == AT_ONCE) {
        w->run(w);
        w->done(w);
        return;
    }
    struct exchange *ex = w->exchange;
    if (ex->working++ == 0) ex->server->working++;
    w->bucket = ex->bucket;
    w->bytes = bytes;
    w->since_ms = now_ms();
    pthread_mutex_lock(&work.lock);
    put(&lines[line].first, w);
    pthread_cond_signal(&lines[line].more);
    pthread_mutex_unlock(&work.lock);
}

static void nothing(struct work *w) {
    (void)w;
}

// Threads free the data, since that may take long too.
void work_abandon(struct exchange *ex, void (*let_go)(struct work *work)) {
    ex->server->abandoned++;
    pthread_mutex_lock(&work.lock);
    for (int l = 0; l < LINES; l++) {
        for (struct work **at = &lines[l].first; *at != NULL;) {
            struct work *w = *at;
            bool own = w->exchange == ex && w->run != let_go && w->run != nothing;
            if (!own) {
                at = &w->next;
                continue;
            }
            w->run = w == &ex->work ? let_go : nothing;
            w->bytes = 0;
            if (l == QUICK) continue;
            *at = w->next;
            put(&lines[QUICK].first, w);
            pthread_cond_signal(&lines[QUICK].more);
        }
    }
    pthread_mutex_unlock(&work.lock);
}

struct exchange *work_done(void) {
    uint64_t count;
    pthread_mutex_lock(&work.lock);
    struct work *w = work.done;
    if (w != NULL) work.done = w->next;
    else if (read(work.ready, &count, sizeof count) < 0) count = 0; // nothing to read is fine
    pthread_mutex_unlock(&work.lock);
    if (w == NULL) return NULL;
    struct exchange *ex = w->exchange;
    if (--ex->working == 0) ex->server->working--;
    w->done(w); // it may have more work
    return ex;
}

void work_stop(void) {
    pthread_mutex_lock(&work.lock);
    work.stops = true;
    for (int l = 0; l < LINES; l++) pthread_cond_broadcast(&lines[l].more);
    pthread_mutex_unlock(&work.lock);
    while (work.started > 0) pthread_join(work.threads[--work.started], NULL);
}
