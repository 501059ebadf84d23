"""What clients asked for and what they are owed: admission, bounds, deadlines, outcomes.

Every item that is admitted here leaves the books exactly once, by :meth:`Ledger.answer`,
:meth:`Ledger.fail` or :meth:`Ledger.drop`.  Who runs it is decided in ``dispatch.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs

from zbatch.config import BrokerCoreSettings
from zbatch.core import intervals
from zbatch.core.actions import Send
from zbatch.core.backlog import RUNNING, WAITING, Held, Span, runs
from zbatch.core.clients import Client
from zbatch.core.deadlines import Deadlines
from zbatch.core.intervals import Range
from zbatch.core.links import Link
from zbatch.core.names import part_of
from zbatch.core.pipeline import BEGUN, Flow, Plan, Reader, plan_of
from zbatch.core.session import announce
from zbatch.core.sizes import Buffers, Measure, messages_of, size_of
from zbatch.core.stream import Through, cut, weight_of, without_known
from zbatch.core.stream import messages_of as messages_of_parts
from zbatch.core.topics import Topic, Topics
from zbatch.errors import BY_CODE, UnknownTopic, ZbatchError, to_fault
from zbatch.messages import Fault, Group, Parts, Refusal, Refused, Request, Result, Results, Route, Stage
from zbatch.messages import Flow as Forwarded

LONGEST = 7 * 86_400.0
"""No deadline is further away than a week: a typing error must not hold memory for years."""

RANGES = 4_096
"""Ranges that one message may carry."""

LONGEST_TEXT = 65_536
"""Characters of an error's text."""

DRAINING = Fault("draining", "this broker is leaving; the request was not run", retry_after_ms=500)
"""No outcome: a client keeps the request and asks again, elsewhere or later."""

NAMED = 8
"""Topics that an error names at most."""

MARGIN = 1.1
"""An answer that is expected this close to its deadline would often come too late, for nobody."""

BROKEN = Fault(
    "worker_lost", "some of it was delivered, the rest was lost with its worker: it cannot run again"
)
"""How a stream ends whose worker does not end it."""

GIVEN_BACK = Fault("draining", "no worker here has begun it; ask elsewhere")
GIVEN_BACK_BEGUN = Fault("draining", "it waits here for its next stage; ask elsewhere", kind=BEGUN)


