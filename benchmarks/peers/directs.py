"""The ceiling of several workers: as many processes that each call the model with full batches, at once."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.loads import Caller, Figure, Setup

WHOLE = Caller([None], lambda _: None, lambda _: None, lambda _: None)
"""For the first question of the load generator: those below were asked when they started."""


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Nothing to start."""
    yield ""


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Start a load generator for each worker; they leave with this process."""
    from benchmarks.rounds import Generator, generator
    from benchmarks.rows import Contender

    stack = ExitStack()
    atexit.register(stack.close)
    one = Contender("direct call", "direct", replace(setup, workers=1))
    generators.extend(stack.enter_context(generator(one)) for _ in range(setup.workers))
    assert all(isinstance(made, Generator) for made in generators)
    return lambda: WHOLE


def measure(setup: Setup, make: Callable[[], Caller], warm: float, seconds: float) -> Figure:
    """Have all of them measure at once, and add up their rates."""
    with ThreadPoolExecutor(len(generators)) as pool:
        figures = list(pool.map(lambda one: one.measure(warm, seconds), generators))
    return Figure(
        sum(one.rate for one in figures),
        p50=median(one.p50 for one in figures),
        answers=sum(one.answers for one in figures),
        wrong=sum(one.wrong for one in figures),
    )


generators: list[Any] = []
