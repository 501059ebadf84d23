"""Which curves there are, and what is asked of which cluster for each point of them.

Nothing here starts anything: ``points.py`` does, ``page.py`` and ``plots.py`` show what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.loads import Setup
from benchmarks.models import gpu_seconds

GPU, TRANSFORMER, NOOP = "simulated GPU", "transformer", "no-op"

FULL, FEW = "twice the batch", "64 callers"
"""Callers that always fill two batches, one that runs and one that waits; and always as many."""

FEW_CALLERS = 64

BATCH_SIZES = {GPU: (1, 2, 4, 8, 16, 32, 64, 128), TRANSFORMER: (1, 2, 4, 8, 16, 32)}

LATENCIES = {"window": (0.002, 0.010, 0.020, 0.050), "eager": (0.002, 0.050)}
"""What ``--max-latency`` says; eager is asked at both ends of it only, since it should not matter there."""

LONE = "one caller"
SHARES = (20, 50, 80)
"""Percent of what the model does in full batches."""

OPEN_BATCH = 32
CAPACITY = OPEN_BATCH / gpu_seconds(OPEN_BATCH)

WORKERS = (1, 2, 4, 8)
MANY = (128, 1024)
WORKER_BATCH = 64

PROCESSES = (1, 2, 3)
CONNECTIONS = 128

WARM, LONG_WARM = 1.0, 2.5
"""Seconds before the clock starts; the longer one where a round of all callers takes more than one."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a cluster, and the place of the answer in its curve."""

    series: str
    x: float
    callers: int = 0
    rate: float = 0.0
    """Requests a second that arrive by themselves, at random times, in the place of callers."""
    warm: float = WARM


@dataclass(frozen=True, slots=True)
class Stand:
    """A cluster, and what is asked of it, one after the other."""

    setup: Setup
    loads: tuple[Load, ...]


def _batch_sizes() -> tuple[Stand, ...]:
    stands = []
    for name, model in ((GPU, "SimulatedGpu"), (TRANSFORMER, "Transformer")):
        item = "tokens" if name == TRANSFORMER else "text"
        for size in BATCH_SIZES[name]:
            loads = [Load(f"{name}, {FULL}", size, callers=2 * size)]
            if name == GPU:
                warm = LONG_WARM if size < FEW_CALLERS // 16 else WARM
                loads.append(Load(f"{name}, {FEW}", size, callers=FEW_CALLERS, warm=warm))
            stands.append(Stand(Setup("bench", 0, item, model, batch_size=size), tuple(loads)))
    return tuple(stands)


def _latencies() -> tuple[Stand, ...]:
    setup = Setup("bench", 0, model="SimulatedGpu", batch_size=OPEN_BATCH)
    return tuple(
        Stand(
            replace(setup, batching=batching, max_latency=latency),
            (
                Load(f"{batching}, {LONE}", 1000 * latency, callers=1),
                *(
                    Load(f"{batching}, {share} %", 1000 * latency, rate=share / 100 * CAPACITY)
                    for share in SHARES
                ),
            ),
        )
        for batching, latencies in LATENCIES.items()
        for latency in latencies
    )


def _workers() -> tuple[Stand, ...]:
    setup = Setup("bench", 0, model="SimulatedGpu", batch_size=WORKER_BATCH)
    return tuple(
        Stand(
            replace(setup, workers=count),
            tuple(Load(f"{callers:,} callers", count, callers=callers) for callers in MANY),
        )
        for count in WORKERS
    )


def _gateways() -> tuple[Stand, ...]:
    setup = Setup("wrk", CONNECTIONS, batch_size=WORKER_BATCH)
    return tuple(
        Stand(replace(setup, model=model, processes=count), (Load(name, count),))
        for name, model in ((NOOP, "Noop"), (GPU, "SimulatedGpu"))
        for count in PROCESSES
    )


CURVES: Mapping[str, tuple[Stand, ...]] = {
    "batch-size": _batch_sizes(),
    "max-latency": _latencies(),
    "workers": _workers(),
    "gateways": _gateways(),
}
