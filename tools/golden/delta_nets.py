"""Hybrids of gated DeltaNet and attention (Qwen 3.5, Qwen3-Next): the gated delta rule by its definition, and models
that ignore one part of what theirs is.

A function that takes a model changes that part in it and returns it.
"""

import functools
import sys
from unittest import mock

import torch
from torch.nn import functional as F

RULE = "torch_chunk_gated_delta_rule"


def delta_nets(m):
    return [layer.linear_attn for layer in m.model.layers if hasattr(layer, "linear_attn")]


def attentions(m):
    return [layer.self_attn for layer in m.model.layers if hasattr(layer, "self_attn")]


# ---------------------------------------------------------------- the rule


def delta_rule(query, key, value, g, beta, corrects=True, **_):
    """The rule token by token in f64. transformers computes chunks of 64 tokens in f32 for all model types."""
    of_head = value.shape[2] // key.shape[2]
    norm = lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    q, k = (norm(x.double()).repeat_interleave(of_head, 2) for x in (query, key))
    q = q * q.shape[-1] ** -0.5
    v, decay, beta = value.double(), g.double().exp(), beta.double()
    state = q.new_zeros(*v.shape[:1], *v.shape[2:3], k.shape[-1], v.shape[-1])
    rows = []
    for t in range(q.shape[1]):
        state = state * decay[:, t, :, None, None]
        known = torch.einsum("bhkv,bhk->bhv", state, k[:, t]) * corrects
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], (v[:, t] - known) * beta[:, t, :, None])
        rows.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(rows, 1).to(query.dtype), state.to(query.dtype)


def with_rule(m, rule):
    """Makes each DeltaNet call `rule` with transformers' function and its arguments."""

    def bind(delta):
        module, forward = sys.modules[type(delta).__module__], delta.forward
        own = getattr(module, RULE)

        def run(*args, **how):
            with mock.patch.object(module, RULE, functools.partial(rule, own)):
                return forward(*args, **how)

        delta.forward = run

    for delta in delta_nets(m):
        bind(delta)
    return m


def by_definition(m):
    return with_rule(m, lambda _, *args, **how: delta_rule(*args, **how))


def without_correction(m):
    """Adds values to the state without the correction by their keys: gated linear attention."""
    return with_rule(m, lambda _, *args, **how: delta_rule(*args, **how, corrects=False))


def without_strength(m):
    """Writes each token's value whole."""
    return with_rule(m, lambda own, *args, beta, **how: own(*args, beta=torch.ones_like(beta), **how))


def tiled_keys(m):
    """Pairs value head i with key head i % key heads; the model's is i // (value heads / key heads)."""

    def rule(own, query, key, value, **how):
        n = value.shape[2] // key.shape[2]
        return own(query.repeat(1, 1, n, 1), key.repeat(1, 1, n, 1), value, **how)

    return with_rule(m, rule)


def without_decay(m):
    for delta in delta_nets(m):
        delta.A_log.data.fill_(-30.0)
    return m


def without_time_bias(m):
    for delta in delta_nets(m):
        delta.dt_bias.data.zero_()
    return m


# ---------------------------------------------------------------- around the rule


def without_convolution(m):
    for delta in delta_nets(m):
        delta.conv1d.weight.data.zero_()[..., -1] = 1.0
    return m


def turned_convolution(m):
    """Applies the kernel's first element to the current token."""
    for delta in delta_nets(m):
        delta.conv1d.weight.data = delta.conv1d.weight.flip(-1)
    return m


def linear_convolution(m):
    """Leaves out the SiLU after the convolution."""
    for delta in delta_nets(m):
        delta.activation = None
    return m


def with_gated_norm(m, forward):
    """Makes each DeltaNet's norm call `forward` with its rows, their gates and the function that normalizes."""

    def bind(norm):
        rms = lambda x: F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)
        norm.forward = lambda x, gate: forward(x, gate, rms)

    for delta in delta_nets(m):
        bind(delta.norm)
    return m


def without_gate_of_norm(m):
    return with_gated_norm(m, lambda x, gate, rms: rms(x))


def gate_before_norm(m):
    return with_gated_norm(m, lambda x, gate, rms: rms(x * F.silu(gate)))


def sigmoid_gate_of_norm(m):
    return with_gated_norm(m, lambda x, gate, rms: rms(x) * gate.sigmoid())


def zero_based_gated_norm(m):
    """Norms by 1 + weight, like the others."""
    for delta in delta_nets(m):
        delta.norm.weight.data += 1.0
    return m


def plain_norms(m):
    """Norms by the weight, not by 1 + weight, except the gated norm."""
    for name, p in m.named_parameters():
        if "norm" in name and "linear_attn" not in name:
            p.data -= 1.0
    return m


def separate_projections(m):
    """Reads Qwen3-Next's fused matrices as all q, k, v, z and all b, a; the model has them for each key head."""

    def split(delta, qkvz, ba):
        q, k, v, z = qkvz.split([delta.key_dim] * 2 + [delta.value_dim] * 2, -1)
        return q, k, v, z.unflatten(-1, (-1, delta.head_v_dim)), *ba.chunk(2, -1)

    for delta in delta_nets(m):
        delta.fix_query_key_value_ordering = functools.partial(split, delta)
    return m


# ---------------------------------------------------------------- attention


def halves_of_queries(attention):
    """q_proj's rows by head, and of each head the queries and the gates."""
    return attention.q_proj.weight.data.unflatten(0, (-1, 2, attention.head_dim))


def without_output_gate(m):
    """Makes the gates constant: sigmoid(0) is a half, which o_proj makes up for."""
    for attention in attentions(m):
        halves_of_queries(attention)[:, 1] = 0.0
        attention.o_proj.weight.data *= 2.0
    return m


def gates_after_queries(m):
    """Reads the rows of all queries before those of all gates; the model has both for each head."""
    for attention in attentions(m):
        rows = attention.q_proj.weight.data.unflatten(0, (2, -1, attention.head_dim))
        attention.q_proj.weight.data = rows.transpose(0, 1).flatten(0, 2).contiguous()
    return m


def without_qk_norms(m):
    for attention in attentions(m):
        attention.q_norm = attention.k_norm = torch.nn.Identity()
    return m


# ---------------------------------------------------------------- experts


def without_shared_expert(m):
    for layer in m.model.layers:
        layer.mlp.shared_expert.down_proj.weight.data.zero_()
    return m


def ungated_shared_expert(m):
    for layer in m.model.layers:
        layer.mlp.shared_expert_gate.weight.data.zero_()
        layer.mlp.shared_expert.down_proj.weight.data *= 2.0
    return m


def weights_of_softmax(m):
    """Uses the softmax's weights of the best experts without normalizing their sum to 1."""

    def hook(_, args, output):
        logits, _, best = output
        return logits, logits.softmax(-1).gather(-1, best), best

    for layer in m.model.layers:
        layer.mlp.gate.register_forward_hook(hook)
    return m


DELTA_NET = [
    without_correction,
    without_strength,
    without_decay,
    without_time_bias,
    without_convolution,
    turned_convolution,
    linear_convolution,
    without_gate_of_norm,
    gate_before_norm,
    sigmoid_gate_of_norm,
    zero_based_gated_norm,
]
ATTENTION = [plain_norms, without_qk_norms, without_output_gate, gates_after_queries]
EXPERTS = [without_shared_expert, ungated_shared_expert, weights_of_softmax]
