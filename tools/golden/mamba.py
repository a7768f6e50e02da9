"""Folders of Granite 4, Granite's mixtures of experts and Falcon-H1, for architectures.py.

  python mamba.py [case ...]     default: every case
"""

import sys

from cases import VOCAB

import torch
from architectures import folder_case, no_biases
from folders import IDS, old_style, rope
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM,
)

MAMBA, FULL = "linear_attention", "full_attention"


def mixers(m):
    return [layer.mamba for layer in m.model.layers if layer.mamba is not None]


def without_past(m):
    for mamba in mixers(m):
        mamba.conv1d.weight.data[..., :-1] = 0.0
    return m


def without_conv_bias(m):
    for mamba in mixers(m):
        mamba.conv1d.bias.data.zero_()
    return m


def without_step_bias(m):
    for mamba in mixers(m):
        mamba.dt_bias.data.zero_()
    return m


def without_skip(m):
    for mamba in mixers(m):
        mamba.D.data.zero_()
    return m


def equal_decays(m):
    for mamba in mixers(m):
        mamba.A_log.data.fill_(float(mamba.A_log.mean()))
    return m


def norm_weights(m):
    for mamba in mixers(m):
        mamba.norm.weight.data.fill_(1.0)
    return m


def other_gate(m):
    """Applies the norm on the other side of the gate."""
    for mamba in mixers(m):
        mamba.norm.norm_before_gate = not mamba.norm.norm_before_gate
    return m


def swapped_groups(m):
    """Swaps B between the two groups."""
    for mamba in mixers(m):
        n = mamba.ssm_state_size
        at = mamba.intermediate_size
        one, two, z = slice(at, at + n), slice(at + n, at + 2 * n), mamba.intermediate_size
        for x, shift in ((mamba.conv1d.weight.data, 0), (mamba.conv1d.bias.data, 0), (mamba.in_proj.weight.data, z)):
            a, b = slice(one.start + shift, one.stop + shift), slice(two.start + shift, two.stop + shift)
            x[a], x[b] = x[b].clone(), x[a].clone()
    return m


def first_experts(m):
    for layer in m.model.layers:
        layer.block_sparse_moe.router.weight.data.zero_()
    return m


def without_shared(m):
    for layer in m.model.layers:
        layer.shared_mlp.output_linear.weight.data.zero_()
    return m


OF_MAMBA = [without_past, without_conv_bias, without_step_bias, without_skip, equal_decays]
FACTORS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}
NO_FACTORS = [{key: 1.0} for key in FACTORS]
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
ALL_EXPERTS = [first_experts, {"num_experts_per_tok": 1}]


def granite(cls, **more):
    return cls(
        vocab_size=VOCAB,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters=rope(),
        **IDS,
        **more,
    )


def hybrid(**more):
    return granite(GraniteMoeHybridConfig, mamba_d_head="auto", **FACTORS, **more)


def published(config):
    """config.json as IBM publishes it."""
    old_style(config)
    config["layer_types"] = [{MAMBA: "mamba", FULL: "attention"}[kind] for kind in config["layer_types"]]
    config["position_embedding_type"] = config["position_embedding_type"] or "nope"


MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.3,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.6,
    "key_multiplier": 0.4,
    "ssm_in_multiplier": 0.7,
    "ssm_out_multiplier": 0.5,
    "ssm_multipliers": [0.9, 1.4, 0.7, 1.2, 0.6],
    "mlp_multipliers": [0.7, 0.4],
}
NO_MULTIPLIERS = [{key: 1.0} for key in MULTIPLIERS if not key.endswith("multipliers")]
NO_MULTIPLIERS += [{"ssm_multipliers": [1.0] * 5}, {"mlp_multipliers": [1.0] * 2}]


def falcon(**more):
    return FalconH1Config(
        vocab_size=VOCAB,
        hidden_size=32,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=128,
        rope_parameters=rope(theta=1e5),
        **IDS,
        **more,
    )


