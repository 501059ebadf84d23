"""Keep an event loop from falling asleep for a moment where the next thing may come at any time.

To wake a thread that sleeps costs 30 us and more, above all on a virtual machine, and under load a gateway
would fall asleep a thousand times a second between two bursts of requests.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from zbatch.sockets import yield_core


class Awake:
    """Keeps a loop turning a while after each touch, if the one before came as soon.

    The core is offered to others at each turn, so this takes only time that nobody else wants; the same rule
    as the broker's (:func:`zbatch.sockets.busy_poll`).

    Args:
        loop: What is kept awake.
        span: Seconds after a touch; 0: never.

    """

    __slots__ = ("_clock", "_is_awake", "_is_touched", "_loop", "_span", "_touched", "_until")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, span: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._span = span
        self._clock = clock
        self._is_awake = False
        self._is_touched = False
        """Since its last turn."""
        self._touched = -math.inf
        """When it was touched while it was not awake."""
        self._until = 0.0

    def touch(self) -> None:
        """Learn that something came."""
        if self._is_awake:
            self._is_touched = True
            return
        now = self._clock()
        if now - self._touched < self._span:
            self._is_awake = True
            self._until = now + self._span
            self._loop.call_soon(self._turn)
        self._touched = now

    def _turn(self) -> None:
        if self._is_touched:
            self._is_touched = False
            self._until = self._clock() + self._span
        elif self._clock() >= self._until:
            self._is_awake = False
            self._touched = self._until - self._span
            return
        yield_core()
        self._loop.call_soon(self._turn)
