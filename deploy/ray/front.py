"""OpenAI's routes. Tokenizes a prompt once, for the router and the replica."""

import json
from array import array
from collections.abc import AsyncIterator
from typing import Any

import bn_engine
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from api import HTTP, Answer, RefusedError, options, prompt
from blocks import hashes

#: The most replicas that a request is sent to, if each dies before the first output.
TRIES = 3

app = FastAPI()


@app.exception_handler(RefusedError)
async def refused(_: Request, error: RefusedError) -> JSONResponse:
    return JSONResponse(error.body, error.http)


# Defined above the class, because `serve.ingress` pickles the class with everything defined so far.
async def _events(answer: Answer, first: dict[str, Any], pieces: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Server-sent events of an answer. The last is [DONE] or an error."""
    yield f"data: {json.dumps(first)}\n\n"
    try:
        async for piece in pieces:
            yield f"data: {json.dumps(answer.body(piece, first=False))}\n\n"
    except RefusedError as error:
        yield f"data: {json.dumps(error.body)}\n\n"
        return
    yield "data: [DONE]\n\n"


async def _json(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise RefusedError(400, f"no JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be an object")
    return body


@serve.ingress(app)
class Front:
    def __init__(self, replicas: DeploymentHandle, model: str | None, name: str, block_size: int) -> None:
        self.model = bn_engine.Model(model)
        self.name, self.block_size = name, block_size
        self.replicas = replicas.options(stream=True)

    @app.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "bn_engine"}]}

    @app.post("/v1/completions")
    async def completions(self, request: Request) -> Any:
        return await self._answer(await _json(request), chat=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(self, request: Request) -> Any:
        return await self._answer(await _json(request), chat=True)

    async def _answer(self, body: dict[str, Any], chat: bool) -> Any:
        tokens, wanted = prompt(body, self.model, chat), options(body, chat)
        answer = Answer(self.name, chat, not wanted["no_stream"])
        pieces = self._pieces(tokens, wanted)
        first = answer.body(await pieces.__anext__())
        if wanted["no_stream"]:
            return first
        return StreamingResponse(_events(answer, first, pieces), media_type="text/event-stream")

    async def _pieces(self, tokens: list[int], wanted: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yields a replica's output. If the replica dies before the first output, tries another one."""
        blocks = array("Q", hashes(tokens, self.block_size)).tobytes()
        begun = False
        for _ in range(TRIES):
            try:
                async for piece in self.replicas.complete.remote(tokens, wanted, blocks=blocks):
                    if "error" in piece:
                        raise RefusedError(HTTP.get(piece["status"], 500), piece["error"])
                    begun = True
                    yield piece
                return
            except BackPressureError as error:
                raise RefusedError(429, error.message) from None
            except RayActorError as error:
                if begun:
                    raise RefusedError(503, f"the replica was lost: {error}") from None
        raise RefusedError(503, f"{TRIES} replicas were lost")
