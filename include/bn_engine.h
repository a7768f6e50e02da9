/*
 * bn_engine: a continuous-batching LLM engine behind a C ABI.
 *
 * Generated from src/ffi by cbindgen; change it there and run `make header`.
 *
 * A program makes an engine (bn_engine_create), submits requests from any thread (bn_submit), and takes
 * their events from bn_poll or, in callback mode, on a thread of the engine's. One engine thread runs all
 * active requests together, a token each per step.
 *
 * Errors.    BN_OK is 0, errors are negative and stable. Out parameters are written only on success
 *            (exceptions say so; on an error bn_poll leaves *count as it was). There is no "last error": a failed request says why in its own last
 *            event, a refused one in bn_request_params.error, creation in its bn_error.
 * Threads.   [any thread]: from any thread at any time, callbacks included. [not from a callback]:
 *            likewise, but on_event, log and progress callbacks get BN_ERR_REENTRANT, whichever engine
 *            the call is for.
 * Ownership. What goes in is copied before the call returns. What comes out belongs to the library, and
 *            its comment says until when it lives.
 * Growth.    Structs that begin with struct_size grow at their end; bn_X_init(&x, sizeof x) makes one
 *            ready. The library touches no more than struct_size bytes, and a non-zero field that it does
 *            not know is BN_ERR_UNSUPPORTED.
 * Text.      UTF-8 with an explicit length, not NUL-terminated unless the comment says so.
 * Fork.      A child may exec, exit, or make engines of its own; calls on the parent's engines give BN_ERR_FORKED.
 * Panics     of the library never cross into the caller: BN_ERR_INTERNAL, or BN_ERR_ENGINE_DEAD. It never
 *            prints, and never calls exit or abort.
 */

#ifndef BN_ENGINE_H
#define BN_ENGINE_H

#include <stddef.h>
#include <stdint.h>

// Done.
#define BN_OK 0

// An argument is NULL, out of range, not UTF-8 or of the wrong `struct_size`; an enum value is unknown;
// or the engine pointer is not one of a live engine.
#define BN_ERR_INVALID_ARGUMENT -1

// No such request: never issued by this engine, or released.
#define BN_ERR_NOT_FOUND -2

// A field, a flag, or a feature of a model or file that this version does not know.
#define BN_ERR_UNSUPPORTED -3

// Another thread is polling this request at this moment.
#define BN_ERR_BUSY -4

// `queue_capacity` requests are unreleased: release finished ones, or try again later.
#define BN_ERR_QUEUE_FULL -5

// The system refused an allocation.
#define BN_ERR_OUT_OF_MEMORY -6

// `memory_limit_bytes` does not allow it.
#define BN_ERR_MEMORY_LIMIT -7

// A file could not be opened or mapped, or is no regular file.
#define BN_ERR_IO -8

// A model file is malformed, truncated, or no model file.
#define BN_ERR_BAD_MODEL -9

// The call belongs to the other delivery mode.
#define BN_ERR_WRONG_MODE -10

// The call is not allowed from a callback.
#define BN_ERR_REENTRANT -11

// The engine is shutting down, or drained.
#define BN_ERR_SHUTDOWN -12

// The engine's thread died of a bug; every request has its terminal event, and only poll, release,
// stats and destroy are left.
#define BN_ERR_ENGINE_DEAD -13

// The engine was made by the parent of this process.
#define BN_ERR_FORKED -14

// A progress callback, a cancel or a shutdown ended it.
#define BN_ERR_CANCELLED -15

// The prompt leaves no room for a new token under the engine's `max_sequence_length`.
#define BN_ERR_TOO_LONG -16

// The caller's buffer is too small; the needed size was written.
#define BN_ERR_BUFFER_TOO_SMALL -17

// A bug of this library's. The message, where there is one, says where.
#define BN_ERR_INTERNAL -18

// The request's timeout passed.
#define BN_ERR_TIMED_OUT -19

// The number of this interface. It changes only when a program compiled against an older header of the
// same soname could break, so in effect never: compare it with `bn_abi_version()`.
#define BN_ABI_VERSION 1

// This header's version of the library; `bn_version()` gives the linked one's.
#define BN_VERSION_MAJOR 0

// See `BN_VERSION_MAJOR`.
#define BN_VERSION_MINOR 1

// See `BN_VERSION_MAJOR`.
#define BN_VERSION_PATCH 0

// In place of a request, to `bn_poll`: whichever has an event (but none with `BN_REQUEST_POLL_BY_ID`).
// To `bn_cancel`: every request.
#define BN_ANY 18446744073709551615ull

// `bn_poll`'s `timeout_ms`: wait for good.
#define BN_WAIT_FOREVER -1

// `bn_request_params.timeout_ms`: no timeout, whatever the engine's default is.
#define BN_TIMEOUT_NONE 4294967295

// `bn_engine_config.delivery_mode`: events wait for `bn_poll`.
#define BN_DELIVERY_POLL 0

// `bn_engine_config.delivery_mode`: a thread of the engine's hands each event to `on_event`.
#define BN_DELIVERY_CALLBACK 1

// `bn_engine_config.log_level`: no log.
#define BN_LOG_OFF 0

// A failure of the engine or of a request through no fault of the caller's.
#define BN_LOG_ERROR 1

// Something is not as it should be, and how the engine goes on.
#define BN_LOG_WARN 2

// What happens: loading and its progress, start, shutdown.
#define BN_LOG_INFO 3

// Detail for those who work on the engine.
#define BN_LOG_DEBUG 4

// Weights stay as the model's files have them.
#define BN_WEIGHTS_KEEP 0

// 8 bits: blocks of 32 with a half-precision scale.
#define BN_WEIGHTS_Q8_0 1

// 4 bits: blocks of 32 with a half-precision scale.
#define BN_WEIGHTS_Q4_0 2

// BitNet's -1, 0 and 1, with a scale.
#define BN_WEIGHTS_TERNARY 3

