"""Routes a request to the replica with most of its prompt in the KV cache, unless others are much less busy."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica


class Known:
    """A replica's blocks: those last reported, and those of requests sent since then."""

    def __init__(self) -> None:
        self.told: frozenset[int] = frozenset()
        self.source = b""
        self.sent: set[int] = set()
        self.sent_before: set[int] = set()

    def update(self, source: bytes) -> None:
        if source != self.source:
            self.source, self.told = source, frozenset(array("Q", source))
            # A report may lack the blocks of requests that were sent while it was made.
            self.sent_before, self.sent = self.sent, set()

    def matches(self, blocks: array[int]) -> int:
        """The number of leading blocks of a prompt that the replica has, without a gap."""
        for count, block in enumerate(blocks):
            if block not in self.told and block not in self.sent and block not in self.sent_before:
                return count
        return len(blocks)


class PrefixRouter(RequestRouter):
    def initialize_state(self, **options: Any) -> None:
        """`request_blocks`: the cost of each request that a replica already has, in blocks to compute."""
        self.request_blocks: float = options.get("request_blocks", 2)
        self.known: defaultdict[ReplicaID, Known] = defaultdict(Known)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        blocks = _blocks(pending_request)

        def cost(replica: RunningReplica) -> tuple[float, float]:
            known = self.known[replica.replica_id]
            known.update((replica.routing_stats or {}).get("blocks", b""))
            ongoing = self.replica_queue_len_cache.get(replica.replica_id) or 0
            return len(blocks) - known.matches(blocks) + self.request_blocks * ongoing, random.random()

        return [[replica] for replica in sorted(candidate_replicas, key=cost)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        self.known[replica_id].sent.update(_blocks(pending_request))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        present = {replica.replica_id for replica in replicas}
        for replica_id in [known for known in self.known if known not in present]:
            del self.known[replica_id]


def _blocks(request: PendingRequest | None) -> array[int]:
    return array("Q", request.kwargs.get("blocks", b"") if request else b"")
