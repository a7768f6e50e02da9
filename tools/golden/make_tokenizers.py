"""Reference token ids for 10,000 texts and every kind of tokenizer that bn_engine reads, into
tests/golden/tokenizers/: small vocabularies are trained here, the ids are those of the Python packages
`tokenizers` (byte-level BPE, and SentencePiece's with special tokens) and `sentencepiece` (plain texts).

    python tokenizers.py             # the committed files
    python tokenizers.py dump FOLDER # beside them, ids of every text, one JSON a case, to look for differences

Texts are not stored: src/text/tokenizer/golden.rs makes the same ones from parts.json by the same recipe. Ids are stored
as a CRC-32 for each block of texts.
"""

import io
import json
import os
import random
import sys
import unicodedata
import zlib

# Imports must not find files of this folder.
here = os.path.dirname(os.path.abspath(__file__))
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != here]

import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402
from transformers.convert_slow_tokenizer import generate_merges  # noqa: E402

OUT = os.path.join(here, "../../tests/golden/tokenizers")
TEXTS, BLOCK, SHOWN = 10_000, 50, 6

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def gpt4(digits):
    return CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL


def gpt4o(contractions, digits):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (r"[^\r\n\p{L}\p{N}]?" + upper + "*" + lower + "+" + contractions + r"|[^\r\n\p{L}\p{N}]?" + upper + "+"
            + lower + "*" + contractions + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
DIGITS = pre_tokenizers.Digits(individual_digits=True)
CJK = "[一-龥ࠀ-一가-퟿]+"
# As deepseek-llm's tokenizer.json has it.
LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\x{1F5F}-\x{1F7D}"
    r"ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌ\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏"
    r"𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")
# name of the rule: (splitter, NFC, ignore_merges, BOS unless the file says otherwise)
RULES = {
    "gpt-2": (GPT2_BYTES, False, False, False),
    "llama-bpe": (sequence(split(gpt4(r"\p{N}{1,3}")), BYTES), False, True, True),
    "qwen2": (sequence(split(gpt4(r"\p{N}")), BYTES), True, False, False),
    "qwen35": (sequence(split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL),
                        BYTES), True, False, False),
    "glm4": (sequence(split(gpt4(r"\p{N}{1,3}")), BYTES), False, True, False),
    "seed-coder": (sequence(split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + TAIL), BYTES),
                   False, False, False),
    "falcon": (sequence(pre_tokenizers.Punctuation("contiguous"), GPT2_BYTES, pre_tokenizers.Digits(False),
                        split("[0-9][0-9][0-9]")), False, False, False),
    "smollm": (sequence(DIGITS, GPT2_BYTES), False, False, False),
    "command-r": (sequence(DIGITS, GPT2_BYTES), True, False, False),
    "olmo": (GPT2_BYTES, True, False, False),
    "dbrx": (sequence(split(gpt4(r"\p{N}{1,3}")), BYTES), False, False, False),
    "deepseek-llm": (sequence(split("[\r\n]"), split(LETTERS), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
                              split(CJK), DIGITS, BYTES), False, False, False),
    "deepseek-coder": (sequence(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK), DIGITS, BYTES),
                       False, False, False),
    "deepseek-v3": (sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + TAIL),
        BYTES), False, False, False),
    "gpt-4o": (sequence(split(gpt4o(CONTRACTIONS + "?", r"\p{N}{1,3}")), BYTES), False, False, False),
    "tekken": (sequence(split(gpt4o("", r"\p{N}")), BYTES), False, True, True),
}
CONTROL = ["<|bos|>", "<|eos|>", "<|eot_id|>", "<|reserved_1|>", "<|reserved_10|>"]
USER_DEFINED = ["<tag>", "<tag><tag>", "[été]"]

WORDS = """the a and to of in it was he she said little big bird river stone don't I'll we've they're O'Brien'S
Straße naïve façade coöperate São Ζεύς λόγος Москва привет мир שלום עולם مرحبا بالعالم हिन्दी नमस्ते ภาษาไทย 日本語 中文字符 テスト 한국어
👋 🌍 👩‍👩‍👧 🇩🇪 ❤️ é e\u0301 ﬁ Å Ǆ ǆ ẞ ß İ ı K ſ x² ½ Ⅷ ٣٤ ४५ ①② 12 345 6789 3.14159 1,000,000 0x1F 17+25=42 1e-9
snake_case camelCase HTTPServer /usr/bin C:\\path a.b@c.de https://x.org/?q=1&r=%20 ... --- *** "quoted" 'single' `tick`
'S 'T 'RE 'vE 'm 'Ll 'D 'ſ 'x ' '' '''s \u00a0 \u2003 \u3000 \u200b \u200d \ufeff \u0085 \u2028 \x00 \x07 \x1b \x7f \ufffd \U0010ffff
ò ² ³³12 ¼¾ u\u0308\u0304 \u1100\u1161\u11a8 \u212b \u0958 \u2581 \u2581\u2581x <0x0A> <s> </s> <unk>"""
CODE = ["fn main() { let x = &mut y[i]; }", "#include <stdio.h>\n", "std::vector<int> /* c */ // -->\n", "if a != b && c <= d || !e {\n",
        "    for (int i = 0; i < n; ++i) {\n        sum += a[i] * 2.5e-3f;\n    }\n", "def f(x, *args, **kw):\n\treturn [y for y in x if y]\n",
        "SELECT * FROM t WHERE id = 42;", "{\"key\": [1, 2.0, null, true]}", "<div class=\"a\">&nbsp;</div>\r\n", "x = 'it''s' + \"\\n\\u00e9\"", "|a|b|\n|-|-|\n", "$x^2 + \\frac{1}{2}$"]
