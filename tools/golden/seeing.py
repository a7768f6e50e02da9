"""Whole models that see, on pictures: tests/golden/seeing/, by the folders that towers.py makes.

  python seeing.py

A case of the json has a folder, the control tokens of its tokenizer, and sequences. A sequence has a text with one
placeholder for each picture, the ids of its letters and control tokens before pictures are put in, the pictures' sizes,
and the number of positions. Byte i of a picture's pixels is `byte(i, n)`, where n is its number over all sequences of the
case. The f32 file has a row of logits for each position of the prompts, in which each placeholder became what the
model's processor writes, case after case.
"""

import json
import os
import re

from cases import ROOT, VERSIONS

import numpy as np
import pictures
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

FOLDER = os.path.join(ROOT, "tests", "golden", "towers")
OUT = os.path.join(ROOT, "tests", "golden", "seeing")
LETTERS = {c: n for n, c in enumerate("abcdefghijklmnopqrstuvwxyz :.\n", 3)}
TILES = [f"row_{row}_col_{col}" for row in range(1, 5) for col in range(1, 5)]
CASES = [
    {
        "model": "qwen35",
        "make": pictures.Qwen2VLImageProcessor,
        "keep": ["pixel_values", "image_grid_thw"],
        "place": "<|image_pad|>",
        "controls": {"<|vision_start|>": 58, "<|vision_end|>": 59, "<|image_pad|>": 60},
        "sequences": [
            ("cd<|vision_start|><|image_pad|><|vision_end|>efg", [(37, 22)]),
            ("<|vision_start|><|image_pad|><|vision_end|>hi<|vision_start|><|image_pad|><|vision_end|>j", [(16, 16), (60, 9)]),
            ("abcdefghijk<|vision_start|><|image_pad|><|vision_end|>rstu", [(24, 48)]),
            ("vwxyz", []),
        ],
    },
    {
        "model": "smolvlm",
        "make": pictures.Idefics3ImageProcessor,
        "keep": ["pixel_values", "pixel_attention_mask"],
        "place": "<image>",
        "controls": {"<image>": 60, "<fake_token_around_image>": 57, "<global-img>": 56}
        | {f"<{tile}>": 33 + n for n, tile in enumerate(TILES)},
        "sequences": [("ab<image>cde", [(60, 40)]), ("f<image>gh", [(30, 64)])],
    },
    {
        "model": "mistral3",
        "make": pictures.PixtralImageProcessor,
        "keep": ["pixel_values", "image_sizes"],
        "place": "[IMG]",
        "controls": {"[IMG]": 60, "[IMG_BREAK]": 61, "[IMG_END]": 62},
        "sequences": [("ab[IMG]cde", [(60, 40)]), ("f[IMG]gh", [(10, 13)])],
    },
    {
        "model": "lfm2vl",
        "make": pictures.Lfm2VlImageProcessor,
        "keep": ["pixel_values", "spatial_shapes", "pixel_attention_mask"],
        "place": "<image>",
        "controls": {"<image>": 60, "<|image_start|>": 57, "<|image_end|>": 56, "<|img_thumbnail|>": 55}
        | {f"<|img_{tile}|>": 33 + n for n, tile in enumerate(TILES)},
        "sequences": [("ab<image>cde", [(60, 90)]), ("f<image>gh", [(200, 130)])],
    },
    {
        "model": "gemma3",
        "make": pictures.Gemma3ImageProcessor,
        "keep": ["pixel_values"],
        "place": "<start_of_image>",
        "soft": "<image_soft_token>",
        "controls": {"<start_of_image>": 58, "<end_of_image>": 59, "<image_soft_token>": 60},
        "sequences": [
            ("abcdef<start_of_image>ghi", [(60, 40)]),
            ("<start_of_image>jk<start_of_image>lmnopqrstuvwxyz", [(24, 24), (7, 90)]),
            ("no picture", []),
        ],
    },
    *(
        {
            "model": model,
            "make": pictures.Gemma4ImageProcessor,
            "keep": ["pixel_values", "image_position_ids"],
            "place": "<|image|>",
            "controls": {"<|image>": 58, "<image|>": 59, "<|image|>": 60},
            "sequences": [
                ("abcdef<|image|>ghi", [(60, 40)]),
                ("jk<|image|>lmnopqrstuvwxyz", [(24, 24)]),
            ],
        }
        for model in ("gemma4-inputs", "gemma4-mutual")
    ),
]


