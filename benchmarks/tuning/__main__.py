"""``python -m benchmarks.tuning``: measure the curves of docs/tuning.md, and write them there."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from benchmarks import machine
from benchmarks.children import Failed
from benchmarks.screen import leave, note
from benchmarks.tuning import page, plots
from benchmarks.tuning.curves import CURVES
from benchmarks.tuning.points import Point, measure

RESULTS = Path(__file__).parents[1] / "results"
DOCS = Path(__file__).parents[2] / "docs"

TROUBLE = (Failed, OSError, subprocess.SubprocessError)

Measured = dict[str, list[Point]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", multiple=True, type=click.Choice(list(CURVES)), help="Only this curve; repeatable.")
@click.option("--quick", is_flag=True, help="Half a second a point: does it run? No figures to quote.")
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=2.5, show_default=True, help="Measured a point."
)
@click.option("--write", is_flag=True, help="Write docs/tuning.md and its plots, too.")
@click.option(
    "--record",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Measure nothing: show what this file has.",
)
def main(only: Sequence[str], quick: bool, seconds: float, write: bool, record: Path | None) -> None:
    """Measure what batch size, max latency, workers and gateway processes do.

    Example: python -m benchmarks.tuning --only workers --write
    """
    signal.signal(signal.SIGTERM, leave)
    failures: dict[str, str] = {}
    if record is not None:
        measured, facts = read(record)
    else:
        seconds = 0.5 if quick else seconds
        facts = describe(seconds, quick=quick)
        measured = run(only or list(CURVES), seconds, failures)
        is_whole = not (only or quick or failures)
        path = RESULTS / (f"{time.strftime('%Y-%m-%d')}-tuning" if is_whole else "partial-tuning")
        keep(path, measured, facts, failures)
    print(page.record(measured, facts))
    if write:
        page.write(DOCS / "tuning.md", measured, facts)
        if not plots.draw(measured, DOCS / "img"):
            print("no plots: matplotlib is not installed", file=sys.stderr)
    sys.exit(1 if failures else 0)


def run(names: Sequence[str], seconds: float, failures: dict[str, str]) -> Measured:
    """Measure curves; one that fails is left out, and told."""
    screen = Console(stderr=True)
    measured: Measured = {}
    with screen.status("") as status:
        for name in names:
            say = partial(note, screen, status)
            try:
                if name == "gateways" and shutil.which("wrk") is None:
                    raise Failed("wrk is not installed: apt-get install wrk")
                measured[name] = [point for stand in CURVES[name] for point in measure(stand, seconds, say)]
            except TROUBLE as trouble:
                failures[name] = str(trouble)
                screen.print(f"{name} was not measured: {trouble}", markup=False)
    return measured


def describe(seconds: float, *, quick: bool) -> dict[str, str]:
    """Return what the figures depend on."""
    kind = f"{seconds:g} s a point" + (", a trial: no figures to quote" if quick else "")
    return {"date": time.strftime("%Y-%m-%d"), "kind": kind, **machine.describe()}


def keep(path: Path, measured: Measured, facts: Mapping[str, str], failures: Mapping[str, str]) -> None:
    """Write both files of the record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: [dataclasses.asdict(one) for one in points] for name, points in measured.items()}
    found = {"machine": dict(facts), "curves": rows, "failures": dict(failures)}
    path.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page.record(measured, facts), encoding="utf-8")
    print(f"written: {path.with_suffix('.md')} and .json", file=sys.stderr)


def read(path: Path) -> tuple[Measured, dict[str, str]]:
    """Return what a record has."""
    found = json.loads(path.read_text(encoding="utf-8"))
    curves = {name: [Point(**one) for one in points] for name, points in found["curves"].items()}
    return curves, dict(found["machine"])


if __name__ == "__main__":
    main()
