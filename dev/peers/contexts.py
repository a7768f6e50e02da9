"""Long contexts, this library and llama.cpp with flash attention in turns, by `cargo dev contexts` and llama-cpp-python.

  python contexts.py OURS.gguf [THEIRS.gguf] [--context 8192]... [--sequences 1,8] [--rounds 2] [--threads 2] [--kv f16]...
                     [--contexts PROGRAM] [--theirs-kv q8_0]

Prefill is a prompt in chunks of 512 rows: both engines' time for several prompts is that of one after the other. llama.cpp
computes the prompt once, and every other sequence gets a copy of its keys and values, in a KV of its own. Decode is a row a
sequence behind the prompt. Prints a line for each case, tokens a second.
"""

import argparse
import json
import os
import subprocess
import time

import llama_cpp as L
import llama_cpp_bench

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
CHUNK, STEPS = 512, 8
TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("ours")
    parser.add_argument("theirs", nargs="?")
    parser.add_argument("--context", action="append", type=int)
    parser.add_argument("--sequences", default="1,8")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", action="append")
    parser.add_argument("--theirs-kv", default="f16", choices=TYPES)
    parser.add_argument("--contexts", default=os.path.join(ROOT, "target", "release", "contexts"))
    return parser.parse_args()


def ours(options, context, sequences):
    found = {}
    for kind in options.kv or ["f16"]:
        command = [options.contexts, options.ours, "--context", str(context), "--kv", kind, "--rounds", "2"]
        command += ["--threads", str(options.threads)]
        for count in sequences:
            command += ["--sequences", str(count)]
        for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
            case = json.loads(line)
            found[f"ours {kind}", case["phase"], case["sequences"]] = case["tokens_per_s"]
    return found


def rows(context, first, count, sequences, model):
    """Seconds of a pass over `count` rows of each sequence."""
    return model.decode(context, [
        ((seq * 31 + k * 17) % model.vocab, k, seq, k + 1 == first + count)
        for seq in range(sequences) for k in range(first, first + count)
    ])


def theirs(options, model, context, sequences):
    p = L.llama_context_default_params()
    most = max(sequences)
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = most * (context + 256), CHUNK, CHUNK, most
    p.kv_unified, p.flash_attn_type = False, 1
    p.type_k = p.type_v = TYPES[options.theirs_kv]
    p.n_threads = p.n_threads_batch = options.threads
    made = L.llama_init_from_model(model.model, p)
    assert made, "llama.cpp makes no context"
    found = {}
    rows(made, 0, 32, 1, model)  # warm
    memory = L.llama_get_memory(made)
    L.llama_memory_clear(memory, True)
    taken = sum(rows(made, first, CHUNK, 1, model) for first in range(0, context, CHUNK))
    found["theirs", "prefill", 1] = context / taken
    for seq in range(1, most):
        L.llama_memory_seq_cp(memory, 0, seq, -1, -1)
    at = context
    for count in sequences:
        rows(made, at, 1, count, model)
        times = []
        for step in range(1, STEPS):
            times.append(rows(made, at + step, 1, count, model))
        found["theirs", "decode", count] = count / min(times)
        at += STEPS
        # All sequences at one position again.
        for seq in range(most):
            if seq >= count:
                L.llama_memory_seq_rm(memory, seq, -1, -1)
                L.llama_memory_seq_cp(memory, 0, seq, -1, -1)
    L.llama_free(made)
    return found


def main():
    options = arguments()
    sequences = [int(n) for n in options.sequences.split(",")]
    model = llama_cpp_bench.Model(options.theirs or options.ours, options.threads)
    for context in options.context or [8192]:
        best = {}
        for _ in range(options.rounds):
            start = time.perf_counter()
            for case, rate in (ours(options, context, sequences) | theirs(options, model, context, sequences)).items():
                best[case] = max(rate, best.get(case, 0.0))
            print(f"a round at {context}: {time.perf_counter() - start:.0f} s", flush=True)
        for (who, phase, count), rate in best.items():
            other = best["theirs", phase, count]
            print(f"{context} {phase} {count}: {who} {rate:.2f} tokens/s, {rate / other:.2f} of llama.cpp", flush=True)
    model.close()


if __name__ == "__main__":
    main()
