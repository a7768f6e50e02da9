"""Values of options that are more than numbers and texts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Callable, Protocol, Union


class HasSchema(Protocol):
    """A class with a JSON schema, such as pydantic's models."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...


#: JSON as a text, or a mapping that becomes a JSON object.
Json = Union[str, Mapping[str, Any]]
#: The same, or a class that has a schema.
Schema = Union[Json, type[HasSchema]]
#: Receives the prompt's tokens, the tokens generated so far, and the logits, which it may change in place.
LogitsHook = Callable[["array[int]", "array[int]", "array[float]"], object]
