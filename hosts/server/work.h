// Threads for what takes long with a long body, so that the loop serves others meanwhile.
#ifndef BN_SERVER_WORK_H
#define BN_SERVER_WORK_H

#include "server.h"

extern char work_tag; // of the descriptor in the loop

// A descriptor that is readable while work is done that `work_done` has not returned; -1: it cannot start.
int work_start(void);
// Does `todo` at once where the body is short, and has no grammar and no list of pairs. Otherwise a thread runs it, and
// until it is done, `ex->working` is set and the exchange stays.
void work_do(struct exchange *ex, struct work todo);
// Ends one work that a thread has run, and returns its exchange. NULL: there is none.
struct exchange *work_done(struct server *server);
// Ends the threads once all is run.
void work_stop(void);

#endif
