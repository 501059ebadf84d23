"""Run one load: all its contenders at once, measured in turn, several times over.

Interleaved, because a machine's speed drifts: what counts is the ratio within one round.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.children import Failed, child, tail
from benchmarks.loads import Figure
from benchmarks.rows import Contender, Load, Row

WARM, WARM_AGAIN = 1.0, 0.5
"""Seconds before the clock starts: in the first round, and in those after it."""

READY_SECONDS = 90.0
"""For the first answer; the transformer's load generators import torch first."""

GRACE_SECONDS = 60.0
"""Beyond its measured time; then a load generator hangs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One row with its figures, one of each side a round."""

    title: str
    ours: str
    against: str
    unit: str
    figures: list[float]
    baseline: list[float]
    reach: float | None
    aim: float | None
    less_is_better: bool
    wrong: int = 0

    @property
    def ratios(self) -> list[float]:
        return [mine / theirs for mine, theirs in zip(self.figures, self.baseline, strict=True)]


class Generator:
    """A load generator in a process of its own."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        self.name, self.process, self.log = name, process, log

    def await_ready(self) -> None:
        self._line(READY_SECONDS)

    def measure(self, warm: float, seconds: float) -> Figure:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([warm, seconds]) + "\n")
        return Figure(**json.loads(self._line(warm + seconds + GRACE_SECONDS)))

    def _line(self, seconds: float) -> str:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            said = "ended" if readable else f"gave no answer within {seconds:.0f} s"
            raise Failed(f"the load generator of {self.name} {said}:\n{tail(self.log)}")
        return line


def run(load: Load, rounds: int, seconds: float, note: Callable[[str], None]) -> list[Outcome]:
    """Measure a load and return its rows."""
    figures: dict[str, list[Figure]] = {contender.name: [] for contender in load.contenders}
    with ExitStack() as stack:
        generators = []
        for contender in load.contenders:
            note(f"{load.name}: starting {contender.name}")
            generators.append(stack.enter_context(generator(contender)))
        for turn in range(rounds):
            for one in generators:
                note(f"{load.name}: round {turn + 1} of {rounds}, {one.name}")
                figures[one.name].append(one.measure(WARM_AGAIN if turn else WARM, seconds))
        note(f"{load.name}: stopping")
    if load.ideal is not None:
        figures["ideal"] = [Figure(load.ideal)] * rounds
    return [outcome(row, figures) for row in load.rows]


@contextmanager
def generator(contender: Contender) -> Iterator[Generator]:
    """Run a contender's servers and its load generator, ready to be told to measure."""
    module: Any = importlib.import_module(f"benchmarks.{contender.module}")
    python = module.interpreter() if hasattr(module, "interpreter") else sys.executable
    with tempfile.TemporaryDirectory(prefix="zbench-") as name:
        folder = Path(name)
        with module.serve(contender.setup, folder) as endpoint:
            setup = json.dumps(dataclasses.asdict(contender.setup))
            command = [python, "-m", "benchmarks.generator", contender.module, setup, endpoint]
            with child(command, folder / "generator.log", piped=True) as process:
                made = Generator(contender.name, process, folder / "generator.log")
                made.await_ready()
                yield made


def outcome(row: Row, figures: dict[str, list[Figure]]) -> Outcome:
    """Compare two contenders, round by round."""
    ours, against = figures[row.ours], figures[row.against]
    is_time = row.measure == "p50"
    scale = 1000.0 if is_time else 1.0
    return Outcome(
        title=row.title,
        ours=row.ours,
        against=row.against,
        unit="ms p50" if is_time else "items/s",
        figures=[scale * getattr(figure, row.measure) for figure in ours],
        baseline=[scale * getattr(figure, row.measure) for figure in against],
        reach=row.reach,
        aim=row.aim,
        less_is_better=is_time,
        wrong=sum(figure.wrong for figure in ours),
    )
