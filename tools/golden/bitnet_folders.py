"""Ternary models as Hugging Face folders: both `linear_class`es, offline and online, with and without `use_rms_norm`.

The folder is loaded by transformers' own quantizer (it wants `accelerate`), which computes with int8 activations.
"""

import json
import os
import shutil

from cases import BITNET_TOLERANCE, LENGTHS, MODELS, VERSIONS, VOCAB, error, record

import torch
from folders import load, old_style, randomize, run_all
from make_golden import draw, run_hf
from safetensors.torch import save_file
from transformers import BitNetConfig, BitNetForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations import bitnet as hf

CLASSES = {"autobitlinear": "AutoBitLinear", "bitlinear": "BitLinear"}
LINEARS = (hf.BitLinear, hf.AutoBitLinear)
# Fields that `to_dict` returns and save_pretrained omits.
UNSAVED = (
    "quantization_config",
    "_name_or_path",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "problem_type",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "is_encoder_decoder",
)


def watch_edges(m):
    """A list of the last row's distances from a rounding edge, in int8 steps, filled as the model runs."""
    edges = []

    def hook(linear, args):
        x = args[0].detach()
        x = (linear.rms_norm(x) if linear.rms_norm is not None else x)[0, -1].double()
        y = (x * (127 / x.abs().max().clamp(min=1e-5))).abs()
        edges.append(float((y - y.floor() - 0.5).abs().min()))

    for x in m.modules():
        if isinstance(x, LINEARS):
            x.register_forward_pre_hook(hook)
    assert any(isinstance(x, LINEARS) for x in m.modules()), (
        "no ternary layer: was the quantization_config read?"
    )
    return edges


def drawer(m, run=run_hf):
    edges = watch_edges(m)

    def one(ids):
        edges.clear()
        logits = run(m, ids)
        return logits, min(edges)

    return one


def off_the_edge(w, dtype):
    """Moves weights that a last-bit difference in mean|w| could round to another ternary value."""
    for _ in range(50):
        w = w.to(dtype).float()
        near = ((w.abs() / w.abs().mean()) - 0.5).abs() < 2e-3
        if not near.any():
            return w
        w = torch.where(near, w * 1.03, w)
    raise AssertionError("weights stay at a rounding edge")


def ternary_state(m, linear_class, online, rms_norm, seed, norm_name="rms_norm"):
    """The ternary model's state dict, in bf16 like all published files."""
    gen = torch.Generator().manual_seed(seed)
    state = {n: p.detach().to(torch.bfloat16) for n, p in m.state_dict().items()}
    if m.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for name, linear in m.named_modules():
        if not isinstance(linear, torch.nn.Linear) or name == "lm_head":
            continue
        w = linear.weight.detach()
        if online:
            state[name + ".weight"] = off_the_edge(w, torch.bfloat16).to(torch.bfloat16)
        else:
            codes = torch.randint(-1, 2, w.shape, generator=gen).float()
            scale = w.abs().mean() * (0.5 + float(torch.rand(1, generator=gen)))
            state[name + ".weight"] = hf.pack_weights(codes)
            state[name + ".weight_scale"] = (
                (scale if linear_class == "autobitlinear" else 1 / scale).reshape(1).to(torch.bfloat16)
            )
        if rms_norm:
            norm = torch.empty(linear.in_features).uniform_(0.4, 1.8, generator=gen)
            state[f"{name}.{norm_name}.weight"] = norm.to(torch.bfloat16)
    return {n: t.contiguous() for n, t in state.items()}


