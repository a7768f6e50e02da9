"""The application: `serve run app:build model=model.gguf replicas=4`. The arguments are the fields of `Settings`."""

from typing import Any

from pydantic import BaseModel
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from front import Front
from replica import Replica

QUIET = LoggingConfig(enable_access_log=False)


class Settings(BaseModel):
    #: Argument of `bn_engine.Model`; none: the demo model
    model: str | None = None
    #: The model's name for clients
    name: str = "bn_engine"
    #: Number of engines; with `max_replicas`, the minimum
    replicas: int = 1
    max_replicas: int | None = None
    #: Target of requests per replica when scaling
    target_requests: float = 16
    #: Seconds that a change of load must last before replicas are added or removed
    scaling_delay_s: float = 10
    #: The most requests of each engine, and options of `bn_engine.Engine`
    queue: int = 64
    kv_block_size: int = 32
    engine: dict[str, Any] = {}
    #: Processes for HTTP, JSON and tokenizing
    fronts: int = 1
    #: CPUs that Ray reserves for a replica
    cpus: float = 1
    #: Seconds that a replica has to finish its requests before it is removed
    drain_s: float = 120
    router: str = "router.PrefixRouter"
    #: For `PrefixRouter`: the cost of each request that a replica already has, in blocks to compute
    request_blocks: float = 2


def autoscaling(settings: Settings) -> AutoscalingConfig:
    return AutoscalingConfig(
        min_replicas=settings.replicas,
        max_replicas=settings.max_replicas,
        upscale_delay_s=settings.scaling_delay_s,
        downscale_delay_s=settings.scaling_delay_s,
        look_back_period_s=settings.scaling_delay_s,
        metrics_interval_s=settings.scaling_delay_s / 4,
        policy=AutoscalingPolicy(policy_function="scaling:Load", policy_kwargs={"requests": settings.target_requests}),
    )


def build(settings: Settings) -> Application:
    options = {
        "kv_block_size": settings.kv_block_size,
        "queue_capacity": settings.queue,
        "kv_events_capacity": 4096,
        **settings.engine,
    }
    scaled = (
        {"autoscaling_config": autoscaling(settings)} if settings.max_replicas else {"num_replicas": settings.replicas}
    )
    replicas = serve.deployment(
        Replica,
        name="Replica",
        max_ongoing_requests=settings.queue,
        max_queued_requests=4 * settings.queue,
        ray_actor_options={"num_cpus": settings.cpus},
        graceful_shutdown_timeout_s=settings.drain_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=2,
        logging_config=QUIET,
        request_router_config=RequestRouterConfig(
            request_router_class=settings.router,
            request_router_kwargs={"request_blocks": settings.request_blocks},
            request_routing_stats_period_s=1,
        ),
        **scaled,
    ).bind(settings.model, options)
    front = serve.deployment(
        Front,
        name="Front",
        num_replicas=settings.fronts,
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0.1},
        logging_config=QUIET,
    )
    return front.bind(replicas, settings.model, settings.name, settings.kv_block_size)
