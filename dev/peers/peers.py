"""This library and llama.cpp in alternation: models of real shapes with random weights, by batch size.

  pip install -r requirements.txt
  python peers.py [--models WORD]... [--rounds 5] [--batches 1,8,16,32] [--threads 2] [--layers N]
                  [--folder FOLDER for the models] [--out FOLDER for the results] [--instructions avx2]

--instructions limits this library, and the limit, to a narrower set than the machine's best. llama.cpp's is fixed when
llama-cpp-python is built. In each round every batch size runs on ours, then on theirs. The machine's limits are
measured once per round. A ratio is the median of the ratios of single rounds. peers.md has the table, peers.json every round,
peers.svg the plots.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile

import llama_cpp_bench
from gguf_size import EXPERTS, USED, step
from plot import plot

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

# Name, what synth writes for ours and for theirs, prompt and new tokens. llama.cpp has no I2_S, and of BitNet only the
# architecture with SiLU; the tensors are the same. Q4_0's head is what its quantizer makes of a tied one.
PAIRS = [
    ("BitNet 2B I2_S", ("bitnet-2b", "i2_s", "q6_k"), ("bitnet-2b-silu", "tq2_0", "q6_k"), 16, 16),
    ("BitNet 2B TQ2_0", ("bitnet-2b", "tq2_0", "q6_k"), ("bitnet-2b-silu", "tq2_0", "q6_k"), 16, 16),
    ("Llama 1B Q8_0", ("llama-1b", "q8_0", "q8_0"), ("llama-1b", "q8_0", "q8_0"), 64, 16),
    ("Llama 1B Q4_0", ("llama-1b", "q4_0", "q6_k"), ("llama-1b", "q4_0", "q6_k"), 64, 16),
    ("Bonsai 1.7B Q1_0", ("bonsai-1.7b", "q1_0", "q1_0"), ("bonsai-1.7b", "q1_0", "q1_0"), 64, 16),
    ("Bonsai 1.7B Q2_0", ("bonsai-1.7b", "q2_0", "q2_0"), ("bonsai-1.7b", "q2_0", "q2_0"), 64, 16),
    ("Qwen 3.5 4B Q4_K", ("qwen35-4b", "q4_k", "q6_k"), ("qwen35-4b", "q4_k", "q6_k"), 32, 16),
    ("Qwen 3.5 4B Q1_0", ("qwen35-4b", "q1_0", "q1_0"), ("qwen35-4b", "q1_0", "q1_0"), 32, 16),
    ("Maple 20B TQ2_0", ("maple-20b", "tq2_0", "q4_k"), ("maple-20b", "tq2_0", "q4_k"), 32, 16),
]
PHASES = ("prefill", "decode")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", action="append", default=[], help="only those with this word in their name")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", default="1,8,16,32")
    parser.add_argument("--instructions", help="ours: avx2, avx512-vnni and so on")
    parser.add_argument("--layers", type=int, help="fewer than the models have: to try this program")
    parser.add_argument("--folder", help="keep the models here")
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "peers"))
    return parser.parse_args()


def build():
    for command in (
        ["make", "--no-print-directory", "target/c/bench"],
        ["cargo", "build", "--quiet", "--release", "--package", "bn-dev", "--bin", "synth", "--bin", "limits"],
    ):
        subprocess.run(command, cwd=ROOT, check=True)


def model(folder, shape, layers):
    """The file's path. synth writes the file if it is missing."""
    path = os.path.join(folder, "-".join(shape) + (f"-{layers}" if layers else "") + ".gguf")
    if not os.path.exists(path):
        synth = os.path.join(ROOT, "target", "release", "synth")
        subprocess.run([synth, *shape, path] + ([str(layers)] if layers else []), check=True)
    return path


