#!/usr/bin/env python3
"""Chat templates as transformers renders them: tests/golden/chat/*.json from the templates beside them.

    python tools/golden/chat.py                       the committed templates
    python tools/golden/chat.py --originals DIR OUT   any *.jinja in DIR, into OUT, for
                                                      BN_CHAT_GOLDEN=OUT cargo test --test all text_chat::

llama.cpp's source (inside the sdist of llama-cpp-python, vendor/llama.cpp/models/templates) has many originals.
"""
import json
import os
import sys

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.join(os.path.dirname(__file__), "../../tests/golden/chat")

# A tokenizer's special_tokens_map. The texts don't matter, so all templates get the same.
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def say(*pairs):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "x": "critic"}
    return [{"role": names[who], "content": text} for who, text in pairs]


CONVERSATIONS = {
    "one": say(("u", "Hello!")),
    "system": say(("s", "You are terse."), ("u", "Why is the sky blue?")),
    "turns": say(("u", "1+1?"), ("a", "2."), ("u", "And 2+2?"), ("a", "4."), ("u", "3+3?")),
    "system and turns": say(("s", "Be kind."), ("u", "Hi"), ("a", "Hi there!"), ("u", "Bye")),
    "answered": say(("s", "Be kind."), ("u", "Hi"), ("a", "Hello.")),
    "unicode": say(("s", "Réponds en français."), ("u", "日本語 🐍 и кириллица \u0301 ẞ ǆ\u200b\U0010ffff"), ("a", "d\u00e9j\u00e0"),
                   ("u", "\u2028line\u2029para")),
    "empty": say(("s", ""), ("u", ""), ("a", ""), ("u", "x")),
    "blanks": say(("s", "  two before\n"), ("u", "\n\n lines \t"), ("a", " a\r\nb "), ("u", "\u00a0nbsp\u00a0 \x1c \x0b")),
    "only blanks": say(("u", " \n\t "), ("a", "\n"), ("u", "   ")),
    "template in content": say(("u", "{{ 1 + 1 }} {% raise %} {# no #} <s></s> 'quotes' \"double\" \\n & <b>")),
    "tokens in content": say(("u", "<|im_end|>\n<|im_start|>system <|eot_id|>[/INST]"), ("a", "<think>\nhm\n</think>\n\nyes"),
                             ("u", "and?")),
    "thinking": say(("u", "q1"), ("a", "<think>a</think>b</think>c"), ("u", "q2"), ("a", "<think>\n\n</think>\n\n d "), ("u", "q3")),
    "two users": say(("u", "a"), ("u", "b")),
    "assistant first": say(("a", "I begin."), ("u", "Fine.")),
    "late system": say(("u", "a"), ("s", "b"), ("u", "c")),
    "two systems": say(("s", "a"), ("s", "b"), ("u", "c")),
    "only system": say(("s", "alone")),
    "tool": say(("u", "weather?"), ("a", "calling"), ("t", '{"t": 21}'), ("a", "21"), ("u", "thanks")),
    "unknown role": say(("u", "a"), ("x", "b"), ("u", "c")),
    "none": [],
    "many": say(*[("ua"[i % 2], f"message {i}") for i in range(9)]),
}


def render(template, messages, prompt):
    """The rendered text, or None where the template fails, also by Python's own errors."""
    try:
        out, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=prompt, **TOKENS)
        return out[0]
    except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None


def golden(folder):
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jinja"):
            continue
        with open(os.path.join(folder, name), newline="") as file:
            template = file.read()
        cases = []
        for title, messages in CONVERSATIONS.items():
            texts = [render(template, messages, prompt) for prompt in (False, True)]
            case = {"conversation": title, "without_prompt": texts[0], "with_prompt": texts[1]}
            # Halves the file: mostly the generation prompt is only appended.
            if None not in texts and texts[1].startswith(texts[0]):
                case["added"] = case.pop("with_prompt")[len(texts[0]):]
            cases.append(case)
        yield name, template, cases


def write(path, value):
    with open(path, "w") as file:
        json.dump(value, file, ensure_ascii=False, indent=0)
        file.write("\n")


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--originals":
        folder, out = sys.argv[2], sys.argv[3]
    else:
        folder = out = HERE
    os.makedirs(out, exist_ok=True)
    write(os.path.join(out, "conversations.json"), CONVERSATIONS)
    for name, template, cases in golden(folder):
        write(os.path.join(out, name.removesuffix(".jinja") + ".json"), {"template": template, "cases": cases})
        failed = sum(case["without_prompt"] is None for case in cases)
        print(f"{name}: {len(cases)} conversations, {failed} refused")


if __name__ == "__main__":
    main()
