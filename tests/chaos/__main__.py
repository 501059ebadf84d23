"""``make chaos``: a farm of real processes under faults for some minutes, then every promise is checked."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.books import Books, check
from tests.chaos.farm import BATCH, WORKERS, Farm
from tests.chaos.harm import Harm
from tests.chaos.hosts import can_make_hosts

Weights = dict[str, tuple[int, int, int]]
"""By broker: resident kB, open files, threads."""

MORE_KILOBYTES, MORE_FILES = 30_000, 12
"""What a broker may have more at the end than at the beginning: its peers are other ones by then."""

SETTLE = 90.0
"""Seconds in which the last requests end: none has more time."""

QUIET = 75.0
"""Seconds in which the brokers forget: clients that left, ids, histories."""


def say(words: str) -> None:
    """Tell whoever waits."""
    print(words, flush=True)


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait for a condition, so long at most."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True


def weigh(farm: Farm) -> Weights:
    """Return what each broker needs."""
    found = {}
    for broker in farm.brokers:
        process = psutil.Process(broker.process.pid)
        found[broker.name] = (process.memory_info().rss >> 10, process.num_fds(), process.num_threads())
    return found


def left_in(shown: dict[str, Any] | None, name: str) -> list[str]:
    """Return what a broker still holds, though nobody asks any more."""
    if shown is None:
        return [f"{name} says nothing"]
    left = [
        f"{name}: topic {topic} has {facts['unfinished']} unfinished items"
        for topic, facts in shown["topics"].items()
        if facts["unfinished"]
    ]
    idle = [one for one in shown["workers"] if one["state"] == "idle"]
    if len(idle) != WORKERS:
        left.append(f"{name}: {len(idle)} of {WORKERS} workers are idle")
    return left


def live(farm: Farm, harm: Harm, minutes: float) -> None:
    """Let a farm be harmed for so long."""
    ends = time.monotonic() + 60 * minutes
    told = 0.0
    while time.monotonic() < ends:
        harm.turn()
        time.sleep(0.5)
        if time.monotonic() - told > 20:
            told = time.monotonic()
            lines = sum(path.read_text().count("\nend ") for path in farm.home.glob("*.calls"))
            say(f"  {ends - told:5.0f} s to go, {sum(harm.done.values())} faults, {lines} outcomes")


def finish(farm: Farm) -> list[str]:
    """Let everything end, and look at what is left."""
    for caller in farm.callers:
        assert caller.process.stdin is not None
        caller.process.stdin.close()
    wrong = [
        f"{caller.name} does not end"
        for caller in farm.callers
        if not until(lambda caller=caller: not caller.alive, SETTLE)  # type: ignore[misc]
    ]
    say("everything has ended; waiting until nothing is left")

    def left() -> list[str]:
        return [one for broker in farm.brokers for one in left_in(farm.status(broker), broker.name)]

    if not until(lambda: not left(), QUIET):
        wrong += left()
    return wrong


def grown(before: Weights, after: Weights) -> list[str]:
    """Return which broker needs more than before, although it was given back everything."""
    wrong = []
    for name, (kilobytes, descriptors, threads) in after.items():
        if name not in before:
            continue
        if kilobytes > before[name][0] + MORE_KILOBYTES:
            wrong.append(f"{name} grew from {before[name][0]} to {kilobytes} kB")
        if descriptors > before[name][1] + MORE_FILES:
            wrong.append(f"{name} went from {before[name][1]} to {descriptors} open files")
        if threads > before[name][2]:
            wrong.append(f"{name} went from {before[name][2]} to {threads} threads")
    return wrong


def report(books: Books, harm: Harm, before: Weights, after: Weights) -> None:
    """Print what happened."""
    say("\nfaults: " + ", ".join(f"{name} {count}" for name, count in sorted(harm.done.items())))
    say(f"requests: {books.asked} items asked, {books.ran} runs")
    say("outcomes: " + ", ".join(f"{name} {count}" for name, count in books.outcomes.most_common()))
    say(f"latest outcome: {max(books.late, default=0):.2f} s after its deadline")
    for name, weight in after.items():
        kilobytes, descriptors, threads = weight
        was = before.get(name, weight)
        say(f"{name}: {was[0]} -> {kilobytes} kB, {was[1]} -> {descriptors} files, {threads} threads")


def main() -> int:
    """Return 0 where every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--loopback", action="store_true", help="make no hosts")
    asked = parser.parse_args()
    apart = not asked.loopback and can_make_hosts()
    say(f"chaos for {asked.minutes:g} minutes, seed {asked.seed}")
    say(
        "each on a host of its own" if apart else "no hosts can be made here: all on loopback, cut by proxies"
    )
    with tempfile.TemporaryDirectory(prefix="zbatch-chaos-") as name:
        home = Path(name)
        farm = Farm(home, asked.seed, apart=apart)
        try:
            if not until(lambda: all(farm.status(broker) for broker in farm.brokers), 30):
                say("the brokers did not start")
                return 1
            time.sleep(10)
            before = weigh(farm)
            harm = Harm(farm, asked.seed)
            live(farm, harm, asked.minutes)
            say("healing")
            farm.heal()
            time.sleep(1)
            farm.heal()
            wrong = finish(farm)
            after = weigh(farm)
            wrong += grown(before, after)
            logs = sorted(home.glob("*.calls"))
            lives = sum(broker.lives for broker in farm.brokers)
            books = check(
                logs, farm.journal, batch_size=BATCH, killed=set(), stopped=harm.stopped, lives=lives
            )
            report(books, harm, before, after)
        finally:
            farm.close()
    for fault in (*wrong, *books.faults):
        say(f"BROKEN: {fault}")
    say(f"seed {asked.seed}: " + ("all promises were kept" if not wrong and not books.faults else "FAILED"))
    return int(bool(wrong or books.faults))


if __name__ == "__main__":
    sys.exit(main())
