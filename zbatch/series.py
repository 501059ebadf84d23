"""What /metrics shows: every series of a broker and of a worker, and how figures become them.

The tables here are the ones that ``docs/metrics.md`` shows.  Labels are bounded: so many topics and slots
are named, and what there is beyond them is added up as ``other``.  Nothing here measures anything; what is
counted is in ``core/figures.py`` and ``model_metrics.py``, who serves it is ``exposition.py``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from zbatch.config import version
from zbatch.core.figures import Figures, TopicFigures
from zbatch.core.topics import Tally
from zbatch.metrics import Flow, Histogram, Key, add_counts
from zbatch.model_metrics import Family, Report, Slate, WorkerFigures, read
from zbatch.nvml import Gpus

OTHER = "other"
"""The label of what is not named by itself."""

NAMED = 64
"""Topics, and slots, that have labels of their own: each topic has a hundred lines, and a scrape is read by
one process of a few thousand a second."""

OCTAVES = range(-13, 7)
"""Durations are shown in octaves from 0.12 ms to 64 s, which are borders of what is counted exactly."""

BATCH_OCTAVES = range(11)
"""Sizes of batches are shown in octaves from 1 to 1,024 items."""

VERSION = version()
"""Looked up once: it takes a millisecond, of a gateway's loop too."""

Kind = Literal["gauge", "counter", "histogram"]


class Series(NamedTuple):
    """One family of what is shown."""

    name: str
    """As it is scraped; a histogram's without ``_bucket``, ``_sum`` and ``_count``."""
    kind: Kind
    labels: tuple[str, ...]
    help: str


BROKER = (
    Series("zbatch_topic_waiting_items", "gauge", ("topic",), "Items that no worker has yet."),
    Series(
        *("zbatch_topic_oldest_age_seconds", "gauge", ("topic",)),
        "How long the item has waited that has waited longest; 0: none waits.",
    ),
    Series("zbatch_topic_running_items", "gauge", ("topic",), "Items in workers' hands."),
    Series("zbatch_topic_unfinished_items", "gauge", ("topic",), "Items without an outcome."),
    Series("zbatch_topic_unfinished_bytes", "gauge", ("topic",), "Bytes of requests without an outcome."),
    Series("zbatch_topic_workers", "gauge", ("topic", "state"), "Model processes that serve it, by state."),
    Series("zbatch_topic_admitted_items_total", "counter", ("topic",), "Items that were taken in."),
    Series("zbatch_topic_admitted_bytes_total", "counter", ("topic",), "Bytes of items that were taken in."),
    Series("zbatch_topic_answered_items_total", "counter", ("topic",), "Items that ended in an output."),
    Series(
        *("zbatch_topic_failed_items_total", "counter", ("topic", "code")),
        "Items that were taken in and ended in an error, by code.",
    ),
    Series(
        *("zbatch_topic_refused_items_total", "counter", ("topic", "code")),
        "Items that were not taken in, by code; of topics that there are not, under the topic other.",
    ),
    Series("zbatch_topic_retries_total", "counter", ("topic",), "Groups of items handed out again."),
    Series(
        *("zbatch_topic_batches_closed_total", "counter", ("topic", "why")),
        "Batches by why they closed: full; idle: a worker was; window: its time was over.",
    ),
    Series(
        *("zbatch_topic_batch_room_items_total", "counter", ("topic",)),
        "Items that the batches could have held: the sum of batch sizes over this is how full they were.",
    ),
    Series("zbatch_topic_batch_items", "histogram", ("topic",), "Items in a batch."),
    Series(
        *("zbatch_topic_wait_seconds", "histogram", ("topic",)),
        "From an item's arrival at the broker until a worker had it for the first time.",
    ),
    Series(
        *("zbatch_topic_run_seconds", "histogram", ("topic",)), "How long a batch ran, as its worker says."
    ),
    Series(
        *("zbatch_topic_latency_seconds", "histogram", ("topic",)),
        "From an item's arrival at the broker to its output there.",
    ),
    Series("zbatch_broker_clients", "gauge", (), "Clients that are known."),
    Series(
        *("zbatch_broker_model_processes", "gauge", ("state",)),
        "Model processes that supervisors speak of, by state; dead: its end was told just now.",
    ),
    Series(
        *("zbatch_broker_received_bytes_total", "counter", ("side",)), "Bytes of messages that were read."
    ),
    Series("zbatch_broker_sent_bytes_total", "counter", ("side",), "Bytes of messages that were sent."),
    Series("zbatch_broker_received_messages_total", "counter", ("side",), "Messages that were read."),
    Series("zbatch_broker_sent_messages_total", "counter", ("side",), "Messages that were sent."),
    Series(
        *("zbatch_broker_events_total", "counter", ("event",)),
        "The counters that zbatch status shows, such as worker_died, malformed.",
    ),
    Series("zbatch_broker_left_out_topics", "gauge", (), "Topics that these metrics do not count."),
    Series("zbatch_broker_uptime_seconds", "gauge", (), "Since its start."),
    Series(
        *("zbatch_broker_snapshot_age_seconds", "gauge", ()),
        "How old these figures are: more than a few seconds, and the broker's loop stands still.",
    ),
    Series("zbatch_broker_info", "gauge", ("version",), "Always 1."),
)
"""What a broker shows."""

