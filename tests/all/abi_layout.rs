//! Sizes and offsets of every field, and the values of the constants, as a C compiler sees them in
//! `include/bn_engine.h`, against Rust's.

use ::bn_engine::ffi::chat::{bn_chat, bn_chat_message};
use ::bn_engine::ffi::config::*;
use ::bn_engine::ffi::constraint::*;
use ::bn_engine::ffi::event::*;
use ::bn_engine::ffi::exports::lifecycle::*;
use ::bn_engine::ffi::exports::model::*;
use ::bn_engine::ffi::growth::Grown;
use ::bn_engine::ffi::log::*;
use ::bn_engine::ffi::model::*;
use ::bn_engine::ffi::picture::*;
use ::bn_engine::ffi::pooling::*;
use ::bn_engine::ffi::question::*;
use ::bn_engine::ffi::request::*;
use ::bn_engine::ffi::sampling::*;
use ::bn_engine::ffi::session::*;
use ::bn_engine::ffi::span::*;
use ::bn_engine::ffi::speculation::*;
use ::bn_engine::ffi::stats::{BN_LATENCY_BUCKETS, BN_LENGTH_BUCKETS, bn_latency, bn_lengths, bn_stats};
use ::bn_engine::ffi::status::*;
use ::bn_engine::ffi::tool_call::bn_tool_call;
use ::bn_engine::ffi::trace::bn_trace;
use ::bn_engine::ffi::types::*;
use ::bn_engine::ffi::version::*;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

/// A line of C that prints a value, and the line that it must print.
#[derive(Default)]
struct Facts {
    program: String,
    expected: String,
}

impl Facts {
    fn add(&mut self, c: &str, value: i128) {
        writeln!(self.program, "    printf(\"%s %lld\\n\", \"{c}\", (long long)({c}));").unwrap();
        writeln!(self.expected, "{c} {}", value as i64).unwrap();
    }
}

/// Every field must be named: the pattern has no `..`.
macro_rules! structs {
    ($facts:expr; $($name:ident { $($field:ident),* $(,)? })*) => { $(
        let _ = |$name { $($field: _),* }: $name| ();
        $facts.add(concat!("sizeof(", stringify!($name), ")"), size_of::<$name>() as i128);
        $(
            let c = concat!("offsetof(", stringify!($name), ", ", stringify!($field), ")");
            $facts.add(c, offset_of!($name, $field) as i128);
        )*
    )* };
}

macro_rules! constants {
    ($facts:expr; $($name:ident)*) => { $( $facts.add(stringify!($name), $name as i128); )* };
}

/// Structs that grow name their fields themselves.
fn grown<T: Grown>(facts: &mut Facts) {
    facts.add(&format!("sizeof({})", T::NAME), size_of::<T>() as i128);
    for (field, offset) in T::FIELDS {
        facts.add(&format!("offsetof({}, {field})", T::NAME), *offset as i128);
    }
}

fn structs(facts: &mut Facts) {
    grown::<bn_engine_config>(facts);
    grown::<bn_event>(facts);
    grown::<bn_kv_event>(facts);
    grown::<bn_model_config>(facts);
    grown::<bn_model_info>(facts);
    grown::<bn_request_info>(facts);
    grown::<bn_request_params>(facts);
    grown::<bn_stats>(facts);
    structs! { facts;
        bn_string { data, length }
        bn_error { status, message }
        bn_chat_message { role, content }
        bn_chat { messages, messages_count, json, reserved }
        bn_sampling {
            seed, temperature, temperature_range, temperature_exponent, top_k, top_p, min_p, typical_p,
            top_n_sigma, xtc_probability, xtc_threshold, mirostat_tau, mirostat_eta, samplers,
            samplers_count, penalty_window, repetition_penalty, frequency_penalty, presence_penalty,
            dry_multiplier, dry_base, dry_allowed_length, dry_window, dry_breakers, dry_breakers_count,
            logit_bias, logit_bias_count, bad_words, bad_words_count, on_logits, on_logits_context, reserved,
        }
        bn_constraint { kind, json_flags, text, reserved }
        bn_embedding_params { pooling, normalization, reserved }
        bn_trace { trace_id, parent_id }
        bn_logprob { token, logprob }
        bn_latency { p50_ns, p90_ns, p99_ns, count, sum_ns, buckets }
        bn_lengths { count, sum, buckets }
        bn_logit_bias { token, bias }
        bn_tool_call { index, text_before, id, name, arguments }
        bn_question { kind, flags, name, text, options, options_count }
        bn_picture { data, data_len, width, height, reserved }
        bn_decision { kind, best, first_option, options_count, value, confidence }
        bn_decision_option { logprob, probability }
        bn_logits {
            struct_size, vocab_size, user_data, prompt_tokens, prompt_tokens_count, output_tokens,
            output_tokens_count, logits,
        }
        bn_span {
            struct_size, kind, request, user_data, finish_reason, trace, start_ns, end_ns, tokens,
            cached_tokens,
        }
    }
    facts.add("sizeof(bn_request)", size_of::<bn_request>() as i128);
    facts.add("sizeof(bn_status)", size_of::<bn_status>() as i128);
}

