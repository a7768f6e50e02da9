/**
 * @file bn_engine.h
 * bn_engine: a continuous-batching LLM engine behind a C ABI.
 *
 * Generated from src/ffi by cbindgen: change it there and run `make header`.
 *
 * A program makes an engine, submits requests from any thread, and takes their events:
 *
 *     bn_engine_config config;
 *     bn_engine_config_init(&config, sizeof config);
 *     config.model_path = BN_STRING("model.gguf");
 *     bn_engine *engine;
 *     bn_error error;
 *     if (bn_engine_create(&config, &engine, &error) != BN_OK) return puts(error.message);
 *
 *     bn_request_params params;
 *     bn_request_params_init(&params, sizeof params);
 *     params.prompt = BN_STRING("Once upon a time");
 *     bn_request request;
 *     if (bn_submit(engine, &params, &request, &error) != BN_OK) return puts(error.message);
 *
 *     bn_event event = {0};
 *     size_t count;
 *     while (event.kind != BN_EVENT_COMPLETED) {
 *         if (bn_poll(engine, request, &event, sizeof event, 1, BN_NO_LIMIT, &count, &error))
 *             return puts(error.message);
 *         fwrite(event.text.data, 1, event.text.length, stdout);
 *         fwrite(event.message.data, 1, event.message.length, stderr); // why it failed, if it did
 *         bn_events_free(&event, sizeof event, count);
 *     }
 *     bn_request_free(engine, request, NULL);
 *     bn_engine_free(engine);
 *
 * An engine thread for each device runs the active requests together. A step is one forward pass,
 * with a token of each running answer and a chunk of new prompts. Each section has one subject, and
 * types stand before what takes them. For a program like this, read Engines, Requests and Events.
 *
 * These rules hold for every call:
 *
 * **Errors.** `BN_OK` is 0; errors are negative. A last parameter `bn_error *` may be NULL; it gets
 * the reason in words. On an error nothing else is written, unless the comment says so. Each call
 * with a status may return `BN_ERR_INVALID_ARGUMENT`, `BN_ERR_OUT_OF_MEMORY` and `BN_ERR_INTERNAL`,
 * and each on an engine `BN_ERR_FORKED`; comments name the others.
 *
 * **Threads.** Any thread may make any call at any time, also from a callback. Calls marked
 * [not from a callback] may wait, those of sessions and the cache for the end of a step, and return
 * `BN_ERR_REENTRANT` in a callback of any engine. No lock is held in a callback. It must return: no
 * `longjmp`, no C++ exception. No call is for signal handlers: let one set a flag, and poll with a
 * finite timeout.
 *
 * **Buffers.** A call that writes a text, bytes, ids or a vector to a buffer of `capacity` elements
 * writes the number that it needs to `*length` or `*count`. If that is more, it returns
 * `BN_ERR_BUFFER_TOO_SMALL` and writes nothing else. NULL and 0 ask for the number alone. Calls for
 * events write up to `capacity`, and their number to `*count`.
 *
 * **Ownership.** The library copies what you pass in, or needs it only until the call returns. What
 * it returns belongs to it; the comment says until when it is valid. What a callback gets is valid
 * until it returns. A `const char *` is a static NUL-terminated string. What you own ends with the
 * `_free` of its kind: engines, models, adapters, requests, sessions and events. Handles are only
 * names of engines, models and adapters: looked up, never dereferenced, never reused, refused when
 * freed. Freeing NULL does nothing.
 *
 * **Growth.** Structs with a `struct_size` may get new fields at their end, and the library touches
 * no more of one than its caller compiled: `bn_X_init(&x, sizeof x)` sets the size and the
 * defaults, and arrays are passed with the size of an element, `sizeof(bn_X)`. A caller may declare
 * any number of whole fields from the beginning on. A struct inside of another grows into its
 * `reserved` fields, so that it keeps its size; a struct with neither never grows. Unknown and
 * reserved fields must be 0 and unknown flags unset, or the call fails with `BN_ERR_UNSUPPORTED`.
 * Numbers of constants are never reused. Ignore kinds that you do not know; a kind that the library
 * does not know is `BN_ERR_INVALID_ARGUMENT`.
 *
 * **Fields.** `X_count` is the number of elements of `X`, and `X_context` is passed to the callback
 * `X`. The default of a field is 0, NULL or a text that is not set, and asks for nothing, unless
 * its comment says otherwise: a limit of 0 is no limit. Where 0 has a meaning of its own,
 * `BN_NO_LIMIT` is none. A truth value is an `int32_t`, 0 or 1.
 *
 * **Fork.** A child process may use models of its parent, and open models and make engines of its
 * own. It cannot use engines of its parent.
 *
 * **Host safety.** A panic in the library becomes `BN_ERR_INTERNAL` or `BN_ERR_ENGINE_DEAD`. The
 * library never prints, exits, or changes signal handlers. No call is a cancellation point of
 * pthread_cancel. A caller needs 64 KiB of stack. Model files are mapped: replace one that is open
 * by renaming another; if it is truncated, the process gets SIGBUS. docs/api.md and SECURITY.md say
 * more.
 */

#ifndef BN_ENGINE_H
#define BN_ENGINE_H

#include <stddef.h>
#include <stdint.h>

/** A `bn_string.length`: `data` ends with a NUL byte, which is not part of the text. */
#define BN_NUL_TERMINATED (SIZE_MAX)

/** Initializer of a bn_string from a string literal: `bn_string s = BN_STRING_INIT("text");` */
#define BN_STRING_INIT(literal) {"" literal, sizeof("" literal) - 1}

/** @def BN_STRING
 * A bn_string from a string literal, as an expression: `params.prompt = BN_STRING("text");` */
/** @def BN_TEXT
 * A bn_string from a pointer to NUL-terminated text, as an expression. */
