"""How calls become groups: what may travel together, how much at a time, and what of it goes on the wire.

Calls of one item that agree in topic, key and priority share a group; a call of several is one by itself.
When groups leave, and to whom, is decided in ``client.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from zbatch.core.calls import Call, Sent
from zbatch.core.names import part_of
from zbatch.core.sizes import Measure
from zbatch.messages import Group

GROUP_ITEMS = 1_024
GROUP_BYTES = 256 << 10
"""A group is handed on when all of it has arrived: large items in one group would wait for each other."""

_ITEM = attrgetter("item")
_NAME = attrgetter("name")
_DEADLINE = attrgetter("deadline")


def groups_of(mark: tuple[Any, ...], calls: list[Call], now: float, measure: Measure) -> Iterator[Sent]:
    """Yield the groups in which consecutive calls of one mark travel; they have no ids yet."""
    if not calls:
        return
    first = calls[0]
    topic, key, priority = mark[:3]
    route = None
    if type(topic) is not str:
        topic, route = topic.name, topic.route
    if first.items is not None:
        costs = list(first.costs) if first.costs is not None else None
        sent = Sent(topic, key, priority, [first], first.items, first.deadline, now)
        sent.buffers, sent.costs, sent.whole, sent.route = first.buffers, costs, True, route
        sent.inflow = first.inflow
        if first.name:
            sent.names = [first.name]
        yield sent
        return
    for part in _parts(calls, measure):
        sent = Sent(topic, key, priority, part, list(map(_ITEM, part)), first.deadline, now)
        sent.route = route
        deadlines = list(map(_DEADLINE, part))
        if deadlines.count(deadlines[0]) != len(deadlines):
            sent.deadlines = deadlines
        sent.deadline = min(deadlines)
        if first.buffers is not None:
            sent.buffers = [call.buffers[0] for call in part]
        if first.costs is not None:
            sent.costs = [call.costs[0] for call in part]
        if any(map(_NAME, part)):
            sent.names = list(map(_NAME, part))
        yield sent


def _parts(calls: list[Any], measure: Measure) -> Iterator[list[Any]]:
    """Cut calls of one item that could share a group into groups of a bounded size."""
    for start in range(0, len(calls), GROUP_ITEMS):
        some = calls[start : start + GROUP_ITEMS]
        if some[0].buffers is None and measure(list(map(_ITEM, some)), None) <= GROUP_BYTES:
            yield some
            continue
        part: list[Any] = []
        size = 0
        for call in some:
            own = measure((call.item,), call.buffers)
            if part and size + own > GROUP_BYTES:
                yield part
                part, size = [], 0
            part.append(call)
            size += own
        yield part


def for_the_wire(sent: Sent, start: int, stop: int, now: float, frames: list[Any]) -> Group:
    """Return a group, or some of its items, as it is sent now; its buffers are put behind ``frames``."""
    items: Sequence[bytes] = sent.items
    costs = sent.costs
    counts = None
    if start or stop < len(items):
        items = items[start:stop]
        costs = costs[start:stop] if costs is not None else None
    if sent.buffers is not None:
        own = sent.buffers[start:stop]
        counts = [len(one) for one in own]
        for one in own:
            frames += one
    left = max(1, int((sent.deadline - now) * 1000))
    later = None
    if sent.deadlines is not None:
        own_deadlines = sent.deadlines[start:stop]
        earliest = min(own_deadlines)
        left = max(1, int((earliest - now) * 1000))
        later = [int((one - earliest) * 1000) for one in own_deadlines]
    again = sent.times > 0
    return Group(
        sent.base + start,
        sent.topic,
        left,
        items,  # type: ignore[arg-type]
        counts,
        sent.priority,
        sent.key,
        costs,
        sent.whole and not again,
        again,
        later,
        sent.route,
        0 if sent.inflow is None else max(1, int(sent.inflow.patience * 1000)),
        part_of(sent.names, start, stop),
    )