// `bn_engine_config.instructions`: the best that the machine has.
#define BN_INSTRUCTIONS_AUTO 0

// Portable code.
#define BN_INSTRUCTIONS_SCALAR 1

// x86-64 with AVX2, FMA and F16C.
#define BN_INSTRUCTIONS_AVX2 2

// The same with AVX-VNNI.
#define BN_INSTRUCTIONS_AVX_VNNI 3

// The same with AVX-512 F, BW, VL and VNNI.
#define BN_INSTRUCTIONS_AVX512_VNNI 4

// aarch64 with NEON's dot products.
#define BN_INSTRUCTIONS_NEON 5

// `bn_engine_shutdown`'s mode: accept nothing new, finish what is accepted.
#define BN_SHUTDOWN_DRAIN 0

// `bn_engine_shutdown`'s mode: accept nothing new, cancel what is accepted. May follow a drain.
#define BN_SHUTDOWN_CANCEL 1

// `bn_request_params.flags`: no events on the way; one event at the end, with the whole text and all ids.
#define BN_REQUEST_NO_STREAM 1

// The request's events come only to `bn_poll` of its own id: `BN_ANY` does not see them, and the wait
// file descriptor does not tell of them. `BN_ERR_INVALID_ARGUMENT` in
// callback mode.
#define BN_REQUEST_POLL_BY_ID 2

// Give the prompt's text and ids back in front of the output.
#define BN_REQUEST_ECHO_PROMPT 4

// Go on through the model's end tokens, up to `max_new_tokens`.
#define BN_REQUEST_IGNORE_EOS 8

// Report the log probability of each generated token, and of `top_logprobs` others.
#define BN_REQUEST_LOGPROBS 16

// Special tokens written out in a text prompt (like `<|eot_id|>`) are those tokens, not text. Leave it off
// for text from outside.
#define BN_REQUEST_PARSE_SPECIAL 32

// A request for the prompt's embedding: nothing is generated, and the one event of the request, its completion,
// has the vector. It goes through the same queue and steps as others. `max_new_tokens` is not looked at, and what
// else shapes an output (sampling, stops, `BN_REQUEST_ECHO_PROMPT`, `BN_REQUEST_IGNORE_EOS`,
// `BN_REQUEST_LOGPROBS`) must have its default. The prompt may be as long as `max_sequence_length`.
#define BN_REQUEST_EMBED 64

// With `BN_REQUEST_EMBED`: the pooled vector as it is. Without this flag it is divided by its Euclidean length (a
// vector of zeros stays one), so that the dot product of two is their cosine similarity.
#define BN_REQUEST_EMBED_RAW 128

// `bn_request_params.pooling`: what the model is made for, `bn_model_facts.pooling`.
#define BN_POOLING_MODEL 0

// The last prompt token's hidden state behind the final norm.
#define BN_POOLING_LAST 1

// The mean of the hidden states of all prompt tokens.
#define BN_POOLING_MEAN 2

// The first prompt token's hidden state.
#define BN_POOLING_FIRST 3

// The most `stop_strings_count` and `stop_tokens_count` may be.
#define BN_MAX_STOPS 256

// `bn_event.kind`: tokens and text came; the request goes on. What comes before it is polled is joined
// into one event.
#define BN_EVENT_TOKENS 1

// `bn_event.kind`: the request's last event, the only one with a finish reason and usage. It brings the
// tokens and text that have not come yet.
#define BN_EVENT_COMPLETED 2

// Not finished (`BN_EVENT_TOKENS`).
#define BN_FINISH_NONE 0

// The model's end token, or one of `stop_tokens`.
#define BN_FINISH_STOP 1

// One of `stop_strings`.
#define BN_FINISH_STOP_STRING 2

// `max_new_tokens` or the engine's `max_sequence_length`.
#define BN_FINISH_LENGTH 3

// Cancelled by the caller, a shutdown, or destroy.
#define BN_FINISH_CANCELLED 4

// Its timeout passed.
#define BN_FINISH_TIMED_OUT 5

// It failed: `status` and `message` say why.
#define BN_FINISH_FAILED 6

// A request with `BN_REQUEST_EMBED` has its vector.
#define BN_FINISH_EMBEDDING 7

// `bn_tokenize`'s flags: put in front what the model wants there (BOS), as submitting a text does. What a request for
// an embedding has behind its text (EOS, where the model's files ask for it) is not added.
#define BN_TOKENIZE_ADD_SPECIAL 1

// `bn_tokenize`'s flags: special tokens written out in the text are those tokens.
#define BN_TOKENIZE_PARSE_SPECIAL 2

// `bn_chat_format`'s flags: end with what begins the assistant's answer, so that the model goes on with it.
#define BN_CHAT_ADD_GENERATION_PROMPT 1

// `bn_chat_format`'s flags: refuse a role or content that holds a control token written out (like
// `<|eot_id|>`), with which its author could end the message and begin another in another's name.
#define BN_CHAT_REFUSE_SPECIAL 2

// An engine: a loaded model, its threads, its requests. Made by `bn_engine_create`, freed by
// `bn_engine_destroy`. All its functions may be called from several threads at once. The pointer is a
// name and not to be read through; one that was destroyed is refused with `BN_ERR_INVALID_ARGUMENT`,
// and no later engine gets the same one (each costs some 32 bytes that stay for the process's life).
typedef struct bn_engine bn_engine;

// What a call came to: `BN_OK` (0) or a negative `BN_ERR_*`. The numbers are stable and never reused.
typedef int32_t bn_status;

// A request's id, good for its own engine until `bn_release`. Stale, foreign and invented ids are
// refused with `BN_ERR_NOT_FOUND`. Never 0, so 0 may stand for "none"; never `BN_ANY`.
typedef uint64_t bn_request;

// A token and the natural logarithm of its probability.
typedef struct bn_logprob {
    // The token's id.
    uint32_t token;
    // Natural logarithm of its probability before temperature and truncation.
    float logprob;
} bn_logprob;

