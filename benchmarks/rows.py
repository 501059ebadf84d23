"""What is measured against what, and what has to be reached.

A load is asked of its contenders in turn, several times over; a row compares two of them, round by
round.  The targets are for two cores that nobody else uses; README.md says what each row means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.loads import Setup
from benchmarks.models import gpu_seconds


@dataclass(frozen=True, slots=True)
class Contender:
    """Who is asked: a module of this folder and what it is given."""

    name: str
    module: str
    setup: Setup


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: how the first contender does against the second."""

    title: str
    ours: str
    against: str
    reach: float | None = None
    aim: float | None = None
    measure: str = "rate"
    """``rate``: the more the better; ``p50``: the less the better."""


@dataclass(frozen=True, slots=True)
class Load:
    """One thing to ask, of whom, and the rows that come of it."""

    name: str
    contenders: tuple[Contender, ...]
    rows: tuple[Row, ...]
    ideal: float | None = None
    """Answers a second that cannot be surpassed, where arithmetic gives them: the contender ``ideal``."""


def _against(setup: Setup, *baselines: str) -> tuple[Contender, ...]:
    return tuple(Contender(one, _MODULES[one], setup) for one in ("zbatch", *baselines))


_MODULES = {"zbatch": "ours", "proxy echo": "proxy", "Streamer": "streamer"}

_WINDOW = Setup("window", 128)
_THREADS = Setup("threads", 64)
_LONE = Setup("lone", 1, transport="tcp")
_PICTURES = Setup("threads", 16, item="picture", model="Picture", batch_size=16, max_latency=0.005)
_TOKENS = Setup("threads", 64, item="tokens", model="Transformer", batch_size=32)
_STAGES = Setup("window", 256)
_DIRECT = replace(_TOKENS, shape="lone", callers=1)


def _simulated_gpu(workers: int) -> Load:
    setup = Setup("window", 128 * workers, model="SimulatedGpu", workers=workers)
    ideal = workers * setup.batch_size / gpu_seconds(setup.batch_size)
    title = f"simulated GPU, {workers} worker{'s' * (workers > 1)}, window {setup.callers}"
    return Load(
        f"gpu-{workers}",
        (Contender("zbatch", "ours", setup),),
        (Row(title, "zbatch", "ideal", 0.98, 0.99),),
        ideal,
    )


LOADS = (
    Load(
        "noop-window",
        (
            *_against(_WINDOW, "Streamer", "proxy echo"),
            Contender("zbatch, own timeouts", "ours", replace(_WINDOW, own_timeouts=True)),
        ),
        (
            Row("no-op, one thread, window 128, ipc", "zbatch", "Streamer", 4.0),
            Row("no-op, one thread, window 128, ipc", "zbatch", "proxy echo", 1.0, 1.2),
            Row("the same, own timeouts, one key", "zbatch, own timeouts", "Streamer", 2.2, 3.0),
        ),
    ),
    Load(
        "noop-threads",
        _against(_THREADS, "Streamer", "proxy echo"),
        (
            Row("no-op, 64 blocking threads, ipc", "zbatch", "Streamer", 2.8, 3.5),
            Row("no-op, 64 blocking threads, ipc", "zbatch", "proxy echo"),
        ),
    ),
    Load(
        "lone",
        _against(_LONE, "proxy echo"),
        (Row("lone request, tcp", "zbatch", "proxy echo", 1.9, 1.3, measure="p50"),),
    ),
    *(_simulated_gpu(workers) for workers in (1, 8, 32)),
    Load(
        "pipeline",
        (
            Contender("two stages", "ours", replace(_STAGES, model="SimulatedGpu", stages=2)),
            Contender("one that does both", "ours", replace(_STAGES, model="TwoInOne")),
        ),
        (Row("two equal stages on two simulated GPUs", "two stages", "one that does both", 1.9, 1.97),),
    ),
    Load(
        "arrays",
        _against(_PICTURES, "proxy echo", "Streamer"),
        (
            Row("arrays of 588 KiB, 16 threads, ipc", "zbatch", "proxy echo", 0.75, 0.9),
            Row("arrays of 588 KiB, 16 threads, ipc", "zbatch", "Streamer"),
        ),
    ),
    Load(
        "transformer",
        (Contender("direct call", "direct", _DIRECT), Contender("zbatch", "ours", _TOKENS)),
        (Row("transformer, 1 worker, 64 threads", "zbatch", "direct call", 0.97, 0.99),),
    ),
)
