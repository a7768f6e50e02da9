"""Folders with weights in the formats of other quantizers: compressed-tensors, FP8, GPTQ and AWQ.

  python quantized_folders.py [case ...]     default: every case

The reference is the model with the weights that the files stand for, computed in f64 and stored in f32. In `noise`, `type` is
the distance of the weights in the type that they become at load from these, and `activations` that of the logits if those
weights are multiplied with int8 activations, with one scale per 32 columns, as products with blocks do.
"""

import os
import sys
import tempfile
from unittest import mock

from cases import VERSIONS, VOCAB, error, record

import gguf
import numpy as np
import torch
from folders import edit_json, load, old_style, randomize, run_all, small, write
from make_golden import draw, run_hf
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

LENGTHS, GAP = (33, 1, 9, 5), 0.05
Q8_0 = gguf.GGMLQuantizationType.Q8_0


# ---------------------------------------------------------------- numbers


class Integers:
    """Weights `(code - zero) * scale`; `scale` and `zero` are [rows, groups], `order` has the group of each column."""

    def __init__(self, w, bits, size, dtype, symmetric, order=None):
        rows, cols = w.shape
        self.bits, self.top, self.order = bits, 2**bits - 1, order
        if order is None:
            order = torch.arange(cols) // size
        self.of = order.long()
        groups = int(self.of.max()) + 1
        by_group = [w[:, self.of == g] for g in range(groups)]
        least = torch.stack([x.amin(1) for x in by_group], 1).clamp(max=0)
        most = torch.stack([x.amax(1) for x in by_group], 1).clamp(min=0)
        if symmetric:
            scale = 2 * torch.maximum(most, -least) / self.top
            self.zero = torch.full((rows, groups), 2 ** (bits - 1))
        else:
            scale = (most - least) / self.top
            self.zero = torch.round(-least / scale).clamp(0, self.top).int()
        self.scale = scale.to(dtype)
        self.codes = torch.round(w / self.wide(self.scale) + self.wide(self.zero)).clamp(0, self.top).int()

    def wide(self, of_groups):
        return of_groups.double()[:, self.of]

    def values(self, more=0):
        """`more` is added to each zero."""
        return (self.codes.double() - self.wide(self.zero) - more) * self.wide(self.scale)

    def rounded(self, kind):
        scale = self.scale.half().double()[:, self.of]
        if kind == "q4_1":
            least = (-self.zero.double() * self.scale.double()).half().double()[:, self.of]
            return self.codes.double() * scale + least
        if kind == "q8_0":
            return q8_0(self.values())
        return (self.codes.double() - self.wide(self.zero)) * scale


def q8_0(w):
    x = np.ascontiguousarray(w.float().numpy())
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(x, Q8_0), Q8_0).copy()).double()


def words(codes, bits, dim):
    """Packs successive codes along a dimension into words of 32 bits, low bits first."""
    x = codes.numpy().astype(np.uint32).swapaxes(dim, -1)
    each = 32 // bits
    x = x.reshape(*x.shape[:-1], -1, each) << (np.arange(each, dtype=np.uint32) * bits)
    return torch.from_numpy(np.ascontiguousarray(np.bitwise_or.reduce(x, -1).swapaxes(dim, -1)).view(np.int32))


# ---------------------------------------------------------------- forms of files: (tensors, values, misread, rounded)


