"""Mixtures of experts in types that llama.cpp quantizes to: experts-TYPE.gguf, with the two cases of each
type-TYPE.gguf of gguf_models.py.

  python expert_types.py [type ...]     default: every type
"""

import os
import sys
import tempfile

from cases import F32_TOLERANCE, MODELS, error

import gguf
import llama_cpp_run
import numpy as np
import torch
from folders import randomize, run_all, small
from gguf import GGMLQuantizationType as T
from gguf_models import GGUF_VERSION, TYPE_LENGTHS, TYPE_VOCAB, names, record_type, tensors, wide, write
from make_golden import draw, run_hf
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

ARCH, EXPERTS, USED, WIDTH = "qwen3moe", 4, 2, 32
TYPES = {"mxfp4": "MOSTLY_MXFP4_MOE", "iq4_xs": "MOSTLY_IQ4_XS"}
COUNTS = {"expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": WIDTH}


def model():
    """256 wide. Experts' last matrices have 32 columns, which IQ4_XS cannot hold."""
    config = small(
        Qwen3MoeConfig,
        hidden=256,
        heads=2,
        kv_heads=1,
        head_dim=64,
        ffn=WIDTH,
        vocab=TYPE_VOCAB,
        num_experts=EXPERTS,
        num_experts_per_tok=USED,
        moe_intermediate_size=WIDTH,
        norm_topk_prob=True,
    )
    return randomize(Qwen3MoeForCausalLM(config), 79)


def of_experts(m):
    """{GGUF name: parameter} of matrices of all experts. Gate and up are halves of one parameter."""
    out = {}
    for i, layer in enumerate(m.model.layers):
        gate, up = layer.mlp.experts.gate_up_proj.data.chunk(2, dim=1)
        parts = {"gate": gate, "up": up, "down": layer.mlp.experts.down_proj.data}
        out |= {f"blk.{i}.ffn_{part}_exps.weight": x for part, x in parts.items()}
    return out


def dequantized(path):
    """The model with the file's values as the gguf package reads them, and the file's matrix types."""
    m, kinds = model(), {}
    state, table, experts = m.state_dict(), names(m, ARCH), of_experts(m)
    for t in gguf.GGUFReader(path).tensors:
        shape = tuple(reversed([int(n) for n in t.shape]))
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        to = experts[t.name] if t.name in experts else state[table[t.name]]
        to.copy_(torch.from_numpy(np.ascontiguousarray(x)))
        if len(shape) > 1:
            kinds.setdefault(t.tensor_type.name, []).append(t.name)
    return m, kinds


def case(label, ftype):
    base, path = model(), os.path.join(MODELS, f"experts-{label}.gguf")
    values = tensors(base, ARCH) | {name: np.ascontiguousarray(x) for name, x in of_experts(base).items()}
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "f32.gguf")
        write(source, base, ARCH, values, T.F32, [(key, "u32", n) for key, n in COUNTS.items()])
        llama_cpp_run.quantize(source, path, ftype)
    m, kinds = dequantized(path)
    assert any("exps" in name for name in kinds[label.upper()]), kinds
    sequences = draw(wide(lambda ids: (run_hf(m, ids), 1.0)), TYPE_VOCAB, TYPE_LENGTHS, 80)
    exact, theirs = run_all(m, sequences), llama_cpp_run.run(path, sequences, TYPE_VOCAB)
    record_type(
        label,
        path,
        "a mixture of experts; " + "; ".join(f"{kind}: {len(n)} matrices" for kind, n in kinds.items()),
        sequences,
        exact,
        theirs,
        f"Qwen3MoeForCausalLM on the values of the file as gguf {GGUF_VERSION} dequantizes them",
        F32_TOLERANCE,
        {"weights": error(exact, run_all(base, sequences)), "activations": error(theirs, exact)},
        int8_blocks=True,
        name="experts",
        arch=ARCH,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for label in sys.argv[1:] or TYPES:
        case(label, TYPES[label])
