"""Held-out accuracy of an exported GGUF, at temperature 0, and a few stories.

  python evaluate.py [../../models/bn-demo.gguf]
"""

import json
import sys

import torch

import export
import train

OPENINGS = ["Once upon a time,", "One day, Mia", "There was once a", "It was a cold winter", "Long ago,", "One sunny morning, Tom",
            "In a small village,", "This is the story of"]


def main(path):
    torch.set_num_threads(1)
    c, w = export.load(path)
    b = train.Batches(0)
    sums = b.test_sums[:1000]
    good = train.exact(c, w, *b.sums(pairs=sums), True)
    ids, target = train.recall_eval_batch(b, 500, seed=2024)
    right = train.exact(c, w, ids, target, True)
    print(json.dumps({"sums": int(good.sum()), "of": len(sums), "recalls": int(right.sum()), "of_recalls": len(ids),
                      "sums_wrong": [f"{a}+{x}" for (a, x), ok in zip(sums, good) if not ok]}))
    # Spot check: the table above uses teacher forcing, which is right on exactly the answers that greedy gets right.
    for i in range(0, 1000, 50):
        d, at = b.sum_ids(*sums[i])
        assert (train.complete(c, w, d[:at], len(d) - at, True, b.eos) == d) == bool(good[i])
    for text in OPENINGS:
        print(b.t.decode(train.complete(c, w, [b.bos] + b.t.encode(text).ids, 160, True, b.eos)), "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "../../models/bn-demo.gguf")
