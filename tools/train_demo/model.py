"""The demo model: a BitNet b1.58 decoder, the forward pass the engine has to reproduce.

`forward(cfg, w, ids)` is a pure function of a dict of weights, so the same code runs the float
latents, their ternary values (training) and what a GGUF file holds (references).
"""

from dataclasses import dataclass, asdict

import torch
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 1280
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 512
    context: int = 512
    theta: float = 10000.0
    eps: float = 1e-5

    def to_dict(self):
        return asdict(self)


def matrix_shapes(c):
    """Ternary matrices of one layer, [out, in]."""
    return {
        "attn_q": (c.heads * c.head_dim, c.hidden),
        "attn_k": (c.kv_heads * c.head_dim, c.hidden),
        "attn_v": (c.kv_heads * c.head_dim, c.hidden),
        "attn_output": (c.hidden, c.heads * c.head_dim),
        "ffn_gate": (c.ffn, c.hidden),
        "ffn_up": (c.ffn, c.hidden),
        "ffn_down": (c.hidden, c.ffn),
    }


def norm_sizes(c):
    return {"attn_norm": c.hidden, "attn_sub_norm": c.heads * c.head_dim, "ffn_norm": c.hidden, "ffn_sub_norm": c.ffn}


def init_weights(c, seed=0):
    g = torch.Generator().manual_seed(seed)
    w = {"token_embd": torch.randn(c.vocab, c.hidden, generator=g) * 0.05, "output_norm": torch.ones(c.hidden)}
    for i in range(c.layers):
        for name, size in norm_sizes(c).items():
            w[f"blk.{i}.{name}"] = torch.ones(size)
        for name, (rows, cols) in matrix_shapes(c).items():
            w[f"blk.{i}.{name}"] = torch.randn(rows, cols, generator=g) * cols**-0.5
    return w


def is_matrix(name):
    return name.startswith("blk.") and not name.endswith("norm")


def ternarize(w):
    """(codes in {-1, 0, 1}, scale): the scale is the mean of |W|."""
    scale = w.abs().mean().clamp_min(1e-8)
    return (w / scale).round().clamp(-1, 1), scale


class NormQuant(torch.autograd.Function):
    """RMS norm, then int8 per token and back, straight-through. One node: the graph stays small."""

    @staticmethod
    def forward(ctx, x, w, eps, quant):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        n = x * r
        ctx.save_for_backward(n, r, w)
        y = n * w
        if quant:
            s = 127.0 / y.abs().amax(-1, keepdim=True).clamp_min(1e-5)
            y.mul_(s).round_().clamp_(-128, 127).div_(s)
        return y

    @staticmethod
    def backward(ctx, g):
        n, r, w = ctx.saved_tensors
        gw = (g * n).reshape(-1, n.shape[-1]).sum(0)
        g = g * w
        return (g - n * (g * n).mean(-1, keepdim=True)).mul_(r), gw, None, None


class Relu2Gate(torch.autograd.Function):
    """relu(gate)^2 * up"""

    @staticmethod
    def forward(ctx, gate, up):
        a = gate.clamp_min(0)
        ctx.save_for_backward(a, up)
        return a.square().mul_(up)

    @staticmethod
    def backward(ctx, g):
        a, up = ctx.saved_tensors
        ga = g * a
        return (ga * up).mul_(2), ga.mul_(a)


def rope_tables(c, positions, dtype):
    freq = c.theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
    angle = positions.to(torch.float64)[..., None] * freq
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rope(x, cos, sin):
    """NEOX pairing: element i turns with element i + head_dim/2."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def forward(c, w, ids, positions=None, mask=None, quant=True, pick=None, norm_quant=NormQuant.apply):
    """Logits [rows, vocab] of `ids` [B, T]; `pick` (flat row indices) limits the head to those rows.

    `mask` [B, 1, T, T] is True where attention may look; causal when absent.
    """
    B, T = ids.shape
    h = F.embedding(ids, w["token_embd"])
    if positions is None:
        positions = torch.arange(T)[None]
    cos, sin = (t[:, None] for t in rope_tables(c, positions, h.dtype))
    group = c.heads // c.kv_heads
    for i in range(c.layers):
        p = f"blk.{i}."
        y = norm_quant(h, w[p + "attn_norm"], c.eps, quant)
        q = F.linear(y, w[p + "attn_q"]).view(B, T, c.heads, c.head_dim).transpose(1, 2)
        k = F.linear(y, w[p + "attn_k"]).view(B, T, c.kv_heads, c.head_dim).transpose(1, 2)
        v = F.linear(y, w[p + "attn_v"]).view(B, T, c.kv_heads, c.head_dim).transpose(1, 2)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        a = a.transpose(1, 2).reshape(B, T, c.heads * c.head_dim)
        h = h + F.linear(norm_quant(a, w[p + "attn_sub_norm"], c.eps, quant), w[p + "attn_output"])
        y = norm_quant(h, w[p + "ffn_norm"], c.eps, quant)
        f = Relu2Gate.apply(F.linear(y, w[p + "ffn_gate"]), F.linear(y, w[p + "ffn_up"]))
        h = h + F.linear(norm_quant(f, w[p + "ffn_sub_norm"], c.eps, quant), w[p + "ffn_down"])
    h = h.reshape(B * T, c.hidden)
    if pick is not None:
        h = h[pick]
    h = NormQuant.apply(h, w["output_norm"], c.eps, False)
    return F.linear(h, w["token_embd"])