WORKER = (
    Series(
        *("zbatch_worker_model_processes", "gauge", ("topic", "state")),
        "Slots by the state of their model process; dead: it will be started again; given_up: it will not.",
    ),
    Series(
        *("zbatch_worker_restarts_total", "counter", ("topic", "slot", "reason")),
        "Model processes that ended and were not told to, by why: a signal, lease, load failed, exit.",
    ),
    Series(
        *("zbatch_worker_slot_info", "gauge", ("topic", "slot", "gpu")),
        "Always 1; says which GPU, or cpu, a slot has.",
    ),
    Series(
        *("zbatch_worker_items_total", "counter", ("topic", "slot")), "Items in batches that came to an end."
    ),
    Series(*("zbatch_worker_failed_items_total", "counter", ("topic", "slot")), "Of these, how many failed."),
    Series("zbatch_worker_run_seconds", "histogram", ("topic", "slot"), "How long a batch ran."),
    Series("zbatch_worker_batch_items", "histogram", ("topic", "slot"), "Items in a batch."),
    Series(
        *("zbatch_worker_short_memory_total", "counter", ("topic", "slot")),
        "Runs for which memory was short, so that they were halved.",
    ),
    Series(
        *("zbatch_worker_left_out_samples", "gauge", ("topic", "slot")),
        "Samples of the model's own metrics that are not shown: there are too many, or a name is taken.",
    ),
    Series(
        *("zbatch_worker_broker_silence_seconds", "gauge", ("broker",)),
        "For how long a broker has said nothing.",
    ),
    Series(
        *("zbatch_worker_snapshot_age_seconds", "gauge", ()),
        "How old these figures are: more than a few seconds, and the supervisor's loop stands still.",
    ),
    Series("zbatch_worker_info", "gauge", ("version", "topic"), "Always 1."),
)
"""What a worker shows, beside the metrics of its model."""

GPU = (
    Series("zbatch_gpu_memory_used_bytes", "gauge", ("gpu",), "Memory of a served GPU in use, by anybody."),
    Series("zbatch_gpu_memory_total_bytes", "gauge", ("gpu",), "Memory that a served GPU has."),
    Series(
        *("zbatch_gpu_busy_ratio", "gauge", ("gpu",)),
        "The share of the last moments, 0 to 1, in which anything ran on a served GPU.",
    ),
)
"""What a worker shows of the GPUs that it serves, where NVML is there."""

GATEWAY = (
    Series(
        *("zbatch_gateway_requests_total", "counter", ("process", "call", "status")),
        "Requests by call and status; 499: the client had gone; other: the path was none.",
    ),
    Series(
        *("zbatch_gateway_request_seconds", "histogram", ("process", "call")),
        "From a request's head to its answer.",
    ),
    Series("zbatch_gateway_in_flight_requests", "gauge", ("process",), "Requests without an answer."),
    Series("zbatch_gateway_received_bytes_total", "counter", ("process",), "Bytes of bodies that came."),
    Series("zbatch_gateway_sent_bytes_total", "counter", ("process",), "Bytes of bodies that were sent."),
    Series("zbatch_gateway_ready", "gauge", ("process",), "1: as /health/ready says; else 0."),
    Series("zbatch_gateway_info", "gauge", ("process", "version"), "Always 1."),
)
"""What a gateway shows, of each of its processes."""

