// The command line and the environment.
#ifndef BN_SERVER_OPTIONS_H
#define BN_SERVER_OPTIONS_H

#include <stdint.h>

struct options {
    const char *model, *model_name, *adapters, *draft_model, *speculation, *json_whitespace, *device, *host, *api_key, *otlp_endpoint, *rerank_template;
    uint64_t any_model, mtp, port;
    uint64_t threads, max_batch, queue, queue_tokens, memory_limit, kv_cache, snapshots, snapshot_interval, adapter_bytes, max_sequence, target_itl_ms;
    uint64_t request_timeout_ms;
    uint64_t max_body, max_header, max_depth, max_items, max_connections, max_unread, max_memory;
    uint64_t receive_timeout_s, idle_timeout_s, drain_timeout_s;
};

// Fills in defaults, the environment, then the command line. Prints and exits on --help, --version and mistakes.
void options_read(struct options *options, int argc, char **argv);

// BN_JSON_* flags for a white-space name, 0 for an empty one. Returns -1 for an unknown name.
int64_t json_whitespace_of(const char *name);

// BN_SPECULATION_* for a name, BN_SPECULATION_DEFAULT for an empty one. Returns -1 for an unknown name.
int32_t speculation_of(const char *name);

#endif