fn constants(facts: &mut Facts) {
    constants! { facts;
        BN_NUL_TERMINATED BN_OK BN_ERR_INVALID_ARGUMENT BN_ERR_NOT_FOUND BN_ERR_UNSUPPORTED
        BN_ERR_BUSY BN_ERR_QUEUE_FULL BN_ERR_OUT_OF_MEMORY BN_ERR_MEMORY_LIMIT BN_ERR_IO
        BN_ERR_BAD_MODEL BN_ERR_WRONG_MODE BN_ERR_REENTRANT BN_ERR_SHUTDOWN BN_ERR_ENGINE_DEAD
        BN_ERR_FORKED BN_ERR_CANCELLED BN_ERR_TOO_LONG BN_ERR_BUFFER_TOO_SMALL BN_ERR_INTERNAL
        BN_ERR_TIMED_OUT BN_ERR_FINISHED BN_ABI_VERSION BN_VERSION_MAJOR BN_VERSION_MINOR
        BN_VERSION_PATCH BN_ANY BN_NO_LIMIT BN_LOG_OFF BN_LOG_ERROR BN_LOG_WARN BN_LOG_INFO BN_LOG_DEBUG
        BN_WEIGHTS_KEEP BN_WEIGHTS_Q8_0 BN_WEIGHTS_Q4_0 BN_WEIGHTS_TERNARY BN_WEIGHTS_INT8 BN_KV_TYPE_F16
        BN_KV_TYPE_F32 BN_KV_TYPE_INT8 BN_KV_TYPE_INT4 BN_INSTRUCTIONS_AUTO BN_INSTRUCTIONS_SCALAR BN_INSTRUCTIONS_AVX2
        BN_INSTRUCTIONS_AVX_VNNI BN_INSTRUCTIONS_AVX512_VNNI BN_INSTRUCTIONS_NEON
        BN_INSTRUCTIONS_AMX BN_INSTRUCTIONS_AVX512_VBMI BN_INSTRUCTIONS_NEON_I8MM BN_SHUTDOWN_DRAIN
        BN_SHUTDOWN_CANCEL BN_STATE_RUNNING BN_STATE_DRAINING BN_STATE_DRAINED BN_STATE_DEAD
        BN_SAMPLING_FIELD_TEMPERATURE BN_SAMPLING_FIELD_TOP_K BN_SAMPLING_FIELD_TOP_P BN_SAMPLING_FIELD_MIN_P
        BN_SAMPLING_FIELD_REPETITION_PENALTY BN_REQUEST_NO_STREAM BN_REQUEST_POLL_BY_ID
        BN_REQUEST_ECHO_PROMPT BN_REQUEST_IGNORE_EOS BN_REQUEST_LOGPROBS BN_REQUEST_PARSE_SPECIAL
        BN_TASK_GENERATE BN_TASK_EMBED BN_TASK_SCORE BN_TASK_RERANK BN_TASK_DECIDE BN_REQUEST_NO_CACHE
        BN_QUESTION_CHOICE BN_QUESTION_SCORE BN_QUESTION_YES_NO BN_MAX_QUESTIONS BN_MAX_OPTIONS BN_MAX_PICTURES
        BN_REQUEST_DROP_LATE BN_REQUEST_END_UNREAD BN_REQUEST_CHAIN_LOGPROBS BN_REQUEST_PARSE_OUTPUT
        BN_REQUEST_PROMPT_LOGPROBS
        BN_NORMALIZATION_MODEL BN_NORMALIZATION_NONE BN_NORMALIZATION_UNIT BN_MODEL_MTP BN_MODEL_SKIP_ZEROS
        BN_SAMPLER_TEMPERATURE BN_SAMPLER_TOP_N_SIGMA BN_SAMPLER_TOP_K BN_SAMPLER_TYPICAL_P BN_SAMPLER_TOP_P
        BN_SAMPLER_MIN_P BN_SAMPLER_XTC
        BN_SPECULATION_DEFAULT BN_SPECULATION_OFF BN_SPECULATION_LOOKUP BN_SPECULATION_DRAFT BN_MAX_DRAFT_TOKENS
        BN_CONSTRAINT_NONE BN_CONSTRAINT_JSON_SCHEMA BN_CONSTRAINT_JSON_OBJECT BN_CONSTRAINT_REGEX
        BN_CONSTRAINT_LARK BN_CONSTRAINT_GBNF BN_JSON_COMPACT BN_JSON_FLEXIBLE BN_JSON_KNOWN_FORMATS BN_JSON_CLOSED
        BN_PRIORITY_DEFAULT
        BN_PRIORITY_MAX BN_POOLING_MODEL BN_POOLING_LAST BN_POOLING_MEAN
        BN_POOLING_FIRST BN_MAX_STOPS BN_KV_EVENT_STORED BN_KV_EVENT_REMOVED BN_KV_EVENT_CLEARED BN_HASH_XXH64 BN_STAGE_QUEUED BN_STAGE_RUNNING BN_STAGE_FINISHED
        BN_EVENT_TOKENS BN_EVENT_COMPLETED BN_FINISH_NONE BN_FINISH_STOP BN_FINISH_STOP_STRING
        BN_FINISH_LENGTH BN_FINISH_CANCELLED BN_FINISH_TIMED_OUT BN_FINISH_FAILED
        BN_FINISH_EMBEDDING BN_TOKENIZE_ADD_SPECIAL BN_TOKENIZE_PARSE_SPECIAL
        BN_LATENCY_BUCKETS BN_LENGTH_BUCKETS BN_SPAN_QUEUED BN_SPAN_PREFILL BN_SPAN_DECODE
    }
}

