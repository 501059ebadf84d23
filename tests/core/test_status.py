"""The snapshot that people read."""

from __future__ import annotations

import json
from typing import Any

from tests.core.driving import EPOCH, Cluster, Peer
from tests.core.hearing import batches, outcomes
from zbatch.core.status import MOST
from zbatch.messages import Child, Children, Fault, Order, Status, StatusAsk


def shown(client: Peer, now: float) -> dict[str, Any]:
    (status,) = [one for one in client.says(StatusAsk, now=now) if isinstance(one, Status)]
    found: dict[str, Any] = json.loads(status.snapshot)
    return found


def test_an_idle_broker_shows_itself() -> None:
    client = Cluster(now=1.0).client(now=1.0)
    assert shown(client, 3.5) == {
        "protocol": 1,
        "epoch": EPOCH.hex(),
        "uptime_s": 2.5,
        "topics": {},
        "workers": [],
        "processes": [],
        "clients": 1,
        "counters": {},
    }


def test_a_topic_shows_what_waits_what_runs_and_what_was_done() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    worker.answers(batch, now=0.5)
    client.told()
    client.asks(1, 3, now=0.5)
    worker.told()
    client.asks(4, 2, now=1.0)
    topic = shown(client, 3.0)["topics"]["bert"]
    latency, run = topic.pop("latency_ms"), topic.pop("run_ms")
    assert 500 <= latency["p50"] == latency["p90"] == latency["p99"] < 640
    assert 5 <= run["p50"] == run["p99"] < 6.4
    assert topic.pop("items_per_s") > 0
    assert topic == {
        "waiting": 2,
        "unfinished": 5,
        "unfinished_bytes": 10,
        "oldest_age_s": 2.0,
        "running": 3,
        "batches_apart": 0,
        "workers": 1,
        "idle_workers": 0,
        "draining": False,
        "batching": "eager",
        "items": 6,
        "answered": 1,
        "batches": 2,
        "mean_batch": 2.0,
        "fill": 0.5,
        "closed": {"idle": 2},
        "retries": 0,
        "errors": {},
    }


def test_a_topic_shows_how_its_items_ended_and_a_worker_what_it_ran() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(worker.told())
    fault = Fault("model_failed", "no")
    worker.answers(batch, b"a", b"", b"", b"d", errors=[(1, fault), (2, fault)])
    client.asks(10, 4)
    (batch,) = batches(worker.told())
    worker.answers(batch, b"", b"b", b"c", b"d", errors=[(0, fault)])
    snapshot = shown(client, 1.0)
    topic = snapshot["topics"]["bert"]
    assert (topic["answered"], topic["errors"]) == (5, {"model_failed": 3})
    assert [one["batches"] for one in snapshot["workers"]] == [2]


def test_codes_that_nobody_knows_are_counted_as_one_and_told_as_they_are() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 3)
    (batch,) = batches(worker.told())
    faults = [(at, Fault(f"invented_{at}", "no")) for at in range(2)]
    worker.answers(batch, b"", b"", b"", errors=[*faults, (2, Fault("bad_output", "no"))])
    assert outcomes(client.told()) == {0: "invented_0", 1: "invented_1", 2: "bad_output"}
    assert shown(client, 1.0)["topics"]["bert"]["errors"] == {"error": 2, "bad_output": 1}


def test_a_topic_that_takes_no_new_requests_by_order_says_so() -> None:
    cluster = Cluster()
    cluster.worker()
    client = cluster.client()
    client.says(Order, "topic", "bert")
    assert shown(client, 1.0)["topics"]["bert"]["draining"]
    client.says(Order, "topic", "bert", undo=True)
    assert not shown(client, 1.0)["topics"]["bert"]["draining"]


def test_latency_counts_from_the_arrival() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1, now=2.0)
    (batch,) = batches(worker.told())
    worker.answers(batch, now=2.5)
    latency = shown(client, 2.5)["topics"]["bert"]["latency_ms"]
    assert 500 <= latency["p50"] < 640
    assert latency["mean"] == 500


def test_a_topic_that_was_only_asked_for_has_no_figures_yet() -> None:
    client = Cluster().client()
    client.asks(0, 1)
    topic = shown(client, 1.0)["topics"]["bert"]
    assert (topic["mean_batch"], topic["fill"]) == (None, None)
    assert topic["run_ms"] == {"p50": None, "p90": None, "p99": None, "mean": None}


def test_of_a_large_farm_as_many_processes_are_named_as_workers() -> None:
    cluster = Cluster()
    client = cluster.client()
    for name in ("s1", "s2"):
        children = [Child(b"%s%06d" % (name.encode(), at), True) for at in range(MOST - 1)]
        cluster.supervisor(name).says(Children, "bert", children)
    assert len(shown(client, 1.0)["processes"]) == MOST == 1_000


def test_workers_and_processes_are_shown_with_where_and_how_they_are() -> None:
    cluster = Cluster()
    supervisor, worker, client = cluster.supervisor(), cluster.worker(), cluster.client()
    supervisor.says(Children, "bert", [Child(worker.incarnation, True, restarts=2, gpu="0", state="ready")])
    cluster.worker("w2")
    snapshot = shown(client, 1.0)
    assert snapshot["processes"] == [
        {
            "incarnation": worker.incarnation.hex(),
            "gpu": "0",
            "state": "ready",
            "alive": True,
            "exit": 0,
            "reason": "",
            "restarts": 2,
        }
    ]
    common = {
        "topic": "bert",
        "host": "host",
        "pid": 1,
        "gpu": "0",
        "state": "idle",
        "batches": 0,
        "holds": 0,
        "model": "m:M",
        "version": "",
        "batch_size": 4,
    }
    assert snapshot["workers"] == [{**common, "restarts": 2}, {**common, "restarts": None}]
