"""Writes tests/golden/pictures/: what transformers' picture processors make of pictures, and Pillow of files.

  python pictures.py

The pictures that processors get are computed (`picture`), so that they need no files; src/picture/tests makes the same
ones. The files are small, one for each way to encode a picture.
"""

import io
import json
import os
import struct
import types
import warnings
import zlib

import numpy as np
import PIL
import torch
import torchvision
import transformers
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.models.gemma3 import Gemma3Processor
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.gemma4 import Gemma4Processor
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
from transformers.models.idefics3 import Idefics3Processor
from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor
from transformers.models.lfm2_vl import Lfm2VlProcessor
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.pixtral import PixtralProcessor
from transformers.models.pixtral.image_processing_pixtral import PixtralImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl import Qwen3VLProcessor

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(os.path.dirname(os.path.dirname(HERE)), "tests", "golden", "pictures")
IMAGE = "\0"  # a soft token, in the text of a processor

# Width and height. 4001 x 20 and 1 x 201 are too narrow for Qwen.
SIZES = [(1, 1), (2, 3), (17, 31), (64, 64), (100, 37), (33, 180), (640, 480), (1025, 513), (30, 4000), (4000, 30)]
NARROW = [(1, 201), (4001, 20), (3000, 1)]
LARGE = [(1000, 700), (1024, 1024)]


