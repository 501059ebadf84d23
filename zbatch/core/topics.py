"""One topic: its backlog, its workers and its policy brought together, and which batch goes where now.

``dispatch`` is the whole scheduling decision of the broker.  What a message means and what is said back is
decided in ``ledger.py`` and ``dispatch.py``; order, closing, picking and retrying by their own files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from zbatch.config import BrokerCoreSettings
from zbatch.core.backlog import Backlog, Room, Span
from zbatch.core.batching import POLICIES, SHARED, Policy, View, pays_to_prefetch
from zbatch.core.retry import alive
from zbatch.core.roster import Handed, Roster, Worker
from zbatch.errors import UnknownTopic
from zbatch.metrics import Histogram, Rate, add_counts

SHORT_RUN = 0.005
"""Seconds.  A prefetched batch whose wait is shorter than this is not called back: that would cost more."""


KEPT = 1_000
"""Topics without a worker and without an item that are kept, for people who read what became of them."""


@dataclass(slots=True)
class Tally:
    """What happened to a topic so far."""

    items: int = 0
    size: int = 0
    """Bytes of the items that were admitted."""
    answered: int = 0
    batches: int = 0
    batched_items: int = 0
    batched_room: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    """Batches of at most 2 ** n items, and more than half as many, by n."""
    closed: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    """Items that were not taken in, by code."""
    retries: int = 0
    wait: Histogram = field(default_factory=Histogram)
    """From an item's arrival until a worker had it for the first time."""
    latency: Histogram = field(default_factory=Histogram)
    run: Histogram = field(default_factory=Histogram)
    rate: Rate = field(default_factory=Rate)

    def copy(self) -> Tally:
        """Return the same counts, which stay as they are; but for the rate, which only the present has."""
        return Tally(
            items=self.items,
            size=self.size,
            answered=self.answered,
            batches=self.batches,
            batched_items=self.batched_items,
            batched_room=self.batched_room,
            sizes=dict(self.sizes),
            closed=dict(self.closed),
            errors=dict(self.errors),
            refused=dict(self.refused),
            retries=self.retries,
            wait=self.wait.copy(),
            latency=self.latency.copy(),
            run=self.run.copy(),
        )

    def add(self, other: Tally) -> None:
        """Count what another one counted, too; but for the rate, which only the present has."""
        self.items += other.items
        self.size += other.size
        self.answered += other.answered
        self.batches += other.batches
        self.batched_items += other.batched_items
        self.batched_room += other.batched_room
        add_counts(self.sizes, other.sizes)
        add_counts(self.closed, other.closed)
        add_counts(self.errors, other.errors)
        add_counts(self.refused, other.refused)
        self.retries += other.retries
        self.wait.add(other.wait)
        self.latency.add(other.latency)
        self.run.add(other.run)


@dataclass(slots=True, eq=False)
class Topic:
    """One topic's state."""

    name: str
    policy: Policy
    backlog: Backlog = field(default_factory=Backlog)
    roster: Roster = field(default_factory=Roster)
    apart: deque[list[Span]] = field(default_factory=deque)
    """Batches that wait to be run apart, see ``retry.py``."""
    apart_running: Handed | None = None
    items: int = 0
    """Items without an outcome, running ones included: bounds count everything that is not finished."""
    coming: int = 0
    """Items of pipelines that are still in an earlier stage: their places here are kept for them."""
    size: int = 0
    running: int = 0
    served: float | None = None
    """When it last had a worker; None: never."""
    wake: float | None = None
    """When the policy wants to look again."""
    typical_run: float = 0.0
    last_principal: bytes = b""
    shared_until: float = 0.0
    """Until when several principals are taken to ask: one of them may come next."""
    tally: Tally = field(default_factory=Tally)

    @property
    def is_empty(self) -> bool:
        """Whether nothing but figures would be lost with this topic."""
        return not self.items and not self.coming and not len(self.roster)

    def learned(self, seconds: float) -> None:
        """Learn how long a batch ran."""
        self.typical_run += (seconds - self.typical_run) / 8
        self.tally.run.record(seconds)

    def wait(self, priority: int, principal: bytes) -> float:
        """Return when a new item would be answered at the earliest, as far as is known; there are workers.

        It takes every batch for full, so a queue that moves more slowly is only found too short.  What runs
        for nobody any more may end at any time: where that is all, nothing is known.
        """
        if not self.items:
            return 0.0
        ahead = self.backlog.ahead(priority, principal) + self.running
        return (ahead / self.roster.items_at_once + 1.0) * self.typical_run if ahead else 0.0

    def asked(self, principal: bytes, now: float) -> None:
        """Take note of who asks."""
        if principal != self.last_principal:
            if self.last_principal:
                self.shared_until = now + SHARED
            self.last_principal = principal

    def dispatch(self, now: float, start: Callable[[Worker, list[Span], bool], None]) -> None:
        """Hand out what should run now: ``start(worker, spans, apart)`` is called for each batch."""
        self.wake = None
        self._dispatch_apart(start)
        while self.backlog.items:
            worker = self.roster.next_idle()
            key = self.backlog.head_key()
            assert key is not None
            if worker is None:
                if self.apart and self.apart_running is None:
                    # They are not prefetched, and as long as others are nobody would ever be idle.
                    return
                if not pays_to_prefetch(self.typical_run, shared=now < self.shared_until):
                    return
                worker = self.roster.next_open()
                if worker is None or not self.backlog.fills(key, worker.room):
                    return
                self._hand_out(worker, key, worker.room, "full", start)
                continue
            view = self._view(worker, key)
            decision = self.policy.decide(view, now)
            if not decision.items:
                self.wake = decision.wake
                return
            room = worker.room
            if decision.items < room.items:
                room = Room(decision.items, room.cost, room.size)
            self._hand_out(worker, key, room, "full" if view.full else self.policy.why, start)

    def recallable(self) -> Handed | None:
        """Return a prefetched batch that an idle worker would run sooner."""
        if self.backlog.items or not self.roster.idle or self.typical_run < SHORT_RUN:
            return None
        return self.roster.prefetched()

    def _dispatch_apart(self, start: Callable[[Worker, list[Span], bool], None]) -> None:
        # One at a time: a poison item may end a process a run, and must not take the farm with it.
        while self.apart and self.apart_running is None:
            worker = self.roster.next_idle()
            if worker is None:
                self.apart = deque(living for spans in self.apart if (living := alive(spans)))
                return
            start(worker, self.apart.popleft(), True)

    def _hand_out(
        self,
        worker: Worker,
        key: str,
        room: Room,
        why: str,
        start: Callable[[Worker, list[Span], bool], None],
    ) -> None:
        spans = self.backlog.take(key, room)
        self.tally.closed[why] = self.tally.closed.get(why, 0) + 1
        start(worker, spans, False)

    def _view(self, worker: Worker, key: str) -> View:
        waiting = self.backlog.ready(key)
        return View(
            waiting=waiting,
            full=self.backlog.fills(key, worker.room),
            limit=worker.room.items,
            oldest=self.backlog.oldest() or 0.0,
            max_latency=self.roster.max_latency,
        )

    def handed(self) -> Iterator[Handed]:
        """Yield every batch in a worker's hands."""
        for worker in self.roster.workers.values():
            yield from worker.holds.values()


