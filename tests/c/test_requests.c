// Effects of a request's parameters, on builtin:echo, which answers with its prompt.
#include "harness.h"

TEST(echo_answers_with_its_prompt) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("The quick brown fox.");
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "The quick brown fox.");
    CHECK_EQ(a->last.finish_reason, BN_FINISH_STOP);
    CHECK_EQ(a->last.status, BN_OK);
    CHECK(a->last.prompt_tokens >= 1 && a->last.generated_tokens >= a->last.prompt_tokens);
    CHECK(a->last.first_token_ns > 0 && a->last.total_ns >= a->last.first_token_ns);
    free(a);
    stop(engine);
}

TEST(text_events_are_whole_utf8) {
    bn_engine *engine = start_echo();
    const char *prompt = "Grüße, 世界! 🦀🦀 naïve — ok ✓ ẞ";
    bn_request_params params = ask(prompt);
    answer *a = run(engine, &params); // `collect` checks each event's text
    CHECK_TEXT(a->text, a->text_length, prompt);
    free(a);
    stop(engine);
}

TEST(user_data_comes_back) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("x");
    params.user_data = UINT64_C(0xfedcba9876543210);
    bn_request request = submit(engine, &params);
    bool done = false;
    while (!done) {
        bn_event event;
        size_t count;
        CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, 10000, &count, NULL));
        CHECK_EQ(count, 1);
        CHECK_EQ(event.user_data, params.user_data);
        CHECK_EQ(event.request, request);
        done = event.kind == BN_EVENT_COMPLETED;
    }
    CHECK_OK(bn_request_free(engine, request, NULL));
    stop(engine);
}

TEST(max_new_tokens_ends_it) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("abcdefghijklmnopqrstuvwxyz");
    params.max_new_tokens = 5;
    answer *a = run(engine, &params);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_LENGTH);
    CHECK_EQ(a->last.generated_tokens, 5);
    CHECK_EQ(a->tokens_count, 5);
    CHECK(strncmp(params.prompt.data, a->text, a->text_length) == 0);
    free(a);
    stop(engine);
}

TEST(no_stream_is_one_event_with_everything) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("all at once, please");
    params.flags = BN_REQUEST_NO_STREAM;
    answer *a = run(engine, &params);
    CHECK_EQ(a->events, 1);
    CHECK_TEXT(a->text, a->text_length, "all at once, please");
    CHECK_EQ(a->tokens_count, a->last.generated_tokens);
    free(a);
    stop(engine);
}

TEST(echo_prompt_comes_in_front) {
    bn_engine *engine = start_echo();
    for (uint32_t no_stream = 0; no_stream <= BN_REQUEST_NO_STREAM; no_stream++) {
        bn_request_params params = ask("again ");
        params.flags = BN_REQUEST_ECHO_PROMPT | no_stream;
        answer *a = run(engine, &params);
        CHECK_TEXT(a->text, a->text_length, "again again ");
        CHECK_EQ(a->tokens_count, a->last.prompt_tokens + a->last.generated_tokens);
        free(a);
    }
    stop(engine);
}

TEST(a_stop_string_ends_the_text_before_it) {
    bn_engine *engine = start_echo();
    bn_string stops[] = {BN_STRING_INIT("never"), BN_STRING_INIT("ST\xc3\x96P")};
    for (uint32_t no_stream = 0; no_stream <= BN_REQUEST_NO_STREAM; no_stream++) {
        bn_request_params params = ask("one two STÖP three");
        params.flags = no_stream;
        params.stop_strings = stops;
        params.stop_strings_count = 2;
        answer *a = run(engine, &params);
        CHECK_TEXT(a->text, a->text_length, "one two ");
        CHECK_EQ(a->last.finish_reason, BN_FINISH_STOP_STRING);
        CHECK_EQ(a->last.stop_index, 1);
        free(a);
    }
    stop(engine);
}

