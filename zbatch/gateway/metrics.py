"""What a gateway counts of its requests, and how /metrics shows it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import ProcessCollector

from zbatch.config import version
from zbatch.metrics import Histogram
from zbatch.series import GATEWAY, OTHER, Sheet


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


class GatewaySeries:
    """One gateway process's metrics; its loop makes them when it is asked.

    Args:
        figures: What is counted.
        now: What is the case now, beside: requests in flight, and whether the gateway is ready.

    """

    def __init__(self, figures: Figures, now: Callable[[], tuple[int, bool]]) -> None:
        self._figures = figures
        self._now = now
        self._process = ProcessCollector(namespace="zbatch", registry=None)

    def collect(self) -> Iterator[Any]:
        """Return the families, as prometheus-client wants them."""
        sheet, figures = Sheet(GATEWAY), self._figures
        in_flight, is_ready = self._now()
        for (call, status), times in figures.requests.items():
            sheet.put("zbatch_gateway_requests_total", times, call or OTHER, str(status))
        for call, seconds in figures.seconds.items():
            sheet.put_durations("zbatch_gateway_request_seconds", seconds, call or OTHER)
        sheet.put("zbatch_gateway_in_flight_requests", in_flight)
        sheet.put("zbatch_gateway_received_bytes_total", figures.received)
        sheet.put("zbatch_gateway_sent_bytes_total", figures.sent)
        sheet.put("zbatch_gateway_ready", float(is_ready))
        sheet.put("zbatch_gateway_info", 1.0, version())
        yield from sheet.families()
        yield from self._process.collect()
