"""One point of a curve: start the cluster, ask it, say what came of it.

``zbatch bench`` asks, as a user would, and wrk where it is over HTTP; the broker's status, read before and
after, says why its batches closed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import ours, rounds
from benchmarks.children import Failed
from benchmarks.loads import tokens
from benchmarks.peers import processor
from benchmarks.rows import Contender
from benchmarks.tuning.curves import Load, Stand

GRACE_SECONDS = 60.0
"""Beyond its measured time; then the load hangs."""

PARTS = {
    processor.MAIN: "gateway",
    processor.THREADS: "gateway",
    processor.BROKER: "broker",
    processor.WORKERS: "workers",
    processor.LOAD: "wrk",
}
"""What the parts of a cluster are called here, where a gateway is one."""

ELSE = "all else"
"""What the rest of the machine did meanwhile: a figure beside much of it is none."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one load came to."""

    series: str
    x: float
    rate: float
    """Answers a second."""
    p50_ms: float
    p99_ms: float
    batch: float | None = None
    """Items in a batch, on average; where the broker was asked."""
    closed: dict[str, int] = field(default_factory=dict)
    """Batches by why they closed."""
    cores: dict[str, float] = field(default_factory=dict)
    """How many cores each part of the cluster took, where that was looked at."""


def measure(stand: Stand, seconds: float, note: Callable[[str], None]) -> list[Point]:
    """Run a cluster and ask it everything."""
    if stand.setup.shape == "wrk":
        return [_by_wrk(stand, load, seconds, note) for load in stand.loads]
    with (
        tempfile.TemporaryDirectory(prefix="zbench-") as folder,
        ours.serve(stand.setup, Path(folder)) as endpoint,
    ):
        return [_by_bench(stand, load, endpoint, seconds, note) for load in stand.loads]


def _by_bench(stand: Stand, load: Load, endpoint: str, seconds: float, note: Callable[[str], None]) -> Point:
    note(f"{load.series}, {load.x:g}")
    item = json.dumps(tokens()[0]) if stand.setup.item == "tokens" else "hello"
    asked = ("--rate", f"{load.rate:.1f}") if load.rate else ("--callers", str(load.callers))
    command = [
        *(*ours.ZBATCH, "bench", "--endpoint", endpoint, *asked, "--item", item, "--json"),
        *("--warmup", f"{load.warm:g}s", "--duration", f"{seconds:g}s", "--timeout", "60s"),
    ]
    before = _closed(endpoint)
    patience = load.warm + seconds + GRACE_SECONDS
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
    if done.returncode:
        raise Failed(f"zbatch bench failed:\n{done.stderr}")
    told = json.loads(done.stdout)
    if told["errors"]:
        raise Failed(f"{load.series}, {load.x:g}: requests failed: {told['errors']}")
    latency = told["latency_ms"]
    closed = {why: count - before.get(why, 0) for why, count in _closed(endpoint).items()}
    return Point(
        load.series, load.x, told["items_per_s"], latency["p50"], latency["p99"], told["batch"], closed
    )


def _closed(endpoint: str) -> dict[str, int]:
    topics: dict[str, Any] = ours.status(endpoint).get("topics", {})
    return dict(topics.get("default", {}).get("closed", {}))


def _by_wrk(stand: Stand, load: Load, seconds: float, note: Callable[[str], None]) -> Point:
    note(f"{load.series}, {load.x:g}")
    others = {process.pid for process in psutil.Process().children()}
    with rounds.generator(Contender(load.series, "peers.gateway_", stand.setup)) as asking:
        children = {process.pid for process in psutil.Process().children()} - others
        before, busy, began = processor.read(children), _busy(), time.monotonic()
        figure = asking.measure(load.warm, seconds)
        wall, busy, after = time.monotonic() - began, _busy() - busy, processor.read(children)
    if figure.wrong:
        raise Failed(f"{load.series}, {load.x:g}: {figure.wrong} answers belong to other requests")
    took = processor.Division(load.series, "zbatch")
    took.add(before, after, wall, figure.answers)
    cores = dict.fromkeys(PARTS.values(), 0.0)
    for part, name in PARTS.items():
        cores[name] += took.seconds[part] / wall
    cores[ELSE] = max(0.0, busy / wall - sum(cores.values()))
    return Point(load.series, load.x, figure.rate, 1000 * figure.p50, 1000 * figure.p99, cores=cores)


def _busy() -> float:
    """Return for how many seconds the cores were at work since the machine started, whoever's it was."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
