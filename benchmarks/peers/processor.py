"""Whose processor time is it?  Where cores are the limit, how a load's processes divide them.

Read before and after each turn from what the kernel counts, thread by thread, and divided by the answers, so
that contenders of different rates compare.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

FRONT, MAIN, THREADS = "front", "front, main thread", "front, its other threads"
BROKER, WORKERS, OTHERS, LOAD = "broker", "workers", "others", "wrk"

COLUMNS = (MAIN, THREADS, BROKER, WORKERS, OTHERS, LOAD)

PARTS: Mapping[str, tuple[str, ...]] = {
    FRONT: ("zbatch.gateway", "/bin/mosec"),
    BROKER: ("zbatch.launcher broker",),
    WORKERS: ("zbatch.model_process", "multiprocessing.spawn"),
}
"""What stands in a command line, and what its process is here; anything else is one of the others."""


@dataclass(slots=True)
class Division:
    """The processor time of one contender of a load, over all its rounds."""

    title: str
    who: str
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0.0))
    """Of each part."""
    wall: float = 0.0
    answers: int = 0

    def add(self, before: Times, after: Times, wall: float, answers: int) -> None:
        """Take in one turn."""
        for thread, (part, seconds) in after.items():
            self.seconds[part] += seconds - before.get(thread, (part, 0.0))[1]
        self.wall += wall
        self.answers += answers

    def microseconds(self, part: str) -> float:
        """Return the processor time of a part for one answer."""
        return 1e6 * self.seconds[part] / self.answers if self.answers else 0.0

    @property
    def cores(self) -> float:
        """How many of the cores were at work, all parts together."""
        return sum(self.seconds.values()) / self.wall if self.wall else 0.0


Times = Mapping[tuple[int, int], tuple[str, float]]
"""For each thread, by process and thread, which part it is and how many seconds it ran."""


def read(leaders: Iterable[int]) -> Times:
    """Return what the threads of these processes and of all below them took since they began."""
    times: dict[tuple[int, int], tuple[str, float]] = {}
    for leader in leaders:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(leader)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times |= _of(one)
    return times


def _of(process: psutil.Process) -> Times:
    command = " ".join(process.cmdline())
    if "benchmarks.generator" in command:
        # wrk has ended by then: it is among what its parent waited for.
        own = process.cpu_times()
        return {(process.pid, 0): (LOAD, own.children_user + own.children_system)}
    part = next((name for name, marks in PARTS.items() if any(one in command for one in marks)), OTHERS)
    times: dict[tuple[int, int], tuple[str, float]] = {}
    for one in process.threads():
        # A front's main thread is where Python is, if it has any.
        whose = part if part != FRONT else MAIN if one.id == process.pid else THREADS
        times[process.pid, one.id] = (whose, one.user_time + one.system_time)
    return times
