"""One request: submitted, polled, ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from . import _header as header
from ._convert import fill, initializer, reader
from ._error import Error
from ._hook import Hook
from ._library import c_text, call, ffi, lib, prepared

if TYPE_CHECKING:
    from ._engine import Engine

EVENT_SIZE = ffi.sizeof("bn_event")
#: Milliseconds that Ctrl-C may wait for a blocking call of the main thread.
INTERRUPT_MS = 100


class Output(header.Event):
    """New text and tokens, or the end of a request."""

    @property
    def reason(self) -> str:
        """`finish_reason` in a word: stop, stop_string, length, cancelled, timed_out, failed, embedding, none."""
        return c_text(lib.bn_finish_reason_name(self.finish_reason))

    @property
    def last(self) -> bool:
        return self.kind == header.EVENT_COMPLETED


read_output = reader("bn_event", Output)
read_info = reader("bn_request_info", header.RequestInfo)


def joined(events: list[Output]) -> Output:
    """All events of a request as one, as `no_stream` would return it."""
    if not events:
        raise RuntimeError("the stream was closed or read before")
    if len(events) == 1:
        return events[0]
    return events[-1]._replace(
        text="".join(event.text for event in events),
        tokens=[token for event in events for token in event.tokens],
        logprobs=[entry for event in events for entry in event.logprobs],
        reasoning="".join(event.reasoning for event in events),
        tool_calls=_whole(events),
    )


def _whole(events: list[Output]) -> list[header.ToolCall]:
    """The parts of each call as one."""
    calls: list[header.ToolCall] = []
    before = 0
    for event in events:
        for part in event.tool_calls:
            if calls and calls[-1].index == part.index:
                calls[-1] = calls[-1]._replace(arguments=calls[-1].arguments + part.arguments)
            else:
                calls.append(part._replace(text_before=before + part.text_before))
        before += len(event.text.encode())
    return calls


class Request:
    """The base class of streams. A request that is dropped before its end is cancelled."""

    _id: Any = (0,)  # where bn_submit writes it
    _ended = False
    _hook: Hook | None = None

    def __init__(
        self, engine: Engine, prompt: str | None, options: header.RequestOptions, flags: int = 0, key: int = 0
    ) -> None:
        self._id = ffi.new("bn_request *")  # a signal may come between the submit and the next line
        self._engine = engine
        params = prepared("bn_request_params")
        function = options.pop("on_logits", None)
        kept = fill(params, options, header.RequestOptions)
        if prompt is not None:
            params.prompt = initializer(ffi.typeof("bn_string"), prompt, kept)
        params.flags |= flags
        params.user_data = key
        if function is not None:
            self._hook = Hook(function)
            self._hook.set(params)
        call(lib.bn_submit, engine._handle, params, self._id)

    @property
    def id(self) -> int:
        number: int = self._id[0]
        return number

    def info(self) -> header.RequestInfo:
        """The stage of the request. Not for busy loops."""
        out = prepared("bn_request_info")
        call(lib.bn_request_get_info, self._engine._handle, self.id, out)
        return read_info(out[0])

    def cancel(self) -> None:
        """Asks for the end: the stream's last event comes soon. Does nothing if it has ended."""
        lib.bn_cancel(self._engine._handle, self.id, ffi.NULL)

    def close(self) -> None:
        """Ends the stream at once, and frees its place. A live request is cancelled."""
        self._ended = True
        if self.id:
            lib.bn_request_free(self._engine._handle, self.id, ffi.NULL)
        if self._hook is not None:
            self._hook.close()

    def __del__(self) -> None:
        Request.close(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled: it belongs to this process")

    def _passed(self, event: Output) -> Output:
        """Returns the event; raises an error if it says that the request failed."""
        if event.last:
            self.close()
            if event.finish_reason == header.FINISH_FAILED:
                if self._hook is not None and self._hook.raised is not None:
                    raise self._hook.raised
                raise Error.of(event.status, event.message)
        return event


class Stream(Request, Iterator[Output]):
    """Events of a request, which one thread at a time waits for."""

    def __init__(self, engine: Engine, prompt: str | None, options: header.RequestOptions, flags: int = 0) -> None:
        self._room = ffi.new("bn_event *")
        self._count = ffi.new("size_t *")
        super().__init__(engine, prompt, options, flags | header.REQUEST_POLL_BY_ID)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Output:
        if self._ended:
            raise StopIteration
        main = threading.current_thread() is threading.main_thread()
        event = None
        while event is None:
            event = self._poll(INTERRUPT_MS if main else header.NO_LIMIT)
        return self._passed(event)

    def result(self) -> Output:
        """All that is left of the stream as one event."""
        return joined(list(self))

    def _poll(self, timeout_ms: int) -> Output | None:
        handle = self._engine._handle
        with self._engine._readers:
            call(lib.bn_poll, handle, self.id, self._room, EVENT_SIZE, 1, timeout_ms, self._count)
            if self._count[0] == 0:
                return None
            event = read_output(self._room[0])
            lib.bn_events_free(self._room, EVENT_SIZE, 1)
        return event
