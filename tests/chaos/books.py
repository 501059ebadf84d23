"""What was asked, what became of it, how often it ran: a check of the whole, like a total queue's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil, log2
from pathlib import Path

LATE = 0.1
"""Seconds after the deadline within which each outcome is promised."""

SLACK = 1.5
"""Seconds that two busy cores may add to what a caller measures; stopped callers are told apart by name."""

OWN = {"-": set[str](), "?": {"model_failed"}, "!": {"poison_item"}}
"""Errors that an item may cause itself, by its first letter."""

UNDER_FAULTS = {
    "deadline_exceeded",
    "broker_unreachable",
    "no_workers",
    "worker_lost",
    "overloaded",
    "poison_item",  # a signal from outside looks like a death of its own
}


@dataclass
class Books:
    """What the logs say."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    asked: int = 0
    ran: int = 0

    def wrong(self, what: str) -> None:
        """Note a broken promise; the first hundred are enough."""
        if len(self.faults) < 100:
            self.faults.append(what)


def check(
    logs: list[Path], journal: Path, *, batch_size: int, killed: set[str], stopped: set[str], lives: int
) -> Books:
    """Read all logs; each request has one outcome, its own, in time, and ran no more often than it may.

    ``killed`` and ``stopped`` name callers that were; ``lives`` is how many lives of brokers there were, each
    of which may try anew.
    """
    books = Books()
    for log in logs:
        caller = log.stem
        _read(books, log, caller, caller in killed, caller in stopped)
    most = (3 + ceil(log2(batch_size)) + 1) * lives
    ran = Counter(journal.read_text().split("\n")[:-1]) if journal.exists() else Counter()
    for item, times in ran.items():
        if times > most:
            books.wrong(f"{item} ran {times} times, at most {most} were to be expected")
    books.ran = ran.total()
    return books


def _read(books: Books, log: Path, caller: str, killed: bool, stopped: bool) -> None:
    ended: Counter[str] = Counter()
    asked: list[str] = []
    lines = log.read_text().split("\n")
    for line in lines[:-1]:
        word, item, *rest = line.split(" ", 3)
        if word == "ask":
            asked.append(item)
            continue
        code, late = rest[0], float(rest[1])
        ended[item] += 1
        books.outcomes[code] += 1
        if code != "ok" and code not in OWN[item[0]] | UNDER_FAULTS:
            books.wrong(f"{caller}: {item} ended as {code}")
        if code == "ok" and item[0] != "-":
            books.wrong(f"{caller}: {item} cannot end well and did")
        books.late.append(late)
        if late > LATE + SLACK and not stopped:
            books.wrong(f"{caller}: {item} ended {late:.2f} s after its deadline, as {code}")
    books.asked += len(asked)
    for item in asked:
        if ended[item] != 1 and not (killed and ended[item] == 0):
            books.wrong(f"{caller}: {item} has {ended[item]} outcomes")
