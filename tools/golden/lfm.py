"""Folders of LFM2, its mixture of experts and LFM3, for architectures.py; and a GGUF file of LFM3, with the names,
keys and values that llama.cpp reads. Its converter was not at hand.

  python lfm.py [case ...]     default: every case
"""

import json
import os
import sys

from cases import F32_TOLERANCE, MODELS, ROOT, VOCAB, find, record

import architectures
from architectures import folder_case

import gguf
import numpy as np
import torch
from folders import IDS, randomize, rope
from safetensors.torch import load_file
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    Lfm3Config,
    Lfm3ForCausalLM,
)

CONV, FULL, SLIDING = "conv", "full_attention", "sliding_attention"


def convolutions(m):
    return [layer.conv for layer in m.model.layers if hasattr(layer, "conv")]


def without_past(m):
    for conv in convolutions(m):
        conv.conv.weight.data[..., :-1] = 0.0
    return m


def turned(m):
    """Applies the kernel's first element to the current token."""
    for conv in convolutions(m):
        conv.conv.weight.data = conv.conv.weight.flip(-1)
    return m


def other_parts(m):
    """Swaps B and C."""
    for conv in convolutions(m):
        b, c, x = conv.in_proj.weight.data.chunk(3)
        conv.in_proj.weight.data = torch.cat([c, b, x])
    return m


def without_bias(m):
    for layer in m.model.layers:
        if hasattr(layer.feed_forward, "expert_bias"):
            layer.feed_forward.expert_bias.zero_()
    return m


def head_norms(m):
    for layer in m.model.layers:
        if hasattr(layer, "self_attn"):
            layer.self_attn.q_layernorm = layer.self_attn.k_layernorm = torch.nn.Identity()
    return m


IGNORED = [without_past, turned, other_parts, head_norms]


def config(cls, **more):
    return cls(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        rope_parameters=rope(),
        **IDS,
        **more,
    )


def published(config):
    """config.json as LiquidAI publishes it."""
    config["full_attn_idxs"] = [i for i, kind in enumerate(config.pop("layer_types")) if kind == FULL]
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["tie_embedding"] = config.pop("tie_word_embeddings")
    config["block_ff_dim"] = config.pop("intermediate_size")


def with_biases(m, seed):
    """Random weights, and biases that change some choices of experts; the biases are not parameters."""
    g = torch.Generator().manual_seed(seed)
    for layer in randomize(m, seed).model.layers:
        if hasattr(layer.feed_forward, "expert_bias"):
            layer.feed_forward.expert_bias.copy_(torch.rand(layer.feed_forward.expert_bias.shape, generator=g) / 2)
    return m


architectures.randomize = with_biases


def without_gates(m):
    for layer in m.model.layers:
        if hasattr(layer, "self_attn"):
            layer.self_attn.g_proj = None
    return m


def without_qk_norms(m):
    for layer in m.model.layers:
        if hasattr(layer, "self_attn"):
            layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()
    return m


def without_second_norms(m):
    for layer in m.model.layers:
        layer.post_operator_norm = layer.post_ffn_norm = torch.nn.Identity()
    return m


ROPES = {FULL: rope("proportional", 1e4, partial_rotary_factor=0.5), SLIDING: rope(theta=100.0)}
OTHER_ROPES = [{"rope_parameters": ROPES | {FULL: rope(theta=1e4)}}, {"rope_parameters": ROPES | {SLIDING: rope(theta=1e4)}}]


def lfm3():
    folder_case(
        "lfm3",
        Lfm3ForCausalLM,
        Lfm3Config(
            hidden_size=32,
            intermediate_size=48,
            head_dim=16,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=4,
            layer_types=[CONV, FULL, CONV, SLIDING],
            sliding_window=12,
            vocab_size=VOCAB,
            max_position_embeddings=128,
            rope_parameters=ROPES,
            **IDS,
        ),
        331,
        "convolutions of 7 tokens; a window of 12 in one of two layers of attention, and half of the other's pairs do not "
        "rotate; a gate of each head; norms before and after each part",
        style=lambda c: None,
        ignored=[
            without_past,
            turned,
            other_parts,
            without_gates,
            without_qk_norms,
            without_second_norms,
            {"sliding_window": 64},
            *OTHER_ROPES,
        ],
    )
    gguf_of("lfm3")


