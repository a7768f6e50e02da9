"""The kernels of two builds in turns: `cargo build --release -p bn-dev --bin kernels` in each, then

  python3 dev/turns.py OLD NEW [--isa NAME]... [--only WORD]... [--rounds 5] [--launches 3] [--threads 2] [--quick] [--json FILE]

OLD and NEW are the two target/release/kernels. In each round one runs and then the other, first the one, then the other
way round. A launch's ratio is the least old time over the least new time: above 1 the new build is faster. Where memory
lies differs from process to process, so both are launched several times, and the median is taken.
"""

import argparse
import itertools
import json
import math
import statistics
import subprocess


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, metavar=("OLD", "NEW"))
    parser.add_argument("--isa", action="append", required=True)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    return parser.parse_args()


class Build:
    """One of the two builds, which waits at a case of its list."""

    def __init__(self, path, isa, options):
        only = itertools.chain.from_iterable(("--only", word) for word in options.only)
        quick = ["--quick"] if options.quick else []
        command = [path, "--turns", "--isa", isa, "--threads", options.threads, *quick, *only]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        self.case = tuple(line.rstrip("\n").split("\t")) if line else None

    def ask(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def go(self):
        self.ask("next")
        self.read()

    def microseconds(self):
        self.ask("round")
        return float(self.process.stdout.readline())


def rounds(old, new, count):
    """`count` pairs of times for the current case of both."""
    pairs = []
    for n in range(count):
        order = (old, new) if n % 2 == 0 else (new, old)
        times = {id(build): build.microseconds() for build in order}
        pairs.append((times[id(old)], times[id(new)]))
    return pairs


def launch(isa, options):
    """The least times of both builds, by case."""
    old, new = (Build(path, isa, options) for path in options.builds)
    least = {}
    while old.case and new.case:
        # The new build may have kernels that the old one lacks.
        if old.case != new.case:
            new.go()
            continue
        least[old.case] = [min(times) for times in zip(*rounds(old, new, options.rounds))]
        old.go()
        new.go()
    return least


def compare(isa, options):
    launches = [launch(isa, options) for _ in range(options.launches)]
    rows = []
    for case in launches[0]:
        pairs = [least[case] for least in launches]
        kernel, shape, tokens = case
        row = {"isa": isa, "kernel": kernel, "shape": shape, "m": int(tokens)}
        row["old_us"], row["new_us"] = (statistics.median(times) for times in zip(*pairs))
        row["ratio"] = statistics.median(a / b for a, b in pairs)
        rows.append(row)
        times = f"{row['old_us']:10.1f} {row['new_us']:10.1f} {row['ratio']:6.3f}"
        print(f"{isa} {kernel:24} {shape:>14} {tokens:>4} {times}", flush=True)
    return rows


def summary(rows):
    """For each instruction set and kernel: the number of cases, the geometric mean of their ratios, and the lowest."""

    def key(row):
        return row["isa"], row["kernel"]

    print("\n| set | kernel | cases | geometric mean | lowest | under 0.95 |\n|---|---|---:|---:|---:|---:|")
    for (isa, kernel), group in itertools.groupby(sorted(rows, key=key), key):
        ratios = [row["ratio"] for row in group]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        low = sum(ratio < 0.95 for ratio in ratios)
        print(f"| {isa} | {kernel} | {len(ratios)} | {mean:.3f} | {min(ratios):.3f} | {low} |")


def main():
    options = arguments()
    rows = [row for isa in options.isa for row in compare(isa, options)]
    summary(rows)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
