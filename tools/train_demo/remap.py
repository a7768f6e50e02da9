"""Carries a checkpoint over to another tokenizer, so that a run can start from an older one's weights.

  python remap.py old/ckpt.pt old/tokenizer.json tokenizer.json new/init.pt

Embedding rows go by token; a token that is new starts as the mean of its pieces' rows.
"""

import sys

import torch

import tok


def main(ckpt, old_path, new_path, out):
    s = torch.load(ckpt, weights_only=False)
    old = tok.load(old_path)
    ids = old.get_vocab()
    tokens, _ = tok.pieces(new_path)
    text = tok.load(new_path)
    rows = s["w"]["token_embd"]
    new, kept = torch.zeros(len(tokens), rows.shape[1]), 0
    for i, t in enumerate(tokens):
        if t in ids:
            new[i] = rows[ids[t]]
            kept += 1
        else:
            pieces = old.encode(text.decode([i])).ids
            new[i] = rows[pieces].mean(0)
    s["w"]["token_embd"] = new
    s["config"]["vocab"] = len(tokens)
    torch.save({"w": s["w"], "config": s["config"]}, out)
    print(f"{kept} of {len(tokens)} tokens kept their row")


if __name__ == "__main__":
    main(*sys.argv[1:])
