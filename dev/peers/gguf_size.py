"""Bytes read and multiplications of a step of a GGUF model, from the file's header alone."""

import struct

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
ALIGNMENT = 32
USED, EXPERTS = 8, 256  # experts of a row, and all: synth makes no other number
FLOATS = {0, 1, 30}  # F32, F16, BF16: multiplied as floats; the others can be as int8


class Header:
    def __init__(self, path):
        self.file = open(path, "rb")
        magic, version, tensors, pairs = struct.unpack("<4sIQQ", self.file.read(24))
        assert magic == b"GGUF" and version == 3, path
        for _ in range(pairs):
            self.text()
            self.skip(self.number("<I"))
        self.tensors = sorted((self.tensor() for _ in range(tensors)), key=lambda t: t[3])
        start = -(-self.file.tell() // ALIGNMENT) * ALIGNMENT
        self.end = self.file.seek(0, 2) - start
        self.file.close()

    def number(self, kind):
        return struct.unpack(kind, self.file.read(struct.calcsize(kind)))[0]

    def text(self):
        return self.file.read(self.number("<Q")).decode()

    def skip(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            if inner in SCALARS:
                self.file.seek(count * SCALARS[inner], 1)
            else:
                for _ in range(count):
                    self.skip(inner)
        else:
            self.file.seek(SCALARS[kind], 1)

    def tensor(self):
        name = self.text()
        dims = [self.number("<Q") for _ in range(self.number("<I"))]
        return name, dims, self.number("<I"), self.number("<Q")


def step(path):
    """{"bytes": of all matrices but experts, "experts": bytes of all experts, "layers": {kind: multiplications a token},
    "head": the same for the head}; kind is "int8" or "f32". A tensor ends where the next one begins. The table of embeddings
    is the head where there is no other."""
    header = Header(path)
    ends = [t[3] for t in header.tensors[1:]] + [header.end]
    out = {"bytes": 0, "experts": 0, "layers": {"int8": 0, "f32": 0}, "head": {"int8": 0, "f32": 0}}
    untied = any(name == "output.weight" for name, *_ in header.tensors)
    for (name, dims, kind, start), end in zip(header.tensors, ends):
        if len(dims) == 3:
            out["experts"] += end - start
            out["layers"]["f32" if kind in FLOATS else "int8"] += dims[0] * dims[1] * USED
        elif len(dims) == 2 and not (untied and name == "token_embd.weight"):
            out["bytes"] += end - start
            part = "head" if name in ("token_embd.weight", "output.weight") else "layers"
            out[part]["f32" if kind in FLOATS else "int8"] += dims[0] * dims[1]
    return out
