"""Tell the service manager that this process serves, and goes on serving.

systemd's protocol, one datagram a word: ``READY=1`` once it listens, ``WATCHDOG=1`` while its loop turns,
``STOPPING=1`` when it leaves.  Where nobody asked to be told (no ``$NOTIFY_SOCKET``) nothing is said.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from zbatch.config import service_manager

OFTEN = 3
"""Times a period that it says it is alive: one late turn of the loop is no hang."""

PATIENCE = 2.0
"""Seconds for a word that has to arrive."""

AT_A_TIME = 64
"""Words that are heard in one turn: anyone on this host may say some."""

CREDENTIALS = struct.Struct("3i")
"""A sender's process, user and group, as the kernel tells them."""


class Watchdog:
    """Says how this process is to whoever started it."""

    def __init__(self) -> None:
        address, period = service_manager()
        # A name that begins with @ lies in the kernel's own namespace, whose names begin with a zero.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._interval = period / OFTEN if address else 0.0
        self._due = 0.0

    @property
    def is_heard(self) -> bool:
        """Whether somebody asked to be told."""
        return bool(self._address)

    def ready(self) -> None:
        """Say that it serves now."""
        # It is said once: where it finds no room, it waits for some.
        self._say(b"READY=1", PATIENCE)

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

    def _say(self, word: bytes, patience: float = 0.0) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
                one.settimeout(patience)
                one.sendto(word, self._address)


class Ear:
    """Hears which children serve, as they would tell a service manager: their parent speaks for all."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # The kernel says who sent what, so that nobody else can speak for a child.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("")  # it finds a name of its own

    @property
    def address(self) -> str:
        """What children are given as ``$NOTIFY_SOCKET``."""
        return "@" + str(self._socket.getsockname()[1:], "ascii")

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when somebody spoke."""
        return self._socket.fileno()

    def serving(self) -> set[int]:
        """Return the processes that have said since the last time that they serve."""
        found = set()
        with suppress(BlockingIOError):
            for _ in range(AT_A_TIME):
                word, ancillary, _, _ = self._socket.recvmsg(64, socket.CMSG_SPACE(CREDENTIALS.size))
                if word == b"READY=1":
                    found |= {CREDENTIALS.unpack(data)[0] for _, _, data in ancillary}
        return found

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()
