"""Checks that llama.cpp loads the files that bn-convert writes, and agrees with the folders' references.

  python llama_cpp_loads.py BN_CONVERT [case ...]     default: every folder in tests/golden/models

Prints a line for each folder: what bn-convert or llama.cpp refused, or the relative error of llama.cpp's logits. It has
F32 activations only with F32 weights, so errors of other types are its own.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cases import INDEX, ROOT, error
from llama_cpp_sync import decode, ffi, lib

import torch

said = []


@ffi.callback("ggml_log_callback")
def log(level, text, _):
    if level == 4:  # an error
        said.append(ffi.string(text).decode(errors="replace").strip())


lib.llama_log_set(log, ffi.NULL)


def logits(model, sequence, vocab):
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = lib.GGML_TYPE_F32
    params.flash_attn_type = 0
    context = lib.llama_init_from_model(model, params)
    if context == ffi.NULL:
        return None
    rows = decode(context, sequence, vocab)
    lib.llama_free(context)
    return rows


def computed(case, file):
    """The relative error of llama.cpp's logits, or a word on the step that failed."""
    model = lib.llama_model_load_from_file(str(file).encode(), lib.llama_model_default_params())
    if model == ffi.NULL:
        return "llama.cpp does not load it: " + (said[0] if said else "no reason")
    try:
        if "embedding" in case or "logits" not in case:
            return "loaded"
        rows = [logits(model, sequence, case["vocab"]) for sequence in case["sequences"]]
    finally:
        lib.llama_model_free(model)
    if any(row is None for row in rows):
        return "loaded, not computed: " + (said[0] if said else "no reason")
    exact = np.fromfile(Path(ROOT, case["logits"]), "<f4").reshape(-1, case["vocab"])
    return f"{error(torch.cat(rows), torch.from_numpy(exact)):.1e}"


def main(program, names):
    with open(INDEX) as file:
        cases = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            source = Path(ROOT, case["path"])
            if not source.is_dir() or (names and case["name"] not in names):
                continue
            target = Path(folder, "model.gguf")
            done = subprocess.run([program, source, target], capture_output=True, text=True)
            said.clear()
            what = computed(case, target) if done.returncode == 0 else "bn-convert: " + done.stderr.strip().splitlines()[-1]
            print(f"{case['name']} ({case['arch']}, {case['format']}): {what}", flush=True)
            target.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
