"""Embedding models: Qwen3 and Gemma 3 bodies, and the same with BitNet's linear layers, as
microsoft/bitnet-embedding-0.6b and -270m have them: a norm before each of the seven projections, ternary weights,
int8 activations.

  python embedding_models.py [case ...]     default: every case

The reference is transformers' base model, its last hidden states pooled (the last token's, or the mean of all) and
divided by their 2-norm. transformers has no class for BitNet's bodies: there the reference is its Qwen3Model or
Gemma3TextModel with its AutoBitLinear in place of each Linear. Facts of the files:
docs/bitnet-embeddings-i2s-guide.md and utils/convert-bitnet-embedding-to-gguf.py in microsoft/BitNet.
"""

import json
import os
import sys
import tempfile

from cases import BITNET_TOLERANCE, F32_TOLERANCE, LENGTHS, MODELS, VERSIONS, VOCAB, error, find, record

import gguf_io
import llama_cpp_run
import numpy as np
import torch
from bitnet_folders import LINEARS, drawer, ternary_state
from bitnet_folders import write as write_state
from folders import GEMMA_ROPE, gemma_style, load, old_style, randomize, rope, small, write
from gguf import GGMLQuantizationType
from gguf_models import GEMMA3, PER_LAYER, QK_NORMS, i2_s_metadata, i2_s_tensor, tensors
from gguf_models import write as write_gguf
from make_golden import draw
from transformers import AutoModel, Gemma3TextConfig, Gemma3TextModel, Qwen3Config, Qwen3Model
from transformers.integrations import bitnet as hf

BF16, F32 = GGMLQuantizationType.BF16, GGMLQuantizationType.F32


def hidden_states(m, ids):
    with torch.no_grad():
        return m(torch.tensor([ids])).last_hidden_state[0]


def pooled(m, sequences, pooling):
    rows = [hidden_states(m, s) for s in sequences]
    rows = torch.stack([x[-1] if pooling == "last" else x.mean(0) for x in rows])
    return torch.nn.functional.normalize(rows, dim=-1)


def say_pooling(folder, pooling, width):
    """modules.json and 1_Pooling/config.json, as sentence-transformers writes them."""
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{k}" if i else "",
            "type": f"sentence_transformers.models.{k}",
        }
        for i, k in enumerate(kinds)
    ]
    config = {"word_embedding_dimension": width} | {
        f"pooling_mode_{k}": k == {"last": "lasttoken", "mean": "mean_tokens"}[pooling]
        for k in (
            "cls_token",
            "mean_tokens",
            "max_tokens",
            "mean_sqrt_len_tokens",
            "weightedmean_tokens",
            "lasttoken",
        )
    }
    os.makedirs(os.path.join(folder, "1_Pooling"))
    for path, value in (("modules.json", modules), ("1_Pooling/config.json", config)):
        with open(os.path.join(folder, path), "w") as f:
            f.write(json.dumps(value, indent=1) + "\n")


def random_sequences(seed, run=None):
    """Draws any tokens, as there is no argmax to keep, or those that avoid rounding edges of int8."""
    gen = np.random.default_rng(seed)
    if run is None:
        return [[int(t) for t in gen.integers(VOCAB, size=n)] for n in LENGTHS]
    apart = torch.zeros(1, 2)
    apart[0, 0] = 1.0  # a row that `draw` finds well-conditioned
    return draw(lambda ids: (apart, run(ids)[1]), VOCAB, LENGTHS, seed)


