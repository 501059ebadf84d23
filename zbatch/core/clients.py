"""What the broker knows of one client: which of its ids it holds, and which outcomes are on their way.

The client's word on what is open, held against this, says what was lost on the way and must be sent again.
Nothing here decides about topics, workers or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from zbatch.core import intervals
from zbatch.core.backlog import CLOSED, Held, runs
from zbatch.core.intervals import Range
from zbatch.core.links import Link
from zbatch.messages import Flow, Refusal, Results

CHUNK = 8
"""Ids are found by their number without its last 8 bits, so that a batch's size touches a place or two."""


@dataclass(slots=True, eq=False)
class Client:
    """One client, for as long as its life is known."""

    link: Link
    principal: bytes
    items: int = 0
    """Items without an outcome."""
    size: int = 0
    results: list[Results] = field(default_factory=list)
    """Outcomes that leave with the next flush."""
    frames: list[Any] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    flows: list[tuple[Flow, Sequence[Any]]] = field(default_factory=list)
    """Parts of streams that leave with the next flush, with their buffers."""
    _groups: dict[int, list[Held]] = field(default_factory=dict)
    _underway: deque[tuple[int, list[Range]]] = field(default_factory=deque)
    _flowing: deque[tuple[int, list[tuple[Flow, Sequence[Any]]]]] = field(default_factory=deque)
    """What of streams may have been lost: unlike an outcome it cannot be made again."""

    def hold(self, held: Held) -> None:
        """Remember a group."""
        for chunk in range(held.base >> CHUNK, (held.base + len(held.state) - 1 >> CHUNK) + 1):
            groups = self._groups.get(chunk)
            if groups is None:
                self._groups[chunk] = [held]
            else:
                groups.append(held)

    def release(self, held: Held) -> None:
        """Forget a group that has ended."""
        for chunk in range(held.base >> CHUNK, (held.base + len(held.state) - 1 >> CHUNK) + 1):
            groups = self._groups[chunk]
            groups.remove(held)
            if not groups:
                del self._groups[chunk]

    def groups(self) -> list[Held]:
        """Return everything held, each group once."""
        return list({held: None for groups in self._groups.values() for held in groups})

    def find(self, start: int, stop: int) -> list[tuple[Held, int, int]]:
        """Return the held groups that have ids in a range, each with the positions that are in it."""
        if (stop >> CHUNK) - (start >> CHUNK) < len(self._groups):
            chunks: Iterable[list[Held]] = (
                self._groups.get(chunk, []) for chunk in range(start >> CHUNK, (stop - 1 >> CHUNK) + 1)
            )
        else:
            chunks = self._groups.values()
        found: dict[Held, None] = {held: None for groups in chunks for held in groups}
        return [
            (held, max(start - held.base, 0), min(stop - held.base, len(held.state)))
            for held in found
            if held.base < stop and start < held.base + len(held.state)
        ]

    def held(self) -> list[Range]:
        """Return the ids that have no outcome yet, or whose outcome is on its way."""
        ranges = [one for _, underway in self._underway for one in underway]
        ranges += [(one.base, one.base + len(one.outputs)) for one in self.results]
        ranges += [one for refusal in self.refusals for one in refusal.ids]
        ranges += [(flow.at, flow.at + 1) for flow, _ in self.flows if flow.ended]
        for _, flowing in self._flowing:
            ranges += [(flow.at, flow.at + 1) for flow, _ in flowing if flow.ended]
        for held in self.groups():
            if held.open == len(held.state):
                ranges.append((held.base, held.base + held.open))
                continue
            ended = [(held.base + start, held.base + stop) for start, stop in runs(held, CLOSED)]
            ranges += intervals.subtract([(held.base, held.base + len(held.state))], ended)
        return intervals.normal(ranges)

    def sent(self, number: int, ids: list[Range]) -> None:
        """Remember that the outcomes of some ids left in a message of this number."""
        self._underway.append((number, ids))

    @property
    def has_flowing(self) -> bool:
        """Whether parts of streams are on their way."""
        return bool(self._flowing)

    def flowed(self, number: int, flows: list[tuple[Flow, Sequence[Any]]]) -> None:
        """Remember that parts of streams left in a message of this number."""
        self._flowing.append((number, flows))

    def wants(self, open_ids: list[Range], upto: int) -> None:
        """Let go of parts of streams that the client does not name: it has them, or reads them no more."""
        kept = [
            (number, [one for one in flows if one[0].at >= upto or _has(open_ids, one[0].at)])
            for number, flows in self._flowing
        ]
        self._flowing = deque((number, flows) for number, flows in kept if flows)

    def acknowledged(self, number: int) -> None:
        """Forget the outcomes, and the parts, that have arrived."""
        while self._flowing and self._flowing[0][0] <= number:
            self._flowing.popleft()
        while self._underway and self._underway[0][0] <= number:
            self._underway.popleft()

    def reconnected(self, link: Link) -> None:
        """Go on over a new connection; what was on its way over the old one is lost.

        Parts of streams are sent again: nobody can make the same ones once more.
        """
        self.link = link
        self.flows[:0] = [one for _, flows in self._flowing for one in flows]
        self._flowing.clear()
        self._underway.clear()


def _has(ids: list[Range], one: int) -> bool:
    return any(start <= one < stop for start, stop in ids)
