"""Chooses the number of replicas that keeps requests and KV blocks per replica at their targets."""

from __future__ import annotations

import math
from typing import Any

from ray.serve.config import AutoscalingContext


class Load:
    def __init__(self, requests: float = 16, kv: float = 0.8) -> None:
        """Targets for a replica: requests, queued ones included, and the share of KV blocks in use."""
        self.requests, self.kv = requests, kv

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        kv = (context.aggregated_metrics or {}).get("kv", {})
        wanted = max(context.total_num_requests / self.requests, sum(kv.values()) / self.kv)
        if len(kv) < context.current_num_replicas:
            # A new replica has reported nothing yet, so the sums would be too low.
            wanted = max(wanted, context.target_num_replicas)
        return math.ceil(wanted), {}
