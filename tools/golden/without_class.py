"""Makes cases of families for which transformers has no class: MiniCPM and Maple, as folders and as GGUF.

  python without_class.py [case ...]     default: every case

MiniCPM's arithmetic is Granite's, by other names, so transformers' Granite computes it. Maple's is written out below, after
llama.cpp's graph and the description in vLLM's pull request 51833. llama.cpp computes an F32 twin of each GGUF file: "llama.cpp"
in `noise` is the distance.
"""

import os
import sys
import tempfile

from cases import F32_TOLERANCE, LENGTHS, MODELS, VERSIONS, VOCAB, error, record

import gguf
import gguf_models
import llama_cpp_run
import numpy as np
import torch
from folders import edit_json, randomize, rope, run_all, small, write
from gguf import GGMLQuantizationType as T
from make_golden import draw, run_hf
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from transformers import GraniteConfig, GraniteForCausalLM

# ---------------------------------------------------------------- MiniCPM

SCALE_EMB, SCALE_DEPTH, BASE = 12.0, 1.4, 16
LONG = rope(
    "longrope",
    theta=10000.0,
    short_factor=[1.0, 1.05, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0],
    long_factor=[1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
)


def minicpm_style(config):
    """config.json as OpenBMB publishes it."""
    parameters = config.pop("rope_parameters")
    config |= {
        "architectures": ["MiniCPMForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_minicpm.MiniCPMForCausalLM"},
        "model_type": "minicpm",
        "scale_emb": SCALE_EMB,
        "scale_depth": SCALE_DEPTH,
        "dim_model_base": BASE,
        "rope_scaling": {k: v for k, v in parameters.items() if k not in ("rope_theta", "factor", "attention_factor")},
        "torch_dtype": config.pop("dtype"),
    }
    for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"):
        del config[key]
    del config["transformers_version"], config["head_dim"]


def minicpm_model(original, context, seed, **changes):
    """`original`: the context length of the short divisors."""
    hidden, layers = 64, 3
    factors = {
        "embedding_multiplier": SCALE_EMB,
        "residual_multiplier": SCALE_DEPTH / layers**0.5,
        "logits_scaling": hidden / BASE,
        "attention_multiplier": 16**-0.5,
        "rope_parameters": LONG | {"original_max_position_embeddings": original, "factor": context / original},
    }
    config = small(GraniteConfig, layers=layers, hidden=hidden, tied=True, context=context, **factors | changes)
    m = randomize(GraniteForCausalLM(config), seed)
    m.config._attn_implementation = "eager"
    return m


def minicpm(name, original, context, seed, covers, lengths):
    m = minicpm_model(original, context, seed)
    folder = write(name, m, "bf16", minicpm_style)
    rounded = m.float().state_dict()
    m = minicpm_model(original, context, seed)  # the unrounded frequencies
    m.load_state_dict(rounded)
    sequences = draw(lambda ids: (run_hf(m, ids), 1.0), VOCAB, lengths, seed)
    rows = run_all(m, sequences)

    def without(**changes):
        other = minicpm_model(original, context, seed, **changes)
        other.load_state_dict(m.state_dict())
        return error(run_all(other, sequences), rows)

    plain = LONG | {"original_max_position_embeddings": original, "factor": context / original}
    swapped = plain | {"short_factor": LONG["long_factor"], "long_factor": LONG["short_factor"]}
    noise = {
        "f64": error(rows, run_all(m.double(), sequences)),
        "ignored": min(
            without(embedding_multiplier=1.0),
            without(residual_multiplier=1.0),
            without(logits_scaling=1.0),
            without(rope_parameters=rope()),
            without(rope_parameters=swapped),
        ),
    }
    m.float()
    assert noise["ignored"] > 0.02, (name, noise)
    source = f"transformers GraniteForCausalLM, whose arithmetic it is, f32, eager attention ({VERSIONS})"
    common = (sequences, rows, source, "transformers", F32_TOLERANCE)
    record(name, folder, "minicpm", "hf-bf16", covers, *common, noise=noise)

    more = [
        ("embedding_scale", "f32", SCALE_EMB),
        ("residual_scale", "f32", m.config.residual_multiplier),
        ("logit_scale", "f32", m.config.logits_scaling),
        ("rope.scaling.type", "str", "longrope"),
        ("rope.scaling.original_context_length", "u32", original),
        ("rope.scaling.attn_factor", "f32", float(m.model.rotary_emb.attention_scaling)),
    ]
    values = gguf_models.tensors(m, "minicpm") | {
        f"rope_factors_{kind}.weight": np.array(LONG[f"{kind}_factor"], np.float32) for kind in ("short", "long")
    }
    path = os.path.join(MODELS, name + ".gguf")
    gguf_models.write(path, m, "minicpm", values, T.BF16, more)
    twin = {"llama.cpp": gguf_models.twin_noise(m, "minicpm", values, more, sequences, rows)}
    assert twin["llama.cpp"] < F32_TOLERANCE, twin
    record(
        name + "-gguf", path, "minicpm", "gguf-bf16", covers, *common, noise=twin, values=f"tests/golden/models/{name}.f32"
    )


# ---------------------------------------------------------------- Maple


class Expert(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x, limit):
        gate, up = self.gate_proj(x).clamp(max=limit), self.up_proj(x).clamp(-limit, limit)
        return self.down_proj(F.silu(gate) * up)


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gate = nn.Linear(c["hidden_size"], c["num_experts"], bias=False)
        self.experts = nn.ModuleList(
            Expert(c["hidden_size"], c["moe_intermediate_size"]) for _ in range(c["num_experts"])
        )

    def forward(self, x, edges):
        used = self.c["num_experts_per_tok"]
        p = self.gate(x).softmax(-1)
        best = p.topk(used + 1, -1).values[-1]
        edges.append(float(best[-2] - best[-1]))
        weights, chosen = p.topk(used, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        limit = self.c.get("limit", 7.0)
        rows = [
            sum(w * self.experts[int(e)](row, limit) for w, e in zip(ws, es))
            for row, ws, es in zip(x, weights, chosen)
        ]
        return torch.stack(rows)


class Attention(nn.Module):
    def __init__(self, c, windowed):
        super().__init__()
        self.c, self.windowed = c, windowed
        hidden, dim = c["hidden_size"], c["head_dim"]
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv * dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv * dim, bias=False)
        self.o_proj = nn.Linear(heads * dim, hidden, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=c["rms_norm_eps"])
        self.k_norm = nn.RMSNorm(dim, eps=c["rms_norm_eps"])

    def turn(self, x):
        """[tokens, heads, dim]; the first part of a head rotates. The elements of a pair are half that part apart."""
        dims = int(self.c["head_dim"] * self.c["rope_parameters"]["partial_rotary_factor"])
        theta = self.c["rope_parameters"]["rope_theta"]
        freq = theta ** -(torch.arange(0, dims, 2, dtype=torch.float64) / dims)
        angle = torch.arange(len(x), dtype=torch.float64)[:, None, None] * freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def forward(self, x):
        n, dim = len(x), self.c["head_dim"]
        q, k, v = (p(x).view(n, -1, dim) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.windowed or self.c.get("rotates_all"):
            q, k = self.turn(q), self.turn(k)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * dim**-0.5
        back = torch.arange(n)[:, None] - torch.arange(n)[None]
        seen = (back >= 0) & (back <= self.c["sliding_window"] if self.windowed else back >= 0)
        p = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.o_proj(torch.einsum("hqk,khd->qhd", p, v).reshape(n, -1))


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        norm = lambda: nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.self_attn = Attention(c, kind == "sliding_attention")
        self.mlp = Experts(c)

    def forward(self, x, edges):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x), edges)


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, kind) for kind in c["layer_types"])
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])


