"""Plain counters: what happened, how often, how long it took.  No clock, no thread, no exporter.

Histograms have fixed buckets, four to an octave, so that recording costs a few operations and two of them
can be added up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import frexp
from typing import TypeVar

Key = TypeVar("Key", str, int)

SHORTEST = 2.0**-20
"""Seconds, about a microsecond: what took less is counted as this."""

LONGEST = 2.0**14
"""Seconds, four and a half hours: what took more is counted as this."""


class Histogram:
    """How long things took, in buckets that grow by about 19 % each."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = defaultdict(int)
        self.total = 0.0

    @property
    def count(self) -> int:
        """How many events there were."""
        return sum(self.buckets.values())

    def record(self, seconds: float, times: int = 1) -> None:
        """Count ``times`` events that took ``seconds`` each."""
        # Compared, not min() and max(): it runs for each group, twice; those cost half of it.
        held = SHORTEST if seconds < SHORTEST else LONGEST if seconds > LONGEST else seconds
        fraction, exponent = frexp(held)
        self.buckets[4 * exponent + int(fraction * 8) - 4] += times
        self.total += seconds * times

    def copy(self) -> Histogram:
        """Return the same counts, which stay as they are."""
        same = Histogram()
        same.buckets, same.total = self.buckets.copy(), self.total
        return same

    def add(self, other: Histogram) -> None:
        """Count what another one counted, too."""
        for bucket, times in other.buckets.items():
            self.buckets[bucket] += times
        self.total += other.total

    def below(self, exponents: Sequence[int]) -> list[int]:
        """Return how many events took less than each of these powers of two, in seconds."""
        order = sorted(self.buckets)
        reached = [0, *accumulate(self.buckets[bucket] for bucket in order)]
        # The buckets of the octave that ends at 2 ** n are 4 n to 4 n + 3.
        return [reached[bisect_left(order, 4 * exponent + 4)] for exponent in exponents]

    def quantile(self, share: float) -> float | None:
        """Return the upper border of the bucket below which ``share`` of the events lie."""
        if not self.buckets:
            return None
        order = sorted(self.buckets)
        reached = list(accumulate(self.buckets[bucket] for bucket in order))
        exponent, part = divmod(order[bisect_left(reached, share * self.count)], 4)
        return float((part + 5) / 8 * 2.0**exponent)


def add_counts(total: dict[Key, int], more: Mapping[Key, int]) -> None:
    """Count in ``total`` what was counted by the same keys elsewhere, too."""
    for what, times in more.items():
        total[what] = total.get(what, 0) + times


class Rate:
    """Events a second, over the last ten whole seconds."""

    __slots__ = ("_counts", "_first", "_second")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._second: int | None = None
        self._first: float | None = None

    def add(self, times: int, now: float) -> None:
        """Count events."""
        second = int(now)
        if second == self._second:
            self._counts[second] += times
            return
        self._second = second
        self._counts = {when: n for when, n in self._counts.items() if when > second - 11}
        self._counts[second] = self._counts.get(second, 0) + times
        if self._first is None:
            self._first = now

    def per_second(self, now: float) -> float:
        """Return the mean over the last ten whole seconds, or over the time since the first event."""
        if self._first is None:
            return 0.0
        second = int(now)
        events = sum(n for when, n in self._counts.items() if second - 10 <= when < second)
        return events / max(1.0, min(10.0, second - int(self._first)))


@dataclass(slots=True)
class Flow:
    """What went over one side of a broker."""

    received_messages: int = 0
    received_bytes: int = 0
    sent_messages: int = 0
    sent_bytes: int = 0
