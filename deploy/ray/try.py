"""Runs the application on a local Ray, measures it, and fails if it does not do what README promises.

try.py [routes] [scaling] [streams] [demo] [prefix] [kill] [drain] [autoscale]: some parts; none: all.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import string
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = str(Path(__file__).parent)
os.environ.update(PYTHONPATH=HERE, RAY_USAGE_STATS_ENABLED="0")

import bn_engine  # noqa: E402
import ray  # noqa: E402
from ray import serve  # noqa: E402
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica  # noqa: E402

from app import Settings, build  # noqa: E402
from load import BASE, Result, drive, tokens_per_second  # noqa: E402
from scaling import Load  # noqa: E402

ECHO = "builtin:echo?us_per_token=5000"


class RoundRobin(RequestRouter):
    """Routes to replicas in turns, for comparison."""

    turn = 0

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        self.turn += 1
        first = self.turn % len(candidate_replicas)
        return [[replica] for replica in candidate_replicas[first:] + candidate_replicas[:first]]


def deploy(**settings: Any) -> None:
    settings = {"cpus": 0.5, "engine": {"threads": 1}, **settings}
    serve.run(build(Settings(**settings)))


def letters(count: int) -> str:
    return "".join(random.choices(string.ascii_lowercase, k=count))


def request(stream: bool = False) -> dict[str, Any]:
    """24 prompt tokens, too few to be cached, and 24 new tokens."""
    return {"prompt": letters(23), "max_tokens": 24, "stream": stream}


def row(*cells: object) -> None:
    print("|", " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells), "|", flush=True)


def check(true: bool, what: str) -> None:
    if not true:
        raise SystemExit(f"FAILED: {what}")


def complete(results: list[Result]) -> int:
    return sum(result.complete for result in results)


def throughput(title: str, make: Any, bar: float | None, **settings: Any) -> None:
    """Tokens a second with 1, 2 and 4 replicas."""
    row(title, "tokens/s", "of linear", "requests", "complete")
    one = None
    for replicas in (1, 2, 4):
        deploy(replicas=replicas, **settings)
        begin = time.monotonic()
        results = asyncio.run(drive(make, clients=8 * replicas, seconds=16))
        rate = tokens_per_second(results, begin + 4, begin + 16)
        one = one or rate
        row(replicas, rate, rate / one / replicas, len(results), complete(results))
        check(complete(results) == len(results), "requests that did not complete")
        check(bar is None or rate / one / replicas >= bar, f"{replicas} replicas have less than {bar} of their speed")
    serve.delete("default")


def routes() -> None:
    """Each route once, with what it must answer."""

    def call(path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{BASE}/v1/{path}", data)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    deploy(replicas=1)
    asked = {"prompt": "17+25=", "temperature": 0}
    check(json.loads(call("models")[1])["data"][0]["id"] == "bn_engine", "models")
    check(json.loads(call("completions", asked)[1])["choices"][0]["text"] == "42", "completions")
    streamed = call("completions", {**asked, "stream": True})[1].split("\n\n")
    pieces = [json.loads(event[6:])["choices"][0]["text"] for event in streamed[:-2]]
    check("".join(pieces) == "42" and streamed[-2:] == ["data: [DONE]", ""], "a stream of completions")
    sizes = {"type": "json_schema", "json_schema": {"schema": {"enum": ["small", "large"]}}}
    text = json.loads(call("completions", {**asked, "response_format": sizes})[1])["choices"][0]["text"]
    check(text in ('"small"', '"large"'), f"response_format: {text}")
    none = {token: -100 for token in bn_engine.Model().tokenize("42")}
    check(json.loads(call("completions", {**asked, "logit_bias": none})[1])["choices"][0]["text"] != "42", "logit_bias")
    for wrong in (
        {"prompt": "x", "temperature": -1},
        {"temperature": 0},
        {"prompt": 7},
        {"prompt": "x", "n": 2},
        {"prompt": "x", "tools": [1]},
        {"prompt": "x", "logit_bias": {"a": 1}},
        {"prompt": "x", "logit_bias": {"-1": 1}},
        {"prompt": "x", "logit_bias": {"1": 101}},
        {"prompt": "x", "response_format": {"type": "json_schema"}},
        {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}}},
    ):
        check(call("completions", wrong)[0] == 400, f"{wrong} should be refused")
    deploy(replicas=1, model="builtin:echo")
    talk = {"messages": [{"role": "user", "content": "Hello"}]}
    chat = json.loads(call("chat/completions", talk)[1])["choices"][0]
    check(chat["message"] == {"role": "assistant", "content": "user: Hello\nassistant: "}, f"chat: {chat}")
    streamed = call("chat/completions", {**talk, "stream": True})[1]
    check('"delta": {"role": "assistant"' in streamed and streamed.endswith("data: [DONE]\n\n"), "a stream of a chat")
    deploy(replicas=1, queue=1, model=ECHO)
    bodies = [request() for _ in range(12)]
    results = asyncio.run(drive(lambda: bodies.pop() if bodies else None, clients=12))
    check(sum(r.http == 429 for r in results) == 7, f"1 runs and 4 wait, the others are refused: {results}")
    check(complete(results) == 5, "those that are not refused are answered")
    serve.delete("default")
    print("the routes answer as they should")


def scaling() -> None:
    throughput("replicas, echo at 5 ms a token, whole answers", request, 0.9, model=ECHO)


def streams() -> None:
    # Each token is a message from replica to front to proxy to client: the cores' work, not the engines'.
    slow = "builtin:echo?us_per_token=10000"
    throughput("replicas, echo at 10 ms a token, streams", lambda: request(stream=True), None, model=slow)


def demo() -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 200}
    throughput("replicas, demo model on these cores", lambda: {**body, "seed": random.getrandbits(32)}, None)


def prefix() -> None:
    """16 prompts of 8 blocks, each sent 20 times with different ends, to replicas that hold 8 of them each."""
    row("router, 4 replicas", "prompt tokens from the cache", "seconds", "requests", "complete")
    shares = []
    for router in ("try.RoundRobin", "router.PrefixRouter"):
        engine = {"threads": 1, "kv_cache_bytes": 64 * 32 * 16, "max_batch_size": 4}
        deploy(replicas=4, model="builtin:echo?us_per_token=1000", router=router, engine=engine)
        prefixes = [letters(256) for _ in range(16)]
        bodies = [{"prompt": begin + letters(16), "max_tokens": 4} for begin in prefixes * 20]
        random.shuffle(bodies)
        start = time.monotonic()
        results = asyncio.run(drive(lambda bodies=bodies: bodies.pop() if bodies else None, clients=8))
        seconds = time.monotonic() - start
        prompt = sum(r.usage.get("prompt_tokens", 0) for r in results)
        cached = sum(r.usage.get("prompt_tokens_details", {}).get("cached_tokens", 0) for r in results)
        shares.append(cached / prompt)
        row(router.split(".")[1], shares[-1], seconds, len(results), complete(results))
        check(complete(results) == len(results), "requests that did not complete")
        serve.delete("default")
    check(shares[1] > shares[0], "the router for prefixes finds no more of them than round robin")


def mixed() -> dict[str, Any]:
    return request(stream=random.random() < 0.5)


async def disturbed(disturb: Any, after: float = 3, seconds: float = 12, clients: int = 32) -> list[Result]:
    """The results of streams and whole answers, while something happens in another thread."""

    async def later() -> None:
        await asyncio.sleep(after)
        await asyncio.to_thread(disturb)

    results, _ = await asyncio.gather(drive(mixed, clients, seconds), later())
    return results


def report(title: str, results: list[Result]) -> None:
    whole = [r for r in results if not r.stream]
    reasons = sorted({r.reason[:60] for r in results if not r.complete})
    row(
        title,
        len(results),
        complete(results),
        len(results) - complete(results),
        sum(r.hung for r in results),
        "; ".join(reasons),
    )
    check(not any(r.hung for r in results), "requests that hang")
    check(complete(whole) == len(whole), "whole answers that were not asked for again")


def heading() -> None:
    row("under load", "requests", "complete", "ended with a reason", "hung", "reasons")


def kill() -> None:
    def one() -> None:
        names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        ray.kill(ray.get_actor(next(name for name in names if "#Replica#" in name), namespace="serve"))

    heading()
    deploy(replicas=4, model=ECHO)
    results = asyncio.run(disturbed(one))
    report("one of 4 replicas killed", results)
    lost = len(results) - complete(results)
    check(lost <= 32, "more requests were lost than ran")
    serve.delete("default")


def drain() -> None:
    heading()
    deploy(replicas=4, model=ECHO)
    results = asyncio.run(disturbed(lambda: deploy(replicas=1, model=ECHO)))
    report("4 replicas become 1", results)
    check(complete(results) == len(results), "requests that did not complete")
    serve.delete("default")


def replicas_now() -> int:
    states = serve.status().applications["default"].deployments["Replica"].replica_states
    return int(states.get("RUNNING", 0))


def scaling_rule() -> None:
    """Checks the replicas that `Load` asks for, by requests, by KV blocks, and before a new replica's first report."""
    for requests, kv, replicas, wanted in (
        (20, [0.1], 1, 3),
        (8, [0.9, 0.9], 2, 3),
        (8, [0.2, 0.2], 2, 1),
        (8, [0.2], 2, 2),
    ):
        context = SimpleNamespace(
            total_num_requests=requests,
            aggregated_metrics={"kv": dict(enumerate(kv))},
            current_num_replicas=replicas,
            target_num_replicas=replicas,
        )
        check(Load(requests=8, kv=0.8)(context)[0] == wanted, f"{context} should want {wanted}")  # type: ignore[arg-type]


