"""The gate: who gets in at a broker that has keys.

libzmq asks about each new connection over ZAP.  It is answered in the broker's own loop, so the gatekeeper
cannot die alone: a broker that does not answer lets nobody in.  Before it serves, a broker tries its own
doors with a wrong key and with none, and does not start if one opens.  The keys are read in a thread beside
the loop, for a disk may stall; if that thread says nothing any more, nobody new gets in.  Which keys there
are is ``security.py``'s; what a role may do is decided in ``core/links.py``.
"""

from __future__ import annotations

import os
import socket as sockets_of_the_system
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from zbatch.core.links import Identity
from zbatch.errors import ConfigError
from zbatch.journal import Journal
from zbatch.security import Allowed, AllowList, Keys
from zbatch.sockets import is_readable, make_dealer

ZAP = "inproc://zeromq.zap.01"

LOOK = 0.4
"""Seconds between two looks at the folder of keys, and between two looks at what they found: together less
than the second in which a change takes effect."""

STALE = 10.0
"""Seconds without a finished look after which nobody new gets in: a key may have been taken away meanwhile.
A disk may be slow for moments, and the host busy."""

PROBE = 5.0
"""Seconds that a door may take to say no; on a busy host a handshake takes a while."""

GUESTS = 1_024
"""Connections remembered beyond those that have introduced themselves."""

OPENED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
REFUSED = int(
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


class Gate:
    """Answers who may come in, and remembers which connection has which key."""

    def __init__(self, context: zmq.Context[Any], keys: Keys, listed: AllowList, journal: Journal) -> None:
        self.keys = keys
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP)
        self._allowed = listed.look() or Allowed()
        self._reader = _Reader(listed)
        self._is_stale = False
        """Whether the keys have not been read for too long."""
        self._journal = journal
        self.is_trying = False
        """Whether the strangers at the door are our own, see :func:`try_doors`."""
        self._guests: dict[bytes, tuple[Identity, int, int]] = {}
        """By peer: who it is, and its connection's descriptor and inode."""
        self.look_at = 0.0
        """When to look next at what was read."""
        self._complain()

    def start(self) -> None:
        """Read the keys again and again from now on."""
        self._reader.start()

    def answer(self) -> None:
        """Answer those who wait at the door."""
        while is_readable(self.socket):
            frames = self.socket.recv_multipart()
            self.socket.send_multipart(self._verdict(frames))

    def identify(self, peer: bytes, envelope: zmq.Frame) -> Identity | None:
        """Return who sent a message; its key was checked when it connected, and may be gone since."""
        try:
            identity = self._allowed.by_key.get(str(envelope.get("User-Id")).encode())
            descriptor = int(envelope.get(int(zmq.SRCFD)))
            if identity is not None:
                self._guests[peer] = (identity, descriptor, os.fstat(descriptor).st_ino)
        except (zmq.ZMQError, OSError):
            return None
        return identity

    def look(self, now: float, introduced: Mapping[bytes, Any]) -> list[bytes]:
        """Take up now and then what was read; return the peers whose key is no longer allowed, locked out."""
        if now < self.look_at:
            return []
        # A broker that was stopped has not heard from its reader either.
        was_away = now - self.look_at > LOOK
        self.look_at = now + LOOK
        if len(self._guests) > GUESTS + 2 * len(introduced):
            self._guests = {peer: one for peer, one in self._guests.items() if peer in introduced}
        if not was_away:
            self._mind_the_reader(now - self._reader.finished)
        read = self._reader.take()
        if read is None:
            return []
        self._allowed = read
        self._complain()
        self._journal.event("keys read again")
        revoked = [peer for peer, (who, *_) in self._guests.items() if read.by_key.get(who.key) != who]
        for peer in revoked:
            who, descriptor, inode = self._guests.pop(peer)
            self._journal.event("key revoked", level="warning", role=who.role, name=who.name)
            with suppress(OSError):
                # The number may be another connection's by now.
                if os.fstat(descriptor).st_ino == inode:
                    with sockets_of_the_system.socket(fileno=os.dup(descriptor)) as connection:
                        connection.shutdown(sockets_of_the_system.SHUT_RDWR)
        return revoked

    def close(self) -> None:
        """Let nobody in any more."""
        self._reader.stop()
        self.socket.close(0)

    def _mind_the_reader(self, silent: float) -> None:
        was, self._is_stale = self._is_stale, silent > STALE
        if self._is_stale and not was:
            self._journal.event("keys cannot be read", level="warning", silent_s=round(silent, 1))

    def _verdict(self, frames: Sequence[bytes]) -> list[bytes]:
        version, request, _, address, _, mechanism, *credentials = frames
        if self._is_stale:
            # Not 400: to that a peer would not come again by itself.
            return [version, request, b"300", b"keys cannot be read", b"", b""]
        identity = None
        if mechanism == b"CURVE" and len(credentials) == 1:
            identity = self._allowed.by_key.get(z85.encode(credentials[0]))
        if identity is None and not self.is_trying:
            self._journal.event(
                "stranger at the door",
                level="warning",
                address=address.decode("latin-1"),
                mechanism=mechanism.decode("latin-1"),
            )
        if identity is None:
            return [version, request, b"400", b"this key is not allowed", b"", b""]
        return [version, request, b"200", b"OK", identity.key, b""]

    def _complain(self) -> None:
        for sentence in self._allowed.refused:
            self._journal.event("key not usable", level="warning", why=sentence)


