"""``zbatch bench``: make load on a topic, and say how quickly it is answered.

Two kinds of load.  *Callers* each ask, wait for the answer and ask again: what a fixed number of clients
gets.  A *rate* arrives whether or not the others are answered, as the public does; a latency counts from the
moment at which the request was due, so a server that stalls cannot hide the requests it kept from being sent.
Figures are taken from what was answered after the warm-up and before the end.
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zbatch.client import ZClient
from zbatch.config import BenchSettings
from zbatch.doubt import PATIENCE, why_nothing_comes
from zbatch.errors import ZbatchError
from zbatch.notation import json_or_text
from zbatch.screen import console, milliseconds, number, plain, seconds

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}

ARRAYS = 16
"""Different arrays that are sent in turn: one alone would stay in the processor's cache."""

LOOK = 0.5
"""Seconds between two live lines."""

Ask = Callable[[list[Any]], "Future[Any]"]
Show = Callable[["Tally", float], None]


class Answer(NamedTuple):
    """One request that came to its end."""

    due: float
    ended: float
    error: str
    """The code of its error, or nothing."""


class Tally:
    """What was answered between two moments."""

    def __init__(self, begins: float, ends: float) -> None:
        self.begins = begins
        self.ends = ends
        self.latencies = array("d")
        self.errors: Counter[str] = Counter()

    def add(self, answer: Answer) -> None:
        """Count an answer, if it came in time."""
        if not self.begins <= answer.ended < self.ends:
            return
        if answer.error:
            self.errors[answer.error] += 1
        else:
            self.latencies.append(answer.ended - answer.due)

    def figures(self, now: float, items: int) -> dict[str, Any]:
        """Return what there is to say, with units in the names."""
        measured = max(min(now, self.ends) - self.begins, 1e-9)
        requests = len(self.latencies)
        latency = {"max": max(self.latencies) * 1000} if requests else {}
        if requests:
            found = np.quantile(np.frombuffer(self.latencies), list(SHARES.values()))
            latency = {name: float(value) * 1000 for name, value in zip(SHARES, found, strict=True)} | latency
        return {
            "seconds": measured,
            "requests": requests,
            "requests_per_s": requests / measured,
            "items_per_s": requests * items / measured,
            "latency_ms": latency,
            "errors": dict(self.errors),
        }


class Load:
    """Asks through ``ask`` for as long as the settings say, and keeps the tally."""

    def __init__(
        self,
        settings: BenchSettings,
        ask: Ask,
        show: Show,
        clock: Callable[[], float] = time.monotonic,
        gap: Callable[[float], float] = random.expovariate,
    ) -> None:
        self._settings = settings
        self._ask = ask
        self._show = show
        self._clock = clock
        self._gap = gap
        self._items = _items(settings)
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        begins = clock() + settings.warmup
        self._look = begins
        self.tally = Tally(begins, begins + settings.duration)

    def run(self) -> None:
        """Make the load."""
        if self._settings.rate is None:
            self._callers()
        else:
            self._arrivals(self._settings.rate)
        while self._take(0.0):
            pass

    def _callers(self) -> None:
        for _ in range(self._settings.callers):
            self._send(self._clock())
        while (now := self._clock()) < self.tally.ends:
            if self._take(self.tally.ends - now):
                self._send(self._clock())

    def _arrivals(self, rate: float) -> None:
        due = self._clock()
        while (now := self._clock()) < self.tally.ends:
            if due <= now:
                self._send(due)
                due += self._gap(rate)
            self._take(max(0.0, due - now))

    def _send(self, due: float) -> None:
        try:
            future = self._ask(next(self._items))
        except ZbatchError as error:
            self._answers.put(Answer(due, self._clock(), error.code))
        else:
            # Called on the client's own thread: it reads the clock there, before anything waits for its turn.
            future.add_done_callback(lambda done: self._answers.put(Answer(due, self._clock(), _code(done))))

    def _take(self, patience: float) -> bool:
        """Wait for one answer and count it; say whether one came."""
        taken = False
        with suppress(Empty):
            answer = self._answers.get(timeout=min(patience, LOOK))
            self.tally.add(answer)
            taken = True
        if (now := self._clock()) >= self._look:
            self._look = now + LOOK
            self._show(self.tally, now)
        return taken


