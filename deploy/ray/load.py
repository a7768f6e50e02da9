"""A load of concurrent clients for some time, and the result of each request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import aiohttp

BASE = "http://127.0.0.1:8123"
#: A request that takes longer counts as hung.
TIMEOUT_S = 60


class Result(NamedTuple):
    ended: float
    stream: bool
    http: int
    #: "stop" or "length" if complete, otherwise the server's or the connection's error.
    reason: str
    usage: dict[str, Any]

    @property
    def complete(self) -> bool:
        return self.reason in ("stop", "length")

    @property
    def hung(self) -> bool:
        return self.reason == "TimeoutError"


async def ask(session: aiohttp.ClientSession, body: dict[str, Any]) -> Result:
    stream = bool(body.get("stream"))
    http, reason, usage = 0, "the stream ended early", {}
    try:
        async with session.post(f"{BASE}/v1/completions", json=body) as response:
            http = response.status
            if not stream or response.status != 200:
                answer = await response.json()
                reason, usage = _ending(answer) or reason, answer.get("usage", {})
            else:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        answer = json.loads(line[6:])
                        reason, usage = _ending(answer) or reason, answer.get("usage", usage)
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        reason = type(error).__name__
    return Result(time.monotonic(), stream, http, reason, usage)


def _ending(answer: dict[str, Any]) -> str | None:
    if "error" in answer:
        return str(answer["error"]["message"])
    return answer["choices"][0]["finish_reason"]


async def drive(make: Callable[[], dict[str, Any] | None], clients: int, seconds: float = 600) -> list[Result]:
    """Each client sends the requests of `make`, one at a time, until `make` returns None or the time is over."""
    end = time.monotonic() + seconds
    results: list[Result] = []

    async def client(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < end and (body := make()) is not None:
            results.append(await ask(session, body))

    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return results


def tokens_per_second(results: list[Result], after: float, until: float) -> float:
    """Prompt and output tokens of the requests that ended between two times."""
    return sum(r.usage.get("total_tokens", 0) for r in results if after <= r.ended < until) / (until - after)
