"""Vision towers: folders of whole models with random weights, and mmproj files that llama.cpp's converter makes of them.

  python towers.py [LLAMA_CPP [case ...]]     LLAMA_CPP: its source, with conversion/ and gguf-py/; without it folders alone

`tests/golden/towers/index.json` is a list of cases:

  name        also the stem of the file of values
  path        a folder or a GGUF file, relative to the repository
  covers      what the case is there for
  pictures    for each picture the grids of its parts, [rows, columns] in patches
  order       of a grid's patches: "tokens" if those of a soft token follow each other, otherwise "rows"
  values      f32 little-endian: a row of `width` for each soft token, the pictures one after the other
  reference   who computed it; `source` says how and with which versions
  tolerance   the largest allowed |ours - reference| / |reference| (2-norms over all values)

Nothing of patches is stored: element i of all patches is `element(i)`. A patch has its elements by color, frame, row and
column, for LFM2-VL and Gemma 4 by row, column and color. The reference computes in f32, with eager attention, from the
files' weights.
"""

import json
import os
import shutil
import subprocess
import sys

from cases import ROOT, VERSIONS, error, relative

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

TOWERS = os.path.join(ROOT, "tests", "golden", "towers")
INDEX = os.path.join(TOWERS, "index.json")
TOLERANCE = 1e-5
VOCAB = 64
TEXT = {"vocab_size": VOCAB, "hidden_size": 40, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT |= {"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}


def elements(count):
    i = np.arange(count, dtype=np.uint64)
    x = (i * 2654435761 + 12345) & 0xFFFFFFFF
    x ^= x >> np.uint64(15)
    x = (x * 2246822519) & 0xFFFFFFFF
    x ^= x >> np.uint64(13)
    return torch.from_numpy((x.astype(np.float64) / 2**31 - 1).astype(np.float32))


def clipped(m):
    """Bounds within the range of activations, of which some are infinite, and standardized soft tokens."""
    for at, (name, b) in enumerate(m.named_buffers()):
        if name.endswith(("put_min", "put_max")) and at % 5:
            b.fill_((0.4 + 0.1 * (at % 7)) * (-1 if name.endswith("min") else 1))
        elif name.endswith("std_bias"):
            b.normal_(0, 0.5)
        elif name.endswith("std_scale"):
            b.uniform_(0.5, 1.5)
        b.copy_(b.bfloat16().float()) if b.is_floating_point() and "inv_freq" not in name else None


def randomize(m):
    """Weights large enough that attention is sharp and that every norm, bias and position matters."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.3)
            elif p.ndim == 1:
                p.uniform_(0.5, 1.5).sub_(1.0 if "soft_emb_norm" in name else 0.0)
            elif "pos_embed" in name or "position_embedding" in name or "embed_tokens" in name or "lm_head" in name:
                p.normal_(0, 0.5)
            elif "mm_input_projection" in name:
                p.normal_(0, p.shape[0] ** -0.5)
            else:
                p.normal_(0, 1.2 * p[0].numel() ** -0.5)
            p.copy_(p.bfloat16().float())
        if getattr(m.config.vision_config, "use_clipped_linears", False):
            clipped(m)
    return m.eval()


def image(patches, rows, cols, side):
    """[rows * cols, 3 * side * side], by rows, as a picture [3, height, width]."""
    x = patches.view(rows, cols, 3, side, side).permute(2, 0, 3, 1, 4)
    return x.reshape(3, rows * side, cols * side)


def flat(pictures):
    return [grid for grids in pictures for grid in grids]


def qwen(model, patches, grids, side):
    thw = torch.tensor([[1, r, c] for r, c in grids])
    return model.model.visual(torch.cat(patches), grid_thw=thw).pooler_output


def gemma3(model, patches, grids, side):
    pixels = torch.stack([image(p, r, c, side) for p, (r, c) in zip(patches, grids)])
    return model.model.get_image_features(pixels).pooler_output.flatten(0, 1)


def idefics3(model, patches, grids, side):
    pixels = torch.stack([image(p, r, c, side) for p, (r, c) in zip(patches, grids)])
    return torch.cat(model.model.get_image_features(pixels[None]).pooler_output)


def mistral3(model, patches, grids, side):
    height, width = max(r for r, _ in grids) * side, max(c for _, c in grids) * side
    pixels = torch.zeros(len(grids), 3, height, width)
    for at, (p, (r, c)) in enumerate(zip(patches, grids)):
        pixels[at, :, : r * side, : c * side] = image(p, r, c, side)
    sizes = torch.tensor([[r * side, c * side] for r, c in grids])
    out = model.model.get_image_features(pixels, image_sizes=sizes, vision_feature_layer=-1)
    return torch.cat(out.pooler_output)


def padded(patches, side):
    most = max(len(p) for p in patches)
    rows = torch.zeros(len(patches), most, 3 * side * side)
    for at, p in enumerate(patches):
        rows[at, : len(p)] = p
    return rows


def lfm2(model, patches, grids, side):
    rows = padded(patches, side)
    mask = torch.tensor([[int(at < len(p)) for at in range(rows.shape[1])] for p in patches])
    out = model.model.get_image_features(rows, spatial_shapes=torch.tensor(grids), pixel_attention_mask=mask)
    return torch.cat(list(out.pooler_output))


def gemma4(model, patches, grids, side):
    rows = padded(patches, side)
    places = torch.full((len(grids), rows.shape[1], 2), -1)
    for at, (r, c) in enumerate(grids):
        row, col = torch.meshgrid(torch.arange(r), torch.arange(c), indexing="ij")
        places[at, : r * c] = torch.stack([col.flatten(), row.flatten()], -1)
    return torch.cat(list(model.model.get_image_features(rows, image_position_ids=places).pooler_output))


def config(kind, vision, text=None, **more):
    text = TEXT | IDS | (text or {})
    made = AutoConfig.for_model(kind, vision_config=vision, text_config=text, **more)
    made.dtype = torch.bfloat16
    return made


def qwen_config(**changes):
    text = {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 3,
        "hidden_size": 36,
        "intermediate_size": 52,
        "num_heads": 3,
        "patch_size": 4,
        "out_hidden_size": 40,
        "num_position_embeddings": 49,
    }
    tokens = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 58, "vision_end_token_id": 59}
    return config("qwen3_5", vision | changes, text, **tokens)


def gemma4_config(inputs=0, mutual=None, **changes):
    """`inputs`: elements of each layer's own inputs. `mutual`: "vision" if rows of pictures see each other."""
    text = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16, "global_head_dim": 16}
    text |= {"hidden_size_per_layer_input": inputs, "vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 0}
    text |= {"pad_token_id": 0, "use_bidirectional_attention": mutual}
    vision = SIGLIP | {"num_key_value_heads": 3, "head_dim": 12, "position_embedding_size": 16} | changes
    return config("gemma4", vision, text, image_token_id=60, audio_config=None)


SIGLIP = {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 3, "num_attention_heads": 3, "patch_size": 4}
LLAMA = {"model_type": "llama"}
LFM2 = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
COLORS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5]}
# preprocessor_config.json by the name's beginning, and what processor_config.json has.
PROCESSORS = {
    "qwen35": (
        {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
        | {"size": {"shortest_edge": 256, "longest_edge": 4096}},
        {},
    ),
    "gemma3": ({"size": {"height": 24, "width": 24}}, {"image_seq_length": 9}),
    "smolvlm": ({"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}, {}),
    "mistral3": ({"size": {"longest_edge": 64}}, {"patch_size": 4, "spatial_merge_size": 2}),
    "lfm2vl": ({"encoder_patch_size": 16, "min_image_tokens": 4, "max_image_tokens": 16, "tile_size": 128}, {}),
    "gemma4": ({"patch_size": 4, "max_soft_tokens": 70}, {}),
}

# The configuration, the reference, the pictures' grids, what it covers, and the types of mmproj files.
CASES = {
    "qwen35": (
        qwen_config,
        qwen,
        [[[4, 6]], [[2, 2]], [[10, 8], [2, 14]], [[14, 14]]],
        "Qwen 3.5: patches of two frames, linear weights between rows of a table of 7 by 7, rotations by row and column, "
        "soft tokens of 2 by 2; a picture of two parts; grids coarser and finer than the table",
        ["f32", "f16"],
    ),
    "qwen35-wide": (
        lambda: qwen_config(hidden_size=64, intermediate_size=96, num_heads=4, num_position_embeddings=16),
        qwen,
        [[[6, 4]], [[16, 18]]],
        "Qwen 3.5 with more rows than attention has in a task",
        ["q8_0"],
    ),
    "gemma3": (
        lambda: config(
            "gemma3",
            SIGLIP | {"image_size": 24, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": False},
            {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
            mm_tokens_per_image=9,
            image_token_index=60,
            boi_token_index=58,
            eoi_token_index=59,
        ),
        gemma3,
        [[[6, 6]], [[6, 6]]],
        "Gemma 3: SigLIP, the average of 2 by 2 patches, RMSNorm with zero-based weights, a product by columns",
        ["f32"],
    ),
    "smolvlm": (
        lambda: config(
            "smolvlm", SIGLIP | {"image_size": 32, "num_channels": 3}, LLAMA, scale_factor=4, image_token_id=60
        ),
        idefics3,
        [[[8, 8], [8, 8]], [[8, 8]]],
        "SmolVLM, which is Idefics 3: SigLIP, 4 by 4 patches side by side",
        ["f32"],
    ),
    "mistral3": (
        lambda: config(
            "mistral3",
            SIGLIP | {"model_type": "pixtral", "image_size": 64, "hidden_act": "silu", "head_dim": 12},
            {"model_type": "ministral3", "rms_norm_eps": 1e-4},
            image_token_index=60,
            spatial_merge_size=2,
        ),
        mistral3,
        [[[4, 6]], [[2, 2]], [[8, 4]]],
        "Pixtral with Mistral 3's projector: RMSNorm, gates, alternating frequencies of rows and columns, patches merged "
        "by a product whose columns are by element",
        ["f32"],
    ),
    "lfm2vl": (
        lambda: config(
            "lfm2_vl",
            SIGLIP | {"model_type": "siglip2_vision_model", "patch_size": 16, "num_patches": 36, "vision_use_head": False},
            LFM2,
            projector_hidden_size=44,
            image_token_id=60,
        ),
        lfm2,
        [[[4, 6]], [[2, 12]], [[8, 8]]],
        "LFM2-VL: SigLIP 2, positions resized with antialiasing, 2 by 2 patches side by side, LayerNorm before the products",
        ["f32"],
    ),
    "gemma4": (
        gemma4_config,
        gemma4,
        [[[3, 6]], [[6, 3]], [[9, 9]]],
        "Gemma 4: tables of rows and of columns, halves of heads that turn apart, normed heads, norms on both sides of "
        "layers' parts, the average of 3 by 3 patches, RMSNorm without weights",
        ["f32"],
    ),
    "gemma4-clipped": (
        lambda: gemma4_config(use_clipped_linears=True, standardize=True),
        gemma4,
        [[[6, 3]], [[3, 3]]],
        "Gemma 4 with bounds of products' inputs and outputs, and standardized soft tokens",
        ["f32"],
    ),
    "gemma4-inputs": (
        lambda: gemma4_config(inputs=12, position_embedding_size=32),
        gemma4,
        [[[3, 3]]],
        "Gemma 4 whose layers have inputs of their own, as its small models",
        [],
    ),
    "gemma4-mutual": (
        lambda: gemma4_config(mutual="vision", position_embedding_size=32),
        gemma4,
        [[[3, 3]]],
        "Gemma 4 whose pictures' rows see each other, as its large models",
        [],
    ),
}


# Names as published, which transformers still reads, and the converter alone.
PUBLISHED = {
    "gemma3": ("vision_tower.", "vision_tower.vision_model."),
    "lfm2vl": ("model.vision_tower.", "model.vision_tower.vision_model."),
}


def published(tensors, name):
    own, other = PUBLISHED.get(name, ("", ""))
    renamed = lambda k: other + k.removeprefix(own) if k.startswith(own) else k
    return {renamed(k): v.bfloat16().contiguous() for k, v in tensors.items()}


def save(name, model):
    folder = os.path.join(TOWERS, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    save_file(published(load_file(path), name), path, metadata={"format": "pt"})
    os.chmod(path, 0o644)
    for stray in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, stray)):
            os.remove(os.path.join(folder, stray))
    image, processor = PROCESSORS[name.split("-")[0]]
    files = {"preprocessor_config.json": COLORS | image}
    if processor:
        files["processor_config.json"] = processor
    if name == "mistral3":
        files["tokenizer_config.json"] = {"added_tokens_decoder": {"61": {"content": "[IMG_BREAK]"}}}
    for file, contents in files.items():
        with open(os.path.join(folder, file), "w") as f:
            json.dump(contents, f, indent=1)
            f.write("\n")
    return folder


def record(case):
    cases = []
    if os.path.exists(INDEX):
        with open(INDEX) as f:
            cases = json.load(f)
    cases = sorted([c for c in cases if c["name"] != case["name"]] + [case], key=lambda c: c["name"])
    with open(INDEX, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


def run(model, reference, pictures):
    grids = flat(pictures)
    side = model.config.vision_config.patch_size
    length = 3 * side * side * (2 if reference is qwen else 1)
    counts = [r * c for r, c in grids]
    patches = elements(sum(counts) * length).view(-1, length).split(counts)
    with torch.no_grad():
        return reference(model, patches, grids, side).float()


def make(name, llama_cpp):
    build, reference, pictures, covers, types = CASES[name]
    made = build()
    made._attn_implementation = "eager"
    model = randomize(AutoModelForImageTextToText.from_config(made, attn_implementation="eager").float())
    folder = save(name, model)
    values = run(model, reference, pictures)
    model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    again = run(model, reference, pictures)
    assert torch.equal(values, again), f"{name}: {error(values, again)}"
    assert bool(values.isfinite().all())
    # Neither positions nor neighbours may be lost in noise.
    twice = run(model, reference, [pictures[0], pictures[0]]) if len(pictures[0]) == 1 else None
    assert twice is None or error(twice[: len(twice) // 2], twice[len(twice) // 2 :]) > 0.1, name
    stem = os.path.join(TOWERS, name + ".f32")
    values.numpy().astype("<f4").tofile(stem)
    case = {
        "name": name,
        "path": relative(folder),
        "covers": covers,
        "pictures": pictures,
        "order": "tokens" if reference is qwen else "rows",
        "width": values.shape[1],
        "values": relative(stem),
        "reference": "transformers",
        "source": f"transformers {type(model).__name__} loaded from the folder, f32, eager attention ({VERSIONS})",
        "tolerance": TOLERANCE,
    }
    record(case)
    print(f"{name}: {tuple(values.shape)}", flush=True)
    for kind in types if llama_cpp else []:
        path = os.path.join(TOWERS, f"{name}-{kind}.gguf")
        script = os.path.join(llama_cpp, "convert_hf_to_gguf.py")
        command = [sys.executable, script, "--mmproj", folder, "--outfile", path, "--outtype", kind]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        # Weights of 16 bits have their values in F16 too. The converter has one eps for all norms of a Pixtral.
        tolerance = 3e-2 if kind == "q8_0" else 1e-4 if name == "mistral3" else TOLERANCE
        covers_file = f"{name} as an mmproj file in {kind.upper()}, by llama.cpp's converter"
        record(case | {"name": f"{name}-{kind}", "path": relative(path), "covers": covers_file, "tolerance": tolerance})


if __name__ == "__main__":
    os.makedirs(TOWERS, exist_ok=True)
    for chosen in sys.argv[2:] or CASES:
        make(chosen, sys.argv[1] if len(sys.argv) > 1 else None)
