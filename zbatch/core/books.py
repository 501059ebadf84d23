"""The books: how much is held for whom and where, whether there is room for more, and what ends.

Each item that is entered here leaves by :meth:`Books.end`, and whoever lets it end owes its client an
outcome.  Which one, and what becomes of an item on its way, is for those above to say: ``ledger.py`` for
requests, ``ways.py`` for those that go through several topics, ``relay.py`` for results that come part by
part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zbatch.config import BrokerCoreSettings
from zbatch.core import intervals
from zbatch.core.backlog import RUNNING, WAITING, Held, Span, runs
from zbatch.core.clients import Client
from zbatch.core.deadlines import Deadlines
from zbatch.core.intervals import Range
from zbatch.core.sizes import Measure
from zbatch.core.topics import Topic, Topics
from zbatch.errors import BY_CODE, ZbatchError
from zbatch.messages import Fault, Group, Refusal

LONGEST = 7 * 86_400.0
"""No deadline is further away than a week: a typing error must not hold memory for years."""

RANGES = 4_096
"""Ranges that one message may carry."""

DRAINING = Fault("draining", "this broker is leaving; the request was not run", retry_after_ms=500)
"""No outcome: a client keeps the request and asks again, elsewhere or later."""

MARGIN = 1.1
"""An answer that is expected this close to its deadline would often come too late, for nobody."""


class Books:
    """Every item that has no outcome yet, counted."""

    def __init__(self, settings: BrokerCoreSettings, topics: Topics, measure: Measure) -> None:
        self.clients: dict[bytes, Client] = {}
        self.size = 0
        """Bytes of everything without an outcome."""
        self.limits = settings.limits
        self.topics = topics
        self.measure = measure
        self.deadlines: Deadlines[Held] = Deadlines()
        self.owed: dict[bytes, Client] = {}
        """Clients to whom something is to be said."""
        self.refused: dict[str, int] = {}
        """Items that were not taken in because there is no such topic, by code."""
        self.skippable: dict[str, Topic] = {}
        """Topics in which somebody stopped waiting for items that a worker has."""
        self.unread: list[Held] = []
        """Streams that have ended here and run on at a worker."""
        self.draining = False
        """This broker leaves, and takes nothing in."""
        self.longest = settings.limits.topic_age or LONGEST
        """The longest that anything may be expected to wait."""

    # --- is there room? ----------------------------------------------------------------------------

    def size_of(self, group: Group, buffers: list[Sequence[Any]] | None, part: Range) -> int:
        """Return the bytes of some items of a group."""
        start, stop = part
        if stop - start == len(group.items):
            return self.measure(group.items, buffers)
        return self.measure(group.items[start:stop], buffers[start:stop] if buffers is not None else None)

    def fits(self, client: Client, topic: Topic, items: int, size: int) -> bool:
        """Return whether no bound would be passed with so many more items of so many bytes."""
        limits = self.limits
        return (
            client.items + items <= limits.client_items
            and topic.items + topic.coming + items <= limits.topic_items
            and client.size + size <= limits.client_bytes
            and topic.size + size <= limits.topic_bytes
            and self.size + size <= limits.broker_bytes
        )

    def has_bytes_for(self, client: Client, topic: Topic, size: int) -> bool:
        """Return whether no bound of bytes would be passed with so many more."""
        limits = self.limits
        return (
            client.size + size <= limits.client_bytes
            and topic.size + size <= limits.topic_bytes
            and self.size + size <= limits.broker_bytes
        )

    def waits_in_vain(self, client: Client, topic: Topic, group: Group) -> Fault | None:
        """Return why a request that would wait in vain had better come later: it is told so at once."""
        if group.again or not topic.roster.items_at_once:
            return None
        latest = group.deadline_ms + (max(group.later_ms) if group.later_ms else 0)
        longest = min(latest / 1000, self.longest)
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

    def not_now(self) -> Fault:
        """Return why nothing is taken in: this broker leaves, or else there was no time left."""
        if self.draining:
            return DRAINING
        return Fault("deadline_exceeded", "the deadline had passed when the request arrived")

    def too_large(self, count: int, size: int) -> Fault | None:
        """Return why a request would not even fit into an empty broker: to come back later would not help."""
        limits = self.limits
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

    def overloaded(self, topic: Topic, now: float) -> Fault:
        """Return the error of what finds no room, with the time to come back."""
        rate = topic.tally.rate.per_second(now)
        seconds = min(60.0, max(0.1, topic.items / rate)) if rate else 1.0
        return Fault(
            "overloaded",
            f"a bound is reached: topic {topic.name!r} has {topic.items} unfinished items; "
            f"come back in {seconds:.1f} s",
            retry_after_ms=int(seconds * 1000),
        )

    # --- in and out ----------------------------------------------------------------------------------

    def enter(self, client: Client, topic: Topic, held: Held, now: float) -> None:
        """Let items wait in a topic."""
        held.bucket = self.deadlines.add(held.deadline, held)
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
        self.topics.touch(topic)

    def weigh(self, client: Client, topic: Topic, size: int) -> None:
        """Count bytes that a client has in a topic now, or (less than none) has there no more."""
        client.size += size
        topic.size += size
        self.size += size

    def end(self, held: Held, part: Range) -> None:
        """Let go of those of some items that have not ended: they have their outcome, or nobody wants one."""
        topic = self.topics.all[held.topic]
        ended = topic.backlog.close(held, *part)
        if not ended:
            return
        client: Client = held.owner
        if held.flow is None:
            client.items -= ended
        topic.items -= ended
        if topic.apart:
            self.topics.touch(topic)
        if not held.open:
            if held.stream is not None and held.stream.handed is not None:
                self.unread.append(held)
            client.size -= held.size
            topic.size -= held.size
            self.size -= held.size
            self.deadlines.discard(held.bucket, held)
            client.release(held)
            if held.flow is not None:
                held.flow.live.remove(held)

    def fail(self, held: Held, part: Range, fault: Fault) -> None:
        """Owe a client an error for those of some items that have no outcome yet."""
        open_parts = open_of(held, part)
        if not open_parts:
            return
        self.count(held.topic, fault, intervals.count(open_parts))
        for one in open_parts:
            self.refuse(held.owner, (held.base + one[0], held.base + one[1]), fault)
            self.end(held, one)

    def skip(self, held: Held, first: int, last: int) -> None:
        """Have a worker told that nobody waits for items that it has not begun."""
        if held.state.find(RUNNING, first, last) >= 0:
            topic = self.topics.all[held.topic]
            self.skippable[topic.name] = topic
            self.topics.touch(topic)

    # --- what is said of it --------------------------------------------------------------------------

    def turn_away(self, client: Client, topic: Topic | None, ids: Range, fault: Fault) -> None:
        """Refuse what was not taken in, and count it."""
        refused = self.refused if topic is None else topic.tally.refused
        refused[fault.code] = refused.get(fault.code, 0) + ids[1] - ids[0]
        self.refuse(client, ids, fault)

    def refuse(self, client: Client, ids: Range | None, fault: Fault) -> None:
        """Owe a client an error; None: of no item, it only is to know."""
        last = client.refusals[-1] if client.refusals else None
        if ids is None:
            client.refusals.append(Refusal([], fault))
        elif last is not None and last.fault == fault and len(last.ids) < RANGES:
            last.ids.append(ids)
        else:
            client.refusals.append(Refusal([ids], fault))
        self.owed[client.link.life] = client

    def count(self, topic: str, fault: Fault, items: int) -> None:
        """Count an error."""
        errors = self.topics.all[topic].tally.errors
        # A code is a worker's to say, what is counted is not: codes without a class are one.
        code = fault.code if fault.code in BY_CODE else ZbatchError.code
        errors[code] = errors.get(code, 0) + items

    def count_answered(self, held: Held, count: int, now: float) -> None:
        """Count items that have their results."""
        tally = self.topics.all[held.topic].tally
        tally.latency.record(now - held.arrived, count)
        tally.answered += count
        tally.rate.add(count, now)


def open_of(held: Held, part: Range) -> list[Range]:
    """Return those of some positions of a group that have no outcome yet."""
    return runs(held, RUNNING, *part) + runs(held, WAITING, *part)
