"""Models: tokenizer, chat template, weights for any number of engines."""

from __future__ import annotations

import logging
import os
import weakref
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Union

from . import _header as header
from ._convert import fill, initializer, reader, string, text
from ._library import Owned, call, ffi, lib, prepared, written

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import Json

    Conversation = Union[Sequence[header.ChatMessage], Json]

LEVELS = {
    header.LOG_ERROR: logging.ERROR,
    header.LOG_WARN: logging.WARNING,
    header.LOG_INFO: logging.INFO,
    header.LOG_DEBUG: logging.DEBUG,
}
read_info = reader("bn_model_info", header.ModelInfo)


@ffi.callback("bn_log_callback")  # type: ignore[untyped-decorator,unused-ignore]
def log(level: int, message: Any, _: object) -> None:
    """`log` of every model and engine."""
    logging.getLogger("bn_engine").log(LEVELS.get(level, logging.INFO), "%s", text(message))


class Model(Owned):
    """A GGUF file, a Hugging Face folder, "builtin:echo", or without a path the demo model in the library."""

    info: header.ModelInfo

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        data: bytes | None = None,
        progress: Callable[[float, str], object] | None = None,
        **options: Unpack[header.ModelOptions],
    ) -> None:
        """`data` has the bytes of a GGUF file. An exception of `progress` stops loading, and is raised here."""
        config = prepared("bn_model_config")
        kept = fill(config, options, header.ModelOptions)
        raised: list[BaseException] = []
        config.log = log
        if path is not None:
            config.path = initializer(ffi.typeof("bn_string"), path, kept)
        if data is not None:
            self._data = ffi.from_buffer(data)  # engines keep the model, and so the bytes
            config.data, config.data_size = self._data, len(data)
        if progress is not None:
            kept.append(_progress(progress, raised))
            config.progress = kept[-1]
        out = ffi.new("bn_model **")
        try:
            call(lib.bn_model_open, config, out)
        except header.CancelledError:
            raise raised[0] from None
        self._handle = out[0]
        self._free = weakref.finalize(self, lib.bn_model_free, self._handle)
        info = prepared("bn_model_info")
        call(lib.bn_model_get_info, self._handle, info)
        self.info = read_info(info[0])

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """`add_special` puts in front what submitting the text does (BOS); `parse_special` makes control tokens of
        those that are spelled out."""
        kept: list[Any] = []
        flags = header.TOKENIZE_ADD_SPECIAL * add_special | header.TOKENIZE_PARSE_SPECIAL * parse_special
        return _tokens(written("uint32_t", lib.bn_model_tokenize, self._handle, string(text, kept), flags))

    def detokenize(self, tokens: Sequence[int]) -> str:
        return written("char", lib.bn_model_detokenize, self._handle, list(tokens), len(tokens)).decode()

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of a token, which may be part of a character; a control token's name."""
        return written("char", lib.bn_model_token_bytes, self._handle, token)

    def chat_format(self, conversation: Conversation) -> str:
        """A conversation in the chat template's form, for display: messages, or JSON as in the option `chat_json`."""
        params, kept = _params(conversation)
        text = written("char", lib.bn_model_chat_format, self._handle, ffi.addressof(params.chat)).decode()
        del kept
        return text

    def chat_tokenize(self, conversation: Conversation) -> list[int]:
        """The token ids of a conversation, as submitting it makes them."""
        params, kept = _params(conversation)
        tokens = _tokens(written("uint32_t", lib.bn_model_chat_tokenize, self._handle, ffi.addressof(params.chat)))
        del kept
        return tokens


def _params(conversation: Conversation) -> tuple[Any, list[Any]]:
    params = prepared("bn_request_params")
    is_json = isinstance(conversation, (str, Mapping))
    options = {"chat_json" if is_json else "messages": conversation}
    return params, fill(params, options, header.RequestOptions)


def _tokens(data: bytes) -> list[int]:
    return array("I", data).tolist()


def _progress(progress: Callable[[float, str], object], raised: list[BaseException]) -> Any:
    def report(fraction: float, what: Any, _: object) -> int:
        progress(fraction, text(what))
        return 0

    return ffi.callback(
        "bn_progress_callback", report, error=1, onerror=lambda _, exception, __: raised.append(exception)
    )
