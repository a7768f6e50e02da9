//! Fields that clients of other servers send, and that are ignored here.

/// Fields on which no answer here depends, on any route: side effects of other servers, and their loading of models.
pub const PASSED_OVER: &[&str] = &[
    // Fields of all APIs.
    "metadata",
    "model", // read before the others
    "user",
    // Fields of OpenAI.
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
    // Fields of Anthropic.
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
    // Fields of Ollama.
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
