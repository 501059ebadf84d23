"""A cluster in which anything happens in any order: one outcome each, its own, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.network import BRANCHES, LINE, OTHER, TOPIC, Asked, Network
from tests.models_of_bytes import mark_of
from zbatch.config import BrokerCoreSettings, Limits
from zbatch.core import stream
from zbatch.core.broker import BrokerCore
from zbatch.core.worker import Offer

CLIENTS, HOSTS = 2, 2
WIDE, TIGHT = Limits(), Limits(client_items=8, topic_items=12)
LATE = 0.1
"""Seconds past its deadline within which a call must have its outcome."""

HARMLESS = st.sampled_from([b"a", b"b", b"c"])
ITEMS = st.lists(
    st.one_of(HARMLESS, HARMLESS, HARMLESS, st.sampled_from([b"!", b"?", b">!", b">?", b">"])),
    min_size=1,
    max_size=6,
)
ANY = st.integers(0, 1_000)
ANYBODYS = {"deadline_exceeded", "no_workers", "broker_unreachable", "worker_lost", "overloaded"}
"""Errors that are no item's own fault."""
LATE_ERRORS = {"deadline_exceeded", "no_workers", "broker_unreachable"}
HEALED = 30.0
"""Seconds in which all wounds heal: 12 of silence, 4 to come back, a few beats, batches apart one by one."""


