/**
 * @file bn_engine.h
 * bn_engine: a continuous-batching LLM engine behind a C ABI.
 *
 * Generated from src/ffi by cbindgen: change it there and run `make header`.
 *
 * A program makes an engine of a model, submits requests from any thread, and takes their events:
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
 *         if (bn_poll(engine, request, &event, sizeof event, 1, BN_FOREVER, &count, &error))
 *             return puts(error.message);
 *         fwrite(event.text.data, 1, event.text.length, stdout);
 *         bn_events_free(engine, &event, sizeof event, count);
 *     }
 *     bn_release(engine, request, NULL);
 *     bn_engine_destroy(engine);
 *
 * An engine thread for each device runs the active requests together: each step is one forward
 * pass, with a token of each running answer and a chunk of new prompts. Such a program needs the
 * first two sections, and fields of the structs that they name; each other section has one subject.
 *
 * These rules hold for every call:
 *
 * **Errors.** `BN_OK` is 0; errors are negative. A last parameter `bn_error *` may be NULL; it gets
 * the reason in words. On an error nothing else is written, unless the comment says so. Each call
 * that returns a status may return `BN_ERR_INVALID_ARGUMENT`, `BN_ERR_OUT_OF_MEMORY` and
 * `BN_ERR_INTERNAL`, and one on an engine `BN_ERR_FORKED`. The comments name the others.
 *
 * **Threads.** Any thread may make any call at any time, also from a callback. The exceptions are
 * marked [not from a callback]: they may wait, those of sessions and the cache for the end of a
 * step. In a callback they return `BN_ERR_REENTRANT`, whichever engine called back. No lock is held
 * in a callback. It must return: no `longjmp`, no C++ exception.
 *
 * **Buffers.** A call that writes a text, ids, a vector or a session takes the buffer's `capacity`
 * in elements and writes the number that it needs to `*length` or `*count`. If that is more, it
 * returns `BN_ERR_BUFFER_TOO_SMALL` and writes nothing else. To ask for the number alone, pass NULL
 * and 0.
 *
 * **Ownership.** The library copies what you pass in, or needs it only until the call returns.
 * What it returns belongs to it; the comment says until when it is valid. A `const char *` is a
 * static NUL-terminated string. Handles of engines, models and adapters are only names: they are
 * looked up, never dereferenced and never reused, and a freed one is refused.
 *
 * **Growth.** Structs may get new fields at their end, and the library touches no more of one than
 * its caller compiled: `bn_X_init(&x, sizeof x)` sets the defaults of a struct that the caller
 * fills or hands over, and arrays are passed with the size of an element, `sizeof(bn_X)`. Unknown
 * fields must be 0 and unknown flags unset, or the call fails with `BN_ERR_UNSUPPORTED`. A struct
 * without a size of its own never grows. Numbers of constants are never reused.
 *
 * **Fields.** `X_count` is the number of elements of `X`, and `X_context` is passed to the callback
 * `X`. A text that is not set is all zeros, as `bn_X_init` leaves it.
 *
 * **Fork.** A child process may use models of its parent, and open models and make engines of its
 * own. It cannot use engines of its parent.
 *
 * **Host safety.** A panic in the library becomes `BN_ERR_INTERNAL` or `BN_ERR_ENGINE_DEAD`. The
 * library never prints, exits, or changes signal handlers. No call is a cancellation point of
 * pthread_cancel. A thread that calls needs 64 KiB of stack. docs/api.md and SECURITY.md say more.
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

/** A LoRA adapter of an engine. Made by `bn_adapter_open`, freed by `bn_adapter_free`. */
typedef struct bn_adapter bn_adapter;

/** An engine: the threads, KV cache and requests that run one model. Made by `bn_engine_create`,
 * freed by `bn_engine_destroy`. */
typedef struct bn_engine bn_engine;

/** A model: weights, tokenizer and chat template. Immutable, so any number of engines may share
 * one. Made by `bn_model_open` or `bn_engine_model`, freed by `bn_model_free`. */
typedef struct bn_model bn_model;

typedef struct bn_string bn_string;
typedef struct bn_error bn_error;
typedef struct bn_request_info bn_request_info;
typedef struct bn_request_params bn_request_params;
typedef struct bn_logprob bn_logprob;
typedef struct bn_tool_call bn_tool_call;
typedef struct bn_event bn_event;
typedef struct bn_engine_config bn_engine_config;
typedef struct bn_model_config bn_model_config;
typedef struct bn_model_info bn_model_info;
typedef struct bn_chat_message bn_chat_message;
typedef struct bn_logit_bias bn_logit_bias;
typedef struct bn_logits bn_logits;
typedef struct bn_kv_event bn_kv_event;
typedef struct bn_latency bn_latency;
typedef struct bn_lengths bn_lengths;
typedef struct bn_stats bn_stats;
typedef struct bn_span bn_span;

/* -- Texts, errors, versions ------------------------------------------------------------------- */

/** Success. */
#define BN_OK (0)

/** An argument is NULL, out of range, not UTF-8, of a wrong size, or not a live handle. */
#define BN_ERR_INVALID_ARGUMENT (-1)
/** No such request: the engine never issued it, or it was released. Or no session of this name. */
#define BN_ERR_NOT_FOUND (-2)
/** A field, flag, model or file feature that this version does not support. */
#define BN_ERR_UNSUPPORTED (-3)
/** Another thread is polling this request, or every KV block is in use. */
#define BN_ERR_BUSY (-4)
/** `queue_capacity` requests are unreleased, or `queue_token_capacity` prompt tokens are queued, or
 * too many constraints are being compiled. Release finished requests, or try again later. */
#define BN_ERR_QUEUE_FULL (-5)
/** The system refused an allocation or a thread. */
#define BN_ERR_OUT_OF_MEMORY (-6)
/** `memory_limit_bytes`, or the size of the KV cache, does not allow it. */
#define BN_ERR_MEMORY_LIMIT (-7)
/** A file cannot be opened or mapped, or is not a regular file. */
#define BN_ERR_IO (-8)
/** The model's files are malformed or truncated, or the model computed a value that is not a
 * number. */
#define BN_ERR_BAD_MODEL (-9)
/** The call belongs to the other delivery mode, or to a feature that `bn_engine_config` turns
 * off. */
#define BN_ERR_WRONG_MODE (-10)
/** The call is not allowed from a callback. */
#define BN_ERR_REENTRANT (-11)
/** The engine is shutting down or has shut down. */
#define BN_ERR_SHUTDOWN (-12)
/** The engine's thread died of a bug, or its last device was lost. Every request has its last
 * event. */
#define BN_ERR_ENGINE_DEAD (-13)
/** The engine was made before this process was forked. */
#define BN_ERR_FORKED (-14)
/** Ended by a progress callback, a cancel or a shutdown. */
#define BN_ERR_CANCELLED (-15)
/** The prompt leaves no room for a new token, or the text is longer than the library takes. */
#define BN_ERR_TOO_LONG (-16)
/** The caller's buffer is too small. Only the needed size was written. */
#define BN_ERR_BUFFER_TOO_SMALL (-17)
/** A bug in this library. The message says where. */
#define BN_ERR_INTERNAL (-18)
/** The request's timeout passed. */
#define BN_ERR_TIMED_OUT (-19)
/** The request's last event was polled before. There will never be another. */
#define BN_ERR_FINISHED (-20)

/** Version of the ABI. It changes only if a program compiled against an older header could break.
 * Compare it with `bn_abi_version()`. */
#define BN_ABI_VERSION (1u)

/** This header's version of the library. `bn_version()` returns the version of the linked one. */
#define BN_VERSION_MAJOR (0u)
/** See `BN_VERSION_MAJOR`. */
#define BN_VERSION_MINOR (1u)
/** See `BN_VERSION_MAJOR`. */
#define BN_VERSION_PATCH (0u)

/** The result of a call: `BN_OK` or a negative `BN_ERR_*`. */
typedef int32_t bn_status;

/** UTF-8 text. A text that you pass may have the length `BN_NUL_TERMINATED`. A text that the
 * library returns has its length, no NUL at its end, and a `data` that is never NULL. */
struct bn_string {
    /** The bytes. NULL with a length of 0: not set. `BN_TEXT(NULL)` is an error. */
    const char *data;
    /** Number of bytes. */
    size_t length;
};

