"""Makes tests/golden/quants/: tensors of GGUF's types and their decoded values, bit for bit.

  python quants.py

Each `<name>.bin` holds, one after the other, the tensor as a file has it and its elements: as f32, or as int8 that are
multiplied with the case's scale. Names, shapes and lengths stand in `quants.json`. What the package `gguf` can decode is decoded by it. The others follow public layouts:
Q1_0 and Q2_0 of ggml (ggml-quants.c), PQ2_0 and PTQ1_0 of PrismML's llama.cpp (ggml-quants.c), IQ1_BN and IQ2_BN of ik_llama.cpp (iqk_quantize.cpp), TL1 and TL2 of bitnet.cpp
(utils/convert-hf-to-gguf-bitnet.py), Hugging Face's packed uint8 (transformers, integrations/bitnet.py).
"""

import json
import os

import gguf
import numpy as np
from gguf import quants

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(os.path.dirname(os.path.dirname(HERE)), "tests", "golden", "quants")
RNG = np.random.default_rng(20)
F16, U8 = np.float16, np.uint8
cases = []


def save(name, kind, shape, packed, values, **more):
    packed = np.ascontiguousarray(packed).view(U8).reshape(-1)
    values = np.ascontiguousarray(values, dtype="i1" if "scale" in more else "<f4").reshape(-1)
    assert values.size == shape[0] * shape[1] and np.isfinite(values).all()
    with open(os.path.join(OUT, name + ".bin"), "wb") as f:
        f.write(packed.tobytes() + values.tobytes())
    cases.append({"name": name, "type": int(kind), "rows": shape[0], "cols": shape[1], "bytes": packed.size, **more})


# ---------------------------------------------------------------- types that gguf decodes