// Counts and times of a finished request. Times in nanoseconds, 0 where a phase was not reached. It
// grows at its end: `bn_event.usage_size` says how much of it is there.
typedef struct bn_usage {
    // Tokens of the prompt, the ones that the tokenizer added included.
    uint32_t prompt_tokens;
    // Tokens generated, an end token included.
    uint32_t generated_tokens;
    // From submit to admission.
    uint64_t queued_ns;
    // From admission to the end of the prompt.
    uint64_t prefill_ns;
    // From submit to the first generated token.
    uint64_t first_token_ns;
    // From the first generated token to the last.
    uint64_t decode_ns;
    // From submit to the terminal event.
    uint64_t total_ns;
} bn_usage;

// A prompt's embedding. It belongs to the event that points to it.
typedef struct bn_embedding {
    // Bytes of this struct that the library wrote: fields of a newer header beyond it are not there.
    uint32_t struct_size;
    // How it was made: `BN_POOLING_LAST`, `BN_POOLING_MEAN` or `BN_POOLING_FIRST`.
    int32_t pooling;
    // The vector. Never NULL.
    const float *values;
    // Elements of `values`: `bn_model_facts.embedding_size`.
    size_t count;
} bn_embedding;

// What happened to a request. The pointers belong to the library and live until the next `bn_poll` that
// returns an event of the same request, or its `bn_release`, or `bn_engine_destroy`; in a callback,
// until it returns. One poll returns at most one event of a request: all that it returns are valid together. The struct is frozen at 128 bytes: later versions use the reserved tail.
typedef struct bn_event {
    // Whose event it is.
    bn_request request;
    // `bn_request_params.user_data`.
    uint64_t user_data;
    // `BN_EVENT_TOKENS` or `BN_EVENT_COMPLETED`. Ignore kinds that you don't know.
    int32_t kind;
    // `BN_FINISH_*`.
    int32_t finish_reason;
    // `BN_OK`, or why the request failed, was cancelled or timed out.
    int32_t status;
    // Entries of `logprobs` for each of `tokens`: 0, or 1 + `top_logprobs`.
    uint32_t logprobs_per_token;
    // UTF-8 that became certain with this event, not NUL-terminated; never cut within a character.
    // Never NULL, may be empty.
    const char *text;
    // Bytes of `text`.
    size_t text_length;
    // Ids generated since the last event, an end token included; with `BN_REQUEST_ECHO_PROMPT` the prompt's
    // come first. NULL where there are none.
    const uint32_t *tokens;
    // Ids in `tokens`.
    size_t tokens_count;
    // For each of `tokens`, the token's own log probability and then `top_logprobs` more, most likely
    // first (NaN for the prompt's). NULL unless `BN_REQUEST_LOGPROBS`.
    const struct bn_logprob *logprobs;
    // Entries in `logprobs`: `tokens_count * logprobs_per_token`.
    size_t logprobs_count;
    // UTF-8, not NUL-terminated: why the request failed, was cancelled or timed out. Never NULL, empty otherwise.
    const char *message;
    // Bytes of `message`.
    size_t message_length;
    // Counts and times, in `BN_EVENT_COMPLETED`; NULL otherwise.
    const struct bn_usage *usage;
    // Bytes of `*usage` that this library wrote: fields of a newer header beyond it are not there.
    uint64_t usage_size;
    // The vector of a request with `BN_REQUEST_EMBED`, in its `BN_EVENT_COMPLETED` where `finish_reason` is
    // `BN_FINISH_EMBEDDING`; NULL otherwise.
    const struct bn_embedding *embedding;
    // 0.
    uint64_t reserved;
} bn_event;

// Takes one event, on the engine's delivery thread, with no lock held; one call at a time, in order for
// each request. What `event` points to lives until the function returns. It may submit, cancel, release,
// read statistics; `bn_poll`, `bn_generate`, `bn_embed` and `bn_engine_destroy` give `BN_ERR_REENTRANT`. While it
// runs, other events wait and forward passes do not. It must return (no `longjmp`, no C++ exception).
// `context` is `bn_engine_config.on_event_context`.
typedef void (*bn_event_callback)(const struct bn_event *event, void *context);

// Takes one line of the log: a `BN_LOG_*` level and `length` bytes of UTF-8, not NUL-terminated, that
// live until it returns. It may be called from any thread, several at once, those of the caller's own
// calls included, and until `bn_engine_destroy` returns. The rules of `bn_event_callback` hold.
// `context` is `bn_engine_config.log_context`.
typedef void (*bn_log_callback)(int32_t level, const char *message, size_t length, void *context);

// Told how far loading is: `fraction` from 0 to 1, and what is being done (`length` bytes of UTF-8, not
// NUL-terminated, that live until it returns). Called during `bn_engine_create` only. Non-zero gives the
// load up: create returns `BN_ERR_CANCELLED`. `context` is `bn_engine_config.progress_context`.
typedef int32_t (*bn_progress_callback)(float fraction,
                                        const char *what,
                                        size_t length,
                                        void *context);

