"""A snapshot of a broker for machines: every counter as it stands, in plain data for another thread.

It is taken by the broker's loop, so it costs little: a topic in which nothing ended, began or was refused
since the last one is not copied again.  What the figures are called where they are scraped is said in
``series.py``; the snapshot for people is in ``status.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from zbatch.core.topics import Tally, Topic

if TYPE_CHECKING:
    from zbatch.core.broker import BrokerCore

MOST = 4_096
"""Topics, workers and processes that are looked at: what more there are shows in how many were left out."""

STATES = frozenset({"loading", "ready", "draining", "dead"})
"""Of a model process; what else a supervisor may say is one more, for it becomes a label."""

Mark = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """One topic."""

    waiting: int
    oldest: float
    """Seconds that the item has waited that has waited longest."""
    unfinished: int
    size: int
    running: int
    workers: Mapping[str, int]
    """How many there are in each state."""
    tally: Tally


@dataclass(frozen=True, slots=True)
class Figures:
    """A broker, once."""

    uptime: float
    topics: Mapping[str, TopicFigures]
    left_out: int
    """Topics that were not looked at."""
    unknown: Mapping[str, int]
    """Items that were refused because there is no such topic, by code."""
    processes: Mapping[str, int]
    """Model processes that supervisors speak of, in each state."""
    clients: int
    counters: Mapping[str, int]


class Snapshots:
    """Takes snapshots of a broker, and remembers what need not be copied again."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._kept: dict[str, tuple[Topic, Mark, Tally]] = {}

    def take(self, now: float) -> Figures:
        """Return how the broker is now."""
        core = self._core
        topics: dict[str, TopicFigures] = {}
        kept: dict[str, tuple[Topic, Mark, Tally]] = {}
        room = MOST
        for name, topic in islice(core.topics.all.items(), MOST):
            kept[name] = self._tally(name, topic)
            workers = _workers(topic, room)
            room = max(0, room - len(topic.roster))
            topics[name] = _topic(topic, workers, kept[name][2], now)
        self._kept = kept
        processes: dict[str, int] = {}
        for _, child in islice(core.dispatcher.children.values(), MOST):
            state = child.state if child.state in STATES else "other"
            processes[state] = processes.get(state, 0) + 1
        return Figures(
            uptime=now - core.started if core.started is not None else 0.0,
            topics=topics,
            left_out=len(core.topics.all) - len(topics),
            unknown=dict(core.ledger.books.refused),
            processes=processes,
            clients=len(core.ledger.clients),
            counters=dict(core.counters),
        )

    def _tally(self, name: str, topic: Topic) -> tuple[Topic, Mark, Tally]:
        before = self._kept.get(name)
        mark = _mark(topic.tally)
        if before is not None and before[0] is topic and before[1] == mark:
            return before
        return topic, mark, topic.tally.copy()


def _mark(tally: Tally) -> Mark:
    """Return what is different whenever anything in a tally is."""
    ended = sum(tally.errors.values())
    return tally.items, tally.answered, ended, tally.batches, tally.run.count, sum(tally.refused.values())


def _workers(topic: Topic, room: int) -> dict[str, int]:
    states: dict[str, int] = {}
    for worker in islice(topic.roster.workers.values(), room):
        states[worker.state] = states.get(worker.state, 0) + 1
    uncounted = len(topic.roster) - room
    if uncounted > 0:
        states["other"] = uncounted
    return states


def _topic(topic: Topic, workers: Mapping[str, int], tally: Tally, now: float) -> TopicFigures:
    oldest = topic.backlog.oldest()
    return TopicFigures(
        waiting=topic.backlog.items,
        oldest=now - oldest if oldest is not None else 0.0,
        unfinished=topic.items,
        size=topic.size,
        running=topic.running,
        workers=workers,
        tally=tally,
    )
