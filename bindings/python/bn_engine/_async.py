"""Requests in asyncio: the loop waits on the engine's descriptor and passes events to their streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator
from itertools import count
from typing import TYPE_CHECKING

from . import _header as header
from ._library import call, ffi, lib
from ._request import EVENT_SIZE, Output, Request, joined, read_output

if TYPE_CHECKING:
    from ._engine import Engine

#: Maximum number of events of one poll.
ROOM = 64
#: After these statuses no event will come.
OVER = (header.ERR_SHUTDOWN, header.ERR_ENGINE_DEAD, header.ERR_INVALID_ARGUMENT, header.ERR_FORKED)


class AsyncStream(Request, AsyncIterator[Output]):
    """Events of a request, in the loop that it was made in. It ends if a task that waits for it is cancelled."""

    def __init__(self, engine: Engine, prompt: str | None, options: header.RequestOptions, flags: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Output] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._engine = engine
        super().__init__(engine, prompt, options, flags, engine._inbox.add(self))

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def __anext__(self) -> Output:
        if self._waiter is not None:
            raise RuntimeError("another task waits for this stream")
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.close()
                raise
            finally:
                self._waiter = None
        # As in a poll, everything since the last event, for slow readers.
        return self._passed(joined([self._events.popleft() for _ in range(len(self._events))]))

    async def result(self) -> Output:
        """All that is left of the stream as one event."""
        return joined([event async for event in self])

    def close(self) -> None:
        super().close()
        self._events.clear()
        self._wake()

    def _put(self, event: Output, running: asyncio.AbstractEventLoop | None) -> None:
        if self._ended:
            return
        self._events.append(event)
        if running is self._loop:
            self._wake()
        else:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Inbox:
    """The events of an engine's asynchronous streams, which any of their loops may take."""

    def __init__(self) -> None:
        self._streams: weakref.WeakValueDictionary[int, AsyncStream] = weakref.WeakValueDictionary()
        self._keys = count(1)
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        # Held from a poll until its events are in their streams, so that they stay in order.
        self._taking = threading.Lock()
        self._room = ffi.new("bn_event[]", ROOM)
        self._count = ffi.new("size_t *")

    def add(self, stream: AsyncStream) -> int:
        """A key for the stream, whose loop waits for events from now on."""
        key = next(self._keys)
        self._streams[key] = stream
        loop = stream._loop
        if loop not in self._loops:
            # Duplicate the descriptor, since another thread may close the engine while the loop waits.
            descriptor = os.dup(call(lib.bn_engine_wait_fd, stream._engine._handle))
            closing = weakref.finalize(loop, os.close, descriptor)
            loop.add_reader(descriptor, _readable, weakref.ref(stream._engine), descriptor, closing)
            self._loops.add(loop)
        return key

    def take(self, handle: object, timeout_ms: int) -> int:
        """Passes waiting events to their streams. Returns the status of the poll."""
        running = asyncio._get_running_loop()
        with self._taking:
            self._count[0] = 0
            status: int = lib.bn_poll(
                handle, header.ANY, self._room, EVENT_SIZE, ROOM, timeout_ms, self._count, ffi.NULL
            )
            taken = [(self._room[i].user_data, read_output(self._room[i])) for i in range(self._count[0])]
            lib.bn_events_free(self._room, EVENT_SIZE, len(taken))
            for key, event in taken:
                if event.last:
                    lib.bn_request_free(handle, event.request, ffi.NULL)
                stream = self._streams.get(key)
                if stream is not None:
                    stream._put(event, running)
        if status in (header.ERR_OUT_OF_MEMORY, header.ERR_MEMORY_LIMIT):
            time.sleep(0.001)  # it stays readable, and there may be memory later
        return status


def _readable(
    reference: weakref.ref[Engine], descriptor: int, closing: weakref.finalize[[int], asyncio.AbstractEventLoop]
) -> None:
    engine = reference()
    if engine is None or not engine._take():
        asyncio.get_running_loop().remove_reader(descriptor)
        closing()
