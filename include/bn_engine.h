/**
 * @file bn_engine.h
 * bn_engine: a continuous-batching LLM engine behind a C ABI.
 *
 * Generated from src/ffi by cbindgen: change it there and run `make header`.
 *
 * A program opens a model (bn_model_open), makes an engine of it (bn_engine_create), submits
 * requests from any thread (bn_submit), and takes their events with bn_poll or, in callback mode,
 * on a thread of the engine. One engine thread for each device runs its active requests together,
 * one token each per step.
 *
 * **Errors.** BN_OK is 0; errors are negative and stable. A call that can fail for several reasons
 * takes a `bn_error *` as its last parameter, which may be NULL, and says there in words what was
 * wrong. On an error nothing else is written, except where the comment says so.
 *
 * **Threads.** [any thread]: from any thread at any time, callbacks included. [not from a
 * callback]: the same, except that event, log, span and progress callbacks of any engine get
 * BN_ERR_REENTRANT.
 *
 * **Ownership.** The library copies what you pass in, or needs it only until the call returns.
 * What it returns belongs to it; the comment says until when it is valid. Each handle has one
 * function that frees it.
 *
 * **Growth.** Structs may get new fields at their end. The caller says how large its version is:
 * `bn_X_init(&x, sizeof x)` prepares a struct that begins with `struct_size`, and arrays are
 * passed with the size of an element. The library touches no more than that. A field that the
 * library does not know must be 0, or the call fails with BN_ERR_UNSUPPORTED. bn_string,
 * bn_logit_bias, bn_logprob, bn_tool_call, bn_latency, bn_lengths and bn_error never grow. Numbers
 * of constants are never reused.
 *
 * **Text** is UTF-8 in a bn_string.
 *
 * **Fork.** A child process may use models of its parent, and open models and make engines of its
 * own. Calls on an engine of the parent return BN_ERR_FORKED.
 *
 * **Host safety.** A panic in the library becomes BN_ERR_INTERNAL or BN_ERR_ENGINE_DEAD. The
 * library never prints, exits, or changes signal handlers. No call is a cancellation point of
 * pthread_cancel. A thread that calls needs 64 KiB of stack. docs/api.md and SECURITY.md say more.
 */

#ifndef BN_ENGINE_H
#define BN_ENGINE_H

#include <stddef.h>
#include <stdint.h>

/** As bn_string.length: `data` ends with a NUL byte, which is not part of the text. */
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
#else
#define BN_STRING(literal) ((bn_string)BN_STRING_INIT(literal))
#define BN_TEXT(pointer) ((bn_string){(pointer), BN_NUL_TERMINATED})
#endif

/** Success. */
#define BN_OK (0)

/**
 * An argument is NULL, out of range, not UTF-8, has a wrong `struct_size`, or is not a live
 * handle.
 */
#define BN_ERR_INVALID_ARGUMENT (-1)

/**
 * No such request: the engine never issued it, or it was released. Or no session of this name.
 */
#define BN_ERR_NOT_FOUND (-2)

/** A field, flag, model or file feature that this version does not support. */
#define BN_ERR_UNSUPPORTED (-3)

/**
 * Another thread is polling this request now, or every KV block is in use (`bn_session_save`,
 * `bn_session_restore`).
 */
#define BN_ERR_BUSY (-4)

/**
 * `queue_capacity` requests are unreleased, or `queue_token_capacity` prompt tokens are queued.
 * Release finished requests, or try again later.
 */
#define BN_ERR_QUEUE_FULL (-5)

/** The system refused an allocation or a thread. */
#define BN_ERR_OUT_OF_MEMORY (-6)

/** `memory_limit_bytes`, or the size of the KV cache, does not allow it. */
#define BN_ERR_MEMORY_LIMIT (-7)

/** A file could not be opened or mapped, or is not a regular file. */
#define BN_ERR_IO (-8)

/**
 * The model's files are malformed or truncated, or the model computed something that is not a
 * number.
 */
#define BN_ERR_BAD_MODEL (-9)

/**
 * The call belongs to the other delivery mode, or to a feature that `bn_engine_config` turns off.
 */
#define BN_ERR_WRONG_MODE (-10)

/** The call is not allowed from a callback. */
#define BN_ERR_REENTRANT (-11)

/** The engine is shutting down or has shut down. */
#define BN_ERR_SHUTDOWN (-12)

/** The engine's thread died of a bug. Every request has its last event. */
#define BN_ERR_ENGINE_DEAD (-13)

/** The engine was made before this process was forked. */
#define BN_ERR_FORKED (-14)

/** Ended by a progress callback, a cancel or a shutdown. */
#define BN_ERR_CANCELLED (-15)

/** The prompt leaves no room for a new token, or the text is longer than the library takes. */
#define BN_ERR_TOO_LONG (-16)

/** The caller's buffer is too small. The needed size was written. */
#define BN_ERR_BUFFER_TOO_SMALL (-17)

/** A bug in this library. The message says where. */
#define BN_ERR_INTERNAL (-18)

/** The request's timeout passed. */
#define BN_ERR_TIMED_OUT (-19)

/** The request's last event was polled before; there will never be another. */
#define BN_ERR_FINISHED (-20)

/**
 * Version of the ABI. It changes only if a program compiled against an older header could break;
 * compare it with `bn_abi_version()`.
 */
#define BN_ABI_VERSION (1u)

/** This header's version of the library. `bn_version()` returns the linked one's. */
#define BN_VERSION_MAJOR (0u)

/** See `BN_VERSION_MAJOR`. */
#define BN_VERSION_MINOR (1u)

/** See `BN_VERSION_MAJOR`. */
#define BN_VERSION_PATCH (0u)

/**
 * For `bn_poll`: any request, except those with `BN_REQUEST_POLL_BY_ID`. For `bn_cancel`: all
 * requests.
 */
#define BN_ANY (18446744073709551615ull)

/** As `timeout_ms` of `bn_poll`: no time limit. */
#define BN_WAIT_FOREVER (-1)

/** As `bn_request_params.timeout_ms`: no timeout, whatever the engine's default is. */
#define BN_TIMEOUT_NONE (4294967295u)

/** As `bn_engine_config.delivery_mode`: the host takes events with `bn_poll`. */
#define BN_DELIVERY_POLL (0)

/**
 * As `bn_engine_config.delivery_mode`: a thread of the engine passes each event to `on_event`.
 */
#define BN_DELIVERY_CALLBACK (1)

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

/** Keep the weights as the model's files store them. */
#define BN_WEIGHTS_KEEP (0)

/** 8 bits, in blocks of 32 with a half-precision scale. */
#define BN_WEIGHTS_Q8_0 (1)

/** 4 bits, in blocks of 32 with a half-precision scale. */
#define BN_WEIGHTS_Q4_0 (2)

/** -1, 0 and 1 with a scale, as in BitNet b1.58. */
#define BN_WEIGHTS_TERNARY (3)

/**
 * 8 bits, with a scale for each row; activations get one for each token. Faster than
 * `BN_WEIGHTS_Q8_0` for prompts, and less precise.
 */
#define BN_WEIGHTS_INT8 (4)

/** Half precision. */
#define BN_KV_F16 (0)

/** Single precision. */
#define BN_KV_F32 (1)

/** int8, with a scale for each token and head. */
#define BN_KV_INT8 (2)

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

/**
 * As AVX512_VNNI, and AMX's matrix tiles of bytes, where the system lets the process use them. It
 * is asked when an engine that wants them is created, by default too: from then on it refuses
 * signal stacks (`sigaltstack`) without room for tiles, some 11 KiB.
 */
#define BN_INSTRUCTIONS_AMX (6)

/**
 * A request's: as the engine's. An engine's: `BN_SPECULATION_DRAFT` with a `draft_model`, else
 * `BN_SPECULATION_OFF`.
 */
#define BN_SPECULATION_DEFAULT (0)

/** Nothing is drafted. */
#define BN_SPECULATION_OFF (1)

/** What followed the request's last tokens where they came before, in its prompt or output. */
#define BN_SPECULATION_LOOKUP (2)

/** The engine's `draft_model`. */
#define BN_SPECULATION_DRAFT (3)

/** For `bn_engine_shutdown`: accept nothing new, finish what was accepted. */
#define BN_SHUTDOWN_DRAIN (0)

/** For `bn_engine_shutdown`: accept nothing new, cancel what was accepted. May follow a drain. */
#define BN_SHUTDOWN_CANCEL (1)

/** The engine accepts requests. */
#define BN_STATE_RUNNING (0)

/** The engine accepts no more requests and finishes those that it has. */
#define BN_STATE_DRAINING (1)

/** Every request has finished. Events may still wait to be polled or delivered. */
#define BN_STATE_DRAINED (2)

/** The engine's thread died of a bug. Every request has its last event. */
#define BN_STATE_DEAD (3)

/** For `bn_model_info.sampling_fields`: the model's files set `temperature`. */
#define BN_SAMPLING_TEMPERATURE (1u << 0)

/** The model's files set `top_k`. */
#define BN_SAMPLING_TOP_K (1u << 1)

/** The model's files set `top_p`. */
#define BN_SAMPLING_TOP_P (1u << 2)

/** The model's files set `min_p`. */
#define BN_SAMPLING_MIN_P (1u << 3)

/** The model's files set `repetition_penalty`. */
#define BN_SAMPLING_REPETITION_PENALTY (1u << 4)

/** For `bn_request_params.samplers`: `temperature`, with `temperature_range`. */
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

/** For `bn_request_params.constraint_kind`: no constraint. */
#define BN_CONSTRAINT_NONE (0)

/**
 * `constraint` is a JSON schema; the output is JSON that is valid under it. Object keys come in the
 * schema's order. A keyword that cannot be kept is refused by name; so are references to other
 * documents.
 */
#define BN_CONSTRAINT_JSON_SCHEMA (1)

/** The output is a JSON object. `constraint` is not set. */
#define BN_CONSTRAINT_JSON_OBJECT (2)

/**
 * `constraint` is a regular expression in Rust's syntax, without look-around and back references;
 * the whole output matches it, with or without `^` and `$`.
 */
#define BN_CONSTRAINT_REGEX (3)

/**
 * `constraint` is a grammar in llguidance's dialect of Lark, whose rule `start` the output matches.
 */
#define BN_CONSTRAINT_LARK (4)

/**
 * `constraint` is a grammar as llama.cpp has them, whose rule `root` the output matches. Its rules
 * that are not recursive match greedily.
 */
#define BN_CONSTRAINT_GBNF (5)

/** No events on the way: one event at the end, with the whole text and all tokens. */
#define BN_REQUEST_NO_STREAM (1u << 0)

/**
 * Only a `bn_poll` of the request's own id returns its events: `BN_ANY` and the wait descriptor
 * do not see them. Refused in callback mode.
 */
#define BN_REQUEST_POLL_BY_ID (1u << 1)

/** Return the prompt's text and tokens in front of the output. */
#define BN_REQUEST_ECHO_PROMPT (1u << 2)

/** Do not end at the model's end tokens. */
#define BN_REQUEST_IGNORE_EOS (1u << 3)

/** Return the log probability of each generated token, and of `top_logprobs` more. */
#define BN_REQUEST_LOGPROBS (1u << 4)

/**
 * Control tokens spelled out in `prompt` (like `<|eot_id|>`) become those tokens. Not for text
 * from outside.
 */