TEST(text_held_back_for_a_stop_string_comes_when_it_does_not_match) {
    bn_engine *engine = start_echo();
    bn_string stop_string = {"STOP!", 5};
    bn_request_params params = ask("a STO b STOP");
    params.stop_strings = &stop_string;
    params.stop_strings_count = 1;
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "a STO b STOP");
    CHECK_EQ(a->last.finish_reason, BN_FINISH_STOP);
    free(a);
    stop(engine);
}

TEST(a_stop_token_ends_it) {
    bn_engine *engine = start_echo();
    bn_model *model = model_of(engine);
    uint32_t tokens[] = {7, 0};
    size_t count = 0;
    CHECK_OK(bn_model_tokenize(model, BN_STRING("c"), 0, &tokens[1], 1, &count, NULL));
    CHECK_EQ(count, 1);
    CHECK_OK(bn_model_free(model));
    bn_request_params params = ask("abcde");
    params.stop_tokens = tokens;
    params.stop_tokens_count = 2;
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "ab");
    CHECK_EQ(a->last.finish_reason, BN_FINISH_STOP);
    CHECK_EQ(a->last.stop_index, 1);
    free(a);
    params.stop_tokens_count = 1; // without that: the model's own end token, which is in no list
    a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "abcde");
    CHECK_EQ(a->last.finish_reason, BN_FINISH_STOP);
    CHECK_EQ(a->last.stop_index, -1);
    free(a);
    stop(engine);
}

TEST(ignore_eos_goes_on_to_max_new_tokens) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("abc");
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 50;
    answer *a = run(engine, &params);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_LENGTH);
    CHECK_EQ(a->last.generated_tokens, 50);
    free(a);
    stop(engine);
}

TEST(token_prompts_are_taken_as_they_are) {
    bn_engine *engine = start_echo();
    uint32_t tokens[16];
    size_t count = 0;
    bn_model *model = model_of(engine);
    CHECK_OK(bn_model_tokenize(model, BN_STRING("tokens"), BN_TOKENIZE_ADD_SPECIAL, tokens, 16, &count, NULL));
    CHECK_OK(bn_model_free(model));
    CHECK(count >= 1);
    bn_request_params params = ask("");
    params.prompt = (bn_string){0};
    params.prompt_tokens = tokens;
    params.prompt_tokens_count = count;
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "tokens");
    CHECK_EQ(a->last.prompt_tokens, count);
    free(a);
    stop(engine);
}

TEST(logprobs_come_for_each_token) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("logprobs");
    params.flags = BN_REQUEST_LOGPROBS;
    params.top_logprobs = 3;
    bn_request request = submit(engine, &params);
    size_t seen = 0;
    bool done = false;
    while (!done) {
        bn_event event;
        size_t count;
        CHECK_OK(bn_poll(engine, request, &event, sizeof(bn_event), 1, 10000, &count, NULL));
        CHECK_EQ(count, 1);
        done = event.kind == BN_EVENT_COMPLETED;
        if (event.tokens_count == 0) continue;
        CHECK_EQ(event.logprobs_per_token, 4);
        for (size_t i = 0; i < event.tokens_count; i++) {
            const bn_logprob *of = event.logprobs + i * 4;
            CHECK_EQ(of[0].token, event.tokens[i]);
            CHECK_EQ(of[1].token, event.tokens[i]); // temperature 0: the most likely one
            for (int k = 0; k < 4; k++) CHECK(of[k].logprob <= 0.0f);
            CHECK(of[1].logprob >= of[2].logprob && of[2].logprob >= of[3].logprob);
            seen++;
        }
    }
    CHECK(seen >= strlen("logprobs"));
    CHECK_OK(bn_request_free(engine, request, NULL));
    stop(engine);
}

