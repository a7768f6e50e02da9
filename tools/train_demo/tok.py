"""Byte-level BPE on the generator's text: trains, saves and loads tokenizer.json."""

import json
import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus

# The `qwen2` rule of tokenizer.ggml.pre: every digit stands alone.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BOS, EOS = "<|bos|>", "<|eos|>"


def train(path, vocab=1280, stories=30000):
    rng = random.Random(99)

    def text():
        for _ in range(stories):
            yield corpus.story(rng)
        for name in corpus.NAMES * 40:  # names as the recall lists write them
            yield f"Ages: {name} 1, {name} 2. {name}? 3"

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(text(), trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[BOS, EOS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.save(path)
    return t


def load(path):
    return Tokenizer.from_file(path)


def pieces(path):
    """(tokens in id order, merges as "a b") for the GGUF metadata."""
    d = json.load(open(path, encoding="utf-8"))
    tokens = [None] * len(d["model"]["vocab"])
    for piece, i in d["model"]["vocab"].items():
        tokens[i] = piece
    merges = [m if isinstance(m, str) else " ".join(m) for m in d["model"]["merges"]]
    return tokens, merges


if __name__ == "__main__":
    t = train(sys.argv[1])
    for s in ("17+25=42", "Ages: Ada 42, Tom 17. Tom? 17", corpus.story(random.Random(5))):
        e = t.encode(s)
        print(len(e.ids), e.tokens)
        assert t.decode(e.ids) == s
    for n in corpus.NAMES:
        assert len(t.encode(" " + n).ids) == 1, n