def body(qwen, **more):
    if qwen:
        return small(Qwen3Config, eps=1e-6, tied=True, **({"hidden": 32, "head_dim": 32} | more))
    sizes = {
        "hidden": 32,
        "layers": 2,
        "query_pre_attn_scalar": 16,
        "rope_parameters": GEMMA_ROPE,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    return small(
        Gemma3TextConfig,
        kv_heads=1,
        eps=1e-6,
        tied=True,
        hidden_activation="gelu_pytorch_tanh",
        **(sizes | more),
    )


def other_pooling(pooling):
    return "mean" if pooling == "last" else "last"


def plain(name, cls, config, style, seed, pooling, covers):
    folder = write(name, randomize(cls(config), seed), "bf16", style)
    say_pooling(folder, pooling, config.hidden_size)
    m = load(folder, AutoModel)
    sequences = random_sequences(seed)
    rows = pooled(m, sequences, pooling)
    noise = {"ignored": error(pooled(m, sequences, other_pooling(pooling)), rows)}
    record(
        name,
        folder,
        config.model_type,
        "hf-bf16",
        covers,
        sequences,
        rows,
        f"transformers {cls.__name__} loaded from the "
        f"folder, f32, eager attention; pooled, L2-normalised ({VERSIONS})",
        "transformers",
        F32_TOLERANCE,
        noise=noise,
        pooling=pooling,
    )


def with_bit_linears(cls, config, state):
    """The body with AutoBitLinear, loaded from a state dict with the file's names."""
    m = cls(config)
    for name, linear in list(m.named_modules()):
        if isinstance(linear, torch.nn.Linear):
            m.set_submodule(
                name,
                hf.AutoBitLinear(
                    linear.in_features,
                    linear.out_features,
                    bias=False,
                    online_quant=True,
                    use_rms_norm=True,
                    rms_norm_eps=config.rms_norm_eps,
                ),
            )
    m.load_state_dict({n.replace("_proj.norm.", "_proj.rms_norm."): t.float() for n, t in state.items()})
    m.config._attn_implementation = "eager"
    return m.eval()


def no_projection_norms(m):
    for x in m.modules():
        if isinstance(x, LINEARS):
            x.rms_norm = None
    return m


BIT_SOURCE = "with its AutoBitLinear (online, use_rms_norm) for each Linear, f32 with int8 activations; pooled, L2-normalised"


def bit_noise(make, m, sequences, rows, pooling):
    run = drawer(m, hidden_states)
    edge = min(run(s[: k + 1])[1] for s in sequences for k in range(len(s)))
    wrong = error(pooled(no_projection_norms(make()), sequences, pooling), rows)
    assert wrong > 0.02, wrong
    return {"int8_edge": edge, "ignored": wrong}


def bit_folder(name, cls, config, style, seed, covers):
    base = randomize(cls(config), seed)
    state = ternary_state(base, "autobitlinear", True, True, seed, "norm")
    folder = write_state(name, base, state, style, None)
    m = with_bit_linears(cls, config, state)
    sequences = random_sequences(seed, drawer(m, hidden_states))
    rows = pooled(m, sequences, "last")
    noise = bit_noise(lambda: with_bit_linears(cls, config, state), m, sequences, rows, "last")
    record(
        name,
        folder,
        config.model_type,
        "hf-bf16",
        covers,
        sequences,
        rows,
        f"transformers {cls.__name__} {BIT_SOURCE} ({VERSIONS})",
        "transformers",
        BITNET_TOLERANCE,
        noise=noise,
        pooling="last",
    )


def plain_gguf(folder, arch, pooling, covers):
    """The folder's values as GGUF. The file's key sets the pooling, in llama.cpp too."""
    case = find(folder)
    m = load(os.path.join(MODELS, folder))
    rows = pooled(m.model, case["sequences"], pooling)
    more = [("pooling_type", "u32", POOLING_TYPES[pooling])]
    path = os.path.join(MODELS, folder + ".gguf")
    write_gguf(path, m, arch, tensors(m, arch), BF16, more)
    with tempfile.TemporaryDirectory() as temporary:
        twin = os.path.join(temporary, "twin.gguf")
        write_gguf(twin, m, arch, tensors(m, arch), F32, more)
        theirs = llama_cpp_run.run(twin, case["sequences"], VOCAB, embedding=m.config.hidden_size)
    noise = {"llama.cpp": error(torch.nn.functional.normalize(theirs, dim=-1), rows)}
    assert noise["llama.cpp"] < F32_TOLERANCE, noise
    record(
        folder + "-gguf",
        path,
        arch,
        "gguf-bf16",
        covers,
        case["sequences"],
        rows,
        case["source"],
        "transformers",
        F32_TOLERANCE,
        noise=noise,
        pooling=pooling,
        values=case["embedding"],
    )


POOLING_TYPES = {"mean": 1, "last": 3}
PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def bit_gguf(name, arch, cls, config, seed, pooling, covers, more=()):
    """As Microsoft's converter writes it: I2_S, everything else in F16, also norms; Gemma's norms as 1 + weight."""
    base = randomize(cls(config), seed)
    state = {
        n: t.half().float() for n, t in ternary_state(base, "autobitlinear", True, True, seed, "norm").items()
    }
    table = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}
    layer = (PER_LAYER | QK_NORMS if arch == "qwen3" else GEMMA3) | {
        f"{a}_norm_in": f"{b}.norm" for a, b in PROJECTIONS.items()
    }
    for i in range(config.num_hidden_layers):
        table |= {f"blk.{i}.{a}.weight": f"layers.{i}.{b}.weight" for a, b in layer.items()}
    out = []
    for a, b in table.items():
        x = state[b].numpy()
        if x.ndim == 2 and a != "token_embd.weight":  # what the file can say: codes times mean |w|
            scale = np.float32(np.abs(x).mean())
            state[b] = torch.from_numpy(np.clip(np.rint(x / scale), -1, 1) * scale)
            out.append(i2_s_tensor(a, state[b].numpy()))
            continue
        if arch == "gemma3" and a.endswith("norm.weight"):
            x = (x + np.float32(1)).astype(np.float16).astype(np.float32)
            state[b] = torch.from_numpy(x - np.float32(1))
        out.append(i2_s_tensor(a, x, gguf_io.F16))
    path = os.path.join(MODELS, name + ".gguf")
    meta = (
        i2_s_metadata(base, arch)
        + [(f"{arch}.pooling_type", gguf_io.U32, POOLING_TYPES[pooling])]
        + [(f"{arch}.{k}", t, v) for k, t, v in more]
    )
    gguf_io.write(path, meta, out)
    m = offline(with_bit_linears(cls, config, state))
    sequences = random_sequences(seed, drawer(m, hidden_states))
    rows = pooled(m, sequences, pooling)
    noise = bit_noise(lambda: offline(with_bit_linears(cls, config, state)), m, sequences, rows, pooling)
    record(
        name,
        path,
        arch,
        "gguf-i2_s",
        covers,
        sequences,
        rows,
        f"transformers {cls.__name__} "
        f"{BIT_SOURCE.replace('online', 'offline')}, on the values in the file ({VERSIONS})",
        "transformers",
        BITNET_TOLERANCE,
        noise=noise,
        pooling=pooling,
    )


