"""A cluster in which anything happens in any order: one outcome each, its own, and nothing left behind."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.network import TOPIC, Asked, Network

CLIENTS, HOSTS = 2, 2
LATE = 0.1
"""Seconds past its deadline within which a call must have its outcome."""

HARMLESS = st.sampled_from([b"a", b"b", b"c"])
ITEMS = st.lists(
    st.one_of(HARMLESS, HARMLESS, HARMLESS, st.sampled_from([b"!", b"?"])), min_size=1, max_size=6
)
ANY = st.integers(0, 1_000)


class ClusterMachine(RuleBasedStateMachine):
    """Clients ask, messages overtake each other, links break, processes die, the broker is restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(CLIENTS, HOSTS)
        self.owners: dict[int, int] = {}

    @rule(
        client=st.integers(0, CLIENTS - 1),
        items=ITEMS,
        timeout=st.sampled_from([0.5, 8.0, 30.0]),
        together=st.booleans(),
    )
    def ask(self, client: int, items: list[bytes], timeout: float, together: bool) -> None:
        before = len(self.network.asked)
        named = [item + b"%d.%d" % (before, at) for at, item in enumerate(items)]
        self.network.ask(client, named, timeout, together=together)
        for number in range(before, len(self.network.asked)):
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

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 3.1]))
    def wait(self, seconds: float) -> None:
        self.network.wait(seconds)

    @rule(which=ANY)
    def kill(self, which: int) -> None:
        self.network.kill(which)

    @rule(which=ANY)
    def break_link(self, which: int) -> None:
        self.network.break_link(which)

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
            for outcome in asked.outcomes:
                assert isinstance(outcome, str) or all(map(is_own, asked.items, outcome))

    @invariant()
    def each_is_in_time(self) -> None:
        for asked in self.network.asked:
            if not is_over(asked):
                assert self.network.now <= asked.deadline + LATE

    def teardown(self) -> None:
        """Once faults stop, everything ends, and nothing is kept of it."""
        network = self.network
        network.settle(40.0)
        self.each_has_at_most_one_outcome_and_its_own()
        assert all(map(is_over, network.asked))
        assert all(line.core.is_idle for line in network.clients)
        topic = network.broker.topics.all.get(TOPIC)
        if topic is not None:
            assert (topic.items, topic.size, topic.running, topic.backlog.items) == (0, 0, 0, 0)
            assert not topic.suspects
            assert topic.roster.idle == HOSTS
        for client in network.broker.ledger.clients.values():
            assert client.is_empty
            assert client.groups() == []
            assert (client.items, client.size) == (0, 0)
        assert [worker.holds for worker in network.broker.dispatcher.workers.values()] == [{}] * HOSTS


def is_over(asked: Asked) -> bool:
    return bool(asked.outcomes) or asked.cancelled


def is_own(item: bytes, outcome: object) -> bool:
    """Return whether this can be an item's outcome: its own output, or an error that it may have."""
    if isinstance(outcome, bytes):
        return outcome == b"y" + item
    return outcome in {"deadline_exceeded", "no_workers", "broker_unreachable", "worker_lost"} | (
        {"model_failed"} if item[:1] == b"?" else set()
    ) | ({"poison_item"} if item[:1] == b"!" else set())


ClusterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestClusterMachine = ClusterMachine.TestCase