/// The layout of the header's types by `cc` (or `$CC`).
fn seen_from_c(program: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let at = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (at.join("layout.c"), at.join("layout"));
    std::fs::write(
        &source,
        format!(
            "#include <stdio.h>\n#include \"bn_engine.h\"\nint main(void) {{\n{program}    return 0;\n}}\n"
        ),
    )
    .unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let compiled = Command::new(&cc)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg("-I")
        .arg(root.join("include"))
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output()
        .unwrap_or_else(|e| panic!("this test needs a C compiler, and `{cc}` does not start: {e}"));
    assert!(compiled.status.success(), "{cc}: {}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(&binary).output().unwrap();
    assert!(run.status.success());
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn c_sees_the_layout_that_rust_has() {
    let mut facts = Facts::default();
    structs(&mut facts);
    constants(&mut facts);
    let seen = seen_from_c(&facts.program);
    for (seen, expected) in seen.lines().zip(facts.expected.lines()) {
        assert_eq!(seen, expected);
    }
    assert_eq!(seen, facts.expected);
}

#[test]
fn every_constant_of_the_header_is_compared() {
    let mut facts = Facts::default();
    constants(&mut facts);
    for line in include_str!("../../include/bn_engine.h").lines() {
        if let Some(rest) = line.strip_prefix("#define BN_")
            && let Some((name, _)) = rest.split_once(' ')
            && !name.contains('(')
        {
            let name = format!("BN_{name} ");
            assert!(facts.expected.lines().any(|l| l.starts_with(&name)), "{name}is not compared");
        }
    }
}
