"""When a lone caller's answer is due, judged by the last ones: when to sleep, and when to look for it.

A thread that sleeps is woken late, above all on a virtual machine: 100 us and more after some milliseconds.
So it sleeps until shortly before its answer should come, and looks for it without sleeping from then on; but
only where the last answers came in step, and not for long.  What looking is, ``sockets.py`` knows.
"""

from __future__ import annotations

EARLY = 0.000_7
"""Seconds that looking begins before the answer is due; a wider spread than this cannot be foreseen."""

LATE = 0.001
"""Seconds that looking goes on after the answer was due: from then on it may come at any time."""

SHARE = 0.25
"""What each answer counts beside those before it, as in the estimate of TCP's round trips (RFC 6298)."""


class Expectation:
    """How long answers take, and how much they differ.

    Attributes:
        usual: Seconds that an answer takes, smoothed.
        spread: Seconds by which answers differ from that, smoothed.

    """

    def __init__(self) -> None:
        self.usual = 0.0
        self.spread = 0.0

    def learn(self, took: float) -> None:
        """Take into account how many seconds an answer took."""
        off = took - self.usual
        self.usual += SHARE * off
        self.spread += SHARE * (abs(off) - self.spread)

    def watch(self, asked: float) -> tuple[float, float] | None:
        """Return from when until when to look without sleeping; None: not at all, they come out of step."""
        if self.spread > EARLY:
            return None
        due = asked + self.usual
        return due - EARLY, due + LATE
