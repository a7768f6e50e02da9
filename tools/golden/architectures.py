"""Makes tests/golden/models/: tiny random models as Hugging Face folders, and what transformers computes with them.

  python architectures.py [case ...]     default: every case

Each folder is written first, then loaded with `from_pretrained` and computed in f32 with eager attention, so the
reference reads the same files as we do. Tokens are drawn as in make_golden.py, well-conditioned. Beside each case
stands what the error would be if the feature that it is there for were ignored ("ignored" in `noise`): a case that
can't tell has no place here.
"""

import os
import sys

from cases import F32_TOLERANCE, LENGTHS, MODELS, VERSIONS, VOCAB, error, record

import bitnet_folders
import torch
from folders import (
    GEMMA_ROPE,
    PLAIN_YARN,
    gemma_style,
    load,
    old_gemma_style,
    old_style,
    oldest_style,
    randomize,
    rope,
    run_all,
    small,
    write,
)
from make_golden import draw, run_hf
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)


def folder_case(name, cls, config, seed, covers, store="bf16", style=old_style, ignored=None, **how):
    folder = write(name, randomize(cls(config), seed), store, style, **how)
    m = load(folder)
    sequences = draw(lambda ids: (run_hf(m, ids), 1.0), VOCAB, LENGTHS, seed)
    rows = run_all(m, sequences)
    read = {k: v for k, v in m.config.rope_parameters.items() if k != "type"}
    assert read == config.rope_parameters, (name, read)
    assert getattr(m.config, "layer_types", None) == getattr(config, "layer_types", None), name
    noise = {"f64": error(rows, run_all(load(folder).double(), sequences))}
    if ignored:
        others = [how(load(folder)) if callable(how) else load(folder, **how) for how in ignored]
        noise["ignored"] = min(error(run_all(other, sequences), rows) for other in others)
        assert noise["ignored"] > 0.02, (name, noise)
    record(
        name,
        folder,
        config.model_type,
        f"hf-{store}",
        covers,
        sequences,
        rows,
        f"transformers {cls.__name__} loaded from the folder, f32, eager attention ({VERSIONS})",
        "transformers",
        F32_TOLERANCE,
        noise=noise,
    )


def no_biases(m):
    with torch.no_grad():
        for name, p in m.named_parameters():
            if name.endswith("bias"):
                p.zero_()
    return m


def no_qk_norms(m):
    for layer in m.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()
    return m


def llama(
    name, seed, covers, store="bf16", style=old_style, ignored=None, shard=None, generation=None, **more
):
    return lambda: folder_case(
        name,
        LlamaForCausalLM,
        small(LlamaConfig, **more),
        seed,
        covers,
        store,
        style,
        ignored,
        shard=shard,
        generation=generation,
    )


def without_rope_scaling(theta=10000.0):
    return {"rope_parameters": rope(theta=theta)}


