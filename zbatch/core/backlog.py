"""The waiting items of one topic: their order, what fits into the next batch, and what leaves early.

Order is by priority class, then deficit round robin between principals, then first in, first out.  A
batch's key has no part in the order: the item whose turn it is brings its key, and others of that key
join it.  Whether a batch should close now is ``batching.py``'s question, who gets it ``roster.py``'s.

What an item's state is stands in its group (:class:`Held`), one byte an item; queues hold spans of groups
and are cleaned lazily, so that taking, expiring and cancelling cost what they touch, never what waits.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from zbatch.core.intervals import Range
from zbatch.core.names import Names
from zbatch.core.stream import Through

WAITING, RUNNING, CLOSED = 0, 1, 2
"""The life of an item: it may go back from running to waiting, never back from closed."""

QUANTUM = 32
"""Items a principal may take before the next one's turn, at most: more turns cost more."""

PARTIES = 4
"""Principals that have a turn in one batch: who comes late need not wait for a batch of others."""

SLACK = 64
"""Dead entries a queue may keep before it is swept."""


@dataclass(slots=True, eq=False)
class Held:
    """A group that the broker holds until each of its items has an outcome."""

    owner: Any
    """The client's record, see ``clients.py``; opaque here."""
    principal: bytes
    topic: str
    base: int
    items: Sequence[Any]
    buffers: list[Sequence[Any]] | None
    deadline: float
    arrived: float
    priority: int = 0
    key: str = ""
    costs: Sequence[float] | None = None
    size: int = 0
    again: bool = False
    later: list[float] | None = None
    """By how much each item's deadline is later than ``deadline``; None: they share it."""
    state: bytearray = field(default_factory=bytearray)
    open: int = 0
    """Items without an outcome."""
    waiting: int = 0
    bucket: int = 0
    lane: Lane | None = None
    flow: Any = None
    """The way through a pipeline that these are on, see ``pipeline.py``; None: they are on none."""
    stage: int = 0
    parts: Sequence[tuple[str, Sequence[Any], Sequence[Sequence[Any]] | None]] | None = None
    """Where stages meet: of each a name, and items and buffers; ``items`` are empty then."""
    stream: Through | None = None
    """Of its one item parts are wanted."""
    names: Names | None = None

    def due(self, now: float) -> list[Range]:
        """Return the positions whose deadline has passed."""
        if now < self.deadline:
            return []
        if self.later is None:
            return [(0, len(self.state))]
        return [(at, at + 1) for at, later in enumerate(self.later) if self.deadline + later <= now]

    def next_due(self, now: float) -> float | None:
        """Return when the next of the open items is due that are not due yet."""
        if self.later is None:
            return None
        times = (self.deadline + later for at, later in enumerate(self.later) if self.state[at] != CLOSED)
        return min((time for time in times if time > now), default=None)

    def __post_init__(self) -> None:
        self.state = bytearray(len(self.items))
        self.open = len(self.items)


@dataclass(slots=True, eq=False)
class Span:
    """Some consecutive items of a group, with what happened to them so far."""

    held: Held
    start: int
    stop: int
    attempts: int = 0
    """Workers lost while these ran."""
    alone: int = 0
    """Model processes that died while this one item was alone in their batch."""
    runs: int = 0
    """Times it was handed to a worker."""

    def part(self, start: int, stop: int) -> Span:
        """Return some of these items, with the same past."""
        return Span(self.held, start, stop, self.attempts, self.alone, self.runs)


@dataclass(slots=True, eq=False)
class Lane:
    """What one principal has waiting in one priority class under one key."""

    share: Share
    key: str
    spans: deque[Span] = field(default_factory=deque)
    items: int = 0