def bench(settings: BenchSettings) -> int:
    """Make the load and print the figures; 1 where not one request was answered."""
    narrator = Console(stderr=True)
    client: ZClient[Any, Any] = ZClient(
        settings.endpoint, topic=settings.topic, timeout=settings.timeout, keys=settings.keys
    )
    with client:
        narrator.print(Text(plain(f"asking {settings.topic} at {','.join(settings.endpoint)}"), "dim"))
        _wait_for_first(client, settings, narrator)
        before = _of_topic(client, settings.topic)
        interrupted = False
        with Live(console=narrator, auto_refresh=False, transient=True) as live:
            load = Load(
                settings, client.submit, _live_line(live, settings) if narrator.is_terminal else _nothing
            )
            try:
                load.run()
            except KeyboardInterrupt:
                interrupted = True
        figures = load.tally.figures(time.monotonic(), settings.items)
        figures["batch"] = _mean_batch(before, _of_topic(client, settings.topic))
    if settings.json:
        sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
        sys.stdout.flush()
    else:
        console().print(report(figures))
    if interrupted:
        raise KeyboardInterrupt
    return 0 if figures["requests"] else 1


def report(figures: Mapping[str, Any]) -> Table:
    """Return the figures for people."""
    table = Table(box=None, show_header=False, pad_edge=False)
    latency = figures["latency_ms"]
    rows: list[tuple[str, str]] = [
        ("requests/s", f"{number(figures['requests_per_s'])} (of {number(figures['requests'])} answered)"),
        ("items/s", number(figures["items_per_s"])),
        ("latency", ", ".join(f"{name.replace('_', '.')} {milliseconds(latency[name])}" for name in latency)),
        ("mean batch", number(figures["batch"])),
        ("errors", ", ".join(f"{code} {number(count)}" for code, count in figures["errors"].items())),
        ("measured", seconds(figures["seconds"])),
    ]
    for title, told in rows:
        table.add_row(Text(title, "bold"), Text(told or "-"))
    return table


def _items(settings: BenchSettings) -> Iterator[list[Any]]:
    """Yield the items of one request after the other."""
    choices: Sequence[Any] = [json_or_text(settings.item)]
    if settings.size is not None:
        source = np.random.default_rng(0)
        choices = [source.integers(0, 256, settings.size, np.uint8) for _ in range(ARRAYS)]
    place = 0
    while True:
        yield [choices[(place + offset) % len(choices)] for offset in range(settings.items)]
        place += settings.items


def _code(done: Future[Any]) -> str:
    if done.cancelled():
        return "cancelled"
    error = done.exception()
    if error is None:
        return ""
    return error.code if isinstance(error, ZbatchError) else type(error).__name__


def _live_line(live: Live, settings: BenchSettings) -> Show:
    def show(tally: Tally, now: float) -> None:
        told = tally.figures(now, settings.items)
        latency = told["latency_ms"]
        words = [
            f"{seconds(told['seconds'])} of {seconds(settings.duration)}",
            f"{number(told['requests_per_s'])} requests/s",
            f"p50 {milliseconds(latency.get('p50'))}",
            f"p99 {milliseconds(latency.get('p99'))}",
            *(f"{code} {number(count)}" for code, count in told["errors"].items()),
        ]
        live.update(Text("   ".join(words)), refresh=True)

    return show


def _nothing(tally: Tally, now: float) -> None:
    """Show no live line where nobody watches."""


def _wait_for_first(client: ZClient[Any, Any], settings: BenchSettings, narrator: Console) -> None:
    first = client.submit(next(_items(settings)))
    if not wait([first], PATIENCE).done:
        why = why_nothing_comes(client, settings.topic)
        narrator.print(Text(plain(why or "no answer yet: its workers are busy")))
    first.result()


def _of_topic(client: ZClient[Any, Any], topic: str) -> Mapping[str, Any]:
    # Only for the mean batch: a broker that does not say costs that line.
    with suppress(ZbatchError):
        found: Mapping[str, Any] = client.status().get("topics", {}).get(topic, {})
        return found
    return {}


def _mean_batch(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    batches = after.get("batches", 0) - before.get("batches", 0)
    items = after.get("answered", 0) - before.get("answered", 0)
    return items / batches if batches > 0 else None
