"""Makes tests/real/golden/: reference results for the models and texts that tests/real/fetch.py fetches.

    python real_models.py [NAME ...]     default: every model

Decoders: each text is cut into windows, which are computed alone. The reference is transformers in f32 with the weights
that the file's blocks stand for. It gives the log probability of each token of a window, and at every STRIDE-th position
the TOP most likely tokens. llama.cpp computes the same file; its perplexity, and its KL divergence from the reference as
`divergence` measures it, stand beside. Encoders: the vectors of a few texts, by transformers in f32.
"""

import base64
import hashlib
import json
import os
import sys

from cases import ROOT, VERSIONS

import llama_cpp_py_sync
import numpy as np
import torch
from gguf import GGUFReader
from jinja2 import Environment
from llama_cpp_sync import decode, ffi, lib
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, AutoModelForCausalLM

sys.path.insert(0, os.path.join(ROOT, "tests", "real"))
import fetch
from measure import divergence, perplexity

quiet = ffi.callback("ggml_log_callback", lambda *_: None)
lib.llama_log_set(quiet, ffi.NULL)

GOLDEN = os.path.join(ROOT, "tests", "real", "golden")
WINDOW, WINDOWS = 1024, 3  # tokens of a window, windows of a text
STRIDE, TOP = 16, 32
CONTROL = 3  # GGUF's number for this token type
GREEDY = 48  # tokens of a greedy answer
KV = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": lib.GGML_TYPE_Q4_0}
QUESTIONS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List three uses of a paper clip.",
    "Translate to German: Good morning, my friend.",
    "What does this Python code print? print([x * x for x in range(5)])",
]
SENTENCES = [
    "How much protein should a woman eat in a day?",
    "Das Wetter ist heute schön, und wir gehen spazieren.",
    "The quick brown fox jumps over the lazy dog.",
    "def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "東京は日本の首都です。",
    "",
]


def packed(values, kind):
    return base64.b64encode(np.asarray(values, dtype=kind).tobytes()).decode()


def tokenized(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return {"count": len(ids), "sha256": hashlib.sha256(np.array(ids, "<u4").tobytes()).hexdigest()}


def texts():
    folder = fetch.fetch("texts")
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}


def smollm2_tokenizer(path):
    """The GGUF's vocabulary and merges, with SmolLM2's split: single digits, then GPT-2's rule."""
    fields = GGUFReader(path).fields
    tokens, merges = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
    vocabulary = {token: i for i, token in enumerate(tokens)}
    special = [token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"].contents()) if kind == CONTROL]
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.add_special_tokens(special)
    return tokenizer


def gemma_tokenizer(_):
    """Gemma 3's tokenizer, from EmbeddingGemma's folder."""
    return Tokenizer.from_file(str(fetch.fetch("embeddinggemma-300m") / "tokenizer.json"))


DECODERS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (smollm2_tokenizer, []),
    "gemma-3-270m-q4_k_m.gguf": (gemma_tokenizer, [2]),
}
ENCODERS = {"all-MiniLM-L6-v2": "", "multilingual-e5-small": "query: ", "embeddinggemma-300m": "task: search result | query: "}


class LlamaCpp:
    """llama.cpp on one file, with keys and values in one type."""

    def __init__(self, path, kv):
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = WINDOW
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = KV[kv]
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED  # V in blocks needs it
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def logits(self, ids, start=0):
        """Logits of the tokens from position `start` on. The cache has the tokens before it."""
        lib.llama_memory_seq_rm(lib.llama_get_memory(self.context), 0, start, -1)
        rows = decode(self.context, ids, self.vocab, start)
        assert rows is not None
        return rows

    def greedy(self, ids, stop):
        out = []
        while len(out) < GREEDY:
            done = ids + out
            out.append(int(self.logits(done, len(done) - 1 if out else 0)[-1].argmax()))
            if out[-1] == stop:
                break
        return out

    def close(self):
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)


def looked_at(rows, window):
    """Each token's log probability in a window, and at some positions the best tokens with theirs."""
    rows = torch.log_softmax(rows, -1)
    own = rows[:-1].gather(1, torch.tensor(window[1:])[:, None])[:, 0].tolist()
    top = rows[STRIDE - 1 : -1 : STRIDE].topk(TOP, -1)
    return own, [list(zip(*row)) for row in zip(top.indices.tolist(), top.values.tolist())]


def figures(windows):
    """Perplexity and divergence over the windows' (result, reference)."""
    own, tops, exact = [], [], []
    for result, reference in windows:
        own, tops, exact = own + result[0], tops + result[1], exact + reference[1]
    return {"perplexity": perplexity(own), "divergence": divergence(exact, tops)}


