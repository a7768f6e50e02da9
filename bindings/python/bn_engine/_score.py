"""The likelihood of texts after a prompt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import _header as header
from ._error import Error
from ._model import Model
from ._request import Output


class Score(NamedTuple):
    """The likelihood of a text after a prompt."""

    #: The sum of its tokens' log probabilities.
    logprob: float
    #: Number of these tokens. A text's very first token has no log probability.
    tokens: int
    #: Whether each of these tokens is the most likely one at its place.
    greedy: bool


def requests(
    model: Model, prompt: str, continuations: Iterable[str], options: header.RequestOptions
) -> Iterator[header.RequestOptions]:
    """The score of each continuation, which begins with the first token that is not the prompt's."""
    before = model.tokenize(prompt, add_special=True)
    for continuation in continuations:
        tokens = model.tokenize(prompt + continuation, add_special=True)
        pairs = enumerate(zip(before, tokens))
        first = next((i for i, (a, b) in pairs if a != b), min(len(before), len(tokens)))
        yield {**options, "prompt_tokens": tokens, "task": header.TASK_SCORE, "logprobs_from": first, "top_logprobs": 1}


def read(output: Output) -> Score:
    if output.finish_reason != header.FINISH_LENGTH:
        raise Error.of(output.status, output.message)
    each = output.logprobs_per_token
    places = zip(output.logprobs[::each], output.logprobs[1::each])
    known = [(own, best) for own, best in places if not math.isnan(own.logprob)]
    greedy = all(own.token == best.token for own, best in known)
    return Score(sum(own.logprob for own, _ in known), len(known), greedy)
