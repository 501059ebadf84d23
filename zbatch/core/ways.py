"""Ways through several topics: items are admitted for all of it, handed on, and ended wherever they are.

What a way may be, and what lies between its stages, is in ``pipeline.py``; in each stage items wait and run
as anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from zbatch.core import intervals
from zbatch.core.backlog import Held
from zbatch.core.books import LONGEST, Books, open_of
from zbatch.core.clients import Client
from zbatch.core.intervals import Range
from zbatch.core.names import part_of
from zbatch.core.pipeline import Flow, Plan, Reader, plan_of
from zbatch.core.sizes import Buffers
from zbatch.core.topics import Topic
from zbatch.errors import UnknownTopic, to_fault
from zbatch.messages import Fault, Group, Results, Route, Stage

LONGEST_TEXT = 65_536
"""Characters of an error's text."""


class Ways:
    """The items that go through several topics."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def admit(
        self,
        client: Client,
        route: Route,
        group: Group,
        buffers: list[Sequence[Any]] | None,
        part: Range,
        now: float,
    ) -> None:
        """Admit what goes through several topics, or refuse it: now, for all of its way."""
        start, stop = part
        ids = (group.base + start, group.base + stop)
        try:
            plan = plan_of(route)
            topics = self._books.topics.open_all(stage.topic for stage in route)
        except ValueError as wrong:
            self._books.turn_away(client, None, ids, Fault("bad_request", f"this is no pipeline: {wrong}"))
            return
        except UnknownTopic as unknown:
            self._books.turn_away(client, None, ids, to_fault(unknown))
            return
        refused = self._books.draining or group.deadline_ms == 0
        fault = self._books.not_now() if refused else self._flows_in_vain(client, topics, group)
        if fault is not None:
            self._books.turn_away(client, topics[0], ids, fault)
            return
        size = self._books.size_of(group, buffers, part)
        tight = self._too_tight(client, plan, topics, stop - start, size)
        if tight is None:
            self._enter_flow(client, plan, topics, group, buffers, part, now)
        elif group.whole or stop - start == 1:
            fault = self._books.too_large(stop - start, size) or self._books.overloaded(tight, now)
            self._books.turn_away(client, tight, ids, fault)
        else:
            for at in range(start, stop):
                self.admit(client, route, group, buffers, (at, at + 1), now)

    def _flows_in_vain(self, client: Client, topics: list[Topic], group: Group) -> Fault | None:
        """Return why a request would wait in vain in some stage, however soon it came there."""
        found = (self._books.waits_in_vain(client, topic, group) for topic in dict.fromkeys(topics))
        return next((fault for fault in found if fault is not None), None)

    def _too_tight(
        self, client: Client, plan: Plan, topics: list[Topic], items: int, size: int
    ) -> Topic | None:
        """Return a topic whose bounds, or its client's, would be passed with so many more items on this way.

        Each stage keeps a place for each item.  What the later ones will weigh is not known yet: for their
        bytes see :meth:`_heavy`.
        """
        limits = self._books.limits
        firsts = [topics[reader.stage] for reader in plan.readers[0]]
        weight = size * len(firsts)
        if (
            client.items + items > limits.client_items
            or client.size + weight > limits.client_bytes
            or self._books.size + weight > limits.broker_bytes
        ):
            return topics[0]
        for topic in topics:
            if (
                topic.items + topic.coming + items * topics.count(topic) > limits.topic_items
                or topic.size + size * firsts.count(topic) > limits.topic_bytes
            ):
                return topic
        return None

    def _enter_flow(
        self,
        client: Client,
        plan: Plan,
        topics: list[Topic],
        group: Group,
        buffers: list[Sequence[Any]] | None,
        part: Range,
        now: float,
    ) -> None:
        start, stop = part
        flow = Flow(
            plan,
            client,
            group.topic,
            group.base + start,
            stop - start,
            deadline=now + min(group.deadline_ms / 1000, LONGEST),
            arrived=now,
            later=[ms / 1000 for ms in group.later_ms[start:stop]] if group.later_ms is not None else None,
            priority=group.priority,
            key=group.key,
            costs=group.costs[start:stop] if group.costs is not None else None,
            again=group.again,
            names=part_of(group.names, start, stop),
        )
        client.items += stop - start
        for topic in topics:
            topic.coming += stop - start
        self._hand_on(
            flow, 0, 0, group.items[start:stop], None if buffers is None else buffers[start:stop], now
        )

    def advance(self, held: Held, part: Range, results: Results, frames: Sequence[Any], now: float) -> None:
        """Hand on what a stage has made, as it came; what the last one makes is for the client."""
        flow: Flow = held.flow
        start = held.base + part[0] - flow.base
        stop = start + part[1] - part[0]
        flow.touched[start:stop] = b"\1" * (stop - start)
        buffers: list[Sequence[Any]] | None = None
        if results.buffers is not None:
            buffers = []
            place = 0
            for count in results.buffers:
                buffers.append(frames[place : place + count])
                place += count
        # First, for what it weighed makes room.
        self._books.end(held, part)
        self._hand_on(flow, held.stage + 1, start, results.outputs, buffers, now)

    def fail(self, held: Held, part: Range, fault: Fault) -> None:
        """Owe a client an error for those of some items in a stage that have no outcome yet."""
        flow: Flow = held.flow
        for one in open_of(held, part):
            self._fail(flow, within(held, one), flow.plan.route[held.stage], fault)

    def end(self, flow: Flow, part: Range) -> None:
        """Let go of items wherever they are on their way: they have their outcome, or nobody wants one."""
        start, stop = part
        client: Client = flow.owner
        client.items -= flow.open.count(1, start, stop)
        flow.open[start:stop] = bytes(stop - start)
        for held in list(flow.live):
            away = flow.base - held.base
            first, last = max(0, start + away), min(len(held.state), stop + away)
            if first < last:
                self._books.skip(held, first, last)
                self._books.end(held, (first, last))
        for stage, items, size in flow.let_go(start, stop):
            topic = self._books.topics.all[stage.topic]
            topic.coming -= items
            self._books.weigh(client, topic, -size)

    def _hand_on(
        self, flow: Flow, source: int, start: int, items: Sequence[Any], buffers: Buffers, now: float
    ) -> None:
        """Give what the request or a stage has made of some items to every stage that reads it."""
        for reader in flow.plan.readers[source]:
            for first, last in flow.awaited(reader.stage, start, start + len(items)):
                here = slice(first - start, last - start)
                own = None if buffers is None else buffers[here]
                self._give(flow, reader, first, items[here], own, now)

    def _give(
        self, flow: Flow, reader: Reader, start: int, items: Sequence[Any], buffers: Buffers, now: float
    ) -> None:
        client: Client = flow.owner
        stage = flow.plan.route[reader.stage]
        topic = self._books.topics.all[stage.topic]
        size = self._books.measure(items, buffers)
        heavy = self._heavy(client, topic, size, now)
        if heavy is not None and len(items) > 1:
            for at in range(len(items)):
                own = None if buffers is None else buffers[at : at + 1]
                self._give(flow, reader, start + at, items[at : at + 1], own, now)
            return
        if heavy is not None:
            self._fail(flow, (start, start + 1), stage, heavy)
            return
        if not flow.plan.joins(reader.stage):
            self._enter_stage(flow, reader.stage, start, items, buffers, size, now)
            return
        sizes = [
            self._books.measure(items[at : at + 1], buffers and buffers[at : at + 1])
            for at in range(len(items))
        ]
        self._books.weigh(client, topic, size)
        for met in flow.meet(reader, start, items, buffers, sizes, self._books.limits.message_bytes):
            self._books.weigh(client, topic, -met.size)
            if met.fault is not None:
                self._fail(flow, (met.start, met.stop), stage, met.fault)
                continue
            empty = [b""] * (met.stop - met.start)
            self._enter_stage(flow, reader.stage, met.start, empty, None, met.size, now, met.parts)

    def _enter_stage(
        self,
        flow: Flow,
        stage: int,
        start: int,
        items: Sequence[Any],
        buffers: Buffers,
        size: int,
        now: float,
        parts: Any = None,
    ) -> None:
        """Let items wait in a stage, in place of those that were kept for them."""
        client: Client = flow.owner
        stop = start + len(items)
        topic = self._books.topics.all[flow.plan.route[stage].topic]
        held = Held(
            owner=client,
            principal=client.principal,
            topic=topic.name,
            base=flow.base + start,
            items=items,
            buffers=None if buffers is None else list(buffers),
            deadline=flow.deadline,
            arrived=now,
            priority=flow.priority,
            key=flow.key,
            costs=flow.costs[start:stop] if flow.costs is not None else None,
            size=size,
            again=flow.again,
            later=flow.later[start:stop] if flow.later is not None else None,
            flow=flow,
            stage=stage,
            parts=parts,
            names=part_of(flow.names, start, stop),
        )
        flow.entered[stage][start:stop] = b"\1" * len(items)
        flow.live.append(held)
        topic.coming -= len(items)
        self._books.enter(client, topic, held, now)

    def _heavy(self, client: Client, topic: Topic, size: int, now: float) -> Fault | None:
        """Return why there is no room for what a stage has made: only now is it known how large that is."""
        if self._books.has_bytes_for(client, topic, size):
            return None
        return self._books.too_large(1, size) or self._books.overloaded(topic, now)

    def _fail(self, flow: Flow, part: Range, stage: Stage, fault: Fault) -> None:
        """Owe a client an error, which came in a stage, for those of some items that have no outcome yet."""
        start, stop = part
        where = f"stage {stage.name!r}: "
        told = structs.replace(fault, text=where + fault.text[: LONGEST_TEXT - len(where)])
        failed = intervals.of(at for at in range(start, stop) if flow.open[at])
        self._books.count(stage.topic, fault, intervals.count(failed))
        for first, last in failed:
            self._books.refuse(flow.owner, (flow.base + first, flow.base + last), told)
        self.end(flow, part)


def within(held: Held, part: Range) -> Range:
    """Return some positions of a pipeline's group in one stage as those in its whole way."""
    away = held.base - held.flow.base
    return part[0] + away, part[1] + away