PROCESS = (
    Series("zbatch_process_cpu_seconds_total", "counter", (), "Processor time of this process."),
    Series("zbatch_process_resident_memory_bytes", "gauge", (), "Memory of this process."),
    Series("zbatch_process_virtual_memory_bytes", "gauge", (), "Address space of this process."),
    Series("zbatch_process_open_fds", "gauge", (), "Open file descriptors of this process."),
    Series("zbatch_process_max_fds", "gauge", (), "How many file descriptors it may open."),
    Series("zbatch_process_start_time_seconds", "gauge", (), "When it started, since the epoch."),
)
"""What each shows of its process; prometheus-client reads it."""


TABLES = {
    "A broker": BROKER,
    "A worker": WORKER,
    "Its GPUs": GPU,
    "A gateway": GATEWAY,
    "Its process": PROCESS,
}
"""By their titles in ``docs/metrics.md``."""


class Sheet:
    """The families of a table, being filled."""

    def __init__(self, table: Sequence[Series]) -> None:
        self._families = {one.name: _family(one) for one in table}

    def put(self, name: str, value: float, *labels: str) -> None:
        """Write a sample."""
        self._families[name].add_metric(labels, value)

    def put_each(self, name: str, values: Mapping[str, float], *labels: str) -> None:
        """Write a sample for each; what they are told apart by is the last label."""
        for what, value in values.items():
            self.put(name, value, *labels, what)

    def put_durations(self, name: str, seen: Histogram, *labels: str) -> None:
        """Write a histogram of durations."""
        counts = seen.below(OCTAVES)
        buckets = [(repr(2.0**octave), count) for octave, count in zip(OCTAVES, counts, strict=True)]
        self._families[name].add_metric(labels, [*buckets, ("+Inf", seen.count)], seen.total)

    def put_sizes(self, name: str, sizes: Mapping[int, int], total: int, *labels: str) -> None:
        """Write a histogram of sizes; they are counted by the power of two that holds them."""
        buckets: list[tuple[str, float]] = []
        for octave in BATCH_OCTAVES:
            counted = sum(times for power, times in sizes.items() if power <= octave)
            buckets.append((repr(2.0**octave), counted))
        buckets.append(("+Inf", sum(sizes.values())))
        self._families[name].add_metric(labels, buckets, total)

    def families(self) -> Iterator[Any]:
        """Return those with samples."""
        return (one for one in self._families.values() if one.samples)


def _family(series: Series) -> Any:
    make: dict[Kind, Callable[..., Any]] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return make[series.kind](series.name, series.help, labels=series.labels)


class Names:
    """Which are named, and which are others; either stays what it is, or its counts would jump."""

    def __init__(self, most: int = NAMED) -> None:
        self._most = most
        self._labels: dict[str, str] = {}

    def of(self, all: Iterable[str]) -> dict[str, str]:
        """Return the label of each."""
        labels = {name: self._labels[name] for name in all if name in self._labels}
        named = sum(1 for name, label in labels.items() if name == label)
        for name in all:
            if name not in labels:
                labels[name] = name if named < self._most else OTHER
                named += 1
        self._labels = labels
        return labels


@dataclass(slots=True)
class _Kept:
    figures: Figures
    flows: Mapping[str, Flow]
    at: float