def limits(options, folder):
    """Measures bytes per second, and multiplications per second of our fastest instructions."""
    path, threads = os.path.join(folder, "limits.json"), options.threads
    command = [os.path.join(ROOT, "target", "release", "limits"), "--quick", "--threads", str(threads)]
    command += ["--isa", options.instructions] if options.instructions else []
    subprocess.run([*command, "--json", path], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with open(path) as file:
        measured = json.load(file)
    most = next(l for l in measured["limits"] if l["threads"] == threads)
    counts = lambda r: r["of_kernels"] or not options.instructions
    rate = lambda kind: max(r["gmac_per_s"] for r in most["rates"] if r["kind"] == kind and counts(r)) * 1e9
    return {"read": most["read_gb_per_s"] * 1e9, "int8": rate("int8"), "f32": rate("f32")}


def allowed(size, limit, batch, prompt):
    """Tokens a second that the weights alone allow: read once a step, of experts those that some row has, multiplied once a
    token, the head once for each token that is sampled."""
    part = lambda name: sum(n / limit[kind] for kind, n in size[name].items())
    layers, head = part("layers"), part("head")
    reading = lambda rows: (size["bytes"] + size["experts"] * (1 - (1 - USED / EXPERTS) ** rows)) / limit["read"]
    return {
        "prefill": batch * prompt / max(reading(batch * prompt), batch * (prompt * layers + head)),
        "decode": batch / max(reading(batch), batch * (layers + head)),
    }


def ours(path, options, batch, prompt, new):
    command = [os.path.join(ROOT, "target", "c", "bench"), "--json", "--ids", "--together"]
    command += ["--threads", str(options.threads)]
    command += ["--instructions", options.instructions] if options.instructions else []
    command += ["--prompt", str(prompt), "--new", str(new), "--batches", str(batch), path]
    [result] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["batches"]
    return {phase: result[f"{phase}_tokens_per_s"] for phase in PHASES}


def compare(pair, options, folder):
    name, mine, yours, prompt, new = pair
    path, their_path = (model(folder, shape, options.layers) for shape in (mine, yours))
    size, theirs = step(path), llama_cpp_bench.Model(their_path, options.threads)
    batches = [int(b) for b in options.batches.split(",")]
    rounds = []
    for n in range(options.rounds):
        limit = limits(options, folder)
        for batch in batches:
            result = {"round": n, "batch": batch, "limits": limit, "limit": allowed(size, limit, batch, prompt)}
            result["ours"] = ours(path, options, batch, prompt, new)
            result["theirs"] = theirs.run(batch, prompt, new)
            rounds.append(result)
            print(f"{name}, round {n + 1} of {options.rounds}, batch {batch}: " + ", ".join(
                f"{phase} {result['ours'][phase]:.1f} to {result['theirs'][phase]:.1f}" for phase in PHASES
            ), flush=True)
    theirs.close()
    return {"model": name, "prompt": prompt, "new": new, "theirs": "-".join(yours), "layers": options.layers,
            "batches": [summary(batch, [r for r in rounds if r["batch"] == batch]) for batch in batches],
            "batching": [batching(rounds, batch, batches[0]) for batch in batches[1:]], "rounds": rounds}


def batching(rounds, batch, first):
    """Decode at `batch` over decode at the first batch size, ours and what the limits allow; ours over theirs at the
    batch size that is best for them. Medians of the rounds' own ratios."""
    of = lambda n, size: next(r for r in rounds if r["round"] == n and r["batch"] == size)
    gains = {"ours": [], "theirs": [], "limit": [], "share": [], "over_best": []}
    for n in sorted({r["round"] for r in rounds}):
        gain = {who: of(n, batch)[who]["decode"] / of(n, first)[who]["decode"] for who in ("ours", "theirs", "limit")}
        best = max(r["theirs"]["decode"] for r in rounds if r["round"] == n)
        gain |= {"share": gain["ours"] / gain["limit"], "over_best": of(n, batch)["ours"]["decode"] / best}
        for what, value in gain.items():
            gains[what].append(value)
    return {"batch": batch, "first": first} | {what: statistics.median(values) for what, values in gains.items()}


def summary(batch, rounds):
    out = {"batch": batch}
    for phase in PHASES:
        median = lambda of: statistics.median(of(r) for r in rounds)
        out[phase] = {who: median(lambda r: r[who][phase]) for who in ("ours", "theirs", "limit")}
        ratios = [r["ours"][phase] / r["theirs"][phase] for r in rounds]
        out[phase] |= {
            "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios),
            "of_limit": median(lambda r: r["ours"][phase] / r["limit"][phase]),
        }
    return out


def table(results, options):
    pinned = f"ours on {options.instructions}; " if options.instructions else ""
    lines = [f"{llama_cpp_bench.VERSION} ({', '.join(llama_cpp_bench.instructions())}) on {cpu()}, "
             f"{options.threads} threads; {pinned}medians, the ratio's lowest and highest behind it."]
    for result in results:
        cut = f", {result['layers']} layers only" if result["layers"] else ""
        lines += ["", f"## {result['model']}{cut}", "",
                  f"{result['prompt']} prompt and {result['new']} new tokens each; theirs is {result['theirs']}.", "",
                  "| batch | phase | ours t/s | llama.cpp t/s | ratio | limit t/s | ours of limit |",
                  "|---:|---|---:|---:|---|---:|---:|"]
        for b in result["batches"]:
            for phase in PHASES:
                p = b[phase]
                lines.append(
                    f"| {b['batch']} | {phase} | {p['ours']:.1f} | {p['theirs']:.1f} | {p['ratio']:.2f} "
                    f"({p['lowest']:.2f} to {p['highest']:.2f}) | {p['limit']:.1f} | {100 * p['of_limit']:.0f}% |"
                )
        lines += [""] + [
            f"Decode at {b['batch']} over {b['first']}: ours {b['ours']:.2f}, llama.cpp {b['theirs']:.2f}, the limits "
            f"allow {b['limit']:.2f} (ours {100 * b['share']:.0f}% of it); ours over llama.cpp's best batch size "
            f"{b['over_best']:.2f}.  " for b in result["batching"]
        ]
    return "\n".join(lines) + "\n"


def cpu():
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main():
    options = arguments()
    pairs = [p for p in PAIRS if not options.models or any(word in p[0] for word in options.models)]
    build()
    os.makedirs(options.out, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        os.makedirs(folder, exist_ok=True)
        for pair in pairs:
            results.append(compare(pair, options, folder))
            # Write after each model, so that an interruption loses only one.
            for name, text in (
                ("peers.json", json.dumps({"cpu": cpu(), "threads": options.threads, "instructions": options.instructions,
                                         "theirs": llama_cpp_bench.VERSION,
                                         "their_instructions": llama_cpp_bench.instructions(), "results": results},
                                        indent=1)),
                ("peers.md", table(results, options)),
                ("peers.svg", plot(results)),
            ):
                with open(os.path.join(options.out, name), "w") as file:
                    file.write(text)
    print(table(results, options))
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
