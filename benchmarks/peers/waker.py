"""Ends stopped processes when the benchmark was killed: ``python -m benchmarks.peers.waker``.

A stopped process sees neither that its input ended nor a signal that asks it to leave.  This one reads the
numbers of their groups, one a line, until its own input ends; if the last line is not ``done``, nobody else
is left to end them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

DONE = "done"

PATIENCE = 5.0
"""Seconds in which they may leave by themselves, once they go on."""


def main() -> None:
    """Wait for the end of standard input, and end what was named there unless all is done."""
    groups = sys.stdin.read().split()
    if DONE in groups:
        return
    _tell(groups, signal.SIGCONT)
    _tell(groups, signal.SIGTERM)
    time.sleep(PATIENCE)
    _tell(groups, signal.SIGKILL)


def _tell(groups: list[str], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(group), number)


if __name__ == "__main__":
    main()
