"""When to close a batch, and how many items to put into it.

A batch closes when it is full, or when a worker is idle and waiting no longer pays.  When waiting pays is
one small policy object; this file holds the policies.  A policy sees counts and times, never items, and
decides nothing about who runs the batch (``roster.py``) or which items are next (``backlog.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class View(NamedTuple):
    """What a policy may see when a worker is idle and something waits."""

    waiting: int
    """Items that could join the batch: those of the key whose turn it is; at least 1."""
    full: bool
    """They fill a batch by count or cost."""
    limit: int
    """The most items that the worker at hand takes."""
    oldest: float
    """When the item arrived that has waited longest."""
    max_latency: float
    """The longest an item may wait for company, in seconds."""
    idle: int
    """Idle workers of the topic, the one at hand included."""
    workers: int
    running: int
    """Items that run or are prefetched at this topic's workers."""


class Decision(NamedTuple):
    """Close the batch with so many items now, or (0 items) look again at a time."""

    items: int
    wake: float | None = None


class Policy(Protocol):
    """When waiting for company pays, for one topic."""

    name: str

    def arrived(self, items: int, now: float) -> None:
        """Learn that items came in."""

    def finished(self, items: int, seconds: float, now: float) -> None:
        """Learn that a batch of so many items ran for so long."""

    def decide(self, view: View, now: float) -> Decision:
        """Return what to do for an idle worker."""


@dataclass(slots=True)
class Eager:
    """Waiting never pays: an idle worker takes what there is, so a lone item pays no latency."""

    name: str = "eager"

    def arrived(self, items: int, now: float) -> None:
        """Learn nothing."""

    def finished(self, items: int, seconds: float, now: float) -> None:
        """Learn nothing."""

    def decide(self, view: View, now: float) -> Decision:
        """Take what there is."""
        return Decision(min(view.waiting, view.limit))


@dataclass(slots=True)
class Window:
    """Wait until the batch is full or its oldest item has waited ``max_latency``."""

    name: str = "window"

    def arrived(self, items: int, now: float) -> None:
        """Learn nothing."""

    def finished(self, items: int, seconds: float, now: float) -> None:
        """Learn nothing."""

    def decide(self, view: View, now: float) -> Decision:
        """Take a full batch at once, a smaller one when its time is up."""
        ends = view.oldest + view.max_latency
        if view.full or now >= ends:
            return Decision(min(view.waiting, view.limit))
        return Decision(0, ends)


POLICIES: dict[str, type[Eager] | type[Window]] = {"eager": Eager, "window": Window}
"""What ``--batching`` may say."""