def autoscale() -> None:
    """1 to 3 replicas for 24 requests at a time, with 8 as the target; back to 1 when they have ended."""
    seen = []

    async def watch() -> None:
        while True:
            seen.append(await asyncio.to_thread(replicas_now))
            await asyncio.sleep(0.5)

    async def busy() -> list[Result]:
        watching = asyncio.ensure_future(watch())
        results = await drive(mixed, clients=24, seconds=25)
        watching.cancel()
        return results

    scaling_rule()
    heading()
    deploy(replicas=1, max_replicas=3, target_requests=8, scaling_delay_s=2, model=ECHO)
    results = asyncio.run(busy())
    idle = time.monotonic()
    while replicas_now() > 1 and time.monotonic() < idle + 40:
        time.sleep(0.5)
    report(f"1 to {max(seen)} replicas, then {replicas_now()} after {time.monotonic() - idle:.0f} s", results)
    check(seen[-1] == 3 and replicas_now() == 1, f"the replicas did not follow the load: {seen}")
    check(complete(results) == len(results), "requests that did not complete")
    serve.delete("default")


def main() -> None:
    parts = {part.__name__: part for part in (routes, scaling, streams, demo, prefix, kill, drain, autoscale)}
    # Ray treats 127.0.0.1 as a request for an outside address.
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200 << 20,
        _node_ip_address="127.0.0.2",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": 8123})
    try:
        for name in sys.argv[1:] or parts:
            parts[name]()
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
