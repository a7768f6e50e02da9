"""`on_logits`: a function that changes a request's logits, called on threads of the engine."""

from __future__ import annotations

from array import array
from itertools import count
from typing import TYPE_CHECKING, Any

from ._library import ffi

if TYPE_CHECKING:
    from ._types import LogitsHook

_keys = count(1)
#: The hooks of live requests. The library has only their numbers, since a call may come after the request was freed.
_hooks: dict[int, Hook] = {}


class Hook:
    """The function of one request, and the exception that it raised."""

    raised: BaseException | None = None

    def __init__(self, function: LogitsHook) -> None:
        self._function = function
        self._key = next(_keys)
        _hooks[self._key] = self

    def set(self, params: Any) -> None:
        params.sampling.on_logits = _on_logits
        params.sampling.on_logits_context = ffi.cast("void *", self._key)

    def close(self) -> None:
        _hooks.pop(self._key, None)

    def call(self, row: Any) -> None:
        """Calls the function with copies, which it may keep."""
        logits = array("f", ffi.buffer(row.logits, 4 * row.vocab_size)[:])
        self._function(
            _ids(row.prompt_tokens, row.prompt_tokens_count), _ids(row.output_tokens, row.output_tokens_count), logits
        )
        if len(logits) != row.vocab_size:
            raise ValueError(f"on_logits has made {len(logits)} logits of {row.vocab_size}")
        ffi.memmove(row.logits, logits, 4 * row.vocab_size)


def _ids(tokens: Any, count: int) -> array[int]:
    return array("I", ffi.buffer(tokens, 4 * count)[:] if count else b"")


@ffi.callback("bn_logits_callback")  # type: ignore[untyped-decorator,unused-ignore]
def _on_logits(row: Any, context: Any) -> int:
    hook = _hooks.get(int(ffi.cast("uintptr_t", context)))
    if hook is None:
        return 0
    try:
        hook.call(row)
    except BaseException as error:
        hook.raised = error
        return 1
    return 0
