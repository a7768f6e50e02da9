"""Makes tests/golden/models/: tiny random models as Hugging Face folders, and what transformers computes with them.

  python architectures.py [case ...]     default: every case

Each folder is written first, then loaded with `from_pretrained` and computed in f32 with eager attention, so the
reference reads the same files as we do. Tokens are drawn as in make_golden.py, well-conditioned; no router is close
to choosing another expert. Beside each case stands what the error would be if the feature that it is there for were
ignored ("ignored" in `noise`): a case that can't tell has no place here.
"""

import os
import sys

from cases import F32_TOLERANCE, LENGTHS, MODELS, VERSIONS, VOCAB, error, record

import bitnet_folders
import torch
from delta_nets import ATTENTION, DELTA_NET, EXPERTS, by_definition, separate_projections, tiled_keys
from folders import (
    GEMMA_ROPE,
    PLAIN_YARN,
    gemma_style,
    interval_style,
    load,
    nested_style,
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
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)


EXPERT_EDGE = 2e-5  # how much likelier a row's last expert is than the best of the others


def watch_experts(m):
    """A list of the last row's distances, which each router appends to as the model runs."""
    edges = []

    def hook(_, args, output):
        best = output[0][-1].softmax(-1).topk(output[2].shape[-1] + 1).values
        edges.append(float(best[-2] - best[-1]))

    for x in m.modules():
        if type(x).__name__.endswith("TopKRouter"):
            x.register_forward_hook(hook)
    return edges


def folder_case(
    name,
    cls,
    config,
    seed,
    covers,
    store="bf16",
    style=old_style,
    ignored=None,
    lengths=LENGTHS,
    auto=AutoModelForCausalLM,
    **how,
):
    folder = write(name, randomize(cls(config), seed), store, style, **how)
    m = load(folder, auto)
    assert type(m) is cls, (name, type(m))
    edges = watch_experts(m)

    def run(ids):
        edges.clear()
        return run_hf(m, ids), float(min(edges, default=1.0) > EXPERT_EDGE)

    sequences = draw(run, VOCAB, lengths, seed)
    rows = run_all(m, sequences)
    want, got = config.get_text_config(), m.config.get_text_config()
    read = {k: v for k, v in got.rope_parameters.items() if k != "type"}
    assert read == want.rope_parameters, (name, read)
    assert getattr(got, "layer_types", None) == getattr(want, "layer_types", None), name
    assert auto is AutoModelForCausalLM or error(run_all(load(folder), sequences), rows) == 0.0, name
    noise = {"f64": error(rows, run_all(by_definition(load(folder).double()), sequences))}
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
    """Misreads Gemma's norms as Llama's: by the weight, not by 1 + weight."""
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
    """Misreads OLMo 2's norms of whole rows as Qwen 3's norms of each head."""
    for layer in m.model.layers:
        attention = layer.self_attn
        for norm in (attention.q_norm, attention.k_norm):
            norm.forward = lambda x, w=norm.weight, n=attention.head_dim, eps=norm.variance_epsilon: (
                torch.nn.functional.rms_norm(x.unflatten(-1, (-1, n)), (n,), eps=eps).flatten(-2) * w
            )
    return m


def first_experts(m):
    """Misroutes: each row takes the first experts."""
    for layer in m.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.weight.data.zero_()
    return m


def window_unused(config):
    """config.json as Qwen2.5 publishes it: with a window, which use_sliding_window turns off."""
    old_style(config)
    config |= {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 0}
    config.pop("layer_types", None)


def family(name, cls, config_cls, seed, covers, store="bf16", style=old_style, ignored=None, **more):
    return lambda: folder_case(name, cls, small(config_cls, **more), seed, covers, store, style, ignored)


