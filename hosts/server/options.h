// The command line and the environment.
#ifndef BN_SERVER_OPTIONS_H
#define BN_SERVER_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

struct options {
    const char *model, *models, *model_name, *adapters, *draft_model, *speculation, *kv_type, *json_whitespace, *device, *closed_schemas, *host, *cors, *api_key, *otlp_endpoint, *rerank_template;
    uint64_t any_model, mtp, skip_zeros, port, max_loaded, models_memory, idle_unload_s, idle_release_s;
    uint64_t threads, max_batch, queue, queue_tokens, memory_limit, kv_cache, snapshots, snapshot_interval, adapter_bytes, context, target_itl_ms;
    uint64_t request_timeout_ms, reasoning_budget;
    uint64_t keep_responses, max_body, max_header, max_depth, max_items, max_connections, max_unread, max_memory;
    uint64_t receive_timeout_s, idle_timeout_s, drain_timeout_s;
};

// Fills in defaults, the environment, then the command line. Prints and exits on --help, --version and mistakes.
void options_read(struct options *options, int argc, char **argv);

// Sets an option of one model, "max-batch=4". Prints and exits if it is not one.
void options_of_model(struct options *options, char *item);

// BN_JSON_* flags for a white-space name, 0 for an empty one. Returns -1 for an unknown name.
int64_t json_whitespace_of(const char *name);

// For which schemas BN_JSON_CLOSED is set: 0 for none, 1 for those of tools, 2 for all. Returns -1 for an unknown name.
int closed_schemas_of(const char *name);

// The message with the names of options in place of the engine's names of their fields.
void options_name(char *out, size_t room, const char *message);

// BN_SPECULATION_* for a name, BN_SPECULATION_DEFAULT for an empty one. Returns -1 for an unknown name.
int32_t speculation_of(const char *name);

// BN_KV_TYPE_* for a name. Returns -1 for an unknown one.
int32_t kv_type_of(const char *name);

#endif
