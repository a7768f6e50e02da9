"""Folders of models with latent attention, for architectures.py: DeepSeek-V2-Lite, -V2 and -V3, GLM-4.7-Flash; and
GGUF files as llama.cpp wrote them before it took K's and V's weights apart.

  python latent.py [case ...]     default: every case
"""

import json
import os
import sys

from cases import F32_TOLERANCE, MODELS, ROOT, VOCAB, find, record

import architectures
import gguf
import numpy as np
import torch
from architectures import folder_case
from folders import IDS, old_style, randomize, rope
from safetensors.torch import load_file
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
)

YARN = rope(
    "yarn",
    100.0,
    factor=4.0,
    original_max_position_embeddings=32,
    beta_fast=4.0,
    beta_slow=1.0,
    mscale=0.707,
    mscale_all_dim=0.707,
)
SIZES = {"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}


def config(cls, **more):
    """A small configuration. Products whose weights may be in blocks have a multiple of 32 columns."""
    common = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rope_parameters": rope(),
        "n_shared_experts": 2,
        **SIZES,
        **IDS,
    }
    return cls(**(common | more))


def with_biases(m, seed):
    """Random weights, and biases that change some choices of experts; the biases are not parameters."""
    g = torch.Generator().manual_seed(seed)
    for layer in randomize(m, seed).model.layers:
        gate = getattr(layer.mlp, "gate", None)
        if hasattr(gate, "e_score_correction_bias"):
            gate.e_score_correction_bias.copy_(torch.rand(gate.e_score_correction_bias.shape, generator=g) / 2)
    return m


architectures.randomize = with_biases


def without_bias(m):
    for layer in m.model.layers:
        if hasattr(getattr(layer.mlp, "gate", None), "e_score_correction_bias"):
            layer.mlp.gate.e_score_correction_bias.zero_()
    return m


def without_norm(part):
    def change(m):
        for layer in m.model.layers:
            setattr(layer.self_attn, part, torch.nn.Identity())
        return m

    return change


def without_shared(m):
    for layer in m.model.layers:
        if hasattr(layer.mlp, "shared_experts"):
            layer.mlp.shared_experts.down_proj.weight.data.zero_()
    return m


def plain_scale(m):
    """Computes scores without YaRN's factor."""
    for layer in m.model.layers:
        layer.self_attn.scaling = layer.self_attn.qk_head_dim**-0.5
    return m


def neighbors(m):
    """Rotates pairs that are half a head apart."""
    c = m.config
    for layer in m.model.layers:
        a, turn = layer.self_attn, c.qk_rope_head_dim
        order = torch.arange(turn).view(2, -1).T.flatten()
        w = a.kv_a_proj_with_mqa.weight.data
        w[c.kv_lora_rank :] = w[c.kv_lora_rank :][order]
        q = (a.q_proj if a.q_proj is not None else a.q_b_proj).weight.data
        q = q.view(c.num_attention_heads, -1, q.shape[-1])[:, c.qk_nope_head_dim :]
        q.copy_(q[:, order])
    return m


KV_NORM, Q_NORM = without_norm("kv_a_layernorm"), without_norm("q_a_layernorm")


def published(c):
    """config.json as DeepSeek publishes it, with keys of a single rank, and redundant ones."""
    old_style(c)
    for key in ("head_dim", "qk_head_dim"):
        c.pop(key, None)
    c |= {"ep_size": 1, "moe_layer_freq": 1, "seq_aux": True}


def of_v3(c):
    published(c)
    c |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def of_lite(c):
    published(c)
    c |= {"scoring_func": "softmax", "n_group": 1, "topk_group": 1}


def lite(name="deepseek-v2-lite"):
    folder_case(
        name,
        DeepseekV2ForCausalLM,
        config(
            DeepseekV2Config,
            q_lora_rank=None,
            n_routed_experts=6,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            routed_scaling_factor=1.0,
            rope_parameters=YARN,
        ),
        511,
        "latent attention without a latent of queries, YaRN with a factor on scores; 6 experts behind a dense layer, of each "
        "row the best 2 without renormalization, and 2 shared ones",
        style=of_lite,
        ignored=[KV_NORM, without_shared, plain_scale, neighbors, {"num_experts_per_tok": 1}],
    )
    whole(name)


def v2():
    folder_case(
        "deepseek-v2",
        DeepseekV2ForCausalLM,
        config(
            DeepseekV2Config,
            q_lora_rank=20,
            n_routed_experts=8,
            num_experts_per_tok=3,
            first_k_dense_replace=1,
            n_group=4,
            topk_group=2,
            topk_method="group_limited_greedy",
            routed_scaling_factor=1.5,
        ),
        512,
        "a latent of queries; 8 experts in 4 groups, of each row the best 3 of the 2 groups with the best expert, times 1.5",
        style=published,
        ignored=[
            KV_NORM,
            Q_NORM,
            without_shared,
            neighbors,
            {"topk_method": "greedy"},
            {"routed_scaling_factor": 1.0},
        ],
    )