// How to make an engine. `bn_engine_config_init` fills in the defaults; then change what you need.
// Everything it points to is copied by `bn_engine_create`, but the three contexts, which the caller keeps
// alive until `bn_engine_destroy` has returned.
typedef struct bn_engine_config {
    // `sizeof(bn_engine_config)`; set by `bn_engine_config_init`.
    uint32_t struct_size;
    // `BN_DELIVERY_POLL` (default) or `BN_DELIVERY_CALLBACK`, for all requests of the engine.
    int32_t delivery_mode;
    // UTF-8, `model_path_length` bytes: a GGUF file, a Hugging Face folder (`config.json`, safetensors and
    // `tokenizer.json`), or `builtin:echo` (a model without weights that
    // answers with its prompt; `builtin:echo?us_per_token=N` takes N microseconds a token). NULL
    // (default): the small model that ships inside the library.
    const char *model_path;
    // Bytes of `model_path`, without a NUL.
    size_t model_path_length;
    // Compute threads, 1 to 256. 0 (default): as many as this process may use CPUs.
    uint32_t threads;
    // Requests that run together in one forward pass, 1 to 4096, default 32. 1 is sequential mode.
    uint32_t max_batch_size;
    // Tokens in one forward pass, `max_batch_size` to 65536, default 512. Longer prompts go in chunks.
    uint32_t max_batch_tokens;
    // Tokens of a request's prompt and output together, from 2 to the model's context length. 0 (default):
    // the model's context length.
    uint32_t max_sequence_length;
    // Tokens per block of the KV cache: 16, 32 (default), 64 or 128.
    uint32_t kv_block_size;
    // Unreleased requests at a time, 1 to 1048576, default 1024.
    uint32_t queue_capacity;
    // Bytes that weights, KV cache, workspace, queued prompts and buffered events may take together.
    // 0 (default): no limit.
    uint64_t memory_limit_bytes;
    // Microseconds for which an idle engine holds its first step open for company, 0 (default) to 1000000.
    uint32_t max_wait_us;
    // Milliseconds that a step with running answers should not exceed, 1 to 60000, default 200: prompts
    // are cut into chunks to hold it.
    uint32_t max_step_ms;
    // Milliseconds from submit, for requests that set no timeout of their own. 0 (default): none.
    uint32_t default_timeout_ms;
    // The most detailed level that `log` gets, `BN_LOG_OFF` to `BN_LOG_DEBUG`, default `BN_LOG_WARN`.
    int32_t log_level;
    // Takes the events in `BN_DELIVERY_CALLBACK` mode, and must be NULL in the other.
    bn_event_callback on_event;
    // Handed to `on_event`. Not touched.
    void *on_event_context;
    // Takes the log. NULL (default): none; the library itself never prints.
    bn_log_callback log;
    // Handed to `log`. Not touched.
    void *log_context;
    // Told how far loading is, and may give it up. NULL (default): nobody.
    bn_progress_callback progress;
    // Handed to `progress`. Not touched.
    void *progress_context;
    // What the weights of attention and feed-forward become as they are loaded: `BN_WEIGHTS_KEEP` (default),
    // `BN_WEIGHTS_Q8_0`, `BN_WEIGHTS_Q4_0`, or, of BitNet models, `BN_WEIGHTS_TERNARY`. Only F32, F16 and BF16
    // weights can become something else; others are refused.
    int32_t weight_type;
    // The same for the embedding, without `BN_WEIGHTS_TERNARY`.
    int32_t embedding_type;
    // The same for the output head. Where that is the embedding (tied), either field says what both become.
    int32_t head_type;
    // What kernels use, `BN_INSTRUCTIONS_AUTO` (default) to `BN_INSTRUCTIONS_NEON`; refused where the machine lacks it.
    // Results are bitwise the same with any: this is for measuring, and for finding faults.
    int32_t instructions;
    // UTF-8, `kernel_config_path_length` bytes: the `kernel_config.ini` that a GGUF file with TL1 or TL2 tensors was
    // converted with; refused where it would do nothing. NULL (default): the one beside the file, or the tilings of
    // published models.
    const char *kernel_config_path;
    // Bytes of `kernel_config_path`, without a NUL.
    size_t kernel_config_path_length;
} bn_engine_config;

// Why a call failed, in words. Optional wherever it is taken (NULL: not wanted). The caller owns it; the
// library writes into it only before the call returns.
//
// `bn_error_init`, or in C `bn_error error = { .struct_size = sizeof error };`, makes one ready.
typedef struct bn_error {
    // `sizeof(bn_error)`, set by the caller; any other value refuses the call with
    // `BN_ERR_INVALID_ARGUMENT`.
    uint32_t struct_size;
    // The status that the call returned.
    int32_t status;
    // UTF-8, NUL-terminated, what went wrong, where, and what to do; too long a one lacks its middle.
    // Empty after success.
    char message[504];
} bn_error;

// A distribution of times, in nanoseconds; 0 before the first sample.
typedef struct bn_percentiles {
    // Half of the samples are at most this.
    uint64_t p50_ns;
    // Nine in ten are.
    uint64_t p90_ns;
    // 99 in 100 are.
    uint64_t p99_ns;
    // Samples.
    uint64_t count;
    // Their sum.
    uint64_t sum_ns;
} bn_percentiles;