#define BN_REQUEST_PARSE_SPECIAL (1u << 5)

/**
 * Compute the prompt's embedding instead of an output. The request's only event has it.
 * `max_new_tokens` is ignored; sampling and stop fields, `messages` and the other output flags
 * must have their defaults.
 */
#define BN_REQUEST_EMBED (1u << 6)

/** With `BN_REQUEST_EMBED`: do not divide the vector by its Euclidean length. */
#define BN_REQUEST_EMBED_RAW (1u << 7)

/**
 * Take nothing from the prefix cache and leave nothing there: every token of the prompt is
 * computed. Results are the same. Not with `session`.
 */
#define BN_REQUEST_NO_CACHE (1u << 8)

/**
 * Needs `queue_timeout_ms`: end the request while it is queued, as `BN_FINISH_TIMED_OUT`, as soon
 * as its first token is predicted to come later than that. So in overload, no time is spent on
 * requests that would be late anyway.
 */
#define BN_REQUEST_DROP_LATE (1u << 9)

/**
 * End the request, as `BN_FINISH_CANCELLED`, when it would be paused because its output is not
 * polled (`max_unread_bytes`).
 */
#define BN_REQUEST_END_UNREAD (1u << 10)

/**
 * With `BN_REQUEST_LOGPROBS`: log probabilities of what the token is drawn from, behind penalties,
 * temperature and all that drops tokens (of a dropped one: -infinity), instead of the model's own.
 */
#define BN_REQUEST_CHAIN_LOGPROBS (1u << 11)

/**
 * Needs `chat_json`: events have the answer's reasoning in `reasoning`, calls of tools in
 * `tool_calls`, and all else in `text`. The markers between them are left out, with the line breaks
 * beside them. The model's chat template tells how it writes these. Calls are looked for if `tools`
 * may be called.
 *
 * A call is returned as soon as its name is known and its arguments begin, and these as they come.
 * What begins like a call and is none is text. If the arguments turn out not to be JSON, the call
 * keeps what was returned of them, and the rest is text. Stop strings are looked for in all that
 * is generated.
 */
#define BN_REQUEST_PARSE_OUTPUT (1u << 12)

/**
 * With `BN_REQUEST_ECHO_PROMPT` and `BN_REQUEST_LOGPROBS`: return the log probabilities of the
 * prompt's tokens too, those from `logprobs_from` on: of each one behind those before it, of the
 * model's own softmax. Without it, and for the first token of all, they are NaN. Not with
 * `chat_json`.
 */
#define BN_REQUEST_PROMPT_LOGPROBS (1u << 13)

/**
 * Generate nothing: with `BN_REQUEST_LOGPROBS`, return the prompt's tokens from `logprobs_from` on
 * and their log probabilities, as for `BN_REQUEST_PROMPT_LOGPROBS`, in one event that finishes the
 * request as `BN_FINISH_LENGTH`. What stands before them is taken from the prefix cache if it is
 * there: continuations of one prompt compute it once. For reranking, classification and evaluation.
 * `max_new_tokens` is ignored; stop fields, `constraint` and `on_logits` are refused.
 */
#define BN_REQUEST_SCORE (1u << 14)

/** The default of `bn_request_params.priority`. */
#define BN_PRIORITY_DEFAULT (128u)

/** The most urgent `bn_request_params.priority`. */
#define BN_PRIORITY_MAX (255u)

/** The pooling that the model was made for, `bn_model_info.pooling`. */
#define BN_POOLING_MODEL (0)

/** The hidden state of the last prompt token, after the final norm. */
#define BN_POOLING_LAST (1)

/** The mean of the hidden states of all prompt tokens. */
#define BN_POOLING_MEAN (2)

/** The hidden state of the first prompt token. */
#define BN_POOLING_FIRST (3)

/** The largest `draft_tokens`. */
#define BN_MAX_DRAFT_TOKENS (15u)

/** The largest `stop_strings_count` and `stop_tokens_count`. */
#define BN_MAX_STOPS (256u)

/** The request waits for admission. */
#define BN_STAGE_QUEUED (0)

/**
 * The request was admitted. It takes part in forward passes, unless it is paused or interrupted.
 */
#define BN_STAGE_RUNNING (1)

/** The request has finished. Its last event may still wait to be polled. */
#define BN_STAGE_FINISHED (2)

/** New tokens and text; the request goes on. Everything since the last poll is in one event. */
#define BN_EVENT_TOKENS (1)

/**
 * The request's last event, with a finish reason, usage, and the tokens and text not returned
 * before.
 */
#define BN_EVENT_COMPLETED (2)

/** Not finished (`BN_EVENT_TOKENS`). */
#define BN_FINISH_NONE (0)

/** An end token of the model's, or one of `stop_tokens`. */
#define BN_FINISH_STOP (1)

/** One of `stop_strings`. */
#define BN_FINISH_STOP_STRING (2)

/** `max_new_tokens` or the engine's `max_sequence_length`. */
#define BN_FINISH_LENGTH (3)

/**
 * Cancelled by `bn_cancel`, a shutdown or destroy, or for unread output
 * (`BN_REQUEST_END_UNREAD`).
 */
#define BN_FINISH_CANCELLED (4)

/** Its timeout passed, or was bound to (`BN_REQUEST_DROP_LATE`). */
#define BN_FINISH_TIMED_OUT (5)

/** It failed; `status` and `message` say why. */
#define BN_FINISH_FAILED (6)

/** The embedding is in `embedding` (`BN_REQUEST_EMBED`). */
#define BN_FINISH_EMBEDDING (7)

/** Number of `bn_latency.buckets`. */
#define BN_LATENCY_BUCKETS (24)

/** Number of `bn_lengths.buckets`. */
#define BN_LENGTH_BUCKETS (20)

/** A block came into the cache. */
#define BN_KV_STORED (1)

/** A block left the cache. */
#define BN_KV_REMOVED (2)

/**
 * Forget all blocks; what is in the cache follows as `BN_KV_STORED`. When changes were lost because
 * they were not read in time, and after `bn_cache_clear`; but an engine of several devices tells
 * then of each block that has gone, and of others what the first device stores and the last one
 * removes.
 */
#define BN_KV_CLEARED (3)

/** From submit to admission. `tokens` are the prompt's. */
#define BN_SPAN_QUEUED (1)

/**
 * From admission to the end of the prompt. `tokens` are those of the prompt that were not cached.
 */
#define BN_SPAN_PREFILL (2)

/** From the first generated token to the last. `tokens` are the generated ones. */
#define BN_SPAN_DECODE (3)

/** For `bn_model_tokenize`: put in front what submitting a text puts there (BOS). */
#define BN_TOKENIZE_ADD_SPECIAL (1u << 0)

/** For `bn_model_tokenize`: control tokens spelled out in the text become those tokens. */
#define BN_TOKENIZE_PARSE_SPECIAL (1u << 1)

/**
 * For `bn_model_chat_format` and `bn_model_chat_tokenize`: end with the beginning of the
 * assistant's answer, as submitting `messages` does.
 */
#define BN_CHAT_ADD_GENERATION_PROMPT (1u << 0)

/**
 * A LoRA adapter of an engine.
 *
 * Made by `bn_adapter_open`, freed by `bn_adapter_free`. The pointer is only a name, as
 * `bn_model`'s is.
 */
typedef struct bn_adapter bn_adapter;

/**
 * An engine: the threads, KV cache and requests that run one model.
 *
 * Made by `bn_engine_create`, freed by `bn_engine_destroy`. The pointer is only a name, as
 * `bn_model`'s is: a destroyed one is refused with `BN_ERR_INVALID_ARGUMENT`.
 */
typedef struct bn_engine bn_engine;

/**
 * A model: weights, tokenizer and chat template. Immutable, so any number of engines may share
 * one.
 *
 * Made by `bn_model_open` or `bn_engine_model`, freed by `bn_model_free`. The pointer is only a
 * name: it is looked up, never dereferenced, and never reused.
 */
typedef struct bn_model bn_model;

/** The result of a call: `BN_OK` (0) or a negative `BN_ERR_*`. The numbers are stable. */
typedef int32_t bn_status;

/**
 * UTF-8 text.
 *
 * Text that you pass in may set `length` to `BN_NUL_TERMINATED`. Text that the library returns
 * has its length, is not NUL-terminated, and has a non-NULL `data` even if it is empty. Neither
 * this struct nor `bn_logprob` ever grows.
 */
typedef struct bn_string {
    /** The bytes. NULL with a length of 0 means "not set"; `BN_TEXT(NULL)` is an error. */
    const char *data;
    /** Number of bytes. */
    size_t length;
} bn_string;

/**
 * Receives one line of the log.
 *
 * `message` is valid until the callback returns. The callback may run on any thread, on several
 * at once, and inside the host's own calls. None runs after `bn_engine_destroy`, or for a model
 * `bn_model_open`, has returned. The rules of `bn_event_callback` apply.
 */
typedef void (*bn_log_callback)(int32_t level, struct bn_string message, void *context);

/**
 * Receives the progress of loading: `fraction` from 0 to 1, and what is being loaded.
 *
 * Called on a thread of the library while `bn_model_open` waits. A non-zero return value stops
 * loading: `bn_model_open` returns `BN_ERR_CANCELLED`. The rules of `bn_event_callback` apply.
 */
typedef int32_t (*bn_progress_callback)(float fraction, struct bn_string what, void *context);

/**
 * How to open a model. `bn_model_config_init` fills in the defaults.
 *
 * At most one of `path`, `fd` and `data` says where the model is. With none of them it is the
 * small model that is embedded in the library.
 */
typedef struct bn_model_config {
    /** `sizeof(bn_model_config)`; set by `bn_model_config_init`. */
    uint32_t struct_size;
    /**
     * An open, readable descriptor of a GGUF file, or -1 (default). The file is read from its
     * beginning, whatever the descriptor's position. The caller may close it once
     * `bn_model_open` has returned.
     */
    int32_t fd;
    /**
     * A GGUF file, a Hugging Face folder (`config.json`, safetensors, `tokenizer.json`), or
     * `builtin:echo`, a model without weights that answers with its prompt
     * (`builtin:echo?us_per_token=N&load_ms=N` takes so long for each token, and to load).
     */
    struct bn_string path;
    /**
     * The bytes of a GGUF file, at any alignment. They are used where they are: keep them
     * unchanged until the model and every engine made of it are freed. NULL (default): not in
     * memory.
     */
    const void *data;
    /** Number of bytes at `data`. */
    size_t data_size;
    /**
     * The `kernel_config.ini` that a GGUF file with TL1 or TL2 tensors was converted with. Not
     * set (default): the one beside the file.
     */
    struct bn_string kernel_config_path;
    /**
     * The most bytes that the weights may take; loading stops at the tensor that passes it. 0
     * (default): no limit.
     */
    uint64_t memory_limit_bytes;
    /** Threads that load, 1 to 256. 0 (default): the CPUs that this process may use. */
    uint32_t threads;
    /**
     * What attention and feed-forward weights become while loading, `BN_WEIGHTS_*`. Only F32,
     * F16 and BF16 weights can become something else than `BN_WEIGHTS_KEEP` (default), and only
     * those of BitNet models `BN_WEIGHTS_TERNARY`. Q4_0 to Q8_0 and Q4_K to Q6_K weights can
     * become `BN_WEIGHTS_INT8` too.
     */
    int32_t weight_type;
    /** The same for the embedding, without `BN_WEIGHTS_TERNARY`. */
    int32_t embedding_type;
    /** The same for the output head. If it is tied to the embedding, either field sets both. */
    int32_t head_type;
    /** The most detailed level that `log` gets, `BN_LOG_*`. Default `BN_LOG_WARN`. */
    int32_t log_level;
    /** Must be 0. */
    uint32_t reserved;
    /** Receives the log. NULL (default): no log. */
    bn_log_callback log;
    /** Passed to `log`. */
    void *log_context;
    /** Receives the progress of loading, and may stop it. NULL (default): none. */
    bn_progress_callback progress;
    /** Passed to `progress`. */
    void *progress_context;
} bn_model_config;

