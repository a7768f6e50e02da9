"""Whole models that see, by llama.cpp: tests/golden/mtmd/, beside the mmproj files that towers.py makes.

  python mtmd.py LLAMA_CPP [case ...]     LLAMA_CPP: its source, with conversion/ and gguf-py/

The text model of a folder that towers.py makes becomes a GGUF file by llama.cpp's converter, with a tokenizer of letters
and the case's control tokens. llama.cpp's mtmd splits a text at its pictures, and runs both files: F32 weights (copies of
the text models, which are in BF16), KV in f32, no flash attention, one thread. `index.json` has for each sequence the
text as this library takes it, the pictures' sizes (their pixels are those of seeing.py), and the log probability of each
token of text that follows another one. Pictures have sizes that no processor changes.

`noise` has the largest differences of these log probabilities, as shares of what is more than 1: `exact`, of mtmd's from
those of transformers, and `rounded`, from transformers made to round as mtmd does: pixels to f16, GELU by tanh from a table
in f16 (where Qwen's projector has erf too), and what goes into Gemma's projection, an F16 tensor, to f16.
"""

import ctypes
import json
import os
import re
import shutil
import sys
import tempfile

import converted  # first: it puts LLAMA_CPP on the path
import gguf
import llama_cpp as L
import llama_cpp_run
import numpy as np
import torch
from cases import ROOT, VERSIONS, VOCAB, relative
from llama_cpp import mtmd_cpp as M
from PIL import Image
from seeing import CASES as SEEING
from seeing import LETTERS, pixels, texts, tokens
from transformers import AutoModelForImageTextToText

TOWERS = os.path.join(ROOT, "tests", "golden", "towers")
OUT = os.path.join(ROOT, "tests", "golden", "mtmd")
NOTHING = M.mtmd_helper_post_decode_callback()
MARKER = M.mtmd_default_marker().decode()
M.mtmd_log_set(llama_cpp_run._quiet, ctypes.c_void_p())
CONTEXT = 128
# Bounds of Qwen's pictures. A file without any has those of the published ones, from 65,536 on.
PIXELS = (256, 4096)

# Texts with a place for each picture, and what stands there for this library and for mtmd. For Gemma 3 this library
# writes the line breaks, as transformers does; for Qwen mtmd writes the tokens around. `tolerance`: as shares of what is
# more than 1.
CASES = {
    "qwen35": {
        "given": "<|vision_start|><|image_pad|><|vision_end|>",
        "theirs": MARKER,
        "tolerance": 3e-3,
        "sequences": [("abcd@efghijklmnop", [(48, 32)]), ("@qr@stuvwxyz a", [(64, 40), (24, 56)])],
    },
    "gemma3": {
        "given": "<start_of_image>",
        "theirs": "\n\n" + MARKER + "\n\n",
        "tolerance": 3e-4,
        "sequences": [("abcd@efghijklmnopqrstuvwxyz", [(24, 24)]), ("@qr@stuvwxyz abc", [(24, 24), (24, 24)])],
    },
}


def seeing(name):
    return next(case for case in SEEING if case["model"] == name)


def vocabulary(name):
    tokens = [f"<{n}>" for n in range(VOCAB)]
    kinds = [gguf.TokenType.UNUSED] * VOCAB
    for letter, n in LETTERS.items():
        tokens[n], kinds[n] = {" ": "Ġ", "\n": "Ċ"}.get(letter, letter), gguf.TokenType.NORMAL
    # llama.cpp wants a merge.
    tokens[49], kinds[49] = "zz", gguf.TokenType.NORMAL
    for text, n in ({"<s>": 1, "</s>": 2} | seeing(name)["controls"]).items():
        tokens[n], kinds[n] = text, gguf.TokenType.CONTROL
    return tokens, kinds


