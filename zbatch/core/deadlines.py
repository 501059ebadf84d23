"""What is due when: many deadlines, few wake-ups, and nothing kept of what has finished.

A wheel of buckets.  An entry sits in the bucket in which its time ends and leaves it at once when it is
no longer wanted, so that finished work is not held until its timeout.  Nothing here knows what an entry
is; ``books.py``, ``dispatch.py``, ``broker.py`` and ``client.py``, which keep some, do.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

GRAIN = 1 / 256
"""Seconds a bucket spans: an entry is due up to 4 ms after its time, never before it.  A power of two, so
that bucket borders are exact floats."""

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Entries by the time at which they are due."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, None]] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, due: float, entry: T) -> int:
        """Remember an entry; return the bucket that :meth:`discard` wants back."""
        bucket = -int(-due // GRAIN)
        entries = self._buckets.get(bucket)
        if entries is None:
            self._buckets[bucket] = {entry: None}
            heappush(self._order, bucket)
            if len(self._order) > 64 + 2 * len(self._buckets):
                self._compact()
        else:
            entries[entry] = None
        return bucket

    def discard(self, bucket: int, entry: T) -> None:
        """Forget an entry that is no longer wanted; one that was due already is not there any more."""
        entries = self._buckets.get(bucket)
        if entries is not None and entries.pop(entry, self) is None and not entries:
            del self._buckets[bucket]

    def due(self, now: float) -> list[T]:
        """Remove and return what is due, earliest first."""
        entries: list[T] = []
        while self._order and self._order[0] * GRAIN <= now:
            entries += self._buckets.pop(heappop(self._order), ())
        return entries

    def next(self) -> float | None:
        """Return when the first entry is due; None without entries."""
        while self._order and self._order[0] not in self._buckets:
            heappop(self._order)
        return self._order[0] * GRAIN if self._order else None

    def _compact(self) -> None:
        # Buckets that emptied early leave their number in the heap; it must not outgrow the wheel.
        self._order = list(self._buckets)
        heapify(self._order)