/**
 * Why a call failed, in words. The caller owns it, and may pass NULL wherever it is taken.
 *
 * `bn_error error = {0};` with `error.struct_size = sizeof error;`, or `bn_error_init`, prepares
 * one. It may be used for any number of calls; each overwrites it. Its size never changes.
 */
typedef struct bn_error {
    /**
     * `sizeof(bn_error)`, set by the caller. Any other value makes the call fail with
     * `BN_ERR_INVALID_ARGUMENT`.
     */
    uint32_t struct_size;
    /** The status that the call returned. */
    int32_t status;
    /**
     * What went wrong, where, and what to do: UTF-8, NUL-terminated. A long message loses its
     * middle. Empty after success.
     */
    char message[504];
} bn_error;

/**
 * What is known of a model: `bn_model_info_init`, then `bn_model_get_info`. Pointers are valid
 * until `bn_model_free`.
 */
typedef struct bn_model_info {
    /** `sizeof(bn_model_info)`; set by `bn_model_info_init`. */
    uint32_t struct_size;
    /**
     * 1 if the model has a tokenizer. Without one, prompts are token ids and events have no
     * text.
     */
    int32_t has_tokenizer;
    /** The architecture as the model's files name it: `llama`, `bitnet-b1.58`, ... */
    struct bn_string architecture;
    /** The model's own name; may be empty. */
    struct bn_string name;
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
    /**
     * The model's end tokens, which end an output as `BN_FINISH_STOP`. NULL if there are none.
     */
    const uint32_t *end_tokens;
    /** Number of `end_tokens`. */
    size_t end_tokens_count;
    /** The BOS token's id, or -1. */
    int64_t bos_token;
    /** Elements of an embedding (`BN_REQUEST_EMBED`). 0: the model makes none. */
    uint64_t embedding_size;
    /**
     * What `BN_POOLING_MODEL` stands for: `BN_POOLING_LAST`, `BN_POOLING_MEAN` or
     * `BN_POOLING_FIRST`.
     */
    int32_t pooling;
    /** 1 if the model has a chat template, so that requests may have `messages`. */
    int32_t has_chat_template;
    /**
     * Which of the five fields below the model's authors recommend, in `generation_config.json`
     * or in the keys of a GGUF file: a sum of `BN_SAMPLING_TEMPERATURE` and its like. The others
     * are 0. Requests never use them by themselves.
     */
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
} bn_model_info;

/** A message of a conversation. Arrays of it are passed with `sizeof(bn_chat_message)`. */
typedef struct bn_chat_message {
    /**
     * Who speaks: "system", "user", "assistant", or another role that the model's template
     * knows.
     */
    struct bn_string role;
    /** What they say. */
    struct bn_string content;
} bn_chat_message;

/**
 * The id of a request, valid for its engine until `bn_release`. Never 0 and never `BN_ANY`. A
 * stale or foreign id is refused with `BN_ERR_NOT_FOUND`.
 */
typedef uint64_t bn_request;

/** A token and its log probability. */
typedef struct bn_logprob {
    /** The token's id. */
    uint32_t token;
    /**
     * Natural logarithm of its probability: before everything that a request asks of sampling, or
     * after it with `BN_REQUEST_CHAIN_LOGPROBS`.
     */
    float logprob;
} bn_logprob;

/** A call of a tool in an answer, or the next part of one. It never grows. */
typedef struct bn_tool_call {
    /** Which of the answer's calls, from 0. */
    uint32_t index;
    /** 0. */
    uint32_t reserved;
    /**
     * Nine letters and digits, the same for the same prompt, seed and index. In the first part of a
     * call, and empty in later ones.
     */
    struct bn_string id;
    /**
     * The tool's name, as the model wrote it: not always one of `tools`. Only in the first part.
     */
    struct bn_string name;
    /** The next part of the arguments' JSON. */
    struct bn_string arguments;
} bn_tool_call;

/**
 * What happened to a request.
 *
 * What an event from `bn_poll` points to belongs to the caller that polled it, and stays valid
 * and unchanged, whatever other threads do, until `bn_events_free` gives the event back, or
 * `bn_release` ends its request, or `bn_engine_destroy` is called. In a callback it is valid until
 * the callback returns.
 */
typedef struct bn_event {
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
    struct bn_string text;
    /**
     * New tokens, an end token included. With `BN_REQUEST_ECHO_PROMPT` the first event begins
     * with the prompt's; with `BN_REQUEST_SCORE` they are the prompt's. NULL if there are none.
     */
    const uint32_t *tokens;
    /** Number of `tokens`. */
    size_t tokens_count;
    /**
     * For each of `tokens` its own entry, then `top_logprobs` more, the most likely first, then
     * those of `logprob_tokens`. NaN for the prompt's first token, and for its others without
     * `BN_REQUEST_PROMPT_LOGPROBS`. NULL without a flag that asks for them.
     */
    const struct bn_logprob *logprobs;
    /** Number of `logprobs`: `tokens_count * logprobs_per_token`. */
    size_t logprobs_count;
    /** 0, or 1 + `top_logprobs` + `logprob_tokens_count`. */
    uint32_t logprobs_per_token;
    /** `BN_FINISH_*`. */
    int32_t finish_reason;
    /** `BN_OK`, or why the request failed, was cancelled or timed out. */
    bn_status status;
    /**
     * The index of the stop token (`BN_FINISH_STOP`) or stop string (`BN_FINISH_STOP_STRING`)
     * that ended the request; -1 for the model's own end token and for other reasons.
     */
    int32_t stop_index;
    /** Why the request failed, was cancelled or timed out. Empty otherwise. */
    struct bn_string message;
    /** The vector, if `finish_reason` is `BN_FINISH_EMBEDDING`; otherwise NULL. */
    const float *embedding;
    /** Elements of `embedding`. */
    size_t embedding_count;
    /** The pooling that made `embedding`, `BN_POOLING_*`; otherwise 0. */
    int32_t pooling;
    /** Tokens of the prompt. This and the fields below are 0 before `BN_EVENT_COMPLETED`. */
    uint32_t prompt_tokens;
    /** Generated tokens, an end token included. */
    uint32_t generated_tokens;
    /**
     * Of the prompt's tokens, those that were in the prefix cache at admission and were not
     * computed again.
     */
    uint32_t cached_tokens;
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
    /** Tokens that were drafted for the request and verified. */
    uint32_t drafted_tokens;
    /** Of these, those that the output has. */
    uint32_t accepted_tokens;
    /**
     * New reasoning, which is not in `text` (`BN_REQUEST_PARSE_OUTPUT`): whole UTF-8 characters.
     */
    struct bn_string reasoning;
    /**
     * New calls of tools, and more of the last one (`BN_REQUEST_PARSE_OUTPUT`). NULL if there are
     * none.
     */
    const struct bn_tool_call *tool_calls;
    /** Number of `tool_calls`. */
    size_t tool_calls_count;
    /**
     * Calls in the whole answer; 0 before `BN_EVENT_COMPLETED`. After `BN_FINISH_STOP`, they are
     * what the model waits for.
     */
    uint32_t tool_calls_total;
    /** 0. */
    uint32_t reserved;
} bn_event;

/**
 * Receives one event.
 *
 * Called on the engine's delivery thread, with no lock held, one call at a time; the events of a
 * request come in order. `event` and what it points to are valid until the callback returns. It
 * may call every [any thread] function. It should not take long, as opening a model does: other
 * events wait meanwhile (the model keeps running). It must return: no `longjmp`, no C++
 * exception. `context` is `bn_engine_config.on_event_context`.
 */
typedef void (*bn_event_callback)(const struct bn_event *event, void *context);

/** A phase of a traced request that has ended, for `bn_span_callback`. */
typedef struct bn_span {
    /** Bytes of this struct that the library wrote. */
    uint32_t struct_size;
    /** `BN_SPAN_*`. Ignore kinds that you do not know. */
    int32_t kind;
    /** The request. */
    bn_request request;
    /** `bn_request_params.user_data`. */
    uint64_t user_data;
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
    /** Of the prompt's tokens, those that were in the prefix cache. */
    uint32_t cached_tokens;
    /** How the request ended, `BN_FINISH_*`. */
    int32_t finish_reason;
    /** Always 0. */
    uint32_t reserved;
} bn_span;

/**
 * Receives the spans of a request that has a `trace_id`, when it has ended: one for each phase that
 * it reached, in order. None comes for requests that end because the engine died.
 *
 * Called on the engine's thread, with no lock held: every request waits until it returns, so it
 * should copy `*span`, which is valid until then. The request's last event may come before or
 * after. None runs after `bn_engine_destroy` has returned. The rules of `bn_event_callback` apply.
 * `context` is `bn_engine_config.on_span_context`.
 */
typedef void (*bn_span_callback)(const struct bn_span *span, void *context);

/**
 * How to make an engine. `bn_engine_config_init` fills in the defaults. Everything that it
 * points to is copied by `bn_engine_create`; what the contexts point to must live until
 * `bn_engine_destroy` returns.
 */
