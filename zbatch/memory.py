"""How many items a model can run at once before memory is short: learned, and carefully forgotten again.

A run that is out of memory is tried in halves, and from then on no run is larger than what was left.  After
some good runs at that size a slightly larger one is tried; each time that this fails, the next try comes
later.  What a failed run still holds on a GPU is let go of before anything else is tried.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import suppress

GOOD_RUNS = 16
"""Runs at the limit before a larger one is tried: enough to cost a failed try little."""

PATIENCE = 64
"""Times that number at most: what filled the memory may be gone tomorrow."""

STEP = 8
"""A larger run has an eighth more items, at least one."""

WORDS = (
    "out of memory",
    "OutOfMemory",
    "RESOURCE_EXHAUSTED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "not enough memory",
)
"""How libraries say it whose exceptions have no class for it."""


class Room:
    """How many items fit into one run."""

    def __init__(self) -> None:
        self.limit: int | None = None
        """None: nothing is known to be too much."""
        self._before: int | None = None
        """The limit from which this one was raised."""
        self._good = 0
        self._wanted = GOOD_RUNS

    def parts(self, count: int) -> Iterator[tuple[int, int]]:
        """Cut so many items into runs that fit."""
        step = self.limit or count
        for start in range(0, count, step):
            yield start, min(start + step, count)

    def failed(self, count: int) -> None:
        """Learn that so many items were too many."""
        if self._before is not None and count > self._before:
            self.limit = self._before
            self._wanted = min(2 * self._wanted, GOOD_RUNS * PATIENCE)
        else:
            self.limit = max(1, count // 2)
        self._before = None
        self._good = 0

    def ran(self, count: int) -> None:
        """Learn that so many items were not too many."""
        if self.limit is None or count < self.limit:
            return
        self._good += 1
        if self._good >= self._wanted:
            self._good = 0
            self._before = self.limit
            self.limit += max(1, self.limit // STEP)


def is_short(error: BaseException) -> bool:
    """Return whether an exception says that memory is short, on the host or on a GPU."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    with suppress(BaseException):  # its text may not be made, whatever it raises instead
        text = f"{type(error).__name__}: {error}"
        return isinstance(error, RuntimeError | OSError) and any(word in text for word in WORDS)
    return False


def release() -> None:
    """Let go of what a failed run left behind."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):
            torch.cuda.empty_cache()
