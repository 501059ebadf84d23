"""What the loads ask for, and how an answer is known to be its own, for peers that take Python's values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from benchmarks import models
from benchmarks.loads import Caller, Setup, pictures, texts, tokens

TOLERANCE = 1e-4
"""Between two runs of the transformer in batches of different sizes."""


def caller(
    setup: Setup, predict: Callable[[Any], Any], submit: Callable[[Any], Any], finish: Callable[[Any], Any]
) -> Caller:
    """Return how one thread asks for one item at a time, as a list of one."""
    made = {"text": texts, "picture": pictures, "tokens": tokens}[setup.item]()
    return Caller([[item] for item in made], predict, submit, finish, check(setup.item))


def check(item: str) -> Callable[[Any, Any], bool]:
    """Return what says whether an answer, a list of one, is that of its request."""
    match item:
        case "picture":
            return _is_own_picture
        case "tokens":
            return _sentences_check()
        case _:
            return operator.eq


def answers() -> dict[tuple[int, ...], Any]:
    """Return what the transformer says to each sentence of the load."""
    sentences = tokens()
    return dict(zip(map(tuple, sentences), models.Transformer().predict(sentences), strict=True))


def _sentences_check() -> Callable[[Any, Any], bool]:
    import numpy

    right = answers()

    def is_own(request: list[list[int]], output: Any) -> bool:
        return len(output) == 1 and bool(numpy.allclose(output[0], right[tuple(request[0])], atol=TOLERANCE))

    return is_own


def _is_own_picture(request: list[Any], output: list[Any]) -> bool:
    return bool(output[0][0] == request[0][0, 0, 0])