def offline(m):
    """The weights are already ternary, so the scale is their largest magnitude."""
    for x in m.modules():
        if isinstance(x, hf.AutoBitLinear):
            x.online_quant, scale = False, x.weight.abs().max()
            x.weight.data /= scale
            x.weight_scale = scale.detach().clone()
    return m


QWEN_128 = {"hidden": 128, "ffn": 128, "kv_heads": 1, "head_dim": 32}
# The converter writes one rope base and no window.
GEMMA_128 = {
    "hidden": 128,
    "ffn": 128,
    "layers": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 128,
    "layer_types": ["sliding_attention"],
    "rope_parameters": {"sliding_attention": rope(), "full_attention": rope()},
}

CASES = {
    "qwen3-embedding": lambda: plain(
        "qwen3-embedding",
        Qwen3Model,
        body(True),
        old_style,
        81,
        "last",
        "Qwen3-Embedding: names without `model.`, last-token pooling named in 1_Pooling/config.json",
    ),
    "gemma3-embedding": lambda: plain(
        "gemma3-embedding",
        Gemma3TextModel,
        body(False),
        gemma_style,
        82,
        "mean",
        "a Gemma 3 body, mean pooling named in 1_Pooling/config.json",
    ),
    "qwen3-embedding-gguf": lambda: plain_gguf(
        "qwen3-embedding", "qwen3", "last", "the same as GGUF: pooling_type 3 (last)"
    ),
    "bitnet-embedding-qwen3": lambda: bit_folder(
        "bitnet-embedding-qwen3",
        Qwen3Model,
        body(True),
        old_style,
        83,
        "bitnet-embedding-0.6b: a norm before each projection, bf16 weights that become "
        "ternary at load; nothing names the pooling: last token",
    ),
    "bitnet-embedding-gemma3": lambda: bit_folder(
        "bitnet-embedding-gemma3",
        Gemma3TextModel,
        body(False),
        gemma_style,
        84,
        "bitnet-embedding-270m: Gemma's norms by 1 + weight, those before the projections by the weight",
    ),
    "bitnet-embedding-qwen3-i2_s": lambda: bit_gguf(
        "bitnet-embedding-qwen3-i2_s",
        "qwen3",
        Qwen3Model,
        body(True, **QWEN_128),
        85,
        "mean",
        "I2_S, `*_norm_in` and all norms in F16, pooling_type 1 (mean)",
    ),
    "bitnet-embedding-gemma3-i2_s": lambda: bit_gguf(
        "bitnet-embedding-gemma3-i2_s",
        "gemma3",
        Gemma3TextModel,
        body(False, **GEMMA_128),
        86,
        "last",
        "I2_S, Gemma's own norms stored as 1 + weight, `*_norm_in` as they are, pooling_type 3 (last)",
    ),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
