"""The base of all errors of the library. `_header` has one class for each status."""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """A call or a request failed. The message says why."""

    #: As in the C header: `BN_ERR_QUEUE_FULL`
    name: ClassVar[str]
    #: `ERR_QUEUE_FULL`
    status: ClassVar[int]
    _classes: ClassVar[dict[int, type[Error]]] = {}

    def __init_subclass__(cls) -> None:
        Error._classes[cls.status] = cls

    @staticmethod
    def of(status: int, message: str) -> Error:
        return Error._classes[status](message)

    @property
    def message(self) -> str:
        return str(self)
