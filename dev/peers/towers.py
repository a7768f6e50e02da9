"""This library and llama.cpp in turns: a vision tower of Qwen 3.5 4B's shape, with one square picture.

  cargo build --release -p bn-dev --bin synth --bin towers
  pip install -r requirements.txt
  python towers.py [--side 1024] [--rounds 3] [--threads 2] [--weights f16] [--isa NAME] [--layers N] [--folder FOLDER]

From prepared patches to soft tokens, without reading and resizing. llama.cpp runs it with flash attention and without.
Each round runs every side once. Results are medians of seconds, and of the ratios of single rounds. The soft tokens of
all are compared: the difference's size over that of ours.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
import time

import llama_cpp as L
import numpy as np
from llama_cpp import mtmd_cpp as M
from llama_log import quiet

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
WIDTH = 2560


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", default="f16")
    parser.add_argument("--isa", help="of ours alone")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--folder", help="keep the models here")
    return parser.parse_args()


def program(name):
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", name)


class Ours:
    def __init__(self, path, options, folder):
        self.written = os.path.join(folder, "ours.f32")
        command = [program("towers"), path, "--turns", "--side", str(options.side), "--threads", str(options.threads)]
        command += ["--write", self.written] + (["--isa", options.isa] if options.isa else [])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def vectors(self):
        return np.fromfile(self.written, np.float32)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class LlamaCpp:
    def __init__(self, path, text_model, options, flash):
        p = M.mtmd_context_params_default()
        p.use_gpu, p.print_timings, p.warmup = False, False, False
        p.n_threads, p.flash_attn_type = options.threads, int(flash)
        self.context = M.mtmd_init_from_file(path.encode(), text_model, p)
        assert self.context, f"llama.cpp does not load {path}"
        # The same picture as dev/src/bin/towers.rs has.
        side = options.side
        rgb = (np.arange(side * side * 3, dtype=np.int64) * 37 % 251).astype(np.uint8)
        bitmap = M.mtmd_bitmap_init(side, side, rgb.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        marker = M.mtmd_default_marker()
        text = M.mtmd_input_text(marker, len(marker), False, True)
        self.chunks = M.mtmd_input_chunks_init()
        bitmaps = (M.mtmd_bitmap_p_ctypes * 1)(bitmap)
        status = M.mtmd_tokenize(self.context, self.chunks, ctypes.byref(text), bitmaps, 1)
        assert status == 0, f"mtmd_tokenize: {status}"
        chunks = [M.mtmd_input_chunks_get(self.chunks, n) for n in range(M.mtmd_input_chunks_size(self.chunks))]
        (self.chunk,) = [c for c in chunks if M.mtmd_input_chunk_get_type(c) == M.MTMD_INPUT_CHUNK_TYPE_IMAGE]
        self.tokens = M.mtmd_input_chunk_get_n_tokens(self.chunk)
        self.seconds()  # warm, as ours is

    def seconds(self):
        start = time.perf_counter()
        status = M.mtmd_encode_chunk(self.context, self.chunk)
        taken = time.perf_counter() - start
        assert status == 0, f"mtmd_encode_chunk: {status}"
        return taken

    def vectors(self):
        out = M.mtmd_get_output_embd(self.context)
        return np.ctypeslib.as_array(out, (self.tokens * WIDTH,)).copy()

    def close(self):
        M.mtmd_free(self.context)


def text_model(folder):
    """llama.cpp wants the vocabulary of a text model for what stands around a picture."""
    path = os.path.join(folder, "text.gguf")
    if not os.path.exists(path):
        subprocess.run([program("synth"), "qwen35-4b", "q4_k", "q6_k", path, "4"], check=True)
    params = L.llama_model_default_params()
    params.n_gpu_layers, params.vocab_only = 0, True
    model = L.llama_model_load_from_file(path.encode(), params)
    assert model, f"llama.cpp does not load {path}"
    return model


def towers(options, folder):
    path = os.path.join(folder, f"tower-{options.weights}-{options.layers}.gguf")
    if not os.path.exists(path):
        command = [program("synth"), "qwen35-tower", options.weights, "f32", path, str(options.layers)]
        subprocess.run(command, check=True)
    text = text_model(folder)
    sides = {"ours": Ours(path, options, folder)}
    return sides | {name: LlamaCpp(path, text, options, name == "flash") for name in ("flash", "plain")}


def main():
    options = arguments()
    L.llama_log_set(quiet, ctypes.c_void_p())
    M.mtmd_log_set(quiet, ctypes.c_void_p())
    L.llama_backend_init()
    print(L.llama_print_system_info().decode())
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        os.makedirs(folder, exist_ok=True)
        sides = towers(options, folder)
        rounds = [{name: side.seconds() for name, side in sides.items()} for _ in range(options.rounds)]
        ours = sides["ours"].vectors()
        print("| side | seconds | over ours | difference |\n|---|---:|---:|---:|")
        for name, side in sides.items():
            seconds = statistics.median(r[name] for r in rounds)
            ratio = statistics.median(r[name] / r["ours"] for r in rounds)
            difference = np.linalg.norm(side.vectors() - ours) / np.linalg.norm(ours)
            print(f"| {name} | {seconds:.2f} | {ratio:.2f} | {difference:.1e} |")
            side.close()


if __name__ == "__main__":
    main()
