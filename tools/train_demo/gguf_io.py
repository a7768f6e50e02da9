"""A small GGUF v3 writer and reader: the few tensor types that the demo and the references use.

Our own because the gguf package does not know I2_S (type 36).
"""

import struct

import numpy as np

F32, F16, Q8_0, BF16, TQ2_0, I2_S = 0, 1, 8, 30, 35, 36
ALIGN = 32

# metadata value types
U8, I8, U16, I16, U32, I32, FLT, BOOL, STR, ARR, U64, I64, DBL = range(13)
_FMT = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", FLT: "<f", BOOL: "<?", U64: "<Q", I64: "<q", DBL: "<d"}


# ---------------------------------------------------------------- tensor types


def pack_i2_s(codes, scale):
    """codes: int8 in {-1, 0, 1}, row-major; 128 elements to 32 bytes, then one f32 scale in 32 bytes."""
    q = (codes.reshape(-1, 4, 32) + 1).astype(np.uint8)
    b = q[:, 0] << 6 | q[:, 1] << 4 | q[:, 2] << 2 | q[:, 3]
    return b.tobytes() + struct.pack("<f", scale) + bytes(28)


def unpack_i2_s(raw, n):
    b = np.frombuffer(raw, np.uint8, n // 4).reshape(-1, 1, 32)
    codes = (b >> np.array([6, 4, 2, 0], np.uint8)[None, :, None] & 3).astype(np.int8) - 1
    return codes.reshape(-1), struct.unpack_from("<f", raw, n // 4)[0]


def pack_tq2_0(codes, scale):
    """256 elements: two halves of 32 bytes, low bits first, then the scale as f16."""
    q = (codes.reshape(-1, 2, 4, 32) + 1).astype(np.uint8)
    b = (q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6).reshape(-1, 64)
    d = np.full((len(b), 1), scale, "<f2").view(np.uint8).reshape(-1, 2)
    return np.concatenate([b, d], 1).tobytes()


def unpack_tq2_0(raw, n):
    b = np.frombuffer(raw, np.uint8).reshape(-1, 66)
    q = b[:, :64].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None] & 3
    d = b[:, 64:].copy().view("<f2").astype(np.float32)
    return ((q.astype(np.int8) - 1).reshape(-1, 256) * d).reshape(-1)[:n].astype(np.float32)


def pack_q8_0(x):
    b = x.astype(np.float32).reshape(-1, 32)
    d = (np.abs(b).max(1, keepdims=True) / 127).astype("<f2")
    inv = np.divide(1.0, d.astype(np.float32), out=np.zeros_like(d, np.float32), where=d != 0)
    q = np.clip(np.rint(b * inv), -127, 127).astype(np.int8)
    return np.concatenate([d.view(np.uint8).reshape(-1, 2), q.view(np.uint8)], 1).tobytes()


def unpack_q8_0(raw):
    b = np.frombuffer(raw, np.uint8).reshape(-1, 34)
    d = b[:, :2].copy().view("<f2").astype(np.float32)
    return (b[:, 2:].copy().view(np.int8).astype(np.float32) * d).reshape(-1)


def pack_bf16(x):
    """Round to nearest even."""
    u = x.astype("<f4").view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2").tobytes()


def unpack_bf16(raw):
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


def pack(x, kind):
    """x: a float array, (codes, scale) for the ternary types, or what this returns: (raw, shape)."""
    if isinstance(x, tuple) and isinstance(x[0], bytes):
        return x
    if kind in (I2_S, TQ2_0):
        codes, scale = x
        return (pack_i2_s if kind == I2_S else pack_tq2_0)(codes, scale), codes.shape
    fn = {F32: lambda a: a.astype("<f4").tobytes(), F16: lambda a: a.astype("<f2").tobytes(), BF16: pack_bf16, Q8_0: pack_q8_0}
    return fn[kind](x), x.shape


def size_of(kind, n):
    return {F32: 4 * n, F16: 2 * n, BF16: 2 * n, Q8_0: n // 32 * 34, TQ2_0: n // 256 * 66, I2_S: n // 4 + 32}[kind]


def unpack(raw, kind, n):
    """The values as f32."""
    if kind == I2_S:
        codes, scale = unpack_i2_s(raw, n)
        return codes.astype(np.float32) * np.float32(scale)
    if kind == TQ2_0:
        return unpack_tq2_0(raw, n)
    fn = {F32: lambda r: np.frombuffer(r, "<f4"), F16: lambda r: np.frombuffer(r, "<f2").astype(np.float32),
          BF16: unpack_bf16, Q8_0: unpack_q8_0}
    return fn[kind](raw)


# ---------------------------------------------------------------- files


def _string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def _value(kind, v):
    if kind == STR:
        return _string(v)
    if kind == ARR:
        item, values = v
        return struct.pack("<IQ", item, len(values)) + b"".join(_value(item, x) for x in values)
    return struct.pack(_FMT[kind], v)


def write(path, metadata, tensors):
    """metadata: [(key, type, value)], arrays as (ARR, (item type, values)); tensors: [(name, type, x)] as for pack."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, kind, v in metadata:
        head += _string(key) + struct.pack("<I", kind) + _value(kind, v)
    data = b""
    for name, kind, x in tensors:
        raw, shape = pack(x, kind)
        head += _string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % ALIGN)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGN) + data)


def read(path):
    """(metadata as a dict, {name: f32 array}, {name: type})"""
    b = open(path, "rb").read()
    at = 0

    def take(fmt):
        nonlocal at
        v = struct.unpack_from(fmt, b, at)
        at += struct.calcsize(fmt)
        return v[0] if len(v) == 1 else v

    def string():
        nonlocal at
        n = take("<Q")
        at += n
        return b[at - n:at].decode()

    def value(kind):
        if kind == STR:
            return string()
        if kind == ARR:
            item, n = take("<IQ")
            return [value(item) for _ in range(n)]
        return take(_FMT[kind])

    magic, version, n_tensors, n_meta = take("<4sIQQ")
    assert magic == b"GGUF" and version == 3
    meta = {}
    for _ in range(n_meta):
        key = string()
        meta[key] = value(take("<I"))
    infos = []
    for _ in range(n_tensors):
        name, dims = string(), take("<I")
        shape = tuple(take("<Q") for _ in range(dims))[::-1]
        kind, offset = take("<IQ")
        infos.append((name, shape, kind, offset))
    base = at + -at % ALIGN
    values, kinds = {}, {}
    for name, shape, kind, offset in infos:
        n = int(np.prod(shape))
        raw = b[base + offset:base + offset + size_of(kind, n)]
        values[name], kinds[name] = unpack(raw, kind, n).reshape(shape), kind
    return meta, values, kinds
