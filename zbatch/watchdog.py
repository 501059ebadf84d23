"""Tell the service manager that this process serves, and goes on serving.

systemd's protocol, one datagram a word: ``READY=1`` once it listens, ``WATCHDOG=1`` while its loop turns,
``STOPPING=1`` when it leaves.  Where nobody asked to be told (no ``$NOTIFY_SOCKET``) nothing is said.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from zbatch.config import service_manager

OFTEN = 3
"""Times a period that it says it is alive: one late turn of the loop is no hang."""


class Watchdog:
    """Says how this process is to whoever started it."""

    def __init__(self) -> None:
        address, period = service_manager()
        # A name that begins with @ lies in the kernel's own namespace, whose names begin with a zero.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._interval = period / OFTEN if address else 0.0
        self._due = 0.0

    def ready(self) -> None:
        """Say that it serves now."""
        self._say(b"READY=1")

    def stopping(self) -> None:
        """Say that it leaves."""
        self._say(b"STOPPING=1")

    def alive(self, now: float) -> None:
        """Say now and then that the loop turns."""
        if self._interval and now >= self._due:
            self._due = now + self._interval
            self._say(b"WATCHDOG=1")

    def sooner(self, due: float | None) -> float | None:
        """Return when to wake up: as wanted, or to say that it is alive."""
        if not self._interval:
            return due
        return self._due if due is None else min(due, self._due)

    def _say(self, word: bytes) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
                one.setblocking(False)
                one.sendto(word, self._address)
