"""llama.cpp through llama-cpp-python: logits or pooled embeddings of token sequences, and its quantizer."""

import ctypes

import llama_cpp as L
import numpy as np
import torch

VERSION = f"llama-cpp-python {L.__version__}"


@L.llama_log_callback
def _quiet(level, text, data):
    if level == 4:  # an error
        print(text.decode(errors="replace"), end="")


L.llama_log_set(_quiet, ctypes.c_void_p())
L.llama_backend_init()


def run(path, sequences, vocab, embedding=None):
    """Runs each sequence alone: KV in f32, no flash attention, one thread. Returns rows of
    logits, or with `embedding` (width) the vectors after the file's pooling, not normalized."""
    mp = L.llama_model_default_params()
    mp.n_gpu_layers = 0
    model = L.llama_model_load_from_file(path.encode(), mp)
    assert model, path
    out = []
    for ids in sequences:
        cp = L.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_threads, cp.n_threads_batch = 256, 256, 256, 1, 1
        cp.type_k = cp.type_v = L.GGML_TYPE_F32
        cp.flash_attn_type = 0
        cp.embeddings = embedding is not None
        ctx = L.llama_init_from_model(model, cp)
        assert ctx, path
        batch = L.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, t in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = t, i, 1, 1
            batch.seq_id[i][0] = 0
        assert L.llama_decode(ctx, batch) == 0
        if embedding is not None:
            out.append(np.ctypeslib.as_array(L.llama_get_embeddings_seq(ctx, 0), (embedding,)).copy()[None])
        else:
            out += [
                np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (vocab,)).copy()[None]
                for i in range(len(ids))
            ]
        L.llama_batch_free(batch)
        L.llama_free(ctx)
    L.llama_model_free(model)
    return torch.from_numpy(np.concatenate(out))


def quantize(source, target, ftype, embedding=None):
    """Every matrix in the type of `ftype` (llama.cpp's own fallback where a row does not divide into its blocks),
    the token embedding in one of its own if given."""
    p = L.llama_model_quantize_default_params()
    p.ftype, p.nthread, p.pure = getattr(L, "LLAMA_FTYPE_" + ftype), 1, True
    if embedding:
        p.token_embedding_type = getattr(L, "GGML_TYPE_" + embedding)
    assert L.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(p)) == 0, ftype