def floats(w, grid, suffix, extra=None):
    """F8_E4M3; `grid`: rows and columns that share a scale."""
    rows, cols = w.shape
    down, across = (min(g, n) if g else n for g, n in zip(grid, w.shape))
    shape = -(-rows // down), -(-cols // across)
    row, col = torch.arange(rows) // down, torch.arange(cols) // across
    most = torch.zeros(shape).double()
    for i in range(shape[0]):
        for j in range(shape[1]):
            most[i, j] = w[row == i][:, col == j].abs().max()
    scale = (most / 448).to(torch.float32 if suffix == "weight_scale_inv" else torch.bfloat16)
    wide = scale.double()[row][:, col]
    codes = (w / wide).float().to(torch.float8_e4m3fn)
    values = codes.double() * wide
    kept = {"weight": codes, suffix: scale.reshape(1) if shape == (1, 1) and not grid[0] else scale}
    kept |= {name: torch.tensor([0.02]) for name in extra or ()}
    return kept, values, None, q8_0(values)


def packed(w, symmetric=True, order=None, size=32):
    """compressed-tensors' pack-quantized."""
    q = Integers(w, 4, size, torch.bfloat16, symmetric, order)
    kept = {"weight_packed": words(q.codes, 4, 1), "weight_scale": q.scale, "weight_shape": torch.tensor(w.shape)}
    if not symmetric:
        kept["weight_zero_point"] = words(q.zero, 4, 0)
    if order is not None:
        kept["weight_g_idx"] = order.int()
    kind = "q8_0" if order is not None else "q4_0" if symmetric else "q4_1"
    values, rounded, misread = q.values(), q.rounded(kind), None if symmetric else q.values(1)
    if order is not None:
        q.of = torch.arange(w.shape[1]) // size
        misread = q.values()
    return kept, values, misread, rounded


def channels(w):
    """compressed-tensors' int-quantized, a scale for each row."""
    q = Integers(w, 8, w.shape[1], torch.bfloat16, True)
    kept = {"weight": (q.codes - 128).to(torch.int8), "weight_scale": q.scale}
    return kept, q.values(), None, q.rounded("exact")


def gptq(w, bits=4, symmetric=True, less=1, order=None, size=32, bias=False):
    """`less` is subtracted from the stored zeros."""
    q = Integers(w, bits, size, torch.float16, symmetric, order)
    listed = torch.arange(w.shape[1]) // size if order is None else order
    # The first form cannot store a zero of 0.
    q.zero = q.zero.clamp(min=less)
    q.codes = torch.round(w / q.wide(q.scale) + q.wide(q.zero)).clamp(0, q.top).int()
    kept = {
        "qweight": words(q.codes.T.contiguous(), bits, 0),
        "qzeros": words(q.zero.T.contiguous() - less, bits, 1),
        "scales": q.scale.T.contiguous(),
        "g_idx": listed.int(),
    }
    if bias:
        kept["bias"] = torch.zeros(w.shape[0], dtype=torch.float16)
    kind = "q8_0" if order is not None or not symmetric and bits == 8 else "exact" if symmetric else "q4_1"
    return kept, q.values(), q.values(1 if less == 0 else -1), q.rounded(kind)


def awq(w, size=32):
    q = Integers(w, 4, size, torch.float16, False)
    turn = lambda x: x.T.contiguous().reshape(x.shape[1], -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1)
    kept = {
        "qweight": words(turn(q.codes), 4, 1),
        "qzeros": words(turn(q.zero), 4, 1),
        "scales": q.scale.T.contiguous(),
    }
    return kept, q.values(), q.values(1), q.rounded("q4_1")


# ---------------------------------------------------------------- cases


def int8_activations(m, plain):
    """Makes products use int8 activations, except those with `plain` weights."""
    linear, kept = F.linear, {m.get_parameter(name).data_ptr() for name in plain}

    def rounded(x, weight, bias=None):
        if weight.data_ptr() not in kept:
            blocks = x.unflatten(-1, (-1, 32))
            scale = (blocks.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
            x = ((blocks / scale).round() * scale).flatten(-2)
        return linear(x, weight, bias)

    return mock.patch.object(F, "linear", rounded)


def clear(logits):
    """Accepts only rows whose best logit is far ahead, as activations are rounded."""
    top = logits[-1].topk(2).values
    return logits, float(float(top[0] - top[1]) > GAP * float(logits[-1].abs().max()))


def saved(folder, tensors, config):
    """The model with these tensors, loaded from a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        save_file(tensors, os.path.join(temporary, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(folder, "config.json")) as f, open(os.path.join(temporary, "config.json"), "w") as g:
            g.write(f.read())
        return load(temporary, **config)


def case(name, cls, config_cls, seed, covers, fmt, form, config, only=lambda name: True, **shape):
    def make():
        style = (lambda c: None) if "Qwen3" in cls.__name__ else old_style
        shapes = {"hidden": 64, "ffn": 96, "tied": True} | shape
        folder = write(name, randomize(cls(small(config_cls, **shapes)), seed), "bf16", style)
        path = os.path.join(folder, "model.safetensors")
        tensors = load_file(path)
        files, exact, misread, rounded = {}, {}, {}, {}
        off = whole = 0.0
        for key, x in tensors.items():
            if not (key.endswith("_proj.weight") and only(key)):
                files[key], exact[key], misread[key], rounded[key] = x, x.float(), x.float(), x.float()
                continue
            w = x.double()
            kept, values, other, ours = form(w)
            files |= {f"{key.removesuffix('.weight')}.{part}": t for part, t in kept.items()}
            exact[key], rounded[key] = values.float(), ours.float()
            misread[key] = (values if other is None else other).float()
            off += float(((ours - values) ** 2).sum())
            whole += float((values**2).sum())
        m, other, near = (saved(folder, t, {}) for t in (exact, misread, rounded))
        sequences = draw(lambda ids: clear(run_hf(m, ids)), VOCAB, LENGTHS, seed)
        rows = run_all(m, sequences)
        plain = [n for n, _ in near.named_parameters() if n in tensors and n in files and files[n] is tensors[n]]
        with int8_activations(near, plain):
            activations = error(run_all(near, sequences), rows)
        noise = {"activations": activations, "type": (off / whole) ** 0.5, "weights": error(rows, run_all(load(folder), sequences))}
        misreads = error(run_all(other, sequences), rows)
        if misreads:
            noise["ignored"] = misreads
            assert misreads > 0.02, (name, noise)
        save_file(files, path, {"format": "pt"})
        edit_json(os.path.join(folder, "config.json"), lambda c: c.update(quantization_config=config))
        record(
            name,
            folder,
            cls.config_class.model_type,
            fmt,
            covers,
            sequences,
            rows,
            f"transformers {cls.__name__} with the weights that the files stand for, f32, eager attention ({VERSIONS})",
            "transformers",
            round(1.05 * activations + 3e-4, 5),
            noise=noise,
        )

    return name, make


def compressed(fmt, activations=None, ignore=("lm_head",), **weights):
    """quantization_config as llm-compressor writes it."""
    weights = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "symmetric": True} | weights
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "config_groups": {"group_0": scheme},
        "format": fmt,
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.2",
    }


def shuffled(w):
    """Groups of 32 columns each, in random order."""
    g = torch.Generator().manual_seed(w.shape[1])
    return torch.arange(w.shape[1])[torch.randperm(w.shape[1], generator=g)] // 32


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
GPTQ = {"quant_method": "gptq", "group_size": 32, "damp_percent": 0.01, "true_sequential": True}
DYNAMIC = {"num_bits": 8, "strategy": "token", "dynamic": True}
CASES = dict(
    [
        case(
            "fp8-tensor", LlamaForCausalLM, LlamaConfig, 401,
            "float-quantized: a scale for each tensor, ranges of activations that are not used; becomes Q8_0",
            "hf-fp8",
            lambda w: floats(w, (0, 0), "weight_scale", ["input_scale"]),
            compressed("float-quantized", {"num_bits": 8, "type": "float", "dynamic": False}, num_bits=8, type="float", strategy="tensor"),
        ),
        case(
            "fp8-channel", Phi3ForCausalLM, Phi3Config, 402,
            "float-quantized: a scale for each row; q, k and v in one matrix; one product is left in bf16; becomes Q8_0",
            "hf-fp8",
            lambda w: floats(w, (1, 0), "weight_scale"),
            compressed("float-quantized", DYNAMIC, ["lm_head", "model.layers.0.mlp.down_proj"], num_bits=8, type="float", strategy="channel"),
            only=lambda name: "down_proj" not in name,
        ),
        case(
            "fp8-block", Qwen3ForCausalLM, Qwen3Config, 403,
            "quant_method fp8: weight_scale_inv for blocks of 64x64, of which the last are smaller; becomes Q8_0",
            "hf-fp8",
            lambda w: floats(w, (64, 64), "weight_scale_inv"),
            {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [64, 64], "modules_to_not_convert": ["lm_head"]},
        ),
        case(
            "int4-moe", Qwen3MoeForCausalLM, Qwen3MoeConfig, 404,
            "pack-quantized: 4 bits, groups of 32, experts, a router that is left in bf16; becomes Q4_0",
            "hf-int4",
            packed,
            compressed("pack-quantized", None, ["lm_head", "re:.*mlp.gate$"], **INT4),
            moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
        ),
        case(
            "int4-zeros", LlamaForCausalLM, LlamaConfig, 405,
            "pack-quantized: 4 bits with zeros, groups of 32; becomes Q4_1",
            "hf-int4",
            lambda w: packed(w, symmetric=False),
            compressed("pack-quantized", None, **INT4 | {"symmetric": False}),
        ),
        case(
            "int4-order", LlamaForCausalLM, LlamaConfig, 406,
            "pack-quantized: 4 bits, a list has the group of each column; becomes Q8_0",
            "hf-int4",
            lambda w: packed(w, order=shuffled(w)),
            compressed("pack-quantized", None, **INT4 | {"actorder": "group"}),
        ),
        case(
            "int8-channel", LlamaForCausalLM, LlamaConfig, 407,
            "int-quantized: 8 bits, a scale for each row; becomes Q8_0",
            "hf-int8",
            channels,
            compressed("int-quantized", DYNAMIC, num_bits=8, type="int", strategy="channel"),
        ),
        case(
            "gptq", LlamaForCausalLM, LlamaConfig, 408,
            "GPTQ: 4 bits, groups of 32, zeros stored less one; biases of zeros that the model has not; becomes Q4_0",
            "hf-gptq",
            lambda w: gptq(w, bias=True),
            GPTQ | {"bits": 4, "desc_act": False, "sym": True},
        ),
        case(
            "gptq-order", Qwen3ForCausalLM, Qwen3Config, 409,
            "GPTQ: 4 bits, desc_act, zeros as they are (gptq_v2); becomes Q8_0",
            "hf-gptq",
            lambda w: gptq(w, symmetric=False, less=0, order=shuffled(w)),
            GPTQ | {"bits": 4, "desc_act": True, "sym": False, "checkpoint_format": "gptq_v2"},
        ),
        case(
            "gptq-zeros", LlamaForCausalLM, LlamaConfig, 410,
            "GPTQ: 4 bits, zeros that differ, stored less one; becomes Q4_1",
            "hf-gptq",
            lambda w: gptq(w, symmetric=False),
            GPTQ | {"bits": 4, "desc_act": False, "sym": False, "checkpoint_format": "gptq"},
        ),
        case(
            "gptq-8", LlamaForCausalLM, LlamaConfig, 411,
            "GPTQ: 8 bits; becomes Q8_0",
            "hf-gptq",
            lambda w: gptq(w, bits=8),
            GPTQ | {"bits": 8, "desc_act": False, "sym": True},
        ),
        case(
            "awq", LlamaForCausalLM, LlamaConfig, 412,
            "AWQ: 4 bits with zeros, groups of 32; becomes Q4_1",
            "hf-awq",
            awq,
            {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm", "modules_to_not_convert": None},
        ),
    ]
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        CASES[name]()
