"""Whole models that see, on pictures: tests/golden/towers/seeing.json and .f32, by the folder that towers.py makes.

  python seeing.py

The json has for each sequence the token ids with one placeholder for each picture, and the pictures' sizes. Byte i of a
picture's pixels is `byte(i, n)`, where n is its number over all sequences. The f32 file has a row of logits for each
position of the prompts, in which each placeholder became the picture's soft tokens.
"""

import json
import os

from cases import ROOT, VERSIONS

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText

FOLDER = os.path.join(ROOT, "tests", "golden", "towers")
PLACEHOLDER, START, END = 60, 58, 59
SEQUENCES = [
    ([5, 6, START, PLACEHOLDER, END, 7, 8, 9], [(37, 22)]),
    ([START, PLACEHOLDER, END, 10, 11, START, PLACEHOLDER, END, 12], [(16, 16), (60, 9)]),
    ([3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, START, PLACEHOLDER, END, 20, 21, 22, 23], [(24, 48)]),
    ([30, 31, 32, 33, 34], []),
]


def pixels(width, height, n):
    i = np.arange(width * height * 3, dtype=np.uint64)
    values = (i * 2654435761 + n * 40503) & 0xFFFFFFFF
    return ((values ^ (values >> np.uint64(15))) & 0xFF).astype(np.uint8).reshape(height, width, 3)


def main():
    path = os.path.join(FOLDER, "qwen35")
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    processor = AutoImageProcessor.from_pretrained(path)
    sequences, rows, n = [], [], 0
    for ids, sizes in SEQUENCES:
        made, expanded = [], []
        for width, height in sizes:
            made.append(Image.fromarray(pixels(width, height, n)))
            n += 1
        more = processor(images=made, return_tensors="pt") if made else {}
        grids = iter(more["image_grid_thw"].tolist() if made else [])
        for token in ids:
            count = 1
            if token == PLACEHOLDER:
                _, high, wide = next(grids)
                count = high * wide // processor.merge_size**2
            expanded += [token] * count
        tokens = torch.tensor([expanded])
        types = (tokens == PLACEHOLDER).long()
        with torch.no_grad():
            more = {**more, "mm_token_type_ids": types} if made else {}
            logits = model(input_ids=tokens, use_cache=False, **more).logits[0]
        rows.append(logits.float().numpy())
        sequences.append({"ids": ids, "pictures": [list(size) for size in sizes], "positions": len(expanded)})
    np.concatenate(rows).astype("<f4").tofile(os.path.join(FOLDER, "seeing.f32"))
    case = {"model": "tests/golden/towers/qwen35", "sequences": sequences, "tolerance": 1e-4, "source": f"transformers, {VERSIONS}"}
    with open(os.path.join(FOLDER, "seeing.json"), "w") as file:
        json.dump(case, file, indent=1)
        file.write("\n")
    print([s["positions"] for s in sequences], [float(np.abs(r).max()) for r in rows])


if __name__ == "__main__":
    main()