class BrokerSeries:
    """A broker's metrics, from the last figures that its loop has left here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._names = Names()
        self._last: _Kept | None = None
        self._process = ProcessCollector(namespace="zbatch", registry=None)

    def leave(self, figures: Figures, flows: Mapping[str, Flow], now: float) -> None:
        """Show these from now on."""
        self._last = _Kept(figures, flows, now)

    def collect(self) -> Iterator[Any]:
        """Return the families, as prometheus-client wants them."""
        kept = self._last
        if kept is not None:
            sheet = Sheet(BROKER)
            _write_broker(sheet, kept, self._clock() - kept.at)
            labels = self._names.of(kept.figures.topics)
            together: dict[str, list[TopicFigures]] = defaultdict(list)
            for name, topic in kept.figures.topics.items():
                together[labels[name]].append(topic)
            for label, topics in together.items():
                _write_topic(sheet, topics[0] if len(topics) == 1 else _sum(topics), label)
            yield from sheet.families()
        yield from self._process.collect()


def _write_broker(sheet: Sheet, kept: _Kept, age: float) -> None:
    figures = kept.figures
    sheet.put("zbatch_broker_clients", figures.clients)
    sheet.put_each("zbatch_broker_model_processes", figures.processes)
    for side, flow in kept.flows.items():
        sheet.put("zbatch_broker_received_bytes_total", flow.received_bytes, side)
        sheet.put("zbatch_broker_sent_bytes_total", flow.sent_bytes, side)
        sheet.put("zbatch_broker_received_messages_total", flow.received_messages, side)
        sheet.put("zbatch_broker_sent_messages_total", flow.sent_messages, side)
    sheet.put_each("zbatch_broker_events_total", figures.counters)
    sheet.put_each("zbatch_topic_refused_items_total", figures.unknown, OTHER)
    sheet.put("zbatch_broker_left_out_topics", figures.left_out)
    sheet.put("zbatch_broker_uptime_seconds", figures.uptime)
    sheet.put("zbatch_broker_snapshot_age_seconds", age)
    sheet.put("zbatch_broker_info", 1, VERSION)


def _write_topic(sheet: Sheet, topic: TopicFigures, label: str) -> None:
    tally = topic.tally
    sheet.put("zbatch_topic_waiting_items", topic.waiting, label)
    sheet.put("zbatch_topic_oldest_age_seconds", topic.oldest, label)
    sheet.put("zbatch_topic_running_items", topic.running, label)
    sheet.put("zbatch_topic_unfinished_items", topic.unfinished, label)
    sheet.put("zbatch_topic_unfinished_bytes", topic.size, label)
    sheet.put_each("zbatch_topic_workers", topic.workers, label)
    sheet.put("zbatch_topic_admitted_items_total", tally.items, label)
    sheet.put("zbatch_topic_admitted_bytes_total", tally.size, label)
    sheet.put("zbatch_topic_answered_items_total", tally.answered, label)
    sheet.put_each("zbatch_topic_failed_items_total", tally.errors, label)
    sheet.put_each("zbatch_topic_refused_items_total", tally.refused, label)
    sheet.put("zbatch_topic_retries_total", tally.retries, label)
    sheet.put_each("zbatch_topic_batches_closed_total", tally.closed, label)
    sheet.put("zbatch_topic_batch_room_items_total", tally.batched_room, label)
    sheet.put_sizes("zbatch_topic_batch_items", tally.sizes, tally.batched_items, label)
    sheet.put_durations("zbatch_topic_wait_seconds", tally.wait, label)
    sheet.put_durations("zbatch_topic_run_seconds", tally.run, label)
    sheet.put_durations("zbatch_topic_latency_seconds", tally.latency, label)


def _sum(topics: Sequence[TopicFigures]) -> TopicFigures:
    """Return several topics as one."""
    tally = Tally()
    for one in topics:
        tally.add(one.tally)
    return TopicFigures(
        waiting=sum(one.waiting for one in topics),
        oldest=max(one.oldest for one in topics),
        unfinished=sum(one.unfinished for one in topics),
        size=sum(one.size for one in topics),
        running=sum(one.running for one in topics),
        workers=_added(one.workers for one in topics),
        tally=tally,
    )


def _added(counts: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    total: dict[Key, int] = {}
    for one in counts:
        add_counts(total, one)
    return total


# --- workers -------------------------------------------------------------------------------------


class WorkerSeries:
    """A worker's metrics: what its supervisor has left here, what its model processes wrote, its GPUs."""

    def __init__(
        self,
        topic: str,
        slates: Mapping[str, Slate],
        gpus: Gpus,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._slates = slates
        self._gpus = gpus
        self._clock = clock
        self._last: tuple[WorkerFigures, float] | None = None
        self._process = ProcessCollector(namespace="zbatch", registry=None)

    def leave(self, figures: WorkerFigures, now: float) -> None:
        """Show these from now on."""
        self._last = (figures, now)

    def collect(self) -> Iterator[Any]:
        """Return the families, as prometheus-client wants them."""
        last = self._last
        if last is not None:
            figures, at = last
            sheet = Sheet(WORKER + GPU)
            sheet.put("zbatch_worker_snapshot_age_seconds", self._clock() - at)
            sheet.put("zbatch_worker_info", 1, VERSION, self._topic)
            sheet.put_each("zbatch_worker_broker_silence_seconds", figures.silences)
            reports = {slot.name: read(self._slates[slot.name], Report) for slot in figures.slots}
            own = self._write_slots(sheet, figures, reports)
            self._write_gpus(sheet)
            yield from sheet.families()
            yield from own
        yield from self._process.collect()

    def _write_slots(
        self, sheet: Sheet, figures: WorkerFigures, reports: Mapping[str, Report]
    ) -> list[Metric]:
        states: dict[str, int] = defaultdict(int)
        labels = {slot.name: slot.name if at < NAMED else OTHER for at, slot in enumerate(figures.slots)}
        deaths: dict[str, list[Mapping[str, int]]] = defaultdict(list)
        together: dict[str, list[Report]] = defaultdict(list)
        merged = _Merged(self._topic)
        for slot in figures.slots:
            states[slot.state] += 1
            if labels[slot.name] != OTHER:
                sheet.put("zbatch_worker_slot_info", 1, self._topic, slot.name, slot.gpu)
            deaths[labels[slot.name]].append(slot.deaths)
            together[labels[slot.name]].append(reports[slot.name])
            if slot.state not in GONE and labels[slot.name] != OTHER:
                merged.add(slot.name, reports[slot.name].families)
        sheet.put_each("zbatch_worker_model_processes", states, self._topic)
        for label, some in together.items():
            sheet.put_each("zbatch_worker_restarts_total", _added(deaths[label]), self._topic, label)
            _write_reports(sheet, some, merged.left_out[label], self._topic, label)
        return list(merged.metrics.values())

    def _write_gpus(self, sheet: Sheet) -> None:
        for one in self._gpus.read():
            if one.used is not None:
                sheet.put("zbatch_gpu_memory_used_bytes", one.used, one.name)
            if one.total is not None:
                sheet.put("zbatch_gpu_memory_total_bytes", one.total, one.name)
            if one.busy is not None:
                sheet.put("zbatch_gpu_busy_ratio", one.busy, one.name)


GONE = frozenset({"dead", "given_up"})
"""States of a slot in which no model process keeps any metrics; what the last one did is shown on."""


def _write_reports(sheet: Sheet, some: Sequence[Report], left_out: int, *labels: str) -> None:
    run = Histogram()
    for one in some:
        run.add(one.durations())
    items = sum(one.items for one in some)
    sheet.put("zbatch_worker_items_total", items, *labels)
    sheet.put("zbatch_worker_failed_items_total", sum(one.failed for one in some), *labels)
    sheet.put("zbatch_worker_short_memory_total", sum(one.short for one in some), *labels)
    sheet.put_durations("zbatch_worker_run_seconds", run, *labels)
    sheet.put_sizes("zbatch_worker_batch_items", _added(one.sizes for one in some), items, *labels)
    left_out += sum(one.left_out for one in some)
    sheet.put("zbatch_worker_left_out_samples", left_out, *labels)


class _Merged:
    """The model's own metrics of several processes, told apart by their slot."""

    def __init__(self, topic: str) -> None:
        self.metrics: dict[str, Metric] = {}
        self.left_out: dict[str, int] = defaultdict(int)
        self._topic = topic
        self._seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()

    def add(self, slot: str, families: Iterable[Family]) -> None:
        """Take in what one process has."""
        for family in families:
            metric = self._metric(family)
            if metric is None:
                self.left_out[slot] += len(family.samples)
                continue
            for name, own, value in family.samples:
                labels = {_free(label): text for label, text in own.items()}
                labels |= {"topic": self._topic, "slot": slot}
                which = (name, frozenset(labels.items()))
                if which in self._seen or not name.startswith(family.name):
                    self.left_out[slot] += 1
                    continue
                self._seen.add(which)
                metric.add_sample(name, labels, value)

    def _metric(self, family: Family) -> Metric | None:
        """Return where a family's samples go; None where its name is ours or means something else."""
        if family.name.startswith("zbatch_"):
            return None
        metric = self.metrics.get(family.name)
        if metric is None:
            try:
                metric = self.metrics[family.name] = Metric(family.name, family.help, family.kind)
            except ValueError:
                return None
        return metric if metric.type == family.kind else None


def _free(label: str) -> str:
    """Return a model's own label under a name that is free, as Prometheus itself would."""
    return f"exported_{label}" if label in ("topic", "slot") else label
