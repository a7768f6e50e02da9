"""LoRA adapters for models of tests/golden/models, and logits with them, computed by PEFT: tests/golden/adapters/.

  python adapters.py [case ...]     default: every case

Each adapter has random A and B. The GGUF files are as llama.cpp's convert_lora_to_gguf.py writes them.
"""

import json
import os
import shutil
import sys

import gguf
import numpy as np
import peft
import safetensors.torch
import torch
from bitnet_folders import drawer
from cases import MODELS, VOCAB
from folders import load, run_all
from make_golden import PER_LAYER, ROOT, VERSIONS, draw, run_hf, to_interleaved

OUT = os.path.join(ROOT, "tests", "golden", "adapters")
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LENGTHS = (17, 1, 9, 30)


def randomize(m, seed, store):
    """Updates about as large as the weights they update. The reference computes with the file's values."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if "lora_A" in name:
                p.normal_(0, p.shape[1] ** -0.5)
            elif "lora_B" in name:
                p.normal_(0, 0.5 * p.shape[1] ** -0.5)
            else:
                continue
            p.copy_(p.to(DTYPES[store]).float())


def save(m, folder, store, embeddings):
    shutil.rmtree(folder, ignore_errors=True)
    m.save_pretrained(folder, save_embedding_layers=embeddings)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = None
    config["target_modules"] = sorted(config["target_modules"])
    with open(path, "w") as f:
        f.write(json.dumps(config, indent=1, sort_keys=True) + "\n")
    path = os.path.join(folder, "adapter_model.safetensors")
    tensors = peft.utils.load_peft_weights(folder, device="cpu")
    safetensors.torch.save_file({k: v.to(DTYPES[store]).contiguous() for k, v in tensors.items()}, path)


def save_gguf(folder, path, arch, heads, kv_heads, alpha):
    """`llama` has the rows of q and k in the order of its rope."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    back = {h: a for a, h in PER_LAYER.items()}
    for name, tensor in peft.utils.load_peft_weights(folder, device="cpu").items():
        module, part, _ = name.removeprefix("base_model.model.").rsplit(".", 2)
        if module == "lm_head":
            name = "output"
        else:
            _, _, layer, module = module.split(".", 3)
            name = f"blk.{layer}.{back[module]}"
        x = tensor.numpy()
        if part == "lora_B" and arch == "llama" and name.endswith(("attn_q", "attn_k")):
            x = to_interleaved(x, heads if name.endswith("q") else kv_heads)
        writer.add_tensor(f"{name}.weight.{part.lower()}", np.ascontiguousarray(x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def case(name, base, seed, store, arch=None, twin=False, embeddings=False, **config):
    """`arch`: also in GGUF. `twin`: the model in GGUF takes PEFT's adapters. `embeddings`: see PEFT."""
    m = load(os.path.join(MODELS, base))
    m = peft.get_peft_model(m, peft.LoraConfig(lora_dropout=0.0, **config)).eval()
    randomize(m, seed, store)
    folder = os.path.join(OUT, name)
    save(m, folder, store, embeddings)
    files = [f"tests/golden/adapters/{name}"]
    models = [f"tests/golden/models/{base}"]
    if arch:
        c = m.config
        save_gguf(folder, folder + ".gguf", arch, c.num_attention_heads, c.num_key_value_heads, config["lora_alpha"])
        files.append(files[0] + ".gguf")
    if arch or twin:
        models.append(models[0] + ".gguf")
    ternary = base.startswith(("bitnet", "llama-ternary"))
    run = drawer(m) if ternary else lambda ids: (run_hf(m, ids), 1.0)
    sequences = draw(run, VOCAB, LENGTHS, seed)
    rows = run_all(m, sequences)
    with m.disable_adapter():
        ignored = float((run_all(m, sequences) - rows).abs().max() / rows.abs().max())
    rows.numpy().astype("<f4").tofile(folder + ".f32")
    return {
        "name": name, "models": models, "adapters": files, "vocab": VOCAB,
        "logits": f"tests/golden/adapters/{name}.f32", "tolerance": 1e-3 if ternary else 1e-4,
        "ignored": round(ignored, 3), "source": f"peft {peft.__version__}, f32 ({VERSIONS})", "sequences": sequences,
    }


CASES = [
    ("llama", "llama-llama3", 1, "f32", "llama",
     dict(r=4, lora_alpha=8, target_modules=[*ALL, "lm_head"])),
    ("qwen3", "qwen3", 2, "f16", "qwen3", dict(r=3, lora_alpha=5, target_modules=ALL)),
    ("gemma3", "gemma3", 3, "bf16", None,
     dict(r=2, lora_alpha=4, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"],
          rank_pattern={"v_proj": 5}, alpha_pattern={"v_proj": 3})),
    # As PEFT saves the head by default: with the base model's own.
    ("patterns", "llama-bf16", 15, "bf16", None,
     dict(r=2, lora_alpha=4, embeddings="auto", target_modules=["q_proj", "down_proj", "lm_head"],
          rank_pattern={r"layers\.0\..*_proj": 3},
          alpha_pattern={r"down_(proj|project)": 6, r"layers\.[1-9]\..*": 3})),
    ("bitnet", "bitnet-online", 4, "f16", None, dict(r=4, lora_alpha=8, target_modules=ALL)),
    ("ternary", "llama-ternary-online", 5, "f32", None, dict(r=4, lora_alpha=2, target_modules=ALL)),
    ("qwen35", "qwen35", 6, "f16", None,
     dict(r=2, lora_alpha=3, target_modules=[*ALL, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"])),
    ("qwen3next", "qwen3next", 7, "f16", None,
     dict(r=2, lora_alpha=3, target_modules=[*ALL[:4], "in_proj_qkvz", "in_proj_ba", "out_proj"])),
    ("lfm2", "lfm2", 8, "f16", None,
     dict(r=2, lora_alpha=3, twin=True, target_modules=[*ALL[:3], "in_proj", "out_proj", "w1", "w2", "w3"])),
    ("lfm3", "lfm3", 9, "f16", None,
     dict(r=2, lora_alpha=3, twin=True, target_modules=[*ALL[:3], "gate_proj", "in_proj", "out_proj", "w1", "w2", "w3"])),
    ("granite-hybrid", "granitemoehybrid-dense", 10, "f16", None,
     dict(r=2, lora_alpha=3, twin=True,
          target_modules=[*ALL[:4], "in_proj", "out_proj", "input_linear", "output_linear"])),
    # PEFT refuses the last product of its Mamba-2.
    ("falcon-h1", "falcon-h1", 11, "f16", None, dict(r=2, lora_alpha=3, target_modules=[*ALL, "in_proj"])),
    ("deepseek-v2", "deepseek-v2", 12, "f16", None,
     dict(r=2, lora_alpha=3, twin=True,
          target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"])),
    ("deepseek-v3-halves", "deepseek-v3-halves", 14, "f16", None,
     dict(r=2, lora_alpha=3, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"])),
    ("gemma4", "gemma4-inputs", 13, "f16", None,
     dict(r=2, lora_alpha=3, twin=True, target_modules=[*ALL, "per_layer_input_gate", "per_layer_projection"])),
]


def main():
    os.makedirs(OUT, exist_ok=True)
    wanted = sys.argv[1:] or [name for name, *_ in CASES]
    made = [case(name, *rest, **config) for name, *rest, config in CASES if name in wanted]
    path = os.path.join(OUT, "index.json")
    index = []
    if sys.argv[1:]:
        with open(path) as f:
            index = [c for c in json.load(f) if c["name"] not in wanted]
    index += made
    with open(path, "w") as f:
        f.write(json.dumps(index) + "\n")
    for c in made:
        print(c["name"], "ignored:", c["ignored"])


if __name__ == "__main__":
    main()