#ifdef __cplusplus
#define BN_STRING(literal) (bn_string BN_STRING_INIT(literal))
#define BN_TEXT(pointer) (bn_string{(pointer), BN_NUL_TERMINATED})
extern "C" {
#else
#define BN_STRING(literal) ((bn_string)BN_STRING_INIT(literal))
#define BN_TEXT(pointer) ((bn_string){(pointer), BN_NUL_TERMINATED})
#endif

/** A LoRA adapter of an engine, from `bn_adapter_open` to `bn_adapter_free`. */
typedef struct bn_adapter bn_adapter;

/** An engine: the threads, KV cache and requests of one model, from `bn_engine_create` to
 * `bn_engine_free`. */
typedef struct bn_engine bn_engine;

/** A model: weights, tokenizer and chat template, for any number of engines. Immutable. From
 * `bn_model_open` or `bn_engine_model` to `bn_model_free`. */
typedef struct bn_model bn_model;

typedef struct bn_string bn_string;
typedef struct bn_error bn_error;
typedef struct bn_engine_config bn_engine_config;
typedef struct bn_chat_message bn_chat_message;
typedef struct bn_chat bn_chat;
typedef struct bn_logit_bias bn_logit_bias;
typedef struct bn_logits bn_logits;
typedef struct bn_sampling bn_sampling;
typedef struct bn_constraint bn_constraint;
typedef struct bn_embedding_params bn_embedding_params;
typedef struct bn_trace bn_trace;
typedef struct bn_question bn_question;
typedef struct bn_decision bn_decision;
typedef struct bn_decision_option bn_decision_option;
typedef struct bn_picture bn_picture;
typedef struct bn_request_params bn_request_params;
typedef struct bn_request_info bn_request_info;
typedef struct bn_tool_call bn_tool_call;
typedef struct bn_logprob bn_logprob;
typedef struct bn_event bn_event;
typedef struct bn_model_config bn_model_config;
typedef struct bn_model_info bn_model_info;
typedef struct bn_kv_event bn_kv_event;
typedef struct bn_latency bn_latency;
typedef struct bn_lengths bn_lengths;
typedef struct bn_stats bn_stats;
typedef struct bn_span bn_span;

/* -- Texts, errors, versions ------------------------------------------------------------------- */

enum {
    /** Success. */
    BN_OK = 0,
    /** An argument is NULL, out of range, not UTF-8, of a wrong size, or not a live handle. */
    BN_ERR_INVALID_ARGUMENT = -1,
    /** No such session, or no such request: never issued, or freed. */
    BN_ERR_NOT_FOUND = -2,
    /** A field, flag, model or file feature that this version does not support. */
    BN_ERR_UNSUPPORTED = -3,
    /** Another thread is polling this request, or every KV block is in use. */
    BN_ERR_BUSY = -4,
    /** `queue_capacity` or `queue_token_capacity` is reached, or too many constraints wait to be
     * compiled. */
    BN_ERR_QUEUE_FULL = -5,
    /** The system refused an allocation or a thread. */
    BN_ERR_OUT_OF_MEMORY = -6,
    /** `memory_limit_bytes`, or the size of the KV cache, does not allow it. */
    BN_ERR_MEMORY_LIMIT = -7,
    /** A file cannot be opened or mapped, or is not a regular file. */
    BN_ERR_IO = -8,
    /** The model's files are malformed or truncated, or it computed a value that is not a
     * number. */
    BN_ERR_BAD_MODEL = -9,
    /** The call belongs to the other delivery mode, or to a feature that is off. */
    BN_ERR_WRONG_MODE = -10,
    /** The call is not allowed from a callback. */
    BN_ERR_REENTRANT = -11,
    /** The engine is shutting down or has shut down. */
    BN_ERR_SHUTDOWN = -12,
    /** The engine's thread died of a bug, or its last device was lost; every request has its last
     * event. */
    BN_ERR_ENGINE_DEAD = -13,
    /** The engine was made before this process was forked. */
    BN_ERR_FORKED = -14,
    /** Ended by a progress callback, a cancel or a shutdown. */
    BN_ERR_CANCELLED = -15,
    /** The prompt leaves no room for a new token, or a text is longer than the library takes. */
    BN_ERR_TOO_LONG = -16,
    /** The caller's buffer is too small. */
    BN_ERR_BUFFER_TOO_SMALL = -17,
    /** A bug in this library; the message says where. */
    BN_ERR_INTERNAL = -18,
    /** The request's timeout passed. */
    BN_ERR_TIMED_OUT = -19,
    /** The request's last event was polled before. */
    BN_ERR_FINISHED = -20,
};

/** The ABI's version, changed only if programs compiled against an older header could break.
 * Compare it with `bn_abi_version()`. */
#define BN_ABI_VERSION (1u)

/** This header's version of the library; `bn_version()` is the linked one's. */
#define BN_VERSION_MAJOR (0u)
/** See `BN_VERSION_MAJOR`. */
#define BN_VERSION_MINOR (1u)
/** See `BN_VERSION_MAJOR`. */
#define BN_VERSION_PATCH (0u)

/** The result of a call: `BN_OK` or a negative `BN_ERR_*`. */
typedef int32_t bn_status;

/** UTF-8 text. What you pass may have the length `BN_NUL_TERMINATED`. What the library returns has
 * no NUL at its end, and its `data` is never NULL. */
struct bn_string {
    /** NULL with a length of 0: not set. `BN_TEXT(NULL)` is an error. */
    const char *data;
    /** In bytes. */
    size_t length;
};

/** The reason why a call failed. Each call overwrites it; it needs no initialization. */
struct bn_error {
    /** The status that the call returned. */
    int32_t status;
    /** UTF-8 that ends with a NUL; a long message loses its middle. Empty after success. */
    char message[508];
};

/** The name of a status, like `BN_ERR_QUEUE_FULL`, or `BN_ERR_UNKNOWN`. */
const char *bn_status_name(bn_status status);

/** The meaning of a status, in English. */
const char *bn_status_message(bn_status status);

/** The version of the linked library, like `0.1.0`. */
const char *bn_version(void);

/** The `BN_ABI_VERSION` of the linked library. */
uint32_t bn_abi_version(void);

/* -- Handles and callbacks --------------------------------------------------------------------- */

/** For `bn_poll`: any request without `BN_REQUEST_POLL_BY_ID`. For `bn_cancel`: all requests. */
#define BN_ANY (9223372036854775807ull)

/** No limit, where 0 has a meaning of its own: the `timeout_ms` of `bn_poll`, and fields that
 * name it. */
#define BN_NO_LIMIT (4294967295u)

/** No log. */
#define BN_LOG_OFF (0u)
/** The engine or a request failed, and the caller did not cause it. */
#define BN_LOG_ERROR (1u)
/** Something is wrong, and the message says how the library goes on. */
#define BN_LOG_WARN (2u)
/** Loading, start and shutdown. */
#define BN_LOG_INFO (3u)
/** Details for work on the library. */
#define BN_LOG_DEBUG (4u)

/** The id of a request, never 0 or `BN_ANY`, valid for its engine until `bn_request_free`. A
 * stale or foreign one gives `BN_ERR_NOT_FOUND`. */
typedef uint64_t bn_request;

/** Receives one event, on the engine's delivery thread: one call at a time, and the events of a
 * request in order. Other events wait for the call; the model does not. */
typedef void (*bn_event_callback)(const bn_event *event, void *context);

/** Receives one line of the log, on any thread, also inside the host's own calls, and possibly on
 * several threads at once. It is not called after `bn_engine_free`, or a model's `bn_model_open`,
 * has returned. */
typedef void (*bn_log_callback)(uint32_t level, bn_string message, void *context);

/** Receives the progress of loading: `fraction` from 0 to 1, and what is being loaded. It runs on a
 * thread of the library. Anything but 0 ends `bn_model_open` with `BN_ERR_CANCELLED`. */
typedef int32_t (*bn_progress_callback)(float fraction, bn_string what, void *context);

/** Changes a request's logits before each of its tokens, before biases, penalties, samplers and
 * log probabilities. Anything but 0 ends the request as `BN_FINISH_FAILED` with
 * `BN_ERR_CANCELLED`.
 *
 * It runs on threads of the engine, for several requests at a time, and all requests wait for
 * it. The output is the same in every batch only if it depends on `*row` alone. Keep it and its
 * context alive until the request's last event, or, if the request is freed before, until
 * `bn_engine_free` has returned. */
typedef int32_t (*bn_logits_callback)(const bn_logits *row, void *context);

/** Receives the spans of an ended request: one for each phase that it reached, in order, before or
 * after its last event. It is not called if the engine died, or after `bn_engine_free` has
 * returned. It runs on the engine thread of the request's device, whose requests wait for it. */
typedef void (*bn_span_callback)(const bn_span *span, void *context);

/* -- Engines ----------------------------------------------------------------------------------- */

/** Half precision. */
#define BN_KV_TYPE_F16 (0u)
/** Single precision. */
#define BN_KV_TYPE_F32 (1u)
/** int8, with a scale for each token and head, after a Walsh-Hadamard transform of the head: half
 * of the memory of F16, and less precise. */
#define BN_KV_TYPE_INT8 (2u)
/** Four bits, with a scale for 32 elements of a head, transformed like int8: half of the memory of
 * int8, and less precise. Not on NVIDIA devices. */
#define BN_KV_TYPE_INT4 (3u)

/** The best that the machine has. */
#define BN_INSTRUCTIONS_AUTO (0u)
/** Portable code. */
#define BN_INSTRUCTIONS_SCALAR (1u)
/** x86-64 with AVX2, FMA and F16C. */
#define BN_INSTRUCTIONS_AVX2 (2u)
/** AVX2 and AVX-VNNI. */
#define BN_INSTRUCTIONS_AVX_VNNI (3u)
/** AVX2 and AVX-512 F, BW, VL and VNNI. */
#define BN_INSTRUCTIONS_AVX512_VNNI (4u)
/** AVX512_VNNI and AVX-512 VBMI, which looks up the entries of codebook weights (IQ2, IQ3). */
#define BN_INSTRUCTIONS_AVX512_VBMI (5u)
/** AVX512_VBMI and AMX tiles of bytes, if the system lets the process use them. An engine that
 * wants them, by default too, asks when it is created: from then on the system refuses signal
 * stacks (`sigaltstack`) without room for tiles, some 11 KiB. */
#define BN_INSTRUCTIONS_AMX (6u)
/** aarch64 NEON with dot products. */
#define BN_INSTRUCTIONS_NEON (7u)
/** NEON, and products of matrices of int8 (i8mm). */
#define BN_INSTRUCTIONS_NEON_I8MM (8u)

/** How to make an engine. What contexts point to must live until `bn_engine_free` returns. */
struct bn_engine_config {
    uint32_t struct_size;
    /** Compute threads, 1 to 256. 0: the CPUs that this process may use. */
    uint32_t threads;
    /** The engine keeps its own reference. NULL: `model_path`. */
    bn_model *model;
    /** As `bn_model_config.path`, for a model of this engine alone. Not set, with `model` NULL
     * too: the model that is embedded in the library. */
    bn_string model_path;
    /** The model's name in metrics. Not set: `bn_model_info.name`. */
    bn_string model_name;
    /** A small model with the same vocabulary that drafts tokens for `model` to verify. The engine
     * keeps its own reference. Its weights, states and part of each KV block count against
     * `memory_limit_bytes`. */
    bn_model *draft_model;
    /** Where forward passes run: `cpu`, also if not set, or NVIDIA devices of one type of those
     * that `CUDA_VISIBLE_DEVICES` leaves, `cuda:0` or `cuda:0,cuda:1`. Answers equal the CPU's to
     * the bit, except with F16 and BF16 weights and with `kv_type` F16, where they are near.
     *
     * Each device has the whole model and a KV cache, and runs up to `max_batch_size` requests.
     * `memory_limit_bytes`, `kv_cache_bytes` and the free memory are each device's, in `bn_stats`
     * they are summed; the queue's limits are the engine's. If one of several devices is lost,
     * requests that ran there fail with `BN_ERR_ENGINE_DEAD`, its sessions are gone, and the
     * engine goes on. */
    bn_string device;
    /** `BN_INSTRUCTIONS_*`. One that the machine lacks is refused. Results are bitwise the same
     * with any. */
    uint32_t instructions;
    /** The most tokens of one request, prompt and output together: 2 to the model's own
     * `context_length`. 0: that, or without `memory_limit_bytes` less if the KV cache holds no
     * more (`bn_stats.context_length`). */
    uint32_t context_length;
    /** The most requests in a forward pass, 1 to 4096, default 32. */
    uint32_t max_batch_size;
    /** The most tokens in a forward pass, `max_batch_size` to 65536. 0: 512, or more if
     * `max_batch_size` is. An encoder runs a text in one pass: with 0 its passes hold
     * `context_length` tokens, or as many as there is memory for. */
    uint32_t max_batch_tokens;
    /** How long an idle engine waits for more requests before its first step, up to 1000000 us. */
    uint32_t max_wait_us;
    /** How long a step with running answers should last at most, 1 to 60000 ms, default 200.
     * Prompts are cut so that its predicted time is below seven eighths of that, or if this is
     * more, 1.75 times the answers' time. */
    uint32_t max_step_ms;
    /** The time between two tokens of an answer to aim at, up to 60000 ms: requests wait while a
     * step with them is predicted to take longer, but one always runs, and none is interrupted.
     * If lower, it replaces `max_step_ms` in steps with prompts. 0: as many run as fit. */
    uint32_t target_itl_ms;
    /** How much later than one of priority 0 a request of priority 255 may be submitted and still
     * come first, up to 3600000 ms, default 30000; others proportionally. 0: order of arrival. */
    uint32_t priority_ageing_ms;
    /** The most requests, from submit to `bn_request_free`, 1 to 1048576, default 1024. */
    uint32_t queue_capacity;
    /** `bn_request_params.timeout_ms` of requests that set none. */
    uint32_t default_timeout_ms;
    /** The most prompt tokens of queued requests together. More give `BN_ERR_QUEUE_FULL`, unless
     * none is queued. */
    uint64_t queue_token_capacity;
    /** The most bytes for weights, KV cache, workspace, prompts, outputs and events together.
     * Weights count whole, also of a shared model; a prompt from submit on, an output as it
     * grows, 16 tokens at a time. A request that gets no more memory is paused until others give
     * some back, never shortened. 0: none, but the KV cache takes at most half of what the
     * machine, the process's control groups and its own limits (`ulimit -v`) leave. */
    uint64_t memory_limit_bytes;
    /** The most bytes of the KV cache, which takes no more than `memory_limit_bytes` leaves, or
     * `max_batch_size` requests of `context_length` need. 0: these bounds alone. */
    uint64_t kv_cache_bytes;
    /** Bytes of `memory_limit_bytes` that the KV cache leaves for adapters, besides those for
     * requests. 0: adapters take from the requests' part. */
    uint64_t adapter_bytes;
    /** The most bytes of output, as `memory_limit_bytes` counts them, that a streaming request may
     * have unread. Beyond that it is paused until they are polled or delivered, or ends
     * (`BN_REQUEST_END_UNREAD`). Default 4194304; 0: no limit. */
    uint64_t max_unread_bytes;
    /** How long without a request, or in a pause, until the engine releases the pages of weights
     * that are mapped from files, up to 604800000 ms. The next request reads them again. Weights
     * that were packed or converted at load, and those on devices, stay. 0: never. */
    uint64_t idle_release_ms;
    /** Tokens per KV block: 16, 32 (default), 64 or 128. */
    uint32_t kv_block_size;
    /** `BN_KV_TYPE_*`, the type of keys and values. Not for `builtin:echo`. */
    uint32_t kv_type;
    /** Changes of the prefix cache to keep for `bn_kv_events`, up to 1048576; there is room for
     * twice as many as the cache has blocks. 0: none. */
    uint32_t kv_events_capacity;
    /** For models with recurrent layers, whose state is not in the KV cache: the most states to
     * keep for later requests with the same prefix, up to 65536. 0: `max_batch_size`, at least 8.
     * States count against `memory_limit_bytes`; with little memory there are fewer of them, and
     * fewer requests run together. */
    uint32_t snapshots;
    /** Tokens of a prompt between two such states, up to 16777216, rounded up to KV blocks, default
     * 512. 0: only at the ends of prompts, and where prompts were seen to diverge. */
    uint32_t snapshot_interval;
    /** `BN_SPECULATION_*` of requests that do not set it. */
    uint32_t speculation;
    /** `bn_request_params.draft_tokens` of requests that do not set it, up to 15. 0: as many as
     * save time. */
    uint32_t draft_tokens;
    /** The most detailed level that `log` gets, `BN_LOG_*`. Default `BN_LOG_WARN`. */
    uint32_t log_level;
    /** Receives the log. */
    bn_log_callback log;
    void *log_context;
    /** Receives each event: callback mode. NULL: poll mode. */
    bn_event_callback on_event;
    void *on_event_context;
    /** Receives the spans of requests that have a `trace_id`. */
    bn_span_callback on_span;
    void *on_span_context;
    /** A folder to keep prefixes in that leave the prefix cache, all of them at the end of the
     * engine. It is made if it is missing. Requests whose prompt begins with one take it from
     * there, if that is faster than computing it; answers are the same. Engines and processes
     * may share a folder: one at a time writes to it, for one model and `kv_type`. Prompts can
     * be read from its files. Not for encoders. Not set: none. */
    bn_string cache_path;
    /** The most bytes of files there, for one model and `kv_type`, default 10737418240. Those
     * not used for the longest time go. */
    uint64_t cache_bytes;
    /** Bytes of the machine's memory for prefixes that leave the prefix cache of a device, beside
     * `memory_limit_bytes`, which is the device's. With a `cache_path` too, files are kept there
     * as they are read and written. 0: none. Not for the CPU, whose memory has the cache. */
    uint64_t host_cache_bytes;
    /** The most vectors of a picture, 0 to 65536, default 4096. The model's own bound counts if it
     * is lower. Larger pictures are made smaller where the model lets them (Qwen, Gemma 4), and
     * refused elsewhere. Gemma's run in one step: max_batch_tokens bounds them too. Memory for one
     * of this size is set aside. 0: pictures are refused. */
    uint64_t picture_tokens;
};

/** Fills `*config` with the defaults. */
bn_status bn_engine_config_init(bn_engine_config *config, uint32_t struct_size);

/** Makes an engine: loads the model, unless `config` has an open one, and starts threads (named
 * `bn-*`, all signals blocked). A process may have several.
 *
 * @return `BN_ERR_UNSUPPORTED`: the machine lacks `instructions`, or `device` is missing, has too
 * old a driver or cannot take the weights, or the library has no kernels for it;
 * `BN_ERR_MEMORY_LIMIT`: the limit, or the free memory, is too small for the model and one
 * sequence; and as `bn_model_open`. */
bn_status bn_engine_create(const bn_engine_config *config, bn_engine **out, bn_error *error);

/** Frees an engine: cancels every request, joins every thread, closes every descriptor and frees
 * everything, polled events included.
 *
 * A blocked `bn_poll` returns `BN_ERR_SHUTDOWN`, a `bn_generate` what it has, a `bn_embed`
 * `BN_ERR_CANCELLED`. In poll mode, unread events are lost; in callback mode, every live
 * request first gets its last callback, and none follows. In a forked child nothing
 * happens, and it returns `BN_ERR_FORKED`.
 *
 * [not from a callback] */
bn_status bn_engine_free(bn_engine *engine);

/* -- Conversations ----------------------------------------------------------------------------- */

/** A message of a conversation. */
struct bn_chat_message {
    /** "system", "user", "assistant", or another role that the template knows. */
    bn_string role;
    /** The text of the message. */
    bn_string content;
};

/** A conversation, as `messages` or as `json`, for the model's chat template. */
struct bn_chat {
    /** Up to 65536 messages, in order; the template begins the assistant's answer. `content` never
     * becomes a control token, but `role` may. */
    const bn_chat_message *messages;
    size_t messages_count;
    /** A conversation with tools: a JSON object with the fields that docs/chat.md describes.
     * Others are refused, nulls ignored. No text in it becomes a control token. At most 64 MiB,
     * 65536 messages and 1048576 values.
     *
     * A `tool_choice` of "required" or a function constrains the output to such a call, "auto"
     * with `strict` tools or without `parallel_tool_calls` the calls that come; the request has
     * no `constraint` then. Elsewhere a `constraint` in JSON is for answers that are not calls. */
    bn_string json;
    /** Room for later fields: 0. */
    uint64_t reserved[2];
};

/** Writes a conversation as the model's chat template formats it, for display. Do not submit it:
 * control tokens that a user typed would take effect. `messages` end with the beginning of the
 * assistant's answer. At most 64 MiB together. SECURITY.md says how the template is bounded.
 *
 * @return `BN_ERR_INVALID_ARGUMENT`: also if there is no conversation, or the template refuses
 * it; `BN_ERR_UNSUPPORTED`: the model has no template, or one that fails or is not understood;
 * `BN_ERR_TOO_LONG`. */
bn_status bn_model_chat_format(const bn_model *model, const bn_chat *chat, char *text,
    size_t capacity, size_t *length, bn_error *error);

/** Writes the token ids of that conversation: the prompt that a request with it has.
 *
 * @return as `bn_model_chat_format`. */
bn_status bn_model_chat_tokenize(const bn_model *model, const bn_chat *chat, uint32_t *tokens,
    size_t capacity, size_t *count, bn_error *error);

/* -- Sampling ---------------------------------------------------------------------------------- */

/** `temperature`, with `temperature_range`. */
#define BN_SAMPLER_TEMPERATURE (0u)
/** `top_n_sigma`. */
#define BN_SAMPLER_TOP_N_SIGMA (1u)
/** `top_k`. */
#define BN_SAMPLER_TOP_K (2u)
/** `typical_p`. */
#define BN_SAMPLER_TYPICAL_P (3u)
/** `top_p`. */
#define BN_SAMPLER_TOP_P (4u)
/** `min_p`. */
#define BN_SAMPLER_MIN_P (5u)
/** `xtc_probability`. */
#define BN_SAMPLER_XTC (6u)

/** A token and the number to add to its logit. */
struct bn_logit_bias {
    /** Its id. */
    uint32_t token;
    /** -100 to 100, or `-INFINITY`: the token does not come. */
    float bias;
};

/** The logits of a request's next token, before anything else changes them. */
struct bn_logits {
    uint32_t struct_size;
    /** Number of `logits`. */
    uint32_t vocab_size;
    /** As in `bn_request_params`. */
    uint64_t user_data;
    /** The prompt's tokens. */
    const uint32_t *prompt_tokens;
    size_t prompt_tokens_count;
    /** The tokens generated so far. */
    const uint32_t *output_tokens;
    size_t output_tokens_count;
    /** One for each token, to be changed in place. `-INFINITY` forbids a token; at least one must
     * stay finite, and none may be NaN or `INFINITY`, or the request fails with
     * `BN_ERR_INVALID_ARGUMENT`. */
    float *logits;
};

/** How a token is drawn, and how its logit changes before that. The defaults always draw the most
 * likely token; a chat wants its model's own (`bn_model_info.sampling_fields`). */
struct bn_sampling {
    /** The same seed, prompt and parameters give the same output, whatever else runs. */
    uint64_t seed;
    /** 0 to 100. 0: always the most likely token. */
    float temperature;
    /** 0 to 100: how far the temperature moves with the entropy of the remaining tokens, up if
     * many are likely, down if one is. */
    float temperature_range;
    /** For that, the power of the entropy's share of the greatest possible one. Above 0 to 100,
     * default 1. */
    float temperature_exponent;
    /** Keep this many most likely tokens. 0: all. */
    uint32_t top_k;
    /** Keep the most likely tokens that together reach this probability, above 0 to 1. Default
     * 1. */
    float top_p;
    /** Drop tokens less likely than this times the most likely one, 0 to 1. */
    float min_p;
    /** Keep the tokens with a surprise closest to the entropy that together reach this
     * probability, above 0 to 1. Default 1. */
    float typical_p;
    /** Drop logits more than this many standard deviations below the greatest, up to 1000. 0:
     * off. */
    float top_n_sigma;
    /** 0 to 1: the probability of dropping all tokens at least `xtc_threshold` likely but the
     * least likely of them. */
    float xtc_probability;
    /** Above 0 to 1. Default 0.1. */
    float xtc_threshold;
    /** Mirostat 2: the surprise of tokens to keep, in bits, up to 100; no other `BN_SAMPLER_*` but
     * temperature may be on. 0: off. */
    float mirostat_tau;
    /** How fast it follows, 0 to 1. Default 0.1. */
    float mirostat_eta;
    /** `BN_SAMPLER_*` in their order, each at most once. One that is left out must be off. NULL:
     * all, in the order of their numbers. */
    const uint32_t *samplers;
    size_t samplers_count;
    /** Penalties look at this many of the latest tokens of prompt and output. 0: all. */
    uint32_t penalty_window;
    /** Divides positive and multiplies negative logits of tokens in prompt or output. Above 0 to
     * 100, default 1: off. */
    float repetition_penalty;
    /** Subtracted from a token's logit for each time it is in the output, -100 to 100. */
    float frequency_penalty;
    /** Subtracted once from the logit of a token in the output, -100 to 100. */
    float presence_penalty;
    /** DRY: a token that would lengthen a repetition of n tokens loses `dry_multiplier` times
     * `dry_base` to the power of n - `dry_allowed_length` in its logit. 0 (off) to 100. */
    float dry_multiplier;
    /** 1 to 100. Default 1.75. */
    float dry_base;
    /** Shorter repetitions cost nothing. Default 2; 0 means 1. */
    uint32_t dry_allowed_length;
    /** The same as `penalty_window` for DRY. */
    uint32_t dry_window;
    /** Up to 256 texts of 1 to 65536 bytes that no repetition crosses; tokens with one lose
     * nothing. NULL: a line break, `:`, `"` and `*`. Not NULL with a count of 0: none. */
    const bn_string *dry_breakers;
    size_t dry_breakers_count;
    /** Added to the logits of up to 4096 tokens. */
    const bn_logit_bias *logit_bias;
    size_t logit_bias_count;
    /** Up to 256 texts of 1 to 1024 bytes that do not come, alone or after a space, in the
     * tokenizer's own spelling; other tokens may spell them. */
    const bn_string *bad_words;
    size_t bad_words_count;
    /** Changes the logits before each token. */
    bn_logits_callback on_logits;
    void *on_logits_context;
    /** Room for later fields: 0. */
    uint64_t reserved[4];
};

/* -- Constraints ------------------------------------------------------------------------------- */

/** No constraint. */
#define BN_CONSTRAINT_NONE (0u)
/** A JSON schema; the output is JSON that is valid under it, with properties in its order. A
 * keyword that cannot be kept is refused by name, as are references to other documents; one that
 * JSON Schema does not have asks for nothing. Numbers may exceed a double, and a property that the
 * schema does not name may come twice (docs/decoding.md). */
#define BN_CONSTRAINT_JSON_SCHEMA (1u)
/** The output is a JSON object. `text` is not set. */
#define BN_CONSTRAINT_JSON_OBJECT (2u)
/** A regular expression in Rust's syntax, without look-around and back references, that the whole
 * output matches, with or without `^` and `$`. */
#define BN_CONSTRAINT_REGEX (3u)
/** A grammar in llguidance's dialect of Lark; the output matches its rule `start`. */
#define BN_CONSTRAINT_LARK (4u)
/** A grammar in llama.cpp's GBNF; the output matches its rule `root`. Rules that are not recursive
 * match greedily. */
#define BN_CONSTRAINT_GBNF (5u)

/** No white space between JSON's tokens. Without this flag and the next, a space may follow `:`
 * and `,`, and between tokens may stand one line break with up to 32 spaces or 16 tabs after it. */
#define BN_JSON_COMPACT (1u << 0)
/** Up to 32 characters of white space between JSON's tokens. Refused with `BN_JSON_COMPACT`. */
#define BN_JSON_FLEXIBLE (1u << 1)
/** An unknown `format` in a schema is refused. Without this flag it is ignored. */
#define BN_JSON_KNOWN_FORMATS (1u << 2)
/** An object has only the keys of its `properties`, also in the arguments of calls, unless the
 * schema says by another keyword that there may be more. Without this flag, JSON Schema lets any
 * key come. */
#define BN_JSON_CLOSED (1u << 3)

/** The grammar of an output, which takes precedence over all other options. After a complete match,
 * the model's end tokens are allowed, even with `BN_REQUEST_IGNORE_EOS`, and nothing else if the
 * match cannot go on. An output that ends early is the beginning of a match. It is compiled at
 * submit; the latest ones stay compiled. A request may still fail later, where its constraint
 * needs more than docs/decoding.md allows. */
struct bn_constraint {
    /** `BN_CONSTRAINT_*`. */
    uint32_t kind;
    /** `BN_JSON_*`, for JSON or Lark and `bn_chat.json` alone. A schema's "x-guidance" overrides
     * them. */
    uint32_t json_flags;
    /** The schema, expression or grammar; at most 524288 bytes. */
    bn_string text;
    /** Room for later fields: 0. */
    uint64_t reserved[2];
};

/** Compiles a constraint, as `bn_submit` does, and keeps it for requests with the same one.
 *
 * @return `BN_ERR_INVALID_ARGUMENT`: the constraint is wrong or too complex, the message says
 * why; `BN_ERR_UNSUPPORTED`: the model has no tokenizer or no end token; `BN_ERR_QUEUE_FULL`;
 * `BN_ERR_TIMED_OUT`: it waited for others, or took, ten seconds; `BN_ERR_SHUTDOWN`. */
bn_status bn_engine_check_constraint(bn_engine *engine, const bn_constraint *constraint,
    bn_error *error);

/* -- Embeddings, drafts and traces of a request ------------------------------------------------ */

/** The model's own, `bn_model_info.pooling`. */
#define BN_POOLING_MODEL (0u)
/** The hidden state of the last prompt token, after the final norm. */
#define BN_POOLING_LAST (1u)
/** The mean of the hidden states of all prompt tokens. */
#define BN_POOLING_MEAN (2u)
/** The hidden state of the first prompt token. */
#define BN_POOLING_FIRST (3u)

/** As the model's folder says in its `modules.json`; without one as `BN_NORMALIZATION_UNIT`. */
#define BN_NORMALIZATION_MODEL (0u)
/** The vector as it is. */
#define BN_NORMALIZATION_NONE (1u)
/** The vector divided by its Euclidean length. */
#define BN_NORMALIZATION_UNIT (2u)

/** A request's: the engine's. An engine's: `BN_SPECULATION_DRAFT` with a `draft_model`,
 * `BN_MODEL_MTP` or a `drafter_path`, else on the CPU `BN_SPECULATION_LOOKUP` as long as it makes
 * requests faster, else `BN_SPECULATION_OFF`. */
#define BN_SPECULATION_DEFAULT (0u)
/** No drafts. */
#define BN_SPECULATION_OFF (1u)
/** Look-ups draft the tokens that followed the same tokens earlier in prompt or output. */
#define BN_SPECULATION_LOOKUP (2u)
/** The engine's `draft_model` drafts, or the model's own block (`BN_MODEL_MTP`), or the drafter in
 * a file beside it (`drafter_path`). */
#define BN_SPECULATION_DRAFT (3u)

/** The largest `draft_tokens`. */
#define BN_MAX_DRAFT_TOKENS (15u)

/** How a prompt becomes a vector. */
struct bn_embedding_params {
    /** `BN_POOLING_*`. */
    uint32_t pooling;
    /** `BN_NORMALIZATION_*`. */
    uint32_t normalization;
    /** Room for later fields: 0. */
    uint64_t reserved[2];
};

/** A place in a trace, as in W3C's `traceparent`. All 0: none. */
struct bn_trace {
    /** The trace. */
    uint8_t trace_id[16];
    /** The caller's span in it. Needs `trace_id`. */
    uint8_t parent_id[8];
};

/* -- Questions about a prompt ------------------------------------------------------------------ */

/** One of the options. */
#define BN_QUESTION_CHOICE (0u)
/** A level: the options are its levels in order, and the first is level 0. */
#define BN_QUESTION_SCORE (1u)
/** Yes or no: two options, the first for yes. Without options: "Yes" and "No". */
#define BN_QUESTION_YES_NO (2u)

/** The largest `questions_count`. */
#define BN_MAX_QUESTIONS (4096u)
/** The largest `options_count`. */
#define BN_MAX_OPTIONS (255u)

/** A question about the prompt of `BN_TASK_DECIDE`. */
struct bn_question {
    /** `BN_QUESTION_*`. */
    uint32_t kind;
    /** Room for later flags: 0. */
    uint32_t flags;
    /** Names it in messages; may be NULL. */
    bn_string name;
    /** Follows the prompt; may be NULL. After `prompt` and `prompt_tokens` it is tokenized by
     * itself. In `chat` it is the end of the last message, after an empty line, or a message of its
     * own if the last one is not a user's text. */
    bn_string text;
    /** Texts that may come next, no two with the same tokens. Each is tokenized by itself, as
     * text: begin it with a space where the model would. */
    const bn_string *options;
    size_t options_count;
};

/** The answer to a question. */
struct bn_decision {
    /** `BN_QUESTION_*`. */
    uint32_t kind;
    /** The most likely option; the first one of several. */
    uint32_t best;
    /** Index of its first option in `decision_options`. */
    uint32_t first_option;
    /** Number of its options. */
    uint32_t options_count;
    /** `BN_QUESTION_CHOICE`: the probability of `best`. `BN_QUESTION_SCORE`: the expected level,
     * the sum of levels times their probabilities. `BN_QUESTION_YES_NO`: the probability of yes. */
    double value;
    /** 0 to 1. With n options and p the probability of `best` it is (n p - 1) / (n - 1). For
     * `BN_QUESTION_SCORE`: 1 - a / b, but not below 0, where a is the expected distance from
     * `best` in levels, and b the mean distance of all levels from their middle. 1 with one
     * option. */
    double confidence;
};

/** How likely an option of a question is. */
struct bn_decision_option {
    /** Sum of the natural logarithms of its tokens' probabilities, each after the prompt, the
     * question and the tokens before it, as `BN_TASK_SCORE` returns them. So an option is at least
     * as likely as one that begins with it. */
    double logprob;
    /** The softmax of its question's `logprob`s. */
    double probability;
};

/* -- Pictures ---------------------------------------------------------------------------------- */

/** The largest `pictures_count`. */
#define BN_MAX_PICTURES (1024u)

/** A picture, as a file's bytes or as pixels. */
struct bn_picture {
    /** A PNG, a JPEG, a WebP or a GIF, whose first frame counts. With `width` and `height`: bytes
     * of red, green and blue for each pixel, line by line from the top. At most 64 MiB for a file,
     * 16384 pixels a side, and 33554432 in all. */
    const uint8_t *data;
    /** Bytes at `data`. */
    size_t data_len;
    /** Pixels of a line. 0, as `height`: `data` is a file. */
    uint32_t width;
    /** Number of lines. */
    uint32_t height;
    /** Room for later fields: 0. */
    uint64_t reserved[2];
};

/** Writes the number of positions that a picture takes in a prompt of the engine's model.
 *
 * @return `BN_ERR_UNSUPPORTED`: the model sees no pictures; `BN_ERR_INVALID_ARGUMENT`: also if the
 * picture cannot be read or is too large. */
bn_status bn_picture_positions(bn_engine *engine, const bn_picture *picture, uint64_t *positions,
    bn_error *error);

/* -- Requests ---------------------------------------------------------------------------------- */

/** Generate an output. */
#define BN_TASK_GENERATE (0u)
/** Return the prompt's embedding, in one event. `max_new_tokens` is ignored; `sampling`, `chat`,
 * stop fields and the output flags must have their defaults. */
#define BN_TASK_EMBED (1u)
/** Return the prompt's tokens from `logprobs_from` on and their log probabilities, in one event,
 * as `BN_FINISH_LENGTH`. `max_new_tokens` is ignored; stop fields, `constraint`, `on_logits` and
 * `chat.json` are refused. */
#define BN_TASK_SCORE (2u)
/** Return how relevant `document` is to the query in `prompt`, in one event, as
 * `BN_FINISH_EMBEDDING` with one number within 0 and 1. For models with
 * `bn_model_info.scores_pairs`; others return `BN_ERR_UNSUPPORTED`. A decoder puts both into the
 * prompt that its files have for it. In place of both, `chat.messages` of the roles "system",
 * "query" and "document", in this order, give that prompt another instruction; without "system"
 * it has its own. Models without such a prompt return `BN_ERR_UNSUPPORTED` for them. `embedding`
 * is refused, the rest is as with `BN_TASK_EMBED`. */
#define BN_TASK_RERANK (3u)
/** Return the answers to `questions` about the prompt, in one event, as `BN_FINISH_LENGTH`: how
 * likely each option is as the next text. Tokens that questions have in common, the prompt's
 * first, are computed once, and the rest side by side. `session` is refused, the rest is as with
 * `BN_TASK_EMBED`, but `chat` is taken. `BN_ERR_UNSUPPORTED` for models that generate nothing. */
#define BN_TASK_DECIDE (4u)

/** One event at the end, with the whole text and all tokens. */
#define BN_REQUEST_NO_STREAM (1u << 0)
/** Only a `bn_poll` of the request's id returns its events. Refused in callback mode. */
#define BN_REQUEST_POLL_BY_ID (1u << 1)
/** Return the prompt's text and tokens in front of the output. */
#define BN_REQUEST_ECHO_PROMPT (1u << 2)
/** Do not end at the model's end tokens. */
#define BN_REQUEST_IGNORE_EOS (1u << 3)
/** Return the log probability of each generated token, and of others as `top_logprobs` and
 * `logprob_tokens` say. */
#define BN_REQUEST_LOGPROBS (1u << 4)
/** Control tokens spelled out in `prompt` (like `<|eot_id|>`) become those tokens. Not for text
 * from outside. */
#define BN_REQUEST_PARSE_SPECIAL (1u << 5)
/** Take nothing from the prefix cache and leave nothing there. Results are the same. Refused with
 * `session`. */
#define BN_REQUEST_NO_CACHE (1u << 6)
/** Needs `queue_timeout_ms`: end a queued request, as `BN_FINISH_TIMED_OUT`, once its first token
 * is predicted to come later than that. */
#define BN_REQUEST_DROP_LATE (1u << 7)
/** End the request, as `BN_FINISH_CANCELLED`, when `max_unread_bytes` would pause it. */
#define BN_REQUEST_END_UNREAD (1u << 8)
/** With `BN_REQUEST_LOGPROBS`: those of the distribution that the token is drawn from, after
 * penalties, temperature and samplers (of a dropped token: -infinity). */
#define BN_REQUEST_CHAIN_LOGPROBS (1u << 9)
/** Needs `chat.json`: events have reasoning in `reasoning`, calls of tools in `tool_calls`, and
 * the rest in `text`, without their markers. If a call's arguments turn out not to be JSON, it
 * keeps what was returned, and the rest is text. Stop strings are looked for in all that is
 * generated. */
#define BN_REQUEST_PARSE_OUTPUT (1u << 10)
/** With `BN_REQUEST_ECHO_PROMPT` and `BN_REQUEST_LOGPROBS`: also those of the prompt's tokens from
 * `logprobs_from` on, by the model's own softmax. Refused with `chat.json`. */
#define BN_REQUEST_PROMPT_LOGPROBS (1u << 11)

/** Halfway between the least urgent priority, 0, and the most urgent. */
#define BN_PRIORITY_DEFAULT (128u)
/** The most urgent priority. */
#define BN_PRIORITY_MAX (255u)

/** The largest `stop_strings_count` and `stop_tokens_count`. */
#define BN_MAX_STOPS (256u)

/** The request waits for admission. */
#define BN_STAGE_QUEUED (0u)
/** The request takes part in forward passes, unless it is paused or interrupted. */
#define BN_STAGE_RUNNING (1u)
/** The request has finished. Its last event may still wait to be polled. */
#define BN_STAGE_FINISHED (2u)

/** One request, with one of `prompt`, `prompt_tokens` and `chat`. */
struct bn_request_params {
    uint32_t struct_size;
    /** `BN_TASK_*`. */
    uint32_t task;
    /** `BN_REQUEST_*`. */
    uint32_t flags;
    /** 0 to `BN_PRIORITY_MAX`, default `BN_PRIORITY_DEFAULT`. `priority_ageing_ms` weighs it
     * against arrival. A request without room interrupts running ones behind it and of lower
     * priority, the last first; they go on later, with the same output. */
    uint32_t priority;
    /** Returned in every event. */
    uint64_t user_data;
    /** A text. The tokenizer adds the tokens that the model wants in front (BOS) and, for
     * embeddings, after it (EOS). */
    bn_string prompt;
    /** With `BN_TASK_RERANK` and `prompt`: the text that the query is about. NULL beside
     * `prompt_tokens`, which hold both texts. */
    bn_string document;
    /** Token ids, used as they are. */
    const uint32_t *prompt_tokens;
    size_t prompt_tokens_count;
    /** A conversation. */
    bn_chat chat;
    /** They end the output besides the model's end tokens, even with `BN_REQUEST_IGNORE_EOS`. */
    const uint32_t *stop_tokens;
    size_t stop_tokens_count;
    /** Texts of 1 to 65536 bytes that end the output. Only generated text is searched. The
     * returned text ends before the first one; `tokens` and usage have every generated token. */
    const bn_string *stop_strings;
    size_t stop_strings_count;
    /** The most tokens to generate, default 128. 0: as many as `context_length` leaves, the
     * limit in any case. */
    uint32_t max_new_tokens;
    /** Neither end tokens (with `BN_REQUEST_IGNORE_EOS` too) nor `stop_tokens` come before this
     * many tokens, unless a `constraint` leaves nothing else. Stop strings may, and
     * `max_new_tokens`. */
    uint32_t min_new_tokens;
    /** With `BN_REQUEST_PARSE_OUTPUT`: after this many tokens of reasoning its end marker comes in
     * place of the model's next tokens. Default `BN_NO_LIMIT`. */
    uint32_t max_reasoning_tokens;
    /** Milliseconds from submit until the request ends as `BN_FINISH_TIMED_OUT` with what it has.
     * 0: the engine's `default_timeout_ms`; so `BN_NO_LIMIT` is for none. */
    uint32_t timeout_ms;
    /** Milliseconds that it may be queued, with the same end. 0: only `timeout_ms` counts. */
    uint32_t queue_timeout_ms;
    /** Factor of `adapter`, -100 to 100. Default 1. */
    float adapter_scale;
    /** An adapter of the same engine. Requests with different ones share no part of the prefix
     * cache. */
    const bn_adapter *adapter;
    /** How tokens are drawn. */
    bn_sampling sampling;
    /** The grammar that the output matches. */
    bn_constraint constraint;
    /** With `BN_REQUEST_LOGPROBS`: the number of most likely tokens to report for each generated
     * one, up to 32. */
    uint32_t top_logprobs;
    /** The prompt's first position for `BN_REQUEST_PROMPT_LOGPROBS` and `BN_TASK_SCORE`. */
    uint32_t logprobs_from;
    /** With `BN_REQUEST_LOGPROBS`: up to 256 more tokens, after those of `top_logprobs`. */
    const uint32_t *logprob_tokens;
    size_t logprob_tokens_count;
    /** With `BN_TASK_EMBED`. */
    bn_embedding_params embedding;
    /** `BN_SPECULATION_*`. Drafts never change the output. */
    uint32_t speculation;
    /** The most tokens to draft for a step, or fewer if that saves more time. 0: the engine's
     * default. */
    uint32_t draft_tokens;
    /** Requests with different salts share no part of the prefix cache, so timing tells nothing
     * about the prompts of others. */
    uint64_t cache_salt;
    /** A name of 1 to 256 bytes; two users of an engine need two. When the request ends, its keys
     * and values stay in the KV cache under this name, in place of what had it, for a next turn
     * with the same `cache_salt`. Nothing changes if the request fails, ends while it does not
     * run, or needs more than half of the KV cache, the limit of all sessions together. The least
     * recently used goes first, also for a request that does not fit alone. */
    bn_string session;
    /** The caller's trace, for `on_span`. */
    bn_trace trace;
    /** With `BN_TASK_DECIDE`: 1 to `BN_MAX_QUESTIONS`. */
    const bn_question *questions;
    size_t questions_count;
    /** Pictures, for models that see (`bn_model_info.sees`), in the order of their places in the
     * prompt. A conversation has a place for each part `{"type": "image"}`; a text with
     * `BN_REQUEST_PARSE_SPECIAL` and `prompt_tokens` have one for each of the model's tokens that
     * stand for a picture. `bn_submit` decodes them, on its caller's thread, and then needs them no
     * longer. `BN_ERR_UNSUPPORTED` if the engine sees none. */
    const bn_picture *pictures;
    /** At most `BN_MAX_PICTURES`. */
    size_t pictures_count;
};

/** The stage of a request. */
struct bn_request_info {
    uint32_t struct_size;
    /** `BN_STAGE_*`. */
    uint32_t stage;
    /** With `BN_STAGE_QUEUED`: how many queued requests were submitted before it, whatever their
     * priorities. Otherwise 0. */
    uint64_t queue_position;
};

/** Fills `*params` with the defaults. */
bn_status bn_request_params_init(bn_request_params *params, uint32_t struct_size);

/** Queues a request and writes its id to `*out`. It does not wait for the model; compiling a new
 * `constraint` may take seconds. Events may arrive before it returns. The last is exactly one
 * `BN_EVENT_COMPLETED`, unless the request or the engine is freed before. Free every request;
 * in callback mode its last callback does so.
 *
 * @return `BN_ERR_UNSUPPORTED`: the model lacks a tokenizer or chat template for what is asked;
 * `BN_ERR_TOO_LONG`; `BN_ERR_QUEUE_FULL`; `BN_ERR_TIMED_OUT`: the constraint was not compiled
 * within `timeout_ms`, or ten seconds, or others' pictures were read until the request's time
 * was up; `BN_ERR_MEMORY_LIMIT`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_submit(bn_engine *engine, const bn_request_params *params, bn_request *out,
    bn_error *error);

/** Queues 1 to `queue_capacity` requests, all or none, and writes their ids to `out`. An error
 * names the request by its index.
 *
 * @return as `bn_submit`. */
bn_status bn_submit_batch(bn_engine *engine, const bn_request_params *const *params,
    size_t params_count, bn_request *out, bn_error *error);

/** Asks the engine to end `which`, and returns at once. A running request ends with the current
 * forward pass, or within it if it is alone there. Its last event says what happened. A finished
 * request is left alone.
 *
 * @return `BN_ERR_NOT_FOUND`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_cancel(bn_engine *engine, bn_request which, bn_error *error);

/** Frees a request: its id becomes invalid, and its events are freed, polled ones too; no poll
 * returns any of it afterwards. Polled events may be freed before or go with it, once nobody
 * reads them. A live request is cancelled, and counts against `queue_capacity` for at most a
 * step more. A callback of it may still run: only `bn_engine_free` waits for that.
 *
 * @return `BN_ERR_NOT_FOUND`. */
bn_status bn_request_free(bn_engine *engine, bn_request request, bn_error *error);

/** Prepares `*info` for `bn_request_get_info`. */
bn_status bn_request_info_init(bn_request_info *info, uint32_t struct_size);

/** Writes the stage of a request to `*out`. Slow for a queued request, because it looks at all
 * others.
 *
 * @return `BN_ERR_NOT_FOUND`. */
bn_status bn_request_get_info(bn_engine *engine, bn_request request, bn_request_info *out,
    bn_error *error);

/* -- Events ------------------------------------------------------------------------------------ */

/** All new tokens and text since the last poll. */
#define BN_EVENT_TOKENS (1u)
/** The last event: a finish reason, usage, and tokens and text not returned before. */
#define BN_EVENT_COMPLETED (2u)

/** Not finished (`BN_EVENT_TOKENS`). */
#define BN_FINISH_NONE (0u)
/** An end token of the model, or one of `stop_tokens`. */
#define BN_FINISH_STOP (1u)
/** One of `stop_strings`. */
#define BN_FINISH_STOP_STRING (2u)
/** `max_new_tokens` or the engine's `context_length`. */
#define BN_FINISH_LENGTH (3u)
/** By `bn_cancel`, a shutdown or `bn_engine_free`, or `BN_REQUEST_END_UNREAD`. */
#define BN_FINISH_CANCELLED (4u)
/** Its timeout passed, or could not be met (`BN_REQUEST_DROP_LATE`). */
#define BN_FINISH_TIMED_OUT (5u)
/** `status` and `message` say why. */
#define BN_FINISH_FAILED (6u)
/** `BN_TASK_EMBED` or `BN_TASK_RERANK` is done. */
#define BN_FINISH_EMBEDDING (7u)

/** A call of a tool in an answer, or the next part of one. The first part comes when the name is
 * known and the arguments begin. */
struct bn_tool_call {
    /** Its number in the answer, from 0. */
    uint32_t index;
    /** Bytes of the event's `text` that the model wrote before it. */
    uint32_t text_before;
    /** Nine letters and digits, the same for the same prompt, seed and index. Empty except in the
     * first part. */
    bn_string id;
    /** The name as the model wrote it, which may be none of `tools`. Empty except in the first
     * part. */
    bn_string name;
    /** The next part of the arguments' JSON. */
    bn_string arguments;
};

/** A token and its log probability. */
struct bn_logprob {
    /** Its id. */
    uint32_t token;
    /** Natural logarithm of its probability by the model, before penalties, temperature and
     * samplers, or with `BN_REQUEST_CHAIN_LOGPROBS` after them. */
    float logprob;
};

/** News of a request. The data that a polled event points to stays valid and unchanged until
 * `bn_events_free` of it, `bn_request_free` of its request, or `bn_engine_free`. */
struct bn_event {
    uint32_t struct_size;
    /** `BN_EVENT_*`. */
    uint32_t kind;
    /** The request. */
    bn_request request;
    /** As in `bn_request_params`. */
    uint64_t user_data;
    /** This and `lease` are its name for `bn_events_free`. NULL unless it was polled. */
    bn_engine *engine;
    /** 0 in a callback. */
    uint64_t lease;
    /** New text: whole UTF-8 characters. */
    bn_string text;
    /** New reasoning (`BN_REQUEST_PARSE_OUTPUT`): whole UTF-8 characters. */
    bn_string reasoning;
    /** New calls, and more of the last one (`BN_REQUEST_PARSE_OUTPUT`), or NULL. */
    const bn_tool_call *tool_calls;
    size_t tool_calls_count;
    /** New tokens, an end token included, or NULL. With `BN_REQUEST_ECHO_PROMPT` the prompt's come
     * first; with `BN_TASK_SCORE` they are the prompt's from `logprobs_from` on. */
    const uint32_t *tokens;
    size_t tokens_count;
    /** For each of `tokens` its own entry, then `top_logprobs` more, the most likely first, then
     * those of `logprob_tokens`. NaN for prompt tokens that are first, before `logprobs_from`, or
     * not asked for. NULL without a flag that asks for any. */
    const bn_logprob *logprobs;
    size_t logprobs_count;
    /** 0, or 1 + `top_logprobs` + `logprob_tokens_count`: `logprobs` for each of `tokens`. */
    uint32_t logprobs_per_token;
    /** `BN_FINISH_*`. */
    uint32_t finish_reason;
    /** `BN_OK`, or why the request failed, was cancelled or timed out. */
    bn_status status;
    /** Index of the stop token or stop string that ended the request; -1 for other ends, the
     * model's own end token too. */
    int32_t stop_index;
    /** `status` in words; empty with `BN_OK`. */
    bn_string message;
    /** The vector of `BN_FINISH_EMBEDDING`; otherwise NULL. */
    const float *embedding;
    size_t embedding_count;
    /** The `BN_POOLING_*` that made it, or 0. */
    uint32_t pooling;
    /** Calls in the whole answer; after `BN_FINISH_STOP` the model waits for their results. This
     * and all below are 0 before `BN_EVENT_COMPLETED`. */
    uint32_t tool_calls_total;
    /** Tokens of the prompt; with `BN_TASK_DECIDE` also those of the questions and their options,
     * what they have in common counted once. */
    uint32_t prompt_tokens;
    /** Generated tokens, an end token included. */
    uint32_t generated_tokens;
    /** Generated tokens of reasoning, its end marker included (`BN_REQUEST_PARSE_OUTPUT`). */
    uint32_t reasoning_tokens;
    /** Prompt tokens that the prefix cache had at admission. */
    uint32_t cached_tokens;
    /** Drafted tokens that were verified. */
    uint32_t drafted_tokens;
    /** Drafted tokens that the output has. */
    uint32_t accepted_tokens;
    /** From submit to the first admission. These five are in nanoseconds. */
    uint64_t queued_ns;
    /** From admission to the end of the prompt. */
    uint64_t prefill_ns;
    /** From submit to the first generated token. */
    uint64_t first_token_ns;
    /** From the first generated token to the last. */
    uint64_t decode_ns;
    /** From submit to this event. */
    uint64_t total_ns;
    /** With `BN_TASK_DECIDE`: the answer to each question, in order, or NULL. */
    const bn_decision *decisions;
    size_t decisions_count;
    /** The options of all questions, in order, or NULL. */
    const bn_decision_option *decision_options;
    size_t decision_options_count;
};

/** Writes up to `capacity` (1 or more) events of `which`, a request or `BN_ANY`, to `events`.
 * Waits up to `timeout_ms` milliseconds for the first, with `BN_NO_LIMIT` as long as it takes; a
 * count of 0 means that none came. A signal does not end the wait.
 *
 * An event goes to one caller: at most one of a request in a call, and those of a request in
 * order. Free them with `bn_events_free`, or with their request.
 *
 * [not from a callback]
 * @return `BN_ERR_FINISHED`; `BN_ERR_SHUTDOWN`, `BN_ERR_ENGINE_DEAD`: no event for `BN_ANY` is
 * left; `BN_ERR_NOT_FOUND`: also if the request is freed meanwhile; `BN_ERR_BUSY`;
 * `BN_ERR_MEMORY_LIMIT`: too many events are not freed; `BN_ERR_WRONG_MODE`: callback mode. */
bn_status bn_poll(bn_engine *engine, bn_request which, bn_event *events, size_t event_size,
    size_t capacity, uint32_t timeout_ms, size_t *count, bn_error *error);

/** Frees events of any engine, from `bn_poll` and `bn_generate`, with what they point to. One
 * that was freed before, by itself or with its request or engine, is skipped. */
bn_status bn_events_free(const bn_event *events, size_t event_size, size_t events_count);

/** Submits one request, waits for its end and writes its only event, with the whole text and all
 * tokens, to `*out`. `bn_events_free` frees it, also after the engine; the request is freed
 * already. Works in both delivery modes; `BN_REQUEST_NO_STREAM` and `BN_REQUEST_POLL_BY_ID` make
 * no difference.
 *
 * A request that was cancelled or timed out is a success, with what it had. Only a timeout,
 * `bn_cancel` of `BN_ANY`, `BN_SHUTDOWN_CANCEL` and `bn_engine_free` end it early.
 *
 * [not from a callback]
 * @return as `bn_submit`; or the status of a request that failed. */
bn_status bn_generate(bn_engine *engine, const bn_request_params *params, bn_event *out,
    size_t event_size, bn_error *error);

/** A finish reason in a word, like `stop`, or `unknown`. */
const char *bn_finish_reason_name(uint32_t reason);

/** Computes one embedding: submits `params` with `BN_TASK_EMBED`, waits, and writes the
 * `bn_model_info.embedding_size` elements of the vector. If `capacity` is too small, nothing
 * runs, and `params` is not read.
 *
 * [not from a callback]
 * @return as `bn_submit`; `BN_ERR_UNSUPPORTED`: also if the model makes no embeddings;
 * `BN_ERR_CANCELLED`; `BN_ERR_TIMED_OUT`; or the status of a request that failed. */
bn_status bn_embed(bn_engine *engine, const bn_request_params *params, float *values,
    size_t capacity, size_t *count, bn_error *error);

/* -- The state and the end of an engine -------------------------------------------------------- */

/** The engine accepts requests. */
#define BN_STATE_RUNNING (0u)
/** The engine accepts no more requests, and finishes those that it has. */
#define BN_STATE_DRAINING (1u)
/** Every request has finished. Events may still wait to be polled or delivered. */
#define BN_STATE_DRAINED (2u)
/** The engine is dead; see `BN_ERR_ENGINE_DEAD`. */
#define BN_STATE_DEAD (3u)

/** Accept nothing new, finish what was accepted. */
#define BN_SHUTDOWN_DRAIN (0u)
/** Accept nothing new, cancel what was accepted. May follow a drain. */
#define BN_SHUTDOWN_CANCEL (1u)

/** Writes the state of an engine, `BN_STATE_*`, to `*out`. */
bn_status bn_engine_state(const bn_engine *engine, uint32_t *out);

/** Pauses the engine: waits for the running step; none begins after the call has returned. All
 * other calls still work: requests may be submitted and wait, their timeouts pass, and they can
 * be cancelled, freed and polled. `bn_generate` and `bn_embed` wait too. A shutdown ends the
 * pause. A paused engine takes no CPU and keeps its memory (but see `idle_release_ms`). Pauses
 * do not add up: one `bn_engine_resume` is enough.
 *
 * [not from a callback]
 * @return `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_engine_pause(bn_engine *engine, bn_error *error);

/** Ends a pause, and returns at once. Requests go on where they were, with the same output. An
 * engine that is not paused, or has shut down, is left alone. */
bn_status bn_engine_resume(bn_engine *engine, bn_error *error);

/** Waits for the running step, and computes the next ones on `threads` threads: 1 to what
 * `bn_stats.threads` is at first, 0: that number. The others sleep and keep their memory. Outputs
 * do not change. Several devices share them equally, rounded down, at least one each.
 *
 * [not from a callback]
 * @return `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_engine_set_threads(bn_engine *engine, uint32_t threads, bn_error *error);

/** Ends the acceptance of requests and returns at once. `mode` is `BN_SHUTDOWN_*`. It may be
 * called again. Every accepted request still gets its last event; when all are polled, `bn_poll`
 * of `BN_ANY` returns `BN_ERR_SHUTDOWN`. A drain waits for paused requests until their output is
 * polled. In callback mode, wait for `BN_STATE_DRAINED`, then free the engine, which makes the
 * callbacks still due.
 *
 * @return `BN_ERR_ENGINE_DEAD`. */
bn_status bn_engine_shutdown(bn_engine *engine, uint32_t mode, bn_error *error);

/** A descriptor for epoll, kqueue, poll or select, readable while an event for `BN_ANY` waits, and
 * for good once the engine is drained or dead: leave the loop when `bn_poll` returns
 * `BN_ERR_SHUTDOWN` or `BN_ERR_ENGINE_DEAD`. It is the engine's: do not read, write or close it.
 * The end wakes one edge-triggered thread of each epoll instance, which must wake the others.
 *
 * @return the descriptor, which is 0 or more; or `BN_ERR_WRONG_MODE`: callback mode;
 * `BN_ERR_UNSUPPORTED`: Windows; or another error. */
int32_t bn_engine_wait_fd(const bn_engine *engine, bn_error *error);

/** The same for Windows: an event with manual reset, for WaitForMultipleObjects, which is set
 * while the descriptor of `bn_engine_wait_fd` would be readable. It is the engine's: do not set,
 * reset or close it.
 *
 * @return `BN_ERR_WRONG_MODE`: callback mode. `BN_ERR_UNSUPPORTED`: any other system. */
bn_status bn_engine_wait_handle(const bn_engine *engine, void **handle, bn_error *error);

/* -- Models ------------------------------------------------------------------------------------ */

/** As the model's files store them. */
#define BN_WEIGHTS_KEEP (0u)
/** 8 bits, in blocks of 32 with a half-precision scale. */
#define BN_WEIGHTS_Q8_0 (1u)
/** 4 bits, in blocks of 32 with a half-precision scale. */
#define BN_WEIGHTS_Q4_0 (2u)
/** -1, 0 and 1 with a scale, as in BitNet b1.58. */
#define BN_WEIGHTS_TERNARY (3u)
/** 8 bits, with a scale for each row; activations get one for each token. Faster than Q8_0 for
 * prompts, and less precise. */
#define BN_WEIGHTS_INT8 (4u)

/** Also load the model's block of multi-token prediction, which drafts tokens
 * (`BN_SPECULATION_DRAFT`). Every pass then computes a part of it. `BN_ERR_UNSUPPORTED` if the
 * files do not have one: `drafter_path` names it in a file of its own. Not with a `draft_model`,
 * adapters or a device. */
#define BN_MODEL_MTP (1u << 0)
/** Also keep the down projections by columns, in a ternary model with ReLU² (BitNet b1.58 2B-4T).
 * Steps of up to four tokens on the CPU then skip the columns that are multiplied by zeros only,
 * if there are enough of them. The results are the same. `BN_ERR_UNSUPPORTED` for other models. */
#define BN_MODEL_SKIP_ZEROS (1u << 1)

/** The files recommend `temperature`. */
#define BN_SAMPLING_FIELD_TEMPERATURE (1u << 0)
/** The files recommend `top_k`. */
#define BN_SAMPLING_FIELD_TOP_K (1u << 1)
/** The files recommend `top_p`. */
#define BN_SAMPLING_FIELD_TOP_P (1u << 2)
/** The files recommend `min_p`. */
#define BN_SAMPLING_FIELD_MIN_P (1u << 3)
/** The files recommend `repetition_penalty`. */
#define BN_SAMPLING_FIELD_REPETITION_PENALTY (1u << 4)

/** Add the tokens that submitting the text adds: BOS, and an encoder's end token. */
#define BN_TOKENIZE_ADD_SPECIAL (1u << 0)
/** Control tokens spelled out in the text become those tokens. */
#define BN_TOKENIZE_PARSE_SPECIAL (1u << 1)

/** How to open a model: by `path`, `fd` or `data`, at most one of them. With none it is the small
 * model embedded in the library. */
struct bn_model_config {
    uint32_t struct_size;
    /** A readable descriptor of a GGUF file, or -1 (default). It is read from the beginning,
     * whatever its position, and may be closed once `bn_model_open` has returned.
     * `BN_ERR_UNSUPPORTED` on Windows. */
    int32_t fd;
    /** A GGUF file, a Hugging Face folder (`config.json`, safetensors, `tokenizer.json`; nothing is
     * downloaded), or
     * `builtin:echo`, a model without weights that answers with its prompt
     * (`builtin:echo?us_per_token=N&load_ms=N` takes so long for each token, and to load). */
    bn_string path;
    /** The bytes of a GGUF file, at any alignment, used in place: keep them unchanged until the
     * model and every engine made of it are freed. */
    const void *data;
    /** Bytes at `data`. */
    size_t data_size;
    /** The `kernel_config.ini` of a GGUF file with TL1 or TL2 tensors. Not set: the one beside the
     * file. */
    bn_string kernel_config_path;
    /** The most bytes of weights; loading stops at the tensor that passes it. */
    uint64_t memory_limit_bytes;
    /** As in `bn_engine_config`. */
    uint32_t threads;
    /** `BN_MODEL_*`. */
    uint32_t flags;
    /** The type that attention and feed-forward weights get while loading, `BN_WEIGHTS_*`. F32,
     * F16 and BF16 weights can become any type, but only those of BitNet models
     * `BN_WEIGHTS_TERNARY`; Q4_0 to Q8_0, Q4_K to Q6_K, IQ4 and MXFP4 can become
     * `BN_WEIGHTS_INT8`. */
    uint32_t weight_type;
    /** The same for the embedding, without `BN_WEIGHTS_TERNARY`. */
    uint32_t embedding_type;
    /** The same for the output head. If that is tied to the embedding, either field sets both. */
    uint32_t head_type;
    /** As in `bn_engine_config`. */
    uint32_t log_level;
    /** Receives the log. */
    bn_log_callback log;
    void *log_context;
    /** Receives the progress of loading, and may stop it. */
    bn_progress_callback progress;
    void *progress_context;
    /** A GGUF file of a drafter alone, which predicts tokens from hidden states of the model
     * (`BN_SPECULATION_DRAFT`): a block of multi-token prediction, or an EAGLE-3 head. The file
     * says what it is. What it shares with the model, such as the embedding, may be missing there.
     * `BN_ERR_UNSUPPORTED` for other files, `BN_ERR_INVALID_ARGUMENT` if it drafts for a model of
     * other sizes. Not with `BN_MODEL_MTP`, a `draft_model`, adapters or a device. */
    bn_string drafter_path;
    /** A GGUF file of the part that sees pictures ("mmproj"), of a model that is a GGUF file. A
     * folder has it among its own files. */
    bn_string pictures_path;
};

/** Facts about a model. Pointers are valid until `bn_model_free`. */
struct bn_model_info {
    uint32_t struct_size;
    /** 1 if it has one. Without, prompts are token ids and events have no text. */
    int32_t has_tokenizer;
    /** 1 if it has one, so that requests may have a `chat`. */
    int32_t has_chat_template;
    /** 1 if it is an encoder: it makes embeddings and generates nothing, has no KV cache, and runs
     * a prompt in one step, so `max_batch_tokens` must hold it. */
    int32_t encodes;
    /** 1 if it can do `BN_TASK_RERANK`. */
    int32_t scores_pairs;
    /** The model's own, not `BN_POOLING_MODEL`. */
    uint32_t pooling;
    /** As the model's files name it: `llama`, `bitnet-b1.58`, ... */
    bn_string architecture;
    /** May be empty. */
    bn_string name;
    /** Token ids are 0 to `vocab_size - 1`. */
    uint64_t vocab_size;
    /** Tokens of context that the model was made for. */
    uint64_t context_length;
    /** Decoder layers. */
    uint64_t layers;
    /** Width of the hidden state. */
    uint64_t hidden_size;
    /** Query heads. */
    uint64_t heads;
    /** Key and value heads. */
    uint64_t kv_heads;
    /** Width of a head. */
    uint64_t head_dim;
    /** Width of the feed-forward layer. */
    uint64_t ffn_size;
    /** Elements of an embedding. 0: the model makes none. */
    uint64_t embedding_size;
    /** Number of parameters. */
    uint64_t parameters;
    /** Bytes of weights, mapped or allocated. */
    uint64_t weight_bytes;
    /** They end an output as `BN_FINISH_STOP`. NULL if there are none. */
    const uint32_t *end_tokens;
    size_t end_tokens_count;
    /** The BOS token's id, or -1. */
    int64_t bos_token;
    /** `BN_SAMPLING_FIELD_*`: which of the five fields below `generation_config.json`, or keys of
     * a GGUF file, recommend. The others are 0. Requests never use them by themselves. Where there
     * are none, chats commonly use `temperature` 0.8, `top_k` 40, `top_p` 0.95 and `min_p` 0.05. */
    uint32_t sampling_fields;
    /** Recommended; 0: always the most likely token. */
    float temperature;
    /** Recommended. */
    uint32_t top_k;
    /** Recommended. */
    float top_p;
    /** Recommended. */
    float min_p;
    /** Recommended. */
    float repetition_penalty;
    /** 1 if it sees pictures, on the CPU. */
    int32_t sees;
    /** The most vectors of a picture by the model's own bound, without the tokens between them.
     * 0: it sees none. */
    uint32_t picture_tokens;
};

/** Fills `*config` with the defaults. */
bn_status bn_model_config_init(bn_model_config *config, uint32_t struct_size);

/** Loads a model and writes it to `*out`.
 *
 * @return `BN_ERR_UNSUPPORTED`: the model needs something that this version lacks; `BN_ERR_IO`;
 * `BN_ERR_BAD_MODEL`; `BN_ERR_MEMORY_LIMIT`; `BN_ERR_CANCELLED`: `progress` stopped it. */
bn_status bn_model_open(const bn_model_config *config, bn_model **out, bn_error *error);

/** Frees a model's handle. Engines made of the model keep it. */
bn_status bn_model_free(bn_model *model);

/** Writes a handle of the engine's model to `*out`, for `bn_model_free`. */
bn_status bn_engine_model(bn_engine *engine, bn_model **out, bn_error *error);

/** Prepares `*info` for `bn_model_get_info`. */
bn_status bn_model_info_init(bn_model_info *info, uint32_t struct_size);

/** Writes what is known of a model to `*out`. */
bn_status bn_model_get_info(const bn_model *model, bn_model_info *out, bn_error *error);

/** Writes the token ids of `text` to `tokens`. `flags` are `BN_TOKENIZE_*`.
 *
 * @return `BN_ERR_UNSUPPORTED`: also if the model has no tokenizer; `BN_ERR_TOO_LONG`. */
bn_status bn_model_tokenize(const bn_model *model, bn_string text, uint32_t flags, uint32_t *tokens,
    size_t capacity, size_t *count, bn_error *error);

/** Writes the text of `tokens` to `text`. Bytes that are not UTF-8 become U+FFFD; control tokens
 * have no text; the space that some vocabularies put in front of every text is removed.
 *
 * @return `BN_ERR_INVALID_ARGUMENT`: also for an id outside of the vocabulary;
 * `BN_ERR_UNSUPPORTED`: the model has no tokenizer. */
bn_status bn_model_detokenize(const bn_model *model, const uint32_t *tokens, size_t tokens_count,
    char *text, size_t capacity, size_t *length, bn_error *error);

/** Writes the exact bytes of a token, which may be part of a UTF-8 character and begin with a
 * space. A control token gives its name, like `<|eot_id|>`.
 *
 * @return as `bn_model_detokenize`. */
bn_status bn_model_token_bytes(const bn_model *model, uint32_t token, char *bytes, size_t capacity,
    size_t *length, bn_error *error);

/* -- Adapters ---------------------------------------------------------------------------------- */

/** Reads a LoRA adapter for requests of this engine: a PEFT folder (`adapter_config.json`,
 * `adapter_model.safetensors`) or a GGUF file of llama.cpp's, with tensors in F32, F16 or BF16,
 * of the layers' products but experts', and the head. The files are not needed afterwards.
 * Requests go on meanwhile; one batch may have any number of adapters.
 *
 * An adapter counts against `memory_limit_bytes`, as does, from the first one on, the room that
 * forward passes keep for adapters. Both take from `adapter_bytes`, then from what requests
 * leave.
 *
 * @return `BN_ERR_IO`; `BN_ERR_BAD_MODEL`: it is not sound, or for a model of other sizes;
 * `BN_ERR_UNSUPPORTED`: it is more than LoRA (DoRA, biases, embeddings, ...), or the model takes
 * none; `BN_ERR_MEMORY_LIMIT`. With a device, this waits for the engine's thread: also
 * `BN_ERR_SHUTDOWN`, `BN_ERR_ENGINE_DEAD`, and `BN_ERR_REENTRANT` in a callback. */
bn_status bn_adapter_open(bn_engine *engine, bn_string path, bn_adapter **out, bn_error *error);

/** Writes a hash of the adapter's contents, the same in each engine that opens it. */
bn_status bn_adapter_fingerprint(const bn_adapter *adapter, uint64_t *out);

/** Frees a handle. Requests that run with the adapter keep it until they end; then its bytes come
 * back. */
bn_status bn_adapter_free(bn_adapter *adapter);

/* -- Sessions and the prefix cache ------------------------------------------------------------- */

/** A block came into the cache. */
#define BN_KV_EVENT_STORED (1u)
/** A block left the cache. */
#define BN_KV_EVENT_REMOVED (2u)
/** Forget all blocks: those that are there follow as `BN_KV_EVENT_STORED`. It comes when changes
 * were not read in time, and after `bn_cache_clear`. An engine of several devices reports removed
 * blocks instead; a block is stored when the first device has it, removed when none has it any
 * more. */
#define BN_KV_EVENT_CLEARED (3u)

/** XXH64 of a block's tokens as little-endian 32-bit numbers. The seed is the hash of the block
 * before it, for the first block the request's `cache_salt`, or with an adapter XXH64 of 12 bytes
 * with `cache_salt` as the seed: `adapter_scale` as a little-endian float, then
 * `bn_adapter_fingerprint` as a little-endian 64-bit number. */
#define BN_HASH_XXH64 (1u)

/** A change of the prefix cache. Only full blocks, of `kv_block_size` tokens, are reported. */
struct bn_kv_event {
    /** `BN_KV_EVENT_*`. */
    uint32_t kind;
    /** `BN_HASH_*`, the same for all events of an engine. */
    uint32_t hash_type;
    /** The block's; 0 for `BN_KV_EVENT_CLEARED`. */
    uint64_t hash;
    /** For `BN_KV_EVENT_STORED`: the hash of the block before it, or the first block's seed. */
    uint64_t parent_hash;
};

/** Frees a session: forgets its name. Its KV blocks stay in the prefix cache until others need the
 * room; requests that use them go on. It waits for the end of a step: an event loop leaves it to
 * another thread, or lets the engine drop the least recently used.
 *
 * [not from a callback]
 * @return `BN_ERR_NOT_FOUND`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_session_free(bn_engine *engine, bn_string name, bn_error *error);

/** Writes a session's tokens, keys and values, digests of its pictures, and `cache_salt`, for an
 * engine with the same model, `kv_type` and `kv_block_size`. The size changes when a request of
 * the session ends. Its number of tokens is at byte 52 of the data, in 64 bits, little-endian.
 * Writing makes a copy for a moment, which `memory_limit_bytes` does not count.
 *
 * [not from a callback]
 * @return `BN_ERR_NOT_FOUND`; `BN_ERR_BUSY`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_session_save(bn_engine *engine, bn_string name, uint8_t *data, size_t capacity,
    size_t *length, bn_error *error);

/** Makes a session from the data of `bn_session_save`, replacing one of this name. Other sessions
 * are dropped if it needs their room. Load only what you have saved yourself: the checksum finds
 * damage, not forgery (SECURITY.md).
 *
 * [not from a callback]
 * @return `BN_ERR_INVALID_ARGUMENT`: also for no session, a damaged one, or one of another model,
 * `kv_type`, `kv_block_size` or version, or one with pictures that another tower has seen, or this
 * one in other sizes (`picture_tokens`; in Gemma 4 also the rows of a step);
 * `BN_ERR_MEMORY_LIMIT`: it needs more KV blocks than sessions may hold together, or than requests
 * and sessions leave now; `BN_ERR_BUSY`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_session_restore(bn_engine *engine, bn_string name, const uint8_t *data, size_t size,
    bn_error *error);

/** Forgets every prefix in the KV cache that no request and no session uses.
 *
 * [not from a callback]
 * @return `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_cache_clear(bn_engine *engine, bn_error *error);

/** Writes up to `capacity` changes of the prefix cache, oldest first, each once. Never waits.
 *
 * @return `BN_ERR_WRONG_MODE`: `kv_events_capacity` is 0. */
bn_status bn_kv_events(bn_engine *engine, bn_kv_event *events, size_t event_size, size_t capacity,
    size_t *count, bn_error *error);

/* -- Statistics -------------------------------------------------------------------------------- */

/** Number of `bn_latency.buckets`. */
#define BN_LATENCY_BUCKETS (24)

/** Number of `bn_lengths.buckets`. */
#define BN_LENGTH_BUCKETS (20)

/** A distribution of times. The percentiles are 0 before the first sample. */
struct bn_latency {
    /** The median, in nanoseconds. */
    uint64_t p50_ns;
    /** The 90th percentile. */
    uint64_t p90_ns;
    /** The 99th percentile. */
    uint64_t p99_ns;
    /** Number of samples. */
    uint64_t count;
    /** Their sum. */
    uint64_t sum_ns;
    /** Bucket `i` has samples above `bn_latency_bound_ns(i - 1)` and up to
     * `bn_latency_bound_ns(i)`: together `count`. The bounds are 1, 2.5 and 5 of each decade from
     * 10 us to 50 s, 100 s, 300 s, and none. */
    uint64_t buckets[BN_LATENCY_BUCKETS];
};

/** A distribution of lengths in tokens. */
struct bn_lengths {
    /** Number of samples. */
    uint64_t count;
    /** Their sum. */
    uint64_t sum;
    /** The same by `bn_length_bound`. The bounds are 1, 2 and 5 of each decade up to 1000000, and
     * none. */
    uint64_t buckets[BN_LENGTH_BUCKETS];
};

/** A snapshot of an engine's counters, which start at 0 with the engine. */
struct bn_stats {
    /** Set by `bn_stats_init`. */
    uint32_t struct_size;
    /** When the engine was made, in nanoseconds since 1970. */
    uint64_t made_unix_ns;
    /** Nanoseconds since then. */
    uint64_t uptime_ns;
    /** Devices that compute; the CPU is one. */
    uint64_t devices;
    /** Devices that were lost. */
    uint64_t devices_lost;
    /** `bn_engine_config.max_batch_size`, of each device. */
    uint64_t max_batch_size;
    /** `bn_engine_config.context_length`, or less if the KV cache holds no more, or of an encoder a
     * step (`max_batch_tokens`). */
    uint64_t context_length;
    /** Requests accepted. */
    uint64_t accepted;
    /** Requests refused for their parameters. */
    uint64_t rejected_invalid;
    /** Requests refused with `BN_ERR_QUEUE_FULL`. */
    uint64_t rejected_queue_full;
    /** Requests refused with `BN_ERR_TOO_LONG`. */
    uint64_t rejected_too_long;
    /** Requests refused with `BN_ERR_MEMORY_LIMIT` or `BN_ERR_OUT_OF_MEMORY`. */
    uint64_t rejected_memory;
    /** Requests refused with `BN_ERR_SHUTDOWN`. */
    uint64_t rejected_shutdown;
    /** Requests finished as `BN_FINISH_STOP`. */
    uint64_t completed_stop;
    /** Requests finished as `BN_FINISH_STOP_STRING`. */
    uint64_t completed_stop_string;
    /** Requests finished as `BN_FINISH_LENGTH`. */
    uint64_t completed_length;
    /** Requests finished as `BN_FINISH_EMBEDDING`. */
    uint64_t completed_embedding;
    /** Requests finished as `BN_FINISH_CANCELLED`. */
    uint64_t completed_cancelled;
    /** Requests finished as `BN_FINISH_TIMED_OUT`. */
    uint64_t completed_timed_out;
    /** Requests finished as `BN_FINISH_FAILED`. */
    uint64_t completed_failed;
    /** Requests waiting for their first admission now. */
    uint64_t queued;
    /** Requests admitted and not finished, paused and interrupted ones included. */
    uint64_t running;
    /** Requests paused now; they count as running. */
    uint64_t paused;
    /** Requests that are not freed; they count against `queue_capacity`. */
    uint64_t unreleased;
    /** Its limit. */
    uint64_t queue_capacity;
    /** Prompt tokens of the requests in `queued`. */
    uint64_t queued_tokens;
    /** Their limit; 0: none. */
    uint64_t queue_token_capacity;
    /** Nanoseconds that the oldest queued request of priority 0 to 63, 64 to 127, 128 to 191 and
     * 192 to 255 has waited, or 0. */
    uint64_t queue_age_ns[4];
    /** Running requests interrupted, for KV blocks or a higher priority. */
    uint64_t preemptions;
    /** Requests paused, without KV blocks, as output was not polled or memory was short. */
    uint64_t pauses;
    /** Prompt tokens that went through the model, each once. */
    uint64_t prompt_tokens;
    /** Tokens generated. */
    uint64_t generated_tokens;
    /** Prompt tokens of requests at their first admission. */
    uint64_t queried_tokens;
    /** Prompt tokens that were in the prefix cache, not in `prompt_tokens`. */
    uint64_t cached_tokens;
    /** Tokens computed again after an interruption or a pause, not in `prompt_tokens`. */
    uint64_t recomputed_tokens;
    /** Forward passes. */
    uint64_t steps;
    /** Requests in forward passes, summed over passes. */
    uint64_t batched_requests;
    /** Requests in the last forward pass, summed over devices. */
    uint64_t last_batch_size;
    /** Forward passes that carried running answers. */
    uint64_t decode_steps;
    /** Forward passes with running answers that took longer than `max_step_ms`. */
    uint64_t long_steps;
    /** Nanoseconds of forward passes that prompts took, tokens computed again included; a pass
     * with prompts and answers is split by the cost of their rows. This, `decode_ns`, `idle_ns`
     * and `drafting_ns` are sums over the devices. */
    uint64_t prefill_ns;
    /** Nanoseconds of forward passes that answers took. */
    uint64_t decode_ns;
    /** Nanoseconds in which nothing could run: no requests, or all paused. What is left of
     * `uptime_ns` (times `devices`) went into planning, sampling and handing over. */
    uint64_t idle_ns;
    /** From submit to admission. */
    bn_latency queue_wait;
    /** From submit to the first generated token. */
    bn_latency time_to_first_token;
    /** From a generated token to the next of the same request. */
    bn_latency inter_token;
    /** From submit to the terminal event. */
    bn_latency end_to_end;
    /** From admission to the end of the prompt, of ended requests that got so far. */
    bn_latency request_prefill;
    /** From the first generated token to the last, of ended requests that have one. */
    bn_latency request_decode;
    /** Prompt tokens of ended requests. */
    bn_lengths prompt_lengths;
    /** Generated tokens of ended requests. */
    bn_lengths generated_lengths;
    /** Blocks of the KV cache. */
    uint64_t kv_blocks_total;
    /** Blocks that requests and sessions hold now. */
    uint64_t kv_blocks_used;
    /** Blocks not in use, with prefixes that a later request may take. */
    uint64_t kv_blocks_cached;
    /** Cached blocks given up because requests needed the room. */
    uint64_t kv_evictions;
    /** Tokens in a block of the KV cache. */
    uint64_t kv_block_size;
    /** Bytes of all blocks. */
    uint64_t kv_bytes;
    /** Sessions kept now. */
    uint64_t sessions;
    /** Blocks that they hold. One that several share counts for each. */
    uint64_t session_blocks;
    /** Bytes that count against `memory_limit_bytes` now, with compiled constraints that are
     * kept. */
    uint64_t memory_used_bytes;
    /** The most that it has been. */
    uint64_t memory_peak_bytes;
    /** Its limit; 0: none. */
    uint64_t memory_limit_bytes;
    /** Tokens that were drafted and verified. */
    uint64_t drafted_tokens;
    /** Drafted tokens that outputs have. */
    uint64_t accepted_tokens;
    /** Nanoseconds of passes that draft, not in `prefill_ns` and `decode_ns`. */
    uint64_t drafting_ns;
    /** Constraints of requests that were compiled without an error. */
    uint64_t grammars_compiled;
    /** Constraints of requests that were found compiled. */
    uint64_t grammars_reused;
    /** Nanoseconds of compiling, on threads that submit. */
    uint64_t grammar_compile_ns;
    /** Masks computed: which tokens a constraint allows next. */
    uint64_t masks;
    /** Nanoseconds that they took, beside the forward passes. */
    uint64_t mask_ns;
    /** Nanoseconds that sampling waited for them, summed over requests. */
    uint64_t mask_wait_ns;
    /** Gates of feed-forwards with ReLU² (BitNet b1.58 2B-4T) that passes with up to four tokens
     * looked at. */
    uint64_t ffn_gates;
    /** Gates that are shut, which make their value zero. */
    uint64_t ffn_gates_shut;
    /** 1 while `bn_engine_pause` is in force, else 0. */
    uint64_t engine_paused;
    /** Compute threads that take part (`bn_engine_set_threads`). */
    uint64_t threads;
    /** Bytes of mapped weights whose pages were released (`idle_release_ms`); 0 again once a
     * request runs. */
    uint64_t weights_released_bytes;
    /** Times that this happened. */
    uint64_t weight_releases;
    /** Prompt tokens that were read from `cache_path`; most are then in `cached_tokens`. */
    uint64_t disk_tokens;
    /** Prefixes that requests began to wait for from there. */
    uint64_t disk_fetches;
    /** Prefixes of these that took longer than computing them would have. */
    uint64_t disk_fetches_late;
    /** Bytes read from there. */
    uint64_t disk_read_bytes;
    /** Nanoseconds of reading, on a thread of its own. */
    uint64_t disk_read_ns;
    /** Bytes written there. */
    uint64_t disk_written_bytes;
    /** Nanoseconds of writing, on the same thread. */
    uint64_t disk_write_ns;
    /** Blocks and states that left memory and were not written, as that failed or was too slow. */
    uint64_t disk_dropped;
    /** Files there that were damaged. */
    uint64_t disk_damaged;
    /** Bytes of the files there that this engine knows. */
    uint64_t disk_bytes;
};

/** Prepares `*stats` for `bn_engine_stats`. */
bn_status bn_stats_init(bn_stats *stats, uint32_t struct_size);

/** Writes a snapshot to `*out`. */
bn_status bn_engine_stats(bn_engine *engine, bn_stats *out, bn_error *error);

/** Writes the statistics as Prometheus text (exposition format 0.0.4): at most 32768 bytes in this
 * version with a model's name of up to 256. hosts/server/README.md lists the metrics. */
bn_status bn_engine_metrics(bn_engine *engine, char *text, size_t capacity, size_t *length,
    bn_error *error);

/** Writes a report for people on how efficiently the engine runs, at most 4096 bytes in this
 * version. Its wording may change in any. */
bn_status bn_engine_report(bn_engine *engine, char *text, size_t capacity, size_t *length,
    bn_error *error);

/** The inclusive upper bound of a bucket of `bn_latency`, in nanoseconds; `UINT64_MAX` for the
 * last and for those beyond. */
uint64_t bn_latency_bound_ns(uint32_t bucket);

/** Like `bn_latency_bound_ns`, for `bn_lengths`, in tokens. */
uint64_t bn_length_bound(uint32_t bucket);

/* -- Spans ------------------------------------------------------------------------------------- */

/** From submit to admission. `tokens` are the prompt's. */
#define BN_SPAN_QUEUED (1u)
/** From admission to the end of the prompt. `tokens` are the prompt tokens that were not cached. */
#define BN_SPAN_PREFILL (2u)
/** From the first generated token to the last. `tokens` are the generated ones. */
#define BN_SPAN_DECODE (3u)

/** A phase of a traced request that has ended. */
struct bn_span {
    uint32_t struct_size;
    /** `BN_SPAN_*`. */
    uint32_t kind;
    /** The request. */
    bn_request request;
    /** As in `bn_request_params`. */
    uint64_t user_data;
    /** How the request ended, `BN_FINISH_*`. */
    uint32_t finish_reason;
    /** As in `bn_request_params`. */
    bn_trace trace;
    /** When the phase began, in nanoseconds since 1970. */
    uint64_t start_ns;
    /** When it ended, at the latest with the request. */
    uint64_t end_ns;
    /** Tokens of the phase. */
    uint32_t tokens;
    /** Prompt tokens that were in the prefix cache. */
    uint32_t cached_tokens;
};

#ifdef __cplusplus
}
#endif

#endif