def pixels(width, height, n):
    i = np.arange(width * height * 3, dtype=np.uint64)
    values = (i * 2654435761 + n * 40503) & 0xFFFFFFFF
    return ((values ^ (values >> np.uint64(15))) & 0xFF).astype(np.uint8).reshape(height, width, 3)


def texts(case, files, image):
    """What the model's processor writes for a picture."""
    function = {"qwen35": pictures.qwen, "smolvlm": pictures.idefics3, "mistral3": pictures.pixtral, "lfm2vl": pictures.lfm2}
    function |= {"gemma3": pictures.gemma3, "gemma4": pictures.gemma4}
    written = function[case["model"].split("-")[0]](files, image)[2]
    return written.replace(pictures.IMAGE, case.get("soft", case["place"]))


def tokens(case, text):
    controls = "|".join(re.escape(control) for control in case["controls"])
    parts = re.findall(f"{controls}|.", text, re.S)
    return [case["controls"][part] if part in case["controls"] else LETTERS[part] for part in parts]


def run(case):
    path = os.path.join(FOLDER, case["model"])
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with open(os.path.join(path, "preprocessor_config.json")) as file:
        own = json.load(file)
    with open(os.path.join(path, "config.json")) as file:
        config = json.load(file)
    files = {"preprocessor": own, "config": config, "processor": {"image_seq_len": 4, "patch_size": 4, "spatial_merge_size": 2}}
    files["processor"]["image_seq_length"] = 9
    processor = case["make"](**own)
    more = {"return_row_col_info": True} if case["model"] in ("smolvlm", "lfm2vl") else {}
    if case["model"] == "mistral3":
        more["patch_size"] = 8
    sequences, rows, n = [], [], 0
    for text, sizes in case["sequences"]:
        images = [Image.fromarray(pixels(width, height, n + at)) for at, (width, height) in enumerate(sizes)]
        n += len(images)
        given, spread = {}, text
        if images:
            made = processor([images] if case["model"] == "smolvlm" else images, return_tensors="pt", **more)
            given = {key: made[key] for key in case["keep"]}
            written = iter([texts(case, files, image) for image in images])
            spread = re.sub(re.escape(case["place"]), lambda _: next(written), text)
        ids = torch.tensor([tokens(case, spread)])
        marks = {"qwen35": "mm_token_type_ids", "gemma3": "token_type_ids", "gemma4": "mm_token_type_ids"}
        if images and (mark := marks.get(case["model"].split("-")[0])):
            given[mark] = (ids == case["controls"][case.get("soft", case["place"])]).long()
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False, **given).logits[0]
        rows.append(logits.float().numpy())
        sequence = {"text": text, "ids": tokens(case, text), "pictures": [list(size) for size in sizes]}
        sequences.append(sequence | {"positions": ids.shape[1]})
    print(case["model"], [s["positions"] for s in sequences], [float(np.abs(r).max()) for r in rows])
    return sequences, np.concatenate(rows)


def main():
    made, rows = [], []
    for case in CASES:
        sequences, logits = run(case)
        rows.append(logits)
        controls = sorted(case["controls"].items(), key=lambda item: item[1])
        made.append({"model": f"tests/golden/towers/{case['model']}", "controls": controls, "sequences": sequences})
    np.concatenate(rows).astype("<f4").tofile(os.path.join(OUT, "logits.f32"))
    with open(os.path.join(OUT, "index.json"), "w") as file:
        json.dump({"tolerance": 1e-4, "source": f"transformers, {VERSIONS}", "cases": made}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
