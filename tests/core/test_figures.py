"""The snapshot that machines read."""

from __future__ import annotations

from tests.core.driving import Cluster, group
from tests.core.hearing import batches
from zbatch.core import figures
from zbatch.core.figures import Figures, Snapshots
from zbatch.messages import Child, Children, Fault, Request


def taken(cluster: Cluster, now: float) -> Figures:
    return Snapshots(cluster.core).take(now)


def test_an_idle_broker_has_no_topics_and_its_clients() -> None:
    cluster = Cluster(now=1.0)
    cluster.client(now=1.0)
    found = taken(cluster, 3.5)
    assert (found.uptime, found.topics, found.clients, found.processes) == (2.5, {}, 1, {})


def test_a_broker_that_never_turned_is_not_up_yet() -> None:
    cluster = Cluster()
    cluster.core.started = None
    assert taken(cluster, 3.5).uptime == 0.0


def test_a_topic_has_what_waits_what_runs_and_who_works() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 3)
    worker.told()
    client.asks(3, 2, now=1.0)
    topic = taken(cluster, 3.0).topics["bert"]
    assert (topic.waiting, topic.oldest, topic.unfinished, topic.size) == (2, 2.0, 5, 10)
    assert (topic.running, topic.workers) == (3, {"busy": 1})


def test_waiting_ends_when_a_worker_has_the_item() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 3, now=1.0)
    cluster.worker(now=3.0)
    wait = taken(cluster, 4.0).topics["bert"].tally.wait
    assert (wait.count, wait.total) == (3, 6.0)


def test_an_item_that_runs_again_has_waited_once() -> None:
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker()
    client.asks(0, 1)
    worker.told()
    cluster.core.unreachable(worker.peer, 1.0)
    cluster.core.dispatcher.lose(cluster.core.dispatcher.workers[worker.life])
    cluster.worker("w2", now=2.0)
    tally = taken(cluster, 2.0).topics["bert"].tally
    assert (tally.wait.count, tally.retries, tally.batches) == (1, 1, 2)


def test_sizes_of_batches_are_counted_by_the_power_of_two_that_holds_them() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1, size=8), cluster.client()
    for items in (1, 2, 3, 4, 5, 8):
        client.asks(items * 10, items)
        (batch,) = batches(worker.told())
        worker.answers(batch)
    assert taken(cluster, 1.0).topics["bert"].tally.sizes == {0: 1, 1: 1, 2: 2, 3: 2}


def test_bytes_are_counted_when_they_are_admitted() -> None:
    cluster = Cluster()
    cluster.client().asks(0, 3)
    assert taken(cluster, 1.0).topics["bert"].tally.size == 6


def test_what_is_refused_is_counted_by_code() -> None:
    cluster = Cluster(topics=("bert",))
    client = cluster.client()
    client.asks(0, 2, ms=0)
    client.says(Request, [group(10, 3, topic="unknown")])
    found = taken(cluster, 1.0)
    assert found.topics["bert"].tally.refused == {"deadline_exceeded": 2}
    assert found.unknown == {"unknown_topic": 3}


def test_what_was_admitted_and_failed_is_not_refused() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    worker.answers(batch, b"", errors=[(0, Fault("model_failed", "no"))])
    tally = taken(cluster, 1.0).topics["bert"].tally
    assert (tally.refused, tally.errors) == ({}, {"model_failed": 1})


def test_model_processes_are_counted_by_state_and_invented_states_are_one() -> None:
    cluster = Cluster()
    children = [Child(b"child..%d" % at, True, state=state) for at, state in enumerate(("ready", "x", "y"))]
    cluster.supervisor().says(Children, "bert", children)
    assert taken(cluster, 1.0).processes == {"ready": 1, "other": 2}


def test_what_did_not_change_is_not_copied_again() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    snapshots = Snapshots(cluster.core)
    first, second = snapshots.take(1.0), snapshots.take(2.0)
    assert first.topics["bert"].tally is second.topics["bert"].tally
    worker.answers(batch, now=2.0)
    third = snapshots.take(3.0)
    assert (second.topics["bert"].tally.answered, third.topics["bert"].tally.answered) == (0, 1)


def test_a_topic_that_was_forgotten_and_asked_for_again_is_copied_anew() -> None:
    cluster = Cluster()
    snapshots = Snapshots(cluster.core)
    cluster.client().asks(0, 1)
    before = snapshots.take(1.0).topics["bert"].tally
    del cluster.core.topics.all["bert"]
    cluster.core.topics.open("bert").tally.items = 1
    assert snapshots.take(2.0).topics["bert"].tally is not before


def test_beyond_the_bound_topics_are_left_out_and_workers_are_not_told_apart() -> None:
    most, figures.MOST = figures.MOST, 2
    try:
        cluster = Cluster()
        for at in range(3):
            cluster.worker(f"w{at}", topic="bert")
        cluster.worker("x", topic="a")
        cluster.worker("y", topic="b")
        found = taken(cluster, 1.0)
    finally:
        figures.MOST = most
    assert found.left_out == 1
    assert {name: one.workers for name, one in found.topics.items()} == {
        "bert": {"idle": 2, "other": 1},
        "a": {"other": 1},
    }
