"""Helpers of the tests: models, golden files, and the table that a run prints."""
import base64
import functools
import hashlib
import json
import os
from array import array
from pathlib import Path

import fetch

ROOT = Path(__file__).resolve().parents[2]
#: Rows of the tables that a run prints, under their heads. The last column is not for docs/parity.md.
TABLE, VECTORS = [], []
TABLE_HEAD = ("model", "configuration", "tokens", "perplexity", "llama.cpp's", "exact", "KL", "llama.cpp's", "seconds")
VECTORS_HEAD = ("model", "texts", "error")

DOCUMENT = """
Written by `make test-real REAL_TESTS=--document`. These models were trained by people (`tests/real/fetch.py` has their
sources and licences). The texts are English prose, English docs, code and German docs. The reference is transformers in
f32 with the same dequantized weights, recorded by `tools/golden/real_models.py`; llama.cpp runs the same file. KL is the
mean over every 16th position of the 32 most likely tokens and all others as one, so it is a lower bound, for both
alike. KV int8 stands beside llama.cpp's q8_0, KV int4 beside its q4_0, on the first window of each
text; weights in int8 beside llama.cpp on the file itself. `tests/real/test_decoders.py` has the limits.
"""
VECTORS_TEXT = """Embeddings: the largest distance of a vector from that of transformers in f32, both of length 1.
"""


@functools.cache
def golden(name):
    return json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text(encoding="utf-8"))


def unpacked(text, kind, width):
    """Rows of `count` floats ("f") or ids ("I")."""
    values = array(kind, base64.b64decode(text)).tolist()
    return [values[at : at + width] for at in range(0, len(values), width)]


def path(name):
    return str(fetch.CACHE / name)


@functools.cache
def texts():
    return {file.stem: file.read_text(encoding="utf-8") for file in sorted((fetch.CACHE / "texts").iterdir())}


def summed(ids):
    """Token ids in the form of a golden file."""
    return {"count": len(ids), "sha256": hashlib.sha256(array("I", ids).tobytes()).hexdigest()}


def program(name):
    """One of the programs that make builds."""
    return os.path.join(ROOT, "target/c", name)


def table(head, rows):
    """As Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def document():
    """The section of docs/parity.md."""
    rows = [row[:-1] for row in TABLE]
    return f"{DOCUMENT}\n{table(TABLE_HEAD[:-1], rows)}\n{VECTORS_TEXT}\n{table(VECTORS_HEAD, VECTORS)}"
