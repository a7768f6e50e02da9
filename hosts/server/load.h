// Opens a model and makes its engine on a thread, so that the server answers meanwhile; and lets go of one. One at a time.
#ifndef BN_SERVER_LOAD_H
#define BN_SERVER_LOAD_H

#include "models.h"

extern char load_tag; // of the descriptor in the loop

// Returns a descriptor that is readable when a thread is done, or -1.
int load_start(void);
// Begins to load a model, or to let go of it. False: there is no thread for it.
bool load_begin(struct model *model);
// A thread is at work.
bool load_busy(void);
void load_cancel(void);
// Joins the thread. Returns its model, with what it loaded; `error` says whether that failed.
struct model *load_end(bn_error *error);

#endif
