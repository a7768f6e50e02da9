#include "work.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { THREADS = 2, LONG_BODY = 16 << 10 };

char work_tag;

struct line {
    struct exchange *first, *last;
};

static struct {
    pthread_t threads[THREADS];
    int started, ready;
    pthread_mutex_t lock; // for what follows
    pthread_cond_t more;
    struct line todo, done;
    bool stops;
} work = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static void put(struct line *line, struct exchange *ex) {
    ex->work.next = NULL;
    if (line->first == NULL) line->first = ex;
    else line->last->work.next = ex;
    line->last = ex;
}

static struct exchange *take(struct line *line) {
    struct exchange *ex = line->first;
    if (ex != NULL) line->first = ex->work.next;
    return ex;
}

// Ends once it is told to and nothing is left to do.
static void *run(void *context) {
    uint64_t one = 1;
    (void)context;
    pthread_mutex_lock(&work.lock);
    for (;;) {
        struct exchange *ex = take(&work.todo);
        if (ex == NULL && work.stops) break;
        if (ex == NULL) {
            pthread_cond_wait(&work.more, &work.lock);
            continue;
        }
        pthread_mutex_unlock(&work.lock);
        ex->work.run(ex);
        pthread_mutex_lock(&work.lock);
        put(&work.done, ex);
        if (write(work.ready, &one, sizeof one) != sizeof one) perror("bn-server: eventfd");
    }
    pthread_mutex_unlock(&work.lock);
    return NULL;
}

int work_start(void) {
    work.ready = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (work.ready < 0) return -1;
    for (; work.started < THREADS; work.started++)
        if (pthread_create(&work.threads[work.started], NULL, run, NULL) != 0) return -1;
    return work.ready;
}

void work_do(struct exchange *ex, struct work todo) {
    ex->work = todo;
    // A grammar may take long to compile, also that of tools.
    bool grammar = ex->ask.params.constraint_kind != BN_CONSTRAINT_NONE || ex->ask.has_tools;
    bool pairs = ex->ask.queries != NULL && ex->ask.prompts > 1; // a short body may have many
    if (buffer_length(&ex->body) < LONG_BODY && !grammar && !pairs) {
        todo.run(ex);
        todo.done(ex);
        return;
    }
    ex->working = true;
    ex->server->working++;
    pthread_mutex_lock(&work.lock);
    put(&work.todo, ex);
    pthread_cond_signal(&work.more);
    pthread_mutex_unlock(&work.lock);
}

struct exchange *work_done(struct server *server) {
    uint64_t count;
    pthread_mutex_lock(&work.lock);
    struct exchange *ex = take(&work.done);
    if (ex == NULL && read(work.ready, &count, sizeof count) < 0) count = 0; // nothing to read is fine
    pthread_mutex_unlock(&work.lock);
    if (ex == NULL) return NULL;
    ex->working = false;
    server->working--;
    ex->work.done(ex);
    return ex;
}

void work_stop(void) {
    pthread_mutex_lock(&work.lock);
    work.stops = true;
    pthread_cond_broadcast(&work.more);
    pthread_mutex_unlock(&work.lock);
    while (work.started > 0) pthread_join(work.threads[--work.started], NULL);
}
