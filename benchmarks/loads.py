"""The loads: closed loops that ask, check that every answer is its own, and count.

Nothing here knows whom it asks: a contender (``ours.py``, ``proxy.py``, ``streamer.py``, ``direct.py``)
gives a :class:`Caller` for each thread.  The loops are as bare as they can be, since a load generator
shares the machine's cores with what it measures.
"""

from __future__ import annotations

import operator
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle, islice
from time import perf_counter
from typing import Any

STEP = 64
"""Answers between two looks at the clock: one batch, so that the rate is measured from batch to batch."""

EDGE = 0.2
"""The part of a measurement, at each end, in which the clock may start or stop; see :func:`rate_of`."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One load as a contender needs to know it; crosses to the load generator as JSON."""

    shape: str
    """``window``: one thread that keeps ``callers`` requests outstanding, oldest first; ``threads``: that
    many threads, each waiting for its answer; ``lone``: one thread, one request at a time."""
    callers: int
    item: str = "text"
    """``text``, ``picture`` or ``tokens``."""
    model: str = "Noop"
    transport: str = "ipc"
    workers: int = 1
    batch_size: int = 64
    max_latency: float = 0.010
    stages: int = 1
    """Topics that an item goes through, each with so many workers of its own."""
    batching: str = "eager"
    processes: int = 1
    """Of the gateway, where it is asked over HTTP."""
    own_timeouts: bool = False
    """Every request with a timeout of its own and one key, so that requests cannot be sent as one group."""


@dataclass(frozen=True, slots=True)
class Caller:
    """How one thread asks: ``ask`` waits for the output; ``begin`` gives a handle, ``finish`` its output."""

    requests: Sequence[Any]
    """Asked in turn; prepared beforehand in the contender's own form."""
    ask: Callable[[Any], Any]
    begin: Callable[[Any], Any]
    finish: Callable[[Any], Any]
    is_own: Callable[[Any, Any], bool] = operator.eq
    items: int = 1
    """How many items one request of a lone caller brings."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What one measurement gave."""

    rate: float
    """Answers a second."""
    p50: float = 0.0
    """Seconds from question to answer; 0 where the load does not say."""
    p99: float = 0.0
    answers: int = 0
    wrong: int = 0
    """Answers that belonged to another request."""


def measure(setup: Setup, connect: Callable[[], Caller], warm: float, seconds: float) -> Figure:
    """Run a load once."""
    match setup.shape:
        case "window":
            return window(connect(), setup.callers, warm, seconds)
        case "threads":
            return threads(connect, setup.callers, warm, seconds)
        case "lone":
            return lone(connect(), warm, seconds)
        case shape:
            raise ValueError(f"a load is window, threads or lone, got {shape!r}")


def window(caller: Caller, depth: int, warm: float, seconds: float) -> Figure:
    """One thread that keeps ``depth`` requests outstanding, waiting for the oldest."""
    begin, finish = caller.begin, caller.finish
    requests = cycle(caller.requests)
    outstanding = deque((request, begin(request)) for request in islice(requests, depth))
    oldest, newest = outstanding.popleft, outstanding.append
    answers = wrong = first = 0
    now = first_at = perf_counter()
    opens, closes = now + warm, now + warm + seconds
    while now < closes:
        for request in islice(requests, STEP):
            asked, handle = oldest()
            if finish(handle) != asked:
                wrong += 1
            newest((request, begin(request)))
        answers += STEP
        now = perf_counter()
        # After a stall across all of it, what is left to count from is the start.
        if not first and opens <= now < closes:
            first, first_at = answers, now
    for asked, handle in outstanding:
        wrong += finish(handle) != asked
    rate = (answers - first) / (now - first_at)
    return Figure(rate, answers=answers + depth, wrong=wrong)


@dataclass(slots=True)
class Seen:
    """What one calling thread saw."""

    times: list[float] = field(default_factory=list)
    wrong: int = 0


def threads(connect: Callable[[], Caller], count: int, warm: float, seconds: float) -> Figure:
    """Run threads that each ask one request at a time."""
    over = threading.Event()
    seen = [Seen() for _ in range(count)]

    def call(number: int) -> None:
        caller, mine = connect(), seen[number]
        ask, is_own, is_over = caller.ask, caller.is_own, over.is_set
        first = len(caller.requests) * number // count
        for request in islice(cycle(caller.requests), first, None):
            output = ask(request)
            mine.times.append(perf_counter())
            if not is_own(request, output):
                mine.wrong += 1
            if is_over():
                return

    began = perf_counter()
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(call, number) for number in range(count)]
        over.wait(warm + seconds)
        over.set()
        for one in calls:
            one.result()
    times = sorted(moment for one in seen for moment in one.times)
    waits = [
        later - earlier for one in seen for earlier, later in zip(one.times, one.times[1:], strict=False)
    ]
    return Figure(
        rate_of([moment for moment in times if began + warm <= moment <= began + warm + seconds]),
        p50=statistics.median(waits) if waits else 0.0,
        answers=len(times),
        wrong=sum(one.wrong for one in seen),
    )


def rate_of(times: Sequence[float]) -> float:
    """Return answers a second, counted from the start of one burst to the start of another.

    Batches answer in bursts.  A clock that starts and stops at any moment counts up to a burst too many or
    too few, which is 2 % where a batch takes 60 ms; so it starts, and stops, at the longest pause near the
    ends.
    """
    edge = int(len(times) * EDGE)
    if edge < 2:
        return 0.0
    first = _after_longest_pause(times, 1, edge)
    last = _after_longest_pause(times, len(times) - edge, len(times))
    return (last - first) / (times[last] - times[first])


def lone(caller: Caller, warm: float, seconds: float) -> Figure:
    """One thread that asks one request at a time, with nobody beside it."""
    waits: list[float] = []
    answers = wrong = 0
    opens = perf_counter() + warm
    for request in cycle(caller.requests):
        asked = perf_counter()
        output = caller.ask(request)
        now = perf_counter()
        answers += 1
        wrong += not caller.is_own(request, output)
        if now >= opens:
            waits.append(now - asked)
        if now >= opens + seconds:
            break
    rate = caller.items * len(waits) / sum(waits)
    return Figure(rate, p50=statistics.median(waits), answers=answers, wrong=wrong)


def texts() -> list[str]:
    """Return the short strings that the no-op loads ask for in turn: more than are ever outstanding."""
    return [f"hello-{number}" for number in range(1 << 15)]


def pictures() -> list[Any]:
    """Return 64 different pictures; each one's first value is its number."""
    import numpy

    from benchmarks.models import IMAGE

    random = numpy.random.default_rng(7)
    made = [random.random(IMAGE, dtype=numpy.float32) for _ in range(64)]
    for number, picture in enumerate(made):
        picture[0, 0, 0] = number
    return made


def tokens() -> list[list[int]]:
    """Return 256 different sentences as lists of token numbers."""
    import random

    from benchmarks.models import LENGTH, VOCABULARY

    draw = random.Random(7)
    return [[draw.randrange(VOCABULARY) for _ in range(LENGTH)] for _ in range(256)]


def _after_longest_pause(times: Sequence[float], start: int, stop: int) -> int:
    return max(range(start, stop), key=lambda index: times[index] - times[index - 1])
