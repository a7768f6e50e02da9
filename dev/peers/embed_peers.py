"""This library, llama.cpp and onnxruntime in alternation: texts of 512 tokens through an encoder of bge-small's shape.

  pip install -r requirements.txt torch transformers gguf onnx onnxscript onnxruntime
  python embed_peers.py [--rounds 5] [--threads 2] [--texts 1,32] [--folder FOLDER for the models]

BERT with 12 layers of 384 and random weights: F32, F16 and Q8_0 for ours and llama.cpp, and F32 for onnxruntime, which
gets all texts in one call. llama.cpp gets one text in a call, which is its fastest way here, with flash attention. Each
round runs every side once. Results are medians of tokens/s, and of the ratios of single rounds.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import tempfile
import time

import gguf
import llama_cpp as L
import numpy as np
import onnxruntime
import torch
from llama_log import quiet
from transformers import BertConfig, BertModel

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
VOCABULARY, TOKENS, WIDTH, LAYERS, HEADS = 30522, 512, 384, 12, 12
TYPES = {"f32": (0, None), "f16": (1, np.float16), "q8_0": (7, gguf.GGMLQuantizationType.Q8_0)}
LAYER = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
OUTSIDE = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", default="1,32")
    parser.add_argument("--folder", help="keep the models here")
    return parser.parse_args()


def ids(count):
    """The same ids as examples-c/bench.c --ids."""
    return np.array([[(1 + i * 104729 + k * 7919) % VOCABULARY for k in range(TOKENS)] for i in range(count)], np.int64)


def tensor_name(own):
    part, kind = own.rsplit(".", 1)
    if part.startswith("encoder.layer."):
        _, _, number, part = part.split(".", 3)
        return f"blk.{number}.{LAYER[part]}.{kind}"
    return f"{OUTSIDE[part]}.{kind}"


def write_gguf(path, model, kind):
    number, wanted = TYPES[kind]
    w = gguf.GGUFWriter(path, "bert")
    w.add_name("bge-small's shape")
    w.add_context_length(TOKENS)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(4 * WIDTH)
    w.add_head_count(HEADS)
    w.add_layer_norm_eps(1e-12)
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.CLS)
    w.add_token_type_count(2)
    w.add_file_type(number)
    w.add_tokenizer_model("bert")
    w.add_tokenizer_pre("default")
    w.add_token_list(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"\u2581w{i}" for i in range(5, VOCABULARY)])
    w.add_token_types([3] * 5 + [1] * (VOCABULARY - 5))
    for i, add in enumerate((w.add_pad_token_id, w.add_unk_token_id, w.add_bos_token_id, w.add_sep_token_id)):
        add(i)
    for own, tensor in model.state_dict().items():
        if own.startswith(("pooler.", "embeddings.position_ids")):
            continue
        name, x = tensor_name(own), tensor.numpy()
        if wanted is None or x.ndim < 2 or "position" in name or "types" in name:
            w.add_tensor(name, np.ascontiguousarray(x))
        elif wanted is np.float16:
            w.add_tensor(name, x.astype(np.float16))
        else:
            w.add_tensor(name, gguf.quantize(x, wanted), raw_dtype=wanted)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class First(torch.nn.Module):
    """The first token's vector, of length 1."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        out = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return torch.nn.functional.normalize(out, dim=-1)


def write_models(folder):
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    model = BertModel(BertConfig(**sizes, vocab_size=VOCABULARY, intermediate_size=4 * WIDTH)).eval()
    for kind in TYPES:
        write_gguf(os.path.join(folder, f"{kind}.gguf"), model, kind)
    x = torch.from_numpy(ids(2))
    axes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    torch.onnx.export(
        First(model).eval(), (x, torch.ones_like(x)), os.path.join(folder, "f32.onnx"), dynamo=True,
        input_names=["input_ids", "attention_mask"], dynamic_shapes={"input_ids": axes, "attention_mask": axes},
    )  # fmt: skip


class Ours:
    def __init__(self, path, options):
        self.command = [os.path.join(ROOT, "target", "c", "bench"), "--json", "--embed", "--ids", "--together"]
        self.command += ["--prompt", str(TOKENS), "--step-tokens", str(TOKENS), "--threads", str(options.threads), path]

    def rate(self, count):
        command = [*self.command[:-1], "--batches", str(count), self.command[-1]]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["embed"][0]["tokens_per_s"]


class LlamaCpp:
    def __init__(self, path, options):
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        model = L.llama_model_load_from_file(path.encode(), params)
        p = L.llama_context_default_params()
        p.n_ctx = p.n_batch = p.n_ubatch = TOKENS
        p.n_threads = p.n_threads_batch = options.threads
        p.embeddings, p.flash_attn_type = True, 1
        self.context = L.llama_init_from_model(model, p)
        assert self.context, f"llama.cpp makes no context of {path}"

    def rate(self, count):
        self.embed(ids(1)[0])  # warm, as ours is
        start = time.perf_counter()
        for text in ids(count):
            self.embed(text)
        return count * TOKENS / (time.perf_counter() - start)

    def embed(self, text):
        batch = L.llama_batch_init(TOKENS, 0, 1)
        batch.n_tokens = TOKENS
        for k, token in enumerate(text):
            batch.token[k], batch.pos[k], batch.n_seq_id[k], batch.logits[k] = int(token), k, 1, True
            batch.seq_id[k][0] = 0
        status = L.llama_encode(self.context, batch)
        assert status == 0, f"llama_encode: {status}"
        L.llama_get_embeddings_seq(self.context, 0)
        L.llama_batch_free(batch)


class OnnxRuntime:
    def __init__(self, path, options):
        choice = onnxruntime.SessionOptions()
        choice.intra_op_num_threads = options.threads
        self.session = onnxruntime.InferenceSession(path, choice, providers=["CPUExecutionProvider"])

    def rate(self, count):
        self.embed(1)
        start = time.perf_counter()
        self.embed(count)
        return count * TOKENS / (time.perf_counter() - start)

    def embed(self, count):
        x = ids(count)
        self.session.run(None, {"input_ids": x, "attention_mask": np.ones_like(x)})


def main():
    options = arguments()
    L.llama_log_set(quiet, ctypes.c_void_p())
    L.llama_backend_init()
    subprocess.run(["make", "--no-print-directory", "target/c/bench"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        os.makedirs(folder, exist_ok=True)
        if not os.path.exists(os.path.join(folder, "f32.onnx")):
            write_models(folder)
        sides = {(kind, cls.__name__): cls(os.path.join(folder, f"{kind}.gguf"), options) for kind in TYPES for cls in (Ours, LlamaCpp)}
        sides["f32", "OnnxRuntime"] = OnnxRuntime(os.path.join(folder, "f32.onnx"), options)
        print("| weights | texts | ours | llama.cpp | ratio | onnxruntime | ratio |\n|---|---:|---:|---:|---:|---:|---:|")
        for count in map(int, options.texts.split(",")):
            rounds = [{side: run.rate(count) for side, run in sides.items()} for _ in range(options.rounds)]
            for kind in TYPES:
                print(row(kind, count, rounds))


def row(kind, count, rounds):
    cells = [f"{statistics.median(r[kind, 'Ours'] for r in rounds):.0f}"]
    for peer, type_ in (("LlamaCpp", kind), ("OnnxRuntime", "f32")):
        cells.append(f"{statistics.median(r[type_, peer] for r in rounds):.0f}")
        cells.append(f"{statistics.median(r[kind, 'Ours'] / r[type_, peer] for r in rounds):.2f}")
    return f"| {kind.upper()} | {count} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
