"""Distributions after llama.cpp's samplers: tests/golden/samplers.json.

  python tools/golden/samplers.py llama.cpp/models/ggml-vocab-llama-spm.gguf tests/golden/samplers.json

Each case has logits, parameters by our names, the tokens before, the order, and the tokens that are left with their
probabilities. Logits are distinct multiples of 1/4096.
"""

import ctypes
import json
import math
import random
import sys

import llama_cpp as lib

FILTERS = ["top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"]
SIZE = 48


def parameters(draw):
    """Random parameters. Each filter is on in some of the cases."""
    on = lambda: draw.random() < 0.45
    quarter = lambda low, high: draw.randint(int(low * 64), int(high * 64)) / 64
    params = {"temperature": quarter(0.25, 2)}
    choices = {
        "top_n_sigma": lambda: quarter(0.5, 3),
        "top_k": lambda: draw.randint(1, SIZE),
        "typical_p": lambda: quarter(0.125, 0.96875),
        "top_p": lambda: quarter(0.125, 0.96875),
        "min_p": lambda: quarter(0.015625, 0.5),
        "xtc_threshold": lambda: quarter(0.03125, 0.375),
        "temperature_range": lambda: quarter(0.125, 1),
        "repetition_penalty": lambda: quarter(0.75, 2),
        "frequency_penalty": lambda: quarter(-1, 1),
        "presence_penalty": lambda: quarter(-1, 1),
        "dry_multiplier": lambda: quarter(0.25, 2),
    }
    params.update({name: value() for name, value in choices.items() if on()})
    return params


def samplers(vocab, params, order):
    """llama.cpp's chain: penalties and DRY, then `order`."""
    get = params.get
    penalties = (get("repetition_penalty", 1.0), get("frequency_penalty", 0.0), get("presence_penalty", 0.0))
    yield lib.llama_sampler_init_penalties(SIZE, 1000, *penalties)
    yield lib.llama_sampler_init_dry(vocab, get("dry_multiplier", 0.0), 1.75, 2, 1000, None, 0)
    make = {
        "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(params["top_n_sigma"]),
        "top_k": lambda: lib.llama_sampler_init_top_k(params["top_k"]),
        "typical_p": lambda: lib.llama_sampler_init_typical(params["typical_p"], 1),
        "top_p": lambda: lib.llama_sampler_init_top_p(params["top_p"], 1),
        "min_p": lambda: lib.llama_sampler_init_min_p(params["min_p"], 1),
        "xtc": lambda: lib.llama_sampler_init_xtc(1.0, params["xtc_threshold"], 1, 1),
        "temperature": lambda: lib.llama_sampler_init_temp_ext(params["temperature"], get("temperature_range", 0.0), 1.0),
    }
    for name in order:
        if name == "temperature" or (name if name != "xtc" else "xtc_threshold") in params:
            yield make[name]()


def left(vocab, logits, params, order, before):
    entries = list(enumerate(logits))
    for sampler in samplers(vocab, params, order):
        for token in before:
            lib.llama_sampler_accept(sampler, token)
        data = (lib.llama_token_data * len(entries))(*((token, logit, 0.0) for token, logit in entries))
        array = lib.llama_token_data_array(data=data, size=len(entries), selected=-1, sorted=False)
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        lib.llama_sampler_free(sampler)
        # Some samplers set a logit to -infinity. Others turn that into NaN (typical) or count the token
        # (temperature).
        entries = [(x.id, x.logit) for x in array.data[: array.size] if x.logit > -math.inf]
    most = max(logit for _, logit in entries)
    mass = sum(math.exp(logit - most) for _, logit in entries)
    return sorted([id, math.exp(logit - most) / mass] for id, logit in entries)


def main(model, out):
    lib.llama_backend_init()
    options = lib.llama_model_default_params()
    options.vocab_only = True
    vocab = lib.llama_model_get_vocab(lib.llama_model_load_from_file(model.encode(), options))
    draw, cases = random.Random(7), []
    while len(cases) < 150:
        params, order = parameters(draw), draw.sample(FILTERS, len(FILTERS))
        logits = [x / 4096 for x in draw.sample(range(-16384, 16384), SIZE)]
        before = [draw.randrange(4) for _ in range(draw.randrange(24))]
        cases.append({"logits": logits, "params": params, "order": order, "before": before})
        cases[-1]["left"] = left(vocab, logits, params, order, before)
    with open(out, "w") as file:
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        file.write(f'{{"by": "llama.cpp (llama-cpp-python {lib.__version__})", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
