"""What an operator orders is drained: nothing new, what was begun ends, and then it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.driving import Cluster, Peer, dies, ready
from tests.core.hearing import batches, outcomes
from zbatch.config import Timing
from zbatch.core.links import Identity
from zbatch.core.supervisor import SupervisorCore
from zbatch.messages import Child, Children, Draining, Fault, Leave, Order, Ordered, Welcome


def order(client: Peer, what: Any, name: str = "", *, undo: bool = False) -> str | Fault:
    """Give an order; return the answer."""
    (answer,) = [one for one in client.says(Order, what, name, undo) if isinstance(one, Ordered)]
    return answer.fault or answer.text


def leaves(supervisor: Peer) -> int:
    return sum(isinstance(message, Leave) for message in supervisor.told())


def host(cluster: Cluster, name: str, pid: int, *workers: Peer) -> Peer:
    """Return a supervisor of these workers, on a host of this name."""
    supervisor = cluster.supervisor(f"s{pid}")
    link = cluster.core.links.by_life[supervisor.life]
    link.host, link.pid = name, pid
    supervisor.says(Children, "bert", [Child(worker.incarnation, True, state="ready") for worker in workers])
    return supervisor


def test_a_worker_that_is_named_by_its_host_is_told_to_leave() -> None:
    cluster = Cluster()
    one, two, admin = host(cluster, "gpu1", 10), host(cluster, "gpu2", 20), cluster.client()
    assert order(admin, "worker", "gpu1") == "told to leave: gpu1:10"
    assert (leaves(one), leaves(two)) == (1, 0)


@pytest.mark.parametrize("leaves", ["by order", "by itself", "not"])
def test_a_worker_that_leaves_has_not_died(leaves: str) -> None:
    cluster = Cluster()
    worker, admin = cluster.worker("w1"), cluster.client()
    supervisor = host(cluster, "gpu1", 10, worker)
    if leaves == "by order":
        order(admin, "worker", "gpu1")
    if leaves == "by itself":
        worker.says(Draining)
    dies(supervisor, worker, begun=1, finished=1, status=0)
    assert cluster.core.dispatcher.workers == {}
    assert ("worker_died" in cluster.core.counters) is (leaves == "not")


@pytest.mark.parametrize(("finished", "status"), [(0, 0), (1, -9)])
def test_a_worker_that_dies_while_it_leaves_has_died(finished: int, status: int) -> None:
    cluster = Cluster()
    worker = cluster.worker("w1")
    supervisor = host(cluster, "gpu1", 10, worker)
    worker.says(Draining)
    dies(supervisor, worker, begun=1, finished=finished, status=status)
    assert cluster.core.counters["worker_died"] == 1


def test_a_worker_may_be_named_by_its_own_process_or_one_of_its_models() -> None:
    cluster = Cluster()
    worker, admin = cluster.worker("w1"), cluster.client()
    cluster.core.links.by_life[worker.life].pid = 77
    one, two = host(cluster, "gpu1", 10, worker), host(cluster, "gpu1", 20)
    assert order(admin, "worker", "gpu1:20") == "told to leave: gpu1:20"
    assert order(admin, "worker", "gpu1:77") == "told to leave: gpu1:10"
    assert (leaves(one), leaves(two)) == (1, 1)


def test_a_worker_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    cluster = Cluster()
    admin = cluster.client()
    assert order(admin, "worker", "gpu9") == Fault("bad_request", "no worker is 'gpu9'; there is none")
    host(cluster, "gpu1", 10)
    text = "no worker is 'gpu1:11'; there are gpu1:10"
    assert order(admin, "worker", "gpu1:11") == Fault("bad_request", text)


def test_a_drained_topic_ends_what_it_has_and_then_its_workers_leave() -> None:
    cluster = Cluster()
    worker, other, client = cluster.worker("w1"), cluster.worker("w2", topic="gpt"), cluster.client()
    mine, others = host(cluster, "gpu1", 10, worker), host(cluster, "gpu2", 20, other)
    client.asks(0, 2)
    (batch,) = batches(worker.told())
    assert order(client, "topic", "bert") == "topic 'bert' takes no new requests; 2 items are to be finished"
    assert leaves(mine) == 0
    assert outcomes(client.asks(2, 1)) == {2: "unknown_topic"}
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0", 1: b"yx1"}
    assert (leaves(mine), leaves(others)) == (1, 0)


def test_who_asks_for_a_drained_topic_is_told() -> None:
    cluster = Cluster()
    cluster.worker("w1")
    client = cluster.client()
    order(client, "topic", "bert")
    assert outcomes(client.asks(0, 1)) == {0: "unknown_topic"}


def test_a_worker_that_comes_to_a_drained_topic_is_taken_and_told_of_once() -> None:
    cluster = Cluster()
    cluster.worker("w1")
    order(cluster.client(), "topic", "bert")
    cluster.core.events.clear()
    ready(cluster.worker("w2"))
    told = [facts for what, facts in cluster.core.events if what == "worker of a drained topic"]
    assert told == [{"topic": "bert", "host": "host", "pid": 1}]


def test_a_drained_topic_may_take_requests_again() -> None:
    cluster = Cluster()
    worker, client = cluster.worker("w1"), cluster.client()
    order(client, "topic", "bert")
    assert order(client, "topic", "bert", undo=True) == "topic 'bert' takes requests again"
    client.asks(0, 1)
    assert len(batches(worker.told())) == 1


def test_a_topic_that_was_forgotten_meanwhile_leaves_nobody_to_dismiss() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    order(client, "topic", "bert")
    del cluster.core.topics.all["bert"]
    cluster.core._orders.tick()
    assert cluster.core._orders._ending == set()


@pytest.mark.parametrize(
    ("undo", "text"), [(False, "topic 'x' is not known here"), (True, "topic 'x' is not being drained")]
)
def test_a_topic_that_is_not_there_is_an_error(undo: bool, text: str) -> None:
    assert order(Cluster().client(), "topic", "x", undo=undo) == Fault("bad_request", text)


def test_a_broker_that_is_drained_tells_its_body_to_leave() -> None:
    cluster = Cluster()
    assert order(cluster.client(), "broker") == "this broker leaves"
    assert cluster.core.draining


@pytest.mark.parametrize(("role", "may"), [("client", False), ("admin", True)])
def test_where_there_are_keys_only_an_admin_may_give_orders(role: str, may: bool) -> None:
    cluster = Cluster()
    client = cluster.client()
    cluster.core.links.by_life[client.life].identity = Identity(b"k" * 40, role, "ada")
    answer = order(client, "broker")
    assert isinstance(answer, str) is may
    assert cluster.core.draining is may
    if isinstance(answer, Fault):
        assert answer == Fault("forbidden", "the key 'ada' may not give orders; use an admin's")


def test_a_supervisor_that_is_told_to_leave_is_dismissed() -> None:
    core = SupervisorCore(1, b"l" * 16, lambda size: b"c" * size, Timing(), "bert")
    core.start(0.0)
    core.handle(b"\0", Welcome(b"c" * 8, 1, 1, b"epoch..1", 1), [], 0.0)
    assert not core.is_dismissed
    assert core.handle(b"\0", Leave(b"c" * 8, 2, 1), [], 0.0) == []
    assert core.is_dismissed