// A snapshot of an engine's counters: `bn_stats_init`, then `bn_engine_stats`.
typedef struct bn_stats {
    // `sizeof(bn_stats)`; set by `bn_stats_init`.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // Requests accepted since create.
    uint64_t accepted;
    // Requests refused for their parameters.
    uint64_t rejected_invalid;
    // Requests refused with `BN_ERR_QUEUE_FULL`.
    uint64_t rejected_queue_full;
    // Requests refused with `BN_ERR_TOO_LONG`.
    uint64_t rejected_too_long;
    // Requests refused with `BN_ERR_MEMORY_LIMIT` or `BN_ERR_OUT_OF_MEMORY`.
    uint64_t rejected_memory;
    // Requests refused with `BN_ERR_SHUTDOWN`.
    uint64_t rejected_shutdown;
    // Requests finished as `BN_FINISH_STOP`.
    uint64_t completed_stop;
    // Requests finished as `BN_FINISH_STOP_STRING`.
    uint64_t completed_stop_string;
    // Requests finished as `BN_FINISH_LENGTH`.
    uint64_t completed_length;
    // Requests finished as `BN_FINISH_CANCELLED`.
    uint64_t completed_cancelled;
    // Requests finished as `BN_FINISH_TIMED_OUT`.
    uint64_t completed_timed_out;
    // Requests finished as `BN_FINISH_FAILED`.
    uint64_t completed_failed;
    // Requests waiting for admission now.
    uint64_t queued;
    // Requests running now.
    uint64_t running;
    // Requests that count against `queue_capacity` now.
    uint64_t unreleased;
    // Prompt tokens that went through the model.
    uint64_t prompt_tokens;
    // Tokens generated.
    uint64_t generated_tokens;
    // Forward passes.
    uint64_t steps;
    // Requests in the last forward pass.
    uint64_t last_batch_size;
    // Requests in a forward pass, on average.
    double mean_batch_size;
    // `mean_batch_size` over `max_batch_size`, 0 to 1.
    double batch_utilization;
    // Blocks of the KV cache in use now.
    uint64_t kv_blocks_used;
    // Blocks of the KV cache.
    uint64_t kv_blocks_total;
    // Bytes that count against `memory_limit_bytes` now.
    uint64_t memory_used_bytes;
    // The limit; 0: none.
    uint64_t memory_limit_bytes;
    // The most that `memory_used_bytes` has been.
    uint64_t memory_peak_bytes;
    // Generated tokens over the time spent in forward passes.
    double generated_tokens_per_second;
    // Prompt tokens over the time spent in forward passes.
    double prompt_tokens_per_second;
    // From submit to admission.
    struct bn_percentiles queue_wait;
    // From submit to the first generated token.
    struct bn_percentiles time_to_first_token;
    // From a generated token to the next of the same request.
    struct bn_percentiles inter_token;
    // From submit to the terminal event.
    struct bn_percentiles end_to_end;
    // Requests finished as `BN_FINISH_EMBEDDING`.
    uint64_t completed_embedding;
} bn_stats;

// The loaded model: `bn_model_facts_init`, then `bn_engine_model_facts`. The pointers belong to the engine
// and live until its destroy.
typedef struct bn_model_facts {
    // `sizeof(bn_model_facts)`; set by `bn_model_facts_init`.
    uint32_t struct_size;
    // 1 if the model has a tokenizer: without one, prompts are token ids and events carry no text.
    int32_t has_tokenizer;
    // As the model's file names it (`llama`, `bitnet-b1.58`, ...); UTF-8, not NUL-terminated.
    const char *architecture;
    // Bytes of `architecture`.
    size_t architecture_length;
    // The model's own name, perhaps empty; UTF-8, not NUL-terminated.
    const char *name;
    // Bytes of `name`.
    size_t name_length;
    // Ids go from 0 to `vocab_size - 1`.
    uint64_t vocab_size;
    // Tokens that the model was made for.
    uint64_t context_length;
    // Decoder layers.
    uint64_t layers;
    // Width of the hidden state.
    uint64_t hidden_size;
    // Query heads.
    uint64_t heads;
    // Key and value heads.
    uint64_t kv_heads;
    // Elements of a head.
    uint64_t head_dim;
    // Width of the feed-forward part.
    uint64_t ffn_size;
    // Parameters in all.
    uint64_t parameters;
    // Bytes of weights held, mapped or owned.
    uint64_t weight_bytes;
    // Ids that end an output (`BN_FINISH_STOP`). NULL where there are none.
    const uint32_t *end_tokens;
    // Ids in `end_tokens`.
    size_t end_tokens_count;
    // The id of the BOS token, or -1; whether it is put in front of a text, the model's files say.
    int64_t bos_token;
    // Elements of an embedding (`BN_REQUEST_EMBED`); 0: the model makes none.
    uint64_t embedding_size;
    // What `BN_POOLING_MODEL` stands for: `BN_POOLING_LAST`, `BN_POOLING_MEAN` or `BN_POOLING_FIRST`.
    int32_t pooling;
    // 0.
    int32_t reserved;
} bn_model_facts;

// UTF-8 text of `length` bytes, not NUL-terminated.
typedef struct bn_string {
    // The bytes; may be NULL where `length` is 0.
    const char *data;
    // Bytes.
    size_t length;
} bn_string;

// One request. `bn_request_params_init` fills in the defaults; then set a prompt and change what you
// need. Everything it points to is copied before the submitting call returns.
typedef struct bn_request_params {
    // `sizeof(bn_request_params)`; set by `bn_request_params_init`.
    uint32_t struct_size;
    // `BN_REQUEST_*`, or'ed. Default 0. An unknown one is `BN_ERR_UNSUPPORTED`.
    uint32_t flags;
    // The prompt as UTF-8, `prompt_length` bytes; the tokenizer adds what the model wants in front and, to
    // a text that is embedded, behind it. This or `prompt_tokens`, not both.
    const char *prompt;
    // Bytes of `prompt`, without a NUL.
    size_t prompt_length;
    // The prompt as token ids, taken as they are.
    const uint32_t *prompt_tokens;
    // Ids in `prompt_tokens`.
    size_t prompt_tokens_count;
    // Ids that end the output besides the model's own end tokens, even with `BN_REQUEST_IGNORE_EOS`.
    const uint32_t *stop_tokens;
    // Ids in `stop_tokens`, at most `BN_MAX_STOPS`.
    size_t stop_tokens_count;
    // Texts that end the output; the text given out ends before the first of them, while tokens and usage still
    // count the ids that made it. Only generated text is searched. None may be empty, or over 65,536 bytes.
    const struct bn_string *stop_strings;
    // Texts in `stop_strings`, at most `BN_MAX_STOPS`.
    size_t stop_strings_count;
    // Echoed in every event of the request; nothing else is done with it.
    uint64_t user_data;
    // For the random numbers: the same seed, prompt and parameters give the same output, whatever else is
    // running. Default 0.
    uint64_t seed;
    // Where to say why the request was refused (BN_OK and empty otherwise), written before the submitting call
    // returns and not kept; but not where this struct's `struct_size` is wrong. `bn_generate` fills it beside its
    // own. NULL (default): not wanted. Set its `struct_size`: a wrong one refuses the call.
    struct bn_error *error;
    // Tokens to generate at most, at least 1, default 128. The engine's `max_sequence_length` ends the output
    // too.
    uint32_t max_new_tokens;
    // Milliseconds from submit after which the request ends as `BN_FINISH_TIMED_OUT`, keeping what it has; looked at
    // between forward passes, so up to one pass late.
    // 0 (default): the engine's `default_timeout_ms`; `BN_TIMEOUT_NONE`: none.
    uint32_t timeout_ms;
    // 0 to 100. 0 (default): always the most likely token.
    float temperature;
    // Sample among this many most likely tokens. 0 (default): off.
    uint32_t top_k;
    // Sample among the most likely tokens that together reach this probability, above 0, to 1. 1
    // (default): off.
    float top_p;
    // Drop tokens less likely than this times the most likely one, 0 to 1. 0 (default): off.
    float min_p;
    // Divides the logits (multiplies negative ones) of tokens in prompt or output, above 0, to 100. 1
    // (default): off.
    float repetition_penalty;
    // Subtracted from a token's logit for each time that it is in the output, -100 to 100. 0 (default): off.
    float frequency_penalty;
    // Subtracted from a token's logit once it is in the output, -100 to 100. 0 (default): off.
    float presence_penalty;
    // Beside each generated token, the log probabilities of this many most likely ones, at most 32. Needs
    // `BN_REQUEST_LOGPROBS`. Default 0.
    uint32_t top_logprobs;
    // With `BN_REQUEST_EMBED`: which of the prompt's hidden states make the vector, `BN_POOLING_*`. Default
    // `BN_POOLING_MODEL`, and nothing else without that flag.
    int32_t pooling;
    // 0.
    uint32_t reserved;
} bn_request_params;

