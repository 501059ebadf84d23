"""``make simulate``: many lives, and whether they met what they were made for.

``--seed N`` tells one life as a story.  A run of many prints how often each fault met each situation; one
that met too little fails, so that an empty run cannot pass.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulator.lives import Report, live
from tests.simulator.situations import missing

CHUNK = 25
"""Lives that a process lives between two words."""

SHOWN = 10
"""Failures that are told in full."""


def some(first: int, last: int) -> tuple[list[Report], Counter[str]]:
    """Live some lives; return those that failed and what all of them met."""
    failed, met = [], Counter[str]()
    for seed in range(first, last):
        report = live(seed)
        met.update(report.met)
        met["steps"] += report.steps
        if report.failure:
            failed.append(report)
    return failed, met


def chunks(first: int, seeds: int) -> Iterator[tuple[int, int]]:
    """Cut the seeds into pieces."""
    for start in range(first, first + seeds, CHUNK):
        yield start, min(start + CHUNK, first + seeds)


def run(first: int, seeds: int, processes: int) -> tuple[list[Report], Counter[str]]:
    """Live all lives, in several processes, and say how far it is."""
    failed: list[Report] = []
    met: Counter[str] = Counter()
    began = shown = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        lives = [pool.submit(some, *chunk) for chunk in chunks(first, seeds)]
        for done, future in enumerate(as_completed(lives), 1):
            more_failed, more_met = future.result()
            failed += more_failed
            met.update(more_met)
            now = time.monotonic()
            if now - shown > 2 or done == len(lives):
                shown = now
                lived = min(done * CHUNK, seeds)
                print(f"\r{lived} lives, {len(failed)} failed, {now - began:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    return failed, met


def main() -> int:
    """Return 0 where every life ended as it should and all situations were met."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="tell the story of one life")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    if asked.seed is not None:
        report = live(asked.seed, tells=True)
        print("\n".join(report.story))
        print(report.failure or "it ended as it should")
        return int(bool(report.failure))
    failed, met = run(asked.first, asked.seeds, asked.processes)
    for name, count in sorted(met.items()):
        print(f"{count:12,}  {name}")
    for report in sorted(failed, key=lambda one: one.seed)[:SHOWN]:
        print(f"seed {report.seed}: {report.failure}")
        print(f"    its story: python -m tests.simulator --seed {report.seed}")
    unmet = missing(met, asked.seeds)
    for name in unmet:
        print(f"never met in {asked.seeds} lives: {name}")
    print(f"{asked.seeds} lives, {met['steps']:,} steps, {len(failed)} failed")
    return int(bool(failed or unmet))


if __name__ == "__main__":
    sys.exit(main())