TEST(tokenize_and_back) {
    bn_model *model = open_model("builtin:echo"); // no engine is needed
    bn_string text = BN_STRING("Gr\xc3\xbc\xc3\x9f" "e \xf0\x9f\xa6\x80 and more");
    size_t count = 0, again = 0, length = 0;
    CHECK_STATUS(bn_model_tokenize(model, text, 0, NULL, 0, &count, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK(count > 1);
    uint32_t *tokens = calloc(count, sizeof *tokens);
    CHECK_STATUS(bn_model_tokenize(model, text, 0, tokens, count - 1, &again, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK(again == count && tokens[0] == 0);
    CHECK_OK(bn_model_tokenize(model, text, 0, tokens, count, &again, NULL));
    CHECK_EQ(again, count);
    char back[128];
    CHECK_STATUS(bn_model_detokenize(model, tokens, count, back, 3, &length, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_EQ(length, text.length);
    CHECK_OK(bn_model_detokenize(model, tokens, count, back, sizeof back, &length, NULL));
    CHECK_TEXT(back, length, text.data);
    CHECK_STATUS(bn_model_tokenize(model, BN_STRING("\xff"), 0, tokens, count, &again, NULL), BN_ERR_INVALID_ARGUMENT);
    tokens[0] = UINT32_MAX;
    CHECK_STATUS(bn_model_detokenize(model, tokens, 1, back, sizeof back, &length, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_OK(bn_model_tokenize(model, (bn_string){0}, 0, NULL, 0, &count, NULL));
    CHECK_EQ(count, 0);
    free(tokens);
    CHECK_OK(bn_model_free(model));
}

TEST(generate_returns_a_completion_of_its_own) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("blocking");
    params.user_data = 9;
    bn_event completion = {0};
    bn_error error = {0};
    CHECK_OK(bn_generate(engine, &params, &completion, sizeof completion, &error));
    CHECK_EQ(error.status, BN_OK);
    CHECK_EQ(error.message[0], 0);
    CHECK_EQ(completion.kind, BN_EVENT_COMPLETED);
    CHECK_EQ(completion.finish_reason, BN_FINISH_STOP);
    CHECK_EQ(completion.user_data, 9);
    CHECK_TEXT(completion.text.data, completion.text.length, "blocking");
    CHECK_STATUS(bn_request_free(engine, completion.request, NULL), BN_ERR_NOT_FOUND);
    CHECK(completion.lease != 0 && completion.engine == NULL);
    bn_event event;
    size_t count = 7;
    CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, 0, &count, NULL)); // none of its events arrive here
    CHECK_EQ(count, 0);
    CHECK_EQ(stats(engine).unreleased, 0);
    params.priority = BN_PRIORITY_MAX + 1;
    CHECK_STATUS(bn_generate(engine, &params, &completion, sizeof completion, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "priority");
    stop(engine);
    CHECK_TEXT(completion.text.data, completion.text.length, "blocking"); // outlives its engine
    CHECK_OK(bn_events_free(&completion, sizeof completion, 1));
    CHECK_OK(bn_events_free(&completion, sizeof completion, 1)); // skipped
}

TEST(a_prompt_that_can_never_fit_is_refused) {
    bn_engine_config config = echo_config();
    config.context_length = 64;
    bn_engine *engine = start(&config);
    char prompt[201];
    memset(prompt, 'a', 200);
    prompt[200] = 0;
    bn_request_params params = ask(prompt);
    bn_error error = {0};
    bn_request request = 0;
    CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_TOO_LONG);
    CHECK_CONTAINS(error.message, "64");
    CHECK_EQ(stats(engine).rejected_too_long, 1);
    params = ask("short");
    params.max_new_tokens = 8;
    free(run(engine, &params));
    stop(engine);
}

TEST(a_prompt_longer_than_a_step_goes_in_chunks) {
    bn_engine_config config = echo_config();
    config.max_batch_size = 2;
    config.max_batch_tokens = 7;
    bn_engine *engine = start(&config);
    char prompt[301];
    for (int i = 0; i < 300; i++) prompt[i] = (char)('a' + i % 26);
    prompt[300] = 0;
    bn_request_params params = ask(prompt);
    params.max_new_tokens = 400;
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, prompt);
    CHECK(stats(engine).steps >= 300 / 7);
    free(a);
    stop(engine);
}

TEST(timeouts_end_a_request) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=2000");
    config.default_timeout_ms = 60;
    bn_engine *engine = start(&config);
    bn_request_params params = ask("a");
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 500;
    answer *a = run(engine, &params); // the engine's default
    CHECK_EQ(a->last.finish_reason, BN_FINISH_TIMED_OUT);
    CHECK_EQ(a->last.status, BN_ERR_TIMED_OUT);
    CHECK(a->last.generated_tokens < 500);
    free(a);
    params.max_new_tokens = 80;
    params.timeout_ms = BN_NO_LIMIT;
    a = run(engine, &params);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_LENGTH);
    free(a);
    params.timeout_ms = 20;
    a = run(engine, &params);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_TIMED_OUT);
    free(a);
    CHECK_EQ(stats(engine).completed_timed_out, 2);
    stop(engine);
}

TEST(what_goes_in_is_copied) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=500");
    char path[64];
    strcpy(path, config.model_path.data);
    config.model_path = BN_TEXT(path);
    bn_engine *engine = start(&config);
    memset(path, 0, sizeof path);
    char prompt[] = "copied at once", stop_text[] = "once";
    bn_string stop_string = {stop_text, 4};
    bn_request_params params = ask(prompt);
    params.stop_strings = &stop_string;
    params.stop_strings_count = 1;
    submit(engine, &params);
    memset(prompt, 'x', sizeof prompt - 1);
    memset(stop_text, 'x', sizeof stop_text - 1);
    memset(&params, 0xff, sizeof params);
    answer *a = finish(engine, BN_ANY);
    CHECK_TEXT(a->text, a->text_length, "copied at ");
    free(a);
    stop(engine);
}

