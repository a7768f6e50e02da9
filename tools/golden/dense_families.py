"""Folders of dense families, one or two each, for architectures.py.

  python dense_families.py [case ...]     default: every case
"""

import sys

from cases import F32_TOLERANCE, LENGTHS, VERSIONS, VOCAB, error, record

from architectures import family, folder_case, no_biases, no_qk_norms, without_second_norms

import torch
from folders import IDS, load, old_style, randomize, rope, run_all, small, write
from make_golden import draw, run_hf
from transformers import (
    AutoModelForImageTextToText,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Olmo3Config,
    Olmo3ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

SLIDING, FULL = "sliding_attention", "full_attention"
HYBRID = [SLIDING] * 3 + [FULL]


def other_pairs(m):
    """Reorders rows of q and k: the elements of a pair are half the rotated width apart, not side by side."""
    for layer in m.model.layers:
        attention = layer.self_attn
        dims = 2 * len(m.model.rotary_emb.inv_freq)
        order = torch.arange(dims).view(2, -1).T.flatten()
        order = torch.cat([order, torch.arange(dims, attention.head_dim)])
        for p in (attention.q_proj.weight, attention.k_proj.weight, attention.q_proj.bias, attention.k_proj.bias):
            if p is not None:
                heads = p.data.view(-1, attention.head_dim, *p.shape[1:])
                p.data = heads[:, order].reshape(p.shape)
    return m


def two_ropes_style(config):
    """config.json of OLMo 3 as published: its rope scaling applies to layers without a window."""
    ropes = config.pop("rope_parameters")
    config["rope_parameters"] = ropes[FULL]
    old_style(config)


def scaled_windows(m):
    """Rotates windowed layers like the others."""
    ropes = m.model.rotary_emb
    ropes.sliding_attention_inv_freq = ropes.full_attention_inv_freq
    ropes.sliding_attention_attention_scaling = ropes.full_attention_attention_scaling
    return m


def rotates_everywhere(m):
    """Rotates all layers; some have a window."""
    for layer in m.model.layers:
        layer.self_attn.sliding_window = layer.self_attn.sliding_window or 1000
        layer.self_attn.is_sliding = True
    return m


def partial_style(config):
    """config.json of GLM-4 and Phi-4-mini as published: partial_rotary_factor is outside rope_parameters."""
    config["partial_rotary_factor"] = config["rope_parameters"].pop("partial_rotary_factor")
    config["rope_parameters"].pop("original_max_position_embeddings", None)
    old_style(config)


def without_norms_of_updates(m):
    for layer in m.model.layers:
        layer.post_self_attn_layernorm = layer.post_mlp_layernorm = torch.nn.Identity()
    return m


def without_head_norms(m):
    for layer in m.model.layers:
        layer.self_attn.query_layernorm = layer.self_attn.key_layernorm = torch.nn.Identity()
    return m


def norms_first(m):
    """Norms heads before rotating. Equal weights within a pair would hide the difference."""
    for layer in m.model.layers:
        attention = layer.self_attn
        norms = attention.query_layernorm, attention.key_layernorm
        for norm, product in zip(norms, (attention.q_proj, attention.k_proj)):
            heads = lambda _, args, y, norm=norm, n=attention.head_dim: norm.weight * torch.nn.functional.rms_norm(
                y.unflatten(-1, (-1, n)), (n,), eps=norm.variance_epsilon
            )
            product.register_forward_hook(lambda *args, heads=heads: heads(*args).flatten(-2))
        attention.query_layernorm = attention.key_layernorm = torch.nn.Identity()
    return m


def plain_norms(m):
    """Computes LayerNorm as RMSNorm, with its bias."""
    for x in m.modules():
        if isinstance(x, torch.nn.LayerNorm):
            x.forward = lambda y, x=x: (
                torch.nn.functional.rms_norm(y, x.normalized_shape, x.weight, x.eps) + x.bias
            )
    return m


def gemma2_style(config):
    """config.json of Gemma 2 as published, before `layer_types`."""
    old_style(config)
    del config["layer_types"]


def starcoder2():
    config = Starcoder2Config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        rope_parameters=rope(),
        **IDS,
    )
    folder_case(
        "starcoder2",
        Starcoder2ForCausalLM,
        config,
        213,
        "LayerNorm, a feed-forward of GELU (tanh) without gate, biases everywhere",
        ignored=[no_biases, plain_norms, {"hidden_act": "relu"}],
    )