def picture(width, height):
    """Ramps with noise on them: [height, width, 3]."""
    y, x, c = np.meshgrid(*(np.arange(n, dtype=np.uint32) for n in (height, width, 3)), indexing="ij")
    h = x * np.uint32(0x9E3779B1) ^ y * np.uint32(0x85EBCA77) ^ c * np.uint32(0xC2B2AE3D)
    h ^= h >> np.uint32(15)
    h *= np.uint32(0x2C1B3C6D)
    h ^= h >> np.uint32(12)
    return ((x * 3 + y * 5 + c * 40) // 4 % 192 + h % 64).astype(np.uint8)


def digest(values):
    """Of the bits of f32 values: the sum of each times an odd number of its place, modulo 2^64."""
    bits = np.ascontiguousarray(values, dtype="<f4").reshape(-1).view("<u4").astype(np.uint64)
    place = np.arange(len(bits), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
    return f"{int((bits * place).sum(dtype=np.uint64)):016x}"


def blank(kind, **attributes):
    """A processor without its tokenizer, for the text that it writes."""
    it = object.__new__(kind)
    it.__dict__.update(attributes)
    return it


def planes(tiles, patch):
    """[n, 3, height, width] to rows of patches, each [3, patch, patch]."""
    n, c, h, w = tiles.shape
    tiles = tiles.reshape(n, c, h // patch, patch, w // patch, patch)
    return tiles.transpose(0, 2, 4, 1, 3, 5).reshape(-1, c * patch * patch), [[h // patch, w // patch]] * n


def qwen(files, image):
    made = Qwen2VLImageProcessor(**files["preprocessor"])(image, return_tensors="pt")
    text = blank(Qwen3VLProcessor, image_token=IMAGE, image_processor=types.SimpleNamespace(merge_size=2))
    grids = [grid[1:] for grid in made["image_grid_thw"].tolist()]
    return made["pixel_values"].numpy(), grids, text.replace_image_token(made, 0)


def gemma3(files, image):
    made = Gemma3ImageProcessor(**files["preprocessor"])(image, return_tensors="pt")
    tokens = files["processor"]["image_seq_length"]
    text = blank(Gemma3Processor, full_image_sequence=f"\n\n<start_of_image>{IMAGE * tokens}<end_of_image>\n\n")
    rows, grids = planes(made["pixel_values"].numpy(), files["config"]["vision_config"]["patch_size"])
    return rows, grids, text.replace_image_token({"num_crops": [0]}, 0)


def idefics3(files, image):
    made = Idefics3ImageProcessor(**files["preprocessor"])(image, return_tensors="pt", return_row_col_info=True)
    text = blank(Idefics3Processor, image_token=IMAGE, image_seq_len=files["processor"]["image_seq_len"],
                 fake_image_token="<fake_token_around_image>", global_image_tag="<global-img>")
    assert made["pixel_attention_mask"].all()
    rows, grids = planes(made["pixel_values"][0].numpy(), files["config"]["vision_config"]["patch_size"])
    return rows, grids, text.replace_image_token(made, 0)


def pixtral(files, image):
    patch, merge = files["processor"]["patch_size"], files["processor"]["spatial_merge_size"]
    # The processor passes the side of a soft token.
    made = PixtralImageProcessor(**files["preprocessor"])(image, return_tensors="pt", patch_size=patch * merge)
    text = blank(PixtralProcessor, image_token=IMAGE, image_break_token="[IMG_BREAK]", image_end_token="[IMG_END]",
                 patch_size=patch, spatial_merge_size=merge)
    rows, grids = planes(made["pixel_values"].numpy(), patch)
    return rows, grids, text.replace_image_token(made, 0)


def lfm2(files, image):
    processor = Lfm2VlImageProcessor(**files["preprocessor"])
    made = processor(image, return_tensors="pt", return_row_col_info=True)
    text = blank(Lfm2VlProcessor, image_token=IMAGE, image_processor=processor, image_start_token="<|image_start|>",
                 image_end_token="<|image_end|>", image_thumbnail_token="<|img_thumbnail|>")
    grids = made["spatial_shapes"].tolist()
    rows = [part[: h * w] for part, (h, w) in zip(made["pixel_values"].numpy(), grids)]
    marked = files["processor"].get("use_image_special_tokens", True)
    return np.concatenate(rows), grids, text.replace_image_token(made, 0, use_image_special_tokens=marked)


def gemma4(files, image):
    processor = Gemma4ImageProcessor(**files["preprocessor"])
    made = processor(image, return_tensors="pt")
    cols, rows = (made["image_position_ids"][0].max(0).values + 1).tolist()
    text = blank(Gemma4Processor, image_token=IMAGE, boi_token="<|image>", eoi_token="<image|>")
    return made["pixel_values"][0].numpy()[: rows * cols], [[rows, cols]], text.replace_image_token(made, 0)


HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def qwen_files(patch, least, most, **more):
    image = {"size": {"shortest_edge": least, "longest_edge": most}, "patch_size": patch, "temporal_patch_size": 2,
             "merge_size": 2, "image_processor_type": "Qwen2VLImageProcessorFast", **more}
    vision = {"patch_size": patch, "spatial_merge_size": 2, "temporal_patch_size": 2}
    return {"preprocessor": image, "config": {"model_type": "qwen3_5", "vision_config": vision}}


def gemma3_files(side, patch, tokens):
    image = {"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": None, "resample": 2,
             "size": {"height": side, "width": side}, "rescale_factor": 1 / 255, **HALVES}
    config = {"model_type": "gemma3", "mm_tokens_per_image": tokens,
              "vision_config": {"image_size": side, "patch_size": patch}}
    return {"preprocessor": image, "processor": {"image_seq_length": tokens}, "config": config}


def idefics3_files(longest, tile, patch, scale, **more):
    image = {"image_processor_type": "Idefics3ImageProcessor", "resample": 1, "size": {"longest_edge": longest},
             "max_image_size": {"longest_edge": tile}, "do_image_splitting": True, **HALVES, **more}
    config = {"model_type": "smolvlm", "scale_factor": scale,
              "vision_config": {"image_size": tile, "patch_size": patch}}
    return {"preprocessor": image, "processor": {"image_seq_len": (tile // patch // scale) ** 2}, "config": config}


def pixtral_files(longest, patch, merge):
    image = {"image_processor_type": "PixtralImageProcessorFast", "size": {"longest_edge": longest},
             "patch_size": {"height": patch, "width": patch}, "resample": 3}
    config = {"model_type": "mistral3", "spatial_merge_size": merge, "vision_config": {"patch_size": patch}}
    return {"preprocessor": image, "processor": {"patch_size": patch, "spatial_merge_size": merge}, "config": config}


def lfm2_files(**more):
    image = {"image_processor_type": "Lfm2VlImageProcessorFast", **HALVES, **more}
    return {"preprocessor": image, "processor": {}, "config": {"model_type": "lfm2_vl", "downsample_factor": 2}}


def gemma4_files(tokens):
    image = {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 16, "max_soft_tokens": tokens,
             "pooling_kernel_size": 3, "do_normalize": False}
    return {"preprocessor": image, "config": {"model_type": "gemma4", "vision_config": {"patch_size": 16}}}


# Name: function, files, sizes
CASES = {
    "qwen": (qwen, qwen_files(16, 65536, 16777216, **HALVES), SIZES + NARROW + [(1024, 1024)]),
    # CLIP's means, and few enough pixels that pictures shrink.
    "qwen-14": (qwen, qwen_files(14, 3136, 50176), SIZES + NARROW),
    "gemma3": (gemma3, gemma3_files(896, 14, 256), LARGE),
    "gemma3-small": (gemma3, gemma3_files(224, 14, 16), SIZES + NARROW),
    "smolvlm": (idefics3, idefics3_files(2048, 512, 16, 4), [(1000, 700), (64, 300)]),
    "idefics3-small": (idefics3, idefics3_files(112, 28, 7, 2), SIZES + NARROW),
    "idefics3-whole": (idefics3, idefics3_files(112, 28, 7, 2, do_image_splitting=False), SIZES),
    "pixtral": (pixtral, pixtral_files(1540, 14, 2), [(1000, 700), (4000, 30)]),
    "pixtral-small": (pixtral, pixtral_files(128, 16, 1), SIZES + NARROW),
    "lfm2": (lfm2, lfm2_files(), [(1000, 700), (300, 200)]),
    "lfm2-small": (lfm2, lfm2_files(min_image_tokens=4, max_image_tokens=16, tile_size=64), SIZES + NARROW),
    "lfm2-plain": (lfm2, lfm2_files(min_image_tokens=4, max_image_tokens=16, tile_size=64, use_thumbnail=False),
                   [(640, 480), (100, 37)]),
    "gemma4": (gemma4, gemma4_files(280), [(1000, 700), (4000, 30)]),
    "gemma4-small": (gemma4, gemma4_files(70), SIZES + NARROW),
}


def pieces(text):
    """Texts, and numbers of soft tokens."""
    out = []
    for part in text.replace(IMAGE, "\1\0\1").split("\1"):
        if part == IMAGE and out and isinstance(out[-1], int):
            out[-1] += 1
        elif part:
            out.append(1 if part == IMAGE else part)
    return out


def processors():
    cases = []
    for name, (make, files, sizes) in CASES.items():
        for width, height in sizes:
            case = {"processor": name, "width": width, "height": height}
            try:
                image = Image.fromarray(picture(width, height))
                rows, grids, text = make(files, image)
            except (ValueError, RuntimeError) as error:
                case["error"] = str(error)[:100]
            else:
                at = np.linspace(0, rows.size - 1, 8).astype(np.int64)
                case.update(grids=grids, pieces=pieces(text), shape=list(rows.shape), digest=digest(rows),
                            sum=float(rows.sum(dtype=np.float64)), at=at.tolist(),
                            values=[float(x) for x in rows.reshape(-1)[at]])
            cases.append(case)
    versions = {m.__name__: m.__version__ for m in (transformers, torchvision, torch)}
    files = {name: files for name, (_, files, _) in CASES.items()}
    with open(os.path.join(OUT, "processors.json"), "w") as f:
        f.write(json.dumps({"made_with": versions, "files": files})[:-1] + ', "cases": [\n')
        f.write(",\n".join(json.dumps(case) for case in cases) + "\n]}\n")


# ---------------------------------------------------------------- files


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, depth, colors, lines, *chunks):
    """A PNG of packed lines, for what Pillow does not write."""
    head = struct.pack(">IIBBBBB", width, height, depth, colors, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + line for line in lines))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(chunks) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def exif(orientation, order="<"):
    entry = struct.pack(order + "HHIHH", 0x112, 3, 1, orientation, 0)
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(order + "IH", 8, 1) + entry + struct.pack(order + "I", 0)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pngs():
    small = picture(19, 11)
    rgb = Image.fromarray(small)
    alpha = (picture(19, 11)[..., ::-1].astype(np.int32) * 2 % 256).astype(np.uint8)[..., :1]
    rgba = Image.fromarray(np.concatenate([small, alpha], -1))
    yield "rgb.png", saved(rgb, "PNG")
    yield "rgba.png", saved(rgba, "PNG")
    yield "grey.png", saved(rgb.convert("L"), "PNG")
    yield "grey-alpha.png", saved(rgba.convert("LA"), "PNG")
    palette = rgb.quantize(32)
    yield "palette.png", saved(palette, "PNG")
    yield "palette-alpha.png", saved(palette, "PNG", transparency=bytes(range(0, 256, 8)))
    yield "exif.png", saved(rgb, "PNG", exif=exif(6, ">"))
    lines = [bytes(line.reshape(-1)) for line in small]
    yield "rgb-key.png", png(19, 11, 8, 2, lines, chunk(b"tRNS", struct.pack(">3H", *small[3, 4])))
    yield "bits.png", png(19, 11, 1, 0, [bytes(line[:3, 0]) for line in small])
    yield "grey-2.png", png(19, 11, 2, 0, [bytes(line[:5, 0]) for line in small])
    yield "palette-4.png", png(19, 11, 4, 3, [bytes(line[:10, 0]) for line in small],
                               chunk(b"PLTE", bytes(small[0, :16].reshape(-1))))
    deep = [bytes(np.stack([line, line[::-1]], -1).reshape(-1)) for line in small]
    yield "rgb-16.png", png(19, 11, 16, 2, deep)
    wide = np.concatenate([small, alpha], -1)
    yield "rgba-16.png", png(19, 11, 16, 6, [bytes(np.stack([line, line[::-1]], -1).reshape(-1)) for line in wide])
    yield "grey-16.png", png(19, 11, 16, 0, [bytes(line[:, :2].reshape(-1)) for line in small])


def jpegs():
    smooth = Image.fromarray(picture(80, 60)).resize((40, 30), Image.Resampling.BILINEAR)
    yield "444.jpg", saved(smooth, "JPEG", quality=90, subsampling=0)
    yield "422.jpg", saved(smooth, "JPEG", quality=90, subsampling=1)
    yield "420.jpg", saved(smooth, "JPEG", quality=90, subsampling=2)
    yield "progressive.jpg", saved(smooth, "JPEG", quality=80, progressive=True)
    yield "restarts.jpg", saved(smooth, "JPEG", quality=90, restart_marker_blocks=2)
    yield "grey.jpg", saved(smooth.convert("L"), "JPEG", quality=90)
    yield "cmyk.jpg", saved(smooth.convert("CMYK"), "JPEG", quality=90)
    yield "rgb.jpg", saved(smooth, "JPEG", quality=90, keep_rgb=True)
    odd = smooth.crop((0, 0, 21, 13))
    for n in range(1, 9):
        yield f"exif-{n}.jpg", saved(odd, "JPEG", quality=90, subsampling=0, exif=b"Exif\0\0" + exif(n))


def webps_and_gifs():
    small = Image.fromarray(picture(80, 60)).resize((40, 30), Image.Resampling.BILINEAR)
    alpha = Image.fromarray(np.add.outer(np.arange(30) * 5, np.arange(40) * 3).astype(np.uint8))
    clear = small.copy()
    clear.putalpha(alpha)
    yield "lossy.webp", saved(small, "WEBP", quality=80)
    yield "lossless.webp", saved(small, "WEBP", lossless=True)
    yield "lossy-alpha.webp", saved(clear, "WEBP", quality=80)
    yield "lossless-alpha.webp", saved(clear, "WEBP", lossless=True)
    yield "exif.webp", saved(small, "WEBP", quality=80, exif=exif(8))
    frames = [small.transpose(Image.Transpose.ROTATE_180)]
    yield "frames.webp", saved(small, "WEBP", quality=80, save_all=True, append_images=frames)
    yield "frames-alpha.webp", saved(clear, "WEBP", lossless=True, save_all=True, append_images=frames)
    palette = small.quantize(16)
    yield "plain.gif", saved(palette, "GIF", interlace=0)
    yield "interlaced.gif", saved(palette, "GIF", interlace=1)
    yield "clear.gif", saved(palette, "GIF", transparency=3)
    yield "frames.gif", saved(palette, "GIF", save_all=True, append_images=[small.rotate(180).quantize(16)])
    yield "grey.gif", saved(small.convert("L"), "GIF")
    part = bytearray(saved(palette, "GIF", interlace=0, transparency=3))
    part[6:10] = struct.pack("<HH", 44, 33)  # the screen is larger than the frame
    yield "part.gif", bytes(part)
    part = bytearray(saved(palette, "GIF", interlace=0, background=5))
    part[6:10] = struct.pack("<HH", 44, 33)
    yield "part-opaque.gif", bytes(part)


def files():
    folder = os.path.join(OUT, "files")
    os.makedirs(folder, exist_ok=True)
    cases, pixels = [], b""
    for name, data in [*pngs(), *jpegs(), *webps_and_gifs()]:
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
        opened = Image.open(io.BytesIO(data))
        mode = opened.mode
        if mode == "I;16":  # Pillow would make everything above 255 white
            opened = Image.fromarray((np.array(opened) >> 8).astype(np.uint8))
        rgb = convert_to_rgb(ImageOps.exif_transpose(opened), return_numpy=True)
        cases.append({"file": name, "mode": mode, "width": rgb.shape[1], "height": rgb.shape[0], "at": len(pixels)})
        pixels += rgb.tobytes()
    with open(os.path.join(OUT, "files.rgb"), "wb") as f:
        f.write(pixels)
    with open(os.path.join(OUT, "files.json"), "w") as f:
        f.write(json.dumps({"made_with": {"Pillow": PIL.__version__}})[:-1] + ', "cases": [\n')
        f.write(",\n".join(json.dumps(case) for case in cases) + "\n]}\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.makedirs(OUT, exist_ok=True)
    processors()
    files()
