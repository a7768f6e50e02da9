"""Compares log probabilities of prompts of 512 tokens, computed in chunks, and of 64 greedy tokens after them, with
transformers. Random models of two to six layers with odd numbers of heads and odd widths.

  pip install -r requirements.txt, and the wheel of bindings/python (make wheel)
  python long_texts.py [case ...]     default: every case

Prints the largest difference of log probabilities, of the prompts' tokens and of the greedy ones, for each case, also where four
sequences share a batch, and fails if one is above 1e-5 times the largest magnitude, or another token is chosen where
transformers' choice is not within that distance.
"""

import os
import sys
import tempfile

import bn_engine
import torch
import without_class
from folders import interval_style, old_style, randomize, rope, small
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from architectures import FULL, LINEAR, delta_heads, mrope
from delta_nets import by_definition
from folders import edit_json

VOCAB, PROMPT, NEW, CHUNK, LIMIT = 64, 512, 64, 96, 1e-5
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 56}
LAYERS = {"layer_types": [LINEAR, LINEAR, LINEAR, FULL, LINEAR, FULL]}


def shape(cls, **more):
    return small(cls, **{"context": 1024, "hidden": 72, "heads": 9, "kv_heads": 3, "ffn": 136, "layers": 3} | more)


def hybrid(cls, **more):
    return shape(cls, layers=6, eps=1e-6, **LAYERS | delta_heads(3, 6, 16, 24) | mrope(0.5, [2, 1, 1]) | more)


MODELS = {
    "llama": lambda: (LlamaForCausalLM, shape(LlamaConfig), old_style),
    "qwen3": lambda: (Qwen3ForCausalLM, shape(Qwen3Config, head_dim=24), old_style),
    "qwen3moe": lambda: (Qwen3MoeForCausalLM, shape(Qwen3MoeConfig, norm_topk_prob=True, **EXPERTS), old_style),
    "qwen35": lambda: (Qwen3_5ForCausalLM, hybrid(Qwen3_5TextConfig), lambda c: None),
    "qwen35moe": lambda: (Qwen3_5MoeForCausalLM, hybrid(Qwen3_5MoeTextConfig, ffn=None, **SHARED), lambda c: None),
    "qwen3next": lambda: (
        Qwen3NextForCausalLM,
        hybrid(
            Qwen3NextConfig,
            norm_topk_prob=True,
            rope_parameters=rope(partial_rotary_factor=0.5),
            layer_types=[LINEAR, LINEAR, FULL] * 2,
            **SHARED,
        ),
        interval_style,
    ),
}


def softer(m):
    """Scales logits down, so that a chosen token's log probability is far from 0."""
    with torch.no_grad():
        for name, p in m.named_parameters():
            if "lm_head" in name:
                p.mul_(0.25)
    return m


def model(name, folder, seed):
    """Writes a folder, and returns logits of all rows of a text."""
    if name == "maple":
        config = without_class.maple_config(max_position_embeddings=1024, torch_dtype="float32", sliding_window=100)
        m = softer(without_class.sharpened(without_class.Maple(config), seed))
        save_file(m.state_dict(), os.path.join(folder, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write("{}")
        edit_json(os.path.join(folder, "config.json"), lambda c: c.update(config))
        m.double()
        return lambda ids: m.run(ids)[0]
    cls, config, style = MODELS[name]()
    m = softer(randomize(cls(config), seed))
    m.config._attn_implementation = m.config._experts_implementation = "eager"
    m.save_pretrained(folder)
    edit_json(os.path.join(folder, "config.json"), style)
    m = by_definition(m).double()
    return lambda ids: torch.no_grad()(m)(torch.tensor([ids])).logits[0]


def check(name, seed=1):
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(VOCAB, (4, PROMPT), generator=generator).tolist()
    with tempfile.TemporaryDirectory() as folder:
        run = model(name, folder, seed)
        with bn_engine.Engine(folder, max_batch_tokens=CHUNK, kv_type=bn_engine.KV_TYPE_F32, threads=2) as engine:
            how = {"max_new_tokens": NEW, "temperature": 0.0, "logprobs": True, "echo_prompt": True, "prompt_logprobs": True,
                   "ignore_eos": True}
            streams = [engine.stream(prompt_tokens=prompt, **how) for prompt in prompts]
            together = [stream.result() for stream in streams]
            alone = engine.generate(prompt_tokens=prompts[0], **how)
    # The first token has no log probability, and NaN is never equal.
    assert alone.tokens == together[0].tokens and alone.logprobs[1:] == together[0].logprobs[1:], "alone and in a batch"
    worst = 0.0
    for prompt, output in zip(prompts, together):
        text = list(output.tokens)  # the prompt's too
        assert text[:PROMPT] == prompt and len(text) == len(output.logprobs) == PROMPT + NEW, name
        want = run(text).log_softmax(-1)
        magnitude = float(want.abs().max())
        for place, got in enumerate(output.logprobs):
            if place == 0:
                continue  # the first token has none
            row = want[place - 1]
            assert got.token == text[place], (name, place)
            worst = max(worst, abs(got.logprob - float(row[got.token])) / magnitude)
            if place >= PROMPT:
                assert float(row.max() - row[got.token]) <= LIMIT * magnitude, (name, place, "another token")
    print(f"{name}: {worst:.1e} of the largest magnitude over {len(prompts)} texts of {PROMPT} + {NEW} tokens", flush=True)
    assert worst <= LIMIT, name


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or [*MODELS, "maple"]:
        check(case)
