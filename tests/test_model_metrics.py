"""What a model process writes for its supervisor: whole or not at all, and no more than there is room for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from zbatch import model_metrics
from zbatch.model_metrics import ROOM, SAMPLES, Family, Report, Reporter, Slate, Work, read, report


@pytest.fixture
def slate() -> Iterator[Slate]:
    slate = Slate.create()
    yield slate
    slate.close()


def told(work: Work, *families: Any) -> Report:
    """Return what is read of what was written."""
    slate = Slate.create()
    slate.write(report(work, families))
    found = read(slate, Report)
    slate.close()
    return found


# --- the slate ------------------------------------------------------------------------------------


def test_nothing_was_written_yet(slate: Slate) -> None:
    assert slate.read() == b""
    assert read(slate, Report) == Report()


def test_the_last_that_was_written_is_read(slate: Slate) -> None:
    for content in (b"long ago", b"a", b"x" * ROOM, b"now"):
        slate.write(content)
        assert slate.read() == content


def test_another_process_reads_what_one_writes(slate: Slate) -> None:
    other = Slate(os.dup(slate.descriptor))
    slate.write(b"hello")
    assert other.read() == b"hello"
    other.close()


def test_what_is_being_written_is_not_read(slate: Slate) -> None:
    slate.write(b"whole")
    # What death cut off: the next place is half written, and the count says nothing of it.
    place = model_metrics._PLACES[0]
    slate._map[place : place + 16] = b"\5\0\0\0\0\0\0\0half ..."
    assert slate.read() == b"whole"


def test_what_was_tampered_with_is_nothing(slate: Slate) -> None:
    slate.write(b"\x93no")
    assert read(slate, Report) == Report()
    place = model_metrics._PLACES[1]
    slate._map[place : place + 8] = b"\xff" * 8
    assert len(slate.read()) <= ROOM


# --- what is written ------------------------------------------------------------------------------


def test_what_ran_is_counted() -> None:
    work = Work()
    for items, failed in ((1, 0), (3, 1), (4, 4)):
        work.ran(items, failed, 0.5)
    work.short += 1
    found = told(work)
    assert (found.items, found.failed, found.short, found.sizes) == (8, 5, 1, {0: 1, 2: 2})
    assert (found.durations().count, found.durations().total) == (3, 1.5)


def test_families_travel_with_their_samples_but_not_when_they_were_created() -> None:
    registry = CollectorRegistry()
    Counter("seen", "Seen.", ["who"], registry=registry).labels("a").inc(2)
    assert told(Work(), *registry.collect()).families == [
        Family("seen", "counter", "Seen.", [("seen_total", {"who": "a"}, 2.0)])
    ]


def test_families_beyond_the_bound_are_left_out_whole_and_counted() -> None:
    registry = CollectorRegistry()
    many = Gauge("many", "Too many.", ["at"], registry=registry)
    for at in range(SAMPLES + 1):
        many.labels(str(at)).set(at)
    Gauge("few", "Few.", registry=registry).set(1)
    found = told(Work(), *registry.collect())
    assert ([one.name for one in found.families], found.left_out) == (["few"], SAMPLES + 1)


def test_families_for_which_there_is_no_room_are_left_out_and_counted() -> None:
    registry = CollectorRegistry()
    Gauge("long", "Long.", ["text"], registry=registry).labels("x" * ROOM).set(1)
    Gauge("few", "Few.", registry=registry).set(1)
    found = told(Work(), *registry.collect())
    assert ([one.name for one in found.families], found.left_out) == (["few"], 1)


def test_a_family_that_cannot_be_told_is_left_out_alone() -> None:
    odd = GaugeMetricFamily("odd", "Odd.", labels=["text"])
    odd.add_metric(["\udcff"], 1.0)
    even = GaugeMetricFamily("even", "Even.", value=2.0)
    found = told(Work(), odd, even, object())
    assert ([one.name for one in found.families], found.left_out) == (["even"], 2)


# --- the thread -----------------------------------------------------------------------------------


class Bad:
    """A collector that raises."""

    def __init__(self) -> None:
        self.times = 0
        self.asked = threading.Condition()

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Any:
        with self.asked:
            self.times += 1
            self.asked.notify_all()
        raise LookupError("no such thing")

    def wait(self, times: int) -> None:
        """Wait until it was asked so often."""
        with self.asked:
            assert self.asked.wait_for(lambda: self.times >= times, 60)


def test_a_collector_that_raises_is_told_once_and_what_ran_is_shown(
    slate: Slate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_metrics, "EVERY", 0.001)
    work, bad = Work(), Bad()
    work.ran(2, 0, 0.1)
    failed: list[BaseException] = []
    REGISTRY.register(bad)
    reporter = Reporter(slate, work, failed.append)
    try:
        before = bad.times
        reporter.start()
        bad.wait(before + 3)
    finally:
        reporter.stop()
        REGISTRY.unregister(bad)
    assert [type(error) for error in failed] == [LookupError]
    assert read(slate, Report).items == 2


def test_what_the_model_keeps_is_reported_again_and_again(
    slate: Slate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_metrics, "EVERY", 0.001)
    written = threading.Semaphore(0)

    class Noticing(Slate):
        def write(self, content: bytes) -> None:
            super().write(content)
            written.release()

    slow = Histogram("slow", "Slow.")
    noticing = Noticing(os.dup(slate.descriptor))
    reporter = Reporter(noticing, Work(), lambda error: None)
    try:
        reporter.start()
        assert written.acquire(timeout=60)
        slow.observe(3.0)
        while written.acquire(blocking=False):
            pass
        # The first of these may have been begun before.
        assert all(written.acquire(timeout=60) for _ in range(2))
    finally:
        reporter.stop()
        REGISTRY.unregister(slow)
    found = {one.name: one for one in read(slate, Report).families}
    assert ("slow_sum", {}, 3.0) in found["slow"].samples
