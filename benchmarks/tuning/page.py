"""What was measured, as tables; and where docs/tuning.md keeps them.

The page's own words must hold whatever comes out: sentences that depend on figures are made here, from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.models import gpu_seconds
from benchmarks.report import number
from benchmarks.tuning import curves
from benchmarks.tuning.plots import series
from benchmarks.tuning.points import ELSE, PARTS, Point

WORTH = 0.9
"""Of the best rate: what `zbatch check` asks of the size that it suggests, too."""


def fill(page: str, measured: Mapping[str, Sequence[Point]], facts: Mapping[str, str]) -> str:
    """Return the page with what was measured in its marked places; the others stay."""
    for name, points in measured.items():
        page = _replaced(page, name, [_origin(facts), "", *SHOWN[name](points)])
    return page


def record(measured: Mapping[str, Sequence[Point]], facts: Mapping[str, str]) -> str:
    """Return a page of all that was measured, for the record."""
    lines = ["# Measured with `make tuning`", "", *(f"- {name}: {value}" for name, value in facts.items())]
    for name, points in measured.items():
        lines += ["", f"## {name}", "", *SHOWN[name](points)]
    return "\n".join(lines) + "\n"


def write(path: Path, measured: Mapping[str, Sequence[Point]], facts: Mapping[str, str]) -> None:
    """Fill the page at a path."""
    path.write_text(fill(path.read_text(encoding="utf-8"), measured, facts), encoding="utf-8")


def _replaced(page: str, name: str, lines: Sequence[str]) -> str:
    begin, end = f"<!-- measured by make tuning: {name} -->", f"<!-- end of {name} -->"
    before, after = page[: page.index(begin)], page[page.index(end) :]
    return f"{before}{begin}\n\n" + "\n".join(lines) + f"\n\n{after}"


def _origin(facts: Mapping[str, str]) -> str:
    return f"{facts['date']}, {facts['processor']}, no GPU, {facts['kind']}:"


def _batch_sizes(points: Sequence[Point]) -> list[str]:
    lines: list[str] = []
    for name in (curves.GPU, curves.TRANSFORMER):
        full = series(points, f"{name}, {curves.FULL}")
        few = {one.x: one for one in series(points, f"{name}, {curves.FEW}")}
        if not full:
            continue
        lines += [
            *(["", f"**{name}**"] if lines else [f"**{name}**"]),
            "",
            f"| `--batch-size` | items/s, callers: {curves.FULL} | p50 | p99 "
            + (f"| items/s, {curves.FEW} | p50 | p99 | mean batch |" if few else "|"),
            "|---|---|---|---|" + ("---|---|---|---|" if few else ""),
        ]
        for one in full:
            cells = [f"{one.x:g}", number(one.rate), _ms(one.p50_ms), _ms(one.p99_ms)]
            if other := few.get(one.x):
                cells += [number(other.rate), _ms(other.p50_ms), _ms(other.p99_ms), _batch(other)]
            lines.append(_row(cells))
        best = max(one.rate for one in full)
        enough = next(one for one in full if one.rate >= WORTH * best)
        lines += [
            "",
            f"Here {WORTH:.0%} of the best rate is reached with {enough.x:g}, "
            f"at a p50 of {_ms(enough.p50_ms)}; the largest has {_ms(full[-1].p50_ms)}.",
        ]
    return lines


def _latencies(points: Sequence[Point]) -> list[str]:
    lines = [
        "| load | `--batching` | `--max-latency` | p50 | p99 | mean batch | closed: full | idle | window |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for load in (curves.LONE, *(f"{share} %" for share in curves.SHARES)):
        for batching in curves.LATENCIES:
            for one in series(points, f"{batching}, {load}"):
                why = [_share(one, word) for word in ("full", "idle", "window")]
                cells = [load, batching, f"{one.x:g} ms", _ms(one.p50_ms), _ms(one.p99_ms), _batch(one), *why]
                lines.append(_row(cells))
    return lines


def _workers(points: Sequence[Point]) -> list[str]:
    lines = [
        "| callers | workers | items/s | of full batches | times one | p50 | p99 | mean batch | full |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    full = curves.WORKER_BATCH / gpu_seconds(curves.WORKER_BATCH)
    for callers in curves.MANY:
        mine = series(points, f"{callers:,} callers")
        for one in mine:
            shares = [f"{one.rate / (one.x * full):.2f}", f"{one.rate / mine[0].rate:.2f}"]
            cells = [f"{callers:,}", f"{one.x:g}", number(one.rate), *shares]
            times = [_ms(one.p50_ms), _ms(one.p99_ms)]
            lines.append(_row([*cells, *times, _batch(one), _share(one, "full")]))
    return lines


def _gateways(points: Sequence[Point]) -> list[str]:
    parts = tuple(dict.fromkeys((*PARTS.values(), ELSE)))
    lines = [
        "| model | `--processes` | requests/s | times one process | p50 | p99 | cores at work: "
        + " | ".join(parts)
        + " |",
        "|---|---|---|---|---|---|" + "---|" * len(parts),
    ]
    for name in (curves.NOOP, curves.GPU):
        mine = series(points, name)
        for one in mine:
            cells = [name, f"{one.x:g}", number(one.rate), f"{one.rate / mine[0].rate:.2f}"]
            cores = [f"{one.cores.get(part, 0.0):.2f}" for part in parts]
            lines.append(_row([*cells, _ms(one.p50_ms), _ms(one.p99_ms), *cores]))
    return lines


SHOWN: Mapping[str, Callable[[Sequence[Point]], list[str]]] = {
    "batch-size": _batch_sizes,
    "max-latency": _latencies,
    "workers": _workers,
    "gateways": _gateways,
}


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _ms(value: float) -> str:
    return f"{number(value) if value >= 10 else f'{value:.1f}'} ms"


def _batch(one: Point) -> str:
    return "" if one.batch is None else f"{one.batch:.1f}"


def _share(one: Point, why: str) -> str:
    closed = sum(one.closed.values())
    return f"{one.closed.get(why, 0) / closed:.0%}" if closed else ""
