"""Run one load: like ``rounds.py``, but a peer that fails loses its own rows, not the others'.

And who cannot sit still while it is not its turn is stopped until it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import rounds
from benchmarks.children import Failed, child
from benchmarks.loads import Figure
from benchmarks.peers import processor
from benchmarks.peers.processor import Division
from benchmarks.peers.rows import ABOVE, BY_WRK, MILLISECOND, RESTLESS, without
from benchmarks.peers.waker import DONE
from benchmarks.rounds import WARM, WARM_AGAIN, Generator, Outcome
from benchmarks.rows import Contender, Load, Row

TROUBLE = (Failed, OSError, subprocess.SubprocessError)
"""What starting or asking somebody else's server may come to."""


class Asked:
    """A contender that runs, and the processes that belong to it."""

    def __init__(self, generator: Generator, processes: Sequence[int]) -> None:
        self.name = generator.name
        self._generator = generator
        self.processes = processes
        self.stopped = processes if generator.name in RESTLESS else ()

    @contextmanager
    def awake(self) -> Iterator[Generator]:
        """Give the load generator for as long as it is this one's turn."""
        self.wake()
        try:
            yield self._generator
        finally:
            self.still()

    def wake(self) -> None:
        """Let its processes run."""
        self._signal(signal.SIGCONT)

    def still(self) -> None:
        """Stop its processes, if they cannot sit still."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.stopped:
            # Each leads a group of its own, in which its children are.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, number)


class Above(Outcome):
    """A row that says how many milliseconds one takes above the other."""

    @property
    def ratios(self) -> list[float]:
        """The difference of each round, in the place of its ratio."""
        return [mine - theirs for mine, theirs in zip(self.figures, self.baseline, strict=True)]


class Measured(NamedTuple):
    """What became of a load."""

    outcomes: list[Outcome]
    divisions: list[Division]
    """Of contenders that wrk asked: whose processor time it was."""


def run(
    load: Load, turns: int, seconds: float, note: Callable[[str], None], fail: Callable[[str, str], None]
) -> Measured:
    """Measure a load and return its rows; ``fail`` is told who fell out, and why."""
    figures: dict[str, list[Figure]] = {MILLISECOND: [Figure(1000.0, p50=0.001)] * turns}
    divisions = {one.name: Division(load.rows[0].title, one.name) for one in load.contenders}
    with ExitStack() as stack:
        everyone = _start(load.contenders, stack, note, fail, load.name)
        stack.enter_context(_stilled(everyone))
        for turn in range(turns):
            for one in list(everyone):
                note(f"{load.name}: round {turn + 1} of {turns}, {one.name}")
                try:
                    with one.awake() as generator:
                        before, began = processor.read(one.processes), time.monotonic()
                        measured = generator.measure(WARM_AGAIN if turn else WARM, seconds)
                        wall, after = time.monotonic() - began, processor.read(one.processes)
                except TROUBLE as trouble:
                    everyone.remove(one)
                    fail(one.name, str(trouble))
                else:
                    figures.setdefault(one.name, []).append(measured)
                    divisions[one.name].add(before, after, wall, measured.answers)
        note(f"{load.name}: stopping")
    if load.ideal is not None:
        figures["ideal"] = [Figure(load.ideal)] * turns
    whole = {name for name, measured in figures.items() if len(measured) == turns}
    absent = {one.name for one in load.contenders} - whole
    return Measured(
        [outcome(row, figures) for row in without(load, absent).rows],
        [divisions[name] for name in BY_WRK if name in whole],
    )


def _start(
    contenders: Sequence[Contender],
    stack: ExitStack,
    note: Callable[[str], None],
    fail: Callable[[str, str], None],
    name: str,
) -> list[Asked]:
    started: list[Asked] = []
    for contender in contenders:
        note(f"{name}: starting {contender.name}")
        others = _children()
        try:
            generator = stack.enter_context(rounds.generator(contender))
        except TROUBLE as trouble:
            fail(contender.name, str(trouble))
            continue
        started.append(Asked(generator, sorted(_children() - others)))
    return started


@contextmanager
def _stilled(everyone: Sequence[Asked]) -> Iterator[None]:
    """Stop who cannot sit still; all of them go on at the end; if this process is killed, they end."""
    with tempfile.TemporaryDirectory(prefix="zbench-") as folder:
        command = [sys.executable, "-m", "benchmarks.peers.waker"]
        with child(command, Path(folder) / "waker.log", piped=True) as waker:
            assert waker.stdin is not None
            for process in (process for one in everyone for process in one.stopped):
                waker.stdin.write(f"{process}\n")
            for one in everyone:
                one.still()
            try:
                yield
            finally:
                # Now, before they are asked to leave, which a stopped one would not hear.
                for one in everyone:
                    one.wake()
                with contextlib.suppress(OSError):
                    waker.stdin.write(f"{DONE}\n")


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def outcome(row: Row, figures: Mapping[str, list[Figure]]) -> Outcome:
    """Compare two contenders, round by round; a wrong answer of either is told."""
    if row.measure == ABOVE:
        made = rounds.outcome(dataclasses.replace(row, measure="p50"), dict(figures))
        made = Above(**{one.name: getattr(made, one.name) for one in dataclasses.fields(made)})
    else:
        made = rounds.outcome(row, dict(figures))
    wrong = sum(figure.wrong for name in (row.ours, row.against) for figure in figures[name])
    return dataclasses.replace(made, wrong=wrong)