typedef struct bn_engine_config {
    /** `sizeof(bn_engine_config)`; set by `bn_engine_config_init`. */
    uint32_t struct_size;
    /** `BN_DELIVERY_POLL` (default) or `BN_DELIVERY_CALLBACK`. */
    int32_t delivery_mode;
    /**
     * The model. The engine keeps its own reference, so it may be freed at any time. NULL
     * (default): the model at `model_path` is loaded.
     */
    struct bn_model *model;
    /**
     * What `bn_model_config.path` is, for a model that this engine alone uses. Not set
     * (default), with `model` NULL too: the model that is embedded in the library.
     */
    struct bn_string model_path;
    /** Compute threads, 1 to 256. 0 (default): the CPUs that this process may use. */
    uint32_t threads;
    /**
     * The instruction set, `BN_INSTRUCTIONS_*`. One that the machine lacks is refused. Results
     * are bitwise the same with any: this is for measuring and for finding faults.
     */
    int32_t instructions;
    /** The most requests in one forward pass, 1 to 4096, default 32. */
    uint32_t max_batch_size;
    /**
     * The most tokens in one forward pass, `max_batch_size` to 65536, default 512. Longer
     * prompts are run in chunks.
     */
    uint32_t max_batch_tokens;
    /**
     * The most tokens of one request, prompt and output together: 2 to the model's context
     * length. 0 (default): the context length, or without `memory_limit_bytes` less if the KV cache
     * holds no more; `bn_stats.max_sequence_length` says how much.
     */
    uint32_t max_sequence_length;
    /** Tokens per block of the KV cache: 16, 32 (default), 64 or 128. */
    uint32_t kv_block_size;
    /**
     * What keys and values are stored in: `BN_KV_F16` (default), `BN_KV_F32` or `BN_KV_INT8`,
     * which takes half the memory of F16 and rounds more. `builtin:echo` has no such choice.
     */
    int32_t kv_type;
    /**
     * The most unreleased requests, 1 to 1048576, default 1024: queued, running, and finished ones
     * that were not released. One more is refused with `BN_ERR_QUEUE_FULL`.
     */
    uint32_t queue_capacity;
    /**
     * The most prompt tokens of queued requests together. What passes it is refused with
     * `BN_ERR_QUEUE_FULL`, unless none is queued: a long prompt has its turn. 0 (default): no bound
     * but `queue_capacity`.
     */
    uint64_t queue_token_capacity;
    /**
     * The most bytes for weights, KV cache, workspace, prompts, outputs and events together. The
     * weights count whole, also those of a shared model. A prompt counts from submit on, an output
     * as it grows, 16 tokens at a time: a request that gets no more memory is paused until others
     * give some back, and is never shortened for it. 0 (default): no limit. Then the KV cache takes
     * at most half of the memory that the machine and the control groups of the process have free.
     */
    uint64_t memory_limit_bytes;
    /**
     * The most bytes of the KV cache. It never takes more than `memory_limit_bytes` leaves, or
     * without that limit, half of what the machine and its control groups have free, nor more than
     * `max_batch_size` requests of `max_sequence_length` need. 0 (default): these bounds alone.
     */
    uint64_t kv_cache_bytes;
    /**
     * The most bytes of output, as `memory_limit_bytes` counts them, that a request may have
     * streamed without a poll (or callback) taking them. Beyond that it is paused until they are
     * taken, while others go on, or ends (`BN_REQUEST_END_UNREAD`). Default 4194304; 0: no limit.
     */
    uint64_t max_unread_bytes;
    /**
     * Changes of the prefix cache to keep for `bn_kv_events`, at most 1048576. There is always
     * room for twice as many as the cache has blocks. 0 (default): none are kept.
     */
    uint32_t kv_events_capacity;
    /** Must be 0. */
    uint32_t reserved;
    /**
     * Microseconds that an idle engine waits for more requests before its first step, 0
     * (default) to 1000000.
     */
    uint32_t max_wait_us;
    /**
     * Milliseconds that a step with running answers should not exceed, 1 to 60000, default 200.
     * Prompts are cut into chunks to keep the predicted time of a step below seven eighths of it.
     * But they may always add three quarters of the time that the running answers take, so that
     * they get on: where answers alone take more than half of the target, a step may exceed it.
     */
    uint32_t max_step_ms;
    /**
     * The time between two tokens of an answer to aim at, in milliseconds, up to 60000. A request
     * waits while a step of all running answers and its own, with as much of prompts as steps had
     * lately, is predicted to take longer. The lower of this and `max_step_ms` is the target for a
     * step with prompts. It is an aim: at least one request runs, and those that run are not
     * interrupted for it. 0 (default): as many run as fit, for throughput.
     */
    uint32_t target_itl_ms;
    /**
     * How much later a request of priority 255 may be submitted than one of priority 0 and still
     * come first, in milliseconds, up to 3600000, default 30000. Priorities between are worth
     * proportionally less. So a request of the lowest priority waits for work that came before it
     * or within this time after it, and for no other. 0: requests come in their order of arrival.
     */
    uint32_t priority_ageing_ms;
    /** The timeout of requests that set none, in milliseconds from submit. 0 (default): none. */
    uint32_t default_timeout_ms;
    /** The most detailed level that `log` gets, `BN_LOG_*`. Default `BN_LOG_WARN`. */
    int32_t log_level;
    /** Receives the events in `BN_DELIVERY_CALLBACK` mode. NULL in the other. */
    bn_event_callback on_event;
    /** Passed to `on_event`. */
    void *on_event_context;
    /** Receives the log. NULL (default): no log. The library never prints. */
    bn_log_callback log;
    /** Passed to `log`. */
    void *log_context;
    /** What metrics call the model. Not set (default): its own name, `bn_model_info.name`. */
    struct bn_string model_name;
    /** Receives the spans of requests that have a `trace_id`. NULL (default): nobody does. */
    bn_span_callback on_span;
    /** Passed to `on_span`. */
    void *on_span_context;
    /**
     * Bytes of `memory_limit_bytes` that the KV cache leaves for adapters (`bn_adapter_open`),
     * besides what it leaves for requests. 0 (default): adapters take of what requests have.
     */
    uint64_t adapter_bytes;
    /** For requests that do not say, `BN_SPECULATION_*`. Default `BN_SPECULATION_DEFAULT`. */
    int32_t speculation;
    /**
     * The most tokens drafted for one step of a request, for requests that do not say, up to
     * `BN_MAX_DRAFT_TOKENS`. 0 (default): as many as pay.
     */
    uint32_t draft_tokens;
    /**
     * A small model that drafts tokens for `model` to verify, with the same vocabulary. Its weights
     * and its part of each KV block count against `memory_limit_bytes`. The engine keeps its own
     * reference. NULL (default): none.
     */
    struct bn_model *draft_model;
    /**
     * What forward passes run on: `cpu` (default, also where it is not set), or an NVIDIA device,
     * `cuda:0` and so on, of those that `CUDA_VISIBLE_DEVICES` leaves. There, `kv_cache_bytes` and
     * `memory_limit_bytes` are the device's, and so is what an engine without a limit finds free.
     * Answers are those of the CPU, to the bit but for weights of F16 and BF16 and `kv_type` F16,
     * with which they are near.
     * `BN_ERR_UNSUPPORTED`: there is no such device, its driver is too old, no kernel takes the
     * model's weights, or the library was built without kernels.
     *
     * Several devices of one type, as `cuda:0,cuda:1`: each has the whole model and a KV cache, and
     * runs up to `max_batch_size` requests. A request goes to the one that owes the fewest tokens,
     * cached beginnings of its prompt left out; a session stays where its name puts it. Memory
     * limits are for each device, and `bn_stats` has their sum; the limits of the queue are the
     * engine's.
     *
     * Where a device is lost, the requests that ran there fail with the reason (their event has
     * `BN_ERR_ENGINE_DEAD`), sessions there are gone, and the engine goes on with the others. When
     * none is left, its calls return `BN_ERR_ENGINE_DEAD`.
     */
    struct bn_string device;
} bn_engine_config;

/**
 * A distribution of times. The percentiles are 0 before the first sample. This struct never grows.
 */
typedef struct bn_latency {
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
    /**
     * Samples by time: bucket `i` has those above `bn_latency_bound_ns(i - 1)` and up to
     * `bn_latency_bound_ns(i)`. Together they are `count`. The buckets of several engines add up,
     * which percentiles do not. The bounds are 1, 2.5 and 5 of each decade from 10 us to 50 s,
     * 100 s, 300 s, and none.
     */
    uint64_t buckets[BN_LATENCY_BUCKETS];
} bn_latency;

/** A distribution of lengths in tokens. This struct never grows. */
typedef struct bn_lengths {
    /** Number of samples. */
    uint64_t count;
    /** Their sum. */
    uint64_t sum;
    /**
     * Samples by length: bucket `i` has those above `bn_length_bound(i - 1)` and up to
     * `bn_length_bound(i)`. Together they are `count`. The bounds are 1, 2 and 5 of each decade up
     * to 1000000, and none.
     */
    uint64_t buckets[BN_LENGTH_BUCKETS];
} bn_lengths;

/**
 * A snapshot of an engine's counters: `bn_stats_init`, then `bn_engine_stats`. Counters start at
 * 0 with the engine.
 */
typedef struct bn_stats {
    /** `sizeof(bn_stats)`; set by `bn_stats_init`. */
    uint32_t struct_size;
    /** Always 0. */
    uint32_t reserved;
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
    /** Requests finished as `BN_FINISH_CANCELLED`. */
    uint64_t completed_cancelled;
    /** Requests finished as `BN_FINISH_TIMED_OUT`. */
    uint64_t completed_timed_out;
    /** Requests finished as `BN_FINISH_FAILED`. */
    uint64_t completed_failed;
    /**
     * Requests waiting for their first admission now. Together with `running`: those accepted and
     * not finished.
     */
    uint64_t queued;
    /**
     * Requests that were admitted and have not finished, paused and interrupted ones included.
     */
    uint64_t running;
    /** Requests that count against `queue_capacity` now. */
    uint64_t unreleased;
    /** Prompt tokens that went through the model. */
    uint64_t prompt_tokens;
    /** Tokens generated. */
    uint64_t generated_tokens;
    /** Forward passes. */
    uint64_t steps;
    /**
     * Requests in the last forward pass; where there are several devices, in that of each, summed.
     */
    uint64_t last_batch_size;
    /** Requests in a forward pass, on average. */
    double mean_batch_size;
    /** `mean_batch_size` over `max_batch_size`, 0 to 1. */
    double batch_utilization;
    /** Blocks of the KV cache that requests and sessions hold now. */
    uint64_t kv_blocks_used;
    /** Blocks of the KV cache. */
    uint64_t kv_blocks_total;
    /** Bytes that count against `memory_limit_bytes` now. */
    uint64_t memory_used_bytes;
    /** The limit; 0: none. */
    uint64_t memory_limit_bytes;
    /** The most that `memory_used_bytes` has been. */
    uint64_t memory_peak_bytes;
    /**
     * Generated tokens over the time spent in forward passes; of one device, if there are several.
     */
    double generated_tokens_per_second;
    /** The same for prompt tokens. */
    double prompt_tokens_per_second;
    /** From submit to admission. */
    struct bn_latency queue_wait;
    /** From submit to the first generated token. */
    struct bn_latency time_to_first_token;
    /** From a generated token to the next of the same request. */
    struct bn_latency inter_token;
    /** From submit to the terminal event. */
    struct bn_latency end_to_end;
    /** Requests finished as `BN_FINISH_EMBEDDING`. */
    uint64_t completed_embedding;
    /** Bytes of the KV cache, of all its blocks. */
    uint64_t kv_bytes;
    /** The most tokens of one request, prompt and output together. */
    uint64_t max_sequence_length;
    /**
     * Blocks of the KV cache that no request and no session uses now, with prefixes that a later
     * request may take.
     */
    uint64_t kv_blocks_cached;
    /** Cached blocks that were given up because requests needed the room. */
    uint64_t kv_evictions;
    /** Prompt tokens that were in the prefix cache. `prompt_tokens` does not count them. */
    uint64_t cached_tokens;
    /**
     * Tokens computed again because their request was interrupted or paused. `prompt_tokens` does
     * not count them.
     */
    uint64_t recomputed_tokens;
    /**
     * Times that a running request was interrupted, for KV blocks or for one of higher priority.
     */
    uint64_t preemptions;
    /**
     * Times that a request was paused because its output was not polled or memory was short. It
     * gives up its KV blocks meanwhile.
     */
    uint64_t pauses;
    /** Requests paused now; they count as running. */
    uint64_t paused;
    /** Sessions kept now. */
    uint64_t sessions;
    /** Blocks of the KV cache that they hold. A block that several share counts for each. */
    uint64_t session_blocks;
    /**
     * Nanoseconds that the oldest queued request of priority 0 to 63, 64 to 127, 128 to 191 and
     * 192 to 255 has waited; 0 without one.
     */
    uint64_t queue_age_ns[4];
    /** What `unreleased` may be at most. */
    uint64_t queue_capacity;
    /** Prompt tokens of the requests in `queued`. */
    uint64_t queued_tokens;
    /** What `queued_tokens` may be at most; 0: no bound. */
    uint64_t queue_token_capacity;
    /** Forward passes that carried running answers. */
    uint64_t decode_steps;
    /**
     * Of these, those that took longer than `max_step_ms`. Many of them: the model cannot hold it
     * with so many requests at a time, or at all.
     */
    uint64_t long_steps;
    /**
     * Nanoseconds of forward passes that prompts took, tokens computed again included. A pass with
     * prompts and answers is split by what their rows cost, as learned from all passes. This,
     * `decode_ns`, `idle_ns` and `drafting_ns` are sums over the devices.
     */
    uint64_t prefill_ns;
    /** Nanoseconds of forward passes that answers took. */
    uint64_t decode_ns;
    /**
     * Nanoseconds in which nothing could run: there were no requests, or all were paused. What is
     * left of `uptime_ns` (times `devices`) went into planning, sampling and handing over.
     */
    uint64_t idle_ns;
    /** Nanoseconds since the engine was made. */
    uint64_t uptime_ns;
    /** Generated tokens per second over the last ten seconds. */
    double recent_generated_tokens_per_second;
    /** The same for prompt tokens that went through the model. */
    double recent_prompt_tokens_per_second;
    /**
     * Prompt tokens of requests at their first admission; of these, `cached_tokens` were cached.
     */
    uint64_t queried_tokens;
    /**
     * Requests in forward passes, summed over all passes: the increase over that of `steps` is the
     * mean batch size of a time.
     */
    uint64_t batched_requests;
    /** `bn_engine_config.max_batch_size`: of each device. */
    uint64_t max_batch_size;
    /** Tokens in a block of the KV cache. */
    uint64_t kv_block_size;
    /** From admission to the end of the prompt, of requests that have ended and got so far. */
    struct bn_latency request_prefill;
    /** From the first generated token to the last, of requests that have ended and have one. */
    struct bn_latency request_decode;
    /** Prompt tokens of the requests that have ended. */
    struct bn_lengths prompt_lengths;
    /** Generated tokens of the requests that have ended. */
    struct bn_lengths generated_lengths;
    /** Tokens that were drafted and verified. */
    uint64_t drafted_tokens;
    /** Of these, those that outputs have. */
    uint64_t accepted_tokens;
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
    /**
     * Nanoseconds of passes of the draft model, which `prefill_ns` and `decode_ns` do not count.
     */
    uint64_t drafting_ns;
    /** Devices that compute; the CPU is one. */
    uint64_t devices;
    /** Of these, those that were lost. While some are left, the engine goes on with them. */
    uint64_t devices_lost;
} bn_stats;

