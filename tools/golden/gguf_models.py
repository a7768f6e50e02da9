"""Makes the GGUF half of tests/golden/models/: run architectures.py first.

  python gguf_models.py [case ...]     default: every case

NAME.gguf beside the folder NAME holds the same values with llama.cpp's names and keys, written by the `gguf` package, and
has the same logits. It must read the same in llama.cpp too: "llama.cpp" in `noise` is its error on an F32 twin of the file.

type-TYPE.gguf is one model in each type that llama.cpp quantizes to. Two cases read each file: `type-TYPE` has the logits
that transformers computes with the values of the file, as the `gguf` package dequantizes them; `type-TYPE-llama.cpp` has
llama.cpp's own, whose activations are rounded too: the distance between the two is the type's own noise.
"""

import os
import sys
import tempfile

from cases import F32_TOLERANCE, MODELS, VERSIONS, VOCAB, agreement, error, find, record

import gguf
import llama_cpp_run
import numpy as np
import torch
from architectures import load, randomize, rope, run_all, small
from make_golden import PER_LAYER, draw, from_interleaved, run_hf, to_interleaved
from gguf import GGMLQuantizationType as T
from transformers import LlamaConfig, LlamaForCausalLM

QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA3 = PER_LAYER | QK_NORMS | {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
                                 "post_ffw_norm": "post_feedforward_layernorm"}
TABLES = {"llama": PER_LAYER, "qwen2": PER_LAYER, "qwen3": PER_LAYER | QK_NORMS, "gemma3": GEMMA3}


def names(m, arch):
    """{GGUF name: name in the state dict}, of tensors that the model has."""
    state = m.state_dict()
    out = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if not m.config.tie_word_embeddings:
        out["output.weight"] = "lm_head.weight"
    for i in range(m.config.num_hidden_layers):
        for a, b in TABLES[arch].items():
            for part in ("weight", "bias"):
                out[f"blk.{i}.{a}.{part}"] = f"model.layers.{i}.{b}.{part}"
    return {a: b for a, b in out.items() if b in state}


def heads_to_rotate(name, arch, config):
    """llama's GGUF interleaves the halves of each q and k head; the number of heads, or none."""
    if arch != "llama":
        return None
    part = name.split(".")[2] if name.startswith("blk.") else ""
    return {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(part)


def tensors(m, arch):
    state, out = m.state_dict(), {}
    for name, source in names(m, arch).items():
        x = state[source].detach().float().numpy()
        heads = heads_to_rotate(name, arch, m.config)
        if heads:
            x = to_interleaved(x.reshape(len(x), -1), heads).reshape(x.shape)
        if arch == "gemma3" and name.endswith("norm.weight"):
            x = x + np.float32(1)  # llama.cpp multiplies by the stored weight
        out[name] = np.ascontiguousarray(x)
    return out


def write(path, m, arch, values, matrix, more=()):
    """`matrix`: the type of two-dimensional tensors; vectors are F32. `more`: (key, "u32" | "f32" | "str", value)."""
    c = m.config
    w = gguf.GGUFWriter(path, arch)
    w.add_name(os.path.basename(path).removesuffix(".gguf"))
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base((c.rope_parameters.get("full_attention") or c.rope_parameters)["rope_theta"])
    w.add_vocab_size(c.vocab_size)
    w.add_tokenizer_model("no_vocab")
    for key, kind, value in more:
        {"u32": w.add_uint32, "f32": w.add_float32, "str": w.add_string}[kind](f"{arch}.{key}", value)
    for name, x in values.items():
        kind = T.F32 if x.ndim == 1 else matrix
        w.add_tensor(name, gguf.quants.quantize(x, kind) if kind != T.F32 else x, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def twin_noise(m, arch, values, more, sequences, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "twin.gguf")
        write(path, m, arch, values, T.F32, more)
        return error(llama_cpp_run.run(path, sequences, VOCAB), rows)


def counterpart(folder, arch, covers, more=(), extra=None, same_in_llama_cpp=True):
    hf = find(folder)
    m = load(os.path.join(MODELS, folder))
    sequences = hf["sequences"]
    rows = run_all(m, sequences)
    values = tensors(m, arch) | (extra(m) if extra else {})
    name = folder + "-gguf"
    path = os.path.join(MODELS, folder + ".gguf")
    write(path, m, arch, values, T.BF16, more)
    noise = {"llama.cpp": twin_noise(m, arch, values, more, sequences, rows)}
    assert (noise["llama.cpp"] < F32_TOLERANCE) == same_in_llama_cpp, (name, noise)
    record(name, path, arch, "gguf-bf16", covers, sequences, rows,
           hf["source"].split(",")[0] + f", whose values the file holds in bf16; f32, eager attention ({VERSIONS})", "transformers",
           F32_TOLERANCE, noise=noise, values=hf["logits"])


def llama3_factors(m):
    """rope_freqs.weight: what each frequency is divided by."""
    scaled = m.model.rotary_emb.inv_freq
    d = m.config.head_dim
    plain = 1.0 / m.config.rope_parameters["rope_theta"] ** (torch.arange(0, d, 2).float() / d)
    return {"rope_freqs.weight": (plain / scaled).numpy().astype(np.float32)}


YARN = [("rope.scaling.type", "str", "yarn"), ("rope.scaling.factor", "f32", 4.0),
        ("rope.scaling.original_context_length", "u32", 32)]

COUNTERPARTS = {
    "llama-bias": lambda: counterpart("llama-bias", "llama", "biases of q, k, v, o; those of q and k interleaved like their rows"),
    "llama-linear": lambda: counterpart("llama-linear", "llama", "rope.scaling.type linear",
                                        [("rope.scaling.type", "str", "linear"), ("rope.scaling.factor", "f32", 4.0)]),
    "llama-llama3": lambda: counterpart("llama-llama3", "llama", "rope_freqs.weight: the scaling of Llama 3.1 as a tensor",
                                        extra=llama3_factors),
    "llama-yarn": lambda: counterpart("llama-yarn", "llama", "rope.scaling.type yarn", YARN),
    "mistral-window": lambda: counterpart("mistral-window", "llama", "architecture llama with attention.sliding_window, which "
                                          "llama.cpp does not read there: we do, as transformers does",
                                          [("attention.sliding_window", "u32", 16)], same_in_llama_cpp=False),
    "qwen2": lambda: counterpart("qwen2", "qwen2", "q, k and v biases; rows not interleaved"),
    "qwen3": lambda: counterpart("qwen3", "qwen3", "q and k norms; rows not interleaved"),
}


CASES = COUNTERPARTS

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
