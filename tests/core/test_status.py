"""The snapshot that people read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.driving import EPOCH, Cluster, Peer
from tests.core.hearing import batches, outcomes
from tests.core.piping import LINE
from zbatch.core.status import MODEL_BYTES, MODELS, MOST
from zbatch.messages import Bye, Child, Children, Facts, Fault, Order, Ready, Status, StatusAsk


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
        "only_topics": None,
        "pipelines": {},
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
        "coming": 0,
        "unfinished_bytes": 10,
        "oldest_age_s": 2.0,
        "running": 3,
        "batches_apart": 0,
        "models": [{"name": "m:M", "version": "", "signature": None, "schema": None}],
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


def models(client: Peer, topic: str = "bert") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shown(client, 1.0)["topics"][topic]["models"]
    return found


def offers(worker: Peer, topic: str = "bert", **facts: Any) -> None:
    worker.says(Ready, topic, 2, 4, None, 10.0, 60_000, True, Facts(**facts))


def test_a_topic_shows_what_its_workers_told_of_their_models() -> None:
    cluster = Cluster()
    first, second, client = cluster.worker("w1"), cluster.worker("w2"), cluster.client()
    told: dict[str, Any] = {
        "name": "m:M",
        "version": "1",
        "signature": b'{"inputs": []}',
        "schema": b'{"item":{}}',
    }
    for worker, gpu in ((first, "0"), (second, "1")):
        offers(worker, gpu=gpu, **told)
    one = {"name": "m:M", "version": "1", "signature": {"inputs": []}, "schema": {"item": {}}}
    assert models(client) == [one]
    offers(second, **{**told, "version": "2"})
    assert models(client) == [one, {**one, "version": "2"}]
    first.says(Bye)
    assert models(client) == [{**one, "version": "2"}]
    second.says(Bye)
    assert models(client) == []


def test_of_many_versions_a_few_are_shown() -> None:
    cluster = Cluster()
    client = cluster.client()
    for at in range(MODELS + 1):
        offers(cluster.worker(f"w{at}"), version=str(at))
    assert [one["version"] for one in models(client)] == [str(at) for at in range(MODELS)]


@pytest.mark.parametrize(
    "told", [b"", b"{", b"\xff", b'"\xff"', b"[1] 2", b"[" * 8_000 + b"]" * 8_000, b"[" * 65 + b"]" * 65]
)
def test_what_is_no_json_that_everybody_can_read_is_not_shown(told: bytes) -> None:
    cluster = Cluster()
    client = cluster.client()
    offers(cluster.worker(), signature=told, schema=told)
    (one,) = models(client)
    assert (one["signature"], one["schema"]) == (None, None)


def test_json_that_is_not_nested_too_deep_is_shown() -> None:
    cluster = Cluster()
    client = cluster.client()
    offers(cluster.worker(), signature=b"[" * 63 + b"]" * 63, schema=b"null")
    (one,) = models(client)
    assert json.dumps(one["signature"]) == "[" * 63 + "]" * 63


def test_what_many_topics_tell_of_their_models_stays_within_a_bound() -> None:
    cluster = Cluster()
    client = cluster.client()
    for at in range(50):
        schema = b'"%s"' % (b"%03d" % at * 5_000)
        offers(cluster.worker(f"w{at}", topic=f"t{at}"), f"t{at}", schema=schema)
    (status,) = [one for one in client.says(StatusAsk, now=1.0) if isinstance(one, Status)]
    assert len(status.snapshot) < MODEL_BYTES + 100_000
    assert [models(client, f"t{at}")[0]["schema"] is None for at in (0, 49)] == [False, True]


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


def test_a_pipeline_shows_its_stages_and_whether_all_are_served() -> None:
    cluster = Cluster(pipelines={"all": LINE[:2]})
    client = cluster.client()
    cluster.worker("w1", topic="bert")
    stages = [{"name": name, "topic": name} for name in ("pre", "bert")]
    assert shown(client, 1.0)["pipelines"] == {"all": {"stages": stages, "ready": False}}
    cluster.worker("w2", topic="pre")
    assert shown(client, 1.0)["pipelines"] == {"all": {"stages": stages, "ready": True}}


def test_items_that_are_in_an_earlier_stage_are_shown_as_coming() -> None:
    client = Cluster().client()
    client.asks(0, 2, topic="all", route=LINE[:2])
    topics = shown(client, 1.0)["topics"]
    assert [(topics[name]["unfinished"], topics[name]["coming"]) for name in ("pre", "bert")] == [
        (2, 0),
        (0, 2),
    ]


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
