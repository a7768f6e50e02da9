// The models that clients may ask for: which are loaded, which requests hold them, which wait. The loop alone changes
// this. One model at a time is loaded or let go, on a thread of load.c.
#ifndef BN_SERVER_MODELS_H
#define BN_SERVER_MODELS_H

#include "server.h"

enum stage { AWAY, COMING, HERE, GOING };

struct model {
    struct model *next;
    const char *name;       // for clients
    struct options options; // the server's, with the model's own
    enum stage stage;
    bn_model *handle; // these four are set while it is HERE
    bn_engine *engine;
    bn_model_info info;
    struct adapter *adapters;
    uint64_t created;      // when its files were written, in seconds since 1970
    uint64_t bytes;        // of its files
    size_t users;          // requests that hold it
    uint64_t used_ms;      // when the last of them let go of it
    uint64_t keep_ms;      // how long it stays then, if the last one said so; UINT64_MAX: it did not
    uint64_t pause_end_ms; // until then the loop does not look at the engine; 0: it does
    bool leaves;           // another model needs its room: new requests wait
    bool short_of_memory;  // the last try to load it ended so, and nothing was let go since
};

// Makes the list. False after an error on stderr.
bool models_start(struct server *server);
// The model of this name, or that with an adapter of this name. NULL: there is none.
struct model *models_find(const struct server *server, const char *name);
// Chooses the model of a request whose body names `name` (NULL: none), and goes on with it (route_go_on) once it is
// loaded. Or the request fails.
void models_take(struct exchange *ex, const char *name);
// The request is over.
void models_leave(struct exchange *ex);
// Loads what requests wait for, and lets go of what is idle. Call it at the end of each turn.
void models_turn(struct server *server);
// A thread of load.c is done. False: the server cannot go on.
bool models_loaded(struct server *server);
// Fails what waits for a model, as the server ends.
void models_stop(struct server *server);
// When something may become due: a timeout in milliseconds, or -1.
int models_timeout(const struct server *server);
// How long a model stays if nobody asks for it, UINT64_MAX: for good.
uint64_t models_left_ms(const struct server *server, const struct model *m);
// The loop's part: events of the engine whose tag this is. NULL: it is none's.
struct model *models_tagged(const struct server *server, const void *tag);

#endif
