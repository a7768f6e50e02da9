// More work than fits: priorities, waiting, unread output, prefixes that are found again, sessions, and
// events for a router.
#include "harness.h"
#include "xxh64.h"

#include <pthread.h>
#include <stdatomic.h>

static const char STORY[] = "Once upon a time there was a small machine that could only count to three. ";

// Runs one request to its end, and returns its completion. Free it with `bn_events_free`.
static bn_event generate(bn_engine *engine, const bn_request_params *params) {
    bn_event out = {0};
    bn_error error = {0};
    bn_status status = bn_generate(engine, params, &out, sizeof out, &error);
    if (status != BN_OK) test_fail(__FILE__, __LINE__, "generate: %s: %s", bn_status_name(status), error.message);
    return out;
}

static bn_event ended(bn_engine *engine, const bn_request_params *params) {
    bn_event done = generate(engine, params);
    bn_events_free(&done, sizeof done, 1);
    return done; // its numbers
}

static uint32_t stage_of(bn_engine *engine, bn_request request) {
    bn_request_info info;
    CHECK_OK(bn_request_info_init(&info, sizeof info));
    CHECK_OK(bn_request_get_info(engine, request, &info, NULL));
    return info.stage;
}

static void wait_until_running(bn_engine *engine, bn_request request) {
    while (stage_of(engine, request) == BN_STAGE_QUEUED) sleep_ms(1);
    CHECK_EQ(stage_of(engine, request), BN_STAGE_RUNNING);
}

static bn_request_params ask_long(const char *prompt) {
    bn_request_params params = ask(prompt);
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 0;
    return params;
}

TEST(an_open_length_ends_with_the_sequence) {
    bn_engine_config config = demo_config();
    config.context_length = 64;
    bn_engine *engine = start(&config);
    bn_request_params params = ask_long("Once");
    bn_event done = ended(engine, &params);
    CHECK_EQ(done.finish_reason, BN_FINISH_LENGTH);
    CHECK_EQ(done.prompt_tokens + done.generated_tokens, 64);
    stop(engine);
}

TEST(an_urgent_request_does_not_wait_for_the_batch) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=1000");
    config.max_batch_size = 2;
    bn_engine *engine = start(&config);
    bn_request_params params = ask_long("a long one"), urgent = ask("now");
    bn_request requests[] = {submit(engine, &params), submit(engine, &params)};
    for (int i = 0; i < 2; i++) wait_until_running(engine, requests[i]);
    urgent.priority = BN_PRIORITY_MAX;
    bn_event done = generate(engine, &urgent);
    CHECK_TEXT(done.text.data, done.text.length, "now");
    bn_events_free(&done, sizeof done, 1);
    for (int i = 0; i < 2; i++) CHECK(stage_of(engine, requests[i]) != BN_STAGE_FINISHED);
    CHECK(stats(engine).preemptions > 0);
    urgent.priority = BN_PRIORITY_MAX + 1;
    CHECK_STATUS(bn_submit(engine, &urgent, &requests[0], NULL), BN_ERR_INVALID_ARGUMENT);
    stop(engine);
}

TEST(a_request_says_how_long_it_waits) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=2000");
    config.max_batch_size = 1;
    bn_engine *engine = start(&config);
    bn_request_params first = ask_long("a long one"), params = ask("short");
    first.user_data = 1;
    bn_request running = submit(engine, &first);
    wait_until_running(engine, running);
    params.queue_timeout_ms = 30;
    bn_event late = generate(engine, &params);
    CHECK_EQ(late.finish_reason, BN_FINISH_TIMED_OUT);
    CHECK_STATUS(late.status, BN_ERR_TIMED_OUT);
    CHECK_EQ(late.generated_tokens, 0);
    char message[512];
    snprintf(message, sizeof message, "%.*s", (int)late.message.length, late.message.data);
    CHECK_CONTAINS(message, "queue_timeout_ms");
    bn_events_free(&late, sizeof late, 1);
    CHECK_EQ(stage_of(engine, running), BN_STAGE_RUNNING);
    CHECK_OK(bn_request_free(engine, running, NULL));
    params.queue_timeout_ms = 60000;
    CHECK_EQ(ended(engine, &params).finish_reason, BN_FINISH_STOP);
    stop(engine);
}