/** Why a call failed, in words. It needs no preparation: each call overwrites it. */
struct bn_error {
    /** The status that the call returned. */
    int32_t status;
    /** What went wrong, where, and what to do, as UTF-8 with a NUL at its end. A long message loses
     * its middle. Empty after success. */
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

/* -- An engine and its requests ---------------------------------------------------------------- */

/** For `bn_poll`: any request, except those with `BN_REQUEST_POLL_BY_ID`. For `bn_cancel`: all
 * requests. */
#define BN_ANY (18446744073709551615ull)

/** As a time in milliseconds: no limit. */
#define BN_FOREVER (4294967295u)

/** The id of a request, valid for its engine until `bn_release`. Never 0 and never `BN_ANY`. A
 * stale or foreign id is refused with `BN_ERR_NOT_FOUND`. */
typedef uint64_t bn_request;

/** Fills `*config` with the defaults. */
bn_status bn_engine_config_init(bn_engine_config *config, uint32_t struct_size);

/** Makes an engine and writes it to `*out`: loads the model, unless `config` has one that is open,
 * and starts the engine's threads (named `bn-*`, with all signals blocked). A process may have
 * several engines.
 *
 * @return `BN_ERR_UNSUPPORTED`: the machine lacks `instructions`, or `device` is missing, has too
 * old a driver or cannot take the weights, or the library has no kernels for it;
 * `BN_ERR_MEMORY_LIMIT`: the limit, or the free memory, is too small for the model and one
 * sequence; and as `bn_model_open`. */
bn_status bn_engine_create(const bn_engine_config *config, bn_engine **out, bn_error *error);

/** Destroys an engine: cancels every request, joins every thread, closes every descriptor and frees
 * everything, events included. NULL is ignored.
 *
 * A `bn_poll` that blocks in another thread returns `BN_ERR_SHUTDOWN`; a blocked `bn_generate`
 * returns what it has, as `BN_FINISH_CANCELLED`; a blocked `bn_embed` returns `BN_ERR_CANCELLED`.
 * In poll mode, unread events are lost. In callback mode, every unreleased request gets its last
 * callback first, and none follows. In a forked child nothing happens.
 *
 * [not from a callback] */
bn_status bn_engine_destroy(bn_engine *engine);

/** Fills `*params` with the defaults. */
bn_status bn_request_params_init(bn_request_params *params, uint32_t struct_size);

/** Queues a request and writes its id to `*out`. It never waits for the model, but compiling a new
 * `constraint` may take seconds. Events may arrive, on other threads, before this returns. Exactly
 * one `BN_EVENT_COMPLETED` follows, as the request's last event, unless the request is released or
 * the engine destroyed first. Release every request when you are done with it; in callback mode
 * its last callback does so.
 *
 * @return `BN_ERR_UNSUPPORTED`: an unknown flag or field, or the model has no tokenizer or chat
 * template for what is asked; `BN_ERR_TOO_LONG`; `BN_ERR_QUEUE_FULL`; `BN_ERR_TIMED_OUT`: the
 * constraint was not compiled within `timeout_ms`, or ten seconds; `BN_ERR_MEMORY_LIMIT`;
 * `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_submit(bn_engine *engine, const bn_request_params *params, bn_request *out,
    bn_error *error);

/** Queues `params_count` requests, all or none, and writes their ids to `out[0]` to
 * `out[params_count - 1]`. `params` are that many pointers, 1 to `queue_capacity`. An error names
 * the request by its index.
 *
 * @return as `bn_submit`. */
bn_status bn_submit_batch(bn_engine *engine, const bn_request_params *const *params,
    size_t params_count, bn_request *out, bn_error *error);

/** Writes up to `capacity` (1 or more) waiting events to `events`, and their number to `*count`.
 * `event_size` is `sizeof(bn_event)`; `which` is a request, or `BN_ANY`. Waits up to `timeout_ms`
 * milliseconds for the first event: 0 does not wait, `BN_FOREVER` has no limit.
 *
 * A count of 0 means that nothing came in time.
 *
 * Each event goes to one caller: at most one event of a request in one call, and those of a
 * request in order. Give events back with `bn_events_free`. If several threads poll `BN_ANY`, one
 * may get a request's last event while another still reads an earlier one: release a request only
 * after all its events were given back.
 *
 * A signal does not end the wait.
 *
 * [not from a callback]
 * @return `BN_ERR_FINISHED`: the request's last event was polled before; `BN_ERR_SHUTDOWN`: the
 * engine has shut down and no event for `BN_ANY` is left, or it was destroyed meanwhile;
 * `BN_ERR_ENGINE_DEAD`: no event for `BN_ANY` is left; `BN_ERR_NOT_FOUND`: also if the request
 * is released meanwhile; `BN_ERR_BUSY`: another thread is polling this request;
 * `BN_ERR_MEMORY_LIMIT`: too many events are not given back; `BN_ERR_WRONG_MODE`: callback
 * mode. */
bn_status bn_poll(bn_engine *engine, bn_request which, bn_event *events, size_t event_size,
    size_t capacity, uint32_t timeout_ms, size_t *count, bn_error *error);

/** Gives back `events_count` events that `bn_poll` returned, from any number of polls, and frees
 * what they point to. An event that was given back before, or whose request was released, is
 * skipped. */
bn_status bn_events_free(bn_engine *engine, const bn_event *events, size_t event_size,
    size_t events_count);

/** Asks the engine to end a request, or with `BN_ANY` all requests, and returns at once. A running
 * request ends after the current forward pass, or within it if nobody else takes part. Its last
 * event says what happened. Cancelling a finished request does nothing.
 *
 * @return `BN_ERR_NOT_FOUND`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_cancel(bn_engine *engine, bn_request which, bn_error *error);

/** Releases a request: the id becomes invalid, and its events, polled ones too, are freed. A live
 * request is cancelled; it counts against `queue_capacity` until the engine has let go of it, at
 * most a step later.
 *
 * In callback mode the last callback releases the request. If another thread releases it earlier,
 * a callback may still be running: only `bn_engine_destroy` waits for it.
 *
 * @return `BN_ERR_NOT_FOUND`. */
bn_status bn_release(bn_engine *engine, bn_request request, bn_error *error);

/** Submits one request, waits for its end and writes its only event to `*out`: the whole text and
 * all tokens. Free it with `bn_completion_free`; it does not need the engine any more. This works
 * in both delivery modes, beside all other requests, and there is nothing to release.
 * `BN_REQUEST_NO_STREAM` and `BN_REQUEST_POLL_BY_ID` make no difference.
 *
 * A request that was cancelled or timed out is a success, with that finish reason and what it had.
 * One that failed is an error. To end it early, use a timeout, `bn_cancel` of `BN_ANY`, or a
 * shutdown with `BN_SHUTDOWN_CANCEL`.
 *
 * [not from a callback]
 * @return as `bn_submit`; or the status of a request that failed. */
bn_status bn_generate(bn_engine *engine, const bn_request_params *params, bn_event **out,
    bn_error *error);

/** Frees what `bn_generate` returned. NULL is ignored. */
void bn_completion_free(bn_event *completion);

/* -- Callbacks --------------------------------------------------------------------------------- */

/** Receives one event, on the engine's delivery thread, one call at a time; the events of a request
 * come in order. `event` and what it points to are valid until the callback returns. It should not
 * take long: other events wait meanwhile, though the model keeps running. */
typedef void (*bn_event_callback)(const bn_event *event, void *context);

/** Receives one line of the log. `message` is valid until the callback returns. It may run on any
 * thread, on several at once, and inside the host's own calls. None runs after
 * `bn_engine_destroy`, or for a model `bn_model_open`, has returned. */
typedef void (*bn_log_callback)(int32_t level, bn_string message, void *context);

/** Receives the progress of loading, `fraction` from 0 to 1, and what is being loaded, on a thread
 * of the library while `bn_model_open` waits. If it returns anything but 0, `bn_model_open`
 * returns `BN_ERR_CANCELLED`. */
typedef int32_t (*bn_progress_callback)(float fraction, bn_string what, void *context);

/** Changes a request's logits before each of its tokens. Biases, penalties, samplers and log
 * probabilities work on the result. Anything but 0 ends the request as `BN_FINISH_FAILED` with
 * `BN_ERR_CANCELLED`.
 *
 * It is called on threads of the engine, for several requests at a time, and all requests wait
 * until it returns. What `*row` points to is valid until then. The output is the same in every
 * batch only if the callback depends on `*row` alone. Keep it and its context alive until the
 * request's last event, or, if the request is released before, until `bn_engine_destroy` has
 * returned. */
typedef int32_t (*bn_logits_callback)(const bn_logits *row, void *context);

/** Receives the spans of a request that has a `trace_id`, when it has ended: one for each phase
 * that it reached, in order. None comes for requests that end because the engine died. The thread
 * of the request's device calls it, and the requests there wait until it returns, so it should
 * copy `*span`, which is valid until then. The request's last event may come before or after. None
 * runs after `bn_engine_destroy` has returned. */
typedef void (*bn_span_callback)(const bn_span *span, void *context);

/* -- Requests ---------------------------------------------------------------------------------- */

/** Generate an output. */
#define BN_TASK_GENERATE (0)
/** Compute the prompt's embedding, and return it in one event. `max_new_tokens` is ignored;
 * sampling and stop fields, `messages`, `chat_json` and the output flags must have their
 * defaults. */
#define BN_TASK_EMBED (1)
/** Return the prompt's tokens from `logprobs_from` on and their log probabilities, in one event
 * that finishes the request as `BN_FINISH_LENGTH`. The tokens before them come from the prefix
 * cache if they are there, so continuations of one prompt compute it once. For reranking,
 * classification and evaluation. `max_new_tokens` is ignored; stop fields, `constraint`,
 * `on_logits` and `chat_json` are refused. */
#define BN_TASK_SCORE (2)

/** One event at the end, with the whole text and all tokens. */
#define BN_REQUEST_NO_STREAM (1u << 0)
/** Only a `bn_poll` of the request's own id returns its events: `BN_ANY` and the wait descriptor do
 * not see them. Refused in callback mode. */
#define BN_REQUEST_POLL_BY_ID (1u << 1)
/** Return the prompt's text and tokens in front of the output. */
#define BN_REQUEST_ECHO_PROMPT (1u << 2)
/** Do not end at the model's end tokens. */
#define BN_REQUEST_IGNORE_EOS (1u << 3)
/** Return the log probability of each generated token, and of `top_logprobs` more. */
#define BN_REQUEST_LOGPROBS (1u << 4)
/** Control tokens spelled out in `prompt` (like `<|eot_id|>`) become those tokens. Not for text
 * from outside. */
#define BN_REQUEST_PARSE_SPECIAL (1u << 5)
/** With `BN_TASK_EMBED`: do not divide the vector by its Euclidean length. */
#define BN_REQUEST_EMBED_RAW (1u << 6)
/** Take nothing from the prefix cache and leave nothing there. Results are the same. Refused with
 * `session`. */
#define BN_REQUEST_NO_CACHE (1u << 7)
/** Needs `queue_timeout_ms`: end a queued request, as `BN_FINISH_TIMED_OUT`, as soon as its first
 * token is predicted to come later than that. In overload, no time goes into requests that would
 * be late anyway. */
#define BN_REQUEST_DROP_LATE (1u << 8)
/** End the request, as `BN_FINISH_CANCELLED`, when its unread output would pause it
 * (`max_unread_bytes`). */
#define BN_REQUEST_END_UNREAD (1u << 9)
/** With `BN_REQUEST_LOGPROBS`: log probabilities of the distribution that the token is drawn from,
 * behind penalties, temperature and samplers (of a dropped token: -infinity), instead of the
 * model's own. */
#define BN_REQUEST_CHAIN_LOGPROBS (1u << 10)
/** Needs `chat_json`: events have the answer's reasoning in `reasoning`, calls of tools in
 * `tool_calls`, and the rest in `text`, without the markers between them and line breaks beside
 * these. A call is returned as soon as its name is known and its arguments begin, and these as
 * they come. If they turn out not to be JSON, the call keeps what was returned of them, and the
 * rest is text. Stop strings are looked for in all that is generated. */
#define BN_REQUEST_PARSE_OUTPUT (1u << 11)
/** With `BN_REQUEST_ECHO_PROMPT` and `BN_REQUEST_LOGPROBS`: return the log probabilities of the
 * prompt's tokens too, from `logprobs_from` on: each one given those before it, by the model's
 * own softmax. Before that position, and for the first token, they are NaN. Refused with
 * `chat_json`. */
#define BN_REQUEST_PROMPT_LOGPROBS (1u << 12)

/** The default of `bn_request_params.priority`. */
#define BN_PRIORITY_DEFAULT (128u)
/** The most urgent `bn_request_params.priority`. */
#define BN_PRIORITY_MAX (255u)

/** The largest `stop_strings_count` and `stop_tokens_count`. */
#define BN_MAX_STOPS (256u)

/** The request waits for admission. */
#define BN_STAGE_QUEUED (0)
/** The request was admitted. It takes part in forward passes, unless it is paused or
 * interrupted. */
#define BN_STAGE_RUNNING (1)
/** The request has finished. Its last event may still wait to be polled. */
#define BN_STAGE_FINISHED (2)

/** Where a request is. */
struct bn_request_info {
    uint32_t struct_size;
    /** `BN_STAGE_*`. */
    int32_t stage;
    /** For `BN_STAGE_QUEUED`: the number of queued requests that were submitted before it, whatever
     * their priorities are. Otherwise 0. */
    uint64_t queue_position;
};

/** One request. Set one of `prompt`, `prompt_tokens`, `messages` and `chat_json`. Nothing that it
 * points to is needed after the call that submits it. */
struct bn_request_params {
    uint32_t struct_size;
    /** `BN_TASK_*`. Default `BN_TASK_GENERATE`. */
    int32_t task;
    /** `BN_REQUEST_*`. Default 0. */
    uint32_t flags;
    /** 0 to `BN_PRIORITY_MAX`, the most urgent. Default `BN_PRIORITY_DEFAULT`. Requests are ordered
     * by arrival and priority; `bn_engine_config.priority_ageing_ms` says how much a priority is
     * worth. A request without room interrupts running ones that are behind it and of lower
     * priority, the last one first. They go on later, with the same output. */
    uint32_t priority;
    /** Returned in every event of the request. */
    uint64_t user_data;
    /** The prompt as text. The tokenizer puts in front of it the tokens that the model wants (BOS),
     * and behind a text to embed those that it wants there (EOS). */
    bn_string prompt;
    /** The prompt as token ids, used as they are. */
    const uint32_t *prompt_tokens;
    size_t prompt_tokens_count;
    /** The prompt as a conversation, first message first. The model's chat template makes the
     * prompt and begins the assistant's answer. `content` never becomes a control token, but
     * `role` may. */
    const bn_chat_message *messages;
    /** Number of `messages`, at most 65536. */
    size_t messages_count;
    /** `sizeof(bn_chat_message)`; set by `bn_request_params_init`. */
    size_t message_size;
    /** The prompt as a conversation with tools: a JSON object with the fields of OpenAI's chat
     * completions `messages`, `tools`, `tool_choice`, `parallel_tool_calls`, and of
     * transformers' chat templates `chat_template_kwargs` (the template's variables),
     * `documents`, `add_generation_prompt` and `continue_final_message` (the answer goes on
     * with the last message). `tool_format` and `reasoning_format` say how the model writes
     * calls and reasoning, in place of what its template tells. Other fields are refused, nulls
     * ignored. No text in it becomes a control token, names included. At most 64 MiB, 65536
     * messages and 1048576 values.
     *
     * A `tool_choice` of "required" or of a function constrains the output to such a call, as its
     * `parameters` say; "auto" with `strict` tools, or without `parallel_tool_calls`, constrains
     * the calls that come. `constraint` must not be set then. With "none", the model sees the
     * tools, and calls are text. docs/chat.md says more. */
    bn_string chat_json;
    /** The most tokens to generate, default 128. 0: as many as `max_sequence_length` leaves, which
     * limits the output in any case. */
    uint32_t max_new_tokens;
    /** Neither the model's end tokens (with `BN_REQUEST_IGNORE_EOS` too) nor `stop_tokens` come
     * before this many tokens, unless a `constraint` leaves nothing else. Stop strings may.
     * Default 0. */
    uint32_t min_new_tokens;
    /** Milliseconds from submit after which the request ends as `BN_FINISH_TIMED_OUT` with what it
     * has. 0 (default): the engine's `default_timeout_ms`. `BN_FOREVER`: no timeout. */
    uint32_t timeout_ms;
    /** Milliseconds from submit after which a request that is still queued ends as
     * `BN_FINISH_TIMED_OUT`. 0 (default): `timeout_ms` alone counts. */
    uint32_t queue_timeout_ms;
    /** Tokens that end the output, besides the model's own end tokens. They count even with
     * `BN_REQUEST_IGNORE_EOS`. */
    const uint32_t *stop_tokens;
    /** Number of `stop_tokens`, at most `BN_MAX_STOPS`. */
    size_t stop_tokens_count;
    /** Texts of 1 to 65536 bytes that end the output. The returned text ends before the first one;
     * `tokens` and usage count every generated token. Only generated text is searched. */
    const bn_string *stop_strings;
    /** Number of `stop_strings`, at most `BN_MAX_STOPS`. */
    size_t stop_strings_count;
    /** Seed of the random numbers. The same seed, prompt and parameters give the same output,
     * whatever else runs. Default 0. */
    uint64_t seed;
    /** 0 to 100. 0 (default): always the most likely token. */
    float temperature;
    /** The temperature moves by this much up and down, 0 (default) to 100, with the entropy of the
     * remaining tokens: up if many are likely, down if one is. */
    float temperature_range;
    /** Shape of that movement: the entropy as a share of the greatest possible one, raised to this.
     * Above 0, at most 100, default 1. */
    float temperature_exponent;
    /** Sample from this many most likely tokens. 0 (default): all. */
    uint32_t top_k;
    /** Sample from the most likely tokens that together reach this probability, above 0, at most 1
     * (default). */
    float top_p;
    /** Drop tokens less likely than this times the most likely one, 0 (default) to 1. */
    float min_p;
    /** Sample from the tokens whose surprise is closest to the entropy and that together reach this
     * probability, above 0, at most 1 (default). */
    float typical_p;
    /** Drop tokens whose logits are more than this many standard deviations below the greatest one,
     * up to 1000. 0 (default): off. */
    float top_n_sigma;
    /** The probability, 0 (default) to 1, of dropping all tokens that are at least `xtc_threshold`
     * likely except the least likely of them. */
    float xtc_probability;
    /** Above 0, at most 1. Default 0.1. */
    float xtc_threshold;
    /** Mirostat 2: keep the surprise of tokens at this many bits, up to 100, with no other
     * `BN_SAMPLER_*` on but temperature. 0 (default): off. */
    float mirostat_tau;
    /** How fast mirostat follows, 0 to 1. Default 0.1. */
    float mirostat_eta;
    /** The samplers and their order: `BN_SAMPLER_*`, each at most once. One that is left out must
     * be off. Not set (default): all, in the order of their numbers. */
    const int32_t *samplers;
    size_t samplers_count;
    /** The penalties look at this many of the latest tokens of prompt and output. 0 (default):
     * all. */
    uint32_t penalty_window;
    /** Divides positive and multiplies negative logits of tokens in the prompt or output, above 0,
     * at most 100. 1 (default): off. */
    float repetition_penalty;
    /** Subtracted from a token's logit for each time it is in the output, -100 to 100. Default
     * 0. */
    float frequency_penalty;
    /** Subtracted from a token's logit if it is in the output, -100 to 100. Default 0. */
    float presence_penalty;
    /** DRY: a token that would lengthen a repetition of n tokens loses `dry_multiplier` times
     * `dry_base` to the power of n - `dry_allowed_length` in its logit. 0 (default, off) to
     * 100. */
    float dry_multiplier;
    /** 1 to 100. Default 1.75. */
    float dry_base;
    /** Shorter repetitions cost nothing. Default 2; 0 is as 1. */
    uint32_t dry_allowed_length;
    /** DRY looks at this many of the latest tokens of prompt and output. 0 (default): all. */
    uint32_t dry_window;
    /** Texts of 1 to 65536 bytes that no repetition crosses; a token whose text has one loses
     * nothing. NULL (default): a line break, `:`, `"` and `*`. */
    const bn_string *dry_breakers;
    /** Number of `dry_breakers`, at most 256. 0 with `dry_breakers` set: none. */
    size_t dry_breakers_count;
    /** Numbers to add to the logits of some tokens. */
    const bn_logit_bias *logit_bias;
    /** Number of `logit_bias`, at most 4096. */
    size_t logit_bias_count;
    /** Texts of 1 to 1024 bytes that do not come, alone or behind a space, in the tokenizer's own
     * spelling. The same text made of other tokens can come. */
    const bn_string *bad_words;
    /** Number of `bad_words`, at most 256. */
    size_t bad_words_count;
    /** Changes the logits before each token is sampled. Default NULL. Refused with
     * `BN_TASK_EMBED`. */
    bn_logits_callback on_logits;
    void *on_logits_context;
    /** `BN_CONSTRAINT_*`. Default `BN_CONSTRAINT_NONE`. */
    int32_t constraint_kind;
    /** `BN_JSON_*`: the spelling of the JSON of a constraint or of tool calls, and the meaning of
     * its schemas. A schema's own "x-guidance" overrides these flags. Default 0. Needs a
     * `constraint_kind` with JSON or Lark, or `chat_json`. */
    uint32_t json_flags;
    /** The output matches this, as `constraint_kind` says; at most 524288 bytes. Tokens that would
     * break it do not come, whatever else is asked for. When it is matched, the model's end tokens
     * may come, even with `BN_REQUEST_IGNORE_EOS`, and nothing else if the match cannot go on. An
     * output that `max_new_tokens` or a stop string ends early is the beginning of a match. It is
     * compiled while the request is submitted; the latest ones stay compiled. Not set (default):
     * none. */
    bn_string constraint;
    /** With `BN_REQUEST_LOGPROBS`: how many of the most likely tokens to return for each generated
     * one, at most 32. Default 0. */
    uint32_t top_logprobs;
    /** With `BN_REQUEST_PROMPT_LOGPROBS` or `BN_TASK_SCORE`: the first position of the prompt whose
     * log probability is wanted. Default 0. */
    uint32_t logprobs_from;
    /** With `BN_REQUEST_LOGPROBS`: tokens whose log probabilities to return for each generated one,
     * behind those of `top_logprobs`. */
    const uint32_t *logprob_tokens;
    /** Number of `logprob_tokens`, at most 256. */
    size_t logprob_tokens_count;
    /** With `BN_TASK_EMBED`: `BN_POOLING_*`. Default `BN_POOLING_MODEL`. */
    int32_t pooling;
    /** Factor of the adapter's update, -100 to 100. Default 1. */
    float adapter_scale;
    /** The adapter that the request runs with, of the same engine. NULL (default): none. Requests
     * with different adapters share no part of the prefix cache. */
    const bn_adapter *adapter;
    /** Requests with different salts share no part of the prefix cache, so that timing tells a
     * client nothing about the prompts of others. Default 0: requests that set none share. */
    uint64_t cache_salt;
    /** A name of 1 to 256 bytes. When the request ends, its keys and values stay in the KV cache
     * under this name, in place of what had the name before. The next turn of the conversation,
     * with the same `cache_salt`, finds them, however busy the engine was meanwhile. Nothing
     * changes if the request fails, ends while it does not run, or needs more than half of the KV
     * cache, which is the limit of all sessions together. The least recently used one goes first,
     * also to make room for a request that does not fit alone. Names belong to the engine: two
     * users need two names. Refused with `BN_REQUEST_NO_CACHE`. Not set (default): none. */
    bn_string session;
    /** `BN_SPECULATION_*`. Drafts never change the output. Default `BN_SPECULATION_DEFAULT`. */
    int32_t speculation;
    /** The most tokens drafted for one step, up to `BN_MAX_DRAFT_TOKENS`; their number follows from
     * how many were right, and from the time that they take. 0 (default): the engine's. */
    uint32_t draft_tokens;
    /** The trace that the request belongs to, as in W3C's `traceparent`: its spans go to
     * `bn_engine_config.on_span`. All zeros (default): none. */
    uint8_t trace_id[16];
    /** The caller's span that its spans belong to. All zeros (default): none. Needs `trace_id`. */
    uint8_t parent_id[8];
};

/** Prepares `*info` for `bn_request_get_info`. */
bn_status bn_request_info_init(bn_request_info *info, uint32_t struct_size);

/** Writes where a request is to `*out`. Slow for a queued request: it looks at all others.
 *
 * @return `BN_ERR_NOT_FOUND`. */
bn_status bn_request_get_info(bn_engine *engine, bn_request request, bn_request_info *out,
    bn_error *error);

/* -- Events ------------------------------------------------------------------------------------ */

/** New tokens and text; the request goes on. Everything since the last poll is in one event. */
#define BN_EVENT_TOKENS (1)
/** The request's last event, with a finish reason, usage, and the tokens and text not returned
 * before. */
#define BN_EVENT_COMPLETED (2)

/** Not finished (`BN_EVENT_TOKENS`). */
#define BN_FINISH_NONE (0)
/** An end token of the model, or one of `stop_tokens`. */
#define BN_FINISH_STOP (1)
/** One of `stop_strings`. */
#define BN_FINISH_STOP_STRING (2)
/** `max_new_tokens` or the engine's `max_sequence_length`. */
#define BN_FINISH_LENGTH (3)
/** Cancelled by `bn_cancel`, a shutdown or destroy, or for unread output
 * (`BN_REQUEST_END_UNREAD`). */
#define BN_FINISH_CANCELLED (4)
/** Its timeout passed, or was bound to (`BN_REQUEST_DROP_LATE`). */
#define BN_FINISH_TIMED_OUT (5)
/** It failed; `status` and `message` say why. */
#define BN_FINISH_FAILED (6)
/** The embedding is in `embedding` (`BN_TASK_EMBED`). */
#define BN_FINISH_EMBEDDING (7)

/** A token and its log probability. */
struct bn_logprob {
    /** The token's id. */
    uint32_t token;
    /** Natural logarithm of its probability by the model, before penalties, temperature and
     * samplers, or with `BN_REQUEST_CHAIN_LOGPROBS` by the distribution that it was drawn from. */
    float logprob;
};

/** A call of a tool in an answer, or the next part of one. */
struct bn_tool_call {
    /** Number of the call in the answer, from 0. */
    uint32_t index;
    /** Nine letters and digits, the same for the same prompt, seed and index. Empty in all parts
     * but the first. */
    bn_string id;
    /** The tool's name, as the model wrote it: not always one of `tools`. Empty in all parts but
     * the first. */
    bn_string name;
    /** The next part of the arguments' JSON. */
    bn_string arguments;
};

/** What happened to a request. What an event from `bn_poll` points to belongs to the caller that
 * polled it. It stays valid and unchanged until `bn_events_free` gives the event back,
 * `bn_release` ends its request, or `bn_engine_destroy` is called. In a callback it is valid until
 * the callback returns. */
struct bn_event {
    /** Bytes of this struct that the library wrote. */
    uint32_t struct_size;
    /** `BN_EVENT_*`. Ignore kinds that you do not know. */
    int32_t kind;
    /** The request. */
    bn_request request;
    /** `bn_request_params.user_data`. */
    uint64_t user_data;
    /** Names the event for `bn_events_free`. 0 in a callback. */
    uint64_t lease;
    /** New text: whole UTF-8 characters. */
    bn_string text;
    /** New tokens, an end token included. With `BN_REQUEST_ECHO_PROMPT` the first event begins with
     * the prompt's; with `BN_TASK_SCORE` they are the prompt's from `logprobs_from` on. NULL if
     * there are none. */
    const uint32_t *tokens;
    size_t tokens_count;
    /** For each of `tokens` its own entry, then `top_logprobs` more, the most likely first, then
     * those of `logprob_tokens`. NaN for the prompt's first token, and for its others without
     * `BN_REQUEST_PROMPT_LOGPROBS` or `BN_TASK_SCORE`. NULL without a flag that asks for them. */
    const bn_logprob *logprobs;
    /** Number of `logprobs`: `tokens_count * logprobs_per_token`. */
    size_t logprobs_count;
    /** 0, or 1 + `top_logprobs` + `logprob_tokens_count`. */
    uint32_t logprobs_per_token;
    /** `BN_FINISH_*`. */
    int32_t finish_reason;
    /** `BN_OK`, or why the request failed, was cancelled or timed out. */
    bn_status status;
    /** The index of the stop token (`BN_FINISH_STOP`) or stop string (`BN_FINISH_STOP_STRING`) that
     * ended the request; -1 for the model's own end token and for other reasons. */
    int32_t stop_index;
    /** Why the request failed, was cancelled or timed out. Empty otherwise. */
    bn_string message;
    /** New reasoning, which is not in `text` (`BN_REQUEST_PARSE_OUTPUT`): whole UTF-8
     * characters. */
    bn_string reasoning;
    /** New calls of tools, and more of the last one (`BN_REQUEST_PARSE_OUTPUT`). NULL if there are
     * none. */
    const bn_tool_call *tool_calls;
    size_t tool_calls_count;
    /** The vector, if `finish_reason` is `BN_FINISH_EMBEDDING`; otherwise NULL. */
    const float *embedding;
    size_t embedding_count;
    /** The pooling that made `embedding`, `BN_POOLING_*`; otherwise 0. */
    int32_t pooling;
    /** Calls in the whole answer; 0 before `BN_EVENT_COMPLETED`. After `BN_FINISH_STOP`, the model
     * waits for their results. */
    uint32_t tool_calls_total;
    /** Tokens of the prompt. This and the fields below are 0 before `BN_EVENT_COMPLETED`. */
    uint32_t prompt_tokens;
    /** Generated tokens, an end token included. */
    uint32_t generated_tokens;
    /** Prompt tokens that were in the prefix cache at admission and were not computed again. */
    uint32_t cached_tokens;
    /** Tokens that were drafted for the request and verified. */
    uint32_t drafted_tokens;
    /** Drafted tokens that the output has. */
    uint32_t accepted_tokens;
    /** Nanoseconds from submit to the first admission. */
    uint64_t queued_ns;
    /** Nanoseconds from admission to the end of the prompt. */
    uint64_t prefill_ns;
    /** Nanoseconds from submit to the first generated token. */
    uint64_t first_token_ns;
    /** Nanoseconds from the first generated token to the last. */
    uint64_t decode_ns;
    /** Nanoseconds from submit to this event. */
    uint64_t total_ns;
};

/** A finish reason in a word, like `stop`, or `unknown`. */
const char *bn_finish_reason_name(int32_t reason);

/* -- Engines ----------------------------------------------------------------------------------- */

/** Half precision. */
#define BN_KV_TYPE_F16 (0)
/** Single precision. */
#define BN_KV_TYPE_F32 (1)
/** int8, with a scale for each token and head. */
#define BN_KV_TYPE_INT8 (2)

/** The best instruction set that the machine has. */
#define BN_INSTRUCTIONS_AUTO (0)
/** Portable code. */
#define BN_INSTRUCTIONS_SCALAR (1)
/** x86-64 with AVX2, FMA and F16C. */
#define BN_INSTRUCTIONS_AVX2 (2)
/** AVX2 and AVX-VNNI. */
#define BN_INSTRUCTIONS_AVX_VNNI (3)
/** AVX2 and AVX-512 F, BW, VL and VNNI. */
#define BN_INSTRUCTIONS_AVX512_VNNI (4)
/** aarch64 NEON with dot products. */
#define BN_INSTRUCTIONS_NEON (5)
/** As AVX512_VNNI, and AMX tiles of bytes, if the system lets the process use them. An engine that
 * wants them, by default too, asks when it is created: from then on the system refuses signal
 * stacks (`sigaltstack`) without room for tiles, some 11 KiB. */
#define BN_INSTRUCTIONS_AMX (6)

/** The engine accepts requests. */
#define BN_STATE_RUNNING (0)
/** The engine accepts no more requests and finishes those that it has. */
#define BN_STATE_DRAINING (1)
/** Every request has finished. Events may still wait to be polled or delivered. */
#define BN_STATE_DRAINED (2)
/** The engine's thread died of a bug, or its last device was lost. Every request has its last
 * event. */
#define BN_STATE_DEAD (3)

/** Accept nothing new, finish what was accepted. */
#define BN_SHUTDOWN_DRAIN (0)
/** Accept nothing new, cancel what was accepted. May follow a drain. */
#define BN_SHUTDOWN_CANCEL (1)

/** How to make an engine. `bn_engine_create` copies everything that it points to; what the contexts
 * point to must live until `bn_engine_destroy` returns. */
struct bn_engine_config {
    uint32_t struct_size;
    /** Compute threads, 1 to 256. 0 (default): the CPUs that this process may use. */
    uint32_t threads;
    /** The model. The engine keeps its own reference, so it may be freed at any time. NULL
     * (default): the model at `model_path` is loaded. */
    bn_model *model;
    /** As `bn_model_config.path`, for a model that this engine alone uses. Not set (default), with
     * `model` NULL too: the model that is embedded in the library. */
    bn_string model_path;
    /** The model's name in metrics. Not set (default): `bn_model_info.name`. */
    bn_string model_name;
    /** A small model with the same vocabulary that drafts tokens for `model` to verify. Its weights
     * and its part of each KV block count against `memory_limit_bytes`. The engine keeps its own
     * reference. NULL (default): none. */
    bn_model *draft_model;
    /** Where forward passes run: `cpu` (default, also if not set), or an NVIDIA device, `cuda:0`
     * and so on, of those that `CUDA_VISIBLE_DEVICES` leaves. There, `kv_cache_bytes`,
     * `memory_limit_bytes` and the free memory are the device's. Answers equal the CPU's to the
     * bit, except with F16 and BF16 weights and with `kv_type` F16, where they are near.
     *
     * With several devices of one type, as `cuda:0,cuda:1`, each has the whole model and a KV
     * cache, and runs up to `max_batch_size` requests. Memory limits are for each device, and
     * `bn_stats` has their sum; the limits of the queue are the engine's. If a device is lost, the
     * requests that ran there fail with `BN_ERR_ENGINE_DEAD`, its sessions are gone, and the
     * engine goes on with the others. docs/gpu.md says more. */
    bn_string device;
    /** The instruction set, `BN_INSTRUCTIONS_*`. One that the machine lacks is refused. Results are
     * bitwise the same with any: this is for measuring and for finding faults. */
    int32_t instructions;
    /** The most requests in one forward pass, 1 to 4096, default 32. */
    uint32_t max_batch_size;
    /** The most tokens in one forward pass, `max_batch_size` to 65536, default 512. Longer prompts
     * run in chunks. */
    uint32_t max_batch_tokens;
    /** The most tokens of one request, prompt and output together: 2 to the model's context length.
     * 0 (default): the context length, or without `memory_limit_bytes` less if the KV cache holds
     * no more; `bn_stats.max_sequence_length` says how much. */
    uint32_t max_sequence_length;
    /** Microseconds that an idle engine waits for more requests before its first step, 0 (default)
     * to 1000000. */
    uint32_t max_wait_us;
    /** The time that a step with running answers should not exceed, in milliseconds, 1 to 60000,
     * default 200. Prompts are cut into chunks, to keep the predicted time of a step below seven
     * eighths of it. But prompts may always add three quarters of the time that the answers take,
     * so that prompts get on: if answers alone take more than half of the target, a step may
     * exceed it. */
    uint32_t max_step_ms;
    /** The time between two tokens of an answer to aim at, in milliseconds, up to 60000. A request
     * waits while a step of all running answers and its own, with as much prompt as recent steps
     * had, is predicted to take longer. The lower of this and `max_step_ms` is the target for a
     * step with prompts. It is an aim: at least one request runs, and running ones are not
     * interrupted for it. 0 (default): as many run as fit, for throughput. */
    uint32_t target_itl_ms;
    /** How much later a request of priority 255 may be submitted than one of priority 0 and still
     * come first, in milliseconds, up to 3600000, default 30000. Priorities between are worth
     * proportionally less. So a request of priority 0 waits only for work that came before it, or
     * up to this much later. 0: order of arrival. */
    uint32_t priority_ageing_ms;
    /** The most unreleased requests, 1 to 1048576, default 1024: queued, running, and finished ones
     * that were not released. One more is refused with `BN_ERR_QUEUE_FULL`. */
    uint32_t queue_capacity;
    /** The timeout of requests that set none, in milliseconds from submit. 0 (default): none. */
    uint32_t default_timeout_ms;
    /** The most prompt tokens of queued requests together. More are refused with
     * `BN_ERR_QUEUE_FULL`, unless none is queued: a long prompt has its turn. 0 (default): no
     * bound but `queue_capacity`. */
    uint64_t queue_token_capacity;
    /** The most bytes for weights, KV cache, workspace, prompts, outputs and events together.
     * Weights count whole, also those of a shared model. A prompt counts from submit on, an output
     * as it grows, 16 tokens at a time: a request that gets no more memory is paused until others
     * give some back, and is never shortened for it. 0 (default): no limit. Then the KV cache
     * takes at most half of the memory that the machine and the process's control groups have
     * free. */
    uint64_t memory_limit_bytes;
    /** The most bytes of the KV cache. It never takes more than `memory_limit_bytes` leaves, or
     * without that limit half of the free memory, nor more than `max_batch_size` requests of
     * `max_sequence_length` need. 0 (default): these bounds alone. */
    uint64_t kv_cache_bytes;
    /** Bytes of `memory_limit_bytes` that the KV cache leaves for adapters, besides what it leaves
     * for requests. 0 (default): adapters take from the requests' part. */
    uint64_t adapter_bytes;
    /** The most bytes of output, as `memory_limit_bytes` counts them, that a streaming request may
     * have unread. Beyond that it is paused until they are polled or delivered, or ends
     * (`BN_REQUEST_END_UNREAD`). Default 4194304; 0: no limit. */
    uint64_t max_unread_bytes;
    /** Tokens per block of the KV cache: 16, 32 (default), 64 or 128. */
    uint32_t kv_block_size;
    /** The type of keys and values in the cache, `BN_KV_TYPE_*`. `BN_KV_TYPE_INT8` takes half of
     * the memory of `BN_KV_TYPE_F16`, the default, and rounds more. Not for `builtin:echo`. */
    int32_t kv_type;
    /** Changes of the prefix cache to keep for `bn_kv_events`, at most 1048576. There is always
     * room for twice as many as the cache has blocks. 0 (default): none are kept. */
    uint32_t kv_events_capacity;
    /** `bn_request_params.draft_tokens` of requests that do not say. 0 (default): as many as
     * pay. */
    uint32_t draft_tokens;
    /** `BN_SPECULATION_*` of requests that do not say. Default `BN_SPECULATION_DEFAULT`. */
    int32_t speculation;
    /** The most detailed level that `log` gets, `BN_LOG_*`. Default `BN_LOG_WARN`. */
    int32_t log_level;
    /** Receives the log. NULL (default): no log. */
    bn_log_callback log;
    void *log_context;
    /** Receives each event on a thread of the engine: callback mode. NULL (default): poll mode, the
     * host takes events with `bn_poll`. */
    bn_event_callback on_event;
    void *on_event_context;
    /** Receives the spans of requests that have a `trace_id`. NULL (default): none. */
    bn_span_callback on_span;
    void *on_span_context;
};

/** The state of an engine.
 *
 * @return `BN_STATE_*`, which are 0 or more, or an error. */
int32_t bn_engine_state(const bn_engine *engine);

/** Stops the acceptance of requests and returns at once. `mode` is `BN_SHUTDOWN_*`. It may be
 * called again. Every accepted request still gets its last event. When the last event has been
 * polled, `bn_poll` of `BN_ANY` returns `BN_ERR_SHUTDOWN`. A drain waits for requests that are
 * paused until their output is polled. In callback mode, wait for `BN_STATE_DRAINED` and then
 * destroy the engine, which makes the callbacks that are still due.
 *
 * @return `BN_ERR_ENGINE_DEAD`. */
bn_status bn_engine_shutdown(bn_engine *engine, int32_t mode, bn_error *error);

/** A file descriptor for epoll, kqueue, poll or select. It is readable while an event for `BN_ANY`
 * waits, and for good once the engine is drained or dead: leave the loop when `bn_poll` returns
 * `BN_ERR_SHUTDOWN` or `BN_ERR_ENGINE_DEAD`. It belongs to the engine: do not read, write or close
 * it.
 *
 * With edge-triggered waiting, call `bn_poll` with a timeout of 0 after each wake-up until it
 * returns fewer events than there was room for. The end wakes one thread of each epoll instance
 * once more; it must wake the others.
 *
 * @return the descriptor, which is 0 or more; or `BN_ERR_WRONG_MODE`: callback mode; or another
 * error. */
int32_t bn_engine_wait_fd(const bn_engine *engine, bn_error *error);

/* -- Models ------------------------------------------------------------------------------------ */

/** As the model's files store them. */
#define BN_WEIGHTS_KEEP (0)
/** 8 bits, in blocks of 32 with a half-precision scale. */
#define BN_WEIGHTS_Q8_0 (1)
/** 4 bits, in blocks of 32 with a half-precision scale. */
#define BN_WEIGHTS_Q4_0 (2)
/** -1, 0 and 1 with a scale, as in BitNet b1.58. */
#define BN_WEIGHTS_TERNARY (3)
/** 8 bits, with a scale for each row; activations get one for each token. Faster than
 * `BN_WEIGHTS_Q8_0` for prompts, and less precise. */
#define BN_WEIGHTS_INT8 (4)

/** The model's files set `temperature`. */
#define BN_SAMPLING_FIELD_TEMPERATURE (1u << 0)
/** The model's files set `top_k`. */
#define BN_SAMPLING_FIELD_TOP_K (1u << 1)
/** The model's files set `top_p`. */
#define BN_SAMPLING_FIELD_TOP_P (1u << 2)
/** The model's files set `min_p`. */
#define BN_SAMPLING_FIELD_MIN_P (1u << 3)
/** The model's files set `repetition_penalty`. */
#define BN_SAMPLING_FIELD_REPETITION_PENALTY (1u << 4)

/** Put in front what submitting a text puts there (BOS). */
#define BN_TOKENIZE_ADD_SPECIAL (1u << 0)
/** Control tokens spelled out in the text become those tokens. */
#define BN_TOKENIZE_PARSE_SPECIAL (1u << 1)

/** How to open a model. At most one of `path`, `fd` and `data` says where it is. With none of them
 * it is the small model that is embedded in the library. */
struct bn_model_config {
    uint32_t struct_size;
    /** An open, readable descriptor of a GGUF file, or -1 (default). The file is read from its
     * beginning, whatever the descriptor's position. It may be closed once `bn_model_open` has
     * returned. */
    int32_t fd;
    /** A GGUF file, a Hugging Face folder (`config.json`, safetensors, `tokenizer.json`), or
     * `builtin:echo`, a model without weights that answers with its prompt
     * (`builtin:echo?us_per_token=N&load_ms=N` takes so long for each token, and to load). */
    bn_string path;
    /** The bytes of a GGUF file, at any alignment. They are used in place: keep them unchanged
     * until the model and every engine made of it are freed. NULL (default): none. */
    const void *data;
    /** Number of bytes at `data`. */
    size_t data_size;
    /** The `kernel_config.ini` that a GGUF file with TL1 or TL2 tensors was converted with. Not set
     * (default): the one beside the file. */
    bn_string kernel_config_path;
    /** The most bytes that the weights may take; loading stops at the tensor that passes it. 0
     * (default): no limit. */
    uint64_t memory_limit_bytes;
    /** Threads that load, 1 to 256. 0 (default): the CPUs that this process may use. */
    uint32_t threads;
    /** The type that attention and feed-forward weights get while loading, `BN_WEIGHTS_*`. F32, F16
     * and BF16 weights can become any type, but only those of BitNet models `BN_WEIGHTS_TERNARY`;
     * Q4_0 to Q8_0 and Q4_K to Q6_K can become `BN_WEIGHTS_INT8`. Default `BN_WEIGHTS_KEEP`. */
    int32_t weight_type;
    /** The same for the embedding, without `BN_WEIGHTS_TERNARY`. */
    int32_t embedding_type;
    /** The same for the output head. If it is tied to the embedding, either field sets both. */
    int32_t head_type;
    /** The most detailed level that `log` gets, `BN_LOG_*`. Default `BN_LOG_WARN`. */
    int32_t log_level;
    /** Receives the log. NULL (default): no log. */
    bn_log_callback log;
    void *log_context;
    /** Receives the progress of loading, and may stop it. NULL (default): none. */
    bn_progress_callback progress;
    void *progress_context;
};

/** What is known of a model. Pointers are valid until `bn_model_free`. */
struct bn_model_info {
    uint32_t struct_size;
    /** 1 if the model has a tokenizer. Without one, prompts are token ids and events have no
     * text. */
    int32_t has_tokenizer;
    /** The architecture as the model's files name it: `llama`, `bitnet-b1.58`, ... */
    bn_string architecture;
    /** The model's own name; may be empty. */
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
    /** Number of parameters. */
    uint64_t parameters;
    /** Bytes of weights, mapped or allocated. */
    uint64_t weight_bytes;
    /** The model's end tokens, which end an output as `BN_FINISH_STOP`. NULL if there are none. */
    const uint32_t *end_tokens;
    size_t end_tokens_count;
    /** The BOS token's id, or -1. */
    int64_t bos_token;
    /** Elements of an embedding (`BN_TASK_EMBED`). 0: the model makes none. */
    uint64_t embedding_size;
    /** The model's own pooling: `BN_POOLING_LAST`, `BN_POOLING_MEAN` or `BN_POOLING_FIRST`. */
    int32_t pooling;
    /** 1 if the model has a chat template, so that requests may have `messages`. */
    int32_t has_chat_template;
    /** Which of the five fields below the model's authors recommend, in `generation_config.json` or
     * in the keys of a GGUF file: `BN_SAMPLING_FIELD_*`. The others are 0. Requests never use them
     * by themselves. */
    uint32_t sampling_fields;
    /** Recommended temperature; 0: always the most likely token. */
    float temperature;
    /** Recommended `top_k`. */
    uint32_t top_k;
    /** Recommended `top_p`. */
    float top_p;
    /** Recommended `min_p`. */
    float min_p;
    /** Recommended `repetition_penalty`. */
    float repetition_penalty;
};

/** Fills `*config` with the defaults. */
bn_status bn_model_config_init(bn_model_config *config, uint32_t struct_size);

/** Loads a model and writes it to `*out`. Any number of engines can then share the model and its
 * memory.
 *
 * @return `BN_ERR_UNSUPPORTED`: the model needs something that this version lacks, or a field of a
 * newer header is set; `BN_ERR_IO`; `BN_ERR_BAD_MODEL`; `BN_ERR_MEMORY_LIMIT`; `BN_ERR_CANCELLED`:
 * `progress` stopped it. */
bn_status bn_model_open(const bn_model_config *config, bn_model **out, bn_error *error);

/** Frees a model's handle. Engines that were made of the model keep it until they are destroyed.
 * NULL is ignored. */
bn_status bn_model_free(bn_model *model);

/** Writes a handle of the engine's model to `*out`, to be freed with `bn_model_free`. */
bn_status bn_engine_model(bn_engine *engine, bn_model **out, bn_error *error);

/** Prepares `*info` for `bn_model_get_info`. */
bn_status bn_model_info_init(bn_model_info *info, uint32_t struct_size);

/** Writes what is known of a model to `*out`. */
bn_status bn_model_get_info(const bn_model *model, bn_model_info *out, bn_error *error);

/** Writes the token ids of `text` to `tokens`, and their number to `*count`. `flags` are
 * `BN_TOKENIZE_*`.
 *
 * @return `BN_ERR_UNSUPPORTED`: unknown flag, or the model has no tokenizer; `BN_ERR_TOO_LONG`. */
bn_status bn_model_tokenize(const bn_model *model, bn_string text, uint32_t flags, uint32_t *tokens,
    size_t capacity, size_t *count, bn_error *error);

/** Writes the text of `tokens` to `text`, and its length to `*length`. Bytes that are not UTF-8
 * become U+FFFD; control tokens have no text; the space that some vocabularies put in front of
 * every text is removed.
 *
 * @return `BN_ERR_INVALID_ARGUMENT`: also for an id outside of the vocabulary;
 * `BN_ERR_UNSUPPORTED`: the model has no tokenizer. */
bn_status bn_model_detokenize(const bn_model *model, const uint32_t *tokens, size_t tokens_count,
    char *text, size_t capacity, size_t *length, bn_error *error);

/** Writes the exact bytes of a token to `bytes`, and their number to `*length`. They may be part of
 * a UTF-8 character, and begin with a space. A control token gives its name, like `<|eot_id|>`.
 *
 * @return as `bn_model_detokenize`. */
bn_status bn_model_token_bytes(const bn_model *model, uint32_t token, char *bytes, size_t capacity,
    size_t *length, bn_error *error);

/* -- Conversations ----------------------------------------------------------------------------- */

/** A message of a conversation. */
struct bn_chat_message {
    /** Who speaks: "system", "user", "assistant", or another role that the model's template
     * knows. */
    bn_string role;
    /** What they say. */
    bn_string content;
};

/** Writes the conversation of `params`, its `messages` or `chat_json`, to `text` as the model's
 * chat template formats it, and its length to `*length`. A `prompt` or `prompt_tokens` is refused,
 * other fields are not read. `messages` end with the beginning of the assistant's answer;
 * `chat_json` says whether it does.
 *
 * For display and tests: to generate, submit the conversation or tokenize it, as a control token
 * that somebody typed into a message is one in this text.
 *
 * The template is a program that came with the model. Its steps and its memory are bounded; it
 * sees only the conversation and the date. It takes at most 65536 messages of 64 MiB together, and
 * runs in each call.
 *
 * @return `BN_ERR_INVALID_ARGUMENT`: also if there is no conversation, or the template refuses it;
 * `BN_ERR_UNSUPPORTED`: the model has no template, or one that fails or is not understood;
 * `BN_ERR_TOO_LONG`. */
bn_status bn_model_chat_format(const bn_model *model, const bn_request_params *params, char *text,
    size_t capacity, size_t *length, bn_error *error);

/** Writes the token ids of the same conversation to `tokens`, and their number to `*count`: the
 * prompt that submitting `params` makes. They are a `bn_request_params.prompt_tokens`.
 *
 * @return as `bn_model_chat_format`. */
bn_status bn_model_chat_tokenize(const bn_model *model, const bn_request_params *params,
    uint32_t *tokens, size_t capacity, size_t *count, bn_error *error);

/* -- Constraints ------------------------------------------------------------------------------- */

/** No constraint. */
#define BN_CONSTRAINT_NONE (0)
/** `constraint` is a JSON schema; the output is JSON that is valid under it. Properties come in the
 * schema's order. A keyword that cannot be kept is refused by name, and so are unknown formats and
 * references to other documents. Keys and texts have one spelling: only quotes, backslashes and
 * control characters are escaped. A number may have more digits or a larger exponent than a double
 * keeps, and is valid as written. A property that the schema does not name may come twice, valid
 * each time. In the schema, "x-guidance" with "lenient", "coerce_one_of", "unknown_formats" or
 * separators of its own waives some of these rules. */
#define BN_CONSTRAINT_JSON_SCHEMA (1)
/** The output is a JSON object. `constraint` is not set. */
#define BN_CONSTRAINT_JSON_OBJECT (2)
/** `constraint` is a regular expression in Rust's syntax, without look-around and back references;
 * the whole output matches it, with or without `^` and `$`. */
#define BN_CONSTRAINT_REGEX (3)
/** `constraint` is a grammar in llguidance's dialect of Lark; the output matches its rule
 * `start`. */
#define BN_CONSTRAINT_LARK (4)
/** `constraint` is a grammar as llama.cpp has them; the output matches its rule `root`. Rules that
 * are not recursive match greedily. */
#define BN_CONSTRAINT_GBNF (5)

/** No white space between JSON's tokens. Without this flag and `BN_JSON_FLEXIBLE`, a space may
 * follow `:` and `,`, and between tokens may stand one line break with up to 32 spaces or 16 tabs
 * after it. */
#define BN_JSON_COMPACT (1u << 0)
/** Up to 32 characters of white space between JSON's tokens. Refused with `BN_JSON_COMPACT`. */
#define BN_JSON_FLEXIBLE (1u << 1)
/** An unknown `format` in a schema says nothing, instead of being refused. */
#define BN_JSON_ANY_FORMAT (1u << 2)

/** Compiles a constraint as `bn_submit` does, and keeps it compiled for requests whose `json_flags`
 * are 0. `kind` and `text` are as `bn_request_params.constraint_kind` and `constraint`.
 *
 * @return `BN_ERR_INVALID_ARGUMENT`: the constraint is wrong or too complex, the message says why;
 * `BN_ERR_UNSUPPORTED`: the model has no tokenizer or no end token; `BN_ERR_QUEUE_FULL`;
 * `BN_ERR_TIMED_OUT`: it waited for others, or took, ten seconds; `BN_ERR_SHUTDOWN`. */
bn_status bn_engine_check_constraint(bn_engine *engine, int32_t kind, bn_string text,
    bn_error *error);

/* -- Sampling ---------------------------------------------------------------------------------- */

/** `temperature`, with `temperature_range`. */
#define BN_SAMPLER_TEMPERATURE (0)
/** `top_n_sigma`. */
#define BN_SAMPLER_TOP_N_SIGMA (1)
/** `top_k`. */
#define BN_SAMPLER_TOP_K (2)
/** `typical_p`. */
#define BN_SAMPLER_TYPICAL_P (3)
/** `top_p`. */
#define BN_SAMPLER_TOP_P (4)
/** `min_p`. */
#define BN_SAMPLER_MIN_P (5)
/** `xtc_probability`. */
#define BN_SAMPLER_XTC (6)

/** A token and the number to add to its logit. */
struct bn_logit_bias {
    /** The token's id. */
    uint32_t token;
    /** -100 to 100, or `-INFINITY`: the token does not come. */
    float bias;
};

/** The logits of a request's next token, before anything else looks at them. */
struct bn_logits {
    /** Bytes of this struct that the library wrote. */
    uint32_t struct_size;
    /** Tokens of the vocabulary. */
    uint32_t vocab_size;
    /** `bn_request_params.user_data`. */
    uint64_t user_data;
    /** The prompt's tokens. */
    const uint32_t *prompt_tokens;
    size_t prompt_tokens_count;
    /** The tokens generated so far. */
    const uint32_t *output_tokens;
    size_t output_tokens_count;
    /** A logit for each token of the vocabulary, to be changed in place. `-INFINITY` forbids a
     * token; at least one must stay finite, and none may be NaN or `INFINITY`. */
    float *logits;
};

/* -- Embeddings -------------------------------------------------------------------------------- */

/** The pooling that the model was made for, `bn_model_info.pooling`. */
#define BN_POOLING_MODEL (0)
/** The hidden state of the last prompt token, after the final norm. */
#define BN_POOLING_LAST (1)
/** The mean of the hidden states of all prompt tokens. */
#define BN_POOLING_MEAN (2)
/** The hidden state of the first prompt token. */
#define BN_POOLING_FIRST (3)

/** Computes the embedding of one prompt: submits `params` with `BN_TASK_EMBED`, waits for the
 * vector and writes it to `values`, and its length (`bn_model_info.embedding_size`) to `*count`.
 * If `capacity` is too small, nothing runs, and `params` is not read.
 *
 * [not from a callback]
 * @return as `bn_submit`; `BN_ERR_UNSUPPORTED`: also if the model makes no embeddings;
 * `BN_ERR_CANCELLED`; `BN_ERR_TIMED_OUT`; or the status of a request that failed. */
bn_status bn_embed(bn_engine *engine, const bn_request_params *params, float *values,
    size_t capacity, size_t *count, bn_error *error);

/* -- Adapters ---------------------------------------------------------------------------------- */

/** Reads a LoRA adapter for requests of this engine (`bn_request_params.adapter`) and writes it to
 * `*out`. `path` is a PEFT folder (`adapter_config.json`, `adapter_model.safetensors`) or a GGUF
 * file of llama.cpp's. The tensors are F32, F16 or BF16, of any linear layer and the head. The
 * files are not needed afterwards. Requests go on meanwhile; any number of adapters may run in one
 * batch.
 *
 * An adapter counts against `memory_limit_bytes`; so does, from the first one on, the room that
 * forward passes keep for adapters. Both take from `bn_engine_config.adapter_bytes`, then from
 * what requests leave.
 *
 * @return `BN_ERR_IO`: a file cannot be opened; `BN_ERR_BAD_MODEL`: it is not sound, or for a
 * model of other sizes; `BN_ERR_UNSUPPORTED`: it is more than LoRA (DoRA, biases, embeddings,
 * ...), or the model takes none; `BN_ERR_MEMORY_LIMIT`. With a device, this waits for the engine's
 * thread: also `BN_ERR_SHUTDOWN`, `BN_ERR_ENGINE_DEAD`, and `BN_ERR_REENTRANT` in a callback. */
bn_status bn_adapter_open(bn_engine *engine, bn_string path, bn_adapter **out, bn_error *error);

/** Writes a hash of the adapter's contents to `*out`, the same in each engine that opens it. The
 * hashes of its requests' blocks depend on it (`BN_HASH_XXH64`). */
bn_status bn_adapter_fingerprint(const bn_adapter *adapter, uint64_t *out);

/** Frees an adapter's handle. Requests that run with it keep it until they end; then its bytes come
 * back. NULL is ignored. */
bn_status bn_adapter_free(bn_adapter *adapter);

/* -- Sessions and the prefix cache ------------------------------------------------------------- */

/** A block came into the cache. */
#define BN_KV_EVENT_STORED (1)
/** A block left the cache. */
#define BN_KV_EVENT_REMOVED (2)
/** Forget all blocks: those that are in the cache follow as `BN_KV_EVENT_STORED`. It comes when
 * changes were lost because they were not read in time, and after `bn_cache_clear`. An engine of
 * several devices reports each removed block instead; it reports a block as stored when the first
 * device has it, and as removed when none has it any more. */
#define BN_KV_EVENT_CLEARED (3)

/** XXH64 of a block's tokens as little-endian 32-bit numbers. The seed is the hash of the block
 * before it. The first block's seed is the request's `cache_salt`; with an adapter, it is XXH64 of
 * 12 bytes with `cache_salt` as the seed: `adapter_scale` as a little-endian float, then
 * `bn_adapter_fingerprint` as a little-endian 64-bit number. */
#define BN_HASH_XXH64 (1)

/** A change of the prefix cache. A block holds the keys and values of `kv_block_size` tokens; only
 * full blocks are reported. */
struct bn_kv_event {
    /** `BN_KV_EVENT_*`. */
    int32_t kind;
    /** `BN_HASH_*`, the same for all events of an engine. */
    int32_t hash_type;
    /** For `BN_KV_EVENT_STORED` and `BN_KV_EVENT_REMOVED`: the block's hash. */
    uint64_t hash;
    /** For `BN_KV_EVENT_STORED`: the hash of the block before it, or the first block's seed. */
    uint64_t parent_hash;
};

/** Drops a session: its name is forgotten. Its KV blocks stay in the prefix cache until others need
 * the room. Requests that use them go on.
 *
 * [not from a callback]
 * @return `BN_ERR_NOT_FOUND`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_session_drop(bn_engine *engine, bn_string name, bn_error *error);

/** Writes a session to `data`, and its size to `*length`: its tokens, their keys and values, and
 * its `cache_salt`, for `bn_session_restore` on an engine with the same model, `kv_type` and
 * `kv_block_size`. The size changes when a request of the session ends. A call that writes makes a
 * copy of the session for a moment, which `memory_limit_bytes` does not count.
 *
 * [not from a callback]
 * @return `BN_ERR_NOT_FOUND`; `BN_ERR_BUSY`: every KV block is in use; `BN_ERR_SHUTDOWN`;
 * `BN_ERR_ENGINE_DEAD`. */
bn_status bn_session_save(bn_engine *engine, bn_string name, uint8_t *data, size_t capacity,
    size_t *length, bn_error *error);

/** Makes a session of `size` bytes that `bn_session_save` wrote, in place of one that had this
 * name. Other sessions go if it needs their room. Load only what you have saved yourself: the
 * checksum finds damage, but not forgery. A forged session changes the output of every request
 * that has its `cache_salt` and begins with its tokens.
 *
 * [not from a callback]
 * @return `BN_ERR_INVALID_ARGUMENT`: also for no session, a damaged one, or one of another model,
 * `kv_type`, `kv_block_size` or version; `BN_ERR_MEMORY_LIMIT`: it needs more KV blocks than
 * sessions may hold together, or than requests and sessions leave now; `BN_ERR_BUSY`: every KV
 * block is in use; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_session_restore(bn_engine *engine, bn_string name, const uint8_t *data, size_t size,
    bn_error *error);

/** Forgets every prefix in the KV cache that no request and no session uses now.
 *
 * [not from a callback]
 * @return `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`. */
bn_status bn_cache_clear(bn_engine *engine, bn_error *error);

/** Writes up to `capacity` changes of the prefix cache to `events`, oldest first, and their number
 * to `*count`. `event_size` is `sizeof(bn_kv_event)`. Each change is returned once. For routers
 * that send a request where its prefix is cached. Never waits.
 *
 * @return `BN_ERR_WRONG_MODE`: `kv_events_capacity` is 0. */
bn_status bn_kv_events(bn_engine *engine, bn_kv_event *events, size_t event_size, size_t capacity,
    size_t *count, bn_error *error);

/* -- Speculative decoding ---------------------------------------------------------------------- */

/** A request's: as the engine's. An engine's: `BN_SPECULATION_DRAFT` with a `draft_model`, else
 * `BN_SPECULATION_OFF`. */
#define BN_SPECULATION_DEFAULT (0)
/** No drafts. */
#define BN_SPECULATION_OFF (1)
/** Repeats what followed the same tokens earlier in prompt or output. */
#define BN_SPECULATION_LOOKUP (2)
/** The engine's `draft_model` drafts. */
#define BN_SPECULATION_DRAFT (3)

/** The largest `draft_tokens`. */
#define BN_MAX_DRAFT_TOKENS (15u)

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
    /** Samples by time: bucket `i` has those above `bn_latency_bound_ns(i - 1)` and up to
     * `bn_latency_bound_ns(i)`. Together they are `count`. The buckets of several engines
     * add up, which percentiles do not. The bounds are 1, 2.5 and 5 of each decade from 10
     * us to 50 s, 100 s, 300 s, and none. */
    uint64_t buckets[BN_LATENCY_BUCKETS];
};

