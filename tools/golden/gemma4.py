"""Folders of Gemma 4's three forms, for architectures.py, and the same values as GGUF.

  python gemma4.py [case ...]     default: every case

The GGUF files are written by the `gguf` package with the names, keys and layouts of llama.cpp's converter. "llama.cpp" in
`noise` is what llama.cpp itself computes from an F32 copy; its GELU is a table in f16.
"""

import os
import sys
import tempfile

from cases import F32_TOLERANCE, MODELS, VERSIONS, VOCAB, error, find, record

import architectures
from architectures import folder_case

import gguf
import llama_cpp_run
import numpy as np
import torch
from folders import IDS, load, randomize, rope, run_all
from gguf import GGMLQuantizationType as T
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

SLIDING, FULL = "sliding_attention", "full_attention"
GELU_TOLERANCE = 1e-3
ROPES = {SLIDING: rope(), FULL: rope("proportional", 1e4, partial_rotary_factor=0.25)}


def with_scales(m, seed):
    """Random weights. Norms multiply by the weight, not 1 + weight, and the layers' factors are no parameters."""
    g = torch.Generator().manual_seed(seed)
    randomize(m, seed)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if p.ndim == 1:
                p.copy_(0.4 + 1.4 * torch.rand(p.shape, generator=g))
            elif name.endswith(("gate_up_proj", "down_proj")) and p.ndim == 3:
                p.normal_(0, 1.5 * p.shape[2] ** -0.5, generator=g)
        for layer in m.model.layers:
            layer.layer_scalar.copy_(0.5 + torch.rand(1, generator=g))
    return m.eval()


architectures.randomize = with_scales


def without_scales(m):
    for layer in m.model.layers:
        layer.layer_scalar.fill_(1.0)
    return m


def plain_values(m):
    for layer in m.model.layers:
        if hasattr(layer.self_attn, "v_norm"):
            layer.self_attn.v_norm = torch.nn.Identity()
    return m


def whole_rotation(m):
    """Rotates all pairs of the full layers' heads."""
    ropes = m.model.rotary_emb
    dims = 2 * len(ropes.full_attention_inv_freq)
    ropes.full_attention_inv_freq = 1e4 ** (-torch.arange(0, dims, 2).float() / dims)
    return m


def without_inputs(m):
    for layer in m.model.layers:
        layer.per_layer_projection.weight.data.zero_()
    return m


def without_table(m):
    m.model.embed_tokens_per_layer.weight.data.zero_()
    return m


def without_router_scale(m):
    for layer in m.model.layers:
        layer.router.scale.data.fill_(1.0)
    return m


def without_expert_scale(m):
    for layer in m.model.layers:
        layer.router.per_expert_scale.data.fill_(1.0)
    return m


def without_experts(m):
    for layer in m.model.layers:
        layer.experts.down_proj.data.zero_()
    return m


IGNORED = [without_scales, plain_values, whole_rotation, {"sliding_window": 64}]


def config(layer_types, **more):
    defaults = dict(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=VOCAB,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        sliding_window=8,
        rope_parameters=ROPES,
        final_logit_softcapping=9.0,
    )
    return Gemma4TextConfig(**(defaults | IDS | more), layer_types=layer_types, num_hidden_layers=len(layer_types))


def published(config):
    """config.json as Google publishes it: full layers' heads have their own fields."""
    own = list(config.pop("per_layer_config").values())[0]
    config["global_head_dim"] = own["head_dim"]
    config["num_global_key_value_heads"] = own.get("num_key_value_heads")
    del config["transformers_version"]


