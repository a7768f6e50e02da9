"""Values of options that are more than numbers and texts."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Protocol, Union


class HasSchema(Protocol):
    """A class with a JSON schema, such as pydantic's models."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...


class Pixels(NamedTuple):
    """A picture as bytes of red, green and blue for each pixel, line by line from the top."""

    width: int
    height: int
    #: Bytes, or what has them in one piece, as an array of numpy.
    rgb: Any


#: The bytes of a PNG, a JPEG, a WebP or a GIF, whose first frame counts; the path of such a file; or pixels.
Picture = Union[bytes, bytearray, memoryview, str, "os.PathLike[str]", Pixels]
#: JSON as a text, or a mapping that becomes a JSON object.
Json = Union[str, Mapping[str, Any]]
#: The same, or a class that has a schema.
Schema = Union[Json, type[HasSchema]]
#: Receives the prompt's tokens, the tokens generated so far, and the logits, which it may change in place.
LogitsHook = Callable[["array[int]", "array[int]", "array[float]"], object]