def prompts(path, tokenizer, cut):
    """Chats rendered by the file's template, or beginnings of the texts; and the tokens that end an answer."""
    fields = GGUFReader(path).fields
    stop = fields["tokenizer.ggml.eos_token_id"].contents()
    if "tokenizer.chat_template" not in fields:
        return [(None, windows[0][:64]) for windows in cut.values()], stop
    template = Environment().from_string(fields["tokenizer.chat_template"].contents())

    def chat(question):
        text = template.render(messages=[{"role": "user", "content": question}], add_generation_prompt=True)
        return tokenizer.encode(text, add_special_tokens=False).ids

    return [(question, chat(question)) for question in QUESTIONS], stop


def greedy(reference, llama, prompts_and_stop):
    """llama.cpp's greedy answers, and the reference's margin in nats between the best two tokens."""
    answers, (all_prompts, stop) = [], prompts_and_stop
    for question, prompt in all_prompts:
        tokens = llama.greedy(prompt, stop)
        best = reference(prompt + tokens)[len(prompt) - 1 : -1].topk(2, -1).values
        gaps = (best[:, 0] - best[:, 1]).tolist()
        answers.append({"question": question, "prompt": prompt, "tokens": tokens, "gaps": [round(gap, 4) for gap in gaps]})
    return answers


@torch.no_grad()
def decoder(name):
    path = fetch.fetch(name)
    make_tokenizer, head = DECODERS[name]
    tokenizer = make_tokenizer(str(path))
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=name, dtype=torch.float32, attn_implementation="eager").eval()

    def reference(ids):
        return model(torch.tensor([ids])).logits[0]

    cut, step = {}, WINDOW - len(head)
    for text, content in texts().items():
        ids = tokenizer.encode(content, add_special_tokens=False).ids
        cut[text] = [head + ids[at : at + step] for at in range(0, len(ids) - step + 1, step)][:WINDOWS]
    exact = {text: [looked_at(reference(window), window) for window in windows] for text, windows in cut.items()}
    whole, firsts = [], {kv: [] for kv in KV}
    for kv in KV:
        llama = LlamaCpp(path, kv)
        for text, windows in cut.items():
            for window, result in list(zip(windows, exact[text]))[: None if kv == "f16" else 1]:
                pair = looked_at(llama.logits(window), window), result
                if kv == "f16":
                    whole.append(pair)
                if window is windows[0]:
                    firsts[kv].append(pair)
        if kv == "f16":
            answers = greedy(reference, llama, prompts(path, tokenizer, cut))
        llama.close()
    return {
        "source": f"{VERSIONS}; llama.cpp {llama_cpp_py_sync.__llama_cpp_tag__}",
        "head": head, "window": WINDOW, "stride": STRIDE, "top": TOP,
        "texts": {text: tokenized(tokenizer, content) for text, content in texts().items()},
        "windows": {text: [written(*result) for result in results] for text, results in exact.items()},
        "whole": {"f16": figures(whole)},
        "firsts": {kv: figures(pairs) for kv, pairs in firsts.items()},
        "greedy": answers,
    }


def written(own, tops):
    ids, values = zip(*[zip(*row) for row in tops])
    return {"own": packed(own, "<f4"), "ids": packed(ids, "<u4"), "values": packed(values, "<f4")}


@torch.no_grad()
def encoder(name):
    folder = fetch.fetch(name)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    dense = [load_file(folder / part / "model.safetensors")["linear.weight"] for part in ("2_Dense", "3_Dense") if (folder / part).exists()]
    sentences = SENTENCES + [text[:400] for text in texts().values()]
    vectors = []
    for sentence in sentences:
        ids = torch.tensor([tokenizer.encode(ENCODERS[name] + sentence).ids])
        x = model(ids).last_hidden_state[0].mean(0)
        for weight in dense:
            x = weight @ x
        vectors.append((x / x.norm()).tolist())
    return {
        "source": VERSIONS,
        "prefix": ENCODERS[name],
        "sentences": sentences,
        "vectors": packed(vectors, "<f4"),
        "texts": {text: tokenized(tokenizer, content) for text, content in texts().items()},
    }


def main(names):
    os.makedirs(GOLDEN, exist_ok=True)
    for name in names or [*DECODERS, *ENCODERS]:
        made = decoder(name) if name in DECODERS else encoder(name)
        with open(os.path.join(GOLDEN, f"{name}.json"), "w", newline="\n") as file:
            json.dump(made, file, ensure_ascii=False)
            file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