/** A token and what is added to its logit. */
typedef struct bn_logit_bias {
    /** The token's id. */
    uint32_t token;
    /** -100 to 100, or `-INFINITY`: the token does not come. */
    float bias;
} bn_logit_bias;

/** A row of logits before anything else looks at it, for `bn_logits_callback`. */
typedef struct bn_logits {
    /** Bytes of this struct that the library wrote. */
    uint32_t struct_size;
    /** Number of `logits`. */
    uint32_t vocab_size;
    /** `bn_request_params.user_data`. */
    uint64_t user_data;
    /** The prompt's tokens. */
    const uint32_t *prompt_tokens;
    /** Number of `prompt_tokens`. */
    size_t prompt_tokens_count;
    /** The tokens generated so far. */
    const uint32_t *output_tokens;
    /** Number of `output_tokens`. */
    size_t output_tokens_count;
    /**
     * A logit for each token of the vocabulary, to be changed in place. `-INFINITY` forbids a
     * token; at least one must stay finite, and none may be NaN or `INFINITY`.
     */
    float *logits;
} bn_logits;

/**
 * Changes a request's logits before each of its tokens. Biases, penalties, samplers and
 * log probabilities are of what it leaves. Anything but 0 ends the request as `BN_FINISH_FAILED`
 * with `BN_ERR_CANCELLED`.
 *
 * Called on threads of the engine, for several requests at a time. All requests wait until it
 * returns. What `*row` points to is valid until then. The same output in every batch needs a
 * callback that depends on `*row` alone. The rules of `bn_event_callback` apply.
 * `context` is `bn_request_params.on_logits_context`. Keep both alive until the request's last
 * event, or, if it is released before, until `bn_engine_destroy` has returned.
 */
typedef int32_t (*bn_logits_callback)(const struct bn_logits *row, void *context);

/**
 * One request. `bn_request_params_init` fills in the defaults; then set one of `prompt`,
 * `prompt_tokens`, `messages` and `chat_json`. Nothing that it points to is needed after the call
 * that submits it.
 */
typedef struct bn_request_params {
    /** `sizeof(bn_request_params)`; set by `bn_request_params_init`. */
    uint32_t struct_size;
    /** `BN_REQUEST_*` flags. Default 0. An unknown flag is `BN_ERR_UNSUPPORTED`. */
    uint32_t flags;
    /**
     * The prompt as text. The tokenizer adds the tokens that the model wants in front of it
     * (BOS), and those that it wants behind a text to embed (EOS).
     */
    struct bn_string prompt;
    /** The prompt as token ids, used as they are. */
    const uint32_t *prompt_tokens;
    /** Number of `prompt_tokens`. */
    size_t prompt_tokens_count;
    /**
     * The prompt as a conversation, first message first. The model's chat template makes the
     * prompt and begins the assistant's answer. `content` never becomes a control token; choose
     * `role` yourself.
     */
    const struct bn_chat_message *messages;
    /** Number of `messages`, at most 65536. */
    size_t messages_count;
    /** `sizeof(bn_chat_message)`; set by `bn_request_params_init`. */
    size_t message_size;
    /**
     * Tokens that end the output, besides the model's own end tokens. They count even with
     * `BN_REQUEST_IGNORE_EOS`.
     */
    const uint32_t *stop_tokens;
    /** Number of `stop_tokens`, at most `BN_MAX_STOPS`. */
    size_t stop_tokens_count;
    /**
     * Texts that end the output. The returned text ends before the first one; `tokens` and usage
     * count every generated token. Only generated text is searched. Each has 1 to 65536 bytes.
     */
    const struct bn_string *stop_strings;
    /** Number of `stop_strings`, at most `BN_MAX_STOPS`. */
    size_t stop_strings_count;
    /** Returned in every event of the request. The library does not use it. */
    uint64_t user_data;
    /**
     * Seed of the random numbers. The same seed, prompt and parameters give the same output,
     * whatever else runs. Default 0.
     */
    uint64_t seed;
    /**
     * Requests with different salts share no part of the prefix cache, so that a client cannot
     * tell from timing what clients with other salts have asked. Default 0: all requests that set
     * none share.
     */
    uint64_t cache_salt;
    /**
     * The most tokens to generate, default 128. 0: as many as `max_sequence_length` leaves, which
     * limits the output in any case.
     */
    uint32_t max_new_tokens;
    /**
     * Milliseconds from submit after which the request ends as `BN_FINISH_TIMED_OUT` with what
     * it has. 0 (default): the engine's `default_timeout_ms`. `BN_TIMEOUT_NONE`: no timeout.
     */
    uint32_t timeout_ms;
    /**
     * Milliseconds from submit after which the request ends as `BN_FINISH_TIMED_OUT` if it is
     * still queued. 0 (default): it may wait as long as `timeout_ms` allows.
     */
    uint32_t queue_timeout_ms;
    /**
     * 0 to `BN_PRIORITY_MAX`, the most urgent. Default `BN_PRIORITY_DEFAULT`. Requests are ordered
     * by arrival and priority; `priority_ageing_ms` says what priorities are worth, and bounds how
     * long a low one waits. If a request finds no room, running ones that are behind it and of a
     * lower priority are interrupted for it, the last one first. They go on later, with the same
     * output.
     */
    uint32_t priority;
    /** 0 to 100. 0 (default): always the most likely token. */
    float temperature;
    /** Sample from this many most likely tokens. 0 (default): all. */
    uint32_t top_k;
    /**
     * Sample from the most likely tokens that together reach this probability, above 0, at most
     * 1 (default).
     */
    float top_p;
    /** Drop tokens less likely than this times the most likely one, 0 (default) to 1. */
    float min_p;
    /**
     * Divides positive and multiplies negative logits of tokens in the prompt or output, above
     * 0, at most 100. 1 (default): off.
     */
    float repetition_penalty;
    /**
     * Subtracted from a token's logit for each time it is in the output, -100 to 100. Default 0.
     */
    float frequency_penalty;
    /** Subtracted from a token's logit if it is in the output, -100 to 100. Default 0. */
    float presence_penalty;
    /**
     * With `BN_REQUEST_LOGPROBS`: how many of the most likely tokens to return for each
     * generated one, at most 32. Default 0.
     */
    uint32_t top_logprobs;
    /** With `BN_REQUEST_EMBED`: `BN_POOLING_*`. Default `BN_POOLING_MODEL`. */
    int32_t pooling;
    /** Must be 0. */
    uint32_t reserved;
    /**
     * A name of 1 to 256 bytes. When the request ends, the keys and values of its prompt and output
     * are kept in the KV cache under this name, in place of what had the name before: the next turn
     * of a conversation, with the same `cache_salt`, finds them however busy the engine was
     * meanwhile. Nothing changes if the request fails, ends while it does not run, or needs more
     * than half of the KV cache. That is what all sessions may hold together: the least recently
     * used goes first, also to make room for a request that does not fit alone. Names belong to
     * the engine: two users need two names. Refused with `BN_REQUEST_NO_CACHE`. Not set
     * (default): none.
     */
    struct bn_string session;
    /**
     * The trace that the request belongs to, as in W3C's `traceparent`: its spans go to
     * `bn_engine_config.on_span`. All zeros (default): it is not traced.
     */
    uint8_t trace_id[16];
    /**
     * The span of the caller's that its spans belong to. All zeros (default): none. Refused without
     * `trace_id`.
     */
    uint8_t parent_id[8];
    /**
     * What works on the distribution, in this order: `BN_SAMPLER_*`, each at most once. One that is
     * left out must be off. Not set (default): all, in the order of their numbers.
     */
    const int32_t *samplers;
    /** Number of `samplers`. */
    size_t samplers_count;
    /** What is added to the logits of some tokens. */
    const struct bn_logit_bias *logit_bias;
    /** Number of `logit_bias`, at most 4096. */
    size_t logit_bias_count;
    /**
     * Texts of 1 to 1024 bytes that do not come, alone or behind a space, as the tokens that the
     * tokenizer makes of them. The same text made of other tokens can come.
     */
    const struct bn_string *bad_words;
    /** Number of `bad_words`, at most 256. */
    size_t bad_words_count;
    /**
     * Texts that no repetition goes across, for `dry_multiplier`. NULL (default): a line break,
     * `:`, `"` and `*`. Each has 1 to 65536 bytes.
     */
    const struct bn_string *dry_breakers;
    /** Number of `dry_breakers`, at most 256. 0 with `dry_breakers` set: none. */
    size_t dry_breakers_count;
    /**
     * With `BN_REQUEST_LOGPROBS`: tokens whose log probabilities to return for each generated one,
     * behind those of `top_logprobs`.
     */
    const uint32_t *logprob_tokens;
    /** Number of `logprob_tokens`, at most 256. */
    size_t logprob_tokens_count;
    /**
     * `temperature` moves by this much up and down, 0 (default) to 100, with the entropy of the
     * tokens that are left: up where many are likely, down where one is.
     */
    float temperature_range;
    /**
     * How it moves, above 0, at most 100: the entropy as a share of the greatest possible one,
     * raised to this. Default 1.
     */
    float temperature_exponent;
    /**
     * Sample from the tokens whose surprise is closest to the entropy and that together reach this
     * probability, above 0, at most 1 (default).
     */
    float typical_p;
    /**
     * Drop tokens whose logits are more than this many standard deviations below the greatest one,
     * above 0, at most 1000. 0 (default): off.
     */
    float top_n_sigma;
    /**
     * The probability with which all tokens that are at least `xtc_threshold` likely are dropped
     * but the least likely of them, 0 (default) to 1.
     */
    float xtc_probability;
    /** Above 0, at most 1. Default 0.1. */
    float xtc_threshold;
    /**
     * Mirostat 2: keep the surprise of tokens at this many bits, above 0, at most 100, in place of
     * all `BN_SAMPLER_*` but temperature. 0 (default): off.
     */
    float mirostat_tau;
    /** How fast mirostat follows, 0 to 1. Default 0.1. */
    float mirostat_eta;
    /**
     * The penalties look at this many of the latest tokens of prompt and output. 0 (default): at
     * all.
     */
    uint32_t penalty_window;
    /**
     * DRY: subtracted, times `dry_base` to the power of n - `dry_allowed_length`, from the logit of
     * a token that would make a repetition of n tokens one longer. 0 (default, off) to 100.
     */
    float dry_multiplier;
    /** 1 to 100. Default 1.75. */
    float dry_base;
    /** Shorter repetitions cost nothing. Default 2; 0 is as 1. */
    uint32_t dry_allowed_length;
    /** DRY looks at this many of the latest tokens of prompt and output. 0 (default): at all. */
    uint32_t dry_window;
    /**
     * The model's end tokens and `stop_tokens` do not come before so many tokens, unless a
     * `constraint` leaves nothing else. Default 0.
     */
    uint32_t min_new_tokens;
    /**
     * The adapter that the request runs with, of the same engine. NULL (default): none. Requests
     * with different adapters share no part of the prefix cache.
     */
    const struct bn_adapter *adapter;
    /** What the adapter's updates are multiplied with, -100 to 100. Default 1. */
    float adapter_scale;
    /**
     * What drafts tokens for the model to verify several in one step, `BN_SPECULATION_*`. It makes
     * the output faster where drafts are right, and never changes it. Default
     * `BN_SPECULATION_DEFAULT`.
     */
    int32_t speculation;
    /**
     * The most tokens drafted for one step, up to `BN_MAX_DRAFT_TOKENS`. How many there are follows
     * from how many were right, and from the time that they take. 0 (default): the engine's.
     */
    uint32_t draft_tokens;
    /** `BN_CONSTRAINT_*`. Default `BN_CONSTRAINT_NONE`. */
    int32_t constraint_kind;
    /**
     * What the output must match, as `constraint_kind` says; at most 524288 bytes. Tokens that
     * would break it do not come, whatever else is asked for. When it is matched, the model's end
     * tokens may come, even with `BN_REQUEST_IGNORE_EOS`, and nothing else if there is no way to
     * go on. An output that `max_new_tokens` or a stop string ends early is the beginning of a
     * match. It is compiled while the request is submitted, and the latest ones stay compiled.
     * Not set (default): none.
     */
    struct bn_string constraint;
    /**
     * Called before each token is sampled, to change its logits. Default NULL. Refused with
     * `BN_REQUEST_EMBED`.
     */
    bn_logits_callback on_logits;
    /** Passed to `on_logits`. */
    void *on_logits_context;
    /**
     * The prompt as a conversation with tools: a JSON object with the fields of OpenAI's chat
     * completions `messages`, `tools`, `tool_choice`, `parallel_tool_calls`, and of transformers'
     * chat templates `chat_template_kwargs` (an object: the template's variables), `documents`,
     * `add_generation_prompt` (default true) and `continue_final_message`: the answer goes on with
     * the last message. Other fields are refused, nulls ignored. No text in it becomes a control
     * token, names included. At most 64 MiB, 65536 messages and 1048576 values.
     *
     * Messages go to the template as they are, but contents that are lists of text parts become one
     * text, and `arguments` that are JSON texts become objects, as in vLLM. If the template knows
     * no tools, they are described in the system message.
     *
     * A `tool_choice` of "required" or of a function makes the output such a call, as its
     * `parameters` say, "auto" with `strict` tools or without `parallel_tool_calls` the calls that
     * come; `constraint` must not be set then. With "none", tools are shown to the model, and calls
     * are text.
     *
     * `tool_format` ("hermes", "llama3", "mistral", "mistral11", "gemma", "none") and
     * `reasoning_format` ("think", "mistral", "none") say how the model writes calls and reasoning,
     * in place of what its template tells.
     */
    struct bn_string chat_json;
    /**
     * With `BN_REQUEST_PROMPT_LOGPROBS` or `BN_REQUEST_SCORE`: the first position of the prompt
     * whose token's log probability is wanted. Default 0.
     */
    uint32_t logprobs_from;
    /** Must be 0. */
    uint32_t reserved2;
} bn_request_params;

