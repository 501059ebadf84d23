"""What live tests share: commands that are started, and killed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