TEST(metrics_are_prometheus_text) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("count me");
    free(run(engine, &params));
    static char text[32768];
    size_t length = 0;
    CHECK_STATUS(bn_engine_metrics(engine, text, 10, &length, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK(length > 500 && length < sizeof text);
    CHECK_OK(bn_engine_metrics(engine, text, sizeof text - 1, &length, NULL));
    text[length] = 0;
    CHECK_CONTAINS(text, "\nbn_request_success_total{finished_reason=\"stop\"} 1\n");
    CHECK_CONTAINS(text, "\nbn_num_requests_running 0\n");
    CHECK_CONTAINS(text, "bn_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1\n");
    CHECK_CONTAINS(text, "bn_request_prompt_tokens_sum 9\n");
    CHECK_CONTAINS(text, "bn_model_info{model_name=\"echo\",");
    CHECK_CONTAINS(text, "bn_engine_state{state=\"running\"} 1\n");
    stop(engine);
}

TEST(metrics_call_the_model_by_the_hosts_name) {
    bn_engine_config config = echo_config();
    char name[] = "a \"name\"";
    config.model_name = BN_TEXT(name);
    bn_engine *engine = start(&config);
    memset(name, 0, sizeof name);
    static char text[32768];
    size_t length = 0;
    CHECK_OK(bn_engine_metrics(engine, text, sizeof text - 1, &length, NULL));
    text[length] = 0;
    CHECK_CONTAINS(text, "bn_model_info{model_name=\"a \\\"name\\\"\",");
    stop(engine);
    config.model_name = (bn_string){"\xff", 1};
    CHECK_STATUS(bn_engine_create(&config, &engine, NULL), BN_ERR_INVALID_ARGUMENT);
}

TEST(lengths_and_times_are_counted_once_a_request_ends) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("count me");
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 6;
    free(run(engine, &params));
    // The engine's thread may have begun with the request, and is idle after it.
    while (stats(engine).idle_ns == 0) sleep_ms(1);
    bn_stats s = stats(engine);
    CHECK_EQ(s.prompt_lengths.count, 1);
    CHECK_EQ(s.prompt_lengths.sum, 9); // with BOS
    CHECK_EQ(s.generated_lengths.sum, 6);
    for (uint32_t b = 0; b < BN_LENGTH_BUCKETS; b++) {
        CHECK_EQ(s.prompt_lengths.buckets[b], bn_length_bound(b) == 10);
        CHECK_EQ(s.generated_lengths.buckets[b], bn_length_bound(b) == 10);
    }
    CHECK_EQ(bn_length_bound(BN_LENGTH_BUCKETS - 2), 1000000);
    CHECK(bn_length_bound(BN_LENGTH_BUCKETS - 1) == UINT64_MAX);
    CHECK_EQ(s.request_prefill.count, 1);
    CHECK_EQ(s.request_decode.count, 1);
    CHECK_EQ(s.queried_tokens, 9);
    CHECK_EQ(s.batched_requests, s.steps);
    CHECK(s.prefill_ns > 0 && s.decode_ns > 0 && s.idle_ns > 0);
    CHECK(s.prefill_ns + s.decode_ns + s.idle_ns <= s.uptime_ns);
    CHECK(s.max_batch_size > 0 && s.kv_block_size == 32);
    stop(engine);
}

