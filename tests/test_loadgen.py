"""The load of ``zbatch bench``: who asks when, and what is counted, at literal times."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

import numpy as np
import pytest

from zbatch import loadgen
from zbatch.config import BenchSettings
from zbatch.errors import BrokerUnreachable, NoWorkers, Overloaded
from zbatch.loadgen import Answer, Load, Tally


class Clock:
    """Each look at it takes a moment, so that whoever waits by looking gets on."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Server:
    """Answers at once, ``takes`` seconds later by its clock."""

    def __init__(self, clock: Clock, takes: float = 0.0, error: BaseException | None = None) -> None:
        self.clock = clock
        self.takes = takes
        self.error = error
        self.asked: list[Any] = []

    def __call__(self, items: list[Any]) -> Future[Any]:
        self.asked.append(items)
        self.clock.now += self.takes
        future: Future[Any] = Future()
        if self.error is None:
            future.set_result(items)
        else:
            future.set_exception(self.error)
        return future


def nothing(tally: Tally, now: float) -> None:
    pass


def make(settings: BenchSettings, server: Callable[[list[Any]], Any], clock: Clock, **more: Any) -> Load:
    return Load(settings, server, more.pop("show", nothing), clock, **more)


def test_callers_ask_again_when_they_are_answered_and_the_warm_up_is_not_counted() -> None:
    clock = Clock()
    server = Server(clock, takes=0.25)
    load = make(BenchSettings(callers=1, warmup=1.0, duration=2.0), server, clock)
    load.run()
    assert server.asked == [["hello"]] * 12
    assert load.tally.figures(clock.now, items=1) == {
        "seconds": 2.0,
        "requests": 8,
        "requests_per_s": 4.0,
        "items_per_s": 4.0,
        "latency_ms": {"p50": 250.0, "p90": 250.0, "p99": 250.0, "p99_9": 250.0, "max": 250.0},
        "errors": {},
    }


def test_a_latency_counts_from_the_moment_at_which_the_request_was_due() -> None:
    clock = Clock()
    server = Server(clock, takes=0.5)
    load = make(BenchSettings(rate=4.0, warmup=0.0, duration=2.5), server, clock, gap=lambda rate: 1 / rate)
    load.run()
    # Due every quarter of a second, answered two a second: each waits longer than the one before.
    assert list(load.tally.latencies) == [0.5, 0.75, 1.0, 1.25]


def test_a_rate_waits_until_the_next_request_is_due() -> None:
    clock = Clock(step=0.125)
    server = Server(clock)
    load = make(BenchSettings(rate=1.0, warmup=0.0, duration=4.0), server, clock, gap=lambda rate: 1 / rate)
    load.run()
    assert len(server.asked) == 4


def test_an_answer_that_never_comes_holds_the_load_up_only_until_its_end() -> None:
    clock = Clock(step=0.4)
    load = make(BenchSettings(callers=1, warmup=0.0, duration=1.0), lambda items: Future(), clock)
    load.run()
    assert load.tally.figures(clock.now, 1)["requests"] == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [(Overloaded("full"), "overloaded"), (TypeError("what"), "TypeError")],
)
def test_errors_are_counted_by_their_code(error: BaseException, code: str) -> None:
    clock = Clock()
    load = make(
        BenchSettings(callers=1, warmup=0.0, duration=1.0), Server(clock, takes=0.5, error=error), clock
    )
    load.run()
    assert load.tally.figures(clock.now, 1)["errors"] == {code: 1}


def test_a_request_that_is_refused_at_once_or_cancelled_is_counted_too() -> None:
    clock = Clock()

    def refuse(items: list[Any]) -> Future[Any]:
        clock.now += 0.5
        if clock.now < 1.0:
            raise Overloaded("full")
        future: Future[Any] = Future()
        future.cancel()
        return future

    load = make(BenchSettings(callers=1, warmup=0.0, duration=1.5), refuse, clock)
    load.run()
    assert load.tally.errors == {"overloaded": 1, "cancelled": 1}


def test_figures_are_shown_twice_a_second_after_the_warm_up() -> None:
    clock = Clock()
    shown: list[float] = []
    load = make(
        BenchSettings(callers=1, warmup=1.0, duration=2.0),
        Server(clock, takes=0.25),
        clock,
        show=lambda tally, now: shown.append(now),
    )
    load.run()
    assert shown == [1.0, 1.5, 2.0, 2.5, 3.0]


def test_only_what_ended_while_it_was_measured_counts() -> None:
    tally = Tally(begins=1.0, ends=2.0)
    for ended in (0.5, 1.0, 1.5, 2.0):
        tally.add(Answer(due=0.0, ended=ended, error=""))
    assert list(tally.latencies) == [1.0, 1.5]