# The offsets of a block's f16 scales. All other bytes are arbitrary.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "TQ1_0": [52], "TQ2_0": [64],
}
# Made last, so that the bytes of the other types do not change.
LATER = {"IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
LAST = {"IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0]}
ODD = [0.0, -0.0, 6e-8, -3e-5, 1.0, -1.0, 6e4]  # zeros, a subnormal and the ends of the range among the scales


def random_blocks(name, rows, cols):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n = rows * cols // block
    blocks = RNG.integers(0, 256, (n, size), dtype=U8)
    if name == "TQ2_0":  # the code 3 means nothing
        codes = RNG.integers(0, 3, (n, 64, 4), dtype=U8)
        blocks[:, :64] = (codes << np.array([0, 2, 4, 6], U8)).sum(-1, dtype=U8)
    for at in (SCALES | LATER | LAST)[name]:
        d = (RNG.standard_normal(n) * 0.02).astype(F16)
        some = RNG.permutation(n)[: len(ODD)]
        d[some] = np.array(ODD, F16)[RNG.permutation(len(ODD))][: some.size]
        blocks[:, at : at + 2] = d.view(U8).reshape(n, 2)
    if name == "MXFP4":  # an exponent
        blocks[:, 0] = np.concatenate([[0, 1, 2, 3, 252], RNG.integers(110, 130, n - 5)])
    return kind, blocks.reshape(rows, -1)


def known(names):
    for name in names:
        shape = (3, 512) if gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0] == 256 else (3, 224)
        kind, packed = random_blocks(name, *shape)
        save(name.lower(), kind, shape, packed, quants.dequantize(packed, kind))


# ---------------------------------------------------------------- others


def q1_0(rows=3, cols=384):
    d = (RNG.standard_normal((rows, cols // 128)) * 0.02).astype(F16)
    bits = RNG.integers(0, 2, (rows, cols // 128, 128), dtype=U8)
    packed = np.concatenate([d[..., None].view(U8), np.packbits(bits, axis=-1, bitorder="little")], -1)
    save("q1_0", 41, (rows, cols), packed, (bits.astype(np.float32) * 2 - 1) * d.astype(np.float32)[..., None])


def q2_0(rows=3, cols=320):
    d = (RNG.standard_normal((rows, cols // 64)) * 0.02).astype(F16)
    codes = RNG.integers(0, 4, (rows, cols // 64, 64), dtype=U8)
    q = codes.reshape(rows, -1, 16, 4)
    packed = np.concatenate([d[..., None].view(U8), q[..., 0] | q[..., 1] << 2 | q[..., 2] << 4 | q[..., 3] << 6], -1)
    save("q2_0", 42, (rows, cols), packed, (codes.astype(np.float32) - 1) * d.astype(np.float32)[..., None])


def pq2_0(rows=3, cols=384):
    d = (RNG.standard_normal((rows, cols // 128)) * 0.02).astype(F16)
    codes = RNG.integers(0, 4, (rows, cols // 128, 128), dtype=U8)
    q = codes.reshape(rows, -1, 32, 4)
    packed = np.concatenate([d[..., None].view(U8), q[..., 0] | q[..., 1] << 2 | q[..., 2] << 4 | q[..., 3] << 6], -1)
    save("pq2_0", 142, (rows, cols), packed, (codes.astype(np.float32) - 1) * d.astype(np.float32)[..., None])


def ptq1_0(rows=3, cols=384):
    d = (RNG.standard_normal((rows, cols // 128, 1)) * 0.02).astype(F16)
    t = trits(rows, cols).reshape(rows, -1, 128)
    stage = lambda at, each, count: t[..., at : at + each * count].reshape(rows, -1, each, count).swapaxes(2, 3)
    # The first element of a byte is its most significant digit; bytes of four leave the least significant one free.
    fives = [base3(stage(at, 5, count)[..., ::-1]) for at, count in ((0, 16), (80, 8))]
    four = np.pad(stage(120, 4, 2), ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=-1)
    packed = np.concatenate([*fives, base3(four[..., ::-1]), d.view(U8)], -1)
    save("ptq1_0", 143, (rows, cols), packed, t * d.astype(np.float32))


def trits(rows, cols):
    return RNG.integers(-1, 2, (rows, cols), dtype=np.int8)


def base3(t):
    """Trits along the last axis, the first the least significant digit, as a byte: 256/243 of the number, rounded up."""
    number = ((t.astype(np.int64) + 1) * 3 ** np.arange(t.shape[-1])).sum(-1)
    return ((256 * number + 242) // 243).astype(U8)


def iq1_bn(rows=5, cols=192):
    t = trits(rows, cols)
    d = (RNG.random((rows, 1)) * 0.1 + 0.01).astype(F16)
    x = t.reshape(rows, cols // 64, 4, 16)
    fives = base3(x[..., :15].reshape(rows, -1, 4, 3, 5)).reshape(rows, -1, 12)
    blocks = np.concatenate([fives, base3(x[..., 15])[..., None]], -1).reshape(rows, -1)
    save("iq1_bn", 134, (rows, cols), np.concatenate([d.view(U8), blocks], 1), t * d.astype(np.float32))


def iq2_bn(rows=5, cols=192):
    t = trits(rows, cols)
    d = (RNG.random((rows, 1)) * 0.1 + 0.01).astype("<f4")
    x = (t + 1).astype(U8).reshape(rows, -1, 4, 16)
    blocks = x[:, :, 0] | x[:, :, 1] << 2 | x[:, :, 2] << 4 | x[:, :, 3] << 6
    save("iq2_bn", 135, (rows, cols), np.concatenate([d.view(U8), blocks.reshape(rows, -1)], 1), t * d)


def i2_s(name, rows, cols):
    t, d = trits(rows, cols), np.float32(0.0371)
    x = (t + 1).astype(U8).reshape(-1, 4, 32)
    blocks = x[:, 0] << 6 | x[:, 1] << 4 | x[:, 2] << 2 | x[:, 3]
    tail = np.concatenate([np.array([d], "<f4").view(U8), np.zeros(28, U8)])
    save(name, 36, (rows, cols), np.concatenate([blocks.reshape(-1), tail]), t, scale=float(d))


def uint8(rows=12, cols=200):
    t, d = trits(rows, cols), np.float32(0.25)
    x = (t + 1).astype(U8).reshape(4, rows // 4, cols)
    save("uint8", 24, (rows, cols), x[0] | x[1] << 2 | x[2] << 4 | x[3] << 6, t, scale=float(d))


# ---------------------------------------------------------------- look-up tables


def tl1(t, bm, bk, lanes):
    """Pairs as 3a + b + 4, two per byte, tile by tile: a transposition of the tiled axes."""
    m, k = t.shape
    by = 256 // lanes
    pairs = t[:, 0::2].astype(int) * 3 + t[:, 1::2] + 4
    axes = pairs.reshape(m // bm, bm // lanes, lanes // 16, 16, k // bk, bk // by, by // 4, 2)
    two = axes.transpose(0, 4, 1, 5, 2, 6, 3, 7)
    return (two[..., 0] << 4 | two[..., 1]).astype(U8).reshape(-1)


def tl2(t, bm, bk):
    """Triples as |9a + 3b + c| with separate signs; columns after the last whole bk as pairs."""
    m, k = t.shape
    k3 = k // bk * bk
    x = t.astype(int)
    v = x[:, 0:k3:3] * 9 + x[:, 1:k3:3] * 3 + x[:, 2:k3:3]

    def nibbles(number, width, group):
        tiles = number.shape[1] * group // width
        axes = number.reshape(m // bm, bm // 32, 4, 8, tiles, width // (2 * group), 2)
        two = axes[:, :, [0, 2, 1, 3]].transpose(0, 4, 1, 5, 2, 3, 6)
        return (two[..., 0] << 4 | two[..., 1]).astype(U8).reshape(-1)

    signs = (v < 0).reshape(m // bm, bm // 32, 2, 16, k3 // bk, bk // 24, 8).transpose(0, 4, 1, 5, 3, 6, 2)
    bits = np.packbits(signs.reshape(-1, 16), axis=-1).reshape(-1, 2)[:, ::-1]  # 16 bits, little-endian
    pairs = x[:, k3::2] * 3 + x[:, k3 + 1 :: 2] + 4
    planes = np.concatenate([nibbles(abs(v), bk, 3), bits.reshape(-1), nibbles(pairs, 32, 2)])
    return np.pad(planes, (0, (k - 256) * m // 3 * 5 // 8 + 64 * m - planes.size))


def look_up_tables():
    scale = 0.0625
    for i, (m, k, bm, bk, lanes) in enumerate([(64, 96, 32, 32, 32), (128, 64, 64, 32, 64), (96, 64, 96, 64, 32)]):
        t = trits(m, k)
        save(f"tl1_{i}", 38, (m, k), tl1(t, bm, bk, lanes), t, tiling=[bm, bk, lanes], scale=scale)
    for i, (m, k, bm, bk) in enumerate([(32, 288, 32, 96), (64, 320, 32, 96), (64, 256, 64, 192)]):
        t = trits(m, k)
        save(f"tl2_{i}", 39, (m, k), tl2(t, bm, bk), t, tiling=[bm, bk, 32], scale=scale)


# ---------------------------------------------------------------- quantizers


def quantized():
    x = RNG.standard_normal((4, 512)).astype(np.float32) * 0.03
    x[1, :256] = 0
    x[2] = (RNG.integers(-1, 2, 512) * 0.75).astype(np.float32)
    x[3, 32:64] *= 1e-6
    x[3, 64:96] = np.linspace(-127, 127, 32)
    x[3, 96:128] = np.arange(32) / 2 - 4  # halves, and two of the largest magnitude
    for name in ["Q8_0", "Q4_0"]:
        kind = gguf.GGMLQuantizationType[name]
        save("to_" + name.lower(), kind, x.shape, quants.quantize(x, kind), x)
    x = (RNG.integers(-1, 2, (3, 512)) * 0.0371).astype(np.float32)
    x[2, 256:] = 0
    x[1] *= np.linspace(0.2, 1, 512, dtype=np.float32)
    kind = gguf.GGMLQuantizationType.TQ2_0
    save("to_tq2_0", kind, x.shape, quants.quantize(x, kind), x)


def main():
    os.makedirs(OUT, exist_ok=True)
    known(SCALES)
    q2_0()
    iq1_bn()
    iq2_bn()
    i2_s("i2_s", 3, 256)
    i2_s("i2_s_within", 6, 320)
    uint8()
    look_up_tables()
    quantized()
    q1_0()
    known(LATER)
    pq2_0()
    ptq1_0()
    known(LAST)
    with open(os.path.join(OUT, "quants.json"), "w") as f:
        f.write("[\n" + ",\n".join(" " + json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