NAMES = {
    "operator_norm": "attn_norm",
    "post_operator_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "post_ffn_norm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.gate_proj": "attn_gate",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.embedding_norm.weight": "output_norm.weight"}


def gguf_name(name):
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def gguf_of(folder):
    """The folder's values: matrices in BF16, all else in F32. Frequencies of unrotated pairs are divided by 1e30."""
    case, path = find(folder), os.path.join(MODELS, folder + ".gguf")
    with open(os.path.join(MODELS, folder, "config.json")) as f:
        c = json.load(f)
    w = gguf.GGUFWriter(path, "lfm3")
    types, ropes = c["layer_types"], c["rope_parameters"]
    w.add_vocab_size(VOCAB)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(len(types))
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv([0 if kind == CONV else c["num_key_value_heads"] for kind in types])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["norm_eps"])
    w.add_shortconv_l_cache(c["conv_L_cache"])
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern([kind == SLIDING for kind in types])
    w.add_rope_freq_base(ropes[FULL]["rope_theta"])
    w.add_float32("lfm3.rope.freq_base_swa", ropes[SLIDING]["rope_theta"])
    w.add_rope_dimension_count(c["head_dim"])
    pairs = c["head_dim"] // 2
    turning = int(pairs * ropes[FULL]["partial_rotary_factor"])
    w.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32))
    for name, x in load_file(os.path.join(MODELS, folder, "model.safetensors")).items():
        x = x.squeeze(1) if x.ndim == 3 else x
        small = x.ndim == 1 or name.endswith("conv.conv.weight")
        kind = gguf.GGMLQuantizationType.F32 if small else gguf.GGMLQuantizationType.BF16
        data = x.float().numpy()
        w.add_tensor(gguf_name(name), gguf.quants.quantize(data, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    record(
        folder + "-gguf",
        path,
        "lfm3",
        "gguf-bf16",
        "the folder's values under the names that llama.cpp reads",
        case["sequences"],
        rows_of(case),
        case["source"],
        "transformers",
        F32_TOLERANCE,
        values=case["logits"],
    )


def rows_of(case):
    return torch.from_numpy(np.fromfile(os.path.join(ROOT, case["logits"]), "<f4").reshape(-1, case["vocab"]).copy())


CASES = {
    "lfm3": lfm3,
    "lfm2": lambda: folder_case(
        "lfm2",
        Lfm2ForCausalLM,
        config(
            Lfm2Config,
            num_hidden_layers=4,
            layer_types=[CONV, CONV, FULL, CONV],
            intermediate_size=80,
            block_multiple_of=16,
            conv_L_cache=3,
        ),
        311,
        "short convolutions of 3 tokens with two gates, attention in the third of four layers; q and k norms; the width of "
        "feed-forwards is two thirds of the file's number, rounded up",
        style=published,
        ignored=IGNORED,
    ),
    "lfm2-wide": lambda: folder_case(
        "lfm2-wide",
        Lfm2ForCausalLM,
        config(
            Lfm2Config,
            num_hidden_layers=2,
            layer_types=[CONV, FULL],
            intermediate_size=48,
            block_auto_adjust_ff_dim=False,
            conv_L_cache=7,
        ),
        312,
        "a convolution of 7 tokens; layer_types; the file's width",
        style=lambda c: None,
        ignored=IGNORED,
    ),
    "lfm2moe": lambda: folder_case(
        "lfm2moe",
        Lfm2MoeForCausalLM,
        config(
            Lfm2MoeConfig,
            num_hidden_layers=4,
            layer_types=[CONV, FULL, CONV, CONV],
            intermediate_size=48,
            moe_intermediate_size=24,
            num_experts=6,
            num_experts_per_tok=2,
            num_dense_layers=1,
            conv_L_cache=3,
        ),
        313,
        "short convolutions; 6 experts of 24 behind a dense layer, the best 2 of each row by the logistic function of their "
        "logits and a bias, which is no part of their weights",
        style=lambda c: None,
        ignored=[*IGNORED, without_bias, {"norm_topk_prob": False}, {"num_experts_per_tok": 1}],
    ),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
