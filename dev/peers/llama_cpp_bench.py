"""llama.cpp's own speed through llama-cpp-python's low-level functions: prompts in one batch, then a row a sequence."""

import ctypes
import time

import llama_cpp as L

VERSION = f"llama-cpp-python {L.__version__}"


@L.llama_log_callback
def _quiet(level, text, data):
    if level == 4:  # an error
        print(text.decode(errors="replace"), end="")


L.llama_log_set(_quiet, ctypes.c_void_p())
L.llama_backend_init()


def instructions():
    """Instruction sets of its kernels: the flags that are set in its own description."""
    text = L.llama_print_system_info().decode()
    return [part.split("=")[0].strip(" :|") for part in text.replace("CPU :", "|").split("|") if part.strip().endswith("= 1")]


class Model:
    def __init__(self, path, threads):
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(path.encode(), params)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.threads = threads
        self.contexts = {}

    def context(self, sequences, prompt, new):
        key = sequences, prompt, new
        if key not in self.contexts:
            p = L.llama_context_default_params()
            p.n_ctx = -(-sequences * (prompt + new) // 256) * 256
            p.n_batch = max(sequences * prompt, 512)
            p.n_ubatch = 512
            p.n_seq_max = sequences
            p.kv_unified = True
            p.n_threads = p.n_threads_batch = self.threads
            p.flash_attn_type = 0
            context = L.llama_init_from_model(self.model, p)
            assert context, "llama.cpp makes no context"
            self.contexts[key] = context
            self.run(sequences, prompt, new)  # warm
        return self.contexts[key]

    def run(self, sequences, prompt, new):
        """Tokens a second of `sequences` prompts, and of the steps after them; no sampling, which costs llama.cpp
        nothing here and us a little."""
        context = self.context(sequences, prompt, new)
        L.llama_memory_clear(L.llama_get_memory(context), True)
        # The same ids as examples-c/bench.c --ids.
        rows = [
            ((1 + i * 104729 + k * 7919) % self.vocab, k, i, k + 1 == prompt)
            for i in range(sequences)
            for k in range(prompt)
        ]
        first = self.decode(context, rows)
        rest = 0.0
        for k in range(prompt, prompt + new - 1):
            rest += self.decode(context, [((i * 31 + k * 17) % self.vocab, k, i, True) for i in range(sequences)])
        return {"prefill": sequences * prompt / first, "decode": sequences * (new - 1) / rest}

    def decode(self, context, rows):
        """Seconds for rows of (token, position, sequence, whether its logits are wanted)."""
        batch = L.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, logits
            batch.seq_id[i][0] = sequence
        start = time.perf_counter()
        status = L.llama_decode(context, batch)
        L.llama_synchronize(context)
        taken = time.perf_counter() - start
        L.llama_batch_free(batch)
        assert status == 0, f"llama_decode gave {status}"
        return taken

    def close(self):
        for context in self.contexts.values():
            L.llama_free(context)
        L.llama_model_free(self.model)
