"""Workers as a roster knows them, as short to write as to read."""

from __future__ import annotations

from zbatch.core.backlog import Room
from zbatch.core.links import Link
from zbatch.core.roster import Worker
from zbatch.messages import Ready


def make_worker(
    name: str,
    *,
    slots: int = 2,
    max_latency: float = 0.010,
    size: int = 32,
    cost: float | None = None,
) -> Worker:
    """Return a worker with empty hands."""
    life = name.encode().ljust(16)
    link = Link(b"B" + name.encode(), life[:8], life, "worker", "gpu-box", 12, 0.0)
    ready = Ready(life[:8], 2, 0, "bert", slots, size, cost, max_latency * 1000, 60_000)
    return Worker(link, ready, b"", Room(size, cost), max_latency, 60.0)
