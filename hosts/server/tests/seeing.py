"""A tiny model that sees, and pictures for it: `seeing.py FOLDER`. Python's standard library alone.

It is tests/golden/towers/qwen35 with twice its tokens, so that all of ASCII has one, a tokenizer and a template."""
import json
import os
import shutil
import struct
import sys
import zlib

TOWER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tests", "golden", "towers", "qwen35")
CONTROLS = {58: "<|vision_start|>", 59: "<|vision_end|>", 60: "<|image_pad|>"}
TEMPLATE = (
    "{% macro show(content) %}{% if content is string %}{{ content }}{% else %}{% for p in content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "{% endmacro %}{% for m in messages %}{{ m.role }}: {{ show(m.content) }}\n{% endfor %}assistant: "
)


def doubled(path):
    """Doubles the rows of embedding and head."""
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    head, body, out = json.loads(data[8 : 8 + length]), data[8 + length :], b""
    for name, about in head.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        values = body[begin:end]
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            values, about["shape"][0] = values * 2, about["shape"][0] * 2
        about["data_offsets"] = [len(out), len(out) + len(values)]
        out += values
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + out)


def make(folder):
    """Writes the model to a new folder."""
    shutil.copytree(TOWER, folder)
    doubled(os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config["text_config"].update(vocab_size=128, max_position_embeddings=4096)
    letters = iter([chr(code) for code in range(33, 127)] + ["\u0120", "\u010a"])
    vocab = {0: "<unk>", 1: "<s>", 2: "</s>", **CONTROLS}
    for id in range(128):
        vocab.setdefault(id, next(letters, f"<{id}>"))
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": id, "content": text, **plain} for id, text in CONTROLS.items()]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "vocab": {text: id for id, text in vocab.items()}, "merges": []}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": split, "post_processor": None, "decoder": split, "model": model}
    about = {"chat_template": TEMPLATE, "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer), ("tokenizer_config.json", about)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
    return folder


def png(width, height, seed=0):
    """The bytes of a picture."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((x * 7 + y * 13 + c * 90 + seed * 50) % 256 for x in range(width) for c in range(3)) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


if __name__ == "__main__":
    make(sys.argv[1])
    with open(os.path.join(sys.argv[1], "picture.png"), "wb") as file:
        file.write(png(21, 30))