/** Where a request is: `bn_request_info_init`, then `bn_request_get_info`. */
typedef struct bn_request_info {
    /** `sizeof(bn_request_info)`; set by `bn_request_info_init`. */
    uint32_t struct_size;
    /** `BN_STAGE_*`. */
    int32_t stage;
    /**
     * For `BN_STAGE_QUEUED`: the number of queued requests that were submitted before it, whatever
     * their priorities are. Otherwise 0.
     */
    uint64_t queue_position;
} bn_request_info;

/**
 * A change of what is in the prefix cache, for `bn_kv_events`. A block holds the keys and values
 * of `kv_block_size` tokens; only full blocks are told. A block's hash is XXH64 of its tokens as
 * little-endian 32-bit numbers, with the hash of the block before it as the seed; for the first
 * block, the seed is the request's `cache_salt`. So a router that knows a prompt's tokens can tell
 * how much of it an engine has.
 */
typedef struct bn_kv_event {
    /** `sizeof(bn_kv_event)` of the library, or of the caller where that is smaller. */
    uint32_t struct_size;
    /** `BN_KV_*`. */
    int32_t kind;
    /** For `BN_KV_STORED` and `BN_KV_REMOVED`: the block's hash. */
    uint64_t hash;
    /** For `BN_KV_STORED`: the hash of the block before it, or the salt. */
    uint64_t parent_hash;
} bn_kv_event;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Fills `*config` with the defaults. `struct_size` is `sizeof(bn_model_config)`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
 */
bn_status bn_model_config_init(struct bn_model_config *config, uint32_t struct_size);

/**
 * Loads a model and writes it to `*out`. It returns when the model is loaded; `progress` and
 * `log` are called meanwhile. Any number of engines can then share the model and its memory.
 *
 * A model may be used after a fork, by the parent and by the child.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: a field is out of range; `BN_ERR_UNSUPPORTED`: the
 * model needs something that this version lacks, or a field of a newer header is set;
 * `BN_ERR_IO`: a file cannot be opened; `BN_ERR_BAD_MODEL`: the files are not a sound model;
 * `BN_ERR_MEMORY_LIMIT`; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_CANCELLED`: `progress` stopped it;
 * `BN_ERR_INTERNAL`.
 */
bn_status bn_model_open(const struct bn_model_config *config,
                        struct bn_model **out,
                        struct bn_error *error);

/**
 * Frees a model handle. Engines that were made of the model keep it until they are destroyed.
 * NULL is ignored.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not a live model.
 */
bn_status bn_model_free(struct bn_model *model);

/**
 * Prepares `*info` for `bn_model_get_info`. `struct_size` is `sizeof(bn_model_info)`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
 */
bn_status bn_model_info_init(struct bn_model_info *info, uint32_t struct_size);

/**
 * Writes what is known of a model to `*out`, which `bn_model_info_init` has prepared.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
 */
bn_status bn_model_get_info(const struct bn_model *model,
                            struct bn_model_info *out,
                            struct bn_error *error);

/**
 * Writes the token ids of `text` to `tokens`, which has room for `capacity`, and their number to
 * `*count`. `flags` is a sum of `BN_TOKENIZE_*`. To ask for the number alone, pass NULL and 0:
 * the call returns `BN_ERR_BUFFER_TOO_SMALL`, or `BN_OK` if it is 0.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*count` was written;
 * `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_UNSUPPORTED`: unknown flag, or the model has no tokenizer;
 * `BN_ERR_TOO_LONG`; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_INTERNAL`.
 */
bn_status bn_model_tokenize(const struct bn_model *model,
                            struct bn_string text,
                            uint32_t flags,
                            uint32_t *tokens,
                            size_t capacity,
                            size_t *count,
                            struct bn_error *error);

/**
 * Writes the text of `tokens` to `text`, which has room for `capacity` bytes, and its length to
 * `*length`. Bytes that are not UTF-8 become U+FFFD; control tokens have no text; the space that
 * some vocabularies put in front of every text is removed. For the exact bytes of a token use
 * `bn_model_token_bytes`. To ask for the length alone, pass NULL and 0: the call returns
 * `BN_ERR_BUFFER_TOO_SMALL`, or `BN_OK` if it is 0.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written;
 * `BN_ERR_INVALID_ARGUMENT`: also for an id outside of the vocabulary; `BN_ERR_UNSUPPORTED`: the
 * model has no tokenizer; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_INTERNAL`.
 */
bn_status bn_model_detokenize(const struct bn_model *model,
                              const uint32_t *tokens,
                              size_t tokens_count,
                              char *text,
                              size_t capacity,
                              size_t *length,
                              struct bn_error *error);

/**
 * Writes the exact bytes that a token stands for to `bytes`, which has room for `capacity`, and
 * their number to `*length`. They may be part of a UTF-8 character, and begin with a space. A
 * control token gives its name, like `<|eot_id|>`. To ask for the length alone, pass NULL and 0:
 * the call returns `BN_ERR_BUFFER_TOO_SMALL`, or `BN_OK` if it is 0.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written;
 * `BN_ERR_INVALID_ARGUMENT`: also for an id outside of the vocabulary; `BN_ERR_UNSUPPORTED`: the
 * model has no tokenizer; `BN_ERR_INTERNAL`.
 */
bn_status bn_model_token_bytes(const struct bn_model *model,
                               uint32_t token,
                               char *bytes,
                               size_t capacity,
                               size_t *length,
                               struct bn_error *error);

/**
 * Writes a conversation as text, as the model's own chat template formats it, to `text`, which
 * has room for `capacity` bytes, and its length to `*length`. `message_size` is
 * `sizeof(bn_chat_message)`. `flags` is 0 or `BN_CHAT_ADD_GENERATION_PROMPT`. To ask for the
 * length alone, pass NULL and 0; each call runs the template.
 *
 * This is for display and for tests. To generate from a conversation, submit it as
 * `bn_request_params.messages` or tokenize it with `bn_model_chat_tokenize`: those know which
 * control tokens the template wrote, and which somebody typed into a message.
 *
 * The template is a program that came with the model. Its steps and its memory are bounded; it
 * sees only the messages and the date. It takes at most 65536 messages of 64 MiB together.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written;
 * `BN_ERR_INVALID_ARGUMENT`: also if the template refuses the messages; `BN_ERR_UNSUPPORTED`:
 * unknown flag, or the model has no template, or one that fails or is not understood;
 * `BN_ERR_TOO_LONG`; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_INTERNAL`.
 */