// What `bn_generate` returns: a completed request. Made by the library, freed by `bn_completion_free`
// together with everything that it points to; it does not need its engine any more.
typedef struct bn_completion {
    // The request's terminal event, with the whole text and all ids. Its `request` is retired already.
    struct bn_event event;
} bn_completion;

// A message of a conversation, for `bn_chat_format`.
typedef struct bn_chat_message {
    // Whose it is: "system", "user", "assistant", or what else the model's template knows.
    struct bn_string role;
    // What it says.
    struct bn_string content;
} bn_chat_message;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Fills `*config` with the defaults. `struct_size` is `sizeof(bn_engine_config)`.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `config` is NULL, `struct_size` is wrong.
bn_status bn_engine_config_init(struct bn_engine_config *config, uint32_t struct_size);

// Loads a model, starts the engine's threads (named `bn-*`, with all signals blocked) and writes the
// engine to `*out`. Takes as long as loading does; `progress` and `log` tell how it goes. `error` (may be
// NULL) says in words what was wrong.
//
// Several engines may live in a process. Allocations that grow with input are checked, and refused with
// an error when memory is out; the small ones of the Rust runtime and its packages can still end the
// process then.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, or a field out of the range that the message names;
// `BN_ERR_UNSUPPORTED`: a field of a newer header is set, or the model needs something that this version
// lacks, or `instructions` names what this machine lacks; `BN_ERR_IO`: the file cannot be opened;
// `BN_ERR_BAD_MODEL`: it is no sound model; `BN_ERR_MEMORY_LIMIT`: `memory_limit_bytes` is too small for the
// model and one sequence;
// `BN_ERR_OUT_OF_MEMORY`: the system refuses memory or a thread; `BN_ERR_CANCELLED`: `progress` gave it
// up; `BN_ERR_INTERNAL`.
bn_status bn_engine_create(const struct bn_engine_config *config,
                           struct bn_engine **out,
                           struct bn_error *error);

// Ends the acceptance of requests and returns at once. `mode` is `BN_SHUTDOWN_DRAIN` (what is accepted
// finishes) or `BN_SHUTDOWN_CANCEL` (it is cancelled). May be called again; a cancel may follow a drain.
// Every accepted request still gets its terminal event; when the last for `BN_ANY` has been polled, `bn_poll`
// of `BN_ANY` gives `BN_ERR_SHUTDOWN`.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not an engine, unknown mode; `BN_ERR_ENGINE_DEAD`;
// `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_engine_shutdown(struct bn_engine *engine,
                             int32_t mode);

// Cancels and completes what is left, wakes blocked pollers (they get `BN_ERR_SHUTDOWN`; one that comes later
// gets `BN_ERR_INVALID_ARGUMENT`: both are the end) and waits for them, joins every thread, closes every file
// descriptor, frees everything. A blocked `bn_generate` returns what it has, as `BN_FINISH_CANCELLED`; a blocked
// `bn_embed` returns `BN_ERR_CANCELLED`. In poll mode unread events are discarded: what `user_data` stands for is
// the caller's to clean up. In callback mode every request not released gets its terminal callback before this
// returns, and no callback runs after it. NULL is fine. In a forked child it does nothing.
//
// [not from a callback]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not a live engine, as after a first destroy;
// `BN_ERR_REENTRANT`: called from a callback, nothing happened; `BN_ERR_FORKED`: nothing happened;
// `BN_ERR_INTERNAL`.
bn_status bn_engine_destroy(struct bn_engine *engine);

// A file descriptor for epoll, kqueue, poll or select, readable exactly while an event for `BN_ANY` waits
// or the engine is drained or dead; from then on it stays readable: leave the loop at `BN_ERR_SHUTDOWN`. It is non-blocking and the engine's: don't read, write or close it;
// it may be dup'ed. Under edge-triggered epoll, poll with timeout 0 until the count is 0 each time it
// fires.
//
// [any thread]
// @return the descriptor, or -1: callback mode, not an engine, a forked child.
int32_t bn_engine_wait_fd(const struct bn_engine *engine);

// Prepares `*stats` for `bn_engine_stats`. `struct_size` is `sizeof(bn_stats)`.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `stats` is NULL, `struct_size` is wrong.
bn_status bn_stats_init(struct bn_stats *stats, uint32_t struct_size);

