"""Folders of LFM2 and its mixture of experts, as architectures.py makes them.

  python lfm.py [case ...]     default: every case
"""

import sys

from cases import VOCAB

import architectures
from architectures import folder_case

import torch
from folders import IDS, randomize, rope
from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM

CONV, FULL = "conv", "full_attention"


def convolutions(m):
    return [layer.conv for layer in m.model.layers if hasattr(layer, "conv")]


def without_past(m):
    for conv in convolutions(m):
        conv.conv.weight.data[..., :-1] = 0.0
    return m


def turned(m):
    """The kernel's first element for the current token."""
    for conv in convolutions(m):
        conv.conv.weight.data = conv.conv.weight.flip(-1)
    return m


def other_parts(m):
    """B and C change places."""
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
    """Random weights, and biases of experts that change some choices; these are no parameters."""
    g = torch.Generator().manual_seed(seed)
    for layer in randomize(m, seed).model.layers:
        if hasattr(layer.feed_forward, "expert_bias"):
            layer.feed_forward.expert_bias.copy_(torch.rand(layer.feed_forward.expert_bias.shape, generator=g) / 2)
    return m


architectures.randomize = with_biases


CASES = {
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
