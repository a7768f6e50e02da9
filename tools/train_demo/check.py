"""Checks of the generator, the tokenizer and the file writer that need no training: python check.py"""

import random

import numpy as np

import corpus
import gguf_io as g
import tok


def main():
    train, test = corpus.all_sums()
    pairs = {frozenset(p) for p in test}
    assert len(train) + len(test) == 10000 and len(pairs) == corpus.HELD_OUT_PAIRS and len(test) >= 1000
    assert not any(frozenset(p) in pairs for p in train), "a held-out sum is in the training text"

    rng = random.Random(1)
    assert not any(corpus.recall_is_held_out(corpus.recall_list(rng)) for _ in range(2000))
    for prompt, answer in corpus.recall_test(200):
        name = prompt.rsplit(" ", 1)[1][:-1]
        assert f" {name}{answer}," in prompt or f" {name}{answer}." in prompt

    t = tok.load("tokenizer.json")
    for text in [corpus.story(rng) for _ in range(500)] + ["17+25=42", "Ages: Ada 4, Tom 17. Tom? 17", "naïve 漢字 \n"]:
        assert t.decode(t.encode(text).ids) == text
    assert [len(t.encode(x).ids) for x in ("17+25=42", " 17")] == [8, 3]
    # the prompt and the answer alone are the same tokens as the two together
    for a, b in (("17+25=", "42"), ("Ages: Ada 42, Tom 17. Tom?", " 17")):
        assert t.encode(a).ids + t.encode(b).ids == t.encode(a + b).ids
    lengths = sorted(len(t.encode(corpus.story(rng)).ids) for _ in range(1000))
    print("story tokens: 1 % below", lengths[10], "median", lengths[500], "1 % above", lengths[990])

    codes = np.random.default_rng(0).integers(-1, 2, (6, 256)).astype(np.int8)
    back, scale = g.unpack_i2_s(g.pack_i2_s(codes, 0.5), codes.size)
    assert scale == 0.5 and np.array_equal(back, codes.reshape(-1))
    assert np.array_equal(g.unpack_tq2_0(g.pack_tq2_0(codes, 0.5), codes.size), codes.reshape(-1) * np.float32(0.5))
    print("ok")


if __name__ == "__main__":
    main()
