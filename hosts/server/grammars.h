// Finds requests whose grammar may take seconds to compile.
#ifndef BN_SERVER_GRAMMARS_H
#define BN_SERVER_GRAMMARS_H

#include "server.h"

// The queue for a request. `*grammar` becomes the hash of its grammar, or is unchanged.
enum line grammar_line(const struct exchange *ex, uint64_t *grammar);
// Records how long submitting or refusing a request with this grammar, or with none (0), took.
void grammar_took(uint64_t grammar, bool submitted, uint64_t ms);

#endif
