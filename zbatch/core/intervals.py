"""Sets of ids as ranges, so that thousands of ids cost a few numbers.

A range is half open.  A *set* here is a list of ranges that is sorted and disjoint; :func:`normal` makes
one of any list.  Nothing here knows what the ids mean.
"""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]


def normal(ranges: Iterable[Range]) -> list[Range]:
    """Return the same ids sorted, disjoint and with neighbours joined; empty ranges vanish."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def subtract(whole: Iterable[Range], parts: Iterable[Range]) -> list[Range]:
    """Return the ids of the set ``whole`` that are not in the set ``parts``."""
    left: list[Range] = []
    holes = iter(parts)
    hole = next(holes, None)
    for start, stop in whole:
        at = start
        while hole is not None and hole[1] <= at:
            hole = next(holes, None)
        while hole is not None and hole[0] < stop:
            if hole[0] > at:
                left.append((at, hole[0]))
            at = max(at, hole[1])
            if hole[1] > stop:
                break
            hole = next(holes, None)
        if at < stop:
            left.append((at, stop))
    return left


def intersect(first: Iterable[Range], second: Iterable[Range]) -> list[Range]:
    """Return the ids that are in both sets."""
    ranges = list(first)
    return subtract(ranges, subtract(ranges, second))


def of(ids: Iterable[int]) -> list[Range]:
    """Return the set of some ids, which may come in any order."""
    return normal((one, one + 1) for one in ids)


def count(ranges: Iterable[Range]) -> int:
    """Return how many ids a set has."""
    return sum(stop - start for start, stop in ranges)