OTHERS = {
    "mistral-window": family(
        "mistral-window",
        MistralForCausalLM,
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
    "qwen3moe-window": family(
        "qwen3moe-window",
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        602,
        "use_sliding_window: windows of 12 in both layers",
        ignored=[{"sliding_window": None}],
        hidden=32,
        layers=2,
        eps=1e-6,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        norm_topk_prob=True,
        use_sliding_window=True,
        sliding_window=12,
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
    "granite": family(
        "granite",
        GraniteForCausalLM,
        GraniteConfig,
        48,
        "factors on embedding, updates, logits and scores",
        ignored=[
            {"embedding_multiplier": 1.0},
            {"residual_multiplier": 1.0},
            {"logits_scaling": 1.0},
            {"attention_multiplier": 0.25},
        ],
        hidden=32,
        layers=2,
        tied=True,
        embedding_multiplier=6.0,
        residual_multiplier=0.22,
        logits_scaling=8.0,
        attention_multiplier=0.4,
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

LINEAR, FULL = "linear_attention", "full_attention"
LONG = (*LENGTHS, 150)  # across the reference's chunks of 64 tokens
WHOLE_ROPE = {"rope_parameters": rope(partial_rotary_factor=1.0)}


def mrope(factor, section):
    """Partial rope. Its sections are for the three positions of image parts, which are equal for text."""
    return {
        "rope_parameters": rope(partial_rotary_factor=factor, mrope_section=section, mrope_interleaved=True)
    }


def delta_heads(key_heads, value_heads, key_dim, value_dim, kernel=4):
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": value_dim,
        "linear_conv_kernel_dim": kernel,
    }


def hybrid(name, cls, config_cls, seed, covers, style=lambda c: None, ignored=(), lengths=LENGTHS, **more):
    ignored = [*DELTA_NET, *ATTENTION, WHOLE_ROPE, *ignored]
    config = {"eps": 1e-6} | more
    return lambda: folder_case(
        name, cls, small(config_cls, **config), seed, covers, "bf16", style, ignored, lengths=lengths
    )


VISION = {
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_heads": 2,
    "patch_size": 2,
    "spatial_merge_size": 1,
    "temporal_patch_size": 1,
    "out_hidden_size": 32,
    "num_position_embeddings": 4,
}


def nested():
    """The text model inside a model of text and images, as all of Qwen 3.5 are published."""
    text = small(
        Qwen3_5TextConfig,
        layers=3,
        hidden=32,
        heads=2,
        kv_heads=1,
        eps=1e-6,
        tied=True,
        context=256,
        layer_types=[LINEAR, LINEAR, FULL],
        **delta_heads(2, 2, 32, 32, kernel=3),
        **mrope(0.5, [2, 1, 1]),
    )
    g = torch.Generator().manual_seed(92)
    folder_case(
        "qwen35-tied",
        Qwen3_5ForConditionalGeneration,
        Qwen3_5Config(text_config=text.to_dict(), vision_config=VISION, tie_word_embeddings=True),
        92,
        "text_config; tensors of a vision tower and of multi-token prediction to leave alone; A_log and gated norms in "
        "f32; DeltaNet with a value head for each key head, convolution of 3",
        style=nested_style,
        ignored=[*DELTA_NET, *ATTENTION, WHOLE_ROPE],
        lengths=LONG,
        auto=AutoModelForImageTextToText,
        in_f32=("linear_attn.A_log", "linear_attn.norm.weight"),
        more={
            "mtp.fc.weight": torch.randn(32, 64, generator=g),
            "mtp.layers.0.input_layernorm.weight": torch.randn(32, generator=g),
            "mtp.norm.weight": torch.randn(32, generator=g),
        },
    )


def nested_experts():
    text = small(
        Qwen3_5MoeTextConfig,
        layers=2,
        hidden=32,
        ffn=None,
        eps=1e-6,
        layer_types=[LINEAR, FULL],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        **delta_heads(2, 4, 16, 16),
        **mrope(0.5, [2, 1, 1]),
    )
    folder_case(
        "qwen35moe-fused",
        Qwen3_5MoeForConditionalGeneration,
        Qwen3_5MoeConfig(text_config=text.to_dict(), vision_config=VISION),
        95,
        "text_config; the experts of a layer in two tensors of three dimensions",
        style=nested_style,
        ignored=[*DELTA_NET, *ATTENTION, *EXPERTS, WHOLE_ROPE, tiled_keys, first_experts],
        auto=AutoModelForImageTextToText,
        in_f32=("linear_attn.A_log", "linear_attn.norm.weight"),
        fuse=True,
    )


HYBRIDS = {
    "qwen35": hybrid(
        "qwen35",
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig,
        91,
        "gated DeltaNet in each first of two layers, 3 value heads for each key head, gated attention in the other; "
        "rope of a quarter of a head; norms by 1 + weight",
        ignored=[tiled_keys],
        lengths=LONG,
        layers=4,
        hidden=48,
        ffn=96,
        heads=3,
        kv_heads=1,
        head_dim=32,
        context=256,
        layer_types=[LINEAR, FULL] * 2,
        **delta_heads(2, 6, 16, 24),
        **mrope(0.25, [2, 1, 1]),
    ),
    "qwen35-bias": lambda: folder_case(
        "qwen35-bias",
        Qwen3_5ForCausalLM,
        small(
            Qwen3_5TextConfig,
            layers=2,
            hidden=32,
            heads=2,
            kv_heads=1,
            eps=1e-6,
            attention_bias=True,
            layer_types=[LINEAR, FULL],
            **delta_heads(1, 2, 16, 16),
            **mrope(0.5, [2, 1, 1]),
        ),
        601,
        "attention_bias: biases of attention, none of gated DeltaNet",
        style=lambda c: None,
        ignored=[no_biases],
    ),
    "qwen35-tied": nested,
    "qwen35moe-fused": nested_experts,
    "qwen35moe": hybrid(
        "qwen35moe",
        Qwen3_5MoeForCausalLM,
        Qwen3_5MoeTextConfig,
        93,
        "6 experts of 40, the best 2 of each row, renormalized; a shared expert of 56 by the sigmoid of its gate",
        ignored=[tiled_keys, *EXPERTS, first_experts, {"num_experts_per_tok": 1}],
        layers=4,
        hidden=32,
        ffn=None,
        layer_types=[LINEAR, LINEAR, LINEAR, FULL],
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=56,
        **delta_heads(2, 4, 16, 16),
        **mrope(0.5, [2, 1, 1]),
    ),
    "qwen3next": hybrid(
        "qwen3next",
        Qwen3NextForCausalLM,
        Qwen3NextConfig,
        94,
        "in_proj_qkvz and in_proj_ba with rows for each key head; full_attention_interval 3; experts as Qwen 3.5's",
        style=interval_style,
        ignored=[
            tiled_keys,
            separate_projections,
            *EXPERTS,
            first_experts,
            {"num_experts_per_tok": 1},
            {"norm_topk_prob": False},
        ],
        layers=4,
        hidden=32,
        layer_types=[LINEAR, LINEAR, FULL, LINEAR],
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=56,
        norm_topk_prob=True,
        rope_parameters=rope(partial_rotary_factor=0.5),
        **delta_heads(2, 4, 16, 24),
    ),
}

CASES = LLAMA | OTHERS | GEMMA | HYBRIDS | bitnet_folders.CASES

if __name__ == "__main__":
    os.makedirs(MODELS, exist_ok=True)
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
