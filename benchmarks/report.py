"""The table: for people on the terminal, and as markdown and JSON for the record."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.rounds import Outcome

HEADINGS = ("load", "ours", "figure", "against", "figure", "ratio", "min to max", "reach", "aim", "")


def verdict(one: Outcome) -> str:
    """Return ``aim``, ``reach`` or ``below``; nothing where a row has no target."""
    if one.wrong:
        return f"{one.wrong} wrong answers"
    ratio = statistics.median(one.ratios)
    for word, target in (("aim", one.aim), ("reach", one.reach)):
        if target is not None and (ratio <= target if one.less_is_better else ratio >= target):
            return word
    return "" if one.reach is None and one.aim is None else "below"


def cells(one: Outcome) -> tuple[str, ...]:
    """Return a row as text."""
    ratios = one.ratios
    sign = "<=" if one.less_is_better else ">="
    return (
        one.title,
        one.ours,
        f"{number(statistics.median(one.figures))} {one.unit}",
        one.against,
        f"{number(statistics.median(one.baseline))} {one.unit}",
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        "" if one.reach is None else f"{sign} {one.reach:g}",
        "" if one.aim is None else f"{sign} {one.aim:g}",
        verdict(one),
    )


def number(value: float) -> str:
    """Return a figure with as many digits as mean anything."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table for the terminal."""
    colours = {"aim": "bold green", "reach": "green", "": "dim"}
    made = Table(title="medians; ratios round by round", title_justify="left", show_lines=False)
    for heading in HEADINGS:
        made.add_column(heading, justify="right" if heading in {"figure", "ratio"} else "left")
    for one in outcomes:
        made.add_row(*cells(one), style=colours.get(verdict(one), "bold red"))
    return made


def markdown(outcomes: Sequence[Outcome], facts: Mapping[str, str], failures: Mapping[str, str]) -> str:
    """Return the page for the record."""
    lines = ["# Measured with `make bench`", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "Medians over the rounds; the ratio is that of each round, its median and its range.", ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells(one)) + " |" for one in outcomes]
    for name, reason in failures.items():
        lines += ["", f"`{name}` was not measured:", "", *(f"    {line}" for line in reason.splitlines())]
    return "\n".join(lines) + "\n"


def write(
    path: Path, outcomes: Sequence[Outcome], facts: Mapping[str, str], failures: Mapping[str, str]
) -> None:
    """Write both files of the record: ``path`` with .md and .json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(markdown(outcomes, facts, failures))
    rows = [{**dataclasses.asdict(one), "ratios": one.ratios, "verdict": verdict(one)} for one in outcomes]
    record = {"machine": dict(facts), "rows": rows, "failures": dict(failures)}
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
