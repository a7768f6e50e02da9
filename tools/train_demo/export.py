"""Writes a checkpoint as GGUF (ternary matrices as I2_S), and reads one back for evaluation.

  python export.py run/ckpt.pt ../../models/bn-demo.gguf
"""

import os
import sys

import numpy as np
import torch

import gguf_io as g
import model
import tok

HERE = os.path.dirname(os.path.abspath(__file__))
ARCH = "bitnet-b1.58"
# The model was trained on texts, not conversations, so it continues the last message.
CHAT_TEMPLATE = "{{ messages[-1]['content'] }}"


def tokenizer_metadata(path):
    tokens, merges = tok.pieces(path)
    bos, eos = tokens.index(tok.BOS), tokens.index(tok.EOS)
    types = [3 if t in (tok.BOS, tok.EOS) else 1 for t in tokens]
    return [
        ("tokenizer.ggml.model", g.STR, "gpt2"), ("tokenizer.ggml.pre", g.STR, "qwen2"),
        ("tokenizer.ggml.tokens", g.ARR, (g.STR, tokens)), ("tokenizer.ggml.token_type", g.ARR, (g.I32, types)),
        ("tokenizer.ggml.merges", g.ARR, (g.STR, merges)),
        ("tokenizer.ggml.bos_token_id", g.U32, bos), ("tokenizer.ggml.eos_token_id", g.U32, eos),
        ("tokenizer.ggml.add_bos_token", g.BOOL, True), ("tokenizer.chat_template", g.STR, CHAT_TEMPLATE),
    ]


def model_metadata(c, name, arch=ARCH):
    a = arch + "."
    return [
        ("general.architecture", g.STR, arch), ("general.name", g.STR, name),
        ("general.license", g.STR, "MIT OR Apache-2.0"),
        (a + "context_length", g.U32, c.context), (a + "embedding_length", g.U32, c.hidden),
        (a + "block_count", g.U32, c.layers), (a + "feed_forward_length", g.U32, c.ffn),
        (a + "attention.head_count", g.U32, c.heads), (a + "attention.head_count_kv", g.U32, c.kv_heads),
        (a + "attention.layer_norm_rms_epsilon", g.FLT, c.eps), (a + "rope.freq_base", g.FLT, c.theta),
        (a + "rope.dimension_count", g.U32, c.head_dim), (a + "vocab_size", g.U32, c.vocab),
    ]


def order(c):
    """Tensor names in file order."""
    names = ["token_embd", "output_norm"]
    for i in range(c.layers):
        names += [f"blk.{i}.{n}" for n in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_sub_norm", "attn_output",
                                           "ffn_norm", "ffn_gate", "ffn_up", "ffn_sub_norm", "ffn_down")]
    return names


def export(ckpt, path, tokenizer=os.path.join(HERE, "tokenizer.json")):
    s = torch.load(ckpt, weights_only=False)
    c = model.Config(**s["config"])
    tensors = []
    for n in order(c):
        x = s["w"][n]
        if model.is_matrix(n):
            codes, scale = model.ternarize(x)
            tensors.append((n + ".weight", g.I2_S, (codes.numpy().astype(np.int8), float(scale))))
        else:
            tensors.append((n + ".weight", g.F16 if n == "token_embd" else g.F32, x.numpy()))
    g.write(path, model_metadata(c, "bn-demo") + tokenizer_metadata(tokenizer), tensors)


def load(path, dtype=torch.float32):
    """(Config, weights) of a GGUF that `export` wrote, with the values that the engine reads."""
    meta, values, _ = g.read(path)
    k = lambda s: meta[f"{ARCH}.{s}"]
    c = model.Config(vocab=k("vocab_size"), hidden=k("embedding_length"), layers=k("block_count"),
                     heads=k("attention.head_count"), kv_heads=k("attention.head_count_kv"),
                     head_dim=k("rope.dimension_count"), ffn=k("feed_forward_length"), context=k("context_length"),
                     theta=k("rope.freq_base"), eps=k("attention.layer_norm_rms_epsilon"))
    return c, {n.removesuffix(".weight"): torch.from_numpy(v.copy()).to(dtype) for n, v in values.items()}


if __name__ == "__main__":
    export(sys.argv[1], sys.argv[2])