@dataclass(slots=True, eq=False)
class Share:
    """One principal's part of a priority class."""

    turns: PriorityClass
    principal: bytes
    deficit: int = 0
    items: int = 0
    fifo: deque[Span] = field(default_factory=deque)
    lanes: dict[str, Lane] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class PriorityClass:
    """Everything that waits with one priority; principals in the order of their turns."""

    priority: int
    items: int = 0
    shares: OrderedDict[bytes, Share] = field(default_factory=OrderedDict)
    rings: dict[str, OrderedDict[bytes, Lane]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Room:
    """What fits into one batch."""

    items: int
    cost: float | None = None
    size: int = 64 << 20
    """Bytes; a larger item travels alone."""


class Backlog:
    """The waiting items of one topic."""

    def __init__(self, quantum: int = QUANTUM, parties: int = PARTIES) -> None:
        self.items = 0
        self._quantum = quantum
        self._parties = parties
        self._classes: dict[int, PriorityClass] = {}
        self._order: list[int] = []
        """Priorities that have items, highest first."""
        self._counts: dict[str, int] = {}
        self._costs: dict[str, float] = {}
        self._arrivals: deque[Held] = deque()
        self._returned: list[tuple[float, int, Held]] = []
        """Those that were put back, a heap by arrival; a ticket tells equals apart."""
        self._tickets = 0

    def push(self, span: Span) -> None:
        """Add a new span behind what its principal has waiting."""
        lane = self._lane_for(span.held)
        lane.share.fifo.append(span)
        lane.spans.append(span)
        self._arrivals.append(span.held)
        self._entered(span.held, span.start, span.stop, span.stop - span.start)

    def put_back(self, span: Span) -> None:
        """Let a span's running items wait again, ahead of everything of their class: they waited longest."""
        held = span.held
        running = held.state.count(RUNNING, span.start, span.stop)
        if not running:
            return
        lane = self._lane_for(held)
        share = lane.share
        # A copy: the queue moves its start, and a late answer is still read by the batch's own.
        queued = span.part(span.start, span.stop)
        share.fifo.appendleft(queued)
        lane.spans.appendleft(queued)
        share.turns.shares.move_to_end(share.principal, last=False)
        share.turns.rings[held.key].move_to_end(share.principal, last=False)
        if not held.waiting:
            self._tickets += 1
            heappush(self._returned, (held.arrived, self._tickets, held))
        for start, stop in runs(held, RUNNING, span.start, span.stop):
            held.state[start:stop] = bytes(stop - start)
            self._entered(held, start, stop, stop - start)

    def oldest(self) -> float | None:
        """Return when the item arrived that has waited longest; None when nothing waits."""
        while self._arrivals and not self._arrivals[0].waiting:
            self._arrivals.popleft()
        while self._returned and not self._returned[0][2].waiting:
            heappop(self._returned)
        first = self._arrivals[0].arrived if self._arrivals else None
        if self._returned and (first is None or self._returned[0][0] < first):
            return self._returned[0][0]
        return first

    def ahead(self, priority: int, principal: bytes) -> int:
        """Return how many items go before a new one: those of its principal, and as many of each other."""
        ahead = 0
        for one in self._order:
            if one < priority:
                break
            found = self._classes[one]
            if one > priority:
                ahead += found.items
                continue
            share = found.shares.get(principal)
            own = 1 if share is None else share.items + 1
            ahead += min(found.items, own * (len(found.shares) + (share is None)))
        return ahead

    def head_key(self) -> str | None:
        """Return the key of the item whose turn it is; None when nothing waits."""
        if not self._order:
            return None
        share = next(iter(self._classes[self._order[0]].shares.values()))
        return _head(share).held.key

    def ready(self, key: str) -> int:
        """Return how many items wait under a key."""
        return self._counts.get(key, 0)

    def fills(self, key: str, room: Room) -> bool:
        """Return whether the items under a key fill a batch."""
        if self._counts.get(key, 0) >= room.items:
            return True
        return room.cost is not None and self._costs.get(key, 0.0) >= room.cost

    def take(self, key: str, room: Room) -> list[Span]:
        """Remove and return the items of the next batch under a key, in order, as far as they fit."""
        taken = _Taken(room)
        for priority in tuple(self._order):
            shares = self._classes[priority].shares
            ring = self._classes[priority].rings.get(key)
            if ring and (leader := next(iter(shares))) in ring:
                ring.move_to_end(leader, last=False)
            while ring and not taken.full:
                lane = next(iter(ring.values()))
                share = lane.share
                self._take_turn(lane, taken)
                if not lane.items:
                    self._remove(lane)
                elif share.deficit <= 0:
                    ring.move_to_end(share.principal)
                if share.deficit <= 0 and share.items:
                    shares.move_to_end(share.principal)
            if taken.full:
                break
        self._sweep_arrivals()
        return taken.spans

    def close(self, held: Held, start: int, stop: int) -> int:
        """Mark items as ended, wherever they are; return how many had not been."""
        state = held.state
        waiting = state.count(WAITING, start, stop)
        ended = waiting + state.count(RUNNING, start, stop)
        if not ended:
            return 0
        if waiting:
            self._left(held, start, stop, waiting)
        state[start:stop] = (
            _CLOSED[: stop - start] if stop - start <= len(_CLOSED) else b"\2" * (stop - start)
        )
        if waiting:
            self._sweep(held)
        held.open -= ended
        if not held.open:
            held.items = ()
            held.buffers = None
            held.parts = None
            held.names = None
        return ended

    def _take_turn(self, lane: Lane, taken: _Taken) -> None:
        share = lane.share
        if share.deficit <= 0:
            share.deficit += min(self._quantum, max(1, taken.room.items // self._parties))
        while lane.items and share.deficit > 0 and not taken.full:
            entry = lane.spans[0]
            start, stop = _alive(entry)
            if start == stop:
                lane.spans.popleft()
                continue
            count = taken.fitting(entry.held, start, min(stop, start + share.deficit))
            if not count:
                break
            span = entry.part(start, start + count)
            self._left(entry.held, start, start + count, count)
            entry.held.state[start : start + count] = b"\1" * count
            entry.start = start + count
            share.deficit -= count
            taken.add(span)
        _sweep_queues(lane)

    def _lane_for(self, held: Held) -> Lane:
        found = self._classes.get(held.priority)
        if found is None:
            found = self._classes[held.priority] = PriorityClass(held.priority)
            self._order = sorted(self._classes, reverse=True)
        share = found.shares.get(held.principal)
        if share is None:
            share = found.shares[held.principal] = Share(found, held.principal)
        lane = share.lanes.get(held.key)
        if lane is None:
            lane = share.lanes[held.key] = Lane(share, held.key)
            found.rings.setdefault(held.key, OrderedDict())[held.principal] = lane
        held.lane = lane
        return lane

    def _entered(self, held: Held, start: int, stop: int, count: int) -> None:
        lane = held.lane
        assert lane is not None
        lane.items += count
        lane.share.items += count
        lane.share.turns.items += count
        held.waiting += count
        self.items += count
        self._counts[held.key] = self._counts.get(held.key, 0) + count
        if held.costs is not None:
            self._costs[held.key] = self._costs.get(held.key, 0.0) + sum(held.costs[start:stop])

    def _left(self, held: Held, start: int, stop: int, count: int) -> None:
        lane = held.lane
        assert lane is not None
        lane.items -= count
        lane.share.items -= count
        lane.share.turns.items -= count
        held.waiting -= count
        self.items -= count
        left = self._counts[held.key] - count
        if left:
            self._counts[held.key] = left
        else:
            del self._counts[held.key]
        if held.costs is not None:
            if left:
                states = held.state
                cost = sum(held.costs[i] for i in range(start, stop) if states[i] == WAITING)
                self._costs[held.key] -= cost
            else:
                self._costs.pop(held.key, None)

    def _sweep(self, held: Held) -> None:
        """Let go of what is dead in the queues that this group stood in."""
        lane = held.lane
        assert lane is not None
        if not lane.items:
            self._remove(lane)
        _sweep_queues(lane)
        self._sweep_arrivals()

    def _sweep_arrivals(self) -> None:
        if len(self._arrivals) + len(self._returned) > SLACK + 2 * self.items:
            self._arrivals = deque(one for one in self._arrivals if one.waiting)
            self._returned = [one for one in self._returned if one[2].waiting]
            heapify(self._returned)

    def _remove(self, lane: Lane) -> None:
        share = lane.share
        found = share.turns
        lane.spans.clear()
        share.lanes.pop(lane.key, None)
        ring = found.rings[lane.key]
        ring.pop(share.principal, None)
        if not ring:
            del found.rings[lane.key]
        if not share.items:
            share.fifo.clear()
            found.shares.pop(share.principal, None)
            if not found.shares:
                del self._classes[found.priority]
                self._order = sorted(self._classes, reverse=True)
        if not self.items:
            self._arrivals.clear()
            self._returned.clear()


_CLOSED = b"\2" * 256


class _Taken:
    """A batch in the making."""

    __slots__ = ("cost", "full", "items", "room", "size", "spans")

    def __init__(self, room: Room) -> None:
        self.room = room
        self.spans: list[Span] = []
        self.items = 0
        self.cost = 0.0
        self.size = 0
        self.full = False

    def fitting(self, held: Held, start: int, stop: int) -> int:
        """Return how many of these items still fit; 0 also closes the batch."""
        room = self.room
        count = min(stop - start, room.items - self.items)
        each = held.size // len(held.items) or 1
        if self.size + each * count > room.size:
            count = min(count, max((room.size - self.size) // each, 0 if self.items else 1))
        if room.cost is not None and held.costs is not None:
            count = self._within_cost(held.costs, start, count)
        if not count:
            self.full = True
        return count

    def add(self, span: Span) -> None:
        count = span.stop - span.start
        held = span.held
        self.items += count
        self.size += count * (held.size // len(held.items))
        if self.room.cost is not None and held.costs is not None:
            self.cost += sum(held.costs[span.start : span.stop])
            if self.cost > self.room.cost:
                self.full = True  # an item that is too much by itself travels alone
        last = self.spans[-1] if self.spans else None
        if (
            last is not None
            and last.held is held
            and last.stop == span.start
            and last.attempts == span.attempts
            and last.alone == span.alone
        ):
            last.stop = span.stop
        else:
            self.spans.append(span)
        if self.items >= self.room.items:
            self.full = True

    def _within_cost(self, costs: Sequence[float], start: int, count: int) -> int:
        assert self.room.cost is not None
        left = self.room.cost - self.cost
        for position in range(count):
            left -= costs[start + position]
            if left < 0:
                return position if position or self.items else 1
        return count


def _alive(span: Span) -> tuple[int, int]:
    """Return the first run of items in a span that still wait; an empty one when none does."""
    state = span.held.state
    start = state.find(WAITING, span.start, span.stop)
    if start < 0:
        return span.stop, span.stop
    span.start = start
    if state.count(WAITING, start, span.stop) == span.stop - start:
        return start, span.stop
    stop = start
    while state[stop] == WAITING:
        stop += 1
    return start, stop


def _sweep_queues(lane: Lane) -> None:
    if len(lane.spans) > SLACK + 2 * lane.items:
        lane.spans = deque(span for span in lane.spans if _is_alive(span))
    share = lane.share
    if len(share.fifo) > SLACK + 2 * share.items:
        share.fifo = deque(span for span in share.fifo if _is_alive(span))


def _is_alive(span: Span) -> bool:
    return span.held.state.find(WAITING, span.start, span.stop) >= 0


def _head(share: Share) -> Span:
    while not _is_alive(share.fifo[0]):
        share.fifo.popleft()
    return share.fifo[0]


def runs(held: Held, state: int, start: int = 0, stop: int | None = None) -> list[Range]:
    """Return the positions of a group that are in a state, as ranges."""
    states = held.state
    end = len(states) if stop is None else stop
    if states.count(state, start, end) == end - start:
        return [(start, end)] if start < end else []
    found: list[Range] = []
    first = states.find(state, start, end)
    while first >= 0:
        last = first
        while last < end and states[last] == state:
            last += 1
        found.append((first, last))
        first = states.find(state, last, end)
    return found
