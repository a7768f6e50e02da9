"""Makes the seeds in fuzz/corpus/: small good files of each format, for fuzzers and mutants to start from. What
fuzzing has found (fuzz/corpus/*/found-*, bad-*) stays beside them. The golden models are seeds too, where they are.

  python fuzz_corpus.py
"""

import json
import os
import shutil
import struct
import zlib

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "fuzz", "corpus")
RNG = np.random.default_rng(1)
TEXT = ["the quick brown fox jumps over the lazy dog", "Hello, world! 12345", "it's Grüße — 你好 🙂"] * 3


def path(target, name):
    os.makedirs(os.path.join(OUT, target), exist_ok=True)
    return os.path.join(OUT, target, name)


# ---------------------------------------------------------------- GGUF

# elements and bytes of a block, and the offsets of its f16 scales
BLOCKS = {"q2_k": (10, 256, 84, (80, 82)), "q3_k": (11, 256, 110, (108,)), "q4_k": (12, 256, 144, (0, 2)),
          "q5_k": (13, 256, 176, (0, 2)), "q6_k": (14, 256, 210, (208,)), "q4_0": (2, 32, 18, (0,)),
          "q4_1": (3, 32, 20, (0, 2)), "q5_0": (6, 32, 22, (0,)), "q5_1": (7, 32, 24, (0, 2)),
          "q8_0": (8, 32, 34, (0,)), "q1_0": (41, 128, 18, (0,)), "q2_0": (42, 64, 18, (0,)),
          "q2_0_128": (42, 128, 34, (0,)), "pq2_0": (142, 128, 34, (0,)), "ptq1_0": (143, 128, 28, (26,)),
          "iq2_xxs": (16, 256, 66, (0,)), "iq2_xs": (17, 256, 74, (0,)), "iq2_s": (22, 256, 82, (0,)),
          "iq3_xxs": (18, 256, 98, (0,)), "iq3_s": (21, 256, 110, (0,)), "iq4_nl": (20, 32, 18, (0,)),
          "iq4_xs": (23, 256, 136, (0,)), "mxfp4": (39, 32, 17, ())}


def string(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def value(v):
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    kind, one = {str: (8, string), int: (5, lambda x: struct.pack("<i", x)),
                 float: (6, lambda x: struct.pack("<f", x))}[type(v[0]) if v else str]
    items = [one(x) for x in v]
    return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)


