"""Blocks of multi-token prediction: folders with one after the layers, and the logits of its drafts.

transformers leaves these blocks out. The layer is its own class; what stands around the layer is vLLM's and llama.cpp's:
the normed embedding of a token beside the normed hidden state of the token before it, joined by one product, and after
the layer a norm of its own, whose output goes on to the next draft, and the model's head.

    python mtp.py
"""

import json
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeDecoderLayer

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
LENGTH, DRAFTS = 40, 3
CLASSES = {"qwen35": Qwen3_5DecoderLayer, "qwen35moe": Qwen3_5MoeDecoderLayer}


def random(layer, config, generator):
    """The block's tensors in bf16, under the names of published files."""
    size = lambda shape: torch.randn(shape, generator=generator) / (shape[-1] ** 0.5 if len(shape) > 1 else 5)
    tensors = {f"mtp.layers.0.{name}": size(tensor.shape) for name, tensor in layer.state_dict().items()}
    hidden = config.hidden_size
    tensors["mtp.fc.weight"] = size((hidden, 2 * hidden))
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{name}.weight"] = size((hidden,))
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def as_published(tensors):
    """Splits stacked experts into matrices, as transformers saves them."""
    out = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition("experts.")
        if part == "gate_up_proj":
            for n, both in enumerate(tensor):
                out[f"{stem}experts.{n}.gate_proj.weight"], out[f"{stem}experts.{n}.up_proj.weight"] = both.chunk(2)
        elif part == "down_proj":
            out |= {f"{stem}experts.{n}.down_proj.weight": down for n, down in enumerate(tensor)}
        else:
            out[name] = tensor
    return {name: tensor.clone().contiguous() for name, tensor in out.items()}


class Block:
    def __init__(self, model, layer, tensors):
        config, self.model, self.layer = model.config, model, layer
        layer.load_state_dict({n.removeprefix("mtp.layers.0."): t for n, t in tensors.items() if ".layers." in n})

        def norm(name):
            made = Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps)
            made.load_state_dict({"weight": tensors[f"mtp.{name}.weight"]})
            return made.float()

        self.norm, self.of_token, self.of_state = map(norm, ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"))
        self.join = tensors["mtp.fc.weight"].float()

    def __call__(self, tokens, before):
        """The hidden state at position 1 and each later one, from its token and the previous state."""
        body = self.model.model
        both = torch.cat([self.of_token(body.embed_tokens(tokens)), self.of_state(before)], -1)
        x = (both @ self.join.T)[None]
        n = len(tokens)
        positions = torch.arange(1, n + 1)[None]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        out = self.layer(x, position_embeddings=body.rotary_emb(x, positions), attention_mask=mask)
        return self.norm(out if torch.is_tensor(out) else out[0])[0]


@torch.no_grad()
def case(name, seed):
    source, folder = GOLDEN / "models" / name, GOLDEN / "mtp" / name
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    config = json.loads(json.dumps(model.config.to_dict()))
    of_layer = type(model.config)(**config | {"layer_types": ["full_attention"], "num_hidden_layers": 1})
    of_layer._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(seed)
    layer = CLASSES[name](of_layer, 0).eval()
    tensors = random(layer, model.config, generator)

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(load_file(source / "model.safetensors") | as_published(tensors), folder / "model.safetensors")
    written = json.loads((source / "config.json").read_text()) | {"mtp_num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")

    block = Block(model, layer, tensors)
    tokens = torch.randint(model.config.vocab_size, (LENGTH,), generator=generator)
    before = model.model(tokens[None]).last_hidden_state[0, :-1]
    drafted = []
    while True:
        all_tokens = torch.cat([tokens, torch.tensor(drafted, dtype=torch.long)])
        hidden = block(all_tokens[1:], before)
        logits = model.lm_head(hidden)
        if len(drafted) == DRAFTS:
            break
        drafted.append(int(logits[-1].argmax()))
        before = torch.cat([before, hidden[-1:]])
    np.asarray(logits, np.float32).tofile(folder / "drafts.f32")
    (folder / "drafts.json").write_text(json.dumps({"tokens": tokens.tolist(), "drafts": drafted}) + "\n")
    print(name, drafted, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


case("qwen35", 301)
case("qwen35moe", 302)