def write(name, m, state, style, quantization):
    folder = os.path.join(MODELS, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    save_file(state, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    config = m.config.to_dict() | {"architectures": [type(m).__name__], "dtype": "bfloat16"}
    config = {k: v for k, v in config.items() if k not in UNSAVED}
    config = json.loads(json.dumps(config))
    style(config)
    if quantization is not None:
        config["quantization_config"] = {"quant_method": "bitnet"} | quantization
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(json.dumps(config, indent=1, sort_keys=True) + "\n")
    if hasattr(m, "generation_config"):  # a base model has none
        m.generation_config.save_pretrained(folder)
    return folder


def ternary_case(name, cls, config, seed, covers, quantization, ignored, fmt="hf-packed"):
    linear_class = quantization.get("linear_class", "bitlinear")
    online = quantization.get("quantization_mode") == "online"
    rms_norm = quantization.get("use_rms_norm", False)
    m = randomize(cls(config), seed)
    folder = write(name, m, ternary_state(m, linear_class, online, rms_norm, seed), old_style, quantization)
    ref = load(folder)
    run = drawer(ref)
    sequences = draw(run, VOCAB, LENGTHS, seed)
    rows = run_all(ref, sequences)
    edge = min(run(s[: k + 1])[1] for s in sequences for k in range(len(s)))
    changed = {"quant_method": "bitnet"} | quantization | ignored
    wrong = run_all(load(folder, quantization_config=changed), sequences)
    noise = {
        "int8_edge": edge,
        "ignored": error(wrong, rows) if bool(wrong.isfinite().all()) else float("inf"),
    }
    assert noise["ignored"] > 0.02, (name, noise)
    record(
        name,
        folder,
        config.model_type,
        fmt,
        covers,
        sequences,
        rows,
        f"transformers {cls.__name__} with its {CLASSES[linear_class]}, loaded from the folder, f32 with int8 "
        f"activations ({VERSIONS})",
        "transformers",
        BITNET_TOLERANCE,
        noise=noise,
    )


def sizes(cls, layers=1, tied=True, hidden=64, ffn=128, **more):
    return cls(
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCAB,
        tie_word_embeddings=tied,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **more,
    )


def bitnet(name, seed, covers, quantization, ignored, fmt="hf-packed", **more):
    return lambda: ternary_case(
        name,
        BitNetForCausalLM,
        sizes(BitNetConfig, hidden_act="relu2", rms_norm_eps=1e-5, **more),
        seed,
        covers,
        quantization,
        ignored,
        fmt,
    )


def llama(name, seed, covers, quantization, ignored, fmt="hf-packed", **more):
    return lambda: ternary_case(
        name,
        LlamaForCausalLM,
        sizes(LlamaConfig, rms_norm_eps=1e-6, **more),
        seed,
        covers,
        quantization,
        ignored,
        fmt,
    )


def online_bitnet(config, state):
    """transformers' BitNet, its weights ternary at load, from a state dict. It has no class for 1bitLLM's."""
    m = BitNetForCausalLM(config)
    for name, linear in list(m.named_modules()):
        if isinstance(linear, torch.nn.Linear) and name != "lm_head":
            m.set_submodule(
                name, hf.AutoBitLinear(linear.in_features, linear.out_features, bias=False, online_quant=True)
            )
    m.load_state_dict({n: t.float() for n, t in state.items()}, strict=False)
    m.tie_weights()
    m.config._attn_implementation = "eager"
    return m.eval()


THEIR_NAMES = {"self_attn.attn_sub_norm": "self_attn.inner_attn_ln", "mlp.ffn_sub_norm": "mlp.ffn_layernorm"}


def one_bit_llm_style(config):
    """1bitLLM/bitnet_b1_58-large: its own class under Llama's model_type, no quantization_config."""
    old_style(config)
    config |= {
        "architectures": ["BitnetForCausalLM"],
        "model_type": "llama",
        "input_bits": 8,
        "weight_bits": 1,
    }


def one_bit_llm(name, seed):
    config = sizes(BitNetConfig, ffn=32, hidden_act="silu", rms_norm_eps=1e-5)
    m = randomize(BitNetForCausalLM(config), seed)
    state = ternary_state(m, "autobitlinear", True, False, seed)
    renamed = {}
    for n, t in state.items():
        for ours, theirs in THEIR_NAMES.items():
            n = n.replace(ours, theirs)
        renamed[n] = t
    folder = write(name, m, renamed, one_bit_llm_style, None)
    ref = online_bitnet(config, state)
    run = drawer(ref)
    sequences = draw(run, VOCAB, LENGTHS, seed)
    rows = run_all(ref, sequences)
    edge = min(run(s[: k + 1])[1] for s in sequences for k in range(len(s)))
    config.hidden_act = "relu2"
    noise = {"int8_edge": edge, "ignored": error(run_all(online_bitnet(config, state), sequences), rows)}
    assert noise["ignored"] > 0.02, noise
    record(
        name,
        folder,
        "llama",
        "hf-bf16",
        "1bitLLM's bitnet_b1_58: BitnetForCausalLM under model_type llama, inner_attn_ln and "
        "ffn_layernorm, SiLU; ternary at load",
        sequences,
        rows,
        f"transformers BitNetForCausalLM (hidden_act silu) with its "
        f"AutoBitLinear (online), f32 with int8 activations ({VERSIONS})",
        "transformers",
        BITNET_TOLERANCE,
        noise=noise,
    )


AUTO = {"linear_class": "autobitlinear"}
CASES = {
    "bitnet-offline": bitnet(
        "bitnet-offline",
        51,
        "2B-4T: autobitlinear, offline, packed: multiply by weight_scale; relu squared, sub-norms",
        AUTO | {"quantization_mode": "offline"},
        {"linear_class": "bitlinear"},
        layers=2,
    ),
    "bitnet-online": bitnet(
        "bitnet-online",
        52,
        "2B-4T bf16: autobitlinear, online: ternary at load by mean |w|",
        AUTO | {"quantization_mode": "online"},
        {"modules_to_not_convert": ["lm_head", "model"]},
        "hf-bf16",
        ffn=32,
    ),
    "bitnet-rms-norm": bitnet(
        "bitnet-rms-norm",
        53,
        "autobitlinear, offline, use_rms_norm with an eps of its own",
        AUTO | {"quantization_mode": "offline", "use_rms_norm": True, "rms_norm_eps": 1e-3},
        {"rms_norm_eps": 0.3},
    ),
    "falcon3-ternary": llama(
        "falcon3-ternary",
        54,
        "Falcon3, Llama3-8B-1.58: linear_class absent: divide by weight_scale; untied head in bf16",
        {"modules_to_not_convert": ["lm_head"]},
        AUTO,
        tied=False,
    ),
    "falcon-e-ternary": llama(
        "falcon-e-ternary",
        55,
        "linear_class bitlinear named: divide by weight_scale; modules_to_not_convert null",
        {"linear_class": "bitlinear", "modules_to_not_convert": None},
        AUTO,
        layers=2,
    ),
    "llama-ternary-rms-norm": llama(
        "llama-ternary-rms-norm",
        56,
        "bitlinear with use_rms_norm",
        {"linear_class": "bitlinear", "use_rms_norm": True, "rms_norm_eps": 1e-6},
        {"rms_norm_eps": 0.3},
    ),
    "llama-ternary-online": llama(
        "llama-ternary-online",
        57,
        "a Llama whose bf16 weights become ternary at load",
        AUTO | {"quantization_mode": "online"},
        {"modules_to_not_convert": ["lm_head", "model"]},
        "hf-bf16",
        hidden=32,
    ),
    "bitnet-1bitllm": lambda: one_bit_llm("bitnet-1bitllm", 58),
}