def convert(name, path, kind):
    def set_vocab(model):
        tokens, kinds = vocabulary(name)
        writer = model.gguf_writer
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges(["z z"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)
        if name == "gemma3":
            # The converter leaves out which layers have windows, as published ones have one layer of six without.
            windows = [kind == "sliding_attention" for kind in model.hparams["layer_types"]]
            writer.add_sliding_window_pattern(windows)

    converted.no_vocab = set_vocab
    with tempfile.TemporaryDirectory() as place:
        folder = shutil.copytree(os.path.join(TOWERS, name), os.path.join(place, name))
        # Only the number of its tokens is read.
        tokenizer = {"model": {"vocab": {token: n for n, token in enumerate(vocabulary(name)[0])}}, "added_tokens": []}
        with open(os.path.join(folder, "tokenizer.json"), "w") as f:
            json.dump(tokenizer, f)
        converted.convert(folder, path, kind)


def bounded(name, path):
    """A copy of the mmproj file that says bounds, which mtmd ignores, with matrices in BF16, which have the same values."""
    reader = gguf.GGUFReader(os.path.join(TOWERS, name + "-f32.gguf"))
    writer = gguf.GGUFWriter(path, "clip")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    writer.add_vision_min_pixels(PIXELS[0])
    writer.add_vision_max_pixels(PIXELS[1])
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if data.ndim == 1:
            writer.add_tensor(tensor.name, data)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(tensor.name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Model:
    def __init__(self, text, tower):
        p = L.llama_model_default_params()
        p.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(text.encode(), p)
        assert self.model, text
        p = M.mtmd_context_params_default()
        p.use_gpu, p.print_timings, p.warmup, p.n_threads, p.flash_attn_type = False, False, False, 1, 0
        self.mtmd = M.mtmd_init_from_file(tower.encode(), self.model, p)
        assert self.mtmd, tower

    def context(self):
        p = L.llama_context_default_params()
        p.n_ctx = p.n_batch = p.n_ubatch = CONTEXT
        p.n_threads = p.n_threads_batch = 1
        p.type_k = p.type_v = L.GGML_TYPE_F32
        p.flash_attn_type, p.swa_full = 0, True
        return L.llama_init_from_model(self.model, p)

    def chunks(self, text, images):
        chunks = M.mtmd_input_chunks_init()
        bytes_of = lambda x: x.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmaps = [M.mtmd_bitmap_init(x.shape[1], x.shape[0], bytes_of(x)) for x in images]
        listed = (M.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
        given = M.mtmd_input_text(text.encode(), len(text.encode()), False, True)
        status = M.mtmd_tokenize(self.mtmd, chunks, ctypes.byref(given), listed, len(bitmaps))
        assert status == 0, status
        list(map(M.mtmd_bitmap_free, bitmaps))
        return [M.mtmd_input_chunks_get(chunks, n) for n in range(M.mtmd_input_chunks_size(chunks))]

    def words(self, context, chunk, at):
        """Decodes a chunk of text. Returns its tokens and their rows of logits."""
        count = ctypes.c_size_t()
        tokens = M.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
        tokens = [tokens[n] for n in range(count.value)]
        batch = L.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for n, token in enumerate(tokens):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, at + n, 1, 1
            batch.seq_id[n][0] = 0
        assert L.llama_decode(context, batch) == 0
        row = lambda n: np.ctypeslib.as_array(L.llama_get_logits_ith(context, n), (VOCAB,)).astype(np.float64)
        rows = [row(n) for n in range(len(tokens))]
        L.llama_batch_free(batch)
        return list(zip(tokens, rows))

    def run(self, text, images):
        """Tokens with log probabilities of what follows, None for each soft token."""
        context, at, out = self.context(), 0, []
        for chunk in self.chunks(text, images):
            if M.mtmd_input_chunk_get_type(chunk) == M.MTMD_INPUT_CHUNK_TYPE_TEXT:
                out += self.words(context, chunk, at)
                at += M.mtmd_input_chunk_get_n_pos(chunk)
                continue
            assert M.mtmd_encode_chunk(self.mtmd, chunk) == 0
            after = ctypes.c_int32(at)
            vectors = M.mtmd_get_output_embd(self.mtmd)
            status = M.mtmd_helper_decode_image_chunk(
                self.mtmd, context, chunk, vectors, at, 0, CONTEXT, ctypes.byref(after), NOTHING, None
            )
            assert status == 0, status
            out += [None] * M.mtmd_input_chunk_get_n_tokens(chunk)
            at = after.value
        L.llama_free(context)
        return out


class Table(torch.nn.Module):
    """GELU as llama.cpp has it."""

    def forward(self, x):
        y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x >= 10, x, torch.where(x <= -10, torch.zeros_like(x), y))


def in_f16(x):
    return x.half().float()


def round_as_mtmd(model):
    for module in list(model.modules()):
        for part in ("act_fn", "activation_fn"):
            if "GELU" in type(getattr(module, part, None)).__name__:
                setattr(module, part, Table())
        if hasattr(module, "mm_soft_emb_norm"):
            module.mm_soft_emb_norm.register_forward_hook(lambda module, given, out: in_f16(out))


def reference(name, sequences, rounded):
    """The log probabilities that transformers gives."""
    path, case = os.path.join(TOWERS, name), seeing(name)
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    if name == "gemma3":
        # GGUF has no scale of its own for queries.
        for layer in model.model.language_model.layers:
            layer.self_attn.scaling = layer.self_attn.head_dim**-0.5
    if rounded:
        round_as_mtmd(model)
    files = {"processor": {"image_seq_length": 9}}
    for key, file in (("preprocessor", "preprocessor_config.json"), ("config", "config.json")):
        with open(os.path.join(path, file)) as f:
            files[key] = json.load(f)
    soft, values, n = case["controls"][case.get("soft", case["place"])], [], 0
    for sequence in sequences:
        images = [Image.fromarray(pixels(*size, n + at)) for at, size in enumerate(sequence["pictures"])]
        n += len(images)
        made = case["make"](**files["preprocessor"])(images, return_tensors="pt")
        given = {key: in_f16(made[key]) if rounded and key == "pixel_values" else made[key] for key in case["keep"]}
        written = iter([texts(case, files, image) for image in images])
        spread = re.sub(re.escape(case["place"]), lambda _: next(written), sequence["text"])
        ids = torch.tensor([tokens(case, spread)])
        given["token_type_ids" if name == "gemma3" else "mm_token_type_ids"] = (ids == soft).long()
        with torch.no_grad():
            rows = model(input_ids=ids, use_cache=False, **given).logits[0].numpy().astype(np.float64)
        out = [None if token == soft else (token, row) for token, row in zip(ids[0].tolist(), rows)]
        known, found = log_probabilities(out)
        assert known == sequence["tokens"] and len(out) == sequence["positions"], name
        values += found
    return np.array(values)


def noise(name, sequences):
    theirs = np.concatenate([sequence["logprobs"] for sequence in sequences])
    measured = {}
    for key, rounded in (("exact", False), ("rounded", True)):
        own = reference(name, sequences, rounded)
        measured[key] = float(f"{(np.abs(theirs - own) / np.maximum(np.abs(own), 1)).max():.1e}")
    print(name, measured)
    return measured


def log_probabilities(out):
    """The tokens of text whose predecessor is one, and their log probabilities."""
    tokens, values = [], []
    for before, after in zip(out, out[1:]):
        if before and after:
            row = before[1] - before[1].max()
            tokens.append(after[0])
            values.append(float(row[after[0]] - np.log(np.exp(row).sum())))
    return tokens, values


def make(name):
    case, n, sequences = CASES[name], 0, []
    path, tower = os.path.join(OUT, name + ".gguf"), os.path.join(TOWERS, name + "-f32.gguf")
    convert(name, path, gguf.LlamaFileType.MOSTLY_BF16)
    with tempfile.TemporaryDirectory() as place:
        twin = os.path.join(place, "twin.gguf")
        convert(name, twin, gguf.LlamaFileType.ALL_F32)
        model = Model(twin, tower)
        for text, sizes in case["sequences"]:
            images = [pixels(width, height, n + at) for at, (width, height) in enumerate(sizes)]
            n += len(images)
            out = model.run(text.replace("@", case["theirs"]), images)
            tokens, values = log_probabilities(out)
            sequence = {"text": text.replace("@", case["given"]), "pictures": [list(size) for size in sizes]}
            sequence |= {"positions": len(out), "tokens": tokens, "logprobs": [round(value, 6) for value in values]}
            sequences.append(sequence)
    if name == "qwen35":
        tower = os.path.join(OUT, name + "-tower.gguf")
        bounded(name, tower)
    return {
        "model": relative(path),
        "tower": relative(tower),
        "soft": 60,
        "tolerance": case["tolerance"],
        "noise": noise(name, sequences),
        "sequences": sequences,
    }


def main():
    os.makedirs(OUT, exist_ok=True)
    path = os.path.join(OUT, "index.json")
    cases = {}
    if os.path.exists(path):
        with open(path) as file:
            cases = {case["model"]: case for case in json.load(file)["cases"]}
    for name in sys.argv[2:] or CASES:
        case = make(name)
        cases[case["model"]] = case
    made = list(cases.values())
    with open(path, "w") as file:
        json.dump({"source": f"{llama_cpp_run.VERSION}, {VERSIONS}", "cases": made}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