/** A distribution of lengths in tokens. */
struct bn_lengths {
    /** Number of samples. */
    uint64_t count;
    /** Their sum. */
    uint64_t sum;
    /** Samples by length: bucket `i` has those above `bn_length_bound(i - 1)` and up to
     * `bn_length_bound(i)`. Together they are `count`. The bounds are 1, 2 and 5 of each
     * decade up to 1000000, and none. */
    uint64_t buckets[BN_LENGTH_BUCKETS];
};

/** A snapshot of an engine's counters. Counters start at 0 with the engine. */
struct bn_stats {
    /** Set by `bn_stats_init`. */
    uint32_t struct_size;
    /** Nanoseconds from 1970 to the time when the engine was made. */
    uint64_t made_unix_ns;
    /** Nanoseconds since then. */
    uint64_t uptime_ns;
    /** Devices that compute; the CPU is one. */
    uint64_t devices;
    /** Devices that were lost. While some are left, the engine goes on with them. */
    uint64_t devices_lost;
    /** `bn_engine_config.max_batch_size`: of each device. */
    uint64_t max_batch_size;
    /** The most tokens of one request, prompt and output together. */
    uint64_t max_sequence_length;
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
    /** Requests waiting for their first admission now. Together with `running`: those
     * accepted and not finished. */
    uint64_t queued;
    /** Requests admitted and not finished, paused and interrupted ones included. */
    uint64_t running;
    /** Requests paused now; they count as running. */
    uint64_t paused;
    /** Requests that count against `queue_capacity` now. */
    uint64_t unreleased;
    /** Limit of `unreleased`. */
    uint64_t queue_capacity;
    /** Prompt tokens of the requests in `queued`. */
    uint64_t queued_tokens;
    /** Limit of `queued_tokens`; 0: none. */
    uint64_t queue_token_capacity;
    /** Nanoseconds that the oldest queued request of priority 0 to 63, 64 to 127, 128 to 191
     * and 192 to 255 has waited; 0 without one. */
    uint64_t queue_age_ns[4];
    /** Running requests interrupted, for KV blocks or for one of higher priority. */
    uint64_t preemptions;
    /** Requests paused, without KV blocks, as output was not polled or memory was short. */
    uint64_t pauses;
    /** Prompt tokens that went through the model, each once. */
    uint64_t prompt_tokens;
    /** Tokens generated. */
    uint64_t generated_tokens;
    /** Prompt tokens of requests at their first admission. */
    uint64_t queried_tokens;
    /** Prompt tokens that were in the prefix cache. `prompt_tokens` does not count them. */
    uint64_t cached_tokens;
    /** Tokens computed again after an interruption or a pause, not in `prompt_tokens`. */
    uint64_t recomputed_tokens;
    /** Prompt tokens per second over the last ten seconds. */
    double recent_prompt_tokens_per_second;
    /** Generated tokens per second over the last ten seconds. */
    double recent_generated_tokens_per_second;
    /** Forward passes. */
    uint64_t steps;
    /** Requests in forward passes, summed over all passes. Over `steps`: the mean batch size. */
    uint64_t batched_requests;
    /** Requests in the last forward pass, summed over devices. */
    uint64_t last_batch_size;
    /** Forward passes that carried running answers. */
    uint64_t decode_steps;
    /** Forward passes with running answers that took longer than `max_step_ms`. Many of
     * them: this load, or the model itself, is too slow for it. */
    uint64_t long_steps;
    /** Nanoseconds of forward passes that prompts took, tokens computed again included. A
     * pass with prompts and answers is split by what their rows cost, as learned from all
     * passes. This, `decode_ns`, `idle_ns` and `drafting_ns` are sums over the devices. */
    uint64_t prefill_ns;
    /** Nanoseconds of forward passes that answers took. */
    uint64_t decode_ns;
    /** Nanoseconds in which nothing could run: there were no requests, or all were paused.
     * What is left of `uptime_ns` (times `devices`) went into planning, sampling and handing
     * over. */
    uint64_t idle_ns;
    /** From submit to admission. */
    bn_latency queue_wait;
    /** From submit to the first generated token. */
    bn_latency time_to_first_token;
    /** From a generated token to the next of the same request. */
    bn_latency inter_token;
    /** From submit to the terminal event. */
    bn_latency end_to_end;
    /** From admission to the end of the prompt, of requests that have ended and got so far. */
    bn_latency request_prefill;
    /** From the first generated token to the last, of requests that have ended and have one. */
    bn_latency request_decode;
    /** Prompt tokens of the requests that have ended. */
    bn_lengths prompt_lengths;
    /** Generated tokens of the requests that have ended. */
    bn_lengths generated_lengths;
    /** Blocks of the KV cache. */
    uint64_t kv_blocks_total;
    /** Blocks of the KV cache that requests and sessions hold now. */
    uint64_t kv_blocks_used;
    /** Blocks of the KV cache that no request and no session uses now, with prefixes that a
     * later request may take. */
    uint64_t kv_blocks_cached;
    /** Cached blocks that were given up because requests needed the room. */
    uint64_t kv_evictions;
    /** Tokens in a block of the KV cache. */
    uint64_t kv_block_size;
    /** Bytes of the KV cache, of all its blocks. */
    uint64_t kv_bytes;
    /** Sessions kept now. */
    uint64_t sessions;
    /** Blocks of the KV cache that they hold. A block that several share counts for each. */
    uint64_t session_blocks;
    /** Bytes that count against `memory_limit_bytes` now, including compiled constraints that
     * are kept. */
    uint64_t memory_used_bytes;
    /** The most that `memory_used_bytes` has been. */
    uint64_t memory_peak_bytes;
    /** The limit; 0: none. */
    uint64_t memory_limit_bytes;
    /** Tokens that were drafted and verified. */
    uint64_t drafted_tokens;
    /** Drafted tokens that outputs have. */
    uint64_t accepted_tokens;
    /** Nanoseconds of passes of the draft model, which `prefill_ns` and `decode_ns` do not
     * count. */
    uint64_t drafting_ns;
    /** Constraints of requests that were compiled, those that failed not included. */
    uint64_t grammars_compiled;
    /** Constraints of requests that were found compiled. */
    uint64_t grammars_reused;
    /** Nanoseconds that compiling took, on the threads that submit. */
    uint64_t grammar_compile_ns;
    /** Masks computed: which tokens a constraint allows next. */
    uint64_t masks;
    /** Nanoseconds that they took, on threads of their own, beside the forward passes. */
    uint64_t mask_ns;
    /** Nanoseconds that sampling waited for them, summed over requests. */
    uint64_t mask_wait_ns;
};