class Maple(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.model = c, Body(c)
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    @torch.no_grad()
    def run(self, ids):
        """Logits of all rows, and the last row's margin to another choice of experts."""
        edges = []
        x = self.model.embed_tokens(torch.tensor(ids))
        for layer in self.model.layers:
            x = layer(x, edges)
        return self.lm_head(self.model.norm(x)), min(edges)


def maple_config(**more):
    return {
        "architectures": ["MapleForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 48,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "max_position_embeddings": 128,
        "moe_intermediate_size": 24,
        "nope_on_global_attention": True,
        "norm_topk_prob": True,
        "num_attention_heads": 6,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_shared_experts": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "router_dtype": "fp32",
        "sliding_window": 12,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    } | more


PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
}


def write_maple(path, m, matrix, window):
    """`matrix`: the type of products and experts. The router is F32, as published."""
    c, arch = m.c, "maple"
    state = {n: x.float().numpy() for n, x in m.state_dict().items()}
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_dimension_count(int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"]))
    w.add_rope_freq_base(c["rope_parameters"]["rope_theta"])
    w.add_sliding_window(window)
    w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_array(f"{arch}.swiglu_clamp_exp", [7.0] * c["num_hidden_layers"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("no_vocab")

    def add(name, x, kind):
        w.add_tensor(name, gguf.quants.quantize(x, kind) if kind != T.F32 else x, raw_dtype=kind)

    add("token_embd.weight", state["model.embed_tokens.weight"], T.BF16 if matrix != T.F32 else matrix)
    add("output.weight", state["lm_head.weight"], T.BF16 if matrix != T.F32 else matrix)
    add("output_norm.weight", state["model.norm.weight"], T.F32)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, part in PARTS.items():
            x = state[f"{layer}{part}.weight"]
            add(f"blk.{i}.{name}.weight", x, T.F32 if x.ndim == 1 or part == "mlp.gate" else matrix)
        for part in ("gate", "up", "down"):
            experts = [state[f"{layer}mlp.experts.{e}.{part}_proj.weight"] for e in range(c["num_experts"])]
            add(f"blk.{i}.ffn_{part}_exps.weight", np.stack(experts), matrix)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def maple_rows(m, sequences):
    return torch.cat([m.run(ids)[0] for ids in sequences])


def maple_twin(m, sequences, matrix=T.F32):
    """llama.cpp's logits. Its windows count a row's own position; the model's do not."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "twin.gguf")
        write_maple(path, m, matrix, m.c["sliding_window"] + 1)
        return llama_cpp_run.run(path, sequences, m.c["vocab_size"])


def sharpened(m, seed):
    """Experts whose gates and ups sometimes exceed the limit on both sides."""
    randomize(m, seed)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if ".experts." in name and "down" not in name:
                p.mul_(3.0)
    return m


def maple(name="maple", seed=101):
    m = sharpened(Maple(maple_config()), seed).to(torch.bfloat16)
    folder = os.path.join(MODELS, name)
    os.makedirs(folder, exist_ok=True)
    save_file(m.state_dict(), os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write("{}")
    edit_json(os.path.join(folder, "config.json"), lambda config: config.update(m.c))
    m.float()
    sequences = draw(lambda ids: (lambda rows, edge: (rows, float(edge > 2e-5)))(*m.run(ids)), VOCAB, LENGTHS, seed)
    rows = maple_rows(m, sequences)

    def without(**changes):
        other = Maple(m.c | changes)
        other.load_state_dict(m.state_dict())
        return error(maple_rows(other, sequences), rows)

    whole = m.c["rope_parameters"] | {"partial_rotary_factor": 1.0}
    noise = {
        "f64": error(rows, maple_rows(m.double(), sequences)),
        "ignored": min(
            without(sliding_window=11), without(limit=1e9), without(rotates_all=True), without(rope_parameters=whole)
        ),
        "llama.cpp": error(maple_twin(m.float(), sequences), rows),
    }
    assert noise["ignored"] > 0.02 and noise["llama.cpp"] < F32_TOLERANCE, noise
    covers = (
        "6 experts, the best 2 of each row, gates and ups limited to 7; windows of 12 beside a row's own position in three "
        "layers, which rotate half of a head; a layer without window and rotation"
    )
    source = f"tools/golden/without_class.py, f32 ({VERSIONS})"
    common = (sequences, rows, source, "torch", F32_TOLERANCE)
    record(name, folder, "maple", "hf-bf16", covers + "; no model_type", *common, noise=noise)
    path = os.path.join(MODELS, name + ".gguf")
    write_maple(path, m, T.BF16, m.c["sliding_window"])
    record(
        name + "-gguf", path, "maple", "gguf-bf16", covers, *common, noise=noise, values=f"tests/golden/models/{name}.f32"
    )


CASES = {
    "minicpm": lambda: minicpm(
        "minicpm",
        256,
        256,  # llama.cpp's contexts are multiples of 256
        96,
        "factors on embedding, updates and logits; longrope within its original context",
        LENGTHS,
    ),
    "minicpm-long": lambda: minicpm(
        "minicpm-long", 16, 128, 97, "longrope above its original context: long divisors, a factor on cos and sin", (64, 17, 33)
    ),
    "maple": maple,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