bn_status bn_model_chat_format(const struct bn_model *model,
                               const struct bn_chat_message *messages,
                               size_t messages_count,
                               size_t message_size,
                               uint32_t flags,
                               char *text,
                               size_t capacity,
                               size_t *length,
                               struct bn_error *error);

/**
 * Writes the token ids of a conversation, formatted by the model's own chat template, to
 * `tokens`, which has room for `capacity`, and their number to `*count`. They are a
 * `bn_request_params.prompt_tokens`. `content` never becomes a control token. `message_size` is
 * `sizeof(bn_chat_message)`. `flags` is 0 or `BN_CHAT_ADD_GENERATION_PROMPT`. To ask for the
 * number alone, pass NULL and 0: the call returns `BN_ERR_BUFFER_TOO_SMALL`, or `BN_OK` if it is
 * 0.
 *
 * [any thread]
 * @return as `bn_model_chat_format`, with `*count` for `*length`.
 */
bn_status bn_model_chat_tokenize(const struct bn_model *model,
                                 const struct bn_chat_message *messages,
                                 size_t messages_count,
                                 size_t message_size,
                                 uint32_t flags,
                                 uint32_t *tokens,
                                 size_t capacity,
                                 size_t *count,
                                 struct bn_error *error);

/**
 * As `bn_model_chat_format`, of a conversation as `bn_request_params.chat_json` has it.
 *
 * [any thread]
 * @return as `bn_model_chat_format`.
 */
bn_status bn_model_chat_json_format(const struct bn_model *model,
                                    struct bn_string chat_json,
                                    char *text,
                                    size_t capacity,
                                    size_t *length,
                                    struct bn_error *error);

/**
 * As `bn_model_chat_tokenize`, of a conversation as `bn_request_params.chat_json` has it.
 *
 * [any thread]
 * @return as `bn_model_chat_tokenize`.
 */
bn_status bn_model_chat_json_tokenize(const struct bn_model *model,
                                      struct bn_string chat_json,
                                      uint32_t *tokens,
                                      size_t capacity,
                                      size_t *count,
                                      struct bn_error *error);

/**
 * Fills `*config` with the defaults. `struct_size` is `sizeof(bn_engine_config)`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
 */
bn_status bn_engine_config_init(struct bn_engine_config *config, uint32_t struct_size);

/**
 * Makes an engine and writes it to `*out`: loads the model, if `config` has none that is open,
 * and starts the engine's threads (named `bn-*`, with all signals blocked). A process may have
 * several engines.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: a field is out of range; `BN_ERR_UNSUPPORTED`: the
 * machine lacks `instructions`, or a field of a newer header is set; `BN_ERR_MEMORY_LIMIT`: the
 * limit, or the memory that is free, is too small for the model and one sequence;
 * `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_INTERNAL`; and as `bn_model_open`.
 */
bn_status bn_engine_create(const struct bn_engine_config *config,
                           struct bn_engine **out,
                           struct bn_error *error);

/**
 * Stops the acceptance of requests and returns at once. `mode` is `BN_SHUTDOWN_DRAIN` or
 * `BN_SHUTDOWN_CANCEL`. It may be called again; a cancel may follow a drain. Every accepted
 * request still gets its last event. When the last event has been polled, `bn_poll` of `BN_ANY`
 * returns `BN_ERR_SHUTDOWN`. A drain waits for requests that are paused until their output is
 * polled. In callback mode wait for `BN_STATE_DRAINED` and then destroy the
 * engine, which makes the callbacks that are still due.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`.
 */
bn_status bn_engine_shutdown(struct bn_engine *engine, int32_t mode, struct bn_error *error);

/**
 * Compiles a constraint as `bn_submit` does, and keeps it compiled for requests that follow.
 * `kind` and `text` are as `bn_request_params.constraint_kind` and `constraint`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: the constraint is wrong or too complex, the message
 * says why; `BN_ERR_UNSUPPORTED`: the model has no tokenizer or no end token;
 * `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
 */
bn_status bn_engine_check_constraint(struct bn_engine *engine,
                                     int32_t kind,
                                     struct bn_string text,
                                     struct bn_error *error);

/**
 * Destroys an engine: cancels every request, joins every thread, closes every descriptor and
 * frees everything, events included. NULL is ignored.
 *
 * A `bn_poll` that blocks in another thread returns `BN_ERR_SHUTDOWN`; a blocked `bn_generate`
 * returns what it has, as `BN_FINISH_CANCELLED`; a blocked `bn_embed` returns
 * `BN_ERR_CANCELLED`. In poll mode unread events are lost. In callback mode every unreleased
 * request gets its last callback first, and none follows. In a forked child nothing happens.
 *
 * [not from a callback]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not a live engine; `BN_ERR_REENTRANT`: nothing
 * happened; `BN_ERR_FORKED`: nothing happened.
 */
bn_status bn_engine_destroy(struct bn_engine *engine);

/**
 * Writes a handle of the engine's model to `*out`, to be freed with `bn_model_free`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`; `BN_ERR_OUT_OF_MEMORY`.
 */
bn_status bn_engine_model(struct bn_engine *engine, struct bn_model **out, struct bn_error *error);

/**
 * The state of an engine.
 *
 * [any thread]
 * @return `BN_STATE_*`, which are 0 or more; or `BN_ERR_INVALID_ARGUMENT`: not a live engine;
 * `BN_ERR_FORKED`.
 */
int32_t bn_engine_state(const struct bn_engine *engine);

/**
 * A file descriptor for epoll, kqueue, poll or select. It is readable while an event for
 * `BN_ANY` waits, and for good once the engine is drained or dead: leave the loop when `bn_poll`
 * returns `BN_ERR_SHUTDOWN` or `BN_ERR_ENGINE_DEAD`. It belongs to the engine: do not read,
 * write or close it.
 *
 * With edge-triggered waiting, call `bn_poll` with a timeout of 0 after each wake-up until it
 * returns fewer events than there was room for. The end wakes such a loop once more: one thread
 * of each epoll instance, which then has to wake the others.
 *
 * [any thread]
 * @return the descriptor, which is 0 or more; or `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_WRONG_MODE`:
 * callback mode; `BN_ERR_FORKED`.
 */
int32_t bn_engine_wait_fd(const struct bn_engine *engine, struct bn_error *error);

/**
 * Prepares `*stats` for `bn_engine_stats`. `struct_size` is `sizeof(bn_stats)`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
 */
bn_status bn_stats_init(struct bn_stats *stats, uint32_t struct_size);

/**
 * Writes a snapshot of the engine's counters to `*out`, which `bn_stats_init` has prepared.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
 */
bn_status bn_engine_stats(struct bn_engine *engine, struct bn_stats *out, struct bn_error *error);

/**
 * Writes the statistics as Prometheus text (exposition format 0.0.4) to `text`, which has room
 * for `capacity` bytes, and its length to `*length`. 32768 bytes are enough for this version and
 * a model's name of up to 256. To ask for the length alone, pass NULL and 0: the call returns
 * `BN_ERR_BUFFER_TOO_SMALL`. Metrics have vLLM's names with `bn_` for `vllm:` where they mean the
 * same. `bn_model_info` and `bn_cache_config_info` have what does not change as labels;
 * `bn_engine_state` is 1 for the state that the engine is in.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written;
 * `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
 */
bn_status bn_engine_metrics(struct bn_engine *engine,
                            char *text,
                            size_t capacity,
                            size_t *length,
                            struct bn_error *error);

/**
 * Writes a report for people on how efficiently the engine runs, as lines of text: the share of
 * time spent in forward passes, the mean batch, rows and their prompt share, tokens per second,
 * an estimate of the speed-up over one request at a time, and what kept requests out of the
 * batch. Its wording may change in any version; programs read `bn_stats`. `text`, `capacity` and
 * `length` are as in `bn_engine_metrics`; 4096 bytes are enough for this version.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written;
 * `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
 */
bn_status bn_engine_report(struct bn_engine *engine,
                           char *text,
                           size_t capacity,
                           size_t *length,
                           struct bn_error *error);

/**
 * Reads a LoRA adapter for requests of this engine (`bn_request_params.adapter`) and writes it to
 * `*out`. `path` is a folder of PEFT's (`adapter_config.json`, `adapter_model.safetensors`) or a
 * GGUF file of llama.cpp's. The tensors are F32, F16 or BF16, of any linear layer and the head. The
 * files are not needed afterwards. Requests go on meanwhile; any number of adapters may run in one
 * batch.
 *
 * An adapter counts against `memory_limit_bytes`, as its share of a forward pass does from the
 * first one on, beside requests and within what `bn_engine_config.adapter_bytes` and they leave.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_IO`: a file cannot be opened;
 * `BN_ERR_BAD_MODEL`: it is not sound, or for a model of other sizes; `BN_ERR_UNSUPPORTED`: it is
 * more than LoRA (DoRA, biases, embeddings, ...), or the model takes none; `BN_ERR_MEMORY_LIMIT`;
 * `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`. An engine on a device waits for its
 * thread here: also `BN_ERR_SHUTDOWN`, `BN_ERR_ENGINE_DEAD`, and `BN_ERR_REENTRANT` in a callback.
 */
bn_status bn_adapter_open(struct bn_engine *engine,
                          struct bn_string path,
                          struct bn_adapter **out,
                          struct bn_error *error);

/**
 * Frees an adapter's handle. Requests that run with it keep it until they end; then its bytes come
 * back. NULL is ignored.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not a live adapter.
 */
bn_status bn_adapter_free(struct bn_adapter *adapter);

/**
 * Fills `*params` with the defaults. `struct_size` is `sizeof(bn_request_params)`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
 */
bn_status bn_request_params_init(struct bn_request_params *params, uint32_t struct_size);

/**
 * Queues a request and writes its id to `*out`. It never waits for the model. The request's
 * events may arrive, on other threads, before this returns. Exactly one `BN_EVENT_COMPLETED`
 * follows, as its last event, unless the request is released or the engine destroyed first.
 * Release every request when you are done with it; in callback mode its last callback does so.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: a field is out of range, a text is not UTF-8, or a
 * token is not in the vocabulary; `BN_ERR_UNSUPPORTED`: an unknown flag or field, or the model
 * has no tokenizer or chat template for what is asked; `BN_ERR_TOO_LONG`; `BN_ERR_QUEUE_FULL`;
 * `BN_ERR_MEMORY_LIMIT`; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`;
 * `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
 */
bn_status bn_submit(struct bn_engine *engine,
                    const struct bn_request_params *params,
                    bn_request *out,
                    struct bn_error *error);

/**
 * Queues `params_count` requests, all or none, and writes their ids to `out[0]` to
 * `out[params_count - 1]`. `params` are that many pointers, 1 to `queue_capacity`. A refusal
 * names the request by its index.
 *
 * [any thread]
 * @return as `bn_submit`.
 */
