"""When to close a batch, and how many items to put into it.

A batch closes when it is full, or when a worker is idle and waiting no longer pays.  When waiting pays is
one small policy object; this file holds the policies.  A policy sees counts and times, never items, and
decides nothing about who runs the batch (``roster.py``) or which items are next (``backlog.py``).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

LONG_RUN = 0.040
"""Seconds of a run from which on the millisecond between two batches is cheaper than a place in line."""

SHARED = 10.0
"""Seconds after another principal asked in which nothing is prefetched where runs are long."""


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


class Decision(NamedTuple):
    """Close the batch with so many items now, or (0 items) look again at a time."""

    items: int
    wake: float | None = None


class Policy(Protocol):
    """When waiting for company pays, for one topic."""

    name: str
    why: str
    """The word for why it closed a batch that is not full."""

    def decide(self, view: View, now: float) -> Decision:
        """Return what to do for an idle worker."""


class Eager:
    """Waiting never pays: an idle worker takes what there is, so a lone item pays no latency."""

    name = "eager"
    why = "idle"

    def decide(self, view: View, now: float) -> Decision:
        """Take what there is."""
        return Decision(min(view.waiting, view.limit))


class Window:
    """Wait until the batch is full or its oldest item has waited ``max_latency``."""

    name = why = "window"

    def decide(self, view: View, now: float) -> Decision:
        """Take a full batch at once, a smaller one when its time is up."""
        ends = view.oldest + view.max_latency
        if view.full or now >= ends:
            return Decision(min(view.waiting, view.limit))
        return Decision(0, ends)


POLICIES: dict[str, type[Eager] | type[Window]] = {"eager": Eager, "window": Window}
"""What ``--batching`` may say."""


def pays_to_prefetch(run: float, *, shared: bool) -> bool:
    """Return whether to send a full batch to a worker that runs one still, where runs take so long.

    What is prefetched for one principal goes before what another is about to ask.
    """
    return run < LONG_RUN or not shared
