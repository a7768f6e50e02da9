"""Makes the GGUF half of tests/golden/models/: run architectures.py first.

  python gguf_models.py [case ...]     default: every case

NAME.gguf beside the folder NAME holds the same values with llama.cpp's names and keys, written by the `gguf`
package, and has the same logits. It must read the same in llama.cpp too: "llama.cpp" in `noise` is its error on an
F32 twin of the file.

type-TYPE.gguf is one model in each type that llama.cpp quantizes to. Two cases read each file: `type-TYPE` has the
logits that transformers computes with the values of the file, as the `gguf` package dequantizes them;
`type-TYPE-llama.cpp` has llama.cpp's own, whose activations are rounded too: the distance between the two is the
type's own noise. bonsai-TYPE.gguf is a Qwen 3 with YaRN whose matrices, embedding and head too, are all of a type of one
or two bits, with the same two cases.
"""

import copy
import importlib.metadata
import math
import os
import sys
import tempfile

from cases import (
    BITNET_TOLERANCE,
    F32_TOLERANCE,
    LENGTHS,
    MODELS,
    VERSIONS,
    VOCAB,
    agreement,
    error,
    find,
    record,
)

import gguf
import gguf_io
import llama_cpp_run
import numpy as np
import torch
from bitnet_folders import drawer
from folders import PLAIN_YARN, load, randomize, run_all, small
from gguf import GGMLQuantizationType as T
from make_golden import PER_LAYER, draw, from_interleaved, run_hf, to_interleaved
from transformers import (
    BitNetConfig,
    BitNetForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations import bitnet as hf_bitnet

GGUF_VERSION = importlib.metadata.version("gguf")

QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA3 = (
    PER_LAYER
    | QK_NORMS
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
BITNET = PER_LAYER | {"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"}
TABLES = {
    "bitnet": BITNET,
    "llama": PER_LAYER,
    "qwen2": PER_LAYER,
    "qwen3": PER_LAYER | QK_NORMS,
    "qwen3moe": PER_LAYER | QK_NORMS | {"ffn_gate_inp": "mlp.gate"},
    "gemma3": GEMMA3,
    "granite": PER_LAYER,
    "minicpm": PER_LAYER,
}


def names(m, arch):
    """{GGUF name: name in the state dict} for the model's tensors."""
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
    """The number of heads of q or k if the GGUF interleaves the halves of each head, otherwise None."""
    if arch not in ("llama", "granite", "minicpm"):
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


def rope_base(config):
    """The rope base; the global one where there are two."""
    rope = config.rope_parameters
    return (rope.get("full_attention") or rope.get("sliding_attention") or rope)["rope_theta"]


def write(path, m, arch, values, matrix, more=()):
    """`matrix`: the type of two-dimensional tensors, or a function that makes their bytes and type;
    vectors are F32. `more`: (key, "u32" | "f32" | "str", value)."""
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
    w.add_rope_freq_base(rope_base(c))
    w.add_vocab_size(c.vocab_size)
    w.add_tokenizer_model("no_vocab")
    for key, kind, value in more:
        {"u32": w.add_uint32, "f32": w.add_float32, "str": w.add_string}[kind](f"{arch}.{key}", value)
    for name, x in values.items():
        kind = T.F32 if x.ndim == 1 else matrix
        if callable(kind):
            data, kind = kind(x)
        else:
            data = gguf.quants.quantize(x, kind) if kind != T.F32 else x
        w.add_tensor(name, data, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def twin_noise(m, arch, values, more, sequences, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "twin.gguf")
        write(path, m, arch, values, T.F32, more)
        return error(llama_cpp_run.run(path, sequences, VOCAB), rows)


def counterpart(
    folder, arch, covers, more=(), extra=None, matrix=T.BF16, llama_cpp=False, same_in_llama_cpp=True
):
    """`llama_cpp`: also record llama.cpp's results on this file, with activations in the matrices' type."""
    hf = find(folder)
    m = load(os.path.join(MODELS, folder))
    sequences = hf["sequences"]
    rows = run_all(m, sequences)
    values = tensors(m, arch) | (extra(m) if extra else {})
    name = folder + "-gguf"
    path = os.path.join(MODELS, folder + ".gguf")
    write(path, m, arch, values, matrix, more)
    noise = {"llama.cpp": twin_noise(m, arch, values, more, sequences, rows)}
    # 1e-3, because llama.cpp reads GELU from a table in f16.
    assert (noise["llama.cpp"] < 1e-3) == same_in_llama_cpp, (name, noise)
    common = (path, arch, "gguf-" + matrix.name.lower(), covers, sequences)
    record(
        name,
        *common,
        rows,
        f"transformers {type(m).__name__} loaded from the folder whose values the file holds, f32, eager "
        f"attention ({VERSIONS})",
        "transformers",
        F32_TOLERANCE,
        noise=noise,
        values=hf["logits"],
    )
    if llama_cpp:
        theirs = llama_cpp_run.run(path, sequences, VOCAB)
        noise = {"activations": error(theirs, rows)}
        record(
            name + "-llama.cpp",
            *common,
            theirs,
            f"llama.cpp on the same file ({llama_cpp_run.VERSION}), KV in f32",
            "llama.cpp",
            llama_cpp_tolerance(noise["activations"], F32_TOLERANCE),
            argmax=0.99,
            noise=noise,
        )


def llama_cpp_tolerance(noise, ours):
    """Our tolerance to llama.cpp: its distance from the exact reference, plus our tolerance to that reference."""
    return round(1.05 * noise + 3 * ours, 5)


def llama3_factors(m):
    """rope_freqs.weight: the divisor of each frequency."""
    scaled = m.model.rotary_emb.inv_freq
    d = m.config.head_dim
    plain = 1.0 / m.config.rope_parameters["rope_theta"] ** (torch.arange(0, d, 2).float() / d)
    return {"rope_freqs.weight": (plain / scaled).numpy().astype(np.float32)}


YARN = [
    ("rope.scaling.type", "str", "yarn"),
    ("rope.scaling.factor", "f32", 4.0),
    ("rope.scaling.original_context_length", "u32", 32),
]

COUNTERPARTS = {
    "llama-bias": lambda: counterpart(
        "llama-bias", "llama", "biases of q, k, v, o; those of q and k interleaved like their rows"
    ),
    "llama-linear": lambda: counterpart(
        "llama-linear",
        "llama",
        "rope.scaling.type linear",
        [("rope.scaling.type", "str", "linear"), ("rope.scaling.factor", "f32", 4.0)],
        matrix=T.F32,
    ),
    "llama-llama3": lambda: counterpart(
        "llama-llama3",
        "llama",
        "rope_freqs.weight: the scaling of Llama 3.1 as a tensor",
        extra=llama3_factors,
        matrix=T.F16,
        llama_cpp=True,
    ),
    "llama-yarn": lambda: counterpart("llama-yarn", "llama", "rope.scaling.type yarn", YARN, llama_cpp=True),
    "llama-yarn-factor": lambda: counterpart(
        "llama-yarn-factor",
        "llama",
        "rope.scaling.attn_factor times 1 + 0.1 ln(factor) is what transformers calls attention_factor",
        YARN + [("rope.scaling.attn_factor", "f32", 1.4 / (1 + 0.1 * math.log(4)))],
    ),
    "mistral-window": lambda: counterpart(
        "mistral-window",
        "llama",
        "architecture llama with attention.sliding_window, which "
        "llama.cpp does not read there: we do, as transformers does",
        [("attention.sliding_window", "u32", 16)],
        same_in_llama_cpp=False,
    ),
    "qwen2": lambda: counterpart("qwen2", "qwen2", "q, k and v biases; rows not interleaved"),
    "gemma3": lambda: counterpart(
        "gemma3",
        "gemma3",
        "norms stored as 1 + weight; the local rope base is llama.cpp's default",
        [("attention.sliding_window", "u32", 16), ("attention.sliding_window_pattern", "u32", 2)],
    ),
    "qwen3": lambda: counterpart("qwen3", "qwen3", "q and k norms; rows not interleaved"),
    "granite": lambda: counterpart(
        "granite",
        "granite",
        "embedding_scale, residual_scale, logit_scale and attention.scale",
        [
            ("embedding_scale", "f32", 6.0),
            ("residual_scale", "f32", 0.22),
            ("logit_scale", "f32", 8.0),
            ("attention.scale", "f32", 0.4),
        ],
    ),
}


# ---------------------------------------------------------------- 1bitLLM's BitNet


def one_bit_llm(name="bitnet-silu-i2_s", seed=75):
    """Architecture `bitnet`: SiLU, sub-norms, rows not interleaved. llama.cpp has no I2_S: it reads an F32 twin."""
    arch, width = "bitnet", 128
    config = small(
        BitNetConfig, hidden=width, ffn=width, kv_heads=2, head_dim=32, tied=True, hidden_act="silu"
    )
    m = ternary_values(randomize(BitNetForCausalLM(config), seed), seed)
    values, rounded = tensors(m, arch), int8_activations(copy.deepcopy(m))
    sequences = draw(drawer(rounded), VOCAB, LENGTHS, seed)
    path = os.path.join(MODELS, name + ".gguf")
    gguf_io.write(path, i2_s_metadata(m, arch), [i2_s_tensor(n, x) for n, x in values.items()])
    rows, unrounded = run_all(rounded, sequences), run_all(m, sequences)
    noise = {
        "int8": error(rows, unrounded),
        "llama.cpp": twin_noise(m, arch, values, (), sequences, unrounded),
    }
    assert noise["llama.cpp"] < F32_TOLERANCE, noise
    record(
        name,
        path,
        arch,
        "gguf-i2_s",
        "1bitLLM's bitnet_b1_58: SiLU, attn_sub_norm and ffn_sub_norm, rows not interleaved",
        sequences,
        rows,
        f"transformers BitNetForCausalLM (hidden_act silu) with its AutoBitLinear on the values in the file, f32 "
        f"with int8 activations ({VERSIONS})",
        "transformers",
        BITNET_TOLERANCE,
        noise=noise,
    )


# ---------------------------------------------------------------- each type

TYPE_VOCAB, TYPE_LENGTHS, TYPE_GAP = 32, (36, 17, 1, 9, 5), 0.05
TYPES = {
    "q4_0": "MOSTLY_Q4_0",
    "q4_1": "MOSTLY_Q4_1",
    "q5_0": "MOSTLY_Q5_0",
    "q5_1": "MOSTLY_Q5_1",
    "q8_0": "MOSTLY_Q8_0",
    "q2_k": "MOSTLY_Q2_K",
    "q3_k": "MOSTLY_Q3_K_M",
    "q4_k": "MOSTLY_Q4_K_M",
    "q5_k": "MOSTLY_Q5_K_M",
    "q6_k": "MOSTLY_Q6_K",
    "iq4_nl": "MOSTLY_IQ4_NL",
    "iq4_xs": "MOSTLY_IQ4_XS",
    "mxfp4": "MOSTLY_MXFP4_MOE",
    "iq3_s": "MOSTLY_IQ3_S",
    "iq3_xxs": None,
    "iq2_s": None,
    "iq2_xs": None,
    "iq2_xxs": None,
}
# Bytes of a block, and a scale.
RANDOM = {"iq3_xxs": (98, 1e-3), "iq2_s": (82, 3e-3), "iq2_xs": (74, 3e-3), "iq2_xxs": (66, 3e-3)}
TERNARY = {
    "tq1_0": ("MOSTLY_TQ1_0", 256),
    "tq2_0": ("MOSTLY_TQ2_0", 256),
    "q2_0": ("MOSTLY_Q2_0", 64),
    "i2_s": (None, 128),
}


def type_model():
    """256 wide, as K-quants need. Matrices of 32 columns get llama.cpp's fallback types."""
    return randomize(
        LlamaForCausalLM(
            small(LlamaConfig, hidden=256, heads=2, kv_heads=1, ffn=32, tied=True, vocab=TYPE_VOCAB)
        ),
        71,
    )


def ternary_model(width):
    """All widths are a type's block; each matrix, also the embedding, has a scale that is exact in f16."""
    config = small(
        LlamaConfig,
        hidden=width,
        heads=width // 32,
        kv_heads=1,
        head_dim=32,
        ffn=width,
        tied=True,
        vocab=TYPE_VOCAB,
    )
    return ternary_values(randomize(LlamaForCausalLM(config), 72), 73)


def ternary_values(m, seed):
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if "embed" in name:
                p.copy_(p.half().float())
            elif p.ndim == 2:
                p.copy_(
                    torch.randint(-1, 2, p.shape, generator=gen).float() * float(np.float16(p.abs().mean()))
                )
    return m


def dequantized(path, m):
    """The model with the file's values as the gguf package reads them, and the file's matrix types."""
    state, kinds = m.state_dict(), {}
    table = names(m, "llama")
    for t in gguf.GGUFReader(path).tensors:
        shape = tuple(reversed([int(n) for n in t.shape]))
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        heads = heads_to_rotate(t.name, "llama", m.config)
        x = from_interleaved(x, heads) if heads else x
        state[table[t.name]].copy_(torch.from_numpy(np.ascontiguousarray(x)))
        if len(shape) == 2:
            kinds.setdefault(t.tensor_type.name, []).append(t.name)
    return m, kinds


def int8_activations(m):
    """Makes ternary matrices compute with int8 activations, like transformers' AutoBitLinear."""
    for name, linear in list(m.named_modules()):
        if isinstance(linear, torch.nn.Linear) and name != "lm_head":
            scale = linear.weight.abs().max()
            new = hf_bitnet.AutoBitLinear(
                linear.in_features, linear.out_features, bias=False, dtype=torch.float32
            )
            new.weight.data.copy_(linear.weight.data / scale)
            new.weight_scale.fill_(scale)
            m.set_submodule(name, new)
    return m.eval()


def wide(run):
    """Draws rows whose best logit is far ahead, since llama.cpp rounds activations and must find the same best."""

    def one(ids):
        logits, edge = run(ids)
        top = logits[-1].topk(2).values
        return logits, edge if float(top[0] - top[1]) > TYPE_GAP * float(logits[-1].abs().max()) else 0.0

    return one


def record_type(
    label,
    path,
    covers,
    sequences,
    exact,
    theirs,
    how,
    tolerance,
    noise,
    int8_blocks=False,
    name="type",
    arch="llama",
    share=0.7,
):
    """`int8_blocks`: ours rounds activations to int8 in blocks, as llama.cpp does: as far from the exact reference as
    llama.cpp is, and nearer to llama.cpp than either is to that, by `share`."""
    near = llama_cpp_tolerance(noise.get("activations", 0.0), tolerance)
    common = (path, arch, f"gguf-{label}", covers, sequences)
    record(
        f"{name}-{label}",
        *common,
        exact,
        f"transformers {how}, f32 ({VERSIONS})",
        "transformers",
        near if int8_blocks else tolerance,
        argmax=0.99 if int8_blocks else 1.0,
        noise=noise,
        vocab=TYPE_VOCAB,
    )
    if theirs is None:
        return
    agree = agreement(theirs, exact)
    assert agree == 1.0, (label, agree, noise)
    record(
        f"{name}-{label}-llama.cpp",
        *common,
        theirs,
        f"llama.cpp on the same file ({llama_cpp_run.VERSION}), KV in f32",
        "llama.cpp",
        round(share * noise["activations"], 5) if int8_blocks else near,
        argmax=0.99,
        noise=noise,
        vocab=TYPE_VOCAB,
    )


def quantized(base, label, ftype, embedding=None):
    path = os.path.join(MODELS, f"type-{label}.gguf")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "f32.gguf")
        write(source, base, "llama", tensors(base, "llama"), T.F32)
        llama_cpp_run.quantize(source, path, ftype, embedding)
    return path


def random_blocks(base, label):
    """Random blocks with scales of the usual size, since llama.cpp's quantizer needs an importance matrix."""
    kind, (size, scale) = T[label.upper()], RANDOM[label]
    gen = np.random.default_rng(78)

    def blocks(x):
        if x.shape[1] % 256:
            return gguf.quants.quantize(x, T.F16), T.F16
        data = gen.integers(0, 256, (x.shape[0], x.shape[1] // 256, size), np.uint8)
        data[..., :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        return data.reshape(x.shape[0], -1), kind

    path = os.path.join(MODELS, f"type-{label}.gguf")
    write(path, base, "llama", tensors(base, "llama"), blocks)
    return path


def type_case(label, ftype):
    base = type_model()
    path = quantized(base, label, ftype) if ftype else random_blocks(base, label)
    m, kinds = dequantized(path, type_model())
    assert label.upper() in kinds, kinds
    sequences = draw(wide(lambda ids: (run_hf(m, ids), 1.0)), TYPE_VOCAB, TYPE_LENGTHS, 74)
    exact, theirs = run_all(m, sequences), llama_cpp_run.run(path, sequences, TYPE_VOCAB)
    noise = {"weights": error(exact, run_all(base, sequences)), "activations": error(theirs, exact)}
    covers = "; ".join(f"{kind}: {len(n)} matrices" for kind, n in kinds.items())
    record_type(
        label,
        path,
        covers,
        sequences,
        exact,
        theirs,
        f"LlamaForCausalLM on the values of the file as gguf {GGUF_VERSION} dequantizes them",
        F32_TOLERANCE,
        noise,
        int8_blocks=True,
    )


def ternary_case(label, ftype, width):
    """The types are lossless for ternary weights, so the reference computes with the original weights.

    Q2_0 has a fourth value and a scale for each block, so a Llama in it need not be ternary: its activations are rounded in
    blocks of 32.
    """
    base = ternary_model(width)
    int8 = label != "q2_0"
    values = tensors(base, "llama")
    if ftype:
        path = quantized(base, label, ftype, embedding="F16")
    else:
        path = os.path.join(MODELS, f"type-{label}.gguf")
        gguf_io.write(path, i2_s_metadata(base, "llama"), [i2_s_tensor(n, x) for n, x in values.items()])
    if label.startswith("tq"):
        read, _ = dequantized(path, ternary_model(width))
        assert all(
            torch.equal(a, b) for a, b in zip(read.state_dict().values(), base.state_dict().values())
        ), label
    m = int8_activations(ternary_model(width)) if int8 else base
    run = drawer(m) if int8 else lambda ids: (run_hf(m, ids), 1.0)
    sequences = draw(wide(run), TYPE_VOCAB, TYPE_LENGTHS, 74)
    exact = run_all(m, sequences)
    theirs = llama_cpp_run.run(path, sequences, TYPE_VOCAB) if ftype else None
    noise = {"int8": error(exact, run_all(base, sequences))} if int8 else {}
    noise |= {"activations": error(theirs, exact)} if ftype else {}
    record_type(
        label,
        path,
        "a ternary Llama, the token embedding in F16",
        sequences,
        exact,
        theirs,
        "LlamaForCausalLM with its AutoBitLinear (int8 activations) on the ternary values that the file holds"
        if int8
        else "LlamaForCausalLM on the values that the file holds",
        BITNET_TOLERANCE if int8 else F32_TOLERANCE,
        noise,
        int8_blocks=not int8,
    )


def i2_s_metadata(m, arch):
    """Writes types that the gguf package cannot."""
    c, u32, f32 = m.config, gguf_io.U32, gguf_io.FLT
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    meta = [
        ("context_length", u32, c.max_position_embeddings),
        ("embedding_length", u32, c.hidden_size),
        ("block_count", u32, c.num_hidden_layers),
        ("feed_forward_length", u32, c.intermediate_size),
        ("attention.head_count", u32, c.num_attention_heads),
        ("attention.head_count_kv", u32, c.num_key_value_heads),
        ("attention.layer_norm_rms_epsilon", f32, c.rms_norm_eps),
        ("attention.key_length", u32, head_dim),
        ("attention.value_length", u32, head_dim),
        ("rope.dimension_count", u32, head_dim),
        ("rope.freq_base", f32, rope_base(c)),
        ("vocab_size", u32, c.vocab_size),
    ]
    return [
        ("general.architecture", gguf_io.STR, arch),
        ("general.file_type", u32, 40),
        ("tokenizer.ggml.model", gguf_io.STR, "no_vocab"),
    ] + [(f"{arch}.{k}", t, v) for k, t, v in meta]


def i2_s_tensor(name, x, vector=gguf_io.F32):
    """A matrix of ternary values as I2_S, the embedding as F16, a vector as `vector`."""
    if x.ndim == 1:
        return name, vector, x
    if name == "token_embd.weight":
        return name, gguf_io.F16, x
    scale = float(np.abs(x).max())
    return name, gguf_io.I2_S, (np.rint(x / scale).astype(np.int8), scale)


# ---------------------------------------------------------------- Bonsai's types

# Type, width, columns of a scale, and whether the embedding is the head.
BONSAI = {
    "q1_0": (41, 128, 128, True),
    "q2_0": (42, 128, 64, False),
    "q2_0-128": (42, 128, 128, False),
    "tq2_0": (35, 256, 256, True),
}


def few_bits(x, kind, group):
    """(the file's bytes, the values that they encode): one bit, or codes 0 to 3 (TQ2_0: 0 to 2)."""
    groups = x.reshape(-1, group)
    d = (np.abs(groups).mean(1, keepdims=True) * (1 if kind == 41 else 1.2)).astype("<f2")
    wide, raw = d.astype(np.float32), d.view(np.uint8)
    if kind == 41:
        bits = (groups >= 0).astype(np.uint8)
        packed = np.concatenate([raw, np.packbits(bits, axis=-1, bitorder="little")], 1)
        return packed.tobytes(), ((bits * 2.0 - 1) * wide).astype(np.float32).reshape(x.shape)
    codes = np.clip(np.rint(groups / wide) + 1, 0, 3 if kind == 42 else 2).astype(np.uint8)
    assert kind != 42 or (codes == 3).any()
    if kind == 42:
        q = codes.reshape(-1, group // 4, 4)
        packed = np.concatenate([raw, q[..., 0] | q[..., 1] << 2 | q[..., 2] << 4 | q[..., 3] << 6], 1)
    else:
        q = codes.reshape(-1, 2, 4, 32)
        packed = (q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6).reshape(-1, 64)
        packed = np.concatenate([packed, raw], 1)
    return packed.tobytes(), ((codes - np.float32(1)) * wide).astype(np.float32).reshape(x.shape)


def bonsai_case(label, kind, width, group, tied):
    config = small(
        Qwen3Config,
        hidden=width,
        ffn=width,
        heads=width // 32,
        kv_heads=2,
        head_dim=32,
        tied=tied,
        vocab=TYPE_VOCAB,
        rope_parameters=PLAIN_YARN,
    )
    m = randomize(Qwen3ForCausalLM(config), 76)
    state, table = m.state_dict(), names(m, "qwen3")
    packed, in_64s = [], []
    for name, x in tensors(m, "qwen3").items():
        if x.ndim == 1:
            rows = [(name, gguf_io.F32, x)] * 2
        else:
            raw, values = few_bits(x, kind, group)
            state[table[name]].copy_(torch.from_numpy(values))
            rows = [(name, kind, (raw, x.shape))] * 2
            if label == "q2_0-128":  # which llama.cpp does not have: the same values in its own
                blocks = np.frombuffer(raw, np.uint8).reshape(-1, 34)
                halves = [np.concatenate([blocks[:, :2], blocks[:, a : a + 16]], 1) for a in (2, 18)]
                rows[1] = (name, kind, (np.stack(halves, 1).tobytes(), x.shape))
        packed.append(rows[0])
        in_64s.append(rows[1])
    kinds = {"str": gguf_io.STR, "f32": gguf_io.FLT, "u32": gguf_io.U32}
    metadata = i2_s_metadata(m, "qwen3") + [(f"qwen3.{key}", kinds[k], value) for key, k, value in YARN]
    path = os.path.join(MODELS, f"bonsai-{label}.gguf")
    gguf_io.write(path, metadata, packed)
    sequences = draw(wide(lambda ids: (run_hf(m, ids), 1.0)), TYPE_VOCAB, TYPE_LENGTHS, 77)
    exact = run_all(m, sequences)
    with tempfile.TemporaryDirectory() as folder:
        twin = os.path.join(folder, "twin.gguf")
        gguf_io.write(twin, metadata, in_64s)
        theirs = llama_cpp_run.run(twin, sequences, TYPE_VOCAB)
    record_type(
        label,
        path,
        "a Qwen 3 with YaRN, embedding and head in the type too",
        sequences,
        exact,
        # For TQ2_0, llama.cpp rounds activations in blocks of 256.
        theirs if label in ("q1_0", "q2_0") else None,
        "Qwen3ForCausalLM on the values that the file holds",
        F32_TOLERANCE,
        {"activations": error(theirs, exact)},
        int8_blocks=True,
        name="bonsai",
        arch="qwen3",
        share=0.85,
    )


CASES = (
    COUNTERPARTS
    | {"bitnet-silu-i2_s": one_bit_llm}
    | {f"type-{k}": lambda k=k, f=f: type_case(k, f) for k, f in TYPES.items()}
    | {f"type-{k}": lambda k=k, v=v: ternary_case(k, *v) for k, v in TERNARY.items()}
    | {f"bonsai-{k}": lambda k=k, v=v: bonsai_case(k, *v) for k, v in BONSAI.items()}
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
