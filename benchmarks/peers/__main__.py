"""``python -m benchmarks.peers``: measure zbatch beside its peers, print the table, write the record."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from benchmarks import machine
from benchmarks.peers import environments, plot, table, turns
from benchmarks.peers.processor import Division
from benchmarks.peers.rows import LOADS, OPTIONAL, missing_of, needs_of, without
from benchmarks.rounds import Outcome
from benchmarks.rows import Load
from benchmarks.screen import leave, note

RESULTS = Path(__file__).parent.parent / "results"

TORCH = "torch==2.13.0"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", multiple=True, metavar="NAME", help="Only loads whose name contains this; repeatable."
)
@click.option(
    "--with", "added", multiple=True, type=click.Choice(list(OPTIONAL)), help="Large peers too; repeatable."
)
@click.option("--quick", is_flag=True, help="One second, two rounds: does it run? No figures to quote.")
@click.option("--rounds", "count", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Measured each time."
)
@click.option("--torch", default=TORCH, show_default=True, help="For the transformer; empty: without it.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The record, without suffix (default: results/)."
)
def main(
    only: tuple[str, ...],
    added: tuple[str, ...],
    quick: bool,
    count: int,
    seconds: float,
    torch: str,
    out: Path | None,
) -> None:
    """Measure zbatch beside its peers, interleaved, and show who is ahead.

    Example: python -m benchmarks.peers --only gpu --rounds 5
    """
    signal.signal(signal.SIGTERM, leave)
    if quick:
        count, seconds = 2, 1.0
    loads = chosen(only, added, torch)
    run = Run(count, seconds)
    began = time.monotonic()
    facts = machine.describe()
    run.prepare(loads, torch)
    for load in loads:
        run.measure(load)
    facts["took"] = f"{time.monotonic() - began:.0f} s, {count} rounds of {seconds:g} s"
    facts["peers"] = ", ".join(run.versions)
    screen = Console(width=None if sys.stdout.isatty() else 220)
    for title, rows in table.groups(run.outcomes):
        screen.print(table.terminal(title, rows))
    if run.divisions:
        screen.print(table.divided(run.divisions))
    path = out or RESULTS / ("partial-peers" if only or quick else f"{time.strftime('%Y-%m-%d')}-peers")
    run.write(path, facts)
    sys.exit(1 if run.failures or any(one.wrong for one in run.outcomes) else 0)


def chosen(only: Sequence[str], added: Sequence[str], torch: str) -> list[Load]:
    """Return the loads that were asked for, without the peers that were not."""
    left_out = [peer for name, peer in OPTIONAL.items() if name not in added]
    loads = [without(load, left_out) for load in LOADS if not only or any(part in load.name for part in only)]
    if not torch:
        loads = [load for load in loads if not load.name.startswith("transformer")]
    if not loads:
        names = ", ".join(load.name for load in LOADS)
        raise click.UsageError(f"no load has {' or '.join(only)} in its name; there are {names}")
    return loads


class Run:
    """What has been measured so far, and what could not be."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds
        self.screen = Console(stderr=True)
        self.outcomes: list[Outcome] = []
        self.divisions: list[Division] = []
        self.missing: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.versions: list[str] = []

    def prepare(self, loads: Sequence[Load], torch: str) -> None:
        """Make the environments; a peer that cannot be had is named as missing."""
        needs = needs_of(loads)
        lacking = environments.prepare(needs, torch, self._say)
        self.versions = [f"{need} {environments.version_of(need)}" for need in needs if need not in lacking]
        self.missing = missing_of(lacking)
        for peer, reason in self.missing.items():
            self._say(f"missing: {peer}: {reason}")

    def measure(self, load: Load) -> None:
        """Run one load; what was measured before is worth its minutes, whatever becomes of it."""
        possible = without(load, self.missing)
        if not possible.rows:
            return
        with self.screen.status("") as status:
            say = partial(note, self.screen, status)
            try:
                made = turns.run(possible, self.count, self.seconds, say, partial(self._fail, load.name))
                self.outcomes += made.outcomes
                self.divisions += made.divisions
            except Exception:
                self._fail(load.name, "all of it", traceback.format_exc())

    def write(self, path: Path, facts: dict[str, str]) -> None:
        """Write page, record and picture."""
        picture = path.with_suffix(".png")
        drawn = plot.draw(self.outcomes, picture)
        table.write(
            path,
            self.outcomes,
            self.divisions,
            facts,
            self.missing,
            self.failures,
            picture.name if drawn else None,
        )
        self._say(f"written: {path.with_suffix('.md')}, .json{' and .png' if drawn else ''}")
        lost = [one for one in self.outcomes if table.ahead(one) == table.PEER_AHEAD]
        self._say(f"a peer is ahead in {len(lost)} of {len(self.outcomes)} rows")

    def _fail(self, load: str, who: str, reason: str) -> None:
        self.failures[f"{load}: {who}"] = reason
        self._say(f"{load}: {who} was not measured: {reason}")

    def _say(self, text: str) -> None:
        self.screen.print(text, markup=False, highlight=False)


if __name__ == "__main__":
    main()
