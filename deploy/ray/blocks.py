"""The hashes of a prompt's KV blocks, as the engine tells them in its KV events."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from xxhash import xxh64_intdigest


def hashes(tokens: Sequence[int], size: int, salt: int = 0) -> list[int]:
    """One for each full block of `size` tokens, of which each depends on those before it."""
    found = []
    for start in range(0, len(tokens) - size + 1, size):
        salt = xxh64_intdigest(array("I", tokens[start : start + size]).tobytes(), salt)
        found.append(salt)
    return found
