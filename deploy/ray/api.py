"""OpenAI's requests as options of the engine, and its answers."""

from __future__ import annotations

import math
import secrets
import time
import uuid
from typing import Any

import bn_engine

#: Fields of a request and the engine's options, with OpenAI's defaults.
FIELDS = {
    "temperature": ("temperature", 1.0),
    "top_p": ("top_p", 1.0),
    "frequency_penalty": ("frequency_penalty", 0.0),
    "presence_penalty": ("presence_penalty", 0.0),
}
#: Options that would change the answer and are not supported.
MISSING = ("best_of", "echo", "logprobs", "suffix", "tools")
#: The HTTP status for each engine status; others are 500.
HTTP = {
    bn_engine.ERR_INVALID_ARGUMENT: 400,
    bn_engine.ERR_UNSUPPORTED: 400,
    bn_engine.ERR_TOO_LONG: 400,
    bn_engine.ERR_QUEUE_FULL: 429,
    bn_engine.ERR_MEMORY_LIMIT: 429,
    bn_engine.ERR_SHUTDOWN: 503,
}
REASONS = {"stop": "stop", "stop_string": "stop", "length": "length"}


class RefusedError(Exception):
    """An answer without a result."""

    def __init__(self, http: int, message: str) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if http < 429 else "server_error"
        self.http, self.body = http, {"error": {"message": message, "type": kind}}


def biases(body: dict[str, Any]) -> dict[int, float]:
    """`logit_bias`, where -100 forbids a token."""
    try:
        given = {int(token): float(bias) for token, bias in (body.get("logit_bias") or {}).items()}
        if not all(0 <= token < 2**32 and -100 <= bias <= 100 for token, bias in given.items()):
            raise ValueError
    except (AttributeError, OverflowError, TypeError, ValueError):
        raise RefusedError(400, "logit_bias: must be an object of token ids and numbers from -100 to 100") from None
    return {token: -math.inf if bias == -100 else bias for token, bias in given.items()}


def constraint(body: dict[str, Any]) -> dict[str, Any]:
    """`response_format` as an option."""
    wanted = body.get("response_format") or {"type": "text"}
    try:
        if wanted["type"] == "json_schema":
            return {"json_schema": dict(wanted["json_schema"]["schema"])}
        return {"text": {}, "json_object": {"json_object": True}}[wanted["type"]]
    except (KeyError, TypeError, ValueError):
        raise RefusedError(400, "response_format: must be text, json_object or json_schema with a schema") from None


def options(body: dict[str, Any], chat: bool) -> dict[str, Any]:
    if body.get("n", 1) != 1:
        raise RefusedError(400, "n: only 1 is supported")
    for field in MISSING:
        if body.get(field):
            raise RefusedError(400, f"{field}: not supported")
    made = {
        option: body[field] if body.get(field) is not None else default for field, (option, default) in FIELDS.items()
    }
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    made["max_new_tokens"] = limit if limit is not None else (0 if chat else 16)
    made["seed"] = secrets.randbits(63) if body.get("seed") is None else body["seed"]
    stop = body.get("stop") or []
    made["stop_strings"] = [stop] if isinstance(stop, str) else stop
    made["no_stream"] = not body.get("stream")
    made["logit_bias"] = biases(body)
    return {**made, **constraint(body)}


def prompt(body: dict[str, Any], model: bn_engine.Model, chat: bool) -> list[int]:
    """Tokenizes the request's prompt."""
    try:
        if chat:
            return model.chat_tokenize(body["messages"])
        given = body["prompt"]
        return model.tokenize(given, add_special=True) if isinstance(given, str) else list(given)
    except KeyError as error:
        raise RefusedError(400, f"{error.args[0]}: missing") from None
    except bn_engine.Error as error:
        raise RefusedError(HTTP.get(error.status, 500), error.message) from None
    except TypeError as error:
        raise RefusedError(400, str(error)) from None


def finish(piece: dict[str, Any]) -> str | None:
    if "reason" not in piece:
        return None
    if piece["reason"] not in REASONS:
        raise RefusedError(503, f"the request ended: {piece['reason']}")
    return REASONS[piece["reason"]]


class Answer:
    """The JSON objects of one answer."""

    def __init__(self, model: str, chat: bool, stream: bool) -> None:
        self.chat, self.stream = chat, stream
        kind = "chat.completion" + ".chunk" * stream if chat else "text_completion"
        self.head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}

    def body(self, piece: dict[str, Any], first: bool = True) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish(piece)}
        if self.chat:
            said = {"role": "assistant", "content": piece["text"]} if first else {"content": piece["text"]}
            choice["delta" if self.stream else "message"] = said
        else:
            choice["text"] = piece["text"]
        made = {**self.head, "choices": [choice]}
        if "usage" in piece:
            given, generated, cached = piece["usage"]
            made["usage"] = {
                "prompt_tokens": given,
                "completion_tokens": generated,
                "total_tokens": given + generated,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
        return made
