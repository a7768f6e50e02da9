"""The hashes of a prompt's KV blocks, as the engine reports them in KV events."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from xxhash import xxh64_intdigest


def hashes(tokens: Sequence[int], size: int, salt: int = 0) -> list[int]:
    """One hash for each full block of `size` tokens. Each depends on the blocks before it."""
    found = []
    for start in range(0, len(tokens) - size + 1, size):
        salt = xxh64_intdigest(array("I", tokens[start : start + size]).tobytes(), salt)
        found.append(salt)
    return found
