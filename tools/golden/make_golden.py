"""Makes the reference logits in tests/golden/ (and the tiny random models that they belong to).

  python make_golden.py [case ...]     default: every case

A case is <case>.json (model, sequences, source) and <case>.f32 (f32 little-endian logits, a row per
token, the sequences one after the other). Each model runs each sequence alone, unbatched.

Tokens are drawn at random, but a token is taken only if its row is well-conditioned: the best logit
clearly ahead of the second, and (BitNet) no activation near the edge between two int8 steps, where
a last-bit difference in a float sum would flip a step. So a difference found against these
references is an error, not bad luck; "margins" in the JSON says how far away the edges are.
"""

import json
import os
import random
import sys

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # transformers compiles its BitNet quantizers

import numpy as np
import torch
import transformers
from transformers import BitNetConfig, BitNetForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations import bitnet as hf_bitnet

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OUT = os.path.join(ROOT, "tests", "golden")
sys.path.insert(0, os.path.join(ROOT, "tools", "train_demo"))

import corpus  # noqa: E402
import export  # noqa: E402
import gguf_io as g  # noqa: E402
import model as demo  # noqa: E402
import tok  # noqa: E402

VERSIONS = f"torch {torch.__version__}, transformers {transformers.__version__}"
GAP = 0.02  # best logit over second, as a share of the largest magnitude in the row
EDGE = 2e-4  # distance of an activation from a rounding edge, in int8 steps


# ---------------------------------------------------------------- drawing sequences


def well_conditioned(row, edge, gap=GAP, min_edge=EDGE):
    top = row.topk(2).values
    return float(top[0] - top[1]) > gap * float(row.abs().max()) and edge > min_edge


def draw(run, vocab, lengths, seed):
    """run(ids) -> (logits of every position, smallest edge distance at the last position)."""
    rng = np.random.default_rng(seed)
    sequences = []
    for n in lengths:
        ids, misses = [], 0
        while len(ids) < n:
            t = int(rng.integers(vocab))
            logits, edge = run(ids + [t])
            if well_conditioned(logits[-1], edge):
                ids.append(t)
                misses = 0
                continue
            misses += 1
            assert misses < 2000, "no token satisfies the margins"
        sequences.append(ids)
    return sequences


def save(case, gguf, vocab, sequences, logits, source, **more):
    rows = torch.cat([x.to(torch.float32) for x in logits])
    assert rows.shape == (sum(map(len, sequences)), vocab) and bool(rows.isfinite().all())
    rows.numpy().astype("<f4").tofile(os.path.join(OUT, case + ".f32"))
    top = rows.topk(2, -1).values
    gap = ((top[:, 0] - top[:, 1]) / rows.abs().amax(-1)).min()
    rec = {"model": gguf, "sequences": sequences, "vocab": vocab, "logits": case + ".f32", "source": source,
           "margins": {"argmax_gap": round(float(gap), 5), **more}}
    with open(os.path.join(OUT, case + ".json"), "w") as f:
        lines = [f' {json.dumps(k)}: {json.dumps(v)}' for k, v in rec.items() if k != "sequences"]
        lines.insert(1, ' "sequences": [\n  ' + ",\n  ".join(map(json.dumps, sequences)) + "\n ]")
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
    print(case, rows.shape, "largest", float(rows.abs().max()), rec["margins"])


# ---------------------------------------------------------------- llama

PER_LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}


def names(layers, tied, per_layer=PER_LAYER):
    out = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    if not tied:
        out["output"] = "lm_head"
    for i in range(layers):
        out.update({f"blk.{i}.{a}": f"model.layers.{i}.{b}" for a, b in per_layer.items()})
    return {a + ".weight": b + ".weight" for a, b in out.items()}