class ClusterMachine(RuleBasedStateMachine):
    """Clients ask, messages overtake each other, links break, processes die, the broker is restarted."""

    @initialize(
        batching=st.sampled_from(["eager", "window"]),
        limits=st.sampled_from([WIDE, TIGHT]),
        idempotent=st.booleans(),
        window=st.sampled_from([100, stream.WINDOW]),
    )
    def start(self, batching: str, limits: Limits, idempotent: bool, window: int) -> None:
        self.windows = pytest.MonkeyPatch()
        self.windows.setattr(stream, "WINDOW", window)
        settings = BrokerCoreSettings(batching=batching, limits=limits)
        offers = [Offer(one, batch_size=4, lease=5.0, idempotent=idempotent) for one in (TOPIC, OTHER)]
        self.idempotent = idempotent
        self.network = Network(CLIENTS, HOSTS, settings, *offers)
        self.owners: dict[int, int] = {}

    @rule(
        client=st.integers(0, CLIENTS - 1),
        items=ITEMS,
        timeout=st.sampled_from([0.5, 8.0, 90.0, 90.0]),
        together=st.booleans(),
        rich=st.booleans(),
        key=st.sampled_from(["", "", "de"]),
        pipe=st.sampled_from([None, None, LINE, BRANCHES]),
    )
    def ask(self, client: int, items: list[bytes], **how: Any) -> None:
        before = len(self.network.asked)
        named = [item + b"%d.%d" % (before, at) for at, item in enumerate(items)]
        self.network.ask(client, named, **how)
        for number in range(before, len(self.network.asked)):
            self.owners[number] = client

    @rule(
        client=st.integers(0, CLIENTS - 1),
        item=st.sampled_from([b"a", b"b", b"c", b"!", b"?"]),
        timeout=st.sampled_from([0.5, 8.0, 90.0, 90.0]),
    )
    def read(self, client: int, item: bytes, timeout: float) -> None:
        number = len(self.network.asked)
        self.network.read(client, item + b"%d" % number, timeout)
        self.owners[number] = client

    @precondition(lambda self: self.network.asked)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        number = which % len(self.network.asked)
        self.network.cancel(self.owners[number], self.network.asked[number])

    @rule(order=st.lists(ANY, min_size=1, max_size=12))
    def deliver(self, order: list[int]) -> None:
        for which in order:
            self.network.deliver(which)

    @rule(which=ANY)
    def run_model(self, which: int) -> None:
        self.network.run_model(which)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 3.1, 8.0]))
    def wait(self, seconds: float) -> None:
        self.network.wait(seconds)

    @rule(which=ANY)
    def kill(self, which: int) -> None:
        self.network.kill(which)

    @rule(which=ANY)
    def retire(self, which: int) -> None:
        self.network.retire(which)

    @rule(which=ANY, noticed=st.booleans())
    def break_link(self, which: int, noticed: bool) -> None:
        self.network.break_link(which, noticed=noticed)

    @rule()
    def restart_broker(self) -> None:
        self.network.restart_broker()

    @rule(seconds=st.sampled_from([0.2, 2.0]))
    def settle(self, seconds: float) -> None:
        self.network.settle(seconds)

    @invariant()
    def each_has_at_most_one_outcome_and_its_own(self) -> None:
        for asked in self.network.asked:
            assert len(asked.outcomes) <= (0 if asked.cancelled else 1)
            assert all(is_own(asked, outcome) for outcome in asked.outcomes)

    @invariant()
    def bounds_hold(self) -> None:
        broker, limits = self.network.broker, self.network.settings.limits
        topics = broker.topics.all.values()
        assert all(topic.items + topic.coming <= limits.topic_items for topic in topics)
        assert broker.ledger.size == sum(topic.size for topic in topics)
        assert all(client.items <= limits.client_items for client in broker.ledger.clients.values())

    @invariant()
    def what_must_not_run_twice_does_not(self) -> None:
        assert self.idempotent or max(self.network.begun.values(), default=0) <= 1

    @invariant()
    def each_is_in_time(self) -> None:
        for asked in self.network.asked:
            if not is_over(asked):
                assert self.network.now <= asked.call.deadline + LATE

    def teardown(self) -> None:
        """Once faults stop, everything ends as it should, and nothing is kept of it."""
        try:
            self._ends_well()
        finally:
            self.windows.undo()

    def _ends_well(self) -> None:
        network = self.network
        enough = [one for one in network.asked if not is_over(one) and one.deadline >= network.now + HEALED]
        network.settle(HEALED)
        assert not [one.outcomes for one in enough if LATE_ERRORS.intersection(codes(one))]
        before = len(network.asked)
        for client in range(CLIENTS):
            for at, pipe in enumerate((None, LINE, BRANCHES)):
                item = b"z%d.%d" % (client, at)
                network.ask(client, [item], 60.0, together=False, rich=True, pipe=pipe)
        network.settle(1.0)
        assert [one.outcomes for one in network.asked[before:]] == [
            [one.own()] for one in network.asked[before:]
        ]
        network.settle(60.0)
        self.each_has_at_most_one_outcome_and_its_own()
        self.what_must_not_run_twice_does_not()
        assert all(map(is_over, network.asked))
        assert all(line.core.is_idle for line in network.clients)
        self._nothing_is_left(network.broker)

    def _nothing_is_left(self, broker: BrokerCore) -> None:
        for topic in broker.topics.all.values():
            assert (topic.items, topic.coming, topic.size) == (0, 0, 0)
            assert (topic.running, topic.backlog.items) == (0, 0)
            assert (list(topic.apart), topic.apart_running) == ([], None)
            assert (topic.roster.idle, len(topic.roster)) == (HOSTS, HOSTS)
        assert broker.ledger.size == 0
        for client in broker.ledger.clients.values():
            assert (client.groups(), client.results, client.refusals) == ([], [], [])
            assert (client.flows, client.has_flowing) == ([], False)
            assert (client.items, client.size) == (0, 0)
        assert [worker.holds for worker in broker.dispatcher.workers.values()] == [{}] * (2 * HOSTS)
        assert len(broker.dispatcher.children) == 2 * HOSTS
        # A client that was idle for long is forgotten; the others stay known.
        roles = sorted(link.role for link in broker.links.by_life.values() if link.role != "client")
        assert roles == ["supervisor"] * (2 * HOSTS) + ["worker"] * (2 * HOSTS)
        assert set(broker.links.by_peer.values()) == set(broker.links.by_life.values())


def is_over(asked: Asked) -> bool:
    return bool(asked.outcomes) or asked.cancelled


def codes(asked: Asked) -> set[str]:
    """Return the errors among what became of a call's items."""
    ended = [one for out in asked.outcomes for one in ([out] if isinstance(out, str) else out)]
    return {one for one in ended if isinstance(one, str)}


def is_own(asked: Asked, outcome: Any) -> bool:
    """Return whether this can be a call's outcome: each item's own output, or an error that it may have."""
    if isinstance(outcome, str):
        outcome = [outcome] * len(asked.items)
    return all(
        one == own
        or one in ANYBODYS
        or (mark_of(item), one) in {(b"?", "model_failed"), (b"!", "poison_item")}
        for item, own, one in zip(asked.items, asked.own(), outcome, strict=True)
    )


# The same lives in every run: a build that turns red must be somebody's change.
ClusterMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, derandomize=True
)
TestClusterMachine = ClusterMachine.TestCase