TEST(an_engine_that_has_drained_is_idle) {
    bn_engine *engine = start_echo();
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    while (state_of(engine) != BN_STATE_DRAINED) sleep_ms(1);
    bn_stats before = stats(engine), after = stats(engine);
    CHECK(after.uptime_ns > before.uptime_ns);
    CHECK_EQ(after.idle_ns - before.idle_ns, after.uptime_ns - before.uptime_ns);
    stop(engine);
}

TEST(latency_buckets_add_up_to_the_count) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("count me");
    free(run(engine, &params));
    bn_stats s = stats(engine);
    const bn_latency *all[] = {&s.queue_wait, &s.time_to_first_token, &s.inter_token, &s.end_to_end};
    for (size_t i = 0; i < 4; i++) {
        uint64_t sum = 0;
        for (uint32_t b = 0; b < BN_LATENCY_BUCKETS; b++) {
            sum += all[i]->buckets[b];
            CHECK(b == 0 || bn_latency_bound_ns(b - 1) < bn_latency_bound_ns(b));
        }
        CHECK(sum > 0);
        CHECK_EQ(sum, all[i]->count);
    }
    CHECK_EQ(bn_latency_bound_ns(0), 10000);
    CHECK_EQ(bn_latency_bound_ns(BN_LATENCY_BUCKETS - 2), 300000000000u);
    CHECK(bn_latency_bound_ns(BN_LATENCY_BUCKETS - 1) == UINT64_MAX && bn_latency_bound_ns(UINT32_MAX) == UINT64_MAX);
    stop(engine);
}

TEST(a_report_is_text_for_people) {
    bn_engine *engine = start_echo();
    char text[4096];
    size_t length = 0;
    CHECK_OK(bn_engine_report(engine, text, sizeof text - 1, &length, NULL));
    text[length] = 0;
    CHECK_CONTAINS(text, "\nsteps      0\n");
    bn_request_params params = ask("count me");
    free(run(engine, &params));
    CHECK_STATUS(bn_engine_report(engine, NULL, 0, &length, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK(length > 200 && length < sizeof text);
    CHECK_OK(bn_engine_report(engine, text, sizeof text - 1, &length, NULL));
    text[length] = 0;
    CHECK_CONTAINS(text, "\nbatch      1.00 of ");
    CHECK_CONTAINS(text, "\nspeed-up   1.00 times");
    stop(engine);
}

TEST(what_is_known_of_echo) {
    bn_model *model = open_model("builtin:echo");
    bn_model_info info = info_of(model);
    CHECK_EQ(info.struct_size, sizeof info);
    CHECK(info.vocab_size > 0 && info.context_length > 0);
    CHECK(info.has_tokenizer == 1 && info.has_chat_template == 1);
    CHECK(info.architecture.length > 0 && info.architecture.data != NULL);
    CHECK((info.end_tokens == NULL) == (info.end_tokens_count == 0));
    CHECK_EQ(info.sampling_fields, 0);
    CHECK_OK(bn_model_free(model));
}