/** Prepares `*stats` for `bn_engine_stats`. */
bn_status bn_stats_init(bn_stats *stats, uint32_t struct_size);

/** Writes a snapshot of the engine's counters to `*out`. */
bn_status bn_engine_stats(bn_engine *engine, bn_stats *out, bn_error *error);

/** Writes the statistics as Prometheus text (exposition format 0.0.4) to `text`, and its length to
 * `*length`. 32768 bytes are enough for this version and a model's name of up to 256. Metrics have
 * vLLM's names with `bn_` for `vllm:` where they mean the same. `bn_model_info` and
 * `bn_cache_config_info` have constants as labels; `bn_engine_state` is 1 for the state that the
 * engine is in. */
bn_status bn_engine_metrics(bn_engine *engine, char *text, size_t capacity, size_t *length,
    bn_error *error);

/** Writes a report for people on how efficiently the engine runs. Its wording may change in any
 * version; programs read `bn_stats`. 4096 bytes are enough for this version. */
bn_status bn_engine_report(bn_engine *engine, char *text, size_t capacity, size_t *length,
    bn_error *error);

/** The upper bound of a bucket of `bn_latency`, inclusive, in nanoseconds; `UINT64_MAX` for the
 * last and for those that do not exist. */
uint64_t bn_latency_bound_ns(uint32_t bucket);

