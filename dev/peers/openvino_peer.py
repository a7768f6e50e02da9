"""This library and OpenVINO GenAI in alternation on one Llama file: prefill and decode, tokens/s.

  pip install openvino-genai==2026.4.1.0 gguf
  cargo dev synth -- llama-1b q8_0 q8_0 model.gguf && make target/c/bench
  python openvino_peer.py [--rounds 5] [--threads 2] [--weights keep,int8] [--cases 1x512,1x64,16x64,32x64] model.gguf

A case is sequences x prompt tokens, and 16 new tokens each. --weights is what ours become while loading, one after the
other in each round. OpenVINO's reader wants keys that `synth` does not write; they are added to a copy.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import gguf
import numpy
import openvino
import openvino_genai

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
NEW = 16


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", default="keep,int8")
    parser.add_argument("--cases", default="1x512,1x64,16x64,32x64")
    return parser.parse_args()


def readable(source, target):
    """A copy with a file type, a chat template and a merge."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(target, "llama")
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tokens = list(fields["tokenizer.ggml.tokens"].contents())
    tokens[-1] = "ab"
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b"]}
    for name, field in fields.items():
        if name == "general.architecture":
            continue
        value = changed.get(name, field.contents())
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, list(value))
        else:
            writer.add_key_value(name, value, field.types[0])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_chat_template("{{ messages[0].content }}")
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Theirs:
    def __init__(self, path, threads):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens, scheduler.max_num_seqs, scheduler.cache_size = 4096, 64, 2
        scheduler.enable_prefix_caching = False
        settings = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": "f16"}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", settings)
        self.random = numpy.random.default_rng(1)
        self.seconds(1, 16, 4)

    def seconds(self, batch, prompt, new):
        prompts = [openvino.Tensor(self.random.integers(0, 256, (1, prompt), dtype=numpy.int64)) for _ in range(batch)]
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        start = time.monotonic()
        results = self.pipeline.generate(prompts, [config] * batch)
        taken = time.monotonic() - start
        assert all(len(result.m_generation_ids[0]) == new for result in results)
        return taken

    def run(self, batch, prompt):
        first, all_of_it = self.seconds(batch, prompt, 1), self.seconds(batch, prompt, 1 + NEW)
        return {"prefill": batch * prompt / first, "decode": batch * NEW / (all_of_it - first)}


def ours(path, options, weights, batch, prompt):
    command = [os.path.join(ROOT, "target", "c", "bench"), "--json", "--ids", "--together", "--weights", weights]
    command += ["--threads", str(options.threads), "--prompt", str(prompt), "--new", str(NEW)]
    run = subprocess.run([*command, "--batches", str(batch), path], check=True, capture_output=True)
    [result] = json.loads(run.stdout)["batches"]
    return {phase: result[f"{phase}_tokens_per_s"] for phase in ("prefill", "decode")}


def main():
    options = arguments()
    cases = [tuple(map(int, case.split("x"))) for case in options.cases.split(",")]
    kinds = options.weights.split(",")
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "model.gguf")
        readable(options.model, copy)
        theirs = Theirs(copy, options.threads)
        for batch, prompt in cases:
            rounds = []
            for _ in range(options.rounds):
                other = theirs.run(batch, prompt)
                rounds.append((other, {kind: ours(options.model, options, kind, batch, prompt) for kind in kinds}))
            for phase in ("prefill", "decode"):
                middle = statistics.median(other[phase] for other, _ in rounds)
                line = f"{batch} x {prompt}, {phase}: OpenVINO {middle:.1f}"
                for kind in kinds:
                    own = statistics.median(mine[kind][phase] for _, mine in rounds)
                    ratios = sorted(mine[kind][phase] / other[phase] for other, mine in rounds)
                    line += f"; {kind} {own:.1f}, {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                print(line, flush=True)


if __name__ == "__main__":
    main()
