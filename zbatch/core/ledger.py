"""What clients asked for and what they are owed: admission, deadlines, outcomes.

Every item that is admitted here leaves the books (``books.py``) exactly once, by :meth:`Ledger.answer`,
:meth:`Ledger.fail` or :meth:`Ledger.drop`.  What goes through several topics is kept in step in ``ways.py``,
results that come part by part in ``relay.py``; who runs what is decided in ``dispatch.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from zbatch.config import BrokerCoreSettings
from zbatch.core import intervals
from zbatch.core.actions import Send
from zbatch.core.backlog import RUNNING, WAITING, Held, runs
from zbatch.core.books import DRAINING, LONGEST, MARGIN, RANGES, Books
from zbatch.core.clients import Client
from zbatch.core.intervals import Range
from zbatch.core.links import Link
from zbatch.core.names import part_of
from zbatch.core.pipeline import BEGUN, Flow
from zbatch.core.relay import Relay, broken_off
from zbatch.core.session import announce
from zbatch.core.sizes import Measure, messages_of, size_of
from zbatch.core.stream import Through
from zbatch.core.topics import Topic, Topics
from zbatch.core.ways import Ways, within
from zbatch.errors import UnknownTopic, to_fault
from zbatch.messages import Fault, Group, Refused, Request, Result, Results

NAMED = 8
"""Topics that an error names at most."""

GIVEN_BACK = Fault("draining", "no worker here has begun it; ask elsewhere")
GIVEN_BACK_BEGUN = Fault("draining", "it waits here for its next stage; ask elsewhere", kind=BEGUN)


class Ledger:
    """The clients, and every item that has no outcome yet."""

    def __init__(self, settings: BrokerCoreSettings, topics: Topics, measure: Measure = size_of) -> None:
        self.books = Books(settings, topics, measure)
        self.relay = Relay(self.books)
        self.clients = self.books.clients
        self._ways = Ways(self.books)
        self._topics = topics
        self._pipelines = settings.pipelines

    @property
    def size(self) -> int:
        """Bytes of everything without an outcome."""
        return self.books.size

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
                self.books.owed[link.life] = client
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
        books = self.books
        start, stop = part
        route = group.route
        if route is None and self._pipelines:
            route = self._pipelines.get(group.topic)
        if route is not None:
            self._ways.admit(client, route, group, buffers, part, now)
            return
        try:
            topic = self._topics.open(group.topic)
        except UnknownTopic as unknown:
            self._turn_away(client, None, group, part, to_fault(unknown))
            return
        if books.draining or group.deadline_ms == 0:
            self._turn_away(client, topic, group, part, books.not_now())
            return
        at_once = topic.roster.items_at_once
        soonest = min(group.deadline_ms / 1000, books.longest) * at_once
        # No more than the whole queue can be ahead; mostly that is little, and nobody need count.
        if (topic.items + at_once) * topic.typical_run * MARGIN > soonest:
            vain = books.waits_in_vain(client, topic, group)
            if vain is not None:
                self._turn_away(client, topic, group, part, vain)
                return
        size = books.size_of(group, buffers, part)
        if books.fits(client, topic, stop - start, size):
            self._enter(client, topic, group, buffers, part, size, now)
        elif group.whole:
            fault = books.too_large(stop - start, size) or books.overloaded(topic, now)
            self._turn_away(client, topic, group, part, fault)
        else:
            self._admit_some(client, topic, group, buffers, part, now)

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
        books = self.books
        start, stop = part
        while start < stop:
            end, size = start, 0
            while end < stop:
                own = books.size_of(group, buffers, (end, end + 1))
                if not books.fits(client, topic, end + 1 - start, size + own):
                    break
                end, size = end + 1, size + own
            if end > start:
                self._enter(client, topic, group, buffers, (start, end), size, now)
                start = end
                continue
            fault = books.too_large(1, own)
            end = stop if fault is None else start + 1
            self._turn_away(client, topic, group, (start, end), fault or books.overloaded(topic, now))
            start = end

    def _turn_away(
        self, client: Client, topic: Topic | None, group: Group, part: Range, fault: Fault
    ) -> None:
        self.books.turn_away(client, topic, (group.base + part[0], group.base + part[1]), fault)

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
        self.books.enter(client, topic, held, now)

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
        books = self.books
        books.count_answered(held, part[1] - part[0], now)
        flow: Flow | None = held.flow
        if flow is not None and held.stage < flow.plan.last:
            self._ways.advance(held, part, results, frames, now)
            return
        client.results.append(results)
        if frames:
            client.frames += frames
        books.owed[client.link.life] = client
        books.end(held, part)
        if flow is not None:
            self._ways.end(flow, within(held, part))

    def fail(self, held: Held, part: Range, fault: Fault) -> None:
        """Owe a client an error for those of some items that have no outcome yet."""
        if held.flow is not None:
            self._ways.fail(held, part, fault)
        else:
            self.books.fail(held, part, fault)

    def drop(self, client: Client, ids: Range) -> None:
        """Forget ids without an outcome: their client does not want one."""
        for held, first, last in client.find(*ids):
            if held.flow is not None:
                self._ways.end(held.flow, within(held, (first, last)))
                continue
            self.books.skip(held, first, last)
            self.books.end(held, (first, last))

    def give_back(self, client: Client, ids: Range) -> None:
        """Give a client back what it wants to ask elsewhere, so far as no worker has it.

        What waits to be run apart stays: elsewhere nobody would know what it is suspected of.
        """
        for held, first, last in client.find(*ids):
            waiting = runs(held, WAITING, first, last)
            for begun in self._hand_over(client, held, waiting, GIVEN_BACK):
                self.books.refuse(
                    client, (held.flow.base + begun[0], held.flow.base + begun[1]), GIVEN_BACK_BEGUN
                )
                self._ways.end(held.flow, begun)

    def hand_back(self) -> None:
        """Take nothing new, and hand back what no worker has had."""
        self.books.draining = True
        for client in list(self.clients.values()):
            for held in client.groups():
                self._hand_over(client, held, runs(held, WAITING), DRAINING)
            if not client.refusals:
                # Nothing of it comes back, and it would ask its next item of a broker that is gone.
                self.books.refuse(client, None, DRAINING)

    def _hand_over(self, client: Client, held: Held, parts: list[Range], fault: Fault) -> list[Range]:
        """Refuse what waits, but return of a pipeline's what some stage has had."""
        kept: list[Range] = []
        flow: Flow | None = held.flow
        for start, stop in parts:
            if flow is None:
                self.books.refuse(client, (held.base + start, held.base + stop), fault)
                self.books.end(held, (start, stop))
                continue
            new, begun = flow.idle(*within(held, (start, stop)))
            kept += begun
            for first, last in new:
                self.books.refuse(client, (flow.base + first, flow.base + last), fault)
                self._ways.end(flow, (first, last))
        return kept

    def forget(self, client: Client) -> None:
        """Forget a client, and what of its items waits."""
        for held in client.groups():
            self.drop(client, (held.base, held.base + len(held.state)))
        self.clients.pop(client.link.life, None)
        self.books.owed.pop(client.link.life, None)

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
        for held in self.books.deadlines.due(now):
            if held.stream is not None and now < held.deadline:
                # Its deadline is for the next part, and one has come since this was noted.
                held.bucket = self.books.deadlines.add(held.deadline, held)
                continue
            self.expired(held, now)
            following = held.next_due(now)
            if following is not None:
                held.bucket = self.books.deadlines.add(following, held)

    def expired(self, held: Held, now: float) -> None:
        """End what is due of a group, with the error that says what was missing."""
        topic = self._topics.all[held.topic]
        waited = now - held.arrived
        if held.stream is not None and held.stream.parts:
            fault = broken_off(held.stream)
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
        owed, self.books.owed = self.books.owed, {}
        for life, client in owed.items():
            link = client.link
            if link.gone is not None:
                # It may come back within its grace; a result kept is an execution saved.
                self.books.owed[life] = client
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
                yield from self.relay.flush(client)
            if client.refusals:
                refusals, client.refusals = client.refusals, []
                refused = Refused(*link.stamp(), refusals)
                client.sent(refused.number, [one for refusal in refusals for one in refusal.ids])
                yield Send(link.peer, refused)

    def wakeup(self) -> float | None:
        """Return when the next deadline is due."""
        return self.books.deadlines.next()
