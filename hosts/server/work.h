// Threads for long work, so that the loop serves other clients meanwhile. Each line has its own threads, so nothing
// quick waits for something slow. Within a line, clients that used its threads least and ask for least come first, as
// do those that have waited longest.
#ifndef BN_SERVER_WORK_H
#define BN_SERVER_WORK_H

#include "server.h"

extern char work_tag; // of the descriptor in the loop

// Returns a descriptor that is readable while `work_done` has not seen all finished work; -1 if it cannot start.
int work_start(void);
// Does `work` at once if `line` is AT_ONCE. Otherwise a thread runs it; until it is done, `work->exchange->working`
// counts it and the exchange stays.
void work_do(struct work *work, enum line line, size_t bytes);
// The line for this many bytes of text.
enum line work_line(size_t bytes);
// Called when the exchange's client is gone: work that has not begun is skipped; `let_go` runs in place of `ex->work`.
void work_abandon(struct exchange *ex, void (*let_go)(struct work *work));
// Finishes one work that the threads have run. Returns its exchange, or NULL if there was none.
struct exchange *work_done(void);
// Ends the threads, which have no work left.
void work_stop(void);

#endif
