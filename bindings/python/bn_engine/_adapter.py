"""LoRA adapters of an engine."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from ._convert import string
from ._library import Owned, call, explained, ffi, lib

if TYPE_CHECKING:
    from ._engine import Engine


class Adapter(Owned):
    """A PEFT folder or a GGUF file of llama.cpp, for requests of this engine. Requests that use it keep it."""

    def __init__(self, engine: Engine, path: str | os.PathLike[str]) -> None:
        kept: list[Any] = []
        out = ffi.new("bn_adapter **")
        call(lib.bn_adapter_open, engine._handle, string(path, kept), out)
        self._handle = out[0]
        self._free = weakref.finalize(self, lib.bn_adapter_free, self._handle)

    @property
    def fingerprint(self) -> int:
        """A hash of the contents, the same in each engine that opens them."""
        out = ffi.new("uint64_t *")
        explained(lib.bn_adapter_fingerprint(self._handle, out))
        return int(out[0])
