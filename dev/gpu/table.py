"""Writes the results of run.sh in $BN_GPU_OUT as gpu.md and gpu.svg there: for docs/gpu.md."""

import json
import os
import sys

from common import MISSING, OUT
from plot import plot

LINES = (
    ("torch bf16", "torch bf16", "#999999", "5 4"),
    ("transformers", "transformers", "#d1495b", ""),
    ("ours", "ours", "#1d6fb8", ""),
)


def read(part):
    try:
        with open(os.path.join(OUT, f"{part}.json")) as file:
            return json.load(file)
    except FileNotFoundError:
        print(f"no {part}.json: dev/gpu/run.sh {part}")
        return None


def percent(value):
    return "?" if value is None else f"{100 * value:.1f}%"


def titled(found, head, rows):
    """A table, and what it was measured on."""
    lines = [f"{found['gpu'] or 'no GPU'}, commit {found['commit']}, medians of {found['repeat']}."]
    ceilings = found.get("ceilings")
    if ceilings and ceilings["bandwidth"]:
        lines.append(
            f"Bandwidth {ceilings['bandwidth'] / 1e12:.2f} TB/s, int8 {ceilings['int8'] / 1e12:.0f} TOP/s ({ceilings['how']})."
        )
    return [
        " ".join(lines),
        "",
        f"| {' | '.join(head)} |",
        "|---" + "|---:" * (len(head) - 1) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def decode(found):
    head = ["decode", "sequences", "tokens/s", "over one", "GB a step", "of bandwidth"]
    return titled(
        found,
        head,
        [
            [
                r["model"],
                str(r["sequences"]),
                f"{r['tokens_per_s']:.0f}",
                f"{r['over_one']:.1f}",
                f"{r['bytes'] / 1e9:.2f}",
                percent(r["share"]),
            ]
            for r in found["rows"]
        ],
    )


def prefill(found):
    head = ["prefill", "tokens", "ms", "tokens/s", "TOP/s", "of int8", "of bf16"]
    return titled(
        found,
        head,
        [
            [
                r["model"],
                str(r["prompt"]),
                f"{r['ms']:.2f}",
                f"{r['tokens_per_s']:.0f}",
                f"{r['operations_per_s'] / 1e12:.1f}",
                percent(r["share_int8"]),
                percent(r["share_bf16"]),
            ]
            for r in found["rows"]
        ],
    )


def first(found):
    return titled(
        found, ["first token", "prompt", "ms"], [[r["model"], str(r["prompt"]), f"{r['ms']:.2f}"] for r in found["rows"]]
    )


def launches(found):
    keys = ("kernels", "graphs", "kernels_in_graphs", "to_device", "to_host", "waits", "allocations")
    head = [
        "a decode step",
        "sequences",
        "kernels",
        "graphs",
        "kernels in them",
        "copies in",
        "copies out",
        "waits",
        "allocations",
    ]
    return titled(found, head, [[r["model"], str(r["sequences"]), *(f"{r[key]:.0f}" for key in keys)] for r in found["rows"]])


def peers(found):
    names = [who for who, *_ in reversed(LINES) if any(who in row for row in found["rows"])]
    head = ["tokens/s", "sequences", *names, *(f"over {who}" for who in names[1:])]
    shown = lambda row, key, digits: f"{row[key]:.{digits}f}" if key in row else "-"
    rows = [
        [
            r["model"],
            str(r["sequences"]),
            *(shown(r, who, 0) for who in names),
            *(shown(r, f"over {who}", 2) for who in names[1:]),
        ]
        for r in found["rows"]
    ]
    lines = [line for line in LINES if line[0] in names]
    results = [
        {
            "model": model,
            "batches": [
                {"batch": r["sequences"], "new tokens": {who: r.get(who, 0) for who in names}}
                for r in found["rows"]
                if r["model"] == model
            ],
        }
        for model in dict.fromkeys(r["model"] for r in found["rows"])
    ]
    with open(os.path.join(OUT, "gpu.svg"), "w") as file:
        file.write(plot(results, ["new tokens"], lines))
    return titled(found, head, rows)


def main():
    out = []
    for part in (decode, prefill, first, launches, peers):
        found = read(part.__name__)
        out += part(found) if found and found["rows"] else []
    if not out:
        return MISSING
    with open(os.path.join(OUT, "gpu.md"), "w") as file:
        file.write("\n".join(out))
    print("\n".join(out))
    print(f"written to {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