class _Reader:
    """Reads the list of keys in a thread of its own, which hands over only what is finished."""

    def __init__(self, listed: AllowList) -> None:
        self.finished = time.monotonic()
        """When the last look came to an end."""
        self._listed = listed
        self._read: deque[Allowed] = deque(maxlen=1)
        self._ending = Event()

    def start(self) -> None:
        # A daemon: one that waits for a disk must not keep the broker from ending.
        Thread(target=self._run, name="keys", daemon=True).start()

    def stop(self) -> None:
        self._ending.set()

    def take(self) -> Allowed | None:
        """Return what was read since the last time, if anything changed."""
        return self._read.popleft() if self._read else None

    def _run(self) -> None:
        while not self._ending.wait(LOOK):
            found = self._listed.look()
            if found is not None:
                self._read.append(found)
            self.finished = time.monotonic()


def try_doors(gate: Gate, endpoints: Sequence[str]) -> None:
    """Try to get in with a wrong key and without one.

    Raises :class:`ConfigError` where that works, and where a door says nothing: it may open later.
    """
    context: zmq.Context[Any] = zmq.Context()
    try:
        tries = [(make_dealer(context, key), one, key) for one in endpoints for key in _wrong_keys(gate)]
        gate.is_trying = True
        watched = {socket.get_monitor_socket(): (one, key) for socket, one, key in tries}
        for socket, one, _ in tries:
            socket.connect(one)
        until = time.monotonic() + PROBE
        while watched and time.monotonic() < until:
            gate.answer()
            for monitor in list(watched):
                while monitor.poll(1):
                    event = int(recv_monitor_message(monitor)["event"])
                    if event & OPENED:
                        endpoint, key = watched[monitor]
                        with_what = "a key that is not allowed" if key else "no key"
                        raise ConfigError(
                            f"{endpoint} lets in who has {with_what}; this broker will not serve"
                        )
                    if event & REFUSED:
                        watched.pop(monitor, None)
                        break
        for endpoint, _ in watched.values():
            raise ConfigError(
                f"{endpoint} said neither yes nor no within {PROBE:g} s to who must not get in; "
                "this broker will not serve"
            )
    finally:
        gate.is_trying = False
        context.destroy(0)


def _wrong_keys(gate: Gate) -> tuple[Keys | None, None]:
    return Keys(*zmq.curve_keypair(), gate.keys.public), None