TEST(who_will_be_late_is_given_up) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=2000");
    bn_engine *engine = start(&config);
    char prompt[201];
    memset(prompt, 'x', 200);
    prompt[200] = 0;
    bn_request_params params = ask(prompt);
    bn_request request = 0;
    params.max_new_tokens = 1;
    params.flags = BN_REQUEST_DROP_LATE | BN_REQUEST_NO_CACHE;
    CHECK_STATUS(bn_submit(engine, &params, &request, NULL), BN_ERR_INVALID_ARGUMENT); // late for what?
    params.queue_timeout_ms = 60000;
    CHECK_EQ(ended(engine, &params).finish_reason, BN_FINISH_LENGTH);
    // The prompt has 200 rows of 2 ms, as the engine has learned.
    params.queue_timeout_ms = 50;
    bn_event done = ended(engine, &params);
    CHECK_EQ(done.finish_reason, BN_FINISH_TIMED_OUT);
    CHECK_EQ(done.generated_tokens, 0);
    stop(engine);
}

TEST(unread_output_pauses_its_request_alone) {
    bn_engine_config config = demo_config();
    config.max_unread_bytes = 4000;
    bn_engine *engine = start(&config);
    bn_request_params params = ask_long("Once"), other = ask_long("Twice");
    params.flags |= BN_REQUEST_POLL_BY_ID;
    bn_request waits = submit(engine, &params);
    params.flags |= BN_REQUEST_END_UNREAD;
    bn_request ends = submit(engine, &params);
    other.max_new_tokens = 60;
    for (int i = 0; i < 20; i++) CHECK_EQ(ended(engine, &other).generated_tokens, 60);
    bn_stats s = stats(engine);
    CHECK_EQ(s.paused, 1);
    CHECK(s.pauses >= 1);
    CHECK_EQ(stage_of(engine, waits), BN_STAGE_RUNNING);
    CHECK_EQ(stage_of(engine, ends), BN_STAGE_FINISHED);
    answer *whole = finish(engine, waits), *part = finish(engine, ends);
    CHECK_EQ(whole->last.finish_reason, BN_FINISH_LENGTH);
    CHECK_EQ(whole->last.prompt_tokens + whole->tokens_count, s.context_length);
    CHECK_EQ(part->last.finish_reason, BN_FINISH_CANCELLED);
    CHECK(part->tokens_count > 0 && part->tokens_count < whole->tokens_count);
    CHECK(memcmp(part->tokens, whole->tokens, part->tokens_count * sizeof *part->tokens) == 0);
    CHECK_EQ(stats(engine).paused, 0);
    free(whole);
    free(part);
    stop(engine);
}

TEST(a_prompt_that_was_seen_is_not_computed_again) {
    static const struct {
        uint64_t salt;
        uint32_t flags;
        bool found;
    } tries[] = {{0, 0, false}, {0, 0, true}, {7, 0, false}, {0, BN_REQUEST_NO_CACHE, false}, {7, 0, true}};
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        bn_request_params params = ask(STORY);
        params.cache_salt = tries[i].salt;
        params.flags = tries[i].flags;
        bn_event done = ended(engine, &params);
        CHECK_EQ(done.cached_tokens, tries[i].found ? done.prompt_tokens - 1 : 0);
    }
    CHECK(stats(engine).cached_tokens > 0 && stats(engine).kv_blocks_cached > 0);
    CHECK_OK(bn_cache_clear(engine, NULL));
    CHECK_EQ(stats(engine).kv_blocks_cached, 0);
    bn_request_params params = ask(STORY);
    CHECK_EQ(ended(engine, &params).cached_tokens, 0);
    stop(engine);
}