def test_requests_hold_as_many_items_as_were_asked_for_and_arrays_take_turns() -> None:
    (first, second) = itertools.islice(loadgen._items(BenchSettings(items=2, item="[1]")), 2)
    assert first == second == [[1], [1]]
    arrays = [one for (one,) in itertools.islice(loadgen._items(BenchSettings(size=100)), 17)]
    assert {array.shape for array in arrays} == {(100,)}
    assert not np.array_equal(arrays[0], arrays[1])
    assert arrays[16] is arrays[0]


# --- the whole of it -----------------------------------------------------------------------------


class FakeClient:
    """Answers at once, in batches of eight."""

    error: ClassVar[BaseException | None] = None
    interrupt: ClassVar[bool] = False

    def __init__(self, endpoint: tuple[str, ...], **options: Any) -> None:
        self.answered = 0

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, items: list[Any]) -> Future[Any]:
        if self.interrupt and self.answered:
            raise KeyboardInterrupt
        self.answered += 8
        self.last: Future[Any] = Future()
        if self.error is not None:
            self.last.set_exception(self.error)
        else:
            self.last.set_result(items)
        return self.last

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        return {"topics": {"bert": {"answered": self.answered, "batches": self.answered // 8}}}


class LateClient(FakeClient):
    """Answers once it has been asked how it is."""

    says: ClassVar[Any] = {}

    def submit(self, items: list[Any]) -> Future[Any]:
        self.last = Future()
        return self.last

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        self.last.set_exception(NoWorkers("its time is over"))
        if isinstance(self.says, BaseException):
            raise self.says
        found: dict[str, Any] = self.says
        return found


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> BenchSettings:
    monkeypatch.setattr(loadgen, "ZClient", FakeClient)
    return BenchSettings(topic="bert", callers=2, warmup=0.0, duration=0.02)


def test_bench_prints_a_table(brief: BenchSettings, capsys: pytest.CaptureFixture[str]) -> None:
    assert loadgen.bench(brief) == 0
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()] == [
        "requests/s",
        "items/s",
        "latency",
        "mean",
        "errors",
        "measured",
    ]
    assert "p99.9" in told.out
    assert "mean batch  8.0" in told.out
    assert told.err == "asking bert at tcp://127.0.0.1:5555\n"


def test_bench_prints_json_for_programs(
    monkeypatch: pytest.MonkeyPatch, brief: BenchSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loadgen.bench(BenchSettings(topic="bert", warmup=0.0, duration=0.02, json=True)) == 0
    assert json.loads(capsys.readouterr().out)["requests"] > 0


def test_bench_of_a_topic_that_nobody_serves_fails_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, brief: BenchSettings
) -> None:
    monkeypatch.setattr(FakeClient, "error", NoWorkers("no worker for bert"))
    with pytest.raises(NoWorkers):
        loadgen.bench(brief)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (
            {"topics": {"bert": {"workers": 0}, "resnet": {"workers": 2}}},
            "topic 'bert' has no worker; served here: resnet",
        ),
        ({"topics": {"bert": {"workers": 1}}}, "no answer yet: its workers are busy"),
        (BrokerUnreachable("no broker answered"), "no broker answered"),
    ],
)
def test_bench_says_why_nothing_comes_long_before_its_time_is_over(
    says: object,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    brief: BenchSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(loadgen, "ZClient", LateClient)
    monkeypatch.setattr(loadgen, "PATIENCE", 0.0)
    monkeypatch.setattr(LateClient, "says", says)
    with pytest.raises(NoWorkers):
        loadgen.bench(brief)
    assert capsys.readouterr().err.splitlines()[1:] == [told]


def test_bench_prints_what_it_has_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, brief: BenchSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeClient, "interrupt", True)
    with pytest.raises(KeyboardInterrupt):
        loadgen.bench(brief)
    assert "requests/s" in capsys.readouterr().out


def test_the_live_line_tells_how_it_goes() -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(force_terminal=True, width=200, color_system=None)
    tally = Tally(0.0, 10.0)
    tally.add(Answer(0.0, 0.5, ""))
    tally.add(Answer(0.0, 0.5, "overloaded"))
    with console.capture() as capture, Live(console=console, auto_refresh=False) as live:
        loadgen._live_line(live, BenchSettings())(tally, 2.0)
    assert "2.0s of 10.0s   0.5 requests/s   p50 500ms   p99 500ms   overloaded 1" in capture.get()


def test_a_broker_that_does_not_show_its_state_costs_only_the_mean_batch(
    monkeypatch: pytest.MonkeyPatch, brief: BenchSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(client: FakeClient, timeout: float = 5.0) -> dict[str, Any]:
        raise NoWorkers("not now")

    monkeypatch.setattr(FakeClient, "status", refuse)
    assert loadgen.bench(brief) == 0
    assert "mean batch  -" in capsys.readouterr().out