class Ledger:
    """The clients, and every item that has no outcome yet."""

    def __init__(self, settings: BrokerCoreSettings, topics: Topics, measure: Measure = size_of) -> None:
        self.clients: dict[bytes, Client] = {}
        self.size = 0
        """Bytes of everything without an outcome."""
        self.skippable: dict[str, Topic] = {}
        """Topics in which somebody stopped waiting for items that a worker has."""
        self.refused: dict[str, int] = {}
        """Items that were not taken in because there is no such topic, by code."""
        self.unread: list[Held] = []
        """Streams that have ended here and run on at a worker."""
        self._draining = False
        self._limits = settings.limits
        self._longest = settings.limits.topic_age or LONGEST
        """The longest that anything may be expected to wait."""
        self._topics = topics
        self._measure = measure
        self._deadlines: Deadlines[Held] = Deadlines()
        self._owed: dict[bytes, Client] = {}
        self._pipelines = settings.pipelines

    # --- coming in ---------------------------------------------------------------------------------

    def welcome(self, link: Link, *, anew: bool = True) -> Client:
        """Return the client behind a connection, on this connection from now on."""
        client = self.clients.get(link.life)
        if client is None:
            principal = link.life if link.identity is None else link.identity.key
            client = self.clients[link.life] = Client(link, principal)
        elif anew:
            client.reconnected(link)
            if client.flows:
                self._owed[link.life] = client
        else:
            client.link = link
        return client

    def request(self, client: Client, request: Request, frames: Sequence[Any], now: float) -> None:
        """Admit what a client asks for, or refuse it."""
        known: list[Range] | None = None
        position = 0
        for group in request.groups:
            buffers: list[Sequence[Any]] | None = None
            if group.buffers is not None:
                buffers = []
                for count in group.buffers:
                    buffers.append(frames[position : position + count])
                    position += count
            if not group.again:
                self._admit(client, group, buffers, (0, len(group.items)), now)
                continue
            if known is None:
                known = client.held()
            everything = [(group.base, group.base + len(group.items))]
            for start, stop in intervals.subtract(everything, known):
                self._admit(client, group, buffers, (start - group.base, stop - group.base), now)

    def _admit(
        self,
        client: Client,
        group: Group,
        buffers: list[Sequence[Any]] | None,
        part: Range,
        now: float,
    ) -> None:
        start, stop = part
        route = group.route
        if route is None and self._pipelines:
            route = self._pipelines.get(group.topic)
        if route is not None:
            self._admit_flow(client, route, group, buffers, part, now)
            return
        try:
            topic = self._topics.open(group.topic)
        except UnknownTopic as unknown:
            self._turn_away(client, None, (group.base + start, group.base + stop), to_fault(unknown))
            return
        if self._draining or group.deadline_ms == 0:
            self._turn_away(client, topic, (group.base + start, group.base + stop), self._not_now())
            return
        at_once = topic.roster.items_at_once
        soonest = min(group.deadline_ms / 1000, self._longest) * at_once
        # No more than the whole queue can be ahead; mostly that is little, and nobody need count.
        if (topic.items + at_once) * topic.typical_run * MARGIN > soonest:
            vain = self._waits_in_vain(client, topic, group)
            if vain is not None:
                self._turn_away(client, topic, (group.base + start, group.base + stop), vain)
                return
        size = self._size(group, buffers, part)
        if self._fits(client, topic, stop - start, size):
            self._enter(client, topic, group, buffers, part, size, now)
        elif group.whole:
            fault = self._too_large(stop - start, size) or self._overloaded(topic, now)
            self._turn_away(client, topic, (group.base + start, group.base + stop), fault)
        else:
            self._admit_some(client, topic, group, buffers, part, now)

    def _not_now(self) -> Fault:
        """Return why nothing is taken in: this broker leaves, or else there was no time left."""
        if self._draining:
            return DRAINING
        return Fault("deadline_exceeded", "the deadline had passed when the request arrived")

    def _admit_some(
        self,
        client: Client,
        topic: Topic,
        group: Group,
        buffers: list[Sequence[Any]] | None,
        part: Range,
        now: float,
    ) -> None:
        """Admit the first items of a group, as many as there is room for."""
        start, stop = part
        while start < stop:
            end, size = start, 0
            while end < stop:
                own = self._size(group, buffers, (end, end + 1))
                if not self._fits(client, topic, end + 1 - start, size + own):
                    break
                end, size = end + 1, size + own
            if end > start:
                self._enter(client, topic, group, buffers, (start, end), size, now)
                start = end
                continue
            fault = self._too_large(1, own)
            end = stop if fault is None else start + 1
            ids = (group.base + start, group.base + end)
            self._turn_away(client, topic, ids, fault or self._overloaded(topic, now))
            start = end

    def _turn_away(self, client: Client, topic: Topic | None, ids: Range, fault: Fault) -> None:
        """Refuse what was not taken in, and count it."""
        refused = self.refused if topic is None else topic.tally.refused
        refused[fault.code] = refused.get(fault.code, 0) + ids[1] - ids[0]
        self._refuse(client, ids, fault)

    def _size(self, group: Group, buffers: list[Sequence[Any]] | None, part: Range) -> int:
        start, stop = part
        if stop - start == len(group.items):
            return self._measure(group.items, buffers)
        return self._measure(group.items[start:stop], buffers[start:stop] if buffers is not None else None)

    def _enter(
        self,
        client: Client,
        topic: Topic,
        group: Group,
        buffers: list[Sequence[Any]] | None,
        part: Range,
        size: int,
        now: float,
    ) -> None:
        start, stop = part
        items, own, costs, later = group.items, buffers, group.costs, group.later_ms
        if start or stop < len(items):
            items = items[start:stop]
            own = own[start:stop] if own is not None else None
            costs = costs[start:stop] if costs is not None else None
            later = later[start:stop] if later is not None else None
        held = Held(
            owner=client,
            principal=client.principal,
            topic=group.topic,
            base=group.base + start,
            items=items,
            buffers=own,
            deadline=now + min(group.deadline_ms / 1000, LONGEST),
            arrived=now,
            priority=group.priority,
            key=group.key,
            costs=costs,
            size=size,
            again=group.again,
            later=[ms / 1000 for ms in later] if later is not None else None,
        )
        if group.names is not None:
            held.names = part_of(group.names, start, stop)
        if group.patience_ms:
            held.stream = Through(min(group.patience_ms / 1000, LONGEST))
        client.items += held.open
        self._queue(client, topic, held, now)

    def _queue(self, client: Client, topic: Topic, held: Held, now: float) -> None:
        held.bucket = self._deadlines.add(held.deadline, held)
        client.hold(held)
        count = held.open
        client.size += held.size
        topic.items += count
        topic.size += held.size
        self.size += held.size
        topic.tally.items += count
        topic.tally.size += held.size
        topic.asked(client.principal, now)
        topic.backlog.push(Span(held, 0, count))
        self._topics.touch(topic)

    def _weigh(self, client: Client, topic: Topic, size: int) -> None:
        """Count bytes that a client has in a topic now, or (less than none) has there no more."""
        client.size += size
        topic.size += size
        self.size += size

    def _fits(self, client: Client, topic: Topic, items: int, size: int) -> bool:
        """Return whether no bound would be passed with so many more items of so many bytes."""
        limits = self._limits
        return (
            client.items + items <= limits.client_items
            and topic.items + topic.coming + items <= limits.topic_items
            and client.size + size <= limits.client_bytes
            and topic.size + size <= limits.topic_bytes
            and self.size + size <= limits.broker_bytes
        )

    def _waits_in_vain(self, client: Client, topic: Topic, group: Group) -> Fault | None:
        """Return why a request that would wait in vain had better come later: it is told so at once."""
        if group.again or not topic.roster.items_at_once:
            return None
        latest = group.deadline_ms + (max(group.later_ms) if group.later_ms else 0)
        longest = min(latest / 1000, self._longest)
        wait = topic.wait(group.priority, client.principal)
        if wait * MARGIN <= longest:
            return None
        later = min(60.0, max(0.1, wait - longest / 2))
        return Fault(
            "overloaded",
            f"topic {topic.name!r} has {topic.items} unfinished items: this one would wait {wait:.1f} s, "
            f"longer than {longest:.1f} s; come back in {later:.1f} s",
            retry_after_ms=int(later * 1000),
        )

    def _too_large(self, count: int, size: int) -> Fault | None:
        """Return why a request would not even fit into an empty broker: to come back later would not help."""
        limits = self._limits
        items = min(limits.client_items, limits.topic_items)
        if count > items:
            text = (
                f"the request has {count} items, at most {items} are held for a client: send fewer at a time"
            )
            return Fault("too_large", text)
        most = min(limits.client_bytes, limits.topic_bytes, limits.broker_bytes)
        if size > most:
            text = f"the request has {size} bytes, at most {most} are held for a client: send fewer at a time"
            return Fault("too_large", text)
        return None

    def _overloaded(self, topic: Topic, now: float) -> Fault:
        rate = topic.tally.rate.per_second(now)
        seconds = min(60.0, max(0.1, topic.items / rate)) if rate else 1.0
        return Fault(
            "overloaded",
            f"a bound is reached: topic {topic.name!r} has {topic.items} unfinished items; "
            f"come back in {seconds:.1f} s",
            retry_after_ms=int(seconds * 1000),
        )

    # --- pipelines ---------------------------------------------------------------------------------

    def _admit_flow(
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
            topics = self._topics.open_all(stage.topic for stage in route)
        except ValueError as wrong:
            self._turn_away(client, None, ids, Fault("bad_request", f"this is no pipeline: {wrong}"))
            return
        except UnknownTopic as unknown:
            self._turn_away(client, None, ids, to_fault(unknown))
            return
        refused = self._draining or group.deadline_ms == 0
        fault = self._not_now() if refused else self._flows_in_vain(client, topics, group)
        if fault is not None:
            self._turn_away(client, topics[0], ids, fault)
            return
        size = self._size(group, buffers, part)
        tight = self._too_tight(client, plan, topics, stop - start, size)
        if tight is None:
            self._enter_flow(client, plan, topics, group, buffers, part, now)
        elif group.whole or stop - start == 1:
            fault = self._too_large(stop - start, size) or self._overloaded(tight, now)
            self._turn_away(client, tight, ids, fault)
        else:
            for at in range(start, stop):
                self._admit_flow(client, route, group, buffers, (at, at + 1), now)

    def _flows_in_vain(self, client: Client, topics: list[Topic], group: Group) -> Fault | None:
        """Return why a request would wait in vain in some stage, however soon it came there."""
        found = (self._waits_in_vain(client, topic, group) for topic in dict.fromkeys(topics))
        return next((fault for fault in found if fault is not None), None)

    def _too_tight(
        self, client: Client, plan: Plan, topics: list[Topic], items: int, size: int
    ) -> Topic | None:
        """Return a topic whose bounds, or its client's, would be passed with so many more items on this way.

        Each stage keeps a place for each item.  What the later ones will weigh is not known yet: for their
        bytes see :meth:`_heavy`.
        """
        limits = self._limits
        firsts = [topics[reader.stage] for reader in plan.readers[0]]
        weight = size * len(firsts)
        if (
            client.items + items > limits.client_items
            or client.size + weight > limits.client_bytes
            or self.size + weight > limits.broker_bytes
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
        topic = self._topics.all[stage.topic]
        size = self._measure(items, buffers)
        heavy = self._heavy(client, topic, size, now)
        if heavy is not None and len(items) > 1:
            for at in range(len(items)):
                own = None if buffers is None else buffers[at : at + 1]
                self._give(flow, reader, start + at, items[at : at + 1], own, now)
            return
        if heavy is not None:
            self._fail_flow(flow, (start, start + 1), stage, heavy)
            return
        if not flow.plan.joins(reader.stage):
            self._enter_stage(flow, reader.stage, start, items, buffers, size, now)
            return
        sizes = [
            self._measure(items[at : at + 1], buffers and buffers[at : at + 1]) for at in range(len(items))
        ]
        self._weigh(client, topic, size)
        for met in flow.meet(reader, start, items, buffers, sizes, self._limits.message_bytes):
            self._weigh(client, topic, -met.size)
            if met.fault is not None:
                self._fail_flow(flow, (met.start, met.stop), stage, met.fault)
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
        topic = self._topics.all[flow.plan.route[stage].topic]
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
        self._queue(client, topic, held, now)

    def _heavy(self, client: Client, topic: Topic, size: int, now: float) -> Fault | None:
        """Return why there is no room for what a stage has made: only now is it known how large that is."""
        limits = self._limits
        if (
            client.size + size <= limits.client_bytes
            and topic.size + size <= limits.topic_bytes
            and self.size + size <= limits.broker_bytes
        ):
            return None
        return self._too_large(1, size) or self._overloaded(topic, now)

    def _advance(self, held: Held, part: Range, results: Results, frames: Sequence[Any], now: float) -> None:
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
        self._end(held, part)
        self._hand_on(flow, held.stage + 1, start, results.outputs, buffers, now)

    def _fail_flow(self, flow: Flow, part: Range, stage: Stage, fault: Fault) -> None:
        """Owe a client an error, which came in a stage, for those of some items that have no outcome yet."""
        start, stop = part
        where = f"stage {stage.name!r}: "
        told = structs.replace(fault, text=where + fault.text[: LONGEST_TEXT - len(where)])
        failed = intervals.of(at for at in range(start, stop) if flow.open[at])
        self._count(stage.topic, fault, intervals.count(failed))
        for first, last in failed:
            self._refuse(flow.owner, (flow.base + first, flow.base + last), told)
        self._end_flow(flow, part)

    def _end_flow(self, flow: Flow, part: Range) -> None:
        """Let go of items wherever they are on their way: they have their outcome, or nobody wants one."""
        start, stop = part
        client: Client = flow.owner
        client.items -= flow.open.count(1, start, stop)
        flow.open[start:stop] = bytes(stop - start)
        for held in list(flow.live):
            away = flow.base - held.base
            first, last = max(0, start + away), min(len(held.state), stop + away)
            if first < last:
                self._skip(held, first, last)
                self._end(held, (first, last))
        for stage, items, size in flow.let_go(start, stop):
            topic = self._topics.all[stage.topic]
            topic.coming -= items
            self._weigh(client, topic, -size)

    def _skip(self, held: Held, first: int, last: int) -> None:
        """Have a worker told that nobody waits for items that it has not begun."""
        if held.state.find(RUNNING, first, last) >= 0:
            topic = self._topics.all[held.topic]
            self.skippable[topic.name] = topic
            self._topics.touch(topic)

    # --- going out ---------------------------------------------------------------------------------

    def answer(
        self,
        held: Held,
        part: Range,
        results: Results,
        frames: Sequence[Any],
        now: float,
    ) -> None:
        """Owe a client the outputs of some items."""
        client: Client = held.owner
        self._count_answered(held, part[1] - part[0], now)
        flow: Flow | None = held.flow
        if flow is not None and held.stage < flow.plan.last:
            self._advance(held, part, results, frames, now)
            return
        client.results.append(results)
        if frames:
            client.frames += frames
        self._owed[client.link.life] = client
        self._end(held, part)
        if flow is not None:
            self._end_flow(flow, _within(held, part))

    def _count_answered(self, held: Held, count: int, now: float) -> None:
        tally = self._topics.all[held.topic].tally
        tally.latency.record(now - held.arrived, count)
        tally.answered += count
        tally.rate.add(count, now)

    def forward(self, held: Held, flow: Forwarded, frames: Sequence[Any], now: float) -> None:
        """Owe a client parts of a stream, and its end where that has come."""
        stream = held.stream
        if stream is None or not held.open:
            return
        known = without_known(flow, stream.parts)
        parts = cut(flow, frames)[known:]
        stream.sent += sum(weight_of(part, self._measure) for part in parts)
        if known is None or stream.is_overfull:
            text = "parts of it were lost" if known is None else "its worker sends more than is read"
            self.fail(held, (0, 1), Fault("worker_lost", text))
            return
        client: Client = held.owner
        if parts or flow.ended:
            counts = [len(own) for _, own in parts] if flow.buffers is not None else None
            fresh = Forwarded(held.base, stream.parts, [one for one, _ in parts], counts, flow.ended)
            client.flows.append((fresh, [frame for _, own in parts for frame in own]))
            self._owed[client.link.life] = client
            stream.parts += len(parts)
            held.deadline = now + stream.patience
        if flow.fault is not None:
            stream.handed = None
            self.fail(held, (0, 1), flow.fault)
        elif flow.ended:
            stream.handed = None
            self._count_answered(held, 1, now)
            self._end(held, (0, 1))

    def taken(self, client: Client, base: int, taken: int, now: float) -> Held | None:
        """Learn how much of a stream was read; return it if it is one that runs."""
        for held, _, _ in client.find(base, base + 1):
            stream = held.stream
            if stream is not None and held.open:
                if stream.taken < min(taken, stream.sent):
                    stream.taken = min(taken, stream.sent)
                    held.deadline = now + stream.patience
                return held
        return None

    def fail(self, held: Held, part: Range, fault: Fault) -> None:
        """Owe a client an error for those of some items that have no outcome yet."""
        open_parts = runs(held, RUNNING, *part) + runs(held, WAITING, *part)
        if not open_parts:
            return
        flow: Flow | None = held.flow
        if flow is not None:
            for one in open_parts:
                self._fail_flow(flow, _within(held, one), flow.plan.route[held.stage], fault)
            return
        self._count(held.topic, fault, intervals.count(open_parts))
        for one in open_parts:
            self._refuse(held.owner, (held.base + one[0], held.base + one[1]), fault)
            self._end(held, one)

    def _count(self, topic: str, fault: Fault, items: int) -> None:
        errors = self._topics.all[topic].tally.errors
        # A code is a worker's to say, what is counted is not: codes without a class are one.
        code = fault.code if fault.code in BY_CODE else ZbatchError.code
        errors[code] = errors.get(code, 0) + items

    def drop(self, client: Client, ids: Range) -> None:
        """Forget ids without an outcome: their client does not want one."""
        for held, first, last in client.find(*ids):
            if held.flow is not None:
                self._end_flow(held.flow, _within(held, (first, last)))
                continue
            self._skip(held, first, last)
            self._end(held, (first, last))

    def give_back(self, client: Client, ids: Range) -> None:
        """Give a client back what it wants to ask elsewhere, so far as no worker has it.

        What waits to be run apart stays: elsewhere nobody would know what it is suspected of.
        """
        for held, first, last in client.find(*ids):
            waiting = runs(held, WAITING, first, last)
            for begun in self._hand_over(client, held, waiting, GIVEN_BACK):
                self._refuse(client, (held.flow.base + begun[0], held.flow.base + begun[1]), GIVEN_BACK_BEGUN)
                self._end_flow(held.flow, begun)

    def hand_back(self) -> None:
        """Take nothing new, and hand back what no worker has had."""
        self._draining = True
        for client in list(self.clients.values()):
            for held in client.groups():
                self._hand_over(client, held, runs(held, WAITING), DRAINING)

    def _hand_over(self, client: Client, held: Held, parts: list[Range], fault: Fault) -> list[Range]:
        """Refuse what waits, but return of a pipeline's what some stage has had."""
        kept: list[Range] = []
        flow: Flow | None = held.flow
        for start, stop in parts:
            if flow is None:
                self._refuse(client, (held.base + start, held.base + stop), fault)
                self._end(held, (start, stop))
                continue
            new, begun = flow.idle(*_within(held, (start, stop)))
            kept += begun
            for first, last in new:
                self._refuse(client, (flow.base + first, flow.base + last), fault)
                self._end_flow(flow, (first, last))
        return kept

    def forget(self, client: Client) -> None:
        """Forget a client, and what of its items waits."""
        for held in client.groups():
            self.drop(client, (held.base, held.base + len(held.state)))
        self.clients.pop(client.link.life, None)
        self._owed.pop(client.link.life, None)

    def reconcile(self, client: Client, wanted: Sequence[Range], upto: int) -> list[Range]:
        """Drop what a client no longer wants; return what it wants and is not here."""
        wanted = intervals.normal(wanted)
        if client.has_flowing:
            client.wants(wanted, upto)
        held = client.held()
        for unwanted in intervals.subtract(intervals.intersect(held, [(0, upto)]), wanted):
            self.drop(client, unwanted)
        return intervals.subtract(wanted, held)[:RANGES]

    def expire(self, now: float) -> None:
        """End what has reached its deadline."""
        for held in self._deadlines.due(now):
            if held.stream is not None and now < held.deadline:
                # Its deadline is for the next part, and one has come since this was noted.
                held.bucket = self._deadlines.add(held.deadline, held)
                continue
            self.expired(held, now)
            following = held.next_due(now)
            if following is not None:
                held.bucket = self._deadlines.add(following, held)

    def expired(self, held: Held, now: float) -> None:
        """End what is due of a group, with the error that says what was missing."""
        topic = self._topics.all[held.topic]
        waited = now - held.arrived
        if held.stream is not None and held.stream.parts:
            fault = _broken_off(held.stream)
        elif len(topic.roster) or (topic.served is not None and topic.served >= held.arrived):
            running = held.state.find(RUNNING) >= 0
            where = "while it ran" if running else f"while it waited ({topic.items} unfinished items here)"
            fault = Fault("deadline_exceeded", f"the deadline passed after {waited:.3f} s, {where}")
        else:
            served = self._topics.served(NAMED)
            others = f"; served here: {', '.join(served)}" if served else ""
            fault = Fault(
                "no_workers",
                f"the deadline passed after {waited:.3f} s and no worker served topic {topic.name!r} "
                f"meanwhile; start one with: zbatch worker MODEL --topic {topic.name}{others}",
            )
        for part in held.due(now):
            self.fail(held, part, fault)

    def flush(self) -> Iterator[Send]:
        """Yield what clients are owed, one message a client and kind."""
        owed, self._owed = self._owed, {}
        for life, client in owed.items():
            link = client.link
            if link.gone is not None:
                # It may come back within its grace; a result kept is an execution saved.
                self._owed[life] = client
                continue
            if client.results:
                owing, client.results = client.results, []
                bulk, client.frames = client.frames, []
                for spans, frames in messages_of(owing, bulk):
                    yield from announce(link.peer, link.stamp, sum(map(len, frames)))
                    result = Result(*link.stamp(), spans)
                    client.sent(result.number, [(one.base, one.base + len(one.outputs)) for one in spans])
                    yield Send(link.peer, result, frames)
            if client.flows:
                yield from self._flush_parts(client)
            if client.refusals:
                refusals, client.refusals = client.refusals, []
                refused = Refused(*link.stamp(), refusals)
                client.sent(refused.number, [one for refusal in refusals for one in refusal.ids])
                yield Send(link.peer, refused)

    def _flush_parts(self, client: Client) -> Iterator[Send]:
        link = client.link
        flowing, client.flows = client.flows, []
        place = 0
        for flows, frames in messages_of_parts(flowing, self._measure):
            yield from announce(link.peer, link.stamp, sum(map(len, frames)))
            parts = Parts(*link.stamp(), flows)
            client.flowed(parts.number, flowing[place : place + len(flows)])
            place += len(flows)
            yield Send(link.peer, parts, frames)

    def wakeup(self) -> float | None:
        """Return when the next deadline is due."""
        return self._deadlines.next()

    def _refuse(self, client: Client, ids: Range, fault: Fault) -> None:
        last = client.refusals[-1] if client.refusals else None
        if last is not None and last.fault == fault and len(last.ids) < RANGES:
            last.ids.append(ids)
        else:
            client.refusals.append(Refusal([ids], fault))
        self._owed[client.link.life] = client

    def _end(self, held: Held, part: Range) -> None:
        topic = self._topics.all[held.topic]
        ended = topic.backlog.close(held, *part)
        if not ended:
            return
        client: Client = held.owner
        if held.flow is None:
            client.items -= ended
        topic.items -= ended
        if topic.apart:
            self._topics.touch(topic)
        if not held.open:
            if held.stream is not None and held.stream.handed is not None:
                self.unread.append(held)
            client.size -= held.size
            topic.size -= held.size
            self.size -= held.size
            self._deadlines.discard(held.bucket, held)
            client.release(held)
            if held.flow is not None:
                held.flow.live.remove(held)


def _within(held: Held, part: Range) -> Range:
    """Return some positions of a pipeline's group in one stage as those in its whole way."""
    away = held.base - held.flow.base
    return part[0] + away, part[1] + away


def _broken_off(stream: Through) -> Fault:
    if stream.is_full:
        return Fault("reader_too_slow", f"nothing of what had come was read for {stream.patience:.3f} s")
    return Fault("deadline_exceeded", f"no further part came within {stream.patience:.3f} s")
