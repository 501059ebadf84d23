"""The ceiling: the model itself, called with full batches in the process that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.loads import Caller, Setup, tokens


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Nothing to start."""
    yield ""


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller: one request is a whole batch."""
    predict = getattr(models, setup.model)().predict
    items = iter(tokens())
    batches = []
    while batch := list(islice(items, setup.batch_size)):
        batches.append(batch)

    def is_whole(batch: list[Any], outputs: Any) -> bool:
        return len(outputs) == len(batch)

    caller = Caller(batches, predict, predict, lambda output: output, is_whole, setup.batch_size)
    return lambda: caller
