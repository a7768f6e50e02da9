"""Makes GGUF files of the folders in tests/golden/models with llama.cpp's own converter, and one whose weights are folded
with rotations as Bonsai 2's are. Blocks of multi-token prediction (NAME-mtp) become files of their own in tests/golden/mtp.

  python converted.py LLAMA_CPP [case ...]     LLAMA_CPP: its source, with conversion/ and gguf-py/

A file has the logits of its folder. "llama.cpp" in `noise` is what llama.cpp itself computes, in F32.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [sys.argv[1], os.path.join(sys.argv[1], "gguf-py")]

from cases import F32_TOLERANCE, MODELS, ROOT, VERSIONS, VOCAB, error, find  # noqa: E402
from cases import record  # noqa: E402

import conversion  # noqa: E402
import gguf  # noqa: E402
import llama_cpp_run  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

# llama.cpp does not run these: values of another size than keys; fewer KV heads in OLMo 2; windows of EXAONE 4 except
# with 64 layers, and windows of Phi-3; Mamba-2 whose elements are no multiple of groups times the width; queries
# without a latent except for some numbers of layers; DeepSeek-V2's groups, which it takes for V3's; GLM-4.7-Flash's
# gate, which it chooses by the vocabulary.
NOT_RUN = ("qwen35", "olmo2", "exaone4", "phi3-window", "falcon-h1-plain", "deepseek-v2-lite", "deepseek-v2", "glm4-moe-lite")
FOLDERS = ["qwen35", "qwen35-tied", "qwen35moe", "qwen35moe-fused", "qwen3moe", "olmo2"]
DENSE = ["seed-oss", "ernie4_5", "smollm3", "olmo3", "exaone4", "exaone4-plain", "glm4", "phi3-long", "phi3-window"]
DENSE += ["ministral3", "hunyuan", "gemma2", "starcoder2"]
CONVOLUTIONS = ["lfm2", "lfm2-wide", "lfm2moe"]
MAMBA = ["granitemoehybrid", "granitemoehybrid-dense", "granitemoehybrid-attention"]
MAMBA += ["granitemoe", "granitemoeshared", "falcon-h1", "falcon-h1-plain"]
LATENT = ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "glm4-moe-lite"]
# The converter multiplies weights by factors; BF16 would round the products.
IN_F32 = ("falcon-h1", "falcon-h1-plain")
# llama.cpp's GELU is a table in f16.
GELU, GELU_TOLERANCE = ("gemma2", "starcoder2"), 1e-3
ROTATED, BLOCK = "qwen35", 16


BLOCKS = os.path.join(ROOT, "tests", "golden", "mtp")
WITH_BLOCK = ["qwen35", "qwen35moe"]
LAYERS, INTERVAL = "layer_types", "full_attention_interval"


def no_vocab(model):
    model.gguf_writer.add_tokenizer_model("no_vocab")
    model.gguf_writer.add_vocab_size(VOCAB)


def published(hparams, source):
    """config.json as published where Mamba-2 is used: the converter knows only the published layer names."""
    if not any(key.startswith("mamba_") for key in hparams):
        return hparams
    own = json.loads(Path(source, "config.json").read_text())
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    if LAYERS in own:
        own[LAYERS] = [names.get(kind, kind) for kind in own[LAYERS]]
    return own


def convert(folder, path, kind, block=False):
    """block: only the folder's block of multi-token prediction, with the model's ends beside it."""
    source = Path(BLOCKS if block else MODELS, folder)
    hparams = conversion.ModelBase.load_hparams(source, False)
    architecture = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    cls = conversion.get_model_class(architecture)
    for part in (cls, *(x for x in vars(cls).values() if isinstance(x, type))):
        part.set_vocab, part.no_mtp, part.mtp_only = no_vocab, not block, block
    with torch.inference_mode():
        model = cls(source, kind, Path(path), eager=True, model_name=source.name, hparams=published(hparams, source))
        if LAYERS in model.hparams and "full_attention" in model.hparams[LAYERS]:
            # transformers no longer writes the interval, which is what the converter reads.
            model.hparams.setdefault(INTERVAL, model.hparams[LAYERS].index("full_attention") + 1)
        model.write()


def theirs(folder, sequences):
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "twin.gguf")
        convert(folder, path, gguf.LlamaFileType.ALL_F32)
        return llama_cpp_run.run(path, sequences, VOCAB)


def rows_of(case):
    return torch.from_numpy(np.fromfile(os.path.join(ROOT, case["logits"]), "<f4").reshape(-1, case["vocab"]).copy())


def converted(folder):
    case, path = find(folder), os.path.join(MODELS, folder + ".gguf")
    floats = folder in IN_F32
    convert(folder, path, gguf.LlamaFileType.ALL_F32 if floats else gguf.LlamaFileType.MOSTLY_BF16)
    rows = rows_of(case)
    noise = {} if folder in NOT_RUN else {"llama.cpp": error(theirs(folder, case["sequences"]), rows)}
    tolerance = GELU_TOLERANCE if folder in GELU else F32_TOLERANCE
    assert noise.get("llama.cpp", 0.0) < tolerance, (folder, noise)
    arch = gguf.GGUFReader(path).get_field("general.architecture").contents()
    record(
        folder + "-gguf",
        path,
        arch,
        "gguf-f32" if floats else "gguf-bf16",
        "the folder as llama.cpp's converter writes it",
        case["sequences"],
        rows,
        case["source"],
        "transformers",
        F32_TOLERANCE,
        noise=noise,
        values=case["logits"],
    )


def block(folder):
    convert(folder, os.path.join(BLOCKS, folder + ".gguf"), gguf.LlamaFileType.MOSTLY_BF16, block=True)


# ---------------------------------------------------------------- rotations


def sylvester(n):
    """(-1)^(ones in i & j) / sqrt(n)"""
    i = np.arange(n)
    ones = np.array([bin(x).count("1") for x in range(n)])
    return (1.0 - 2.0 * (ones[i[:, None] & i[None]] % 2)) / np.sqrt(n)


def fold(x, signs):
    """Rows x' = H (s * x) for each block of a row, which keep products with rotated activations the same."""
    h = sylvester(BLOCK)
    y = (x.astype(np.float64) * signs).reshape(len(x), -1, BLOCK) @ h
    return y.reshape(x.shape).astype(np.float32)


