"""What a gateway counts of its requests, and how /metrics shows it."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct, msgpack
from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from zbatch.metrics import Histogram
from zbatch.model_metrics import Shelf, read
from zbatch.series import GATEWAY, OTHER, VERSION, Sheet


class Figures:
    """What was counted since the process began."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """Answers by call and status; 499 where the client had gone before."""
        self.seconds: dict[str, Histogram] = defaultdict(Histogram)
        """From a request's head to its answer, by call."""
        self.received = 0
        """Bytes of bodies."""
        self.sent = 0

    def answered(self, call: str, status: int, seconds: float, sent: int) -> None:
        """Count an answer."""
        self.requests[call, status] += 1
        self.seconds[call].record(seconds)
        self.sent += sent


class Told(Struct, frozen=True, array_like=True):
    """What one gateway process shows the others."""

    pid: int = 0
    requests: list[tuple[str, int, int]] = []
    seconds: dict[str, tuple[dict[int, int], float]] = {}
    received: int = 0
    sent: int = 0
    in_flight: int = 0
    is_ready: bool = False


class GatewaySeries:
    """A gateway's metrics; whichever of its processes is asked makes them, of all.

    Args:
        figures: What this process counts.
        now: What is the case now, beside: requests in flight, and whether the gateway is ready.
        shelf: Where the processes show each other what they count; None: this is the only one.

    """

    def __init__(
        self, figures: Figures, now: Callable[[], tuple[int, bool]], shelf: Shelf | None = None
    ) -> None:
        self._figures = figures
        self._now = now
        self._shelf = shelf
        self._pid = os.getpid()
        self._process = ProcessCollector(namespace="zbatch", pid=lambda: self._pid, registry=None)

    def leave(self) -> None:
        """Show the others what this process has counted so far."""
        if self._shelf is not None:
            self._shelf.slates[self._shelf.own].write(msgpack.encode(self._told()))

    def collect(self) -> Iterator[Any]:
        """Return the families, as prometheus-client wants them."""
        sheet = Sheet(GATEWAY)
        processes: dict[str, Metric] = {}
        for name, told in self._all():
            _write(sheet, name, told)
            for metric in self._measured(told.pid):
                whole = processes.setdefault(
                    metric.name, Metric(metric.name, metric.documentation, metric.type)
                )
                for sample in metric.samples:
                    whole.add_sample(sample.name, {"process": name}, sample.value)
        yield from sheet.families()
        yield from processes.values()

    def _all(self) -> Iterator[tuple[str, Told]]:
        if self._shelf is None:
            yield "0", self._told()
            return
        for place, slate in enumerate(self._shelf.slates):
            told = self._told() if place == self._shelf.own else read(slate, Told)
            if told.pid:
                yield str(place), told

    def _told(self) -> Told:
        figures = self._figures
        in_flight, is_ready = self._now()
        return Told(
            pid=os.getpid(),
            requests=[(call, status, times) for (call, status), times in figures.requests.items()],
            seconds={call: (dict(one.buckets), one.total) for call, one in figures.seconds.items()},
            received=figures.received,
            sent=figures.sent,
            in_flight=in_flight,
            is_ready=is_ready,
        )

    def _measured(self, pid: int) -> Iterable[Metric]:
        self._pid = pid
        return self._process.collect()


def _write(sheet: Sheet, process: str, told: Told) -> None:
    for call, status, times in told.requests:
        sheet.put("zbatch_gateway_requests_total", times, process, call or OTHER, str(status))
    for call, (buckets, total) in told.seconds.items():
        seconds = Histogram()
        seconds.buckets.update(buckets)
        seconds.total = total
        sheet.put_durations("zbatch_gateway_request_seconds", seconds, process, call or OTHER)
    sheet.put("zbatch_gateway_in_flight_requests", told.in_flight, process)
    sheet.put("zbatch_gateway_received_bytes_total", told.received, process)
    sheet.put("zbatch_gateway_sent_bytes_total", told.sent, process)
    sheet.put("zbatch_gateway_ready", float(told.is_ready), process)
    sheet.put("zbatch_gateway_info", 1.0, process, VERSION)
