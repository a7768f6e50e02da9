"""One engine in each replica: completes token prompts, and reports its cached blocks and its load."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from typing import Any

import bn_engine


class Replica:
    def __init__(self, model: str | None, options: dict[str, Any]) -> None:
        self.engine = bn_engine.Engine(model, **options)
        self.cached: set[int] = set()

    async def complete(
        self, tokens: Sequence[int], options: dict[str, Any], blocks: bytes
    ) -> AsyncIterator[dict[str, Any]]:
        """Streams text; with `no_stream` in the options, sends all at the end. `blocks` is for the router."""
        try:
            async for output in self.engine.astream(prompt_tokens=tokens, **options):
                piece: dict[str, Any] = {"text": output.text}
                if output.last:
                    piece["reason"] = output.reason
                    piece["usage"] = (output.prompt_tokens, output.generated_tokens, output.cached_tokens)
                yield piece
        except bn_engine.Error as error:
            yield {"error": error.message, "status": error.status}

    def record_routing_stats(self) -> dict[str, Any]:
        """Called by Serve, for the routers."""
        for event in self.engine.kv_events():
            if event.kind == bn_engine.KV_EVENT_STORED:
                self.cached.add(event.hash)
            elif event.kind == bn_engine.KV_EVENT_REMOVED:
                self.cached.discard(event.hash)
            elif event.kind == bn_engine.KV_EVENT_CLEARED:
                self.cached.clear()
        return {"blocks": array("Q", self.cached).tobytes()}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve, for `scaling.Load`."""
        stats = self.engine.stats()
        return {"kv": stats.kv_blocks_used / stats.kv_blocks_total}

    def check_health(self) -> None:
        if self.engine.state == bn_engine.STATE_DEAD:
            raise RuntimeError("the engine's thread died")

    def __del__(self) -> None:
        # Serve has already waited for running requests (graceful_shutdown_timeout_s).
        self.engine.close()