SPACES = [" ", " ", " ", " ", " ", "  ", "   ", "        ", "\n", "\n\n", "\r\n", " \n", "\n ", "\t", "\t\t", " \t ", "\v", "\f", "", "", "", ""]


def chars():
    """Characters of all planes whose class has not changed in the last decade of Unicode versions."""
    rng = random.Random(4)
    out = [chr(c) for c in range(0x20, 0x180)]
    kinds = {}
    for code in range(0x180, 0x110000):
        kind = unicodedata.category(chr(code))
        old = unicodedata.ucd_3_2_0.category(chr(code)) == kind and kind != "Cn"
        if kind == "Cs" or not (old or code >= 0x40000):
            continue
        kinds.setdefault((code >> 16, kind), []).append(chr(code))
    for _, members in sorted(kinds.items()):
        out += rng.sample(members, min(24, len(members)))
    return "".join(out)


def words():
    return [w for line in WORDS.split("\n") for w in line.split(" ")]


class Draw:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) >> 33) % n


def text(draw, parts):
    out = b""
    pick = lambda key: parts[key][draw.below(len(parts[key]))].encode()
    for _ in range(1 + draw.below(14)):
        kind = draw.below(40)
        if kind < 22:
            out += pick("words")
        elif kind < 25:
            out += bytes(32 + draw.below(95) for _ in range(1 + draw.below(8)))
        elif kind < 30:
            out += pick("chars")
        elif kind < 32:
            out += b" " * (1 + draw.below(40))
        elif kind < 34:
            out += bytes(48 + draw.below(10) for _ in range(1 + draw.below(12)))
        elif kind < 37:
            out += pick("specials")
        elif kind < 38:
            out += bytes(draw.below(256) for _ in range(1 + draw.below(4)))
        else:
            out += pick("code")
        out += pick("spaces")
    return out.decode("utf-8", "replace")


def training_text():
    rng = random.Random(1)
    common = words()[:40]
    for _ in range(3000):
        yield " ".join(rng.choice(common if rng.random() < 0.6 else words()) for _ in range(12))
        yield "\n    ".join(str(rng.randrange(3000)) for _ in range(4)) + "  " * rng.randrange(4) + rng.choice(CODE)


def blocks(ids):
    out = []
    for start in range(0, len(ids), BLOCK):
        crc = 0
        for one in ids[start:start + BLOCK]:
            for i in one + [0xFFFFFFFF]:
                crc = zlib.crc32(i.to_bytes(4, "little"), crc)
        out.append(crc)
    return out


def added(tokens, special):
    return [AddedToken(t, normalized=False, special=special) for t in tokens]


def skeleton(tokenizer):
    """The tokenizer.json without its vocabulary, which the test fills in."""
    out = json.loads(tokenizer.to_str())
    del out["model"]["vocab"], out["model"]["merges"], out["truncation"], out["padding"]
    return out


