"""Folders of gpt-oss for architectures.py, one of them with experts in MXFP4 as OpenAI publishes them, and both as
GGUF files with the names and the layout of llama.cpp's converter.

  python gpt_oss.py [case ...]     default: every case
"""

import os
import sys

from cases import F32_TOLERANCE, MODELS, VERSIONS, VOCAB, error, find, record

import architectures
import gguf
import numpy as np
import torch
from architectures import folder_case
from folders import IDS, edit_json, load, old_style, randomize, rope, run_all
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM

YARN = rope("yarn", 100.0, factor=4.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=0.5, truncate=False)
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP4 += [-x for x in FP4]


def config(**more):
    return GptOssConfig(
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=10,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        rope_parameters=dict(YARN),
        **IDS,
        **more,
    )


def without_sinks(m):
    for layer in m.model.layers:
        layer.self_attn.sinks.data.fill_(-1e9)
    return m


def without(part):
    def change(m):
        for name, p in m.named_parameters():
            if name.endswith(part):
                p.data.zero_()
        return m

    return change


def of_experts(**numbers):
    def change(m):
        for layer in m.model.layers:
            for name, value in numbers.items():
                setattr(layer.mlp.experts, name, value)
        return m

    return change


def rounded_yarn(m):
    p = m.config.rope_parameters | {"truncate": True}
    return load(m.config._name_or_path, rope_parameters=p)


IGNORED = [
    without_sinks,
    without("q_proj.bias"),
    without("o_proj.bias"),
    without("router.bias"),
    without("gate_up_proj_bias"),
    without("down_proj_bias"),
    of_experts(alpha=1.0),
    of_experts(limit=1e9),
    rounded_yarn,
    {"sliding_window": 1000},
    {"num_experts_per_tok": 1},
]


def sharp(m, seed):
    """Random weights: sinks as large as scores, experts scaled by their column lengths, gates beyond the limit."""
    randomize(m, seed)
    g = torch.Generator().manual_seed(seed)
    for layer in m.model.layers:
        layer.self_attn.sinks.data = torch.randn(layer.self_attn.sinks.shape, generator=g) * 1.5
        e = layer.mlp.experts
        for p, scale in ((e.gate_up_proj, 4.0), (e.down_proj, 0.4)):
            p.data = torch.randn(p.shape, generator=g) * scale * p.shape[1] ** -0.5
        for p in (e.gate_up_proj_bias, e.down_proj_bias):
            p.data = torch.randn(p.shape, generator=g) * 0.5
    return m


architectures.randomize = sharp


def published(config):
    """config.json as OpenAI publishes it."""
    old_style(config)
    config.pop("swiglu_alpha", None)
    config |= {"experts_per_token": config["num_experts_per_tok"], "initial_context_length": 32}


def floats(name="gpt-oss"):
    folder_case(
        name,
        GptOssForCausalLM,
        config(),
        411,
        "attention with sinks, windows of 10 in the first and third of three layers, YaRN without rounding; 6 experts with "
        "biases, of each row the best 2, with clamped gates; gate and up in turns, rows and columns exchanged",
        style=published,
        ignored=IGNORED,
    )
    counterpart(name)


# ---------------------------------------------------------------- MXFP4


def quantize(x):
    """Rows x of experts in MXFP4: codes, two neighbors per byte, and exponents with an offset of 127."""
    blocks = x.float().reshape(*x.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1).clamp(min=1e-30))) - 2
    values = blocks / 2.0 ** exponent[..., None]
    codes = (values[..., None] - torch.tensor(FP4)).abs().argmin(-1).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponent + 127).to(torch.uint8)


def dequantize(codes, exponents):
    both = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    values = torch.tensor(FP4)[both.long()] * 2.0 ** (exponents.float()[..., None] - 127)
    return values.flatten(-2)


def mxfp4(name="gpt-oss-mxfp4", source="gpt-oss"):
    """The other case's model with rounded experts. The reference computes with the rounded values as floats."""
    import shutil

    case, folder = find(source), os.path.join(MODELS, name)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(MODELS, source), folder)
    path = os.path.join(folder, "model.safetensors")
    tensors, exact = load_file(path), {}
    for key in [k for k in tensors if k.endswith(("gate_up_proj", "down_proj"))]:
        codes, exponents = quantize(tensors.pop(key).mT.contiguous())
        exact[key] = dequantize(codes, exponents).mT.contiguous()
        tensors |= {key + "_blocks": codes, key + "_scales": exponents}
    m = load(os.path.join(MODELS, source))
    before = run_all(m, case["sequences"])
    m.load_state_dict(exact, strict=False)
    rows = run_all(m, case["sequences"])
    save_file(tensors, path, {"format": "pt"})
    modules = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quantized = {"quantization_config": {"modules_to_not_convert": modules, "quant_method": "mxfp4"}}
    edit_json(os.path.join(folder, "config.json"), lambda c: c.update(quantized))
    record(
        name,
        folder,
        "gpt_oss",
        "hf-mxfp4",
        "experts in MXFP4 as OpenAI publishes them; activations of their products are rounded to int8",
        case["sequences"],
        rows,
        f"transformers GptOssForCausalLM of the values as floats, f32, eager attention ({VERSIONS})",
        "transformers",
        MXFP4_TOLERANCE,
        argmax=0.9,
        noise={"weights": error(rows, before)},
    )
    counterpart(name)