LLAMA = {
    "llama-f32": llama("llama-f32", 21, "GQA 4/2, untied head, default rope, f32", hidden=32, store="f32"),
    "llama-bf16": llama(
        "llama-bf16",
        22,
        "bf16, two layers; config.json as transformers 5 writes it",
        hidden=32,
        layers=2,
        style=lambda c: None,
    ),
    "llama-f16": llama(
        "llama-f16",
        23,
        "f16; two end-of-sequence ids in generation_config.json",
        hidden=32,
        store="f16",
        generation={"eos_token_id": [2, 3]},
    ),
    "llama-sharded": llama(
        "llama-sharded", 24, "model.safetensors.index.json and two shards", hidden=32, layers=2, shard="40KB"
    ),
    "llama-mha": llama("llama-mha", 25, "as many KV heads as heads", kv_heads=4, hidden=32, ffn=96),
    "llama-mqa": llama(
        "llama-mqa",
        26,
        "one KV head; head_dim is not hidden_size / heads",
        kv_heads=1,
        hidden=32,
        head_dim=32,
        ignored=[{"rope_parameters": rope(theta=100.0)}],
    ),
    "llama-tied": llama("llama-tied", 27, "tie_word_embeddings", tied=True, hidden=32),
    "llama-bias": llama(
        "llama-bias",
        28,
        "attention_bias and mlp_bias: all seven projections",
        hidden=32,
        attention_bias=True,
        mlp_bias=True,
        ignored=[no_biases],
    ),
    "llama-linear": llama(
        "llama-linear",
        29,
        "rope scaling linear, named by `type` alone",
        style=oldest_style,
        hidden=32,
        ignored=[without_rope_scaling()],
        rope_parameters=rope("linear", factor=4.0),
    ),
    "llama-llama3": llama(
        "llama-llama3",
        30,
        "rope scaling llama3: unscaled, blended and scaled frequencies",
        ignored=[without_rope_scaling()],
        hidden=32,
        rope_parameters=rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama-yarn": llama(
        "llama-yarn",
        31,
        "rope scaling yarn with its defaults",
        ignored=[without_rope_scaling(100.0)],
        hidden=32,
        rope_parameters=rope("yarn", 100.0, factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-yarn-mscale": llama(
        "llama-yarn-mscale",
        32,
        "rope scaling yarn: mscale and mscale_all_dim, its own betas",
        ignored=[{"rope_parameters": PLAIN_YARN}],
        hidden=32,
        rope_parameters=rope(
            "yarn",
            100.0,
            factor=4.0,
            original_max_position_embeddings=32,
            mscale=1.0,
            mscale_all_dim=0.5,
            beta_fast=4.0,
            beta_slow=0.5,
        ),
    ),
    "llama-yarn-factor": llama(
        "llama-yarn-factor",
        33,
        "rope scaling yarn: attention_factor; transformers 5 config.json",
        ignored=[{"rope_parameters": PLAIN_YARN}],
        style=lambda c: None,
        hidden=32,
        rope_parameters=rope(
            "yarn", 100.0, factor=4.0, original_max_position_embeddings=32, attention_factor=1.4
        ),
    ),
}


def plain_norms(m):
    """Gemma's norms as Llama's: by the weight, not by 1 + weight."""
    for name, p in m.named_parameters():
        if p.ndim == 1:
            p.data -= 1.0
    return m


def without_second_norms(m):
    for layer in m.model.layers:
        layer.post_attention_layernorm = layer.post_feedforward_layernorm = torch.nn.Identity()
    return m


def without_embedding_scale(m):
    m.model.embed_tokens.embed_scale.fill_(1.0)
    return m


def norms_of_heads(m):
    """OLMo 2's norms of whole rows as Qwen 3's, of each head by itself."""
    for layer in m.model.layers:
        attention = layer.self_attn
        for norm in (attention.q_norm, attention.k_norm):
            norm.forward = lambda x, w=norm.weight, n=attention.head_dim, eps=norm.variance_epsilon: (
                torch.nn.functional.rms_norm(x.unflatten(-1, (-1, n)), (n,), eps=eps).flatten(-2) * w
            )
    return m


def first_experts(m):
    """Each row takes the experts that come first."""
    for layer in m.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.weight.data.zero_()
    return m


def window_unused(config):
    """As Qwen2.5 is published: a window is named, and use_sliding_window says that there is none."""
    old_style(config)
    config |= {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 0}
    config.pop("layer_types", None)


def family(name, cls, config_cls, seed, covers, store="bf16", style=old_style, ignored=None, **more):
    return lambda: folder_case(name, cls, small(config_cls, **more), seed, covers, store, style, ignored)


OTHERS = {
    "mistral-window": family(
        "mistral-window",
        MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
        MistralConfig,
        41,
        "sliding_window 16: a token sees itself and 15 before it, in each of two layers",
        sliding_window=16,
        hidden=32,
        layers=2,
        ignored=[{"sliding_window": None}],
    ),
    "mistral-plain": family(
        "mistral-plain",
        MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
        MistralConfig,
        42,
        "sliding_window null",
        sliding_window=None,
        hidden=32,
        tied=True,
    ),
    "qwen2": family(
        "qwen2",
        Qwen2ForCausalLM,
        Qwen2Config,
        43,
        "q, k and v biases; a window that use_sliding_window turns off",
        style=window_unused,
        ignored=[no_biases],
        hidden=32,
        heads=2,
        kv_heads=1,
        tied=True,
        eps=1e-6,
    ),
    "qwen3": family(
        "qwen3",
        Qwen3ForCausalLM,
        Qwen3Config,
        44,
        "q and k norms of each head before rope; head_dim is not hidden_size / heads",
        ignored=[no_qk_norms],
        hidden=32,
        head_dim=32,
        eps=1e-6,
        tied=True,
    ),
    "qwen3moe": family(
        "qwen3moe",
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        46,
        "7 experts of 24, the best 3 of each row, renormalized",
        ignored=[first_experts, {"norm_topk_prob": False}, {"num_experts_per_tok": 2}],
        hidden=32,
        layers=2,
        eps=1e-6,
        num_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        norm_topk_prob=True,
    ),
    "qwen3moe-mixed": family(
        "qwen3moe-mixed",
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        47,
        "a layer without experts between two with 5; weights as the softmax gives them",
        ignored=[first_experts, {"norm_topk_prob": True}],
        hidden=32,
        layers=3,
        eps=1e-6,
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        mlp_only_layers=[1],
    ),
    "olmo2": family(
        "olmo2",
        Olmo2ForCausalLM,
        Olmo2Config,
        45,
        "norms after attention and feed-forward, none before; q and k norms of whole rows",
        ignored=[no_qk_norms, norms_of_heads, without_second_norms],
        hidden=32,
        layers=2,
    ),
}


def gemma3(name, seed, covers, ignored=(), style=gemma_style, **more):
    config = {
        "layers": 2,
        "hidden": 32,
        "kv_heads": 1,
        "eps": 1e-6,
        "tied": True,
        "rope_parameters": GEMMA_ROPE,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
        "hidden_activation": "gelu_pytorch_tanh",
    } | more
    return family(
        name, Gemma3ForCausalLM, Gemma3TextConfig, seed, covers, style=style, ignored=ignored, **config
    )


same_rope = {"rope_parameters": {"sliding_attention": rope(), "full_attention": rope()}}
GEMMA = {
    "gemma3": gemma3(
        "gemma3",
        61,
        "window 16 in the first of two layers, its own rope base; q and k norms; four norms a layer by "
        "1 + weight; embeddings times sqrt(hidden_size); GELU (tanh)",
        [
            {"sliding_window": 64},
            same_rope,
            {"hidden_activation": "silu"},
            no_qk_norms,
            plain_norms,
            without_second_norms,
            without_embedding_scale,
        ],
        query_pre_attn_scalar=16,
    ),
    "gemma3-scale": gemma3(
        "gemma3-scale",
        62,
        "query_pre_attn_scalar that is not head_dim; sliding_window_pattern",
        [{"query_pre_attn_scalar": 32}],
        style=old_gemma_style,
        head_dim=32,
        query_pre_attn_scalar=72,
    ),
}

CASES = LLAMA | OTHERS | GEMMA | bitnet_folders.CASES

if __name__ == "__main__":
    os.makedirs(MODELS, exist_ok=True)
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