def to_interleaved(w, heads):
    """Reorders rows of q or k for GGUF's `llama`: its rope rotates neighbors, transformers' rotates halves."""
    d = w.shape[0] // heads
    return w.reshape(heads, 2, d // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def from_interleaved(w, heads):
    d = w.shape[0] // heads
    return w.reshape(heads, d // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def random_model(cls, config, seed):
    """Weights large enough that attention is sharp and every norm matters."""
    torch.manual_seed(seed)
    m = cls(config).eval()
    with torch.no_grad():
        for n, p in m.named_parameters():
            if p.ndim == 1:
                p.uniform_(0.4, 1.8)
            elif "embed_tokens" in n or "lm_head" in n:
                p.normal_(0, 0.5)
            else:
                p.normal_(0, 1.5 * p.shape[1] ** -0.5)
    return m


def llama_metadata(config, head_dim, key_length):
    a = "llama."
    meta = [
        ("general.architecture", g.STR, "llama"), ("general.name", g.STR, "llama-tiny"),
        (a + "context_length", g.U32, 256), (a + "embedding_length", g.U32, config.hidden_size),
        (a + "block_count", g.U32, config.num_hidden_layers), (a + "feed_forward_length", g.U32, config.intermediate_size),
        (a + "attention.head_count", g.U32, config.num_attention_heads),
        (a + "attention.head_count_kv", g.U32, config.num_key_value_heads),
        (a + "attention.layer_norm_rms_epsilon", g.FLT, config.rms_norm_eps), (a + "rope.freq_base", g.FLT, 10000.0),
        (a + "rope.dimension_count", g.U32, head_dim), (a + "vocab_size", g.U32, config.vocab_size),
    ]
    if key_length:
        meta += [(a + "attention.key_length", g.U32, head_dim), (a + "attention.value_length", g.U32, head_dim)]
    return meta


def run_hf(m, ids):
    with torch.no_grad():
        return m(torch.tensor([ids])).logits[0]


def llama(stem, kinds, seed, heads=4, kv_heads=2, head_dim=16, tied=False):
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=heads,
                         num_key_value_heads=kv_heads, head_dim=head_dim, vocab_size=128, rms_norm_eps=1e-5,
                         rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=tied,
                         max_position_embeddings=256, attn_implementation="eager")
    m = random_model(LlamaForCausalLM, config, seed)
    original = {n: p.detach().clone() for n, p in m.named_parameters()}
    table = names(2, tied)
    rotated = {f"blk.{i}.attn_{x}.weight": h for i in range(2) for x, h in (("q", heads), ("k", kv_heads))}
    sequences = None
    for label, kind in kinds.items():
        case = f"{stem}-{label}" if label else stem
        tensors = []
        for gname, hname in table.items():
            x = original[hname].numpy()
            x = to_interleaved(x, rotated[gname]) if gname in rotated else x
            tensors.append((gname, g.F32 if x.ndim == 1 else kind, np.ascontiguousarray(x)))
        path = f"tests/golden/{case}.gguf"
        g.write(os.path.join(ROOT, path), llama_metadata(config, head_dim, head_dim * heads != 64), tensors)
        # The reference computes with the file's values.
        _, values, _ = g.read(os.path.join(ROOT, path))
        with torch.no_grad():
            params = dict(m.named_parameters())
            for gname, hname in table.items():
                v = values[gname]
                v = from_interleaved(v, rotated[gname]) if gname in rotated else v
                params[hname].copy_(torch.from_numpy(v.copy(order="C")))
        sequences = draw(lambda ids: (run_hf(m, ids), 1.0), 128, (23, 1, 40, 9), seed)
        save(case, path, 128, sequences, [run_hf(m, s) for s in sequences],
             f"transformers LlamaForCausalLM, random weights as stored in the file, f32 ({VERSIONS})")


# ---------------------------------------------------------------- bitnet

BITNET_PER_LAYER = PER_LAYER | {"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"}


def bitnet(seed=11, hidden=256, ffn=512, heads=4, kv_heads=2, vocab=128):
    config = BitNetConfig(hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=2, num_attention_heads=heads,
                          num_key_value_heads=kv_heads, vocab_size=vocab, rms_norm_eps=1e-5, hidden_act="relu2",
                          rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=True,
                          max_position_embeddings=256, bos_token_id=0, eos_token_id=1, attn_implementation="eager")
    m = random_model(BitNetForCausalLM, config, seed)
    gen = torch.Generator().manual_seed(seed)
    table = names(2, True, BITNET_PER_LAYER)
    back = {h: a for a, h in table.items()}
    stored = {}
    # transformers' BitLinear for checkpoints without bf16: ternary weights, the scale applied afterwards,
    # activations through ActQuant. Scales are exact in f16, the type in which TQ2_0 stores them.
    for name, lin in [(n, x) for n, x in m.named_modules() if isinstance(x, torch.nn.Linear) and n != "lm_head"]:
        codes = torch.randint(-1, 2, lin.weight.shape, generator=gen)
        scale = float(np.float16(lin.weight.detach().abs().mean()))
        new = hf_bitnet.AutoBitLinear(lin.in_features, lin.out_features, bias=False, dtype=torch.float32)
        new.weight.data.copy_(codes.float())
        new.weight_scale.fill_(scale)
        m.set_submodule(name, new)
        stored[back[name + ".weight"]] = (codes.numpy().astype(np.int8), scale)
    with torch.no_grad():  # the file holds the embedding as f16
        m.model.embed_tokens.weight.copy_(m.model.embed_tokens.weight.half().float())
        m.tie_weights()
    m.eval()

    edges = []

    def watch(_, args):
        x = args[0].detach()[0, -1].double()
        y = (x * (127 / x.abs().max().clamp(min=1e-5))).abs()
        edges.append(float((y - y.floor() - 0.5).abs().min()))

    for x in m.modules():
        if isinstance(x, hf_bitnet.AutoBitLinear):
            x.register_forward_pre_hook(watch)

    def run(ids):
        edges.clear()
        return run_hf(m, ids), min(edges)

    c = demo.Config(vocab=vocab, hidden=hidden, layers=2, heads=heads, kv_heads=kv_heads, head_dim=hidden // heads,
                    ffn=ffn, context=256)
    params = dict(m.named_parameters())
    sequences = draw(run, vocab, (19, 1, 33, 8), seed)
    worst = min(run(s[:k + 1])[1] for s in sequences for k in range(len(s)))
    logits = [run_hf(m, s) for s in sequences]

    # The training script's model must agree.
    w = {a.removesuffix(".weight"): params[h].detach() for a, h in table.items() if a not in stored}
    w |= {a.removesuffix(".weight"): torch.from_numpy(x.astype(np.float32)) * s for a, (x, s) in stored.items()}
    for s, ref in zip(sequences, logits):
        with torch.no_grad():
            ours = demo.forward(c, w, torch.tensor([s]))
        assert float((ours - ref).abs().max() / ref.abs().max()) < 1e-4, "the two BitNet models differ"

    for label, kind in (("i2_s", g.I2_S), ("tq2_0", g.TQ2_0)):
        tensors = []
        for a, h in table.items():
            x = stored[a] if a in stored else params[h].detach().numpy()
            tensors.append((a, kind if a in stored else g.F16 if a == "token_embd.weight" else g.F32, x))
        path = f"tests/golden/bitnet-tiny-{label}.gguf"
        g.write(os.path.join(ROOT, path), export.model_metadata(c, "bitnet-tiny"), tensors)
        _, values, _ = g.read(os.path.join(ROOT, path))
        for a, (x, s) in stored.items():
            assert np.array_equal(values[a], x.astype(np.float32) * np.float32(s)), a
        save(f"bitnet-tiny-{label}", path, vocab, sequences, logits,
             "transformers BitNetForCausalLM with its AutoBitLinear (ternary weights, int8 activations through its "
             f"ActQuant), f32; the training script's model agrees to 1e-4 ({VERSIONS})", int8_edge=round(worst, 6))


# ---------------------------------------------------------------- the demo model


def demo_runner(path):
    """(Config, run): the training script's model in f64 on the values of the GGUF file."""
    c, w = export.load(path, torch.float64)
    edges = []

    def watched(x, weight, eps, quant):
        n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
        s = 127.0 / n.abs().amax(-1, keepdim=True).clamp_min(1e-5)
        y = n * s
        a = y.abs()
        edges.append((a - a.floor() - 0.5).abs().amin(-1)[0])
        return y.round().clamp(-128, 127) / s

    def run(ids):
        edges.clear()
        with torch.no_grad():
            logits = demo.forward(c, w, torch.tensor([ids]), norm_quant=watched)
        return logits, torch.stack(edges).amin(0)

    return c, run


def demo_case():
    """Real text, built piece by piece from alternatives whose rows are well-conditioned."""
    path = "models/bn-demo.gguf"
    c, run = demo_runner(os.path.join(ROOT, path))
    t = tok.load(os.path.join(ROOT, "tools", "train_demo", "tokenizer.json"))
    bos = t.token_to_id(tok.BOS)
    rng = random.Random(5)

    def grow(ids, options):
        """Appends the first option whose new rows have wide enough margins, else the widest."""
        best = None
        for o in options:
            logits, edge = run(ids + o)
            top = logits[len(ids):].topk(2).values
            gap = float(((top[:, 0] - top[:, 1]) / logits[len(ids):].abs().amax(-1)).min())
            # both as a share of the required margin
            score = min(float(edge[len(ids):].min()) / 1e-4, gap / 4e-3)
            best = max(best or (score, o), (score, o))
            if score >= 1:
                break
        return ids + best[1]

    def texts(*options):
        return [t.encode(o).ids for o in options]

    def likely(ids, n):
        while len(ids) < n:
            order = run(ids)[0][-1].topk(24).indices.tolist()
            ids = grow(ids, [[x] for x in order])
        return ids

    name = lambda: rng.choice(corpus.NAMES)
    number = lambda: str(rng.randrange(100))
    story = grow([bos], texts("Once upon a time,", "One day,", "There was once a", "In a small village,", "Long ago,",
                              "One morning,", "This is the story of", "Snow fell all night long."))
    total = grow([bos], texts(*(f"{number()}+{number()}=" for _ in range(300))))
    named = grow([bos], texts(*(f"{o}, {n}" for o in ("One day", "Last summer", "One morning") for n in corpus.NAMES)))
    ages = grow([bos] + t.encode("Ages:").ids, texts(*(f" {name()} {number()}," for _ in range(200))))
    ages = grow(ages, texts(*(f" {name()} {number()}," for _ in range(200))))
    ages = grow(ages, texts(*(f" {name()} {number()}. {name()}?" for _ in range(300))))
    sequences = [likely(story, 48), likely(total, len(total) + 3), likely(ages, len(ages) + 3), likely(named, 24)]
    out = [run(s) for s in sequences]
    save("demo", path, c.vocab, sequences, [x for x, _ in out],
         f"the training script's model (tools/train_demo/model.py) in f64 on the values in the GGUF file ({VERSIONS})",
         int8_edge=round(min(float(e.min()) for _, e in out), 6))


CASES = {
    "llama-tiny": lambda: llama("llama-tiny", {"f32": g.F32}, 7),
    "llama-tiny-mha": lambda: llama("llama-tiny-mha", {"": g.F16}, 9, heads=4, kv_heads=4, head_dim=32),
    "bitnet-tiny": bitnet,
    "demo": demo_case,
}

if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
