"""The table of ratios, for people and for the record; who is ahead, and who is missing."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks import report
from benchmarks.peers.processor import COLUMNS, Division
from benchmarks.peers.rows import BY_WRK, HTTP, PEERS
from benchmarks.peers.turns import Above
from benchmarks.rounds import Outcome

HEADINGS = (*report.HEADINGS[:-1], "target", "ahead")
PEER_AHEAD = "PEER"

LIBRARY = "Asked from Python; medians, ratios round by round"
FRONTS = "A ZClient against peers over HTTP, each by its own front"
BOTH_BY_WRK = "Over HTTP, both asked by wrk: one gateway process, broker and workers against mosec"
DIVIDED = "Whose processor time: microseconds for one answer, over all rounds"
DIVIDED_HEADINGS = ("load", "who", *COLUMNS, "cores at work")

COLOURS = {"aim": "bold green", "reach": "green", "": ""}


def ahead(one: Outcome) -> str:
    """Return who is ahead, ``ours`` or ``PEER``; nothing where a row compares with no peer.

    Judged as the table shows it, with two digits: what rounds to 1.00 is even.
    """
    if one.against not in PEERS or one.ours in PEERS:
        return ""
    times = times_as_good(one)
    if round(times, 2) == 1.0:
        return "even"
    return "ours" if times > 1 else PEER_AHEAD


def times_as_good(one: Outcome) -> float:
    """Return the median ratio, turned so that more is better."""
    ratio = statistics.median(one.ratios)
    return 1 / ratio if one.less_is_better else ratio


def cells(one: Outcome) -> tuple[str, ...]:
    """Return a row as text."""
    made = list(report.cells(one))
    if isinstance(one, Above):
        made[5] = f"+{made[5]} ms"
    return (*made, ahead(one))


def groups(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    """Return the rows in tables with titles: asked from Python, over HTTP, and by wrk."""
    tables: dict[str, list[Outcome]] = {LIBRARY: [], FRONTS: [], BOTH_BY_WRK: []}
    for one in outcomes:
        both = {one.ours, one.against}
        title = BOTH_BY_WRK if both & set(BY_WRK) else FRONTS if both & set(HTTP) else LIBRARY
        tables[title].append(one)
    return [(title, rows) for title, rows in tables.items() if rows]


def terminal(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Return a table for the terminal."""
    made = Table(title=title, title_justify="left", show_lines=False)
    for heading in HEADINGS:
        made.add_column(heading, justify="right" if heading in {"figure", "ratio"} else "left")
    for one in outcomes:
        style = "bold red" if ahead(one) == PEER_AHEAD else COLOURS.get(report.verdict(one), "red")
        made.add_row(*cells(one), style=style)
    return made


def divided(divisions: Sequence[Division]) -> Table:
    """Return the table of processor time for the terminal."""
    made = Table(title=DIVIDED, title_justify="left", show_lines=False)
    for place, heading in enumerate(DIVIDED_HEADINGS):
        made.add_column(heading, justify="right" if place > 1 else "left")
    for one in divisions:
        made.add_row(*shares(one))
    return made


def shares(one: Division) -> tuple[str, ...]:
    """Return a row of processor time as text."""
    return (one.title, one.who, *(f"{one.microseconds(part):,.1f}" for part in COLUMNS), f"{one.cores:.2f}")


def markdown(
    outcomes: Sequence[Outcome],
    divisions: Sequence[Division],
    facts: Mapping[str, str],
    missing: Mapping[str, str],
    failures: Mapping[str, str],
    picture: str | None,
) -> str:
    """Return the page for the record."""
    lines = ["# Measured with `make peers`", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += [
        "",
        "Medians over the rounds; the ratio is that of each round, its median and its range; `+` is the",
    ]
    lines += [
        "difference to the direct call. `target`: which of both was met. `ahead`: of ours and this peer.",
        "",
    ]
    tables: list[tuple[str, Sequence[str], list[tuple[str, ...]]]]
    tables = [(title, HEADINGS, list(map(cells, rows))) for title, rows in groups(outcomes)]
    if divisions:
        tables.append((DIVIDED, DIVIDED_HEADINGS, list(map(shares, divisions))))
    for title, headings, rows in tables:
        lines += [f"## {title}", "", "| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    lost = [one for one in outcomes if ahead(one) == PEER_AHEAD]
    lines += ["## Who is behind", "", f"A peer is ahead in {len(lost)} rows" + (":" if lost else "."), ""]
    lines += [f"- {one.title}: {one.against}, {1 / times_as_good(one):.2f} times ours" for one in lost]
    lines += [*([""] if lost else []), *(f"- missing: {name}: {_line(why)}" for name, why in missing.items())]
    if picture:
        lines += ["", f"![the ratios]({picture})"]
    for name, reason in failures.items():
        lines += ["", f"`{name}` was not measured:", "", *(f"    {line}" for line in reason.splitlines())]
    return "\n".join(lines) + "\n"


def write(
    path: Path,
    outcomes: Sequence[Outcome],
    divisions: Sequence[Division],
    facts: Mapping[str, str],
    missing: Mapping[str, str],
    failures: Mapping[str, str],
    picture: str | None,
) -> None:
    """Write both files of the record: ``path`` with .md and .json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(markdown(outcomes, divisions, facts, missing, failures, picture))
    rows = [
        {
            **dataclasses.asdict(one),
            "ms above" if isinstance(one, Above) else "ratios": one.ratios,
            "target": report.verdict(one),
            "ahead": ahead(one),
        }
        for one in outcomes
    ]
    record = {
        "machine": dict(facts),
        "rows": rows,
        "processor": [{**dataclasses.asdict(one), "cores": one.cores} for one in divisions],
        "missing": dict(missing),
        "failures": dict(failures),
    }
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")


def _line(text: str) -> str:
    return " ".join(text.split())
