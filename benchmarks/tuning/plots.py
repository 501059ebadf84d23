"""The curves as pictures, one file for each."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import gpu_seconds
from benchmarks.tuning import curves
from benchmarks.tuning.points import ELSE, PARTS, Point


def draw(measured: Mapping[str, Sequence[Point]], folder: Path) -> bool:
    """Write the pictures of the curves that there are; False where matplotlib is not installed."""
    try:
        importlib.import_module("matplotlib").use("agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return False
    pyplot.rcParams["svg.hashsalt"] = "zbatch"  # the same figures, the same file
    folder.mkdir(parents=True, exist_ok=True)
    for name, points in measured.items():
        figure = DRAWN[name](pyplot, points)
        figure.savefig(folder / f"tuning-{name}.svg", metadata={"Date": None})
        pyplot.close(figure)
    return True


def _batch_sizes(pyplot: Any, points: Sequence[Point]) -> Any:
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 5.6), sharex="col", layout="constrained")
    for column, name in enumerate((curves.GPU, curves.TRANSFORMER)):
        rates, latencies = axes[0][column], axes[1][column]
        for colour, callers in (("tab:blue", curves.FULL), ("tab:orange", curves.FEW)):
            mine = series(points, f"{name}, {callers}")
            if not mine:
                continue
            sizes = [one.x for one in mine]
            rates.plot(sizes, [one.rate for one in mine], "o-", color=colour, label=_callers(callers))
            latencies.plot(
                sizes, [one.p50_ms for one in mine], "o-", color=colour, label=f"p50, {_callers(callers)}"
            )
            latencies.plot(
                sizes, [one.p99_ms for one in mine], "^:", color=colour, label=f"p99, {_callers(callers)}"
            )
        rates.set_title(name)
        rates.set_ylim(bottom=0)
        _in_decades(latencies)
        latencies.set_xscale("log", base=2)
        latencies.set_xticks(curves.BATCH_SIZES[name], [str(size) for size in curves.BATCH_SIZES[name]])
        latencies.set_xlabel("--batch-size")
    axes[0][0].set_ylabel("items a second")
    axes[1][0].set_ylabel("latency, ms")
    return _finished(figure)


def _latencies(pyplot: Any, points: Sequence[Point]) -> Any:
    loads = (curves.LONE, *(f"{share} %" for share in curves.SHARES))
    figure, axes = pyplot.subplots(2, len(loads), figsize=(12, 5.6), sharex=True, layout="constrained")
    for column, load in enumerate(loads):
        latencies, batches = axes[0][column], axes[1][column]
        for colour, batching in (("tab:orange", "window"), ("tab:blue", "eager")):
            mine = series(points, f"{batching}, {load}")
            times = [one.x for one in mine]
            latencies.plot(times, [one.p50_ms for one in mine], "o-", color=colour, label=f"{batching}, p50")
            latencies.plot(times, [one.p99_ms for one in mine], "^:", color=colour, label=f"{batching}, p99")
            batches.plot(times, [one.batch or 0.0 for one in mine], "o-", color=colour, label=batching)
        latencies.set_title(load if load == curves.LONE else f"{load} of capacity")
        latencies.set_ylim(bottom=0)
        batches.set_ylim(0, 1.1 * curves.OPEN_BATCH)
        batches.set_xlabel("--max-latency, ms")
    axes[0][0].set_ylabel("latency, ms")
    axes[1][0].set_ylabel("items in a batch, mean")
    return _finished(figure, every=False)


def _workers(pyplot: Any, points: Sequence[Point]) -> Any:
    figure, (rates, latencies) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    full = curves.WORKER_BATCH / gpu_seconds(curves.WORKER_BATCH)
    for colour, callers in zip(("tab:blue", "tab:orange"), curves.MANY, strict=True):
        mine = series(points, f"{callers:,} callers")
        counts = [one.x for one in mine]
        rates.plot(counts, [one.rate for one in mine], "o-", color=colour, label=f"{callers:,} callers")
        latencies.plot(counts, [one.p50_ms for one in mine], "o-", color=colour, label=f"p50, {callers:,}")
        latencies.plot(counts, [one.p99_ms for one in mine], "^:", color=colour, label=f"p99, {callers:,}")
    ideal = [count * full for count in curves.WORKERS]
    rates.plot(curves.WORKERS, ideal, "--", color="tab:gray", label="all with full batches, always")
    rates.set_ylabel("items a second")
    rates.set_ylim(bottom=0)
    latencies.set_ylabel("latency, ms")
    _in_decades(latencies)
    for one in (rates, latencies):
        one.set_xticks(curves.WORKERS)
        one.set_xlabel("simulated GPUs, a model process each")
    return _finished(figure)


def _gateways(pyplot: Any, points: Sequence[Point]) -> Any:
    figure, (rates, cores) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for place, name in enumerate((curves.NOOP, curves.GPU)):
        mine = series(points, name)
        rates.bar(
            [one.x + 0.36 * (place - 0.5) for one in mine], [one.rate for one in mine], 0.34, label=name
        )
    bars = [(f"{one.series.removeprefix('simulated ')}, {one.x:g}", one.cores) for one in points]
    bottoms = [0.0] * len(bars)
    for part in dict.fromkeys((*PARTS.values(), ELSE)):
        heights = [took.get(part, 0.0) for _, took in bars]
        if max(heights, default=0.0) > 0.01:
            cores.bar(range(len(bars)), heights, 0.7, bottom=bottoms, label=part)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    rates.set_xticks(curves.PROCESSES)
    rates.set_xlabel("--processes")
    rates.set_ylabel("requests a second")
    rates.set_ylim(top=1.25 * max(one.rate for one in points))
    cores.set_xticks(range(len(bars)), [title for title, _ in bars], fontsize=8)
    cores.set_ylabel("cores at work")
    cores.set_ylim(top=1.5 * max(bottoms))
    return _finished(figure)


DRAWN: Mapping[str, Callable[[Any, Sequence[Point]], Any]] = {
    "batch-size": _batch_sizes,
    "max-latency": _latencies,
    "workers": _workers,
    "gateways": _gateways,
}


def series(points: Sequence[Point], name: str) -> list[Point]:
    """Return the points of one line."""
    return [one for one in points if one.series == name]


def _finished(figure: Any, *, every: bool = True) -> Any:
    """Give axes their grid, and a legend to each or to the first of a row."""
    for place, axes in enumerate(figure.axes):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        if every or place % 4 == 0:
            axes.legend(fontsize=7, ncols=2 if len(axes.containers) > 2 else 1)
    return figure


def _callers(name: str) -> str:
    return "callers twice the batch" if name == curves.FULL else name


def _in_decades(axes: Any) -> None:
    """Let latencies grow by factors, and have plain numbers beside them."""
    axes.set_yscale("log")
    ticker: Any = importlib.import_module("matplotlib.ticker")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
