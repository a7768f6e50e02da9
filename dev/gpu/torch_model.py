"""Decoders of the shapes that synth has, plain torch and transformers, random weights in bf16."""

import torch
import torch.nn.functional as F

SHAPES = {
    "bitnet-2b": {"hidden": 2560, "ffn": 6912, "layers": 30, "heads": 20, "kv": 5, "vocab": 128_256, "bitnet": True},
    "llama-1b": {"hidden": 2048, "ffn": 8192, "layers": 16, "heads": 32, "kv": 8, "vocab": 128_256, "bitnet": False},
    "llama-8b": {"hidden": 4096, "ffn": 14336, "layers": 32, "heads": 32, "kv": 8, "vocab": 128_256, "bitnet": False},
    # For runs without a GPU.
    "tiny": {"hidden": 128, "ffn": 256, "layers": 2, "heads": 4, "kv": 2, "vocab": 512, "bitnet": True},
}
EPS, BASE = 1e-5, 500_000.0


def norm(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Plain:
    """Weights, a KV cache of fixed size, and a decode step that CUDA replays as a graph: plain torch at its best.
    q, k and v are one product, gate and up another."""

    def __init__(self, shape, batch, length, device):
        self.s, self.batch, self.device = shape, batch, device
        s, dim = shape, shape["hidden"] // shape["heads"]
        self.dim = dim
        weight = lambda rows, cols: (torch.randn(rows, cols, device=device) / cols**0.5).to(torch.bfloat16)
        ones = lambda n: torch.ones(n, device=device, dtype=torch.bfloat16)
        self.table = weight(s["vocab"], s["hidden"])
        self.layers = [
            {
                "qkv": weight((s["heads"] + 2 * s["kv"]) * dim, s["hidden"]),
                "out": weight(s["hidden"], s["hidden"]),
                "gate_up": weight(2 * s["ffn"], s["hidden"]),
                "down": weight(s["hidden"], s["ffn"]),
                "norms": [ones(s["hidden"]), ones(s["hidden"])],
                "subs": [ones(s["hidden"]), ones(s["ffn"])],
            }
            for _ in range(s["layers"])
        ]
        self.last = ones(s["hidden"])
        self.kv = [torch.zeros(2, batch, s["kv"], length, dim, device=device, dtype=torch.bfloat16) for _ in self.layers]
        turns = torch.arange(length, device=device)[:, None] * BASE ** (-torch.arange(0, dim, 2, device=device) / dim)
        self.cos, self.sin = (f(torch.cat((turns, turns), -1)).to(torch.bfloat16) for f in (torch.cos, torch.sin))
        self.places = torch.arange(length, device=device)
        self.ids = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.graph = None

    def forward(self, ids, at):
        """Logits after the last of `ids`, which are at the positions `at`."""
        s, rows = self.s, ids.shape[1]
        x, cos, sin = F.embedding(ids, self.table), self.cos[at], self.sin[at]
        # A prompt begins at position 0 and sees itself; a new token sees all positions up to its own.
        seen = None if rows > 1 else (self.places <= at)[None, None, None]
        for layer, kv in zip(self.layers, self.kv):
            qkv = F.linear(norm(x, layer["norms"][0]), layer["qkv"]).view(self.batch, rows, -1, self.dim).transpose(1, 2)
            q, k, v = qkv.split([s["heads"], s["kv"], s["kv"]], 1)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            kv[0].index_copy_(2, at, k)
            kv[1].index_copy_(2, at, v)
            if rows > 1:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
            else:  # Heads that share K and V are rows of one product.
                y = F.scaled_dot_product_attention(q.view(self.batch, s["kv"], -1, self.dim), *kv, attn_mask=seen)
            y = y.reshape(self.batch, rows, -1)
            x = x + F.linear(norm(y, layer["subs"][0]) if s["bitnet"] else y, layer["out"])
            gate, up = F.linear(norm(x, layer["norms"][1]), layer["gate_up"]).chunk(2, -1)
            y = norm(F.relu(gate).square() * up, layer["subs"][1]) if s["bitnet"] else F.silu(gate) * up
            x = x + F.linear(y, layer["down"])
        return F.linear(norm(x[:, -1], self.last), self.table)

    def step(self):
        self.ids.copy_(self.forward(self.ids, self.at).argmax(-1, keepdim=True))
        self.at.add_(1)

    def capture(self):
        if self.device.type != "cuda":
            return
        self.at.fill_(1)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    @torch.inference_mode()
    def generate(self, prompts, new):
        """Greedy; the ids come to the host after each step, as a server hands them out."""
        if self.graph is None:
            self.capture()
        length = prompts.shape[1]
        self.ids.copy_(self.forward(prompts, self.places[:length]).argmax(-1, keepdim=True))
        self.at.fill_(length)
        out = [self.ids.cpu()]
        for _ in range(new - 1):
            self.graph.replay() if self.graph else self.step()
            out.append(self.ids.cpu())
        return torch.cat(out, 1)


def transformers_model(shape, device):
    """transformers' classes. BitNet's computes in bf16 too, with unpacked weights."""
    import transformers

    s = shape
    kind, config = (
        (transformers.BitNetForCausalLM, transformers.BitNetConfig)
        if s["bitnet"]
        else (transformers.LlamaForCausalLM, transformers.LlamaConfig)
    )
    made = config(
        hidden_size=s["hidden"],
        intermediate_size=s["ffn"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv"],
        vocab_size=s["vocab"],
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    made._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = kind(made).eval()
    torch.set_default_dtype(torch.float32)
    return model
