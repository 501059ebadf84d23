"""What clients asked for and what they are owed: admission, bounds, deadlines, outcomes.

Every item that is admitted here leaves the books exactly once, by :meth:`Ledger.answer`,
:meth:`Ledger.fail` or :meth:`Ledger.drop`.  Who runs it is decided in ``dispatch.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from zbatch.config import BrokerCoreSettings
from zbatch.core import intervals
from zbatch.core.actions import Send
from zbatch.core.backlog import RUNNING, WAITING, Held, Span, runs
from zbatch.core.clients import Client
from zbatch.core.deadlines import Deadlines
from zbatch.core.intervals import Range
from zbatch.core.links import Link
from zbatch.core.session import announce
from zbatch.core.sizes import Measure, messages_of, size_of
from zbatch.core.topics import Topic, Topics
from zbatch.errors import BY_CODE, UnknownTopic, ZbatchError, to_fault
from zbatch.messages import Fault, Group, Refusal, Refused, Request, Result, Results

LONGEST = 7 * 86_400.0
"""No deadline is further away than a week: a typing error must not hold memory for years."""

RANGES = 4_096
"""Ranges that one message may carry."""

DRAINING = Fault("draining", "this broker is leaving; the request was not run", retry_after_ms=500)
"""No outcome: a client keeps the request and asks again, elsewhere or later."""

NAMED = 8
"""Topics that an error names at most."""

MARGIN = 1.1
"""An answer that is expected this close to its deadline would often come too late, for nobody."""

GIVEN_BACK = Fault("draining", "no worker here has begun it; ask elsewhere")


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
        self._draining = False
        self._limits = settings.limits
        self._longest = settings.limits.topic_age or LONGEST
        """The longest that anything may be expected to wait."""
        self._topics = topics
        self._measure = measure
        self._deadlines: Deadlines[Held] = Deadlines()
        self._owed: dict[bytes, Client] = {}

    # --- coming in ---------------------------------------------------------------------------------

    def welcome(self, link: Link, *, anew: bool = True) -> Client:
        """Return the client behind a connection, on this connection from now on."""
        client = self.clients.get(link.life)
        if client is None:
            principal = link.life if link.identity is None else link.identity.key
            client = self.clients[link.life] = Client(link, principal)
        elif anew:
            client.reconnected(link)
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
        try:
            topic = self._topics.open(group.topic)
        except UnknownTopic as unknown:
            self._turn_away(client, None, (group.base + start, group.base + stop), to_fault(unknown))
            return
        if self._draining:
            self._turn_away(client, topic, (group.base + start, group.base + stop), DRAINING)
            return
        if group.deadline_ms == 0:
            late = Fault("deadline_exceeded", "the deadline had passed when the request arrived")
            self._turn_away(client, topic, (group.base + start, group.base + stop), late)
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
        held.bucket = self._deadlines.add(held.deadline, held)
        client.hold(held)
        count = held.open
        client.items += count
        client.size += held.size
        topic.items += count
        topic.size += held.size
        self.size += held.size
        topic.tally.items += count
        topic.tally.size += held.size
        topic.asked(client.principal, now)
        topic.backlog.push(Span(held, 0, count))
        self._topics.touch(topic)

    def _fits(self, client: Client, topic: Topic, items: int, size: int) -> bool:
        """Return whether no bound would be passed with so many more items of so many bytes."""
        limits = self._limits
        return (
            client.items + items <= limits.client_items
            and topic.items + items <= limits.topic_items
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
        client.results.append(results)
        if frames:
            client.frames += frames
        self._owed[client.link.life] = client
        tally = self._topics.all[held.topic].tally
        count = part[1] - part[0]
        tally.latency.record(now - held.arrived, count)
        tally.answered += count
        tally.rate.add(count, now)
        self._end(held, part)

    def fail(self, held: Held, part: Range, fault: Fault) -> None:
        """Owe a client an error for those of some items that have no outcome yet."""
        open_parts = runs(held, RUNNING, *part) + runs(held, WAITING, *part)
        if not open_parts:
            return
        tally = self._topics.all[held.topic].tally
        # A code is a worker's to say, what is counted is not: codes without a class are one.
        code = fault.code if fault.code in BY_CODE else ZbatchError.code
        tally.errors[code] = tally.errors.get(code, 0) + intervals.count(open_parts)
        for one in open_parts:
            self._refuse(held.owner, (held.base + one[0], held.base + one[1]), fault)
            self._end(held, one)

    def drop(self, client: Client, ids: Range) -> None:
        """Forget ids without an outcome: their client does not want one."""
        for held, first, last in client.find(*ids):
            if held.state.find(RUNNING, first, last) >= 0:
                topic = self._topics.all[held.topic]
                self.skippable[topic.name] = topic
                self._topics.touch(topic)
            self._end(held, (first, last))

    def give_back(self, client: Client, ids: Range) -> None:
        """Give a client back what it wants to ask elsewhere, so far as no worker has it.

        What waits to be run apart stays: elsewhere nobody would know what it is suspected of.
        """
        for held, first, last in client.find(*ids):
            for start, stop in runs(held, WAITING, first, last):
                self._refuse(client, (held.base + start, held.base + stop), GIVEN_BACK)
                self._end(held, (start, stop))

    def hand_back(self) -> None:
        """Take nothing new, and hand back what has not been given to a worker."""
        self._draining = True
        for client in list(self.clients.values()):
            for held in client.groups():
                for start, stop in runs(held, WAITING):
                    self._refuse(client, (held.base + start, held.base + stop), DRAINING)
                    self._end(held, (start, stop))

    def forget(self, client: Client) -> None:
        """Forget a client, and what of its items waits."""
        for held in client.groups():
            self.drop(client, (held.base, held.base + len(held.state)))
        self.clients.pop(client.link.life, None)
        self._owed.pop(client.link.life, None)

    def reconcile(self, client: Client, wanted: Sequence[Range], upto: int) -> list[Range]:
        """Drop what a client no longer wants; return what it wants and is not here."""
        wanted = intervals.normal(wanted)
        held = client.held()
        for unwanted in intervals.subtract(intervals.intersect(held, [(0, upto)]), wanted):
            self.drop(client, unwanted)
        return intervals.subtract(wanted, held)[:RANGES]

    def expire(self, now: float) -> None:
        """End what has reached its deadline."""
        for held in self._deadlines.due(now):
            self.expired(held, now)
            following = held.next_due(now)
            if following is not None:
                held.bucket = self._deadlines.add(following, held)

    def expired(self, held: Held, now: float) -> None:
        """End what is due of a group, with the error that says what was missing."""
        topic = self._topics.all[held.topic]
        waited = now - held.arrived
        if len(topic.roster) or (topic.served is not None and topic.served >= held.arrived):
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
            if client.refusals:
                refusals, client.refusals = client.refusals, []
                refused = Refused(*link.stamp(), refusals)
                client.sent(refused.number, [one for refusal in refusals for one in refusal.ids])
                yield Send(link.peer, refused)

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
        client.items -= ended
        topic.items -= ended
        if topic.apart:
            self._topics.touch(topic)
        if not held.open:
            client.size -= held.size
            topic.size -= held.size
            self.size -= held.size
            self._deadlines.discard(held.bucket, held)
            client.release(held)