CASES = {
    "granitemoehybrid": lambda: folder_case(
        "granitemoehybrid",
        GraniteMoeHybridForCausalLM,
        hybrid(
            num_hidden_layers=3,
            layer_types=[MAMBA, FULL, MAMBA],
            mamba_n_heads=4,
            mamba_d_state=12,
            mamba_n_groups=2,
            intermediate_size=24,
            shared_intermediate_size=40,
            **EXPERTS,
        ),
        321,
        "Mamba-2 in 2 groups, attention that does not rotate in the second of three layers; 6 experts of 24, the best 2 of "
        "each row, and one of 40 for all rows; four factors",
        style=published,
        ignored=[*OF_MAMBA, norm_weights, swapped_groups, without_shared, *ALL_EXPERTS, *NO_FACTORS],
    ),
    "granitemoehybrid-dense": lambda: folder_case(
        "granitemoehybrid-dense",
        GraniteMoeHybridForCausalLM,
        hybrid(
            num_hidden_layers=2,
            layer_types=[MAMBA, FULL],
            mamba_n_heads=1,
            mamba_d_state=5,
            num_local_experts=0,
            num_experts_per_tok=0,
            intermediate_size=40,
            shared_intermediate_size=40,
        ),
        322,
        "one head of 64, a state of 5; no experts; config.json as transformers 5 writes it",
        style=lambda c: None,
        ignored=[*OF_MAMBA[:-1], norm_weights, {"position_embedding_type": "rope"}, *NO_FACTORS],
    ),
    "granitemoehybrid-attention": lambda: folder_case(
        "granitemoehybrid-attention",
        GraniteMoeHybridForCausalLM,
        hybrid(
            num_hidden_layers=2,
            layer_types=[FULL, FULL],
            mamba_n_heads=4,
            num_local_experts=0,
            num_experts_per_tok=0,
            intermediate_size=40,
            shared_intermediate_size=40,
            position_embedding_type="rope",
        ),
        328,
        "attention in all layers, which rotates; no experts",
        style=published,
        ignored=[{"position_embedding_type": None}, *NO_FACTORS],
    ),
    "granitemoe": lambda: folder_case(
        "granitemoe",
        GraniteMoeForCausalLM,
        granite(GraniteMoeConfig, num_hidden_layers=2, intermediate_size=24, **EXPERTS, **FACTORS),
        323,
        "attention; 6 experts of 24, the best 2 of each row; four factors",
        ignored=[*ALL_EXPERTS, *NO_FACTORS],
    ),
    "granitemoeshared": lambda: folder_case(
        "granitemoeshared",
        GraniteMoeSharedForCausalLM,
        granite(
            GraniteMoeSharedConfig,
            num_hidden_layers=2,
            intermediate_size=24,
            shared_intermediate_size=40,
            **EXPERTS,
            **FACTORS,
        ),
        324,
        "as granitemoe, with an expert of 40 for all rows",
        ignored=[without_shared, *ALL_EXPERTS],
    ),
    "falcon-h1": lambda: folder_case(
        "falcon-h1",
        FalconH1ForCausalLM,
        falcon(
            num_hidden_layers=2,
            mamba_d_ssm=64,
            mamba_n_heads=4,
            mamba_d_head=16,
            mamba_d_state=12,
            mamba_n_groups=2,
            mamba_rms_norm=True,
            mamba_norm_before_gate=False,
            **MULTIPLIERS,
        ),
        325,
        "Mamba-2 in 2 groups beside attention, in both layers, the norm behind the gate; all factors",
        ignored=[*OF_MAMBA, norm_weights, other_gate, swapped_groups, *NO_MULTIPLIERS],
    ),
    "falcon-h1-bias": lambda: folder_case(
        "falcon-h1-bias",
        FalconH1ForCausalLM,
        falcon(
            num_hidden_layers=1,
            attention_bias=True,
            mlp_bias=True,
            mamba_n_heads=4,
            mamba_d_head=8,
            mamba_d_ssm=32,
            mamba_d_state=6,
            mamba_n_groups=1,
            key_multiplier=0.4,
            attention_out_multiplier=0.6,
            mlp_multipliers=[0.7, 0.6],
        ),
        606,
        "biases of attention and of the feed-forward, beside factors that they do not change",
        ignored=[no_biases, {"key_multiplier": 1.0}, {"mlp_multipliers": [0.7, 1.0]}],
    ),
    "falcon-h1-before": lambda: folder_case(
        "falcon-h1-before",
        FalconH1ForCausalLM,
        falcon(
            num_hidden_layers=1,
            mamba_d_ssm=None,
            mamba_n_heads=8,
            mamba_d_state=10,
            mamba_rms_norm=True,
            mamba_conv_bias=False,
            tie_word_embeddings=True,
            **MULTIPLIERS,
        ),
        326,
        "the norm before the gate; no bias in the convolution; factors; tied",
        style=lambda c: None,
        ignored=[without_past, without_step_bias, without_skip, norm_weights, other_gate, *NO_MULTIPLIERS],
    ),
    "falcon-h1-plain": lambda: folder_case(
        "falcon-h1-plain",
        FalconH1ForCausalLM,
        falcon(
            num_hidden_layers=2,
            mamba_d_ssm=40,
            mamba_n_heads=5,
            mamba_d_head=8,
            mamba_d_state=9,
            mamba_d_conv=3,
            mamba_rms_norm=False,
            **(MULTIPLIERS | {"attention_in_multiplier": 1.0, "ssm_multipliers": None}),
        ),
        327,
        "5 heads of 8 in one group, a convolution of 3 tokens, no norm",
        ignored=[*OF_MAMBA, {"ssm_out_multiplier": 1.0}, {"mlp_multipliers": [1.0] * 2}],
    ),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
