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

@SECTIONS@
#ifdef __cplusplus
}
#endif

#endif