# Larger than for other types with int8 activations, as some rows choose other experts.
MXFP4_TOLERANCE = 3e-2

# ---------------------------------------------------------------- GGUF

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.router": "ffn_gate_inp",
}


def counterpart(name):
    case, path = find(name), os.path.join(MODELS, name + ".gguf")
    tensors, c = load_file(os.path.join(MODELS, name, "model.safetensors")), config()
    w = gguf.GGUFWriter(path, "gpt-oss")
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_expert_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_expert_count(c.num_local_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_sliding_window(c.sliding_window)
    w.add_rope_freq_base(YARN["rope_theta"])
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(YARN["factor"])
    w.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    w.add_rope_scaling_yarn_beta_fast(YARN["beta_fast"])
    w.add_rope_scaling_yarn_beta_slow(YARN["beta_slow"])
    w.add_vocab_size(VOCAB)

    def f32(key, x):
        w.add_tensor(key, x.float().contiguous().numpy())

    def bf16(key, x):
        bytes_ = x.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
        w.add_tensor(key, bytes_, raw_dtype=gguf.GGMLQuantizationType.BF16)

    def blocks(key, codes, exponents):
        """ggml's order: a byte has the codes of columns i and i + 16."""
        both = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        packed = torch.cat([exponents[..., None], both[..., :16] | both[..., 16:] << 4], -1).flatten(-2)
        w.add_tensor(key, packed.contiguous().numpy(), raw_dtype=gguf.GGMLQuantizationType.MXFP4)

    for key, x in tensors.items():
        if not key.startswith("model.layers."):
            known = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}
            bf16(known[key], x) if key in known else f32("output_norm.weight", x)
            continue
        layer, part = key.removeprefix("model.layers.").split(".", 1)
        name_of = lambda part: f"blk.{layer}.{part}"
        module, kind = part.rsplit(".", 1)
        if module in NAMES:
            plain = x.ndim == 1 or module == "mlp.router"
            (f32 if plain else bf16)(name_of(f"{NAMES[module]}.{kind}"), x)
        elif kind == "sinks":
            f32(name_of("attn_sinks.weight"), x)
        elif kind == "gate_up_proj":
            bf16(name_of("ffn_gate_exps.weight"), x.mT[:, ::2])
            bf16(name_of("ffn_up_exps.weight"), x.mT[:, 1::2])
        elif kind == "down_proj":
            bf16(name_of("ffn_down_exps.weight"), x.mT)
        elif kind == "gate_up_proj_bias":
            f32(name_of("ffn_gate_exps.bias"), x[:, ::2])
            f32(name_of("ffn_up_exps.bias"), x[:, 1::2])
        elif kind == "down_proj_bias":
            f32(name_of("ffn_down_exps.bias"), x)
        elif kind.endswith("_blocks"):
            e = tensors[key.removesuffix("_blocks") + "_scales"]
            if kind == "down_proj_blocks":
                blocks(name_of("ffn_down_exps.weight"), x, e)
            else:
                blocks(name_of("ffn_gate_exps.weight"), x[:, ::2], e[:, ::2])
                blocks(name_of("ffn_up_exps.weight"), x[:, 1::2], e[:, 1::2])
        else:
            assert kind.endswith("_scales"), key
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    rows = torch.from_numpy(np.fromfile(os.path.join(MODELS, name + ".f32"), "<f4").reshape(-1, VOCAB).copy())
    record(
        name + "-gguf",
        path,
        "gpt-oss",
        case["format"].replace("hf-", "gguf-"),
        "the folder with the names and layout of llama.cpp's converter, written by this script",
        case["sequences"],
        rows,
        case["source"],
        "transformers",
        case["tolerance"],
        argmax=case["argmax"],
        values=case["logits"],
    )


CASES = {"gpt-oss": floats, "gpt-oss-mxfp4": mxfp4}

if __name__ == "__main__":
    torch.set_num_threads(1)
    assert F32_TOLERANCE < MXFP4_TOLERANCE
    for case in sys.argv[1:] or CASES:
        CASES[case]()
