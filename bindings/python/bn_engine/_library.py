"""The shared library, and how to call it."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from typing import Any, Callable, NoReturn, TypeVar

from cffi import FFI

from . import _header as header
from ._error import Error

T = TypeVar("T", bound="Owned")

ffi = FFI()
ffi.cdef(header.CDEF)
LIBRARY = {"win32": "bn_engine.dll", "darwin": "libbn_engine.dylib"}.get(sys.platform, "libbn_engine.so")
lib: Any = ffi.dlopen(str(Path(__file__).with_name(LIBRARY)))
if lib.bn_abi_version() != header.ABI_VERSION:
    raise ImportError(f"bn_engine: the library has ABI {lib.bn_abi_version()}, not {header.ABI_VERSION}")


def version() -> str:
    return c_text(lib.bn_version())


def c_text(pointer: Any) -> str:
    """NUL-terminated text."""
    text: bytes = ffi.string(pointer)  # type: ignore[assignment,unused-ignore]
    return text.decode()


def new_error() -> Any:
    return ffi.new("bn_error *")


def checked(status: int, error: Any) -> int:
    if status < 0:
        raise Error.of(status, c_text(error.message))
    return status


def explained(status: int) -> None:
    """Raises an error for the status of a function without a `bn_error *`."""
    if status < 0:
        raise Error.of(status, c_text(lib.bn_status_message(status)))


def call(function: Callable[..., int], *arguments: object) -> int:
    """Calls a function whose last parameter is a `bn_error *`."""
    error = new_error()
    return checked(function(*arguments, error), error)


def prepared(struct: str) -> Any:
    """A pointer to a new struct of this name with its defaults."""
    value = ffi.new(f"{struct} *")
    getattr(lib, f"{struct}_init")(value, ffi.sizeof(struct))
    return value


def written(element: str, function: Callable[..., int], *arguments: object) -> bytes:
    """The result of a function that writes to a buffer and returns the needed size."""
    error, count, buffer = new_error(), ffi.new("size_t *"), ffi.NULL
    status = function(*arguments, buffer, 0, count, error)
    while status == header.ERR_BUFFER_TOO_SMALL:
        buffer = ffi.new(f"{element}[]", count[0])
        status = function(*arguments, buffer, count[0], count, error)
    checked(status, error)
    return bytes(ffi.buffer(buffer, count[0] * ffi.sizeof(element))) if buffer else b""


class Owned:
    """A handle that is freed once: by `close`, `with`, the end of the last reference, or at exit."""

    _handle: Any
    _free: weakref.finalize[..., Any]

    def close(self) -> None:
        self._free()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled: it belongs to this process")
