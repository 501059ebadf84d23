"""What live tests share: commands that are started, and killed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.live.shell import Zbatch


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Zbatch]]:
    """Start commands; whatever still runs at the end is killed, with all that it started."""
    running: list[Zbatch] = []

    def run(*arguments: str) -> Zbatch:
        running.append(Zbatch(tmp_path / f"{len(running)}.log", *arguments))
        return running[-1]

    yield run
    for one in running:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    """Give sockets of one's own a context that ends with the test, however that ends."""
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(0)