// -- sessions ----------------------------------------------------------------------------------------

enum { TURN = 60, BLOCK = 16 };

static bn_engine_config small_blocks(void) {
    bn_engine_config config = demo_config();
    config.kv_block_size = BLOCK;
    return config;
}

static bn_request_params turn(uint32_t tokens[TURN], const char *session) {
    for (uint32_t i = 0; i < TURN; i++) tokens[i] = 40 + i * 7 % 60;
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.prompt_tokens = tokens;
    params.prompt_tokens_count = TURN;
    params.max_new_tokens = 6;
    params.flags = BN_REQUEST_IGNORE_EOS;
    if (session != NULL) params.session = BN_TEXT(session);
    return params;
}

// An engine with the session "anna", and the session as bytes, which the caller frees.
static uint8_t *save_anna(bn_engine *engine, size_t *size) {
    uint32_t tokens[TURN];
    bn_request_params params = turn(tokens, "anna");
    CHECK_EQ(ended(engine, &params).finish_reason, BN_FINISH_LENGTH);
    CHECK_STATUS(bn_session_save(engine, BN_STRING("anna"), NULL, 0, size, NULL), BN_ERR_BUFFER_TOO_SMALL);
    uint8_t *bytes = malloc(*size);
    CHECK(bytes != NULL);
    CHECK_OK(bn_session_save(engine, BN_STRING("anna"), bytes, *size, size, NULL));
    return bytes;
}