def file(pairs, tensors):
    """tensors: (name, dims in ggml's order, type, data)"""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(string(k) + value(v) for k, v in pairs)
    at, data = 0, b""
    for name, dims, kind, raw in tensors:
        head += string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def blocks(kind, n):
    number, elements, size, scales = BLOCKS[kind]
    raw = RNG.integers(0, 256, (n // elements, size), dtype=np.uint8)
    for at in scales:
        raw[:, at:at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if kind == "mxfp4":  # an exponent
        raw[:, 0] = 120
    return number, raw.tobytes()


def tensor(name, rows, cols, kind):
    n = rows * cols
    trits = RNG.integers(-1, 2, (rows, cols)).astype(np.float32)
    if kind == "f32":
        data = (0, RNG.normal(size=n).astype("<f4").tobytes())
    elif kind == "f16":
        data = (1, RNG.normal(size=n).astype("<f2").tobytes())
    elif kind == "bf16":
        data = (30, (RNG.normal(size=n).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())
    elif kind in ("tq1_0", "tq2_0"):
        q = Q.TQ1_0 if kind == "tq1_0" else Q.TQ2_0
        data = (int(q), gguf.quants.quantize(trits, q).tobytes())
    elif kind == "i2_s":
        codes = (trits.reshape(-1, 4, 32) + 1).astype(np.uint8)
        packed = codes[:, 0] << 6 | codes[:, 1] << 4 | codes[:, 2] << 2 | codes[:, 3]
        data = (36, packed.tobytes() + np.float32(0.1).tobytes() + bytes(28))
    elif kind == "iq2_bn":
        codes = (trits.reshape(rows, -1, 4, 16) + 1).astype(np.uint8)
        packed = codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6
        row = lambda r: np.float32(0.1).tobytes() + packed[r].tobytes()
        data = (135, b"".join(row(r) for r in range(rows)))
    elif kind == "iq1_bn":
        data = (134, b"".join(np.float16(0.1).tobytes() + bytes(13 * (cols // 64)) for _ in range(rows)))
    else:
        data = blocks(kind, n)
    return (name, (cols,) if rows == 1 else (cols, rows), *data)


def model(arch, hidden, ffn, heads, kv, head_dim, kinds, extra=(), sub_norms=False, more=()):
    """kinds: types of q, k, v, output, gate, up, down, embedding"""
    a = arch + "."
    pairs = [("general.architecture", arch), ("general.name", "seed"), (a + "context_length", 64),
             (a + "embedding_length", hidden), (a + "block_count", 1), (a + "feed_forward_length", ffn),
             (a + "attention.head_count", heads), (a + "attention.head_count_kv", kv),
             (a + "attention.key_length", head_dim), (a + "attention.value_length", head_dim),
             (a + "attention.layer_norm_rms_epsilon", 1e-5), (a + "rope.freq_base", 10000.0),
             (a + "rope.dimension_count", head_dim), (a + "vocab_size", 12), *extra]
    q, k = heads * head_dim, kv * head_dim
    shapes = [("attn_q", q, hidden), ("attn_k", k, hidden), ("attn_v", k, hidden), ("attn_output", hidden, q),
              ("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)]
    norms = ["attn_norm", "ffn_norm"]
    tensors = [tensor("token_embd.weight", 12, hidden, kinds[7]), tensor("output_norm.weight", 1, hidden, "f32")]
    tensors += [tensor(f"blk.0.{n}.weight", 1, hidden, "f32") for n in norms]
    if sub_norms:
        tensors += [tensor("blk.0.attn_sub_norm.weight", 1, q, "f32"), tensor("blk.0.ffn_sub_norm.weight", 1, ffn, "f32")]
    tensors += [tensor(f"blk.0.{n}.weight", r, c, kind) for (n, r, c), kind in zip(shapes, kinds)]
    tensors += [tensor(n, r, c, "f32") for n, r, c in more]
    return pairs, tensors


def ggufs():
    f32 = ["f32"] * 8
    small = dict(hidden=32, ffn=32, heads=2, kv=1, head_dim=16)
    cases = {
        "llama-f32": model("llama", kinds=f32, **small),
        "llama-legacy": model("llama", kinds=["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "f16", "bf16", "q8_0"], **small),
        "llama-yarn-bias": model(
            "llama", kinds=["q8_0"] * 8, **small,
            extra=[("llama.rope.scaling.type", "yarn"), ("llama.rope.scaling.factor", 4.0),
                   ("llama.rope.scaling.original_context_length", 16)],
            more=[("blk.0.attn_q.bias", 1, 32), ("blk.0.attn_k.bias", 1, 16), ("blk.0.attn_v.bias", 1, 16)]),
        "qwen3": model("qwen3", kinds=f32, **small,
                       more=[("blk.0.attn_q_norm.weight", 1, 16), ("blk.0.attn_k_norm.weight", 1, 16)]),
        "gemma3": model("gemma3", kinds=["q8_0"] * 8, **small,
                        extra=[("gemma3.attention.sliding_window", 16)],
                        more=[("blk.0.attn_q_norm.weight", 1, 16), ("blk.0.attn_k_norm.weight", 1, 16),
                              ("blk.0.post_attention_norm.weight", 1, 32), ("blk.0.post_ffw_norm.weight", 1, 32)]),
        "llama-k": model("llama", 256, 256, 1, 1, 32,
                         ["q2_k", "q3_k", "q4_k", "f16", "q5_k", "q6_k", "q2_k", "q6_k"]),
        "bitnet-i2_s": model("bitnet-b1.58", 128, 128, 2, 1, 64, ["i2_s"] * 7 + ["f16"], sub_norms=True),
        "bitnet-bn": model("bitnet-b1.58", 128, 128, 2, 1, 64,
                           ["iq2_bn", "iq1_bn", "i2_s", "iq2_bn", "i2_s", "iq2_bn", "q2_0", "f16"], sub_norms=True),
        "bitnet-tq": model("bitnet-b1.58", 256, 256, 1, 1, 32,
                           ["tq2_0", "tq1_0", "tq2_0", "f32", "tq1_0", "tq2_0", "tq1_0", "f16"], sub_norms=True),
        "qwen3-few-bits": model("qwen3", 256, 256, 2, 1, 128,
                                ["q1_0", "q2_0", "q2_0_128", "tq2_0", "tq1_0", "q1_0", "q2_0_128", "q1_0"],
                                more=[("blk.0.attn_q_norm.weight", 1, 128), ("blk.0.attn_k_norm.weight", 1, 128)]),
        "llama-tables": model("llama", 256, 256, 1, 1, 32,
                              ["iq2_xxs", "iq2_xs", "iq2_s", "mxfp4", "iq3_xxs", "iq3_s", "iq4_xs", "iq4_nl"]),
        "llama-prism": model("llama", 128, 128, 1, 1, 128,
                             ["pq2_0", "ptq1_0", "pq2_0", "ptq1_0", "ptq1_0", "pq2_0", "ptq1_0", "pq2_0"]),
    }
    for name, (pairs, tensors) in cases.items():
        with open(path("gguf", name + ".gguf"), "wb") as f:
            f.write(file(pairs, tensors))


# ---------------------------------------------------------------- tokenizers


def byte_level():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                    special_tokens=["<|begin_of_text|>", "<|eot_id|>"], show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])
    return t


def spm_like():
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=330, special_tokens=specials, show_progress=False))
    return t


def tokenizers():
    for name, t in (("byte-level", byte_level()), ("spm", spm_like())):
        with open(path("tokenizer_json", name + ".json"), "w") as f:
            json.dump(json.loads(t.to_str()), f, ensure_ascii=False, separators=(",", ":"))
    k = "tokenizer.ggml."
    doc = json.loads(byte_level().to_str())
    tokens = sorted(doc["model"]["vocab"], key=doc["model"]["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in doc["model"]["merges"]]
    types = [3 if t.startswith("<|") else 1 for t in tokens]
    for pre in ("gpt-2", "llama-bpe", "qwen2", "falcon", "deepseek-llm"):
        pairs = [("general.architecture", "llama"), (k + "model", "gpt2"), (k + "pre", pre), (k + "tokens", tokens),
                 (k + "token_type", types), (k + "merges", merges), (k + "bos_token_id", 0), (k + "eos_token_id", 1),
                 (k + "add_bos_token", True)]
        with open(path("tokenizer_gguf", pre + ".gguf"), "wb") as f:
            f.write(file(pairs, []))
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["▁", "e", "h", "t", "▁t", "he", "▁the", "l", "o"]
    types = [2, 3, 3] + [6] * 256 + [1] * 9
    pairs = [("general.architecture", "llama"), (k + "model", "llama"), (k + "tokens", pieces), (k + "token_type", types),
             (k + "scores", [0.0] * 3 + [0.0] * 256 + [-float(i) for i in range(9)]), (k + "bos_token_id", 1),
             (k + "eos_token_id", 2), (k + "unknown_token_id", 0), (k + "add_bos_token", True)]
    with open(path("tokenizer_gguf", "spm.gguf"), "wb") as f:
        f.write(file(pairs, []))


# ---------------------------------------------------------------- folders


def folders():
    save_file({"a": torch.zeros(2, 3), "b.c": torch.ones(4, dtype=torch.bfloat16), "d": torch.ones(2, 2, dtype=torch.uint8)},
              path("safetensors", "three.safetensors"))
    save_file({"x": torch.zeros(3, dtype=torch.float16)}, path("safetensors", "named.safetensors"), {"format": "pt"})
    with open(path("index", "two.json"), "w") as f:
        json.dump({"metadata": {"total_size": 12}, "weight_map": {
            "a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}}, f)


def side_files():
    template = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
    token = {"content": "</s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True, "__type": "AddedToken"}
    for name, doc in {
        "config": {"add_bos_token": True, "bos_token": "a", "eos_token": token, "chat_template": template,
                   "added_tokens_decoder": {"3": token}, "model_max_length": 1e30, "tokenizer_class": "LlamaTokenizer"},
        "templates": {"add_bos_token": False, "bos_token": None, "chat_template": [
            {"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": template}]},
        "generation": {"bos_token_id": 0, "eos_token_id": [3, 1], "do_sample": True, "temperature": 0.6},
    }.items():
        with open(path("tokenizer_side_files", name + ".json"), "w") as f:
            json.dump(doc, f)


def kernel_configs():
    sections = [(256, 256, 128, 64, 32), (1536, 4096, 256, 96, 32)]
    for name, comment, pair in (("plain", "", "{} = {}\n"), ("odd", "; by hand\n# or not\n", "  {}:{} \r\n")):
        with open(path("kernel_config", name + ".ini"), "w") as f:
            f.write(comment + "\n".join(f"[Kernels_{i}]\n" + "".join(
                pair.format(k, v) for k, v in zip(("m", "k", "bm", "bk", "bmm"), s)) for i, s in enumerate(sections)))


# Templates that made other engines use unbounded time or memory. Each must end early.
HOSTILE = {
    "bad-doubling": "{% set n = namespace(x='ab') %}{% for i in range(9999) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "bad-macro": "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
    "bad-power": "{{ 10 ** 10 ** 10 }}{{ 'a' * 1000000000 }}{{ [1] * 1000000000 }}",
    "bad-recursive": "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
    "bad-deep": "{{ " + "(" * 200 + "1" + ")" * 200 + " }}",
    "bad-itself": "{% set n = namespace(x=[]) %}{% set n.x = [n.x, n] %}{{ n.x | tojson }}",
}


def templates():
    chat = os.path.join(ROOT, "tests", "golden", "chat")
    for name in sorted(os.listdir(chat)):
        if name.endswith(".jinja"):
            shutil.copyfile(os.path.join(chat, name), path("template", name))
    for name, text in HOSTILE.items():
        with open(path("template", name + ".jinja"), "w") as f:
            f.write(text)


def pictures():
    """A PNG that is a thousand times smaller than its pixels. Others are in tests/golden/pictures/files."""
    head = struct.pack(">IIBBBBB", 256, 255, 16, 6, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(255 * (1 + 256 * 8)), 9)), (b"IEND", b"")]
    with open(path("picture", "zeros.png"), "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n")
        for name, data in chunks:
            f.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))
    with open(path("picture", "prefix-codes.webp"), "wb") as f:
        f.write(prefix_codes(64))


def prefix_codes(groups):
    """A lossless WebP of 4x4 pixels with groups of prefix codes of ten bits, which need much larger tables."""
    bits = []

    def put(*fields):
        for value, count in fields:
            bits.extend(value >> n & 1 for n in range(count))

    # Signature, width and height less 1, alpha, version; no transform, no cache, an image of groups without cache
    put((0x2F, 8), (3, 14), (3, 14), (0, 1), (0, 3), (0, 1), (0, 1), (1, 1), (0, 3), (0, 1))
    for symbol in ((groups - 1) & 255, (groups - 1) >> 8, 0, 0, 0):
        put((1, 1), (0, 1), (1, 1), (symbol, 8))
    # The code of lengths: 1 to 6 in three bits, 7 to 10 in four, sent most significant bit first
    sizes = {n: 3 if n <= 6 else 4 for n in range(1, 11)}
    codes = {n: f"{n - 1:03b}" if n <= 6 else f"{n + 5:04b}" for n in sizes}
    for _ in range(groups * 5):
        put((0, 1), (10, 4), *((sizes.get(n, 0), 3) for n in (17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10)))
        put((1, 1), (1, 3), (9, 4))
        for length in (*range(1, 11), 10):
            bits.extend(int(bit) for bit in codes[length])
    put((0, 64))
    data = bytes(sum(bit << n for n, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))
    data = b"WEBPVP8L" + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(data)) + data


if __name__ == "__main__":
    ggufs()
    tokenizers()
    folders()
    side_files()
    kernel_configs()
    templates()
    pictures()
