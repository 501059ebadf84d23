"""What the interop tests share: a cluster, and web servers in front of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.interop.web import Server
from tests.live.conftest import run  # noqa: F401  # a fixture
from tests.live.shell import PATIENCE, ROOT, Zbatch, until
from zbatch import ZClient

MODEL = f"{ROOT}/tests/interop/models.py:Gathering"

ROOM = 200
"""Items that may wait in a topic: more than are ever asked for at once, few enough to fill."""

FORGOTTEN = 180.0
"""Seconds until the broker has forgotten a client that died with nothing open: one minute, and room."""


class Cluster:
    """A broker and two model processes for the topic ``shout``; nobody serves ``idle`` and ``full``."""

    def __init__(self, home: Path) -> None:
        self.frontend, backend = f"ipc://{home}/front", f"ipc://{home}/back"
        limits = ("--topics", "shout,idle,full", "--limits-topic-items", str(ROOM))
        ends = ("--frontend", self.frontend, "--backend", backend)
        self.broker = Zbatch(home / "broker.log", "broker", *ends, *limits)
        serve = ("--topic", "shout", "--gpu", "cpu", "--num", "2", "--backend", backend)
        self.worker = Zbatch(home / "worker.log", "worker", MODEL, *serve)
        self.worker.says("model ready", times=2)
        self.client = ZClient[object, object](self.frontend, timeout=PATIENCE)

    def clients(self) -> int:
        """Return how many clients the broker knows beside the one that asks."""
        known: int = self.client.status()["clients"]
        return known - 1

    def unfinished(self, topic: str) -> int:
        """Return how many items of a topic have no outcome."""
        shown: int = self.client.status()["topics"].get(topic, {}).get("unfinished", 0)
        return shown

    def holds(self, topic: str, items: int) -> None:
        """Wait until so many items of a topic have no outcome."""
        until(lambda: self.unfinished(topic) == items)

    def is_left_by_all(self) -> None:
        """Wait until the broker knows no client any more."""
        end = time.monotonic() + FORGOTTEN
        while self.clients():
            assert time.monotonic() < end, self.client.status()
            time.sleep(0.05)

    def close(self) -> None:
        """End it."""
        self.client.close()
        for one in (self.worker, self.broker):
            one.process.kill()
            one.process.wait()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a broker and two model processes for all tests."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def start(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Start web servers; whatever still runs at the end is killed, with all that it started."""
    running: list[Server] = []
    home = tmp_path_factory.mktemp("servers")

    def start(command: Sequence[str], port: int = 0) -> Server:
        told = {"ZBATCH_BROKER": cluster.frontend, "PYTHONUNBUFFERED": "1"}
        running.append(Server(command, home / f"{len(running)}.log", told, port))
        running[-1].start()
        return running[-1]

    yield start
    for one in running:
        one.kill()