/** The upper bound of a bucket of `bn_lengths`, inclusive, in tokens; `UINT64_MAX` for the last and
 * for those that do not exist. */
uint64_t bn_length_bound(uint32_t bucket);

/* -- Logs and traces --------------------------------------------------------------------------- */

/** No log. */
#define BN_LOG_OFF (0)
/** The engine or a request failed, and the caller did not cause it. */
#define BN_LOG_ERROR (1)
/** Something is wrong, and the message says how the library goes on. */
#define BN_LOG_WARN (2)
/** Loading, start and shutdown. */
#define BN_LOG_INFO (3)
/** Details for work on the library. */
#define BN_LOG_DEBUG (4)

/** From submit to admission. `tokens` are the prompt's. */
#define BN_SPAN_QUEUED (1)
/** From admission to the end of the prompt. `tokens` are the prompt tokens that were not cached. */
#define BN_SPAN_PREFILL (2)
/** From the first generated token to the last. `tokens` are the generated ones. */
#define BN_SPAN_DECODE (3)

/** A phase of a traced request that has ended. */
struct bn_span {
    /** Bytes of this struct that the library wrote. */
    uint32_t struct_size;
    /** `BN_SPAN_*`. Ignore kinds that you do not know. */
    int32_t kind;
    /** The request. */
    bn_request request;
    /** `bn_request_params.user_data`. */
    uint64_t user_data;
    /** How the request ended, `BN_FINISH_*`. */
    int32_t finish_reason;
    /** `bn_request_params.trace_id`. */
    uint8_t trace_id[16];
    /** `bn_request_params.parent_id`. */
    uint8_t parent_id[8];
    /** When the phase began, in nanoseconds since 1970. */
    uint64_t start_ns;
    /** When it ended: with the request, if that was cut short in this phase. */
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
