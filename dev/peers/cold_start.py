"""From nothing to the first token of a file that is in no page cache, this library and llama.cpp in turns.

  pip install -r requirements.txt
  python cold_start.py OURS.gguf [THEIRS.gguf] [--rounds 5] [--threads 2]

Each run is a process of its own; what counts are the seconds from opening the model to the first token after 16 ids,
without the start of the process. Before a run the system drops the file's pages (posix_fadvise), which needs no root; a
host below a virtual machine may still have them. "read" is the time of reading the file once, in large pieces. A warm
run follows each cold one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BENCH = os.path.join(ROOT, "target", "c", "bench")
PROMPT = 16


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("ours")
    parser.add_argument("theirs", nargs="?", help="the same model as llama.cpp reads it; otherwise the same file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def drop(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read(path):
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        piece = bytearray(1 << 20)
        while file.readinto(piece):
            pass
    return time.perf_counter() - start


def ours(path, threads):
    """Seconds until the engine is ready, and until the first token."""
    command = [BENCH, "--json", "--load", "--ids", "--prompt", str(PROMPT), "--new", "2", "--threads", str(threads), path]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["load"]
    return made["seconds"], made["first_token_seconds"]


def llama(path, threads):
    command = [sys.executable, __file__, path, "--threads", str(threads), "--llama"]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return made[0], made[1]


def llama_here(path, threads):
    """Entry point of the `llama` process."""
    import llama_cpp_bench  # only here: the other process need not have it in memory

    lib = llama_cpp_bench.L
    start = time.perf_counter()
    model = llama_cpp_bench.Model(path, threads)
    loaded = time.perf_counter() - start
    params = lib.llama_context_default_params()
    params.n_ctx = 256
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(model.model, params)
    model.decode(context, [((1 + k * 7919) % model.vocab, k, 0, k + 1 == PROMPT) for k in range(PROMPT)])
    print(json.dumps([loaded, time.perf_counter() - start]))


def main():
    options = arguments()
    theirs = options.theirs or options.ours
    if options.llama:
        return llama_here(options.ours, options.threads)
    runs = {"read": [], "ours": [], "ours, warm": [], "llama.cpp": [], "llama.cpp, warm": []}
    for _ in range(options.rounds):
        drop(options.ours)
        runs["read"].append((0.0, read(options.ours)))
        drop(options.ours)
        runs["ours"].append(ours(options.ours, options.threads))
        runs["ours, warm"].append(ours(options.ours, options.threads))
        drop(theirs)
        runs["llama.cpp"].append(llama(theirs, options.threads))
        runs["llama.cpp, warm"].append(llama(theirs, options.threads))
    print("| | loaded after s | first token after s (lowest, highest) |\n|---|---:|---:|")
    for name, times in runs.items():
        first = [first for _, first in times]
        loaded = statistics.median(loaded for loaded, _ in times)
        print(f"| {name} | {loaded:.3f} | {statistics.median(first):.3f} ({min(first):.3f}, {max(first):.3f}) |")
    return None


if __name__ == "__main__":
    main()
