"""A request's way through several topics: what a route may be, and how far each of its items has come.

A :class:`Flow` is a group on such a way.  In each stage its items are groups of their own (``Held`` in
``backlog.py``), with the ids, the deadline and the owner of the request, so that what waits, runs, is
cancelled or lost is no other thing in a stage than anywhere else.  Kept here is what lies between the stages:
which items each of them has had, and the inputs that wait for others where several stages meet.

Outputs pass from stage to stage as they came, unopened.  Whether there is room for them is decided in
``ways.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from zbatch.core import intervals
from zbatch.core.backlog import RUNNING, Held
from zbatch.core.intervals import Range
from zbatch.core.names import Names
from zbatch.core.sizes import HEAD, Buffers
from zbatch.messages import MAX_FRAMES, Fault, Route, Stage

REMEMBERED = 256
"""Routes whose plan is kept: clients say theirs with each request, and mostly the same few."""


BEGUN = "begun"
"""The kind of a refusal that gives back what some stage has had: elsewhere it begins anew, and is not new."""


class Joined(NamedTuple):
    """An item that a worker puts together: a dict of what several stages made."""

    parts: Sequence[tuple[str, Any, Sequence[Any]]]
    """Name, payload and buffers of each."""


class Reader(NamedTuple):
    """Who wants the outputs of a stage: a stage, and as which of its inputs."""

    stage: int
    place: int


class Plan:
    """A route that is known to be one."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.last = len(route) - 1
        self.readers: list[list[Reader]] = [[] for _ in range(len(route) + 1)]
        """By number: of the request's own items first, then of each stage's outputs."""
        for at, stage in enumerate(route):
            for place, (_, source) in enumerate(stage.inputs):
                self.readers[source].append(Reader(at, place))

    def joins(self, stage: int) -> bool:
        """Return whether a stage's items are dicts."""
        inputs = self.route[stage].inputs
        return len(inputs) > 1 or inputs[0][0] != ""


@lru_cache(REMEMBERED)
def plan_of(route: Route) -> Plan:
    """Return the plan of a route.

    Raises ``ValueError`` for what is none.
    """
    fault = problem(route)
    if fault is not None:
        raise ValueError(fault)
    return Plan(route)


def problem(route: Route) -> str | None:
    """Return what is wrong with a route."""
    names = [stage.name for stage in route]
    if len(set(names)) < len(names):
        return "two stages have one name"
    for number, stage in enumerate(route, 1):
        fault = _problem_of(stage, number)
        if fault is not None:
            return f"stage {stage.name!r} {fault}"
    read = {source for stage in route for _, source in stage.inputs}
    idle = [stage.name for number, stage in enumerate(route[:-1], 1) if number not in read]
    return f"nobody reads what stage {idle[0]!r} makes" if idle else None


def _problem_of(stage: Stage, number: int) -> str | None:
    keys = [key for key, _ in stage.inputs]
    if len(set(keys)) < len(keys) or ("" in keys and len(keys) > 1):
        return "has inputs that cannot be told apart"
    if any(source >= number for _, source in stage.inputs):
        # Whoever reads only what is before it is in no circle.
        return "reads what does not come before it"
    return None


class _Meeting:
    """A stage with several inputs, and what has come of them for each item."""

    def __init__(self, inputs: int, count: int) -> None:
        self.items: list[list[Any]] = [[b""] * count for _ in range(inputs)]
        self.buffers: list[list[Sequence[Any]]] = [[()] * count for _ in range(inputs)]
        self.missing = bytearray([inputs]) * count
        self.sizes = [0] * count
        """Bytes of what has come of each."""

    def put(
        self, place: int, start: int, items: Sequence[Any], buffers: Buffers, sizes: Sequence[int]
    ) -> None:
        stop = start + len(items)
        self.items[place][start:stop] = items
        if buffers is not None:
            self.buffers[place][start:stop] = buffers
        for at, size in enumerate(sizes, start):
            self.missing[at] -= 1
            self.sizes[at] += size

    def cannot_travel(self, at: int, most: int) -> Fault | None:
        """Return why an item's inputs are more than one message carries; None: they are not."""
        size = self.sizes[at] + HEAD * len(self.items)
        frames = sum(len(buffers[at]) for buffers in self.buffers)
        if size <= most and frames <= MAX_FRAMES:
            return None
        text = f"its inputs have {size:,} bytes in {frames:,} buffers together"
        return Fault("too_large", f"{text}, a message may have {most:,} in {MAX_FRAMES:,}")

    def clear(self, at: int) -> int:
        """Let go of what waits for an item's other inputs; return its bytes."""
        size, self.sizes[at] = self.sizes[at], 0
        for items, buffers in zip(self.items, self.buffers, strict=True):
            items[at], buffers[at] = b"", ()
        return size