def grouped(x, key_heads, value_heads):
    """Reorders columns of value heads so that those of each key head are side by side."""
    each = value_heads // key_heads
    x = x.reshape(len(x), each, key_heads, -1)
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(len(x), -1)


FOLDED = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "attn_output", "ssm_out", "ffn_gate", "ffn_up", "ffn_down")


def rotated(name="qwen35-rotated"):
    """In F32, so that it differs from the unrotated model only by rounding."""
    case, path = find(ROTATED), os.path.join(MODELS, name + ".gguf")
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as place:
        plain = os.path.join(place, "plain.gguf")
        convert(ROTATED, plain, gguf.LlamaFileType.ALL_F32)
        reader = gguf.GGUFReader(plain)
        w = gguf.GGUFWriter(path, "qwen35")
        for key, field in reader.fields.items():
            if not key.startswith(("GGUF.", "general.architecture")):
                w.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
        groups, heads = (reader.get_field("qwen35.ssm." + key).contents() for key in ("group_count", "time_step_rank"))
        tensors = {t.name: np.array(t.data).reshape([int(n) for n in reversed(t.shape)]) for t in reader.tensors}
    names = [n for n in tensors if n == "output.weight" or n.endswith(tuple(f".{part}.weight" for part in FOLDED))]
    widths = sorted({tensors[n].shape[1] for n in names})
    signs = {n: rng.choice([-1, 1], n) for n in widths}
    for n, x in tensors.items():
        if n.endswith("ssm_out.weight"):
            x = grouped(x, groups, heads)
        if n in names or n == "token_embd.weight":
            x = fold(x, signs[x.shape[1]])
        w.add_tensor(n, x)
    key = lambda part: "prism.hadamard." + part
    w.add_uint32(key("version"), 1)
    w.add_uint32(key("block_size"), BLOCK)
    w.add_string(key("transform"), "normalized-sylvester-walsh-hadamard")
    w.add_string(key("axis"), "input-last-dimension")
    w.add_string(key("sign_mode"), "explicit")
    w.add_array(key("sign_widths"), [int(n) for n in widths])
    w.add_array(key("sign_values"), [int(s) for n in widths for s in signs[n]])
    w.add_array(key("weight_names"), names)
    w.add_array(key("inverse_weight_names"), ["token_embd.weight"])
    w.add_bool(key("gdn_v_grouped"), True)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    record(
        name,
        path,
        "qwen35",
        "gguf-f32",
        "Bonsai 2: each product's weights folded with signs and a Walsh-Hadamard transform of blocks of 16, the "
        "embedding's rows with their inverse, columns after the recurrence in grouped order; folded by numpy",
        case["sequences"],
        rows_of(case),
        case["source"],
        "transformers",
        F32_TOLERANCE,
        values=case["logits"],
    )


ALL = FOLDERS + DENSE + CONVOLUTIONS + MAMBA + LATENT
CASES = {folder: (lambda folder=folder: converted(folder)) for folder in ALL} | {"qwen35-rotated": rotated}
CASES |= {folder + "-mtp": (lambda folder=folder: block(folder)) for folder in WITH_BLOCK}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:] or CASES:
        CASES[name]()
    print(VERSIONS)
