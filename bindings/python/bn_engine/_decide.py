"""Answers to typed questions."""

from __future__ import annotations

from typing import NamedTuple

from . import _header as header
from ._error import Error
from ._request import Output


class Decided(NamedTuple):
    """The answer to a question."""

    #: Index of the most likely option.
    best: int
    #: The probability of `best`; of QUESTION_SCORE the expected level; of QUESTION_YES_NO the probability of yes.
    value: float
    #: 0, if all options are equally likely, to 1. The C header says how it is computed.
    confidence: float
    #: The share of each option.
    probabilities: list[float]
    #: For each option the sum of its tokens' log probabilities.
    logprobs: list[float]


def read(event: Output) -> list[Decided]:
    if event.finish_reason != header.FINISH_LENGTH:
        raise Error.of(event.status, event.message)
    answers = []
    for answer in event.decisions:
        own = event.decision_options[answer.first_option :][: answer.options_count]
        shares, logprobs = [option.probability for option in own], [option.logprob for option in own]
        answers.append(Decided(answer.best, answer.value, answer.confidence, shares, logprobs))
    return answers
