"""What a broker's figures look like to Prometheus; read back by prometheus-client's own parser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.core.driving import Cluster, Peer, group
from tests.core.hearing import batches
from zbatch import series
from zbatch.core.figures import Snapshots
from zbatch.exposition import page
from zbatch.messages import Child, Children, Fault, Request
from zbatch.metrics import Flow
from zbatch.series import BrokerSeries, Names

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def shown(cluster: Cluster, now: float = 1.0, flow: Flow | None = None) -> BrokerSeries:
    """Return what is shown of a broker."""
    shown = BrokerSeries(clock=lambda: now + 0.5)
    shown.leave(Snapshots(cluster.core).take(now), {"clients": flow or Flow()}, now)
    return shown


def samples(source: Any) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and its labels' values, in the order of their names."""
    text = page(source).body.decode()
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in parse_text(text)
        for one in family.samples
    }


def busy() -> Cluster:
    """Return a broker to which everything that is counted has happened."""
    cluster = Cluster(topics=("bert", "gone"))
    cluster.supervisor().says(Children, "bert", [Child(b"child..1", True, state="ready")])
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 3)
    answer(worker, client)
    client.asks(10, 2, ms=0)
    client.says(Request, [group(30, 4, topic="nowhere")])
    client.asks(20, 1)
    return cluster


def answer(worker: Peer, client: Peer) -> None:
    (batch,) = batches(worker.told())
    fault = Fault("model_failed", "no")
    worker.answers(batch, b"a", b"", b"c", errors=[(1, fault)], now=0.5)
    client.told()


def test_what_happened_to_a_topic_is_shown() -> None:
    found = samples(shown(busy()))
    wanted = {
        ("zbatch_topic_admitted_items_total", "bert"): 4.0,
        ("zbatch_topic_answered_items_total", "bert"): 2.0,
        ("zbatch_topic_failed_items_total", "model_failed", "bert"): 1.0,
        ("zbatch_topic_refused_items_total", "deadline_exceeded", "bert"): 2.0,
        ("zbatch_topic_refused_items_total", "unknown_topic", "other"): 4.0,
        ("zbatch_topic_running_items", "bert"): 1.0,
        ("zbatch_topic_workers", "busy", "bert"): 1.0,
        ("zbatch_topic_batches_closed_total", "bert", "idle"): 2.0,
        ("zbatch_topic_batch_items_bucket", "1.0", "bert"): 1.0,
        ("zbatch_topic_batch_items_bucket", "4.0", "bert"): 2.0,
        ("zbatch_topic_batch_items_sum", "bert"): 4.0,
        ("zbatch_topic_latency_seconds_count", "bert"): 2.0,
        ("zbatch_topic_latency_seconds_bucket", "0.5", "bert"): 0.0,
        ("zbatch_topic_latency_seconds_bucket", "1.0", "bert"): 2.0,
        ("zbatch_topic_wait_seconds_count", "bert"): 4.0,
        ("zbatch_topic_run_seconds_sum", "bert"): 0.005,
        ("zbatch_broker_model_processes", "ready"): 1.0,
        ("zbatch_broker_clients",): 1.0,
        ("zbatch_broker_snapshot_age_seconds",): 0.5,
    }
    assert {what: found.get(what) for what in wanted} == wanted


def test_traffic_is_shown_for_each_side() -> None:
    found = samples(shown(busy(), flow=Flow(1, 2, 3, 4)))
    assert found["zbatch_broker_received_messages_total", "clients"] == 1.0
    assert found["zbatch_broker_received_bytes_total", "clients"] == 2.0
    assert found["zbatch_broker_sent_messages_total", "clients"] == 3.0
    assert found["zbatch_broker_sent_bytes_total", "clients"] == 4.0


def families(text: Iterable[Any]) -> dict[str, tuple[str, str]]:
    return {one.name: (one.type, one.documentation) for one in text}


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_family_of_the_table_is_shown_as_it_says(accept: str) -> None:
    parse = parse_openmetrics if accept else parse_text
    text = page(shown(busy(), flow=Flow(1, 2, 3, 4)), accept).body.decode()
    assert families(parse(text)) == {
        one.name.removesuffix("_total"): (one.kind, one.help) for one in series.BROKER + series.PROCESS
    } | {name: told for name, told in families(parse(text)).items() if name.startswith("zbatch_process_")}


def test_what_is_shown_of_the_process_is_in_the_table() -> None:
    shown = {one.name for one in BrokerSeries().collect()}
    assert shown == {one.name.removesuffix("_total") for one in series.PROCESS}


def test_what_prometheus_3_asks_for_it_gets() -> None:
    accept = "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1"
    assert dict(page(BrokerSeries(), accept).headers)["Content-Type"] == (
        "text/plain; version=1.0.0; charset=utf-8; escaping=allow-utf-8"
    )
    assert dict(page(BrokerSeries()).headers)["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_before_the_first_snapshot_only_the_process_is_shown() -> None:
    assert {name for name, *_ in samples(BrokerSeries())} == {one.name for one in series.PROCESS}


@pytest.mark.parametrize("one", series.BROKER + series.PROCESS, ids=lambda one: one.name)
def test_names_say_whose_they_are_and_their_unit(one: series.Series) -> None:
    assert one.name.startswith("zbatch_")
    assert one.name.endswith("_total") == (one.kind == "counter")
    assert one.help.endswith(".")


def test_topics_beyond_the_bound_are_added_up() -> None:
    cluster = Cluster()
    client = cluster.client()
    for at in range(series.NAMED + 3):
        client.says(Request, [group(4 * at, 4, topic=f"t{at}")])
        worker = cluster.worker(f"w{at}", topic=f"t{at}")
        (batch,) = batches(worker.greeted)
        worker.answers(batch)
    found = samples(shown(cluster))
    labels = {what[1] for what in found if what[0] == "zbatch_topic_waiting_items"}
    assert labels == {f"t{at}" for at in range(series.NAMED)} | {"other"}
    assert found["zbatch_topic_answered_items_total", "other"] == 12.0
    assert found["zbatch_topic_latency_seconds_count", "other"] == 12.0
    assert found["zbatch_topic_batches_closed_total", "other", "full"] == 3.0
    assert found["zbatch_topic_workers", "idle", "other"] == 3.0


def test_who_is_named_stays_named_and_who_is_not_does_not_become_so() -> None:
    names = Names(2)
    assert names.of("abc") == {"a": "a", "b": "b", "c": "other"}
    assert names.of("cab") == {"a": "a", "b": "b", "c": "other"}
    assert names.of("bc") == {"b": "b", "c": "other"}
    assert names.of("bcde") == {"b": "b", "c": "other", "d": "d", "e": "other"}
