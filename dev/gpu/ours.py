"""Parts of run.sh that measure this library alone: same, launches, decode, prefill, first."""

import json
import os
import subprocess
import sys
import tempfile

from common import (
    DEVICE,
    MISSING,
    NEW,
    OUT,
    PROMPT,
    REPEAT,
    SEQUENCES,
    TRY,
    bench,
    ceilings,
    models,
    packed,
    save,
    say_ceilings,
    share,
)
from gguf_size import step


def decode():
    found, rows = ceilings(), []
    say_ceilings(found)
    print(f"prompts of {PROMPT}, {NEW} new tokens, medians of {REPEAT}; bandwidth: weights and head, once a step, without states\n")
    print(f"{'model':16} {'sequences':>9} {'tokens/s':>9} {'ms a step':>9} {'x one':>6} {'GB a step':>9} {'of bandwidth':>12}")
    for name, path in models():
        size, alone = step(path)["bytes"], None
        for b in bench(path, SEQUENCES):
            speed, sequences = b["decode_tokens_per_s"], b["batch"]
            alone = alone or speed / sequences
            read = size * speed / sequences
            rows.append(
                {
                    "model": name,
                    "sequences": sequences,
                    "tokens_per_s": speed,
                    "bytes": size,
                    "read": read,
                    "over_one": speed / alone,
                    "share": read / found["bandwidth"] if found["bandwidth"] else None,
                }
            )
            print(
                f"{name:16} {sequences:9} {speed:9.0f} {1e3 * sequences / speed:9.3f} {speed / alone:5.1f}x {size / 1e9:9.2f} "
                f"{share(read, found['bandwidth']):>12}",
                flush=True,
            )
            save("decode", rows, ceilings=found)


def prefill():
    found, rows, prompt = ceilings(), [], 24 if TRY else 2048
    say_ceilings(found)
    print(f"one prompt of {prompt} in one step, medians of {REPEAT}; operations: of the products, not of attention\n")
    print(f"{'model':16} {'ms':>9} {'tokens/s':>9} {'TOP/s':>8} {'of int8':>8} {'of bf16':>8}")
    for name, path in models():
        size = step(path)
        [b] = bench(path, [1], prompt=prompt, new=2, more=["--step-tokens", str(prompt)])
        operations = 2 * (prompt * sum(size["layers"].values()) + sum(size["head"].values()))
        rate = operations / (b["first_token_ms"] / 1e3)
        rows.append(
            {
                "model": name,
                "prompt": prompt,
                "ms": b["first_token_ms"],
                "tokens_per_s": b["prefill_tokens_per_s"],
                "operations_per_s": rate,
                "share_int8": rate / found["int8"] if found["int8"] else None,
                "share_bf16": rate / found["bf16"] if found["bf16"] else None,
            }
        )
        print(
            f"{name:16} {b['first_token_ms']:9.2f} {b['prefill_tokens_per_s']:9.0f} {rate / 1e12:8.1f} "
            f"{share(rate, found['int8']):>8} {share(rate, found['bf16']):>8}",
            flush=True,
        )
        save("prefill", rows, ceilings=found)


def first():
    rows = []
    for name, path in models():
        [b] = bench(path, [1], prompt=PROMPT, new=2, repeat=max(REPEAT, 5) if not TRY else 1)
        rows.append({"model": name, "prompt": PROMPT, "ms": b["first_token_ms"]})
        print(f"{name:16} first token behind {PROMPT}: {b['first_token_ms']:.3f} ms", flush=True)
        save("first", rows)


def same():
    sequences, worst = min(SEQUENCES[-1], 64), 0
    for _, path in models():
        ran = subprocess.run(
            [packed("same"), DEVICE, str(sequences), "4" if TRY else "48", path], text=True, stdout=subprocess.PIPE
        )
        print(ran.stdout.strip(), flush=True)
        with open(os.path.join(OUT, "same.txt"), "a") as file:
            file.write(ran.stdout)
        worst = max(worst, ran.returncode)
    return min(worst, 1)


def counted(path, sequences, new):
    """Driver calls in a run of bench, and its decode steps: it warms up with as many requests."""
    with tempfile.NamedTemporaryFile() as file:
        environment = {"BN_LAUNCHES": file.name, "LD_PRELOAD": packed("launches.so")}
        bench(path, [sequences], environment=environment, new=new, repeat=1)
        with open(file.name) as counts:
            return json.load(counts)


def launches():
    """Counts for steady decode: the difference of two runs, of which the second has `more` more steps."""
    rows, short, more = [], 4, 4 if TRY else 32
    keys = (
        "kernels",
        "graphs",
        "kernels_in_graphs",
        "to_device",
        "to_device_bytes",
        "to_host",
        "to_host_bytes",
        "fills",
        "waits",
        "allocations",
    )
    print(
        f"of one decode step, the mean of {2 * more}\n{'model':16} {'sequences':>9} " + " ".join(f"{key:>17}" for key in keys)
    )
    for name, path in models():
        for sequences in SEQUENCES:
            few, many = (counted(path, sequences, new) for new in (short, short + more))
            of = {key: (many[key] - few[key]) / (2 * more) for key in keys}
            rows.append({"model": name, "sequences": sequences} | of)
            print(f"{name:16} {sequences:9} " + " ".join(f"{of[key]:17.2f}" for key in keys), flush=True)
            save("launches", rows)


PARTS = {"decode": decode, "prefill": prefill, "first": first, "same": same, "launches": launches}

if __name__ == "__main__":
    absent = [path for _, path in models() if not os.path.exists(path)]
    if absent:
        print(f"no {', '.join(absent)}")
        sys.exit(MISSING)
    sys.exit(PARTS[sys.argv[1]]())