def long_phi3():
    long = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.1],
        "long_factor": [1.2, 2.0, 3.0, 5.0, 8.0, 12.0],
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 16,
    }
    config = small(
        Phi3Config,
        hidden=32,
        heads=2,
        kv_heads=1,
        layers=2,
        tied=True,
        original_max_position_embeddings=16,
        rope_parameters=long,
    )
    swapped = long | {"long_factor": long["short_factor"]}
    folder_case(
        "phi3-long",
        Phi3ForCausalLM,
        config,
        208,
        "Phi-4-mini: longrope above its original context, of three quarters of a head",
        style=partial_style,
        ignored=[{"rope_parameters": swapped}, {"rope_parameters": rope(partial_rotary_factor=0.75)}],
        lengths=(64, 17, 33),
    )


def ministral_with_images():
    """Ministral 3 as published: a model of text and images, run on text."""
    name, seed = "ministral3-images", 214
    text = small(Ministral3Config, hidden=32, rope_parameters=MINISTRAL_ROPE)
    vision = {"model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 1, "head_dim": 8, "patch_size": 2, "image_size": 4}
    config = Mistral3Config(text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=False)
    folder = write(name, randomize(Mistral3ForConditionalGeneration(config), seed), "bf16", lambda c: None)
    m = load(folder, AutoModelForImageTextToText)
    sequences = draw(lambda ids: (run_hf(m, ids), 1.0), VOCAB, LENGTHS, seed)
    rows = run_all(m, sequences)
    record(
        name,
        folder,
        "mistral3",
        "hf-bf16",
        "text_config; tensors of a vision tower and of its projector to leave alone",
        sequences,
        rows,
        f"transformers {type(m).__name__} loaded from the folder, f32, eager attention ({VERSIONS})",
        "transformers",
        F32_TOLERANCE,
        noise={"f64": error(rows, run_all(m.double(), sequences))},
    )


GROWING = rope(llama_4_scaling_beta=0.8, original_max_position_embeddings=16)
MINISTRAL_ROPE = rope(
    "yarn",
    100.0,
    factor=8.0,
    original_max_position_embeddings=16,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.3,
)
YARN = rope("yarn", 500000.0, factor=4.0, original_max_position_embeddings=32, attention_factor=1.138629436)
CASES = {
    "seed-oss": family(
        "seed-oss",
        SeedOssForCausalLM,
        SeedOssConfig,
        201,
        "biases of q, k and v without a key that asks for them, none of the output",
        ignored=[no_biases],
        hidden=32,
    ),
    "ernie4_5": family(
        "ernie4_5",
        Ernie4_5ForCausalLM,
        Ernie4_5Config,
        202,
        "pairs side by side in the folder too",
        ignored=[other_pairs],
        hidden=32,
        tied=True,
    ),
    "smollm3": family(
        "smollm3",
        SmolLM3ForCausalLM,
        SmolLM3Config,
        203,
        "no_rope_layers: the last of four layers does not rotate",
        ignored=[{"no_rope_layers": [1] * 4}, {"no_rope_layers": [0, 1, 1, 1]}],
        hidden=32,
        layers=4,
        ffn=32,
        tied=True,
    ),
    "olmo3": family(
        "olmo3",
        Olmo3ForCausalLM,
        Olmo3Config,
        204,
        "OLMo 2 with windows of 16 in three of four layers, which rotate without the YaRN of the fourth",
        style=two_ropes_style,
        ignored=[{"sliding_window": 64}, scaled_windows, no_qk_norms, without_second_norms],
        hidden=32,
        heads=2,
        layers=4,
        ffn=32,
        sliding_window=16,
        rope_parameters={FULL: YARN, SLIDING: rope(theta=500000.0)},
    ),
    "exaone4": family(
        "exaone4",
        Exaone4ForCausalLM,
        Exaone4Config,
        205,
        "q and k norms of each head, norms after attention and feed-forward; windows of 16 in three of four layers, the "
        "fourth does not rotate",
        ignored=[{"sliding_window": 64}, rotates_everywhere, no_qk_norms, without_second_norms],
        hidden=32,
        layers=4,
        ffn=32,
        sliding_window=16,
    ),
    "exaone4-plain": family(
        "exaone4-plain",
        Exaone4ForCausalLM,
        Exaone4Config,
        206,
        "sliding_window null: all layers see everything and rotate",
        ignored=[no_qk_norms, without_second_norms, {"sliding_window": 64}],
        hidden=32,
        layers=2,
        sliding_window=None,
        heads=2,
        kv_heads=1,
        layer_types=[FULL] * 2,
        tied=True,
    ),
    "glm4": family(
        "glm4",
        Glm4ForCausalLM,
        Glm4Config,
        207,
        "half of a head rotates, pairs side by side; gate and up in one matrix; norms before and after attention and "
        "feed-forward; biases of q, k and v",
        style=partial_style,
        ignored=[no_biases, other_pairs, without_norms_of_updates, {"rope_parameters": rope(partial_rotary_factor=1.0)}],
        hidden=32,
        layers=2,
        eps=1e-6,
        rope_parameters=rope(partial_rotary_factor=0.5),
    ),
    "phi3-long": long_phi3,
    "phi3-window": family(
        "phi3-window",
        Phi3ForCausalLM,
        Phi3Config,
        209,
        "q, k and v in one matrix, gate and up in another; windows of 16 in all layers",
        ignored=[{"sliding_window": None}],
        hidden=32,
        heads=2,
        kv_heads=2,
        layers=2,
        sliding_window=16,
    ),
    "ministral3": family(
        "ministral3",
        Ministral3ForCausalLM,
        Ministral3Config,
        210,
        "YaRN with mscale_all_dim; queries that grow with their position",
        style=lambda c: None,
        ignored=[{"rope_parameters": MINISTRAL_ROPE | {"llama_4_scaling_beta": 0.0}}, {"rope_parameters": MINISTRAL_ROPE | {"mscale_all_dim": 0.0}}],
        hidden=32,
        layers=2,
        rope_parameters=MINISTRAL_ROPE,
    ),
    "ministral3-plain": family(
        "ministral3-plain",
        Ministral3ForCausalLM,
        Ministral3Config,
        603,
        "queries that grow with their position beside a rotation that is not scaled",
        style=lambda c: None,
        ignored=[{"rope_parameters": GROWING | {"llama_4_scaling_beta": 0.0}}],
        hidden=32,
        rope_parameters=GROWING,
    ),
    "ministral3-images": ministral_with_images,
    "hunyuan": family(
        "hunyuan",
        HunYuanDenseV1ForCausalLM,
        HunYuanDenseV1Config,
        211,
        "q and k normed after their rotation; rope of kind dynamic with alpha, which stretches the base",
        ignored=[without_head_norms, norms_first, {"rope_parameters": rope()}],
        hidden=32,
        layers=2,
        tied=True,
        context=32768,
        rope_parameters=rope("dynamic", factor=1.0, alpha=1000.0),
    ),
    "gemma2": family(
        "gemma2",
        Gemma2ForCausalLM,
        Gemma2Config,
        212,
        "scores capped at 5, logits at 8; windows of 16 in the first of two layers, which rotate alike; four norms a layer "
        "by 1 + weight",
        style=gemma2_style,
        ignored=[
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"sliding_window": 64},
            without_second_norms,
        ],
        hidden=32,
        kv_heads=1,
        layers=2,
        eps=1e-6,
        tied=True,
        sliding_window=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0,
        hidden_activation="gelu_pytorch_tanh",
    ),
    "starcoder2": starcoder2,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