TEST(a_session_is_saved_restored_and_dropped) {
    bn_engine_config config = small_blocks();
    bn_engine *engine = start(&config), *other = start(&config);
    size_t size = 0, again = 0;
    uint8_t *bytes = save_anna(engine, &size), byte = 0xaa;
    CHECK_EQ(stats(engine).sessions, 1);
    CHECK(stats(engine).session_blocks >= TURN / BLOCK);
    CHECK_STATUS(bn_session_save(engine, BN_STRING("anna"), &byte, 1, &again, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK(byte == 0xaa && again == size);
    CHECK_STATUS(bn_session_save(engine, BN_STRING("anna"), NULL, size, &again, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_session_save(engine, BN_STRING("anna"), bytes, size, NULL, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_session_save(engine, BN_STRING("bert"), bytes, size, &again, NULL), BN_ERR_NOT_FOUND);
    CHECK_OK(bn_session_restore(other, BN_STRING("carl"), bytes, size, NULL));
    CHECK_OK(bn_session_restore(other, BN_STRING("carl"), bytes, size, NULL)); // the earlier one is replaced
    uint32_t tokens[TURN];
    bn_request_params params = turn(tokens, NULL);
    CHECK_EQ(ended(other, &params).cached_tokens, TURN - 1);
    CHECK_OK(bn_session_free(engine, BN_STRING("anna"), NULL));
    CHECK_STATUS(bn_session_free(engine, BN_STRING("anna"), NULL), BN_ERR_NOT_FOUND);
    CHECK_EQ(stats(engine).sessions, 0);
    CHECK_EQ(stats(engine).session_blocks, 0);
    free(bytes);
    stop(engine);
    stop(other);
}

static void refuses(bn_engine *engine, const uint8_t *bytes, size_t size) {
    bn_error error = {0};
    bn_string name = BN_STRING("dora");
    CHECK_STATUS(bn_session_restore(engine, name, bytes, size, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK(error.message[0] != 0);
    CHECK_STATUS(bn_session_free(engine, name, NULL), BN_ERR_NOT_FOUND);
}

// With a valid checksum: the contents are checked too.
static void refuses_forged(bn_engine *engine, uint8_t *bytes, size_t size, size_t at) {
    uint8_t *sum = bytes + size - 8;
    for (int bit = 0; bit < 8; bit++) {
        bytes[at] ^= (uint8_t)(1 << bit);
        uint64_t hash = xxh64(bytes, size - 8, 0);
        for (int i = 0; i < 8; i++) sum[i] = (uint8_t)(hash >> (8 * i));
        refuses(engine, bytes, size);
        bytes[at] ^= (uint8_t)(1 << bit);
    }
}

TEST(a_damaged_session_is_refused) {
    bn_engine_config config = small_blocks();
    bn_engine *engine = start(&config);
    size_t size = 0;
    uint8_t *bytes = save_anna(engine, &size);
    CHECK(xxh64(bytes, size - 8, 0) == little_endian(bytes + size - 8, 8));
    for (size_t length = 0; length < size; length += length < 80 ? 1 : size / 97) {
        uint8_t *part = malloc(length + 1); // a memory checker detects reads past its end
        CHECK(part != NULL);
        memcpy(part, bytes, length);
        refuses(engine, part, length);
        free(part);
    }
    for (size_t at = 0; at < size; at += at < 80 ? 1 : size / 97) {
        bytes[at] ^= 0x10;
        refuses(engine, bytes, size);
        bytes[at] ^= 0x10;
    }
    refuses(engine, NULL, 0);
    refuses(engine, NULL, 100);
    // Magic, version, fingerprint, kind, bytes of blocks and states; not the salt, which may be any; the number of tokens,
    // what made the vectors of pictures, which there are none of, and the number of pictures.
    const size_t header = 76;
    for (size_t at = 0; at < header; at++)
        if (at < 44 || at >= 52) refuses_forged(engine, bytes, size, at);
    refuses_forged(engine, bytes, size, header + 3); // a token's highest byte
    bn_engine_config others[] = {config, config, echo_config()};
    others[0].kv_type = BN_KV_TYPE_INT8;
    others[1].kv_block_size = 2 * BLOCK;
    others[2].kv_block_size = BLOCK;
    refuses_forged(engine, bytes, size, 0); // which leaves a wrong checksum
    uint64_t hash = xxh64(bytes, size - 8, 0);
    for (int i = 0; i < 8; i++) bytes[size - 8 + (size_t)i] = (uint8_t)(hash >> (8 * i));
    for (int i = 0; i < 3; i++) {
        bn_engine *other = start(&others[i]);
        refuses(other, bytes, size);
        stop(other);
    }
    CHECK_OK(bn_session_restore(engine, BN_STRING("dora"), bytes, size, NULL));
    free(bytes);
    stop(engine);
}

TEST(a_session_has_a_name_of_1_to_256_bytes) {
    bn_engine_config config = small_blocks();
    bn_engine *engine = start(&config);
    size_t size = 0;
    uint8_t *bytes = save_anna(engine, &size);
    char text[257];
    memset(text, 'n', sizeof text);
    bn_string long_name = {text, 257}, longest = {text, 256}, wrong[] = {long_name, BN_STRING(""), BN_STRING("\xff")};
    uint32_t tokens[TURN];
    bn_request request = 0;
    for (int i = 0; i < 3; i++) {
        bn_request_params params = turn(tokens, NULL);
        params.session = wrong[i];
        CHECK_STATUS(bn_submit(engine, &params, &request, NULL), BN_ERR_INVALID_ARGUMENT);
        CHECK_STATUS(bn_session_restore(engine, wrong[i], bytes, size, NULL), BN_ERR_INVALID_ARGUMENT);
        bn_status none = i < 2 ? BN_ERR_NOT_FOUND : BN_ERR_INVALID_ARGUMENT; // it is not UTF-8
        CHECK_STATUS(bn_session_save(engine, wrong[i], NULL, 0, &size, NULL), none);
        CHECK_STATUS(bn_session_free(engine, wrong[i], NULL), none);
    }
    CHECK_STATUS(bn_session_free(engine, BN_TEXT(NULL), NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_OK(bn_session_restore(engine, longest, bytes, size, NULL));
    CHECK_OK(bn_session_free(engine, longest, NULL));
    free(bytes);
    stop(engine);
}

// -- where calls are refused -------------------------------------------------------------------------

typedef struct {
    bn_engine *engine;
    _Atomic int ready, completed;
    bn_status dropped, saved, restored, cleared, read;
} caller;

static void call_back(const bn_event *event, void *context) {
    caller *c = context;
    size_t count = 0;
    bn_string name = BN_STRING("anna");
    uint8_t byte = 0;
    if (event->kind != BN_EVENT_COMPLETED) return;
    while (!c->ready) sleep_ms(1);
    c->dropped = bn_session_free(c->engine, name, NULL);
    c->saved = bn_session_save(c->engine, name, NULL, 0, &count, NULL);
    c->restored = bn_session_restore(c->engine, name, &byte, 1, NULL);
    c->cleared = bn_cache_clear(c->engine, NULL);
    c->read = bn_kv_events(c->engine, NULL, sizeof(bn_kv_event), 0, &count, NULL);
    c->completed = 1;
}

TEST(a_callback_may_not_wait_for_the_engine) {
    caller c = {0};
    bn_engine_config config = echo_config();
    config.on_event = call_back;
    config.on_event_context = &c;
    config.kv_events_capacity = 8;
    c.engine = start(&config);
    bn_request_params params = ask("once");
    submit(c.engine, &params);
    c.ready = 1;
    while (!c.completed) sleep_ms(1);
    CHECK_STATUS(c.dropped, BN_ERR_REENTRANT);
    CHECK_STATUS(c.saved, BN_ERR_REENTRANT);
    CHECK_STATUS(c.restored, BN_ERR_REENTRANT);
    CHECK_STATUS(c.cleared, BN_ERR_REENTRANT);
    CHECK_OK(c.read);
    CHECK_OK(bn_cache_clear(c.engine, NULL)); // from here it may
    stop(c.engine);
}

TEST(an_engine_that_shuts_down_has_no_sessions) {
    for (uint32_t mode = BN_SHUTDOWN_DRAIN; mode <= BN_SHUTDOWN_CANCEL; mode++) {
        bn_engine_config config = small_blocks();
        bn_engine *engine = start(&config);
        size_t size = 0, count = 0;
        uint8_t *bytes = save_anna(engine, &size);
        bn_string name = BN_STRING("anna");
        CHECK_OK(bn_engine_shutdown(engine, mode, NULL));
        CHECK_STATUS(bn_session_save(engine, name, bytes, size, &count, NULL), BN_ERR_SHUTDOWN);
        CHECK_STATUS(bn_session_restore(engine, name, bytes, size, NULL), BN_ERR_SHUTDOWN);
        CHECK_STATUS(bn_session_free(engine, name, NULL), BN_ERR_SHUTDOWN);
        CHECK_STATUS(bn_cache_clear(engine, NULL), BN_ERR_SHUTDOWN);
        free(bytes);
        stop(engine);
    }
}

static void *clear_until_the_end(void *engine) {
    bn_status status = BN_OK;
    while (status == BN_OK) status = bn_cache_clear(engine, NULL);
    CHECK(status == BN_ERR_SHUTDOWN || status == BN_ERR_INVALID_ARGUMENT);
    return NULL;
}

TEST(calls_that_wait_end_with_the_engine) {
    enum { ROUNDS = 30, THREADS = 3 };
    for (int round = 0; round < ROUNDS; round++) {
        bn_engine *engine = start_echo();
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, clear_until_the_end, engine), 0);
        sleep_ms(round % 3);
        if (round % 2 == 0) CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
        stop(engine);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
}

// -- what the host is told ---------------------------------------------------------------------------

TEST(a_router_hears_of_each_block_by_its_hash) {
    enum { SALT = 5 };
    CHECK(xxh64((const uint8_t *)"", 0, 0) == 0xef46db3751d8e999);
    bn_engine_config config = small_blocks();
    config.kv_events_capacity = 100;
    bn_engine *engine = start(&config);
    uint32_t tokens[TURN];
    bn_request_params params = turn(tokens, NULL);
    params.prompt_tokens_count = 40; // with the answer, not three blocks
    params.cache_salt = SALT;
    CHECK_EQ(ended(engine, &params).finish_reason, BN_FINISH_LENGTH);
    uint64_t parent = SALT;
    bn_kv_event events[8];
    size_t count = 9;
    for (int block = 0; block < 2; block++) {
        CHECK_OK(bn_kv_events(engine, events, sizeof *events, 1, &count, NULL));
        CHECK_EQ(count, 1);
        CHECK_EQ(events->hash_type, BN_HASH_XXH64);
        CHECK_EQ(events->kind, BN_KV_EVENT_STORED);
        CHECK(events->parent_hash == parent);
        CHECK(events->hash == xxh64_of_tokens(tokens + block * BLOCK, BLOCK, parent));
        parent = events->hash;
    }
    CHECK_OK(bn_cache_clear(engine, NULL));
    CHECK_OK(bn_kv_events(engine, events, sizeof *events, 8, &count, NULL));
    CHECK(count > 0 && events[count - 1].kind == BN_KV_EVENT_CLEARED);
    CHECK_OK(bn_kv_events(engine, events, sizeof *events, 8, &count, NULL));
    CHECK_EQ(count, 0);
    stop(engine);
}

TEST(kv_events_check_their_arguments) {
    static const size_t wrong[] = {0, 4, sizeof(bn_kv_event) - 1, sizeof(bn_kv_event) + 1, 65536};
    bn_engine_config config = echo_config();
    bn_engine *deaf = start(&config);
    config.kv_events_capacity = 4;
    bn_engine *engine = start(&config);
    bn_kv_event events[4];
    size_t count = 9;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_STATUS(bn_kv_events(engine, events, wrong[i], 1, &count, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_kv_events(engine, NULL, sizeof *events, 1, &count, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_kv_events(engine, events, sizeof *events, SIZE_MAX, &count, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_kv_events(engine, events, sizeof *events, 4, NULL, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_kv_events(NULL, events, sizeof *events, 4, &count, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_kv_events(deaf, events, sizeof *events, 4, &count, NULL), BN_ERR_WRONG_MODE);
    CHECK_EQ(count, 9);
    CHECK_OK(bn_kv_events(engine, NULL, sizeof *events, 0, &count, NULL));
    CHECK_EQ(count, 0);
    config.kv_events_capacity = 1048577;
    bn_engine *none = NULL;
    CHECK_STATUS(bn_engine_create(&config, &none, NULL), BN_ERR_INVALID_ARGUMENT);
    stop(engine);
    stop(deaf);
}

TEST(report_and_metrics_tell_of_the_pressure) {
    static const char *const lines[] = {"num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total", "recomputed_tokens_total",
                                        "pauses_total", "num_requests_paused", "kv_blocks_cached",
                                        "kv_cache_evictions_total"};
    bn_engine *engine = start_echo();
    bn_request_params params = ask(STORY);
    for (int i = 0; i < 2; i++) CHECK_EQ(ended(engine, &params).finish_reason, BN_FINISH_STOP);
    static char text[32769];
    size_t length = 0, again = 0;
    CHECK_OK(bn_engine_metrics(engine, text, sizeof text - 1, &length, NULL));
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) CHECK_CONTAINS(text, lines[i]);
    memset(text, 0, sizeof text);
    CHECK_STATUS(bn_engine_report(engine, NULL, 0, &length, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK(length > 0 && length <= 4096);
    CHECK_STATUS(bn_engine_report(engine, text, 1, &again, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK(again > 1 && text[0] == 0);
    CHECK_STATUS(bn_engine_report(engine, text, sizeof text, NULL, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_OK(bn_engine_report(engine, text, 4096, &length, NULL));
    CHECK_EQ(strlen(text), length);
    CHECK_CONTAINS(text, "batch");
    CHECK_CONTAINS(text, "speed-up");
    stop(engine);
}
