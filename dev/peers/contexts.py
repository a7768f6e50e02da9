"""Long contexts, this library and llama.cpp with flash attention in turns, by `cargo dev contexts` and llama-cpp-python.

  python contexts.py OURS.gguf [THEIRS.gguf] [--context 8192]... [--sequences 1,8] [--rounds 2] [--threads 2] [--kv f16]...
                     [--contexts PROGRAM] [--theirs-kv q8_0]

Prefill is a prompt in chunks of 512 rows: both engines' time for several prompts is that of one after the other. In both, a
chunk is measured at five places of the context, after keys and values that no pass computed: a pass takes as long. llama.cpp
gets them as a saved state, in which the cells of one chunk are repeated. Every sequence has a KV of its own. Decode is a row
a sequence after the prompt. Prints a line for each case, tokens a second.
"""

import argparse
import ctypes
import json
import os
import struct
import subprocess
import time

import llama_cpp as L
import llama_cpp_bench

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
CHUNK, STEPS, PLACES = 512, 8, 5
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


class State:
    """llama.cpp's state of sequence 0 after one chunk: its cells, which can be repeated, and what else it has.

    Behind the number of cells come their positions and sequences, then the keys of each layer, then the values, each with
    its type and the bytes of a row (llama_kv_cache::state_write). A hybrid's recurrent state follows.
    """

    def __init__(self, made):
        size = L.llama_state_seq_get_size(made, 0)
        data = ctypes.create_string_buffer(size)
        assert L.llama_state_seq_get_data(made, ctypes.cast(data, ctypes.POINTER(ctypes.c_uint8)), size, 0) == size
        self.data = data.raw
        # Behind a mark, the sequence and the number of streams.
        self.start = 12
        assert struct.unpack_from("<I", self.data, self.start) == (CHUNK,)
        # A cell has a position, the number of its sequences and their ids; with rotation in several dimensions three
        # numbers more.
        for cell in 12, 24:
            at = self.start + 4 + CHUNK * cell
            transposed, layers = struct.unpack_from("<II", self.data, at)
            kind, row = struct.unpack_from("<iQ", self.data, at + 8)
            if transposed == 0 and 0 < layers < 1000 and kind in TYPES.values() and 0 < row < 1 << 20:
                break
        else:
            raise ValueError("llama.cpp's state is not what it was")
        self.cell, self.parts = cell, []
        at += 8
        for _ in range(2 * layers):
            kind, row = struct.unpack_from("<iQ", self.data, at)
            assert kind in TYPES.values()
            self.parts.append((at, row))
            at += 12 + CHUNK * row
        self.end = at

    def of(self, cells):
        """The state of a sequence of `cells`, a multiple of CHUNK."""
        times, cell, data = cells // CHUNK, self.cell, self.data
        pieces = [data[: self.start], struct.pack("<I", cells)]
        meta = data[self.start + 4 + 4 : self.start + 4 + cell]  # all but the position
        pieces += [struct.pack("<i", position) + meta for position in range(cells)]
        pieces.append(data[self.start + 4 + CHUNK * cell : self.parts[0][0]])
        for at, row in self.parts:
            pieces += [data[at : at + 12], data[at + 12 : at + 12 + CHUNK * row] * times]
        # Then the empty cells of other streams, and of a hybrid one state with its position.
        at = self.end + 4 * (struct.unpack_from("<I", data, 8)[0] - 1)
        rest = data[self.end :]
        if at < len(data):
            assert struct.unpack_from("<Ii", data, at) == (1, CHUNK - 1)
            rest = data[self.end : at + 4] + struct.pack("<i", cells - 1) + data[at + 8 :]
        return b"".join([*pieces, rest])


def fill(made, state, cells):
    """Makes sequence 0 one of `cells`, and all others empty."""
    L.llama_memory_clear(L.llama_get_memory(made), True)
    if cells:
        blob = state.of(cells)
        data = ctypes.cast(ctypes.c_char_p(blob), ctypes.POINTER(ctypes.c_uint8))
        assert L.llama_state_seq_set_data(made, data, len(blob), 0), "llama.cpp does not take the state"


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
    rows(made, 0, CHUNK, 1, model)
    state = State(made)
    chunks = []
    for place in range(PLACES):
        first = (context - CHUNK) // CHUNK * place // (PLACES - 1) * CHUNK
        fill(made, state, first)
        chunks.append(rows(made, first, CHUNK, 1, model))
    # A chunk's time grows linearly with its position.
    whole = (chunks[0] + chunks[-1]) / 2 + sum(chunks[1:-1])
    found["theirs", "prefill", 1] = CHUNK * (PLACES - 1) / whole
    fill(made, state, context)
    memory = L.llama_get_memory(made)
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
        # Return all sequences to one position.
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