def both_ways(tokenizer, texts):
    tokenizer.encode_special_tokens = True
    plain = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    tokenizer.encode_special_tokens = False
    return plain, [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def case(name, plain, special, dump, **more):
    if dump:
        with open(os.path.join(dump, name + ".json"), "w", encoding="utf-8") as f:
            json.dump({"plain": plain, "special": special}, f)
    return {"name": name, **more, "shown": plain[:SHOWN], "plain": blocks(plain), "special": blocks(special)}


def byte_level(rule, texts, dump):
    cut, nfc, ignore_merges, adds_bos = RULES[rule]

    def build(vocab, merges):
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
        t.pre_tokenizer, t.decoder = cut, decoders.ByteLevel()
        if nfc:
            t.normalizer = normalizers.NFC()
        return t

    t = build({}, [])
    t.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(t.to_str())["model"]
    merges = [tuple(m) for m in model["merges"]]
    unmerged = []
    if ignore_merges:  # Tokens that no merge reaches, so they match only whole words.
        made = [a + b for i, (a, b) in enumerate(merges) if i % 9 != 8]
        parts = {p for i, m in enumerate(merges) if i % 9 != 8 for p in m}
        unmerged = [a + b for i, (a, b) in enumerate(merges) if i % 9 == 8 and a + b not in made and a + b not in parts]
        merges = [m for m in merges if m[0] + m[1] not in unmerged]
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    for a, b in merges:
        if a + b not in tokens:
            tokens.append(a + b)
    tokens += unmerged
    t = build({token: i for i, token in enumerate(tokens)}, merges)
    t.add_special_tokens(added(CONTROL, True))
    t.add_tokens(added(USER_DEFINED, False))
    if adds_bos:
        t.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", len(tokens))])
    plain, special = both_ways(t, texts)
    return case(rule, plain, special, dump, adds_bos=adds_bos, nfc=nfc, merges=[" ".join(m) for m in merges], unmerged=unmerged,
                control=CONTROL, user_defined=USER_DEFINED, json=skeleton(t))


def score_based(name, texts, dump, prefix=True, squeeze=False, fallback=True, user_defined=(), legacy=True):
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t.replace("\u2581", " ").replace("\0", "") for t in training_text()]), model_writer=trained,
        model_type="bpe", vocab_size=700, character_coverage=0.995, normalization_rule_name="identity", add_dummy_prefix=prefix,
        remove_extra_whitespaces=squeeze, byte_fallback=fallback, user_defined_symbols=list(user_defined),
        split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2, num_threads=1)
    sp = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    n = sp.get_piece_size()
    pieces = [sp.id_to_piece(i) for i in range(n)]
    scores = [sp.get_score(i) for i in range(n)]
    types = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 4 if pieces[i] in user_defined else 1
             for i in range(n)]
    vocab = {p: i for i, p in enumerate(pieces)}
    normal = {p: s for p, s, t in zip(pieces, scores, types) if t == 1}
    merges = generate_merges(vocab, normal)
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if legacy:
        t.normalizer = normalizers.Sequence(
            ([normalizers.Prepend("\u2581")] if prefix else []) + [normalizers.Replace(" ", "\u2581")])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if prefix else "never", split=False)
    t.decoder = decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    t.add_special_tokens(added(["<unk>", "<s>", "</s>"], True))
    t.add_tokens([AddedToken(u.replace("\u2581", " "), normalized=False) for u in user_defined if "\u2581" not in u])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    plain, special = both_ways(t, texts)
    reference = sp.encode(texts)
    different = [i for i, (a, b) in enumerate(zip(plain, reference)) if a != b]
    print(name, "texts in which tokenizers and sentencepiece differ:", len(different))
    for i in different[:3]:
        print(ascii(texts[i]), [pieces[x] for x in plain[i]], [pieces[x] for x in reference[i]], sep="\n  ")
    return case(name, plain, special, dump, adds_bos=True, nfc=False, pieces=pieces, scores=scores, types=types,
                merges=[" ".join(m) for m in merges], prefix=prefix, squeeze=squeeze, json=skeleton(t),
                sentencepiece=blocks(reference))


def write(name, value):
    with open(os.path.join(OUT, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def main():
    dump = sys.argv[2] if sys.argv[1:2] == ["dump"] else None
    parts = {"texts": TEXTS, "block": BLOCK, "words": words(), "code": CODE, "spaces": SPACES, "chars": chars(),
             "specials": CONTROL + USER_DEFINED + ["<s>", "</s>", "<unk>", "<sym>"]}
    draw = Draw(5)
    texts = [text(draw, parts) for _ in range(TEXTS)]
    print(len(texts), "texts,", sum(map(len, texts)), "characters,", len({ord(c) >> 16 for t in texts for c in t}), "planes")
    crc = 0
    for t in texts:
        crc = zlib.crc32(t.encode() + b"\xff", crc)
    write("parts.json", {**parts, "crc": crc})
    write("byte_level.json", {"source": f"tokenizers {tokenizers.__version__} (Python)",
                              "cases": [byte_level(rule, texts, dump) for rule in RULES]})
    spm = [
        score_based("spm", texts, dump),
        score_based("spm-first", texts, dump, legacy=False),
        score_based("spm-no-prefix", texts, dump, prefix=False),
        score_based("spm-user-defined", texts, dump, prefix=False, user_defined=["<sym>", "<tag>", "<tag><tag>"]),
        score_based("spm-unknown", texts, dump, fallback=False),
        score_based("spm-squeeze", texts, dump, squeeze=True),
    ]
    write("score_based.json", {"source": f"sentencepiece {sentencepiece.__version__}, tokenizers {tokenizers.__version__} (Python)",
                               "cases": spm})


if __name__ == "__main__":
    main()
