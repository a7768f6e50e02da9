"""Shared by architectures.py and gguf_models.py: tests/golden/models/ and its index.json.

index.json is a list of cases, one object each:

  name        also the stem of the file of values
  path        model: a Hugging Face folder or a GGUF file, relative to the repository
  arch        `model_type` of config.json, or `general.architecture`
  format      how the weights are stored: hf-f32, hf-bf16, hf-packed, ..., gguf-f16, gguf-q4_k, ...
  covers      what the case is there for
  sequences   token ids; each ran alone, from position 0
  vocab       width of a row of logits
  logits      f32 little-endian, a row for each token, the sequences one after the other; or
  embedding   f32 little-endian, a row of `width` for each sequence: pooled (`pooling`: last or mean), L2 norm 1
  reference   who computed it; `source` says how and with which versions
  tolerance   the largest allowed |ours - reference| / |reference| (2-norms over all values)
  argmax      the smallest allowed share of rows whose largest logit has the reference's index
  noise       measured when the case was made, each a relative error as above (see README.md)
"""

import json
import os
import sys

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # transformers compiles its BitNet quantizers

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MODELS = os.path.join(ROOT, "tests", "golden", "models")
INDEX = os.path.join(MODELS, "index.json")
sys.path.insert(0, os.path.join(ROOT, "tools", "train_demo"))  # gguf_io
VERSIONS = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
LENGTHS = (64, 17, 1, 9, 5)  # ragged; the longest passes every window and rope bound of the models
VOCAB = 64
F32_TOLERANCE = 1e-4
BITNET_TOLERANCE = 1e-3


def error(a, b):
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm())


def agreement(a, b):
    """Share of rows with the same largest element."""
    return float((a.argmax(-1) == b.argmax(-1)).double().mean())


def gap(rows):
    """The smallest margin of all rows: best value over second, as a share of the largest magnitude."""
    top = rows.topk(2, -1).values
    return float(((top[:, 0] - top[:, 1]) / rows.abs().amax(-1)).min())


def relative(path):
    return os.path.relpath(path, ROOT).replace(os.sep, "/")


def record(
    name,
    path,
    arch,
    fmt,
    covers,
    sequences,
    rows,
    source,
    reference,
    tolerance,
    argmax=1.0,
    noise=None,
    pooling=None,
    vocab=VOCAB,
    values=None,
):
    """Writes the values, unless another case's file `values` has them, and puts the case into the index, in place
    of an older one of this name."""
    rows = rows.float()
    assert bool(rows.isfinite().all()), name
    count = len(sequences) if pooling else sum(map(len, sequences))
    assert rows.shape == (count, rows.shape[1]) and (pooling or rows.shape[1] == vocab), (name, rows.shape)
    case = {
        "name": name,
        "path": relative(path),
        "arch": arch,
        "format": fmt,
        "covers": covers,
        "vocab": vocab,
    }
    if values is None:
        values = relative(os.path.join(MODELS, name + ".f32"))
        rows.numpy().astype("<f4").tofile(os.path.join(ROOT, values))
    if pooling:
        case |= {
            "pooling": pooling,
            "width": rows.shape[1],
            "embedding": values,
            "reference": reference,
            "source": source,
            "tolerance": tolerance,
        }
    else:
        case |= {
            "logits": values,
            "reference": reference,
            "source": source,
            "tolerance": tolerance,
            "argmax": argmax,
            "gap": round(gap(rows), 5),
        }
    case["noise"] = {k: float(f"{v:.2e}") for k, v in (noise or {}).items()}
    case["sequences"] = sequences
    cases = sorted([c for c in read_index() if c["name"] != name] + [case], key=lambda c: c["name"])
    with open(INDEX, "w") as f:
        f.write("[\n" + ",\n".join(map(show, cases)) + "\n]\n")
    print(f"{name}: {tuple(rows.shape)} {case['noise']} gap {case.get('gap')}", flush=True)


def read_index():
    if not os.path.exists(INDEX):
        return []
    with open(INDEX) as f:
        return json.load(f)


def find(name):
    return next(c for c in read_index() if c["name"] == name)


def show(case):
    """One case: a line for each field, a line for each sequence."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in case.items() if k != "sequences"]
    rows = ",\n".join("   " + json.dumps(s) for s in case["sequences"])
    return " {\n" + ",\n".join(lines) + ',\n  "sequences": [\n' + rows + "\n  ]\n }"