V3 = {
    "q_lora_rank": 20,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
}


# Tensors of the block of multi-token prediction, which is not read.
FURTHER = ["eh_proj", "enorm", "embed_tokens", "shared_head.norm", "self_attn.q_a_proj", "mlp.gate"]


def v3(name="deepseek-v3"):
    folder_case(
        name,
        DeepseekV3ForCausalLM,
        config(DeepseekV3Config, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, **V3),
        513,
        "12 experts in 4 groups, of each row the best 3 of the 2 groups whose two best have the largest sum, by the logistic "
        "function of their logits and a bias, which is no part of their weights; these are divided by their sum, times 2.5",
        style=of_v3,
        more={f"model.layers.3.{part}.weight": torch.ones(4, 4) for part in FURTHER},
        ignored=[
            KV_NORM,
            Q_NORM,
            without_shared,
            without_bias,
            plain_scale,
            neighbors,
            {"topk_group": 4},
            {"norm_topk_prob": False},
            {"routed_scaling_factor": 1.0},
        ],
    )


def halves():
    """A small model without experts, whose pairs are half a head apart."""
    folder_case(
        "deepseek-v3-halves",
        DeepseekV3ForCausalLM,
        config(DeepseekV3Config, **V3 | {"first_k_dense_replace": 2}, num_hidden_layers=2, rope_interleave=False),
        515,
        "`rope_interleave` false: elements that rotate together are half a head apart",
        style=of_v3,
        ignored=[neighbors],
    )


def glm(name="glm4-moe-lite"):
    folder_case(
        name,
        Glm4MoeLiteForCausalLM,
        config(
            Glm4MoeLiteConfig,
            q_lora_rank=20,
            qk_nope_head_dim=24,
            v_head_dim=32,
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_shared_experts=1,
            topk_group=1,
            n_group=1,
        ),
        514,
        "GLM-4.7-Flash: DeepSeek-V3's layers with values wider than the parts of queries that do not rotate; the best 2 of 6 "
        "experts of any group",
        style=lambda c: (old_style(c), c.pop("mlp_layer_types"), c.update(first_k_dense_replace=1)),
        ignored=[KV_NORM, Q_NORM, without_shared, without_bias, neighbors, {"routed_scaling_factor": 1.0}],
    )


# ---------------------------------------------------------------- GGUF as of 2024

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.o_proj": "attn_output",
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def stacked(tensors):
    """The GGUF's tensors, with all experts of a layer in one tensor."""
    experts = {}
    for name, x in tensors.items():
        if name in WHOLE:
            yield WHOLE[name], x
            continue
        _, _, layer, part = name.removesuffix(".weight").split(".", 3)
        if ".experts." in name:
            n, proj = part.removeprefix("mlp.experts.").split(".")
            experts.setdefault(f"blk.{layer}.ffn_{proj.removesuffix('_proj')}_exps.weight", {})[int(n)] = x
        else:
            yield f"blk.{layer}.{NAMES[part]}.weight", x
    for name, parts in experts.items():
        yield name, torch.stack([parts[n] for n in range(len(parts))])


def whole(folder):
    """The folder's values: matrices in BF16, norms and routers in F32."""
    name = folder + "-whole"
    case, path = find(folder), os.path.join(MODELS, name + ".gguf")
    with open(os.path.join(MODELS, folder, "config.json")) as f:
        c = json.load(f)
    w, yarn = gguf.GGUFWriter(path, "deepseek2"), c["rope_scaling"]
    w.add_vocab_size(VOCAB)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_key_length(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length(c["v_head_dim"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(yarn["factor"])
    w.add_rope_scaling_orig_ctx_len(yarn["original_max_position_embeddings"])
    w.add_rope_scaling_yarn_log_mul(0.1 * yarn["mscale_all_dim"])
    w.add_rope_scaling_yarn_beta_fast(yarn["beta_fast"])
    w.add_rope_scaling_yarn_beta_slow(yarn["beta_slow"])
    for key, x in stacked(load_file(os.path.join(MODELS, folder, "model.safetensors"))):
        plain = x.ndim == 1 or key.endswith("gate_inp.weight")
        kind = gguf.GGMLQuantizationType.F32 if plain else gguf.GGMLQuantizationType.BF16
        w.add_tensor(key, gguf.quants.quantize(x.float().numpy(), kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    rows = torch.from_numpy(np.fromfile(os.path.join(ROOT, case["logits"]), "<f4").reshape(-1, VOCAB).copy())
    record(
        name,
        path,
        "deepseek2",
        "gguf-bf16",
        "the folder under the names and keys of llama.cpp's converter of 2024, K's and V's weights in one tensor",
        case["sequences"],
        rows,
        case["source"],
        "transformers",
        F32_TOLERANCE,
        values=case["logits"],
    )


CASES = {
    "deepseek-v2-lite": lite, "deepseek-v2": v2, "deepseek-v3": v3, "deepseek-v3-halves": halves, "glm4-moe-lite": glm,
}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
