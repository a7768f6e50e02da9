"""llama.cpp through llama-cpp-py-sync, for the scripts that need a newer one than llama_cpp_run.py has."""

import numpy as np
import torch
from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib

ffi, lib = get_ffi(), get_lib()
lib.llama_backend_init()


def decode(context, ids, vocab, start=0):
    """Logits `[count, vocab]` of the tokens after position `start`, whose predecessors are in the cache; None if
    llama.cpp refuses."""
    count = len(ids) - start
    batch = lib.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for i, token in enumerate(ids[start:]):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 1
        batch.seq_id[i][0] = 0
    failed = lib.llama_decode(context, batch)
    lib.llama_batch_free(batch)
    if failed:
        return None
    data = ffi.buffer(lib.llama_get_logits(context), 4 * count * vocab)
    return torch.from_numpy(np.frombuffer(data, np.float32).reshape(count, vocab).copy())
