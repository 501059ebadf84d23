"""``python -m benchmarks``: measure, print the table, write the record; see README.md here."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from benchmarks import core_cost, footprint, machine, report, rounds
from benchmarks.children import Failed
from benchmarks.rows import LOADS
from benchmarks.screen import leave, note

Job = Callable[[Callable[[str], None]], list[rounds.Outcome]]
"""Measures something, telling where it is, and returns its rows."""

RESULTS = Path(__file__).parent / "results"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", multiple=True, metavar="NAME", help="Only loads whose name contains this; repeatable."
)
@click.option("--quick", is_flag=True, help="One second, two rounds: does it run? No figures to quote.")
@click.option("--rounds", "turns", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Measured each time."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="The record, without suffix (default: results/)."
)
def main(only: tuple[str, ...], quick: bool, turns: int, seconds: float, out: Path | None) -> None:
    """Measure zbatch against the baselines, interleaved in one run.

    Example: python -m benchmarks --only noop --rounds 5
    """
    signal.signal(signal.SIGTERM, leave)
    if quick:
        turns, seconds = 2, 1.0
    jobs = _jobs(turns, seconds, 5 if quick else 40)
    chosen = {name: job for name, job in jobs.items() if not only or any(part in name for part in only)}
    if not chosen:
        raise click.UsageError(f"no load has {' or '.join(only)} in its name; there are {', '.join(jobs)}")
    facts = machine.describe()
    screen = Console(stderr=True)
    outcomes: list[rounds.Outcome] = []
    failures: dict[str, str] = {}
    began = time.monotonic()
    with screen.status("") as status:
        for name, job in chosen.items():
            try:
                outcomes += job(partial(note, screen, status))
            except Failed as failure:
                failures[name] = str(failure)
                screen.print(f"{name} was not measured: {failure}", markup=False)
            except Exception:
                # What was measured before is worth its minutes.
                failures[name] = traceback.format_exc()
                screen.print(f"{name} was not measured: {failures[name]}", markup=False)
    facts["took"] = f"{time.monotonic() - began:.0f} s, {turns} rounds of {seconds:g} s"
    Console(width=None if sys.stdout.isatty() else 200).print(report.table(outcomes))
    is_whole = not (only or quick or failures)
    path = out or RESULTS / (f"{time.strftime('%Y-%m-%d')}" if is_whole else "partial")
    report.write(path, outcomes, facts, failures)
    screen.print(f"written: {path.with_suffix('.md')} and .json", markup=False)
    sys.exit(1 if failures or any(outcome.wrong for outcome in outcomes) else 0)


def _jobs(turns: int, seconds: float, slices: int) -> dict[str, Job]:
    """Return everything that can be measured, by name."""
    jobs: dict[str, Job] = {load.name: partial(rounds.run, load, turns, seconds) for load in LOADS}
    jobs["core"] = partial(core_cost.run, turns, slices)
    jobs["footprint"] = partial(footprint.run, 5)
    return jobs


if __name__ == "__main__":
    main()