CASES = {
    "gemma4": lambda: folder_case(
        "gemma4",
        Gemma4ForCausalLM,
        config([SLIDING, SLIDING, FULL], attention_k_eq_v=True, num_global_key_value_heads=1),
        321,
        "full layers with wider heads, fewer of them for KV, V from the product of K, and a quarter of each head rotated; "
        "normed V, scores without a scale, a factor for each layer, a cap on logits",
        style=published,
        ignored=[*IGNORED, {"final_logit_softcapping": None}],
    ),
    "gemma4-inputs": lambda: folder_case(
        "gemma4-inputs",
        Gemma4ForCausalLM,
        config(
            [SLIDING, FULL, SLIDING, FULL],
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=12,
        ),
        322,
        "an input for each layer from a table of tokens and a product; the last two layers share K and V of the first two, "
        "and their feed-forwards are twice as wide; per_layer_config",
        style=lambda c: None,
        ignored=[*IGNORED, without_inputs, without_table],
    ),
    "gemma4-alike": lambda: folder_case(
        "gemma4-alike",
        Gemma4ForCausalLM,
        config([SLIDING, FULL], global_head_dim=8),
        604,
        "heads of one size: an empty per_layer_config",
        style=lambda c: None,
    ),
    "gemma4-experts": lambda: folder_case(
        "gemma4-experts",
        Gemma4ForCausalLM,
        config(
            [SLIDING, FULL],
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            enable_moe_block=True,
            num_experts=6,
            top_k_experts=2,
            moe_intermediate_size=24,
        ),
        323,
        "6 experts of 24 beside a dense feed-forward, each with norms of its own; a router with its own norm, and a factor "
        "for each expert",
        style=published,
        ignored=[*IGNORED, without_router_scale, without_expert_scale, without_experts, {"top_k_experts": 1}],
    ),
}


NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "layer_scalar": "layer_output_scale.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}


def tensors(m):
    out = {}
    for name, x in m.state_dict().items():
        if name in OUTER:
            out[OUTER[name]] = x
        elif name.startswith("model.layers."):
            _, _, layer, part = name.split(".", 3)
            if part in NAMES:
                out[f"blk.{layer}.{NAMES[part]}"] = x
    frequencies = m.model.rotary_emb.full_attention_inv_freq
    out["rope_freqs.weight"] = torch.where(frequencies > 0, 1.0, 1e30)
    return {name: np.ascontiguousarray(x.float().numpy()) for name, x in out.items()}


def write_gguf(path, m, matrix):
    c = m.config
    sliding = [kind == SLIDING for kind in c.layer_types]
    own, windowed = c.per_layer_config[FULL], c.per_layer_config[SLIDING]
    w = gguf.GGUFWriter(path, "gemma4")
    w.add_name(os.path.basename(path).removesuffix(".gguf"))
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    shared = c.num_hidden_layers - c.num_kv_shared_layers
    if c.use_double_wide_mlp:
        wide = lambda i: c.intermediate_size * (1 if i < shared else 2)
        w.add_feed_forward_length([wide(i) for i in range(c.num_hidden_layers)])
    else:
        w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv([(windowed if s else own).num_key_value_heads for s in sliding])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_key_length(own.head_dim)
    w.add_value_length(own.head_dim)
    w.add_key_length_swa(windowed.head_dim)
    w.add_value_length_swa(windowed.head_dim)
    w.add_rope_dimension_count(own.head_dim)
    w.add_rope_dimension_count_swa(windowed.head_dim)
    w.add_rope_freq_base(c.rope_parameters[FULL]["rope_theta"])
    w.add_rope_freq_base_swa(c.rope_parameters[SLIDING]["rope_theta"])
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern(sliding)
    w.add_shared_kv_layers(c.num_kv_shared_layers)
    w.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input or 0)
    w.add_final_logit_softcapping(c.final_logit_softcapping)
    if c.enable_moe_block:
        w.add_expert_count(c.num_experts)
        w.add_expert_used_count(c.top_k_experts)
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_vocab_size(c.vocab_size)
    w.add_tokenizer_model("no_vocab")
    for name, x in tensors(m).items():
        kind = T.F32 if x.ndim == 1 else matrix
        w.add_tensor(name, gguf.quants.quantize(x, kind) if kind != T.F32 else x, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def counterpart(name):
    case, m = find(name), load(os.path.join(MODELS, name))
    rows = run_all(m, case["sequences"])
    path = os.path.join(MODELS, name + ".gguf")
    write_gguf(path, m, T.BF16)
    with tempfile.TemporaryDirectory() as place:
        twin = os.path.join(place, "twin.gguf")
        write_gguf(twin, m, T.F32)
        noise = {"llama.cpp": error(llama_cpp_run.run(twin, case["sequences"], VOCAB), rows)}
    assert noise["llama.cpp"] < GELU_TOLERANCE, (name, noise)
    record(
        name + "-gguf",
        path,
        "gemma4",
        "gguf-bf16",
        case["covers"],
        case["sequences"],
        rows,
        f"transformers {type(m).__name__} loaded from the folder whose values the file holds, f32, eager attention "
        f"({VERSIONS})",
        "transformers",
        F32_TOLERANCE,
        noise=noise,
        values=case["logits"],
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
        if case != "gemma4-alike":
            counterpart(case)
