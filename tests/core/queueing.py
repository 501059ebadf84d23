"""Groups, spans and what was taken, as short to write as to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zbatch.core.backlog import Backlog, Held, Room, Span

Taken = list[tuple[int, int]]
"""Ids from the first up to, not including, the second."""


def make_held(
    base: int = 0,
    items: int = 1,
    *,
    of: bytes = b"a",
    key: str = "",
    priority: int = 0,
    costs: Sequence[float] | None = None,
    size: int = 0,
    arrived: float = 0.0,
    deadline: float = 60.0,
    later: list[float] | None = None,
) -> Held:
    """Return a group of a principal's items; their ids begin at ``base``."""
    contents = [b"x%d" % (base + at) for at in range(items)]
    return Held(
        *(None, of, "bert", base, contents, None, deadline, arrived, priority, key, costs, size),
        later=later,
    )


def push(backlog: Backlog, held: Held) -> Held:
    """Let a whole group wait."""
    backlog.push(Span(held, 0, len(held.state)))
    return held


def take(backlog: Backlog, items: int = 32, key: str = "", **room: float) -> list[Span]:
    """Take a batch of at most so many items."""
    return backlog.take(key, Room(items, cost=room.get("cost"), size=int(room.get("size", 1 << 20))))


def ids(spans: Iterable[Span]) -> Taken:
    """Return which ids some spans hold."""
    return [(span.held.base + span.start, span.held.base + span.stop) for span in spans]
