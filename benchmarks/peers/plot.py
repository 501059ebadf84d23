"""The table as a picture: a dot for each ratio, its range, and marks for what was to be reached."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.table import PEER_AHEAD, ahead, times_as_good
from benchmarks.peers.turns import Above
from benchmarks.rounds import Outcome

OURS_COLOUR, PEER_COLOUR, PLAIN = "tab:green", "tab:red", "tab:gray"


def draw(outcomes: Sequence[Outcome], path: Path) -> bool:
    """Write the picture; False where matplotlib is not installed or there is no ratio to draw."""
    ratios = [one for one in outcomes if not isinstance(one, Above)]
    if not ratios:
        return False
    try:
        importlib.import_module("matplotlib").use("agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return False
    figure, axes = pyplot.subplots(figsize=(11, 1.5 + 0.24 * len(ratios)), layout="constrained")
    for place, one in enumerate(ratios):
        low, high = span(one)
        colour = PEER_COLOUR if ahead(one) == PEER_AHEAD else OURS_COLOUR if ahead(one) else PLAIN
        axes.plot([low, high], [place, place], color=colour, linewidth=2)
        axes.plot([times_as_good(one)], [place], "o", color=colour, markersize=5)
        for target, mark in ((one.reach, "|"), (one.aim, "x")):
            if target is not None:
                axes.plot([1 / target if one.less_is_better else target], [place], mark, color="black")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(ratios)), [f"{one.title}: {one.ours} : {one.against}" for one in ratios])
    axes.tick_params(axis="y", labelsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(
        "times the other's rate (or speed); | reach, x aim; red: the peer is ahead; gray: no peer"
    )
    axes.grid(axis="x", alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return True


def span(one: Outcome) -> tuple[float, float]:
    """Return the range of the ratios, turned so that more is better."""
    turned = [1 / ratio if one.less_is_better else ratio for ratio in one.ratios]
    return min(turned), max(turned)
