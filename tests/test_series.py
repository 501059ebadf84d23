"""What a broker's figures look like to Prometheus; read back by prometheus-client's own parser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.core.driving import Cluster, Peer, group
from tests.core.hearing import batches
from tests.test_nvml import Library
from zbatch import series
from zbatch.core.figures import Snapshots
from zbatch.exposition import page
from zbatch.messages import Child, Children, Fault, Request
from zbatch.metrics import Flow
from zbatch.model_metrics import Slate, SlotFigures, Work, WorkerFigures, report
from zbatch.nvml import Gpus
from zbatch.series import BrokerSeries, Names, WorkerSeries

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


@pytest.mark.parametrize(
    "one", series.BROKER + series.WORKER + series.GPU + series.PROCESS, ids=lambda one: one.name
)
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


# --- workers --------------------------------------------------------------------------------------


def worker(
    *slots: SlotFigures, reports: dict[str, bytes] | None = None, gpus: Gpus | None = None
) -> dict[tuple[str, ...], float]:
    """Return what is shown of a worker."""
    return samples(worker_series(*slots, reports=reports, gpus=gpus))


def worker_series(
    *slots: SlotFigures, reports: dict[str, bytes] | None = None, gpus: Gpus | None = None
) -> WorkerSeries:
    slates = {slot.name: Slate.create() for slot in slots}
    for name, content in (reports or {}).items():
        slates[name].write(content)
    shown = WorkerSeries("bert", slates, gpus or Gpus([]), clock=lambda: 2.0)
    shown.leave(WorkerFigures(slots, {"tcp://b:1": 0.5}), 1.0)
    return shown


def slot(name: str, state: str = "ready", deaths: dict[str, int] | None = None) -> SlotFigures:
    return SlotFigures(name, state, "cpu", deaths or {})


def kept(**counts: float) -> bytes:
    """Return a report of a process that ran one batch of three, and whose model keeps these gauges."""
    work = Work()
    work.ran(3, 1, 0.3)
    return report(work, [GaugeMetricFamily(name, "Own.", value=value) for name, value in counts.items()])


def test_a_worker_shows_its_slots_and_what_ran_in_them() -> None:
    found = worker(slot("0"), slot("1", "dead", {"SIGKILL": 2}), reports={"0": kept()})
    wanted = {
        ("zbatch_worker_model_processes", "ready", "bert"): 1.0,
        ("zbatch_worker_model_processes", "dead", "bert"): 1.0,
        ("zbatch_worker_restarts_total", "SIGKILL", "1", "bert"): 2.0,
        ("zbatch_worker_slot_info", "cpu", "0", "bert"): 1.0,
        ("zbatch_worker_items_total", "0", "bert"): 3.0,
        ("zbatch_worker_failed_items_total", "0", "bert"): 1.0,
        ("zbatch_worker_items_total", "1", "bert"): 0.0,
        ("zbatch_worker_batch_items_bucket", "2.0", "0", "bert"): 0.0,
        ("zbatch_worker_batch_items_bucket", "4.0", "0", "bert"): 1.0,
        ("zbatch_worker_run_seconds_bucket", "0.5", "0", "bert"): 1.0,
        ("zbatch_worker_run_seconds_sum", "0", "bert"): 0.3,
        ("zbatch_worker_broker_silence_seconds", "tcp://b:1"): 0.5,
        ("zbatch_worker_snapshot_age_seconds",): 1.0,
    }
    assert {what: found.get(what) for what in wanted} == wanted


def test_the_models_own_metrics_are_told_apart_by_slot() -> None:
    found = worker(slot("0"), slot("1"), reports={"0": kept(own=1.0), "1": kept(own=2.0)})
    assert found["own", "0", "bert"] == 1.0
    assert found["own", "1", "bert"] == 2.0


def test_labels_of_the_model_that_are_taken_get_another_name() -> None:
    own = GaugeMetricFamily("own", "Own.", labels=["slot", "who"])
    own.add_metric(["mine", "ada"], 1.0)
    text = page(worker_series(slot("0"), reports={"0": report(Work(), [own])})).body.decode()
    assert 'own{exported_slot="mine",slot="0",topic="bert",who="ada"} 1.0' in text


def test_names_that_are_ours_and_kinds_that_differ_are_left_out_and_counted() -> None:
    other = CounterMetricFamily("own", "Own.", value=5.0)
    bad = UnknownMetricFamily("x", "X.", value=1.0)
    bad.name, bad.samples = "", [bad.samples[0]._replace(name="")]
    found = worker(
        *(slot("0"), slot("1")),
        reports={"0": kept(own=1.0, zbatch_mine=1.0), "1": report(Work(), [other, bad])},
    )
    assert ("zbatch_mine", "0", "bert") not in found
    assert ("own_total", "1", "bert") not in found
    assert found["zbatch_worker_left_out_samples", "0", "bert"] == 1.0
    assert found["zbatch_worker_left_out_samples", "1", "bert"] == 2.0


def test_a_sample_that_is_there_twice_is_shown_once() -> None:
    twice = GaugeMetricFamily("own", "Own.", labels=["who"])
    for value in (1.0, 2.0):
        twice.add_metric(["ada"], value)
    found = worker(slot("0"), reports={"0": report(Work(), [twice])})
    assert found["own", "0", "bert", "ada"] == 1.0
    assert found["zbatch_worker_left_out_samples", "0", "bert"] == 1.0


def test_what_a_dead_process_did_is_shown_on_but_not_what_its_model_kept() -> None:
    found = worker(slot("0", "dead"), reports={"0": kept(own=1.0)})
    assert found["zbatch_worker_items_total", "0", "bert"] == 3.0
    assert ("own", "0", "bert") not in found


def test_slots_beyond_the_bound_are_added_up_and_their_models_metrics_left_out() -> None:
    names = [str(at) for at in range(series.NAMED + 2)]
    found = worker(
        *(slot(name, deaths={"exit": 1}) for name in names), reports={name: kept(own=1.0) for name in names}
    )
    assert found["zbatch_worker_items_total", "other", "bert"] == 6.0
    assert found["zbatch_worker_restarts_total", "exit", "other", "bert"] == 2.0
    assert {what[1] for what in found if what[0] == "own"} == set(names[: series.NAMED])


def test_gpus_are_shown_as_far_as_they_say_something() -> None:
    found = worker(slot("0"), gpus=Gpus(["0", "1", "MIG-cccc"], Library))
    assert {what: value for what, value in found.items() if what[0].startswith("zbatch_gpu")} == {
        ("zbatch_gpu_memory_used_bytes", "0"): 3.0,
        ("zbatch_gpu_memory_used_bytes", "MIG-cccc"): 3.0,
        ("zbatch_gpu_memory_total_bytes", "0"): 10.0,
        ("zbatch_gpu_memory_total_bytes", "MIG-cccc"): 10.0,
        ("zbatch_gpu_busy_ratio", "0"): 0.25,
        ("zbatch_gpu_busy_ratio", "1"): 0.25,
    }


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_family_of_a_worker_is_shown_as_its_table_says(accept: str) -> None:
    parse = parse_openmetrics if accept else parse_text
    gpus = Gpus(["0"], Library)
    text = page(worker_series(slot("0", deaths={"exit": 1}), gpus=gpus), accept).body.decode()
    found = families(parse(text))
    assert {name: told for name, told in found.items() if not name.startswith("zbatch_process")} == {
        one.name.removesuffix("_total"): (one.kind, one.help) for one in series.WORKER + series.GPU
    }


def test_before_a_worker_has_left_figures_only_its_process_is_shown() -> None:
    assert {name for name, *_ in samples(WorkerSeries("bert", {}, Gpus([])))} == {
        one.name for one in series.PROCESS
    }
