// Opens the model and makes the engine on a thread that ends then, so that the server can say meanwhile that it loads.
#ifndef BN_SERVER_LOAD_H
#define BN_SERVER_LOAD_H

#include "server.h"

extern char load_tag; // of the descriptor in the loop

// A descriptor that is readable at the end of loading, or -1.
int load_start(struct server *server);
void load_cancel(void);
// Joins the thread. 0, or the exit status.
int load_finish(struct server *server);

#endif