// Writes a snapshot of the engine's counters to `*out`, prepared by `bn_stats_init`.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, wrong `struct_size`;
// `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_engine_stats(struct bn_engine *engine, struct bn_stats *out);

// Writes the statistics as Prometheus text (UTF-8, not NUL-terminated) to `text`, which has room for
// `capacity` bytes, and the bytes of it all to `*length`. 8192 bytes are enough for this version. `text` may be
// NULL where `capacity` is 0, to ask for the length: `BN_ERR_BUFFER_TOO_SMALL` is then the answer, no failure.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*length` was written;
// `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_metrics_text(struct bn_engine *engine,
                          char *text,
                          size_t capacity,
                          size_t *length);

// Prepares `*facts` for `bn_engine_model_facts`. `struct_size` is `sizeof(bn_model_facts)`.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `facts` is NULL, `struct_size` is wrong.
bn_status bn_model_facts_init(struct bn_model_facts *facts, uint32_t struct_size);

// Writes what is known of the loaded model to `*out`, prepared by `bn_model_facts_init`.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, wrong `struct_size`;
// `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_engine_model_facts(struct bn_engine *engine, struct bn_model_facts *out);

// Fills `*params` with the defaults. `struct_size` is `sizeof(bn_request_params)`.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `params` is NULL, `struct_size` is wrong.
bn_status bn_request_params_init(struct bn_request_params *params, uint32_t struct_size);

// Queues a request and writes its id to `*out`. It never waits for the engine. The request's events may
// arrive, on other threads, before this returns. Exactly one `BN_EVENT_COMPLETED` follows, as its last
// event, unless it is released first or the engine destroyed; the id stays good until `bn_release` (in callback mode: until the terminal callback returns).
// `params->error`, where set, says in words why a request is refused.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, a parameter out of range, a text
// that is not UTF-8, a token id outside the vocabulary; `BN_ERR_UNSUPPORTED`: an unknown flag or field,
// text for a model without tokenizer; `BN_ERR_TOO_LONG`: the prompt leaves no room for a new token;
// `BN_ERR_QUEUE_FULL`; `BN_ERR_MEMORY_LIMIT`; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_SHUTDOWN`;
// `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_submit(struct bn_engine *engine,
                    const struct bn_request_params *params,
                    bn_request *out);

// Queues `n` requests, all or none, and writes their ids to `out[0]` to `out[n - 1]`. Otherwise as
// `bn_submit`; on a refusal the `error` of every one of them says the same, naming the culprit by its index.
// `n` is at least 1.
//
// [any thread]
// @return as `bn_submit`.
bn_status bn_submit_batch(struct bn_engine *engine,
                          const struct bn_request_params *const *params,
                          size_t n,
                          bn_request *out);

// Writes up to `capacity` waiting events to `events` and their number to `*count`, waiting up to
// `timeout_ms` milliseconds for the first: 0 does not wait, `BN_WAIT_FOREVER` waits for good. `which` is a
// request, or `BN_ANY`. Nothing in time is `BN_OK` with a count of 0, and so at once, whatever
// `timeout_ms` is, is a request whose terminal event was taken: stop polling it at `BN_EVENT_COMPLETED`. Each event goes to one caller; events
// of one request come in order. What the events point to: see `bn_event`. Where several threads poll `BN_ANY`,
// another's poll may return a later event of a request and so end the life of the one being read: use
// `BN_REQUEST_NO_STREAM` or `BN_REQUEST_POLL_BY_ID` there, or a lock of your own from poll to last use.
//
// [not from a callback]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, `capacity` 0, `timeout_ms` under -1;
// `BN_ERR_NOT_FOUND`: no such request, also when it is released while this waits; `BN_ERR_BUSY`: another
// thread is polling this request; `BN_ERR_WRONG_MODE`: the engine is in callback mode;
// `BN_ERR_REENTRANT`; `BN_ERR_SHUTDOWN`: to `BN_ANY`, shut down, and no event for it is left or
// to come (those of `BN_REQUEST_POLL_BY_ID` may still wait under their ids); or destroyed while
// this waits; `BN_ERR_ENGINE_DEAD`: likewise after the engine died; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_poll(struct bn_engine *engine,
                  bn_request which,
                  struct bn_event *events,
                  size_t capacity,
                  int32_t timeout_ms,
                  size_t *count);

// Asks for the end of a request, or with `BN_ANY` of all, and returns at once. It ends after the forward pass that runs, and its
// terminal event tells
// what happened: `BN_FINISH_CANCELLED`, or another reason where that came first. Cancelling a finished
// request does nothing.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_NOT_FOUND`: no such request; `BN_ERR_INVALID_ARGUMENT`: not an engine;
// `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_cancel(struct bn_engine *engine,
                    bn_request which);

// Retires a request's id and frees what its events pointed to. A live request is cancelled and its
// remaining events are discarded; its place under `queue_capacity` is free when the engine has let go of
// it, a step later. In callback mode release happens by itself after the terminal callback; where it is called
// on another thread, a callback of the request that is under way or about to begin may still run: only
// destroy waits for it.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_NOT_FOUND`: no such request, or released before;
// `BN_ERR_INVALID_ARGUMENT`: not an engine; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_release(struct bn_engine *engine,
                     bn_request request);

// Runs one request beside all others, waits for its end and writes it to `*out`, for the caller to free
// with `bn_completion_free`. Works in both delivery modes and gives no other event of it;
// `BN_REQUEST_NO_STREAM` and `BN_REQUEST_POLL_BY_ID` change nothing here. A request that was cancelled or
// timed out is `BN_OK` with that finish reason and what it had; one that failed is an error. `error` (may
// be NULL) says in words what was wrong.
//
// [not from a callback]
// @return as `bn_submit`; `BN_ERR_REENTRANT`; or the status of a request that failed.
bn_status bn_generate(struct bn_engine *engine,
                      const struct bn_request_params *params,
                      struct bn_completion **out,
                      struct bn_error *error);