bn_status bn_submit_batch(struct bn_engine *engine,
                          const struct bn_request_params *const *params,
                          size_t params_count,
                          bn_request *out,
                          struct bn_error *error);

/**
 * Writes up to `capacity` waiting events to `events`, and their number to `*count`. `event_size`
 * is `sizeof(bn_event)`. `which` is a request, or `BN_ANY`. It waits up to `timeout_ms`
 * milliseconds for the first event: 0 does not wait, `BN_WAIT_FOREVER` has no limit.
 *
 * Success with a count of 0 means that nothing came in time. If nothing will ever come, the
 * status says so: `BN_ERR_FINISHED` for a request, `BN_ERR_SHUTDOWN` or `BN_ERR_ENGINE_DEAD` for
 * `BN_ANY`.
 *
 * Each event goes to one caller, at most one of a request in one call, those of a request in
 * order. Give events back with `bn_events_free`; see `bn_event` for how long they are valid. If
 * several threads poll `BN_ANY`, one may get a request's last event while another still reads an
 * earlier one: release a request only after all its events were given back.
 *
 * A signal does not end the wait. To stop on Ctrl-C, let the handler set a flag or write to a
 * pipe, and use a finite timeout, or wait for `bn_engine_wait_fd` and the pipe.
 *
 * [not from a callback]
 * @return `BN_OK`; `BN_ERR_FINISHED`: the request's last event was polled before;
 * `BN_ERR_SHUTDOWN`: the engine has shut down and no event for `BN_ANY` is left, or it was
 * destroyed meanwhile; `BN_ERR_ENGINE_DEAD`: no event for `BN_ANY` is left; `BN_ERR_NOT_FOUND`:
 * also if the request is released meanwhile; `BN_ERR_BUSY`: another thread is polling this
 * request; `BN_ERR_MEMORY_LIMIT`: too many events are not given back; `BN_ERR_OUT_OF_MEMORY`;
 * `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_WRONG_MODE`: callback mode; `BN_ERR_REENTRANT`;
 * `BN_ERR_FORKED`.
 */
bn_status bn_poll(struct bn_engine *engine,
                  bn_request which,
                  struct bn_event *events,
                  size_t event_size,
                  size_t capacity,
                  int32_t timeout_ms,
                  size_t *count,
                  struct bn_error *error);

/**
 * Gives back `events_count` events that `bn_poll` returned, from any number of polls, and frees
 * what they point to. `event_size` is `sizeof(bn_event)`. An event that was given back before,
 * or whose request was released, is skipped.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
 */
bn_status bn_events_free(struct bn_engine *engine,
                         const struct bn_event *events,
                         size_t event_size,
                         size_t events_count);

/**
 * Asks the engine to end a request, or with `BN_ANY` all requests, and returns at once. A
 * request that runs ends after the current forward pass, or within it once nobody else takes
 * part. Its last event says what happened. Cancelling a finished request does nothing.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_NOT_FOUND`; `BN_ERR_INVALID_ARGUMENT`: not a live engine;
 * `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`.
 */
bn_status bn_cancel(struct bn_engine *engine, bn_request which, struct bn_error *error);

/**
 * Ends a request for its host: the id becomes invalid, and its events, polled ones too, are
 * freed. A request that is still live is cancelled; it counts against `queue_capacity` until the
 * engine has let go of it, at most a step later: the next `bn_submit` may still get
 * `BN_ERR_QUEUE_FULL`.
 *
 * In callback mode the last callback releases the request. If another thread releases it
 * earlier, a callback may still be running: only `bn_engine_destroy` waits for it.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_NOT_FOUND`; `BN_ERR_INVALID_ARGUMENT`: not a live engine;
 * `BN_ERR_FORKED`.
 */
bn_status bn_release(struct bn_engine *engine, bn_request request, struct bn_error *error);

/**
 * Prepares `*info` for `bn_request_get_info`. `struct_size` is `sizeof(bn_request_info)`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
 */
bn_status bn_request_info_init(struct bn_request_info *info, uint32_t struct_size);

/**
 * Writes where a request is, its place in the queue included, to `*out`, which
 * `bn_request_info_init` has prepared. For a queued request this looks at every other one: it is
 * not for busy loops.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_NOT_FOUND`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
 */
bn_status bn_request_get_info(struct bn_engine *engine,
                              bn_request request,
                              struct bn_request_info *out,
                              struct bn_error *error);

/**
 * Submits one request, waits for its end and writes its only event to `*out`: the whole text and
 * all tokens. Free it with `bn_completion_free`; it does not need the engine any more. It works
 * in both delivery modes, beside all other requests, and nothing is to be released.
 * `BN_REQUEST_NO_STREAM` and `BN_REQUEST_POLL_BY_ID` make no difference.
 *
 * A request that was cancelled or timed out is a success, with that finish reason and what it
 * had. One that failed is an error. To end it early, use a timeout, `bn_cancel` of `BN_ANY`, or
 * a shutdown with `BN_SHUTDOWN_CANCEL`.
 *
 * [not from a callback]
 * @return as `bn_submit`; `BN_ERR_REENTRANT`; or the status of a request that failed.
 */
bn_status bn_generate(struct bn_engine *engine,
                      const struct bn_request_params *params,
                      struct bn_event **out,
                      struct bn_error *error);

/**
 * Computes the embedding of one prompt: submits `params` with `BN_REQUEST_EMBED`, waits for the
 * vector and writes it to `values`, which has room for `capacity` floats, and its length
 * (`bn_model_info.embedding_size`) to `*count`. To ask for the length alone, pass NULL and 0:
 * then nothing runs and `params` is not read. A request that was cancelled or timed out is an
 * error here.
 *
 * [not from a callback]
 * @return as `bn_submit`; `BN_ERR_BUFFER_TOO_SMALL`: only `*count` was written, and nothing ran;
 * `BN_ERR_UNSUPPORTED`: also if the model makes no embeddings; `BN_ERR_CANCELLED`;
 * `BN_ERR_TIMED_OUT`; `BN_ERR_REENTRANT`; or the status of a request that failed.
 */
bn_status bn_embed(struct bn_engine *engine,
                   const struct bn_request_params *params,
                   float *values,
                   size_t capacity,
                   size_t *count,
                   struct bn_error *error);

/**
 * Frees what `bn_generate` returned. NULL is ignored.
 *
 * [any thread]
 */
void bn_completion_free(struct bn_event *completion);

/**
 * Drops a session: its name is forgotten. Its KV blocks stay in the prefix cache until others need
 * the room. Requests that use them go on.
 *
 * Waits for the engine between two steps.
 * [not from a callback]
 * @return `BN_OK`; `BN_ERR_NOT_FOUND`: no session has this name; `BN_ERR_INVALID_ARGUMENT`;
 * `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_REENTRANT`; `BN_ERR_FORKED`.
 */
bn_status bn_session_drop(struct bn_engine *engine, struct bn_string name, struct bn_error *error);

/**
 * Writes a session to `data`, which has room for `capacity` bytes, and its size to `*length`: its
 * tokens, their keys and values, and its `cache_salt`, for `bn_session_restore` on an engine with
 * the same model, `kv_type` and `kv_block_size`. To ask for the size alone, pass NULL and 0: the
 * call returns `BN_ERR_BUFFER_TOO_SMALL`. The size changes when a request of the session ends.
 * Each call makes a copy of the session for a moment, which `memory_limit_bytes` does not count.
 *
 * Waits for the engine between two steps.
 * [not from a callback]
 * @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written; `BN_ERR_NOT_FOUND`: no
 * session has this name; `BN_ERR_BUSY`: every KV block is in use; `BN_ERR_OUT_OF_MEMORY`;
 * `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_REENTRANT`;
 * `BN_ERR_FORKED`.
 */
bn_status bn_session_save(struct bn_engine *engine,
                          struct bn_string name,
                          uint8_t *data,
                          size_t capacity,
                          size_t *length,
                          struct bn_error *error);

/**
 * Makes a session of `size` bytes that `bn_session_save` wrote, in place of one that had this name.
 * Other sessions go if it needs their room. Load only what you have saved yourself: the checksum
 * finds damage, but not forgery. A forged session changes the output of every request that has its
 * `cache_salt` and begins with its tokens.
 *
 * Waits for the engine between two steps.
 * [not from a callback]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: no session, a damaged one, or one of another model,
 * `kv_type`, `kv_block_size` or version, as `error` says, or `name` is too long;
 * `BN_ERR_MEMORY_LIMIT`: it needs more KV blocks than sessions may hold together, or than requests
 * and sessions leave now; `BN_ERR_BUSY`: every KV block is in use; `BN_ERR_OUT_OF_MEMORY`;
 * `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_REENTRANT`; `BN_ERR_FORKED`.
 */
bn_status bn_session_restore(struct bn_engine *engine,
                             struct bn_string name,
                             const uint8_t *data,
                             size_t size,
                             struct bn_error *error);

/**
 * Forgets every prefix in the KV cache that no request and no session uses now.
 *
 * Waits for the engine between two steps.
 * [not from a callback]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`;
 * `BN_ERR_REENTRANT`; `BN_ERR_FORKED`.
 */
bn_status bn_cache_clear(struct bn_engine *engine, struct bn_error *error);

/**
 * Writes up to `capacity` changes of what is in the prefix cache to `events`, oldest first, and
 * their number to `*count`. `event_size` is `sizeof(bn_kv_event)`. Each change is returned once.
 * For routers that send a request where its prefix is cached. Needs
 * `bn_engine_config.kv_events_capacity`. Never waits.
 *
 * [any thread]
 * @return `BN_OK`, also for none; `BN_ERR_WRONG_MODE`: `kv_events_capacity` is 0;
 * `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
 */
bn_status bn_kv_events(struct bn_engine *engine,
                       struct bn_kv_event *events,
                       size_t event_size,
                       size_t capacity,
                       size_t *count,
                       struct bn_error *error);

/**
 * Prepares `*error`. `struct_size` is `sizeof(bn_error)`.
 *
 * [any thread]
 * @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
 */
bn_status bn_error_init(struct bn_error *error, uint32_t struct_size);

/**
 * The name of a status, like `BN_ERR_QUEUE_FULL`, or `BN_ERR_UNKNOWN`. A static NUL-terminated
 * string.
 *
 * [any thread]
 */
const char *bn_status_name(bn_status status);

/**
 * What a status means, in English. A static NUL-terminated string.
 *
 * [any thread]
 */
const char *bn_status_message(bn_status status);

/**
 * A finish reason in a word, like `stop`, or `unknown`. A static NUL-terminated string.
 *
 * [any thread]
 */
const char *bn_finish_reason_name(int32_t reason);

/**
 * The upper bound of a bucket of `bn_latency`, inclusive, in nanoseconds; `UINT64_MAX` for the last
 * and for those that do not exist.
 *
 * [any thread]
 */
uint64_t bn_latency_bound_ns(uint32_t bucket);

/**
 * The upper bound of a bucket of `bn_lengths`, inclusive, in tokens; `UINT64_MAX` for the last and
 * for those that do not exist.
 *
 * [any thread]
 */
uint64_t bn_length_bound(uint32_t bucket);

/**
 * The version of the linked library, like `0.1.0`. A static NUL-terminated string.
 *
 * [any thread]
 */
const char *bn_version(void);

/**
 * The `BN_ABI_VERSION` of the linked library.
 *
 * [any thread]
 */
uint32_t bn_abi_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BN_ENGINE_H */
