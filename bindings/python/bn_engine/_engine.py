"""Engines: requests, streams, statistics, sessions."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable

from . import _decide, _score
from . import _header as header
from ._async import OVER, AsyncStream, Inbox
from ._convert import fill, reader, string
from ._convert import picture as raw_picture
from ._decide import Decided
from ._error import Error
from ._library import Owned, call, explained, ffi, lib, prepared, written
from ._model import Model, log
from ._request import Output, Stream
from ._score import Score

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import Picture

read_stats = reader("bn_stats", header.Stats)
read_kv_event = reader("bn_kv_event", header.KvEvent)
#: Number of prefix cache changes that are read at once.
ROOM = 256


class Readers:
    """Counts the threads that read polled events. The engine frees those. It has no lock, which a fork may copy."""

    def __init__(self) -> None:
        self._inside: list[int] = []
        self._closed = False
        #: A call that a signal handler has postponed because its own thread was inside.
        self.postponed: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self._inside.append(threading.get_ident())
        if self._closed:
            self._inside.remove(threading.get_ident())
            raise header.ShutdownError("the engine is closed")

    def __exit__(self, *_: object) -> None:
        self._inside.remove(threading.get_ident())
        if self.postponed is not None and not self.has_this_thread():
            postponed, self.postponed = self.postponed, None
            postponed()

    def has_this_thread(self) -> bool:
        return threading.get_ident() in self._inside

    def close(self) -> None:
        """Waits for the threads inside. All requests have ended, so they do not block."""
        self._closed = True
        while self._inside:
            time.sleep(0.001)


def _destroy(handle: Any, readers: Readers, inbox: Inbox) -> None:
    if lib.bn_engine_shutdown(handle, header.SHUTDOWN_CANCEL, ffi.NULL) == header.ERR_FORKED:
        return
    if readers.has_this_thread():
        readers.postponed = functools.partial(_destroy, handle, readers, inbox)
        return
    status = 0
    while status not in OVER:
        status = inbox.take(handle, header.NO_LIMIT)
        if status == header.ERR_REENTRANT:  # closed, or collected as garbage, while a callback runs
            threading.Thread(target=_destroy, args=(handle, readers, inbox)).start()
            return
    readers.close()
    lib.bn_engine_free(handle)


class Engine(Owned):
    """Runs all requests on one model together. From any thread, and from any number of asyncio loops."""

    model: Model

    def __init__(
        self, model: Model | str | os.PathLike[str] | None = None, **options: Unpack[header.EngineOptions]
    ) -> None:
        """`model` is a model, or what `Model` takes as its path."""
        self.model = model if isinstance(model, Model) else Model(model)
        self._draft_model = options.get("draft_model")  # whose bytes are used in place
        config = prepared("bn_engine_config")
        kept = fill(config, options, header.EngineOptions)
        config.model, config.log = self.model._handle, log
        out = ffi.new("bn_engine **")
        call(lib.bn_engine_create, config, out)
        del kept
        self._handle = out[0]
        self._readers, self._inbox = Readers(), Inbox()
        self._free = weakref.finalize(self, _destroy, self._handle, self._readers, self._inbox)

    def generate(self, prompt: str | None = None, **options: Unpack[header.RequestOptions]) -> Output:
        """Waits for the whole answer. If it was cancelled or timed out, returns the output so far."""
        with Stream(self, prompt, options, header.REQUEST_NO_STREAM) as stream:
            return stream.result()

    def stream(self, prompt: str | None = None, **options: Unpack[header.RequestOptions]) -> Stream:
        """Submits a request. Iterate over its events, or wait for `result()`."""
        return Stream(self, prompt, options)

    def embed(self, prompt: str | None = None, **options: Unpack[header.RequestOptions]) -> array[float]:
        with Stream(self, prompt, {**options, "task": header.TASK_EMBED}) as stream:
            return _vector(stream.result())

    async def agenerate(self, prompt: str | None = None, **options: Unpack[header.RequestOptions]) -> Output:
        async with AsyncStream(self, prompt, options, header.REQUEST_NO_STREAM) as stream:
            return await stream.result()

    def astream(self, prompt: str | None = None, **options: Unpack[header.RequestOptions]) -> AsyncStream:
        """Submits a request of the running loop. Use `async for`, or await `result()`."""
        return AsyncStream(self, prompt, options)

    async def aembed(self, prompt: str | None = None, **options: Unpack[header.RequestOptions]) -> array[float]:
        async with AsyncStream(self, prompt, {**options, "task": header.TASK_EMBED}) as stream:
            return _vector(await stream.result())

    def score(self, prompt: str, continuations: Iterable[str], **options: Unpack[header.RequestOptions]) -> list[Score]:
        """How likely each text is after the prompt, which is computed once. Nothing is generated. All are submitted
        at once."""
        requests = _score.requests(self.model, prompt, continuations, options)
        with contextlib.ExitStack() as stack:  # ends the remaining ones if one fails
            streams = [stack.enter_context(Stream(self, None, request)) for request in requests]
            return [_score.read(stream.result()) for stream in streams]

    async def ascore(
        self, prompt: str, continuations: Iterable[str], **options: Unpack[header.RequestOptions]
    ) -> list[Score]:
        requests = _score.requests(self.model, prompt, continuations, options)
        async with contextlib.AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(AsyncStream(self, None, request)) for request in requests]
            return [_score.read(await stream.result()) for stream in streams]

    def rerank(self, query: str, documents: Iterable[str], **options: Unpack[header.RequestOptions]) -> list[float]:
        """How relevant each document is to the query, within 0 and 1, by a model with a head for that
        (`info.scores_pairs`). All are submitted at once."""
        with contextlib.ExitStack() as stack:
            requests = _pairs(documents, options)
            streams = [stack.enter_context(Stream(self, query, request)) for request in requests]
            return [_vector(stream.result())[0] for stream in streams]

    async def arerank(
        self, query: str, documents: Iterable[str], **options: Unpack[header.RequestOptions]
    ) -> list[float]:
        async with contextlib.AsyncExitStack() as stack:
            requests = _pairs(documents, options)
            streams = [await stack.enter_async_context(AsyncStream(self, query, request)) for request in requests]
            return [_vector(await stream.result())[0] for stream in streams]

    def decide(
        self,
        prompt: str | None,
        questions: Sequence[header.Question],
        /,
        **options: Unpack[header.RequestOptions],
    ) -> list[Decided]:
        """The answers to questions about the prompt, which is computed once. Nothing is generated."""
        request: header.RequestOptions = {**options, "questions": questions, "task": header.TASK_DECIDE}
        with Stream(self, prompt, request) as stream:
            return _decide.read(stream.result())

    async def adecide(
        self,
        prompt: str | None,
        questions: Sequence[header.Question],
        /,
        **options: Unpack[header.RequestOptions],
    ) -> list[Decided]:
        request: header.RequestOptions = {**options, "questions": questions, "task": header.TASK_DECIDE}
        async with AsyncStream(self, prompt, request) as stream:
            return _decide.read(await stream.result())

    def picture_positions(self, picture: Picture) -> int:
        """The number of positions that a picture takes in a prompt."""
        kept: list[Any] = []
        out = ffi.new("uint64_t *")
        call(lib.bn_picture_positions, self._handle, raw_picture(picture, kept), out)
        return int(out[0])

    def check_constraint(self, **constraint: Unpack[header.ConstraintOptions]) -> None:
        """Compiles a constraint as a request does, and keeps it for later requests. Raises an error if it is wrong."""
        params = prepared("bn_request_params")
        kept = fill(params, constraint, header.ConstraintOptions)
        call(lib.bn_engine_check_constraint, self._handle, ffi.addressof(params.constraint))
        del kept

    def cancel_all(self) -> None:
        call(lib.bn_cancel, self._handle, header.ANY)

    def shutdown(self, *, drain: bool = True) -> None:
        """Accepts no more requests, and finishes or cancels accepted ones. Returns at once; `state` shows the end."""
        call(lib.bn_engine_shutdown, self._handle, header.SHUTDOWN_DRAIN if drain else header.SHUTDOWN_CANCEL)

    def pause(self) -> None:
        """Waits for the running step. No other begins until `resume`. Requests may be submitted and wait meanwhile."""
        call(lib.bn_engine_pause, self._handle)

    def resume(self) -> None:
        """Ends a pause; requests go on where they were."""
        call(lib.bn_engine_resume, self._handle)

    def set_threads(self, threads: int) -> None:
        """Computes on `threads` threads from the next step on: 1 to the option `threads`, or 0 for all of them."""
        call(lib.bn_engine_set_threads, self._handle, threads)

    @property
    def state(self) -> int:
        """`STATE_*`"""
        out = ffi.new("uint32_t *")
        explained(lib.bn_engine_state(self._handle, out))
        return int(out[0])

    def stats(self) -> header.Stats:
        out = prepared("bn_stats")
        call(lib.bn_engine_stats, self._handle, out)
        return read_stats(out[0])

    def metrics(self) -> str:
        """The statistics as Prometheus text."""
        return written("char", lib.bn_engine_metrics, self._handle).decode()

    def report(self) -> str:
        """A readable report on the engine's efficiency."""
        return written("char", lib.bn_engine_report, self._handle).decode()

    def kv_events(self) -> list[header.KvEvent]:
        """The changes of the prefix cache since the last call. Needs `kv_events_capacity`."""
        events: list[header.KvEvent] = []
        room, count = ffi.new("bn_kv_event[]", ROOM), ffi.new("size_t *", ROOM)
        while count[0] == ROOM:
            call(lib.bn_kv_events, self._handle, room, ffi.sizeof("bn_kv_event"), ROOM, count)
            events += [read_kv_event(room[i]) for i in range(count[0])]
        return events

    def cache_clear(self) -> None:
        """Forgets every prefix that is not in use."""
        call(lib.bn_cache_clear, self._handle)

    def session_free(self, name: str) -> None:
        """Forgets a session. Waits for the end of a step."""
        kept: list[Any] = []
        call(lib.bn_session_free, self._handle, string(name, kept))

    def session_save(self, name: str) -> bytes:
        kept: list[Any] = []
        return written("uint8_t", lib.bn_session_save, self._handle, string(name, kept))

    def session_restore(self, name: str, data: bytes) -> None:
        """Restores a session. `data` must be from `session_save`, and protected from others."""
        kept: list[Any] = []
        call(lib.bn_session_restore, self._handle, string(name, kept), ffi.from_buffer("uint8_t[]", data), len(data))

    def _take(self) -> bool:
        """Takes the events of asynchronous streams. False: none will come any more."""
        try:
            with self._readers:
                return self._inbox.take(self._handle, 0) not in OVER
        except header.ShutdownError:
            return False


def _vector(event: Output) -> array[float]:
    if event.finish_reason != header.FINISH_EMBEDDING:
        raise Error.of(event.status, event.message)
    return event.embedding


def _pairs(documents: Iterable[str], options: header.RequestOptions) -> Iterator[header.RequestOptions]:
    for document in documents:
        yield {**options, "document": document, "task": header.TASK_RERANK}