// Runs one request for an embedding beside all others, waits for its vector and writes it to `values`, which has
// room for `capacity` floats, and their number, `bn_model_facts.embedding_size`, to `*count`. As `bn_generate` of
// `params` with `BN_REQUEST_EMBED`, which is implied, but that a request that was cancelled or timed out is an
// error. `values` may be NULL where `capacity` is 0, to ask for the number: `BN_ERR_BUFFER_TOO_SMALL` is then the
// answer, no failure; `params` is not looked at and nothing runs. `error` (may be NULL) says in words what was wrong.
//
// [not from a callback]
// @return as `bn_submit`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*count` was written, and nothing ran;
// `BN_ERR_UNSUPPORTED`: also where the model makes no embeddings; `BN_ERR_CANCELLED`; `BN_ERR_TIMED_OUT`;
// `BN_ERR_REENTRANT`; or the status of a request that failed.
bn_status bn_embed(struct bn_engine *engine,
                   const struct bn_request_params *params,
                   float *values,
                   size_t capacity,
                   size_t *count,
                   struct bn_error *error);

// Frees what `bn_generate` returned. NULL is fine.
//
// [any thread]
void bn_completion_free(struct bn_completion *completion);

// Writes the ids of `text` (UTF-8, `length` bytes) to `tokens`, which has room for `capacity`, and their
// number to `*count`. `flags`: `BN_TOKENIZE_*`, or'ed. `tokens` may be NULL where `capacity` is 0, to ask
// for the number: `BN_ERR_BUFFER_TOO_SMALL` (`BN_OK` where it is 0) is then the answer, no failure.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*count` was written;
// `BN_ERR_INVALID_ARGUMENT`: NULL, not UTF-8, not an engine; `BN_ERR_UNSUPPORTED`: unknown flag, or the
// model has no tokenizer; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`;
// `BN_ERR_INTERNAL`.
bn_status bn_tokenize(struct bn_engine *engine,
                      const char *text,
                      size_t length,
                      uint32_t flags,
                      uint32_t *tokens,
                      size_t capacity,
                      size_t *count);

// Writes the text of `tokens` (`count` ids) to `text`, which has room for `capacity` bytes, and the bytes of
// it all to `*length`: UTF-8, not NUL-terminated; bytes that make no character become U+FFFD, control
// tokens and ids that the tokenizer has no text for nothing. `text` may be NULL where `capacity` is 0, to ask for the length:
// `BN_ERR_BUFFER_TOO_SMALL` (`BN_OK` where it is 0) is then the answer, no failure.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*length` was written;
// `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, an id outside the vocabulary; `BN_ERR_UNSUPPORTED`: the
// model has no tokenizer; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`;
// `BN_ERR_INTERNAL`.
bn_status bn_detokenize(struct bn_engine *engine,
                        const uint32_t *tokens,
                        size_t count,
                        char *text,
                        size_t capacity,
                        size_t *length);

// Writes a conversation as the one text that the model was trained to read, by the model's own chat
// template: `count` messages, first to last, as UTF-8 to `text`, which has room for `capacity` bytes, not
// NUL-terminated, and the bytes of it all to `*length`. `flags`: `BN_CHAT_*`, or'ed. `text` may be NULL where
// `capacity` is 0, to ask for the length: `BN_ERR_BUFFER_TOO_SMALL` (`BN_OK` where it is 0) is then the answer,
// no failure. Each call runs the template.
//
// Submit the text with `BN_REQUEST_PARSE_SPECIAL`: it holds special tokens written out. A BOS that the template
// writes is not doubled by submit. With that flag, special tokens that somebody wrote in a message are
// recognised too, and the text does not tell them from the template's own: for messages from outside,
// set `BN_CHAT_REFUSE_SPECIAL`. It looks at each role and content by itself, and at control tokens only, so
// `<think>` and its like, which models write, pass.
//
// Roles are the model's: mostly "system", "user" and "assistant". The template is a program that came with
// the model: its steps and memory are bounded (some 24 MB and 40 bytes for each byte of the messages, on this
// thread while the call runs, not counted in `memory_limit_bytes`), it reads nothing but the messages and
// the date, and takes up to 65,536 messages of 64 MiB in all.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*length` was written; `BN_ERR_INVALID_ARGUMENT`: NULL,
// not UTF-8, not an engine, the template refuses these messages (roles that don't alternate, say), or
// `BN_CHAT_REFUSE_SPECIAL` does; `BN_ERR_UNSUPPORTED`: unknown flag, or the model has no chat template, or one that
// is not understood or fails (the log says why); `BN_ERR_TOO_LONG`; `BN_ERR_OUT_OF_MEMORY`;
// `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
bn_status bn_chat_format(struct bn_engine *engine,
                         const struct bn_chat_message *messages,
                         size_t count,
                         uint32_t flags,
                         char *text,
                         size_t capacity,
                         size_t *length);

// Empties `*error` and sets its `struct_size`, `sizeof(bn_error)`.
//
// [any thread]
// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `error` is NULL, `struct_size` is wrong.
bn_status bn_error_init(struct bn_error *error, uint32_t struct_size);

// The constant's name, like `BN_ERR_QUEUE_FULL`; `BN_ERR_UNKNOWN` for a number that this version does not
// know. NUL-terminated, static, never NULL.
//
// [any thread]
const char *bn_status_name(bn_status status);

// What a status means, as half a sentence in English. NUL-terminated, static, never NULL.
//
// [any thread]
const char *bn_status_message(bn_status status);

// A `BN_FINISH_*` in a word, like `stop`; `unknown` for a number that this version does not know.
// NUL-terminated, static, never NULL.
//
// [any thread]
const char *bn_finish_reason_name(int32_t reason);

// The version of the linked library, like `0.1.0`. NUL-terminated, static.
//
// [any thread]
const char *bn_version(void);

// The `BN_ABI_VERSION` that the linked library was built with.
//
// [any thread]
uint32_t bn_abi_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BN_ENGINE_H */
