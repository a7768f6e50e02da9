"""Hugging Face folders: small configurations, random weights, config.json in its several styles, loading."""

import json
import os
import shutil

from cases import MODELS, VOCAB

import torch
from make_golden import run_hf
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import bitnet as hf_bitnet

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
ZERO_BASED = ("Gemma", "Qwen3_5", "Qwen3Next")  # norms by 1 + weight, but for DeltaNet's gated one
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}


def randomize(m, seed):
    """Weights large enough that attention is sharp and that every norm and bias matters."""
    torch.manual_seed(seed)
    zero_based = type(m).__name__.startswith(ZERO_BASED)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.5)
            elif name.endswith("A_log"):
                p.uniform_(-5.0, 0.5)  # with its bias and input: the state decays by 0.999 to 0.02 a token
            elif name.endswith("conv1d.weight"):
                p.uniform_(-0.5, 0.5)
            elif p.ndim == 1:
                p.uniform_(0.4, 1.8).sub_(1.0 if zero_based and "linear_attn" not in name else 0.0)
            elif "embed_tokens" in name or "lm_head" in name:
                p.normal_(0, 0.5)
            else:
                p.normal_(0, 1.5 * p.shape[1] ** -0.5)
    return m.eval()


def edit_json(path, change):
    with open(path) as f:
        value = json.load(f)
    change(value)
    with open(path, "w") as f:
        f.write(json.dumps(value, indent=1) + "\n")


def old_style(config):
    """config.json as transformers 4 wrote it, which is how nearly all published ones look."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
        del config["head_dim"]
    del config["transformers_version"]


def oldest_style(config):
    old_style(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")


def gemma_style(config):
    """config.json of Gemma 3 as published: two rope bases with their own names."""
    ropes = config.pop("rope_parameters")
    config |= {
        "rope_theta": ropes["full_attention"]["rope_theta"],
        "rope_scaling": None,
        "torch_dtype": config.pop("dtype"),
        "rope_local_base_freq": ropes["sliding_attention"]["rope_theta"],
    }
    del config["transformers_version"]


def old_gemma_style(config):
    """config.json before `layer_types`: every sliding_window_pattern-th layer has no window."""
    gemma_style(config)
    del config["layer_types"], config["_sliding_window_pattern"]
    config["sliding_window_pattern"] = 2


def interval_style(config):
    """config.json of Qwen3-Next as published: an interval says which layers are attention."""
    config["partial_rotary_factor"] = config["rope_parameters"].pop("partial_rotary_factor")
    config["full_attention_interval"] = config.pop("layer_types").index("full_attention") + 1
    old_style(config)


def nested_style(config):
    """config.json of Qwen 3.5 as published: a model of text and images, with the text model in `text_config`."""
    text = config["text_config"]
    text |= {
        "dtype": config.pop("dtype"),
        "attn_output_gate": True,
        "full_attention_interval": text["layer_types"].index("full_attention") + 1,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "partial_rotary_factor": text["rope_parameters"]["partial_rotary_factor"],
    }
    del config["transformers_version"]


def load(folder, auto=AutoModelForCausalLM, **changes):
    config = AutoConfig.from_pretrained(folder)
    for key, value in changes.items():
        setattr(config.get_text_config(), key, value)
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    m = auto.from_pretrained(folder, config=config, dtype=torch.float32, **eager)
    # A quantized checkpoint keeps its dtype in norms and embeddings, so convert all but packed bytes to f32.
    for x in m.modules():
        if isinstance(x, hf_bitnet.BitLinear):
            x.dtype = torch.float32
        for p in (*x._parameters.values(), *x._buffers.values()):
            if p is not None and p.is_floating_point():
                p.data = p.data.float()
    return m.eval()


def run_all(m, sequences):
    return torch.cat([run_hf(m, s) for s in sequences])


def fused(tensors):
    """Stacks the experts of each layer: [experts, rows, columns]; the gate's rows come before those of up."""
    experts = sorted({n.split(".experts.")[0] + ".experts" for n in tensors if ".experts." in n})
    out = {n: x for n, x in tensors.items() if ".experts." not in n}
    for e in experts:
        count = sum(n.startswith(e + ".") and n.endswith("down_proj.weight") for n in tensors)
        stack = lambda part: torch.stack([tensors[f"{e}.{i}.{part}_proj.weight"] for i in range(count)])
        out[e + ".gate_up_proj"] = torch.cat([stack("gate"), stack("up")], 1)
        out[e + ".down_proj"] = stack("down")
    return out


def write(name, m, store, style, shard=None, generation=None, in_f32=(), more=None, fuse=False):
    """Saves the model as a folder; nothing of an older one stays. Tensors with names that end as one of `in_f32` stay
    in f32, and those of `more` come with them, which the model does not have. `fuse`: all experts of a layer in two
    tensors, gate_up_proj and down_proj, as the published Qwen 3.5 have them."""
    folder = os.path.join(MODELS, name)
    shutil.rmtree(folder, ignore_errors=True)
    kept = {n: p.detach().clone() for n, p in m.named_parameters() if n.endswith(tuple(in_f32))}
    m.to(DTYPES[store])
    for n, p in m.named_parameters():
        p.data = kept.get(n, p.data)
    m.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    if more or fuse:
        path = os.path.join(folder, "model.safetensors")
        tensors = load_file(path) | {n: x.to(DTYPES[store]) for n, x in (more or {}).items()}
        save_file(fused(tensors) if fuse else tensors, path, {"format": "pt"})
    edit_json(os.path.join(folder, "config.json"), style)
    if generation:
        edit_json(os.path.join(folder, "generation_config.json"), lambda g: g.update(generation))
    return folder


def rope(kind="default", theta=10000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


DEFAULT_ROPE = {"rope_parameters": rope()}
PLAIN_YARN = rope("yarn", 100.0, factor=4.0, original_max_position_embeddings=32)
GEMMA_ROPE = {"sliding_attention": rope(), "full_attention": rope(theta=1e6)}


def small(
    cls,
    layers=1,
    hidden=64,
    ffn=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    eps=1e-5,
    tied=False,
    vocab=VOCAB,
    context=128,
    **more,
):
    more = DEFAULT_ROPE | ({} if ffn is None else {"intermediate_size": ffn}) | more
    return cls(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        rms_norm_eps=eps,
        tie_word_embeddings=tied,
        max_position_embeddings=context,
        **IDS,
        **more,
    )
