"""This library, transformers' continuous batching and plain torch in turns: in each round every one of them, at each number of
sequences. Theirs are in bf16, of the same shapes. New tokens a second, prompts included; greedy. A ratio is the median of
rounds' ratios.

vLLM and llama-cpp-python are told of where they are installed; nothing is measured with them yet."""

import importlib.util
import os
import statistics
import sys
import time
import traceback

from common import MISSING, NEW, PROMPT, REPEAT, SEQUENCES, SYNTH, TRY, bench, gpu, models, save

# PEERS_DEVICE=cpu runs it without a GPU.
PLACE = os.environ.get("PEERS_DEVICE", "cuda")


def prompts(sequences, vocab):
    return [[(1 + i * 104729 + k * 7919) % vocab for k in range(PROMPT)] for i in range(sequences)]


class Torch:
    name = "torch bf16"

    def __init__(self, shape, torch, plain):
        self.shape, self.torch = shape, torch
        length = -(-(PROMPT + NEW + 1) // 64) * 64
        self.models = {n: plain.Plain(shape, n, length, torch.device(PLACE)) for n in SEQUENCES}
        for n in SEQUENCES:
            self.run(n)

    def run(self, sequences):
        ids = self.torch.tensor(prompts(sequences, self.shape["vocab"]), device=PLACE)
        begin = time.perf_counter()
        out = self.models[sequences].generate(ids, NEW)
        assert out.shape == (sequences, NEW)
        return sequences * NEW / (time.perf_counter() - begin)


class Transformers:
    name = "transformers"

    def __init__(self, shape, torch, plain):
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self.shape = shape
        self.model = plain.transformers_model(shape, PLACE)
        greedy = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
        # Do not cache prompts of earlier rounds, and leave memory to the others.
        small = {"num_blocks": 64, "max_batch_tokens": 256} if PLACE == "cpu" else {"max_memory_percent": 0.4}
        config = ContinuousBatchingConfig(allow_block_sharing=False, **small)
        self.manager = self.model.init_continuous_batching(generation_config=greedy, continuous_batching_config=config)
        if PLACE != "cpu":
            self.manager.warmup()
        self.manager.start()
        for n in SEQUENCES:
            self.run(n)
        graphs = self.manager.continuous_batching_config.use_cuda_graph
        print(f"transformers: attention {self.model.config._attn_implementation}, graphs {graphs}")

    def run(self, sequences):
        begin, left = time.perf_counter(), sequences
        self.manager.add_requests(prompts(sequences, self.shape["vocab"]), max_new_tokens=NEW)
        while left > 0:
            result = self.manager.get_result(timeout=1)
            if result is None and not self.manager.is_running():
                raise RuntimeError("its thread ended")
            if result is not None and result.is_finished():
                assert len(result.generated_tokens) == NEW, (len(result.generated_tokens), result.error)
                left -= 1
        return sequences * NEW / (time.perf_counter() - begin)

    def close(self):
        self.manager.stop(block=True, timeout=10)
        self.manager.destroy()


def ours(path, sequences):
    [b] = bench(path, [sequences], repeat=1)
    seconds = sequences * PROMPT / b["prefill_tokens_per_s"] + sequences * (NEW - 1) / b["decode_tokens_per_s"]
    return sequences * NEW / seconds


def compare(name, path, shape, torch, plain):
    theirs, rounds = [], []
    for kind in (Torch, Transformers):
        # If one of them does not run here, the others are still measured.
        try:
            theirs.append(kind(shape, torch, plain))
        except Exception:
            print(f"{kind.name} does not run here:\n{traceback.format_exc()}")
    for n in range(REPEAT):
        for sequences in SEQUENCES:
            row = {"sequences": sequences, "ours": ours(path, sequences)}
            # Reverse the order in every second round.
            row |= {peer.name: peer.run(sequences) for peer in theirs[:: 1 if n % 2 == 0 else -1]}
            rounds.append(row)
    rows = []
    for sequences in SEQUENCES:
        of = [row for row in rounds if row["sequences"] == sequences]
        row = {"model": name, "sequences": sequences, "ours": statistics.median(r["ours"] for r in of)}
        for peer in theirs:
            row[peer.name] = statistics.median(r[peer.name] for r in of)
            row[f"over {peer.name}"] = statistics.median(r["ours"] / r[peer.name] for r in of)
        print(
            f"{name:16} {sequences:4} sequences: ours {row['ours']:.0f} tokens/s; "
            + ", ".join(f"{peer.name} {row[peer.name]:.0f} ({row[f'over {peer.name}']:.2f} times)" for peer in theirs),
            flush=True,
        )
        rows.append(row)
    for peer in theirs:
        if hasattr(peer, "close"):
            peer.close()
    return rows, rounds, len(theirs)


def main():
    try:
        import torch

        import torch_model
    except ImportError as error:
        print(f"{error}: this needs torch")
        return MISSING
    if PLACE == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device")
        return MISSING
    for other in ("vllm", "llama_cpp"):
        print(f"{other} is {'installed: to be compared by hand' if importlib.util.find_spec(other) else 'not installed'}")
    print(f"torch {torch.__version__} on {gpu() or PLACE}; prompts of {PROMPT}, {NEW} new tokens, {REPEAT} rounds\n")
    rows, rounds, fewest = [], {}, 2
    for name, path in models():
        shape = torch_model.SHAPES.get("tiny" if TRY else SYNTH[name][0])
        if shape is None:
            print(f"{name}: torch_model.py has no such layers")
            continue
        made, rounds[name], ran = compare(name, path, shape, torch, torch_model)
        fewest = min(fewest, ran)
        rows += made
        save("peers", rows, rounds=rounds)
        if PLACE == "cuda":
            torch.cuda.empty_cache()
    return 0 if fewest == 2 else MISSING


if __name__ == "__main__":
    sys.exit(main())