class Met(NamedTuple):
    """Items all of whose inputs are there."""

    start: int
    stop: int
    parts: list[tuple[str, list[Any], list[Sequence[Any]] | None]]
    size: int
    fault: Fault | None
    """Why they cannot be brought to a worker."""


class Flow:
    """A group on its way through a pipeline."""

    __slots__ = (
        "_meetings",
        "again",
        "arrived",
        "base",
        "costs",
        "deadline",
        "entered",
        "key",
        "later",
        "live",
        "name",
        "names",
        "open",
        "owner",
        "plan",
        "priority",
        "touched",
    )

    def __init__(
        self,
        plan: Plan,
        owner: Any,
        name: str,
        base: int,
        count: int,
        *,
        deadline: float,
        arrived: float,
        later: list[float] | None,
        priority: int,
        key: str,
        costs: Sequence[float] | None,
        again: bool,
        names: Names | None,
    ) -> None:
        self.plan = plan
        self.owner = owner
        self.name = name
        """What its client asked for."""
        self.base = base
        self.deadline = deadline
        self.arrived = arrived
        self.later = later
        self.priority = priority
        self.key = key
        self.costs = costs
        self.again = again
        self.names = names
        self.open = bytearray(b"\1") * count
        """Which items have no outcome yet."""
        self.entered = [bytearray(count) for _ in plan.route]
        """Of each stage: which items it has had, or never will."""
        self.touched = bytearray(count)
        """Which items some stage has made something of."""
        self.live: list[Held] = []
        """Its groups in stages that have not ended."""
        self._meetings: dict[int, _Meeting] = {}

    def topics_from(self, stage: int) -> list[str]:
        """Return the topics of a stage and of those behind it."""
        return [one.topic for one in self.plan.route[stage:]]

    def awaited(self, stage: int, start: int, stop: int) -> list[Range]:
        """Return which of some items a stage has yet to get."""
        entered = self.entered[stage]
        if not entered.count(1, start, stop):
            return [(start, stop)]
        return intervals.of(at for at in range(start, stop) if not entered[at])

    def meet(
        self,
        reader: Reader,
        start: int,
        items: Sequence[Any],
        buffers: Buffers,
        sizes: Sequence[int],
        most: int,
    ) -> list[Met]:
        """Take in one input of some items of a stage that has several; return those that have all now.

        What is more than one message carries, ``most`` bytes, has a fault, and is alone.
        """
        inputs = self.plan.route[reader.stage].inputs
        meeting = self._meetings.get(reader.stage)
        if meeting is None:
            meeting = self._meetings[reader.stage] = _Meeting(len(inputs), len(self.open))
        meeting.put(reader.place, start, items, buffers, sizes)
        keys = [key for key, _ in inputs]
        whole = [at for at in range(start, start + len(items)) if not meeting.missing[at]]
        faults = {at: fault for at in whole if (fault := meeting.cannot_travel(at, most)) is not None}
        met = [self._met(meeting, keys, *one, None) for one in intervals.of(set(whole).difference(faults))]
        return met + [self._met(meeting, keys, at, at + 1, fault) for at, fault in faults.items()]

    def _met(self, meeting: _Meeting, keys: list[str], start: int, stop: int, fault: Fault | None) -> Met:
        parts = []
        for key, items, buffers in zip(keys, meeting.items, meeting.buffers, strict=True):
            own = buffers[start:stop]
            parts.append((key, items[start:stop], own if any(own) else None))
        return Met(start, stop, parts, sum(meeting.clear(at) for at in range(start, stop)), fault)

    def let_go(self, start: int, stop: int) -> Iterable[tuple[Stage, int, int]]:
        """Forget items that go no further.

        Yields the stages that will not get them, or have only some of their inputs: how many items, and how
        many bytes.
        """
        for stage, entered in enumerate(self.entered):
            lost = entered.count(0, start, stop)
            if not lost:
                continue
            meeting = self._meetings.get(stage)
            size = 0
            if meeting is not None:
                size = sum(meeting.clear(at) for at in range(start, stop))
            entered[start:stop] = b"\1" * (stop - start)
            yield self.plan.route[stage], lost, size

    def idle(self, start: int, stop: int) -> tuple[list[Range], list[Range]]:
        """Return which of some items no worker has: those that none has had, and those that one has had."""
        new: list[int] = []
        begun: list[int] = []
        for at in range(start, stop):
            places = ((held, at + self.base - held.base) for held in self.live)
            states = (held.state[one] for held, one in places if 0 <= one < len(held.state))
            if self.open[at] and RUNNING not in states:
                (begun if self.touched[at] else new).append(at)
        return intervals.of(new), intervals.of(begun)
