"""What must hold after each step, and when all is over: the rules of the system, not how they are kept."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from tests.models_of_bytes import buffers_of, made_along, mark_of, root_of
from tests.simulator.brokers import Broker
from tests.simulator.callers import Asked
from zbatch.core.backlog import RUNNING, runs
from zbatch.core.retry import ATTEMPTS
from zbatch.pipelines import Pipeline

if TYPE_CHECKING:
    from tests.simulator.lives import Life

ANYBODYS = {
    "deadline_exceeded",
    "no_workers",
    "broker_unreachable",
    "worker_lost",
    "overloaded",
    "too_large",
    "unknown_topic",
    "client_closed",
}
"""Errors that are no item's own fault."""

FEW = 3
"""Deadly items that HEALED leaves time for."""

LATE_ERRORS = {"deadline_exceeded", "no_workers", "broker_unreachable"}


class Checks:
    """Looks at a life from outside and inside."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._again: list[Asked] = []

    # --- after each step ---------------------------------------------------------------------------

    def hold(self) -> None:
        """Check what must hold at any time."""
        for broker in self._life.brokers:
            if broker.alive:
                self._bounds_hold(broker)

    def _bounds_hold(self, broker: Broker) -> None:
        core, limits = broker.core, self._life.limits
        for topic in core.topics.all.values():
            places = topic.items + topic.coming
            assert 0 <= topic.items <= places <= limits.topic_items, f"{topic.name} keeps {places} places"
            assert 0 <= topic.size <= limits.topic_bytes, f"{topic.name} holds {topic.size} bytes"
        assert core.ledger.size == sum(topic.size for topic in core.topics.all.values())
        for client in core.ledger.clients.values():
            assert 0 <= client.items <= limits.client_items, f"a client has {client.items} items"
            assert 0 <= client.size <= limits.client_bytes, f"a client has {client.size} bytes"
        for worker in core.dispatcher.workers.values():
            assert len(worker.holds) <= worker.ready.slots, f"a worker holds {len(worker.holds)} batches"
            for handed in worker.holds.values():
                assert handed.items <= worker.room.items, f"a batch has {handed.items} items"
                for span in handed.spans:
                    held = span.held
                    assert held.later or handed.sent < held.deadline, f"{held.items} was over when handed out"

    # --- when faults have stopped ------------------------------------------------------------------

    def have_time(self, seconds: float) -> list[Asked]:
        """Return the open calls that have so much time left; none where deadly items may take all of it."""
        deadly = sum(mark_of(item) in b"!~" for one in self._life.asked for item in one.items)
        if deadly > FEW:
            return []
        # What nobody serves may fill a client's bounds until its deadline.
        full = {id(one.client) for one in self._life.asked if self._life.tight and not self._is_served(one)}
        return [
            one
            for one in self._life.asked
            if not one.over
            and self._is_served(one)
            and id(one.client) not in full
            and not self._is_with_the_forlorn(one)
            and not one.slow
            and one.deadline - one.client.now() >= seconds + self._work_of(one)
            and all(item[:1] == b"c" for item in one.items)
        ]

    def _is_with_the_forlorn(self, asked: Asked) -> bool:
        """Return whether a broker that no worker reaches has begun a call: it may wait there for ever."""
        life, group = asked.client.core._life, asked.call.group
        for broker in self._life.brokers:
            client = broker.core.ledger.clients.get(life) if broker.router.is_forlorn else None
            if client is None or group is None:
                continue
            ids = (group.base, group.base + len(group.items))
            if any(runs(held, RUNNING, first, last) for held, first, last in client.find(*ids)):
                return True
        return False

    def _work_of(self, asked: Asked) -> float:
        """Return how long everything that waits for the same models may take, one by one on one worker."""
        waiting = Counter[str]()
        for one in self._life.asked:
            if not one.over:
                waiting.update(topics_of(one) * len(one.items))
        farms = ((topic, self._life.farms[topic]) for topic in topics_of(asked))
        return sum(waiting[topic] * (1.8 * farm.run + 8 * self._life.delay) for topic, farm in farms)

    def _is_served(self, asked: Asked) -> bool:
        return all(topic in self._life.farms for topic in topics_of(asked))

    def ended_well(self, enough: list[Asked]) -> None:
        """Check every outcome: own, and no error of time where there was time enough."""
        for asked in self._life.asked:
            if asked.outcomes:
                assert self._may_be(asked), f"{asked.items} ended as {asked.outcomes}"
            elif asked.client.alive:
                assert asked.cancelled, f"{asked.items} has no outcome"
        for asked in enough:
            late = LATE_ERRORS & codes(asked)
            assert not late, f"{asked.items} had time enough and ended as {asked.outcomes}"
        self._runs_are_bounded()

    def _may_be(self, asked: Asked) -> bool:
        """Return whether each item ended in its own output, or in an error that it may have."""
        outcome = asked.outcomes[0]
        ends: list[Any] = [outcome] * len(asked.items) if isinstance(outcome, str) else outcome
        return all(
            self._is_right(item, mine, end, streamed=asked.streamed)
            for item, mine, end in zip(asked.items, own(asked), ends, strict=True)
        )

    def _is_right(self, item: bytes, mine: Any, end: Any, *, streamed: bool) -> bool:
        life = self._life
        if not isinstance(end, str):
            return bool(end == mine and mark_of(item) not in b"!?~")
        if end in ANYBODYS:
            return True
        if end == "reader_too_slow":
            # Windows are a few parts wide; whose link is broken for a while is behind, too.
            return streamed
        if end == "poison_item":
            # A signal from outside looks like a death of its own.
            return mark_of(item) in b"!~" or not life.calm
        return end == "model_failed" and mark_of(item) == b"?"

    def _runs_are_bounded(self) -> None:
        ran: Counter[tuple[bytes, str, bytes]] = Counter()
        for host in self._life.hosts:
            ran.update(host.ran)
        size = max(farm.offer.batch_size for farm in self._life.farms.values())
        most = ATTEMPTS + ceil(log2(size)) + 1 if size > 1 else ATTEMPTS + 1
        # What a client asks again after its outcome was lost with a connection begins anew.
        again = {
            root_of(item): sum(dealer.connections for dealer in asked.client.dealers)
            for asked in self._life.asked
            for item in asked.items
        }
        for (_, _, item), times in ran.items():
            tries = max(1, again[root_of(item)])
            assert times <= most * tries, f"{item!r} ran {times} times in one life of a broker"
        if not self._life.idempotent:
            runs: Counter[tuple[str, bytes]] = Counter()
            for (_, topic, item), times in ran.items():
                runs[topic, item] += times
            twice = [item for item, times in runs.items() if times > 1]
            assert not twice, f"these must not run twice: {twice}"

    def work_again(self) -> None:
        """Check that every client is served now, whatever happened before."""
        life = self._life
        self._again = []
        for caller in life.callers:
            every: list[str | Pipeline] = [*life.farms, *life.pipes]
            for topic in every:
                before = len(caller.asked)
                life.ask(caller, topic, 1, 60.0, plain=True)
                self._again += caller.asked[before:]

    def is_empty(self) -> bool:
        """Return whether everything has ended and been let go of."""
        return not self._left()

    def nothing_is_left(self) -> None:
        """Check that all has ended, in the clients and in every table of the brokers."""
        left = self._left()
        assert not left, f"left over: {left}"
        for asked in self._again:
            full = self._life.tight and {"overloaded", "too_large", "unknown_topic"} & codes(asked)
            # A broker that is gone for good may have run what was sent to it.
            gone = not self._life.idempotent and "worker_lost" in codes(asked) and self._is_one_gone()
            assert full or gone or asked.outcomes == [own(asked)], f"{asked.items} ended as {asked.outcomes}"

    def _is_one_gone(self) -> bool:
        return any(broker.gone for broker in self._life.brokers)

    def _left(self) -> list[Any]:
        life = self._life
        left: list[Any] = [asked.items for asked in self._again if not asked.outcomes]
        left += [f"{caller.name} is busy" for caller in life.callers if not caller.core.is_idle]
        asks = {one.core._life: life.brokers[one.core._brokers.asked.peer[0]] for one in life.callers}
        for broker in life.brokers:
            if broker.gone:
                continue
            core = broker.core
            for topic in core.topics.all.values():
                sizes = (topic.items, topic.size, topic.running, topic.backlog.items, len(topic.apart))
                places = topic.coming
                if any(sizes) or places or topic.apart_running is not None:
                    left.append((broker.name, topic.name, sizes, places))
                own = [host for host in life.hosts if not broker.router.is_forlorn]
                hosts = sum(1 for host in own if host.farm.offer.topic == topic.name)
                if (topic.roster.idle, len(topic.roster)) != (hosts, hosts):
                    left.append((broker.name, topic.name, "idle", topic.roster.idle, len(topic.roster)))
            for client in core.ledger.clients.values():
                # Of who is dead, or asks another one, they are kept until it is forgotten, a minute later.
                if asks.get(client.link.life) is broker and (client.flows or client.has_flowing):
                    left.append((broker.name, "parts", client.flows))
                if client.groups() or client.results or client.refusals or client.items or client.size:
                    left.append((broker.name, "client", client.items, client.size))
            workers = core.dispatcher.workers.values()
            left += [(broker.name, "holds", worker.holds) for worker in workers if worker.holds]
            if len(core.dispatcher.children) != (0 if broker.router.is_forlorn else len(life.hosts)):
                left.append((broker.name, "children", len(core.dispatcher.children)))
            if set(core.links.by_peer.values()) != set(core.links.by_life.values()):
                left.append((broker.name, "links", len(core.links.by_peer), len(core.links.by_life)))
        return left

    # --- what was met ------------------------------------------------------------------------------

    def place_of(self, asked: Asked) -> str:
        """Return where a call is now, by what the brokers know."""
        life = asked.client.core._life
        for broker in self._life.brokers:
            client = broker.core.ledger.clients.get(life) if broker.alive else None
            group = asked.call.group
            if client is None or group is None:
                continue
            for held in client.groups():
                if held.base <= group.base < held.base + len(held.state):
                    return "it runs" if held.state.find(RUNNING) >= 0 else "it waits"
        return "no broker has it"

    def load_of(self, broker: Broker) -> str:
        """Return what a broker has in hand."""
        topics = broker.core.topics.all.values()
        if any(topic.backlog.items for topic in topics):
            return "items wait"
        return "items run" if any(topic.items for topic in topics) else "it is idle"

    def summary(self) -> Counter[str]:
        """Return what happened in this life."""
        met = self._life.met.copy()
        for broker in self._life.brokers:
            if broker.alive:
                broker.die()
            met.update({f"broker: {name}": count for name, count in broker.counters.items()})
        for asked in self._life.asked:
            for code in codes(asked):
                met[f"outcome {code}"] += 1
            met["outcome result"] += any(outcome == own(asked) for outcome in asked.outcomes)
            met["cancelled"] += asked.cancelled
            if asked.streamed:
                for code in codes(asked):
                    met[f"stream {code} {'after parts' if asked.parts else 'before any'}"] += 1
                met["stream whole"] += any(outcome == own(asked) for outcome in asked.outcomes)
        return met


def codes(asked: Asked) -> set[str]:
    """Return the errors among what became of a call's items."""
    ended = [one for out in asked.outcomes for one in ([out] if isinstance(out, str) else out)]
    return {one for one in ended if isinstance(one, str)}


def own(asked: Asked) -> list[Any]:
    """Return what the model, or the models of its pipeline, make of a call's items."""
    return [made_along(asked.route, item, buffers_of(item) if asked.rich else []) for item in asked.items]


def topics_of(asked: Asked) -> list[str]:
    """Return the topics that a call goes through, once for each stage."""
    return [asked.call.mark[0]] if asked.route is None else [stage.topic for stage in asked.route]