class Topics:
    """Every topic that the broker knows, and which of them have work for the next turn."""

    def __init__(self, settings: BrokerCoreSettings) -> None:
        self.all: dict[str, Topic] = {}
        self.drained: set[str] = set()
        """Topics that take no new requests, by order."""
        self._settings = settings
        self._touched: dict[str, Topic] = {}
        self._waking: dict[str, Topic] = {}

    def open(self, name: str, *, served: bool = False) -> Topic:
        """Return a topic, made if it is new; ``served``: a worker is there for it.

        Raises :class:`UnknownTopic` where the broker was told its topics and this is none of them, or
        where too many are waited for that no worker serves.
        """
        if name in self.drained and not served:
            raise UnknownTopic(f"topic {name!r} is being drained here; it takes no new requests")
        topic = self.all.get(name)
        if topic is not None:
            return topic
        allowed = self._settings.topics
        if allowed is not None and name not in allowed:
            raise UnknownTopic(f"topic {name!r} is not served here; this broker serves {', '.join(allowed)}")
        if len(self.all) >= KEPT:
            self._let_go_of_the_oldest()
        if not served and len(self.all) >= self._settings.limits.unserved_topics:
            self._let_go(lambda one: one.served is None)
            unserved = sum(1 for one in self.all.values() if one.served is None)
            if unserved >= self._settings.limits.unserved_topics:
                raise UnknownTopic(
                    f"{unserved} topics without a worker are waited for; {name!r} is one too many"
                )
        topic = self.all[name] = Topic(name, POLICIES[self._settings.batching]())
        return topic

    def open_all(self, names: Iterable[str]) -> list[Topic]:
        """Return several topics as :meth:`open` does; none of them is let go for the sake of another."""
        opened: list[Topic] = []
        try:
            for name in names:
                opened.append(self.open(name))
                opened[-1].coming += 1
        finally:
            for topic in opened:
                topic.coming -= 1
        return opened

    def served(self, most: int) -> list[str]:
        """Return topics that have a worker now."""
        return list(islice((topic.name for topic in self.all.values() if len(topic.roster)), most))

    def touch(self, topic: Topic) -> None:
        """Look at a topic in the next turn."""
        self._touched[topic.name] = topic

    def touched(self, now: float) -> list[Topic]:
        """Return the topics to look at in this turn, and forget that they were touched."""
        for topic in list(self._waking.values()):
            if topic.wake is None:
                del self._waking[topic.name]
            elif topic.wake <= now:
                self._touched[topic.name] = topic
        touched, self._touched = self._touched, {}
        return list(touched.values())

    def sleeps(self, topic: Topic) -> None:
        """Remember that a topic's policy wants to look again by itself."""
        if topic.wake is not None:
            self._waking[topic.name] = topic

    def wakeup(self) -> float | None:
        """Return when the first policy wants to look again."""
        return min((one.wake for one in self._waking.values() if one.wake is not None), default=None)

    def _let_go(self, which: Callable[[Topic], bool]) -> None:
        for topic in [one for one in self._empty() if which(one)]:
            del self.all[topic.name]

    def _let_go_of_the_oldest(self) -> None:
        empty = sorted(self._empty(), key=_last_served)
        if len(empty) >= KEPT:
            # Many at once: to look for them costs as much as all that are known.
            for topic in empty[: KEPT // 4]:
                del self.all[topic.name]

    def _empty(self) -> list[Topic]:
        # A drained one is kept: it is there by order, and people must see it.
        return [one for one in self.all.values() if one.is_empty and one.name not in self.drained]


def _last_served(topic: Topic) -> float:
    return float("-inf") if topic.served is None else topic.served
