"""Reference token ids: trains a small byte-level BPE for each split rule and encodes varied texts with the
`tokenizers` package (Oniguruma for the split patterns), into tests/golden/tokenizer.json.

    python tokenizer.py                      # the committed file
    python tokenizer.py 2000 /tmp/many.json  # more texts; BN_TOKENIZER_GOLDEN=/tmp/many.json cargo test golden
"""

import json
import os
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
# As the tokenizer.json of GPT-2, Llama 3 and Qwen 2 have them.
RULES = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": CONTRACTIONS + r"\p{N}{1,3}" + TAIL,
    "qwen2": CONTRACTIONS + r"\p{N}" + TAIL,
}
CONTROL = ["<|bos|>", "<|eos|>", "<|eot_id|>", "<|reserved_1|>", "<|reserved_10|>"]
USER_DEFINED = ["<tag>", "<tag><tag>", "[été]"]

WORDS = """the a and to of in it was he she said little big bird river stone don't I'll we've they're O'Brien'S
Straße naïve façade coöperate São Ζεύς λόγος Москва привет мир שלום עולם مرحبا بالعالم हिन्दी नमस्ते ภาษาไทย 日本語 中文字符 テスト 한국어
👋 🌍 👩‍👩‍👧 🇩🇪 ❤️ é e\u0301 ﬁ Å Ǆ ǆ ẞ ß İ ı K ſ x² ½ Ⅷ ٣٤ ४५ ①② 12 345 6789 3.14159 1,000,000 0x1F 17+25=42 1e-9
def fn main() { let x = &mut y[i]; } #include <stdio.h> std::vector<int> /* c */ // --> == != <= >= && || ->
snake_case camelCase HTTPServer /usr/bin C:\\path a.b@c.de https://x.org/?q=1&r=%20 ... --- *** "quoted" 'single' `tick`
'S 'T 'RE 'vE 'm 'Ll 'D 'ſ 'x ' '' '''s \u00a0 \u2003 \u3000 \u200b \u200d \ufeff \u0085 \u2028 \x00 \x07 \x1b \x7f \ufffd \U0010ffff"""
SPACES = [" ", "  ", "   ", "        ", "\n", "\n\n", "\r\n", " \n", "\n ", "\t", "\t\t", " \t ", "\v", "\f", "", ""]
PLAIN = [
    "", " ", "\n", "a", "Hello, world!", " leading", "trailing ", "two  spaces", "    four = 4", "\t\ttabs\n\n\n  x",
    " " * 100, " " * 101 + "x", "\n" * 50, "x" * 200, "ab" * 100, "1" * 40, "!" * 40, "é" * 40, "👍" * 20, " \n" * 20,
    "don't DON'T Don'T we'LL I'm I'M they'Ve it'ſ", "17+25=42", "1234567890 12 345", "a\u00a0b\u3000c\u2028d\u0085e",
    "<|bos|>Hello<|eos|>", "<|reserved_1|><|reserved_10|><|reserved_100|>", "<tag><tag><tag>", "x<tag >y<|bos", "[été] [ete]",
    " <|eot_id|> ", "<|eot_id|>\n\n<|eot_id|>", "<<|eos|>>", "caf\u00e9 cafe\u0301", "\ufeffBOM", "a\x00b",
]


def words():
    return [w for line in WORDS.split("\n") for w in line.split(" ")]


def text(rng):
    """Words, spaces, and now and then any character at all."""
    pick = words() + CONTROL + USER_DEFINED
    out = []
    for _ in range(rng.randrange(1, 16)):
        kind = rng.random()
        if kind < 0.75:
            out.append(rng.choice(pick))
        elif kind < 0.85:
            out.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 8))))
        else:
            code = rng.choice([rng.randrange(0x250), rng.randrange(0x3000), rng.randrange(0x20000)])
            out.append(chr(code) if not 0xD800 <= code < 0xE000 else "?")
        out.append(rng.choice(SPACES))
    return "".join(out)


def training_text(rng):
    common = words()[:40]
    for _ in range(3000):
        yield " ".join(rng.choice(common if rng.random() < 0.7 else words()) for _ in range(12))
        yield "\n    ".join(str(rng.randrange(3000)) for _ in range(4)) + "  " * rng.randrange(4)


def build(vocab, merges, rule, ignore_merges):
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(RULES[rule]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return t


def train(rule):
    t = build({}, [], rule, False)
    t.train_from_iterator(training_text(random.Random(1)), trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(t.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    return model["vocab"], merges


def case(rule, texts):
    vocab, merges = train(rule)
    ignore_merges = rule == "llama-bpe"
    if ignore_merges:  # Tokens that no merge reaches: taken only as whole words.
        merges = [m for i, m in enumerate(merges) if i % 9 != 8]
    plain = build(vocab, merges, rule, ignore_merges)
    special = build(vocab, merges, rule, ignore_merges)
    special.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in CONTROL])
    special.add_tokens([AddedToken(s, normalized=False, special=False) for s in USER_DEFINED])
    tokens = sorted(vocab, key=vocab.get)
    assert [vocab[t] for t in tokens] == list(range(len(tokens)))
    tokens += CONTROL + USER_DEFINED
    assert all(special.token_to_id(t) == i for i, t in enumerate(tokens))
    types = [1] * len(vocab) + [3] * len(CONTROL) + [4] * len(USER_DEFINED)
    ids = [plain.encode(t).ids for t in texts]
    parsed = [special.encode(t).ids for t in texts]
    return {
        "pre": rule, "tokens": tokens, "types": types, "merges": [" ".join(m) for m in merges], "ids": ids,
        # Only where it differs.
        "ids_with_special": [p if p != i else None for p, i in zip(parsed, ids)],
    }


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    path = sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "../../tests/golden/tokenizer.json")
    rng = random.Random(2)
    texts = PLAIN + [text(rng) for _ in range(n - len(PLAIN))]
    out = {"source": f"tokenizers {tokenizers.__version__} (Python)", "texts": texts,
           "cases": [case(rule, texts) for rule in RULES]}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
