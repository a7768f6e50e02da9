// Opens the model and makes the engine on a temporary thread, so that the server can report meanwhile that it is
// loading.
#ifndef BN_SERVER_LOAD_H
#define BN_SERVER_LOAD_H

#include "server.h"

extern char load_tag; // of the descriptor in the loop

// Returns a descriptor that is readable at the end of loading, or -1.
int load_start(struct server *server);
void load_cancel(void);
bool load_over(void); // the thread was joined
// Joins the thread. Returns 0, or the exit status.
int load_finish(struct server *server);

#endif
