"""What live tests share: commands that are started, and killed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.live.shell import PATIENCE, ROOT, Zbatch
from zbatch import ZClient


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


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a broker and a worker for the tests of a module; give the endpoint for clients."""
    home = tmp_path_factory.mktemp("cluster")
    frontend, backend = f"ipc://{home}/front", f"ipc://{home}/back"
    model = f"{ROOT}/tests/live/models.py:Obedient"
    broker = Zbatch(home / "broker.log", "broker", "--frontend", frontend, "--backend", backend)
    worker = Zbatch(home / "worker.log", "worker", model, "--gpu", "cpu", "--backend", backend)
    worker.says("model ready")
    yield frontend
    for one in (worker, broker):
        one.process.kill()
        one.process.wait()


@pytest.fixture
def client(frontend: str) -> Iterator[ZClient[Any, Any]]:
    """Give a client of that broker."""
    with ZClient[Any, Any](frontend, timeout=PATIENCE) as client:
        yield client
