//! Fields that clients of other servers send.

/// No answer here depends on them, whatever the route: what those servers do beside their answers, or how they load models.
pub const PASSED_OVER: &[&str] = &[
    // All APIs have these.
    "metadata",
    "model", // read before the others
    "user",
    // OpenAI's.
    "background",
    "client_metadata",
    "context_management",
    "include",
    "max_tool_calls",
    "moderation",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "truncation",
    // Anthropic's.
    "anthropic_beta",
    "anthropic_version",
    "betas",
    "cache_control",
    "container",
    "diagnostics",
    "fallbacks",
    "inference_geo",
    "mcp_servers",
    "speed",
    "user_profile_id",
    // Ollama's.
    "options.embedding_only",
    "options.f16_kv",
    "options.logits_all",
    "options.low_vram",
    "options.main_gpu",
    "options.num_batch",
    "options.num_ctx",
    "options.num_gpu",
    "options.num_gqa",
    "options.num_keep",
    "options.num_thread",
    "options.numa",
    "options.penalize_newline",
    "options.rope_frequency_base",
    "options.rope_frequency_scale",
    "options.tfs_z",
    "options.use_mlock",
    "options.use_mmap",
    "options.vocab_only",
    "shift",    // the context is never shifted
    "truncate", // no message is cut off a conversation
];
